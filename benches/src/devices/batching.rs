//! Calls that are posted at once, against calls that wait for each other and go together.
use super::far_end::{Host, Way};
use super::page::{Found, Table, median, percent, time};
use super::steps::Steps;
use crate::result::Measurement;
use tidemill_replay::call::{Call, Class};
use tidemill_replay::published::Application;
use tidemill_replay::trace::{Design, Times, Trace};

const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// 20 waits, each after 45 posted calls, which is `SD`'s mean; the program takes as long as the device.
fn training() -> Vec<Call> {
    let launch = Call { gap: 20e-6, kernel: 20e-6, payload: 64.0, ..Call::new(Class::Async) };
    let wait = Call { gap: 20e-6, payload: 64.0, waits: true, reply: 64.0, ..Call::new(Class::Sync) };
    (0..20).flat_map(|_| std::iter::repeat_n(launch, 45).chain([wait])).collect()
}

pub(super) fn run(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let columns = ["calls", "alone", "2", "4", "8", "16", "32", "64", "alone / best", "worst / alone"];
    let mut table = Table::new(columns);
    let application = Application::RESNET;
    let inference = Trace::new(&application, Design::Locality, Times::on(&application, &application.v100));
    let kinds = [
        ("inference: ResNET", Steps::of(inference)),
        ("as in training: a wait after 45 calls", Steps::of(training().into_iter())),
    ];
    for (kind, steps) in kinds {
        let host = Host::new(steps.run_ms)?;
        let to = host.connect(Way::Tcp)?;
        let mut samples = vec![Vec::new(); BATCHES.len()];
        for _ in 0..5 * rounds {
            for (batch, samples) in BATCHES.iter().zip(&mut samples) {
                samples.push(steps.play(&to, *batch)?.0);
            }
        }
        let medians: Vec<f64> = samples.iter().map(|samples| median(samples)).collect();
        let best = medians[1..].iter().copied().fold(f64::INFINITY, f64::min);
        let worst = medians[1..].iter().copied().fold(0.0, f64::max);
        let mut row = vec![kind.to_owned()];
        row.extend(medians.iter().map(|seconds| time(*seconds)));
        row.extend([percent(medians[0] / best - 1.0), percent(worst / medians[0] - 1.0)]);
        table.row(row);
        for (batch, samples) in BATCHES.iter().zip(samples) {
            let samples = samples.iter().map(|seconds| seconds * 1e3).collect();
            let one = Measurement::new(format!("{kind}, {batch} calls together"), "ms", samples);
            found.measurements.push(if *batch == 1 { one.goal(best * 1.1e3) } else { one });
        }
    }
    found.section = format!(
        "## Posted at once, or together\n\nOver TCP on one host, medians of {}; *64*: as many of them as fit the 4 KiB that a lane holds back. Goal: within \
         10 % of the best number, which users would have to look for. Published: up to 15 % faster and up to 19 % slower than the best number.\n\n{}",
        5 * rounds,
        table.text()
    );
    Ok(found)
}
