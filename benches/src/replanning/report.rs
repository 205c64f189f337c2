//! The result as text, for programs, and as a drawing.
use super::Found;
use super::day::{Kind, STEP};
use super::strategies::Lived;
use crate::machine::machine;
use crate::panels::{Line, Panel, Panels};
use anyhow::Context;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

fn percent(part: f64) -> String {
    match part * 100.0 {
        part if part <= 0.0 => "0 %".to_owned(),
        part if part < 0.005 => "< 0.01 %".to_owned(),
        part if part < 10.0 => format!("{part:.2} %"),
        part => format!("{part:.1} %"),
    }
}

fn money(value: f64) -> String {
    if value >= 1.0 { format!("{value:.2} $") } else { format!("{value:.4} $") }
}

/// Returns a line for the terminal.
pub(super) fn line(name: &str, of: &Lived) -> String {
    format!(
        "{name:<18} {:>10}, turned away {}, late {}, below the accuracy {}, {} changes",
        money(of.cost),
        percent(of.part(of.shed)),
        percent(of.part(of.late)),
        percent(of.part(of.below)),
        of.changes
    )
}

/// Writes `replanning.json`, `replanning-table.md` and `replanning.svg`.
pub(super) fn write(folder: &Path, all: &[Found]) -> anyhow::Result<()> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put("replanning-table.md", tables(all)?)?;
    let rows: Vec<Value> =
        all.iter().flat_map(|found| found.ways.iter().map(move |of| row(found, of))).collect();
    let document = json!({
        "schema": 1,
        "question": "Does re-planning pay: cost, missed levels and accuracy of days whose load, workers and links change?",
        "name": "replanning",
        "machine": machine(),
        "rows": rows,
    });
    put("replanning.json", serde_json::to_string_pretty(&document)? + "\n")?;
    let shown = all.iter().find(|found| found.kind == Kind::Bursty).or(all.first());
    shown.map_or(Ok(()), |found| draw(found, &folder.join("replanning.svg")))
}

fn tables(all: &[Found]) -> anyhow::Result<String> {
    let mut page =
        "# Days under different plans\n\nWritten by `make bench BENCH=replanning`; what it means: \
                    [Does re-planning pay?](replanning.md).\n"
            .to_owned();
    for found in all {
        let seed = if found.kind == Kind::Bursty { format!(", seed {}", found.seed) } else { String::new() };
        let most = found.factors.iter().copied().fold(0.0, f64::max);
        let mean = found.factors.iter().sum::<f64>() / found.factors.len().max(1) as f64;
        let lost = match found.kind {
            Kind::Bursty => format!(
                "; `{}` is lost for 15 % of it, links have a tenth of their rate for 15 %",
                found.lost
            ),
            Kind::Steady | Kind::Spikes => String::new(),
        };
        writeln!(
            page,
            "\n## {}: {}{seed}\n\n{:.1}/s on average, {:.1}/s at most, {:.1} h{lost}.\n\n\
             | | $ | turned away | late | below the accuracy | missed in all | accuracy | changes |\n|---|---|---|---|---|---|---|---|",
            found.workload,
            found.kind.title(),
            found.rate * mean,
            found.rate * most,
            found.factors.len() as f64 * STEP / 3600.0
        )?;
        for (name, of) in &found.ways {
            writeln!(
                page,
                "| {name} | {} | {} | {} | {} | {} | {:.2} % | {} |",
                money(of.cost),
                percent(of.part(of.shed)),
                percent(of.part(of.late)),
                percent(of.part(of.below)),
                percent(of.part(of.missed())),
                of.mean_accuracy(),
                of.changes
            )?;
        }
    }
    Ok(page)
}

fn row(found: &Found, (name, of): &(&'static str, Lived)) -> Value {
    json!({
        "models": found.workload,
        "day": found.kind.title(),
        "seed": found.seed,
        "way": name,
        "cost": of.cost,
        "turned_away": of.part(of.shed),
        "late": of.part(of.late),
        "below_accuracy": of.part(of.below),
        "missed": of.part(of.missed()),
        "accuracy": of.mean_accuracy(),
        "changes": of.changes,
    })
}

/// Draws the load, the cost and the misses over a day.
fn draw(found: &Found, path: &Path) -> anyhow::Result<()> {
    let minutes = |number: usize| number as f64 * STEP / 60.0;
    let line = |name: &str, values: Vec<f64>| Line {
        name: name.to_owned(),
        points: values.into_iter().enumerate().map(|(number, value)| (minutes(number), value)).collect(),
        fitted: None,
    };
    let load = line("load", found.factors.iter().map(|factor| factor * found.rate).collect());
    let of = |value: fn(&(f64, f64)) -> f64| -> Vec<Line> {
        let ways = found.ways.iter();
        ways.map(|(name, lived)| line(name, lived.curve.iter().map(value).collect())).collect()
    };
    let panels = vec![
        Panel { title: "records per second".into(), lines: vec![load] },
        Panel { title: "$ per hour".into(), lines: of(|point| point.0) },
        Panel {
            title: "records that missed a level so far, percent of the day's".into(),
            lines: of(|point| point.1 * 100.0),
        },
    ];
    let title = format!("{}: {}", found.workload, found.kind.title());
    Panels { title, across: "minutes of the compressed day".into(), panels }.write(path)
}
