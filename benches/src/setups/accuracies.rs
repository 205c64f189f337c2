//! Cost over the least accuracy, medium setup.
use super::contest::{Row, plan};
use super::inputs::{Setup, Wanted};
use super::lines::{Lines, Panel};
use super::{Bench, everyone, steps};

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        let (low, high) = family.accuracies;
        let wanted = family.wanted(Setup::Medium);
        let (more, lines) = bench.sweep(everyone(), &steps(low, high, 24), |entrant, accuracy| {
            plan(entrant, family, Wanted { accuracy, ..wanted }, bench.effort)
        })?;
        rows.extend(more.into_iter().map(Row::brief));
        let title = format!("{}, {}/s", family.title, wanted.rate);
        let across = "least accuracy, %".into();
        panels.push(Panel { title, across, unit: family.unit, lines, changes: Vec::new() });
    }
    let title = "Cost by accuracy, medium setup".into();
    Lines { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}
