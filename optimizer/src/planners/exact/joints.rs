//! Which joint variants are planned under latency limits: those of a relaxation, and those that differ from good ones in
//! one operator. The relaxation over whole routes says within milliseconds what each of them costs at least.
use super::Best;
use super::keys_in_time::offer;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::routes::Routes;
use super::search::Search;
use crate::planner::PlannerError;
use crate::problem::Problem;
use std::collections::{BTreeMap, BTreeSet};

/// Joint variants around which others are looked at, how many are looked at, and how many are planned.
const CENTERS: usize = 8;
const MOST_LOOKED: usize = 300;
const MOST_PLANNED: usize = 12;
/// What costs at least so much more than the cheapest, as a part, is not looked at closely.
const FAR: f64 = 0.1;
/// Part of the time for looking; the rest is for plans.
const PART_OF_LOOKING: f64 = 0.4;

/// Joint variants that were looked at.
#[derive(Debug, Default)]
pub(super) struct Joints {
    /// What each costs at least; infinite where it has no plan or nothing was found in time.
    looked: BTreeMap<Vec<usize>, f64>,
    centers: BTreeSet<Vec<usize>>,
    pub(super) planned: BTreeSet<Vec<usize>>,
}

/// Plans of whole routes with variants near these.
pub(super) fn by_routes(
    problem: &Problem,
    excluded: &[Vec<usize>],
    variants: Vec<usize>,
    joints: &mut Joints,
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let prepared = Prepared::new(problem, &rules, LatencyRule::Budgets, 1.0)?;
    if !prepared.is_servable() {
        return Ok(());
    }
    let (time, wall) = (search.time, search.limits.wall_seconds);
    let begun = time.seconds();
    let looking = || time.left_of(wall.map(|wall| begun + PART_OF_LOOKING * (wall - begun)));
    let gap = search.limits.gap;
    let is_promising = |least: f64, found: &Best| {
        least.is_finite() && found.plan.as_ref().is_none_or(|(cost, _)| least < cost * (1.0 - gap))
    };
    let mut center = Some(variants);
    for _ in 0..CENTERS {
        let Some(variants) = center.take() else { break };
        let others = (0..variants.len()).flat_map(|operator| {
            let others = 0..problem.operators[operator].variants.len();
            others.map(move |variant| (operator, variant))
        });
        for (operator, variant) in others {
            let mut near = variants.clone();
            near[operator] = variant;
            let is_known = joints.looked.contains_key(&near);
            if is_known || excluded.contains(&near) || !problem.accepts(&near) {
                continue;
            }
            if joints.looked.len() >= MOST_LOOKED || looking() <= 0.0 {
                break;
            }
            let mut routes = Routes::new(&prepared, &near);
            let best = joints.looked.values().copied().fold(f64::INFINITY, f64::min);
            let least = routes.generate(&routes.all_workers(), best * (1.0 + FAR), &looking);
            joints.looked.insert(near, least.unwrap_or(f64::INFINITY));
        }
        joints.centers.insert(variants);
        let open = joints.looked.iter().filter(|(joint, _)| !joints.centers.contains(*joint));
        let next = open.min_by(|a, b| a.1.total_cmp(b.1)).filter(|(_, least)| is_promising(**least, found));
        center = next.map(|(joint, _)| joint.clone());
    }
    let mut order: Vec<(f64, Vec<usize>)> =
        joints.looked.iter().map(|(v, least)| (*least, v.clone())).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (least, joint) in order {
        if !is_promising(least, found) || joints.planned.len() >= MOST_PLANNED || time.left_of(wall) <= 0.0 {
            break;
        }
        if !joints.planned.insert(joint.clone()) {
            continue;
        }
        let mut routes = Routes::new(&prepared, &joint);
        let most = found.plan.as_ref().map_or(f64::INFINITY, |(cost, _)| *cost);
        let Some(placement) = search.over_routes(&mut routes, most) else { continue };
        offer(problem, Some(placement), found)?;
    }
    Ok(())
}
