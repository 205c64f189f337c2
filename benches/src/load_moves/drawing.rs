//! The day with its levels, and bars of cost and misses beside each other, a row a way.
use super::Found;
use crate::plot::escaped;
use crate::setups::{begin, ticks};
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 16.0;
/// Where bars of cost and of misses begin, and how long they may be.
const COST: (f64, f64) = (300.0, 170.0);
const MISSES: (f64, f64) = (560.0, 200.0);
const ROW: f64 = 24.0;
const BAR: f64 = 13.0;
const DAY: f64 = 120.0;
/// Room for the title of a workload, the heads of its columns, and below.
const HEAD: f64 = 50.0;
const GAP: f64 = 22.0;
/// Colours of the parts of the misses: turned away, late, below the accuracy.
const PARTS: [(&str, &str); 3] = [("f4", "turned away"), ("f3", "late"), ("f1", "accuracy below the level")];

pub(super) fn write(path: &Path, all: &[Found]) -> anyhow::Result<()> {
    std::fs::write(path, draw(all)?).with_context(|| format!("cannot write {}", path.display()))
}

fn draw(all: &[Found]) -> anyhow::Result<String> {
    let first = all.first().context("nothing to draw")?;
    let rows: usize = all.iter().map(|found| found.ways.len()).sum();
    let day = 44.0;
    let top = day + 20.0 + DAY + 44.0;
    let height = top + rows as f64 * ROW + all.len() as f64 * (HEAD + GAP) + 10.0;
    let mut svg = begin("A bursty day: what it costs, and which records miss a level", WIDTH, height)?;
    draw_day(&mut svg, first, day)?;
    let mut y = top;
    for (at, (class, name)) in PARTS.iter().enumerate() {
        let x = LEFT + 150.0 + [0.0, 105.0, 165.0][at];
        writeln!(svg, r#"<rect class="{class}" x="{x:.1}" y="{:.1}" width="11" height="11"/>"#, y - 9.0)?;
        writeln!(svg, r#"<text class="small" x="{:.1}" y="{y:.1}">{name}</text>"#, x + 16.0)?;
    }
    writeln!(svg, r#"<text class="small soft" x="{LEFT}" y="{y:.1}">records that miss a level:</text>"#)?;
    y += 12.0;
    for found in all {
        y = draw_bars(&mut svg, found, y)?;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

/// The load over the day, and the rates that the switched plans are for.
fn draw_day(svg: &mut String, found: &Found, top: f64) -> anyhow::Result<()> {
    let (left, right) = (LEFT + 34.0, WIDTH - 20.0);
    let (trace, seconds) = (&found.trace, found.trace.seconds());
    let most = found.steps.iter().map(|step| step.2).fold(trace.largest_factor(), f64::max);
    let across = |time: f64| left + time / seconds * (right - left);
    let up = |factor: f64| top + 20.0 + DAY * (1.0 - factor / most);
    let rate = found.unit_rate;
    writeln!(
        svg,
        r#"<text class="small" x="{LEFT}" y="{:.1}"><tspan class="soft">load of the day ({}), records per second, and the</tspan><tspan class="panel" dx="4">rate that the switched plans are for</tspan></text>"#,
        top + 4.0,
        escaped(&found.title)
    )?;
    for tick in ticks(0.0, most * rate, 4) {
        let y = up(tick / rate);
        writeln!(svg, r#"<line class="grid" x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#)?;
        writeln!(
            svg,
            r#"<text class="small soft" text-anchor="end" x="{:.1}" y="{:.1}">{tick}</text>"#,
            left - 6.0,
            y + 4.0
        )?;
    }
    let mut load = String::new();
    for (begin, end, factor) in trace.parts() {
        let command = if load.is_empty() { 'M' } else { 'L' };
        write!(load, "{command}{:.1} {:.1}H{:.1}", across(begin), up(factor), across(end))?;
    }
    writeln!(svg, r#"<path class="curve c5" stroke-width="1.2" d="{load}"/>"#)?;
    let mut steps = String::new();
    for (begin, end, factor) in &found.steps {
        let command = if steps.is_empty() { "M" } else { "L" };
        write!(steps, "{command}{:.1} {:.1}H{:.1}", across(*begin), up(*factor), across(*end))?;
    }
    writeln!(svg, r#"<path class="curve c0" stroke-width="1.8" d="{steps}"/>"#)?;
    for hour in (0..=24).step_by(4) {
        let x = across(f64::from(hour) * 3600.0);
        writeln!(
            svg,
            r#"<text class="small soft" text-anchor="middle" x="{x:.1}" y="{:.1}">{hour} h</text>"#,
            up(0.0) + 16.0
        )?;
    }
    Ok(())
}

/// Rows of one workload; where the next one begins.
fn draw_bars(svg: &mut String, found: &Found, top: f64) -> anyhow::Result<f64> {
    let y = top + 22.0;
    writeln!(svg, r#"<text class="panel" x="{LEFT}" y="{y:.1}">{}</text>"#, escaped(&found.title))?;
    for ((x, _), name) in [(COST, "$ a day"), (MISSES, "records that miss a level, in a scale of their own")]
    {
        writeln!(svg, r#"<text class="small soft" x="{x}" y="{y:.1}">{name}</text>"#)?;
    }
    let most_cost = found.ways.iter().map(|(_, of)| of.cost).fold(0.0, f64::max);
    let most_missed = found.ways.iter().map(|(_, of)| of.missed()).fold(0.0, f64::max);
    for (at, (way, outcome)) in found.ways.iter().enumerate() {
        let middle = top + HEAD + at as f64 * ROW - 8.0;
        let (bar, text) = (middle - BAR / 2.0, middle + 4.0);
        let is_ours = way.name.starts_with("plans switched");
        let class = if is_ours { "panel small" } else { "small" };
        writeln!(svg, r#"<text class="{class}" x="{LEFT}" y="{text:.1}">{}</text>"#, escaped(&way.name))?;
        let length = outcome.cost / most_cost * COST.1;
        let fill = if is_ours { "f0" } else { "f5" };
        writeln!(
            svg,
            r#"<rect class="{fill}" x="{}" y="{bar:.1}" width="{length:.1}" height="{BAR}"/>"#,
            COST.0
        )?;
        let cost =
            if outcome.cost >= 1.0 { format!("{:.1}", outcome.cost) } else { format!("{:.3}", outcome.cost) };
        writeln!(
            svg,
            r#"<text class="{class}" x="{:.1}" y="{text:.1}">{cost}</text>"#,
            COST.0 + length + 6.0
        )?;
        let mut x = MISSES.0;
        for (part, (class, _)) in [outcome.shed, outcome.late, outcome.below].into_iter().zip(PARTS) {
            let length = part / most_missed * MISSES.1;
            writeln!(
                svg,
                r#"<rect class="{class}" x="{x:.1}" y="{bar:.1}" width="{length:.1}" height="{BAR}"/>"#
            )?;
            x += length;
        }
        let missed = outcome.missed() * 100.0;
        let missed = if missed < 0.1 { format!("{missed:.2} %") } else { format!("{missed:.1} %") };
        writeln!(svg, r#"<text class="{class}" x="{:.1}" y="{text:.1}">{missed}</text>"#, x + 6.0)?;
    }
    Ok(top + HEAD + found.ways.len() as f64 * ROW + GAP)
}
