//! Cost over the rate, medium setup.
use super::contest::{Row, plan};
use super::inputs::{Setup, Wanted};
use super::lines::{Lines, Panel};
use super::{Bench, everyone, steps};

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        let points = steps(4.0, 100.0, 24).into_iter().map(|rate| rate * family.rate_factor);
        let points: Vec<f64> = points.collect();
        let wanted = family.wanted(Setup::Medium);
        let (more, lines) = bench.sweep(everyone(), &points, |entrant, rate| {
            plan(entrant, family, Wanted { rate, ..wanted }, bench.effort)
        })?;
        rows.extend(more.into_iter().map(Row::brief));
        let title = format!("{}, at least {} %", family.title, wanted.accuracy);
        let across = "requests per second".into();
        panels.push(Panel { title, across, unit: family.unit, lines, changes: Vec::new() });
    }
    let title = "Cost by rate, medium setup".into();
    Lines { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}
