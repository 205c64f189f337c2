//! The day with its levels, and bars of cost and misses side by side, a row per strategy.
use super::Found;
use anyhow::Context;
use std::path::Path;
use tidemill_drawing::axis::{Axis, short, ticks};
use tidemill_drawing::markup::{Markup, Short};
use tidemill_drawing::sheet::{self, Anchor, through};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 16.0;
/// Left ends and largest lengths of the bars of cost and of misses.
const COST: (f64, f64) = (300.0, 170.0);
const MISSES: (f64, f64) = (560.0, 200.0);
const ROW: f64 = 24.0;
const BAR: f64 = 13.0;
const DAY: f64 = 120.0;
/// Room for the title of a workload, the heads of its columns, and below.
const HEAD: f64 = 50.0;
const GAP: f64 = 22.0;
/// Colours of the kinds of misses: turned away, late, below the accuracy.
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
    let title = "A bursty day: what it costs, and which records miss a level";
    Ok(sheet::file(title, (WIDTH, height), |svg| {
        draw_day(svg, first, day);
        sheet::text(svg, "small soft", (LEFT, top), Anchor::Start, "records that miss a level:");
        for ((class, name), x) in PARTS.iter().zip([150.0, 255.0, 315.0]) {
            sheet::rectangle(svg, class, (LEFT + x, top - 9.0), (11.0, 11.0));
            sheet::text(svg, "small", (LEFT + x + 16.0, top), Anchor::Start, name);
        }
        all.iter().fold(top + 12.0, |y, found| draw_bars(svg, found, y));
    }))
}

/// Draws the load over the day, and the rates of the switched plans.
fn draw_day(svg: &mut Markup, found: &Found, top: f64) {
    let (left, right) = (LEFT + 34.0, WIDTH - 20.0);
    let trace = &found.trace;
    let most = found.steps.iter().map(|step| step.2).fold(trace.largest_factor(), f64::max);
    let across = Axis::linear((0.0, trace.seconds()), (left, right));
    let up = Axis::linear((0.0, most), (top + 20.0 + DAY, top + 20.0));
    svg.element("text", &[("class", &"small"), ("x", &LEFT), ("y", &Short(top + 4.0))], |text| {
        let of_the_day = format!("load of the day ({}), records per second, and the", found.title);
        text.leaf("tspan", &[("class", &"soft")], &of_the_day);
        text.leaf("tspan", &[("class", &"panel"), ("dx", &4)], "rate that the switched plans are for");
    });
    svg.break_line();
    for tick in ticks(0.0, most * found.unit_rate, 4) {
        let y = up.place(tick / found.unit_rate);
        sheet::line(svg, "grid", (left, y), (right, y));
        sheet::text(svg, "small soft", (left - 6.0, y + 4.0), Anchor::End, &short(tick));
    }
    let steps = |parts: &mut dyn Iterator<Item = (f64, f64, f64)>| {
        let ends = parts.flat_map(|(begin, end, factor)| [(begin, factor), (end, factor)]);
        through(&ends.map(|(time, factor)| (across.place(time), up.place(factor))).collect::<Vec<_>>())
    };
    sheet::curve(svg, "c5", 1.2, false, &steps(&mut trace.parts()));
    sheet::curve(svg, "c0", 1.8, false, &steps(&mut found.steps.iter().copied()));
    for hour in (0..=24).step_by(4) {
        let at = (across.place(f64::from(hour) * 3600.0), up.place(0.0) + 16.0);
        sheet::text(svg, "small soft", at, Anchor::Middle, &format!("{hour} h"));
    }
}

/// Draws the rows of one workload; returns the top of the next one.
fn draw_bars(svg: &mut Markup, found: &Found, top: f64) -> f64 {
    let y = top + 22.0;
    sheet::text(svg, "panel", (LEFT, y), Anchor::Start, &found.title);
    for ((x, _), name) in [(COST, "$ a day"), (MISSES, "records that miss a level, in a scale of their own")]
    {
        sheet::text(svg, "small soft", (x, y), Anchor::Start, name);
    }
    let most_cost = found.ways.iter().map(|(_, of)| of.cost).fold(0.0, f64::max);
    let most_missed = found.ways.iter().map(|(_, of)| of.missed()).fold(0.0, f64::max);
    for (at, (way, outcome)) in found.ways.iter().enumerate() {
        let middle = top + HEAD + at as f64 * ROW - 8.0;
        let (bar, text) = (middle - BAR / 2.0, middle + 4.0);
        let is_ours = way.name.starts_with("plans switched");
        let class = if is_ours { "panel small" } else { "small" };
        sheet::text(svg, class, (LEFT, text), Anchor::Start, &way.name);
        let length = outcome.cost / most_cost * COST.1;
        sheet::rectangle(svg, if is_ours { "f0" } else { "f5" }, (COST.0, bar), (length, BAR));
        let cost =
            if outcome.cost >= 1.0 { format!("{:.1}", outcome.cost) } else { format!("{:.3}", outcome.cost) };
        sheet::text(svg, class, (COST.0 + length + 6.0, text), Anchor::Start, &cost);
        let mut x = MISSES.0;
        for (part, (class, _)) in [outcome.shed, outcome.late, outcome.below].into_iter().zip(PARTS) {
            let length = part / most_missed * MISSES.1;
            sheet::rectangle(svg, class, (x, bar), (length, BAR));
            x += length;
        }
        let missed = outcome.missed() * 100.0;
        let missed = if missed < 0.1 { format!("{missed:.2} %") } else { format!("{missed:.1} %") };
        sheet::text(svg, class, (x + 6.0, text), Anchor::Start, &missed);
    }
    top + HEAD + found.ways.len() as f64 * ROW + GAP
}
