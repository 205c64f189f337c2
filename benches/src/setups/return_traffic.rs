//! Cost over the rate with and without traffic back to the edge, medium setup.
use super::contest::{ENTRANTS, Row, plan};
use super::inputs::{Setup, Wanted};
use super::lines::{Lines, Panel};
use super::{Bench, steps};

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        let points: Vec<f64> =
            steps(4.0, 100.0, 24).into_iter().map(|rate| rate * family.rate_factor).collect();
        let mut all = Vec::new();
        for (returns, case) in [(false, "up only"), (true, "both ways")] {
            let wanted = Wanted { returns, ..family.wanted(Setup::Medium) };
            let (more, lines) = bench.sweep(&ENTRANTS[..3], &points, |entrant, rate| {
                Ok(plan(entrant, family, Wanted { rate, ..wanted }, bench.effort)?.in_case(case))
            })?;
            rows.extend(more.into_iter().map(Row::brief));
            all.extend(lines.into_iter().map(|mut line| {
                line.dashed = returns;
                line.name = format!("{}, {case}", line.name.replace("one operator a worker", "one a worker"));
                line
            }));
        }
        let title = format!("{}, at least {} %", family.title, family.wanted(Setup::Medium).accuracy);
        let across = "requests per second".into();
        panels.push(Panel { title, across, unit: family.unit, lines: all, changes: Vec::new() });
    }
    let title = "Cost with and without traffic back to the edge, medium setup".into();
    Lines { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}
