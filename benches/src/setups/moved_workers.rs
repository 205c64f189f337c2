//! Cost with other machines of the medium setup at the edge: the cheapest ones there, the rest in the cloud.
use super::contest::{Row, plan_changed};
use super::inputs::Setup;
use super::lines::{Lines, Panel};
use super::{Bench, everyone, steps};
use tidemill_optimizer::problem::Problem;

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        let wanted = family.wanted(Setup::Medium);
        let (more, lines) = bench.sweep(everyone(), &steps(1.0, 8.0, 7), |entrant, at_edge| {
            let row = plan_changed(entrant, family, wanted, bench.effort, |problem| {
                place(problem, at_edge as usize);
            })?;
            Ok(row.at(at_edge))
        })?;
        rows.extend(more.into_iter().map(Row::brief));
        let title = format!("{}, {}/s, {} %", family.title, wanted.rate, wanted.accuracy);
        let across = "machines at the edge, of nine".into();
        panels.push(Panel { title, across, unit: family.unit, lines, changes: Vec::new() });
    }
    let title = "Cost by machines at the edge, medium setup".into();
    Lines { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}

/// Places the cheapest machines at the edge and the others in the cloud.
fn place(problem: &mut Problem, mut at_edge: usize) {
    let mut order: Vec<usize> = (0..problem.worker_classes.len()).collect();
    order.sort_by(|a, b| problem.worker_classes[*a].price.total_cmp(&problem.worker_classes[*b].price));
    let lowest = (0..problem.locations.len()).min_by_key(|&at| problem.locations[at].tier);
    let highest = (0..problem.locations.len()).max_by_key(|&at| problem.locations[at].tier);
    let (Some(edge), Some(cloud)) = (lowest, highest) else { return };
    for class in order {
        // Machines of the medium setup are listed one by one, or as a class that is not split.
        let worker = &mut problem.worker_classes[class];
        let here = at_edge >= worker.count as usize;
        worker.location = if here { edge } else { cloud };
        at_edge = if here { at_edge - worker.count as usize } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_problems::{PublishedSetting, published_vqa_problem};

    #[test]
    fn the_cheapest_machines_are_at_the_edge() {
        let mut problem = published_vqa_problem(40.0, 56.0, PublishedSetting::Shared);
        for at_edge in 0..=9 {
            place(&mut problem, at_edge);
            let prices = |location: usize| {
                problem
                    .worker_classes
                    .iter()
                    .filter(move |class| class.location == location)
                    .map(|class| class.price)
            };
            assert_eq!(prices(0).count(), at_edge);
            assert!(prices(0).fold(0.0, f64::max) <= prices(1).fold(f64::INFINITY, f64::min));
        }
    }
}
