//! Routes after a loss that the planner did not plan for.
use super::{Fallback, LossError, Plan, Stage};
use crate::plan::{RouteClass, SOURCE_DEVICE};
use std::collections::{BTreeMap, BTreeSet};

/// Parts of classes below this are rounding errors.
const SMALL_SHARE: f64 = 1e-9;

/// Divides the classes of lost stages among the surviving stages of their operators, in proportion to their shares.
pub(super) fn spread(plan: &Plan, lost: &BTreeSet<String>) -> Result<Fallback, LossError> {
    let stages: BTreeMap<&str, &Stage> = plan.stages.iter().map(|stage| (stage.id.as_str(), stage)).collect();
    let is_lost = |id: &str| stages.get(id).is_none_or(|stage| lost.contains(&stage.worker));
    let sources: BTreeSet<&str> = plan
        .stages
        .iter()
        .filter(|stage| {
            plan.edges
                .iter()
                .all(|edge| stages.get(edge.to.as_str()).is_none_or(|to| to.operator != stage.operator))
        })
        .map(|stage| stage.operator.as_str())
        .collect();
    // The order of the workers is that of the parts of every operator, so that stages of one worker get the same keys.
    let order: BTreeMap<&str, usize> =
        plan.workers.iter().enumerate().map(|(index, worker)| (worker.id.as_str(), index)).collect();
    let mut left: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for stage in &plan.stages {
        let of_operator = left.entry(&stage.operator).or_default();
        if !is_lost(&stage.id) {
            of_operator.push((&stage.id, stage.share));
        }
    }
    for of_operator in left.values_mut() {
        of_operator.sort_by_key(|(id, _)| stages.get(id).and_then(|stage| order.get(stage.worker.as_str())));
    }
    let is_gone = |operator: &str| left.get(operator).is_none_or(Vec::is_empty);
    let has_models = |operator: &str| {
        plan.stages.iter().any(|stage| stage.operator == operator && stage.variant.is_some())
    };
    let nothing: Vec<String> = left
        .keys()
        .filter(|operator| is_gone(operator) && (has_models(operator) || sources.contains(**operator)))
        .map(|operator| (*operator).to_owned())
        .collect();
    if !nothing.is_empty() {
        return Err(LossError::NothingLeft(nothing));
    }
    let starts = started(plan, lost, &left)?;
    let started: BTreeMap<&str, &str> =
        starts.iter().map(|stage| (stage.operator.as_str(), stage.id.as_str())).collect();
    let mut classes: Vec<RouteClass> = Vec::new();
    let remain = plan.classes.iter().filter(|class| {
        class.route.iter().all(|(operator, stage)| !sources.contains(operator.as_str()) || !is_lost(stage))
    });
    for class in remain {
        let parted: Vec<&str> = class
            .route
            .iter()
            .filter(|(operator, stage)| is_lost(stage) && !started.contains_key(operator.as_str()))
            .map(|(operator, _)| operator.as_str())
            .collect();
        let ends: BTreeMap<&str, Vec<f64>> =
            parted.iter().map(|operator| (*operator, ends_of(&left[operator]))).collect();
        let mut borders: Vec<f64> = ends.values().flatten().copied().chain([1.0]).collect();
        borders.sort_by(f64::total_cmp);
        let mut begin = 0.0;
        for end in borders {
            if end - begin <= SMALL_SHARE {
                continue;
            }
            let mut route = class.route.clone();
            for (operator, stage) in &mut route {
                if let Some(ends) = ends.get(operator.as_str()) {
                    let middle = (begin + end) / 2.0;
                    let at = ends.partition_point(|end| *end <= middle).min(ends.len() - 1);
                    *stage = left[operator.as_str()][at].0.to_owned();
                } else if let Some(id) = started.get(operator.as_str()) {
                    *stage = (*id).to_owned();
                }
            }
            let share = class.share * (end - begin);
            match classes.iter_mut().find(|known| known.route == route) {
                Some(known) => known.share += share,
                None => classes.push(RouteClass { id: 0, share, route }),
            }
            begin = end;
        }
    }
    let count = classes.len();
    let total: f64 = classes.iter().map(|class| class.share).sum();
    for (index, class) in classes.iter_mut().enumerate() {
        class.id = u16::try_from(index).map_err(|_| LossError::Classes(count))?;
        class.share /= total;
    }
    Ok(Fallback { lost: lost.iter().cloned().collect(), starts, classes })
}

/// Ends of the parts of a class, from 0 to 1, one per surviving stage.
fn ends_of(left: &[(&str, f64)]) -> Vec<f64> {
    let total: f64 = left.iter().map(|(_, share)| share).sum();
    let mut sum = 0.0;
    let end = |(_, share): &(&str, f64)| {
        sum += share / total;
        sum
    };
    left.iter().map(end).collect()
}

/// Stages of lost operators without models: one each, beside a stage that feeds it, else on the first worker that is left.
fn started(
    plan: &Plan,
    lost: &BTreeSet<String>,
    left: &BTreeMap<&str, Vec<(&str, f64)>>,
) -> Result<Vec<Stage>, LossError> {
    let mut starts: Vec<Stage> = Vec::new();
    let remain = plan.workers.iter().filter(|worker| !lost.contains(&worker.id));
    let first =
        remain.clone().find(|worker| worker.worker_type != SOURCE_DEVICE).or_else(|| remain.clone().next());
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for stage in &plan.stages {
        let operator = stage.operator.as_str();
        if left.get(operator).is_some_and(|of| !of.is_empty()) || !seen.insert(operator) {
            continue;
        }
        let own = |id: &str| plan.stages.iter().any(|stage| stage.id == id && stage.operator == operator);
        let feeds = plan.edges.iter().filter(|edge| own(&edge.to)).map(|edge| edge.from.as_str());
        let feeding = feeds
            .filter_map(|id| plan.stages.iter().find(|stage| stage.id == id))
            .filter(|stage| !lost.contains(&stage.worker))
            .max_by(|a, b| a.share.total_cmp(&b.share).then(b.id.cmp(&a.id)));
        let worker = feeding.map(|stage| &stage.worker).or(first.map(|worker| &worker.id));
        let Some(worker) = worker else { return Err(LossError::NothingLeft(vec![operator.to_owned()])) };
        starts.push(Stage { worker: worker.clone(), share: 1.0, ..stage.clone() });
    }
    Ok(starts)
}
