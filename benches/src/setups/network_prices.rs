//! Cost over the price of traffic, medium setup, and the prices at which the plan changes.
use super::contest::{ENTRANTS, Row, plan_changed};
use super::inputs::{Family, Setup};
use super::lines::{Lines, Panel};
use super::{Bench, everyone, steps};
use tidemill_optimizer::problem::Problem;

/// Bytes per GB, the unit of prices.
const GB: f64 = 1e9;
/// Precision of the prices at which plans change.
const FINE: f64 = 1e-3;

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        let wanted = family.wanted(Setup::Medium);
        let at = |entrant, price: f64| {
            let row = plan_changed(entrant, family, wanted, bench.effort, |problem| reprice(problem, price))?;
            Ok(row.at(price))
        };
        let (more, lines) = bench.sweep(everyone(), &steps(0.0, 1.0, 20), at)?;
        let exact: Vec<Row> = more.iter().filter(|row| row.planner == ENTRANTS[0].name).cloned().collect();
        rows.extend(more.into_iter().map(Row::brief));
        let mut changes = Vec::new();
        for two in exact.windows(2) {
            for (before, after) in changes_between(&two[0], &two[1], &|price| at(ENTRANTS[0], price))? {
                changes.extend(after.varied.zip(after.total));
                rows.push(before.in_case("before a change"));
                rows.push(after.in_case("after a change"));
            }
        }
        panels.push(panel(family, wanted.rate, lines, changes));
    }
    let title = "Cost by the price of traffic from edge to cloud, medium setup".into();
    Lines { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}

fn panel(family: &Family, rate: f64, lines: Vec<super::lines::Line>, changes: Vec<(f64, f64)>) -> Panel {
    let title = format!("{}, {rate}/s", family.title);
    let across = match family.unit {
        "$/h" => "$/GB from edge to cloud",
        _ => "units/GB from edge to cloud",
    };
    Panel { title, across: across.into(), unit: family.unit, lines, changes }
}

/// Sets a price for all traffic to a higher tier.
fn reprice(problem: &mut Problem, price: f64) {
    let tiers: Vec<usize> = problem.locations.iter().map(|location| location.tier).collect();
    for (from, routes) in problem.routes.iter_mut().enumerate() {
        for (to, route) in routes.iter_mut().enumerate() {
            if let Some(route) = route.as_mut().filter(|_| tiers[from] < tiers[to]) {
                route.price = price / GB;
            }
        }
    }
}

/// Plans both sides of every change between two prices.
fn changes_between(
    low: &Row,
    high: &Row,
    at: &dyn Fn(f64) -> anyhow::Result<Row>,
) -> anyhow::Result<Vec<(Row, Row)>> {
    let (Some(from), Some(to)) = (low.varied, high.varied) else { return Ok(Vec::new()) };
    if is_same(low, high) {
        return Ok(Vec::new());
    }
    if to - from <= FINE {
        return Ok(vec![(low.clone(), high.clone())]);
    }
    let middle = at((from + to) / 2.0)?;
    let mut changes = changes_between(low, &middle, at)?;
    changes.extend(changes_between(&middle, high, at)?);
    Ok(changes)
}

/// Whether plans have the same models and kinds of workers; shares move a little with every price, and the figures of
/// single machines of a kind differ by a few percent.
fn is_same(one: &Row, other: &Row) -> bool {
    (&one.models, &one.kinds) == (&other.models, &other.kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_on_both_sides() {
        let plan = |price: f64| {
            let mut row = Row::empty().at(price);
            row.kinds = format!("{}", u8::from(price > 0.2) + u8::from(price > 0.7));
            row
        };
        let changes = changes_between(&plan(0.0), &plan(1.0), &|price| Ok(plan(price))).expect("plans");
        let prices: Vec<(f64, f64)> =
            changes.iter().filter_map(|(before, after)| before.varied.zip(after.varied)).collect();
        assert_eq!(prices.len(), 2);
        for ((before, after), change) in prices.into_iter().zip([0.2, 0.7]) {
            assert!(before <= change && change < after && after - before <= FINE);
        }
    }
}
