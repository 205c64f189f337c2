//! Cost over the rate with 10 Mbps for all traffic that leaves the edge, medium setup.
use super::contest::{ENTRANTS, Row, plan_changed};
use super::inputs::{Setup, Wanted};
use super::lines::{Lines, Panel};
use super::{Bench, steps};
use tidemill_optimizer::problem::Problem;

/// Bytes per second over all links of the edge.
const CAP: f64 = 10e6 / 8.0;

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        let points: Vec<f64> =
            steps(2.0, 60.0, 29).into_iter().map(|rate| rate * family.rate_factor).collect();
        let wanted = family.wanted(Setup::Medium);
        let mut all = Vec::new();
        for (capped, case) in [(true, "10 Mbps"), (false, "no cap")] {
            let change = |problem: &mut Problem| {
                if capped {
                    cap(problem);
                }
            };
            let (more, lines) = bench.sweep(&ENTRANTS[..4], &points, |entrant, rate| {
                let row = plan_changed(entrant, family, Wanted { rate, ..wanted }, bench.effort, change)?;
                Ok(row.in_case(case))
            })?;
            rows.extend(more.into_iter().map(Row::brief));
            all.extend(lines.into_iter().map(|mut line| {
                line.dashed = !capped;
                line.name = format!("{}, {case}", line.name.replace("one operator a worker", "one a worker"));
                line
            }));
        }
        let title = format!("{}, at least {} %", family.title, wanted.accuracy);
        let across = "requests per second".into();
        panels.push(Panel { title, across, unit: family.unit, lines: all, changes: Vec::new() });
    }
    let title = "Cost where the edge has 10 Mbps in all, medium setup".into();
    Lines { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}

/// Bounds every route to a higher tier; with two tiers, this is all traffic that leaves the edge.
fn cap(problem: &mut Problem) {
    let tiers: Vec<usize> = problem.locations.iter().map(|location| location.tier).collect();
    for (from, routes) in problem.routes.iter_mut().enumerate() {
        for (to, route) in routes.iter_mut().enumerate() {
            if let Some(route) = route.as_mut().filter(|_| tiers[from] < tiers[to]) {
                route.bandwidth = Some(CAP);
            }
        }
    }
}
