//! Prints when hints help, by how often the traffic of others changes and by their noise, in virtual time.
//!
//! usage: `when_hints_help [SEED [PEAK]]`; PEAK is the part that others use of the busiest link, 0.5 unless given.
#![expect(unused, reason = "the tests use the rest of the study")]

#[path = "../tests/study/mod.rs"]
mod study;

use std::io::{self, Write};
use std::time::Duration;

fn main() -> io::Result<()> {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let peak = std::env::args().nth(2).and_then(|peak| peak.parse().ok()).unwrap_or(0.5);
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| changes each | topology only | with loads | chosen, T_b given | chosen, T_b estimated | T_b estimated | loads chosen |"
    )?;
    writeln!(out, "|---:|---:|---:|---:|---:|---:|---:|")?;
    for period in study::periods() {
        let row = study::run(seed, period, peak, Duration::from_secs(60));
        let relative = |speed: f64| format!("{:.1} %", 100.0 * speed / row.topology.max(row.loads));
        writeln!(
            out,
            "| {} ms | {} | {} | {} | {} | {} ms | {:.0} % |",
            row.period.as_millis(),
            relative(row.topology),
            relative(row.loads),
            relative(row.by_truth),
            relative(row.by_estimate),
            row.estimated.as_millis(),
            100.0 * row.chose_loads,
        )?;
    }
    writeln!(out, "\n| noise | speed with loads, of that without hints |\n|---:|---:|")?;
    for percent in (0..=90).step_by(10) {
        let noise = f64::from(percent) / 100.0;
        let (without, with_loads) = study::run_noise(seed, noise, Duration::from_secs(60));
        writeln!(out, "| {percent} % | {:.2} |", with_loads / without)?;
    }
    Ok(())
}
