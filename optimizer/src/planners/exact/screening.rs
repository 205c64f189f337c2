//! The cheapest plan under latency limits: joint variants are bounded one by one, the cheapest first. Where they are
//! too many to list, those that differ from the best plan so far in one operator are tried; without a plan, all from
//! the first one on.
//!
//! The relaxation over whole routes is solved for few of them. Its prices are a point of the dual for all others too:
//! the cheapest route of another joint variant at these prices bounds that one (a Lagrangean bound), in a few
//! microseconds. So some dozens of relaxations exclude thousands of joint variants.
use super::best::Best;
use super::one_joint::OneJoint;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::routes::{Prices, Routes};
use super::search::Search;
use super::tuning::{MOST_PLANNED, MOST_WIDENED, MUCH_CHEAPER, PART_OF_ONE, SHORT_SECONDS};
use super::variants::listed;
use super::wait_levels::WaitLevels;
use crate::planner::PlannerError;
use crate::problem::Problem;
use std::collections::BTreeSet;

/// A joint variant that may be cheaper than the best plan.
#[derive(Debug)]
struct Open<'a> {
    joint: Vec<usize>,
    bound: f64,
    done: Done<'a>,
}

/// The work done on it so far.
#[derive(Debug)]
enum Done<'a> {
    Nothing,
    Relaxed,
    Planned,
    /// Searched this number of times, quickly at first, without completing.
    Searched(Box<OneJoint<'a>>, usize),
    /// Nothing more can be done.
    Exhausted,
}

impl Open<'_> {
    /// Priority: first plans from relaxations that cost much less than the best plan, then relaxations and plans from
    /// others, then the least searched.
    fn order(&self, may_plan: bool, cutoff: f64) -> Option<usize> {
        match &self.done {
            Done::Relaxed if may_plan && self.bound < MUCH_CHEAPER * cutoff => Some(0),
            Done::Relaxed if may_plan => Some(1),
            Done::Nothing => Some(1),
            Done::Relaxed | Done::Planned => Some(2),
            Done::Searched(_, times) => Some(2 + times),
            Done::Exhausted => None,
        }
    }
}

impl Open<'_> {
    fn new(joint: Vec<usize>, bound: f64) -> Self {
        Self { joint, bound, done: Done::Nothing }
    }
}

/// Searches joint variants, starting with `first`: plans, and a bound where all could be listed.
pub(super) fn one_by_one(
    problem: &Problem,
    excluded: &[Vec<usize>],
    first: &[usize],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let waits = WaitLevels::of(problem, search.every_wait);
    let bounding = Prepared::with_waits(problem, &rules, LatencyRule::Bound, 1.0, &waits)?;
    let planning = Prepared::with_waits(problem, &rules, LatencyRule::Plan, 1.0, &waits)?;
    let gap = search.limits.gap;
    let (time, wall) = (search.time, search.limits.wall_seconds);
    let seconds = || time.left_of(wall);
    let least = found.bound;
    if let Some((cost, solution)) = search.incumbent(problem, excluded)?.clone() {
        found.offer(cost, solution);
    }
    let list = listed(&bounding, excluded);
    // Joint variants met so far, where not all are listed.
    let mut seen = list.is_none().then(|| Seen::new(first));
    let list = list.unwrap_or_else(|| vec![first.to_vec()]);
    let mut open: Vec<Open<'_>> = list.into_iter().map(|joint| Open::new(joint, least)).collect();
    let mut best: Option<(f64, Prices)> = None;
    let mut planned = 0;
    let start = first;
    let mut first = open.iter().position(|open| open.joint == start);
    while seconds() > 0.0 {
        let cutoff = found.cutoff(gap).min(bounding.too_much());
        if first.is_none() {
            open.retain(|open| open.bound < cutoff);
        }
        let next = first.take().or_else(|| next_of(&open, planned < MOST_PLANNED, cutoff));
        let Some(next) = next else {
            let center = found.plan.as_ref().map(|(_, solution)| solution.variants.as_slice());
            let near = seen.as_mut().map(|seen| match center {
                Some(center) => seen.neighbours(problem, excluded, center),
                // Without a plan the search widens: exchanging one variant may not be enough.
                None => seen.next_neighbours(problem, excluded),
            });
            match near.filter(|near| !near.is_empty()) {
                Some(near) => open.extend(near.into_iter().map(|joint| Open::new(joint, least))),
                None => break,
            }
            if let Some((_, prices)) = &best {
                screen(&mut open, &bounding, prices, cutoff, &seconds);
            }
            continue;
        };
        let mut next = open.swap_remove(next);
        next.done = match next.done {
            Done::Nothing => {
                let mut routes = Routes::new(&bounding, &next.joint);
                routes.begin_with(best.as_ref().map(|(_, prices)| prices));
                let least = routes.generate(&routes.all_workers(), cutoff, &seconds);
                if let Some(least) = least.filter(|_| routes.is_bound) {
                    next.bound = next.bound.max(least);
                }
                if let Some(prices) = routes.prices.take() {
                    screen(&mut open, &bounding, &prices, found.cutoff(gap), &seconds);
                    if best.as_ref().is_none_or(|(least, _)| next.bound < *least) {
                        best = Some((next.bound, prices));
                    }
                }
                Done::Relaxed
            }
            Done::Relaxed if planned < MOST_PLANNED => {
                planned += 1;
                let mut routes = Routes::new(&planning, &next.joint);
                let most = found.plan.as_ref().map_or(f64::INFINITY, |(cost, _)| *cost);
                let placement = search.over_routes(&mut routes, most);
                found.offer_placement(problem, placement)?;
                Done::Planned
            }
            other => {
                let (mut one, times) = match other {
                    Done::Searched(one, times) => (one, times),
                    _ => {
                        let waits = waits.clone();
                        let one = OneJoint::new(&bounding, &planning, &next.joint, next.bound, waits);
                        (Box::new(one), 0)
                    }
                };
                let is_last = open.is_empty() || time.left_of(wall) < SHORT_SECONDS;
                let limits = search.limits_of_part(if is_last { 1.0 } else { PART_OF_ONE });
                // Quickly at first: a cheap plan with another joint variant makes this one easier.
                let is_stopped = search.under(limits, |search| one.close(times == 0, search, found))?;
                next.bound = next.bound.max(one.bound);
                if is_stopped { Done::Searched(one, times + 1) } else { Done::Exhausted }
            }
        };
        open.push(next);
        if found.cutoff(gap) < cutoff
            && let Some((_, prices)) = &best
        {
            screen(&mut open, &bounding, prices, found.cutoff(gap), &seconds);
        }
    }
    search.by_time |= !open.is_empty() && seconds() <= 0.0;
    if seen.is_none() {
        let cutoff = found.cutoff(gap);
        let bound = open.iter().map(|open| open.bound).fold(cutoff, f64::min); // none open, no plan: infinite
        found.bound = found.bound.max(bound);
    }
    Ok(())
}

/// Joint variants met, in order, where there are too many to list.
struct Seen {
    all: BTreeSet<Vec<usize>>,
    in_order: Vec<Vec<usize>>,
    /// Number of them whose neighbours have all been met.
    widened: usize,
}

impl Seen {
    fn new(first: &[usize]) -> Self {
        Self { all: BTreeSet::from([first.to_vec()]), in_order: vec![first.to_vec()], widened: 0 }
    }

    /// New joint variants that differ from `center` in one operator.
    fn neighbours(
        &mut self,
        problem: &Problem,
        excluded: &[Vec<usize>],
        center: &[usize],
    ) -> Vec<Vec<usize>> {
        let operators = problem.operators.iter().enumerate();
        let near = operators.flat_map(|(operator, facts)| {
            (0..facts.variants.len()).map(move |variant| {
                let mut near = center.to_vec();
                near[operator] = variant;
                near
            })
        });
        let mut near: Vec<_> = near.filter(|near| self.all.insert(near.clone())).collect();
        // Insufficiently accurate ones may have sufficient neighbours.
        self.in_order.extend(near.iter().cloned());
        near.retain(|near| !excluded.contains(near) && problem.accepts(near));
        near
    }

    /// Neighbours of the first one that still has any, while few enough have been met.
    fn next_neighbours(&mut self, problem: &Problem, excluded: &[Vec<usize>]) -> Vec<Vec<usize>> {
        while self.widened < self.in_order.len() && self.in_order.len() < MOST_WIDENED {
            let center = self.in_order[self.widened].clone();
            self.widened += 1;
            let near = self.neighbours(problem, excluded, &center);
            if !near.is_empty() {
                return near;
            }
        }
        Vec::new()
    }
}

/// Position of the next one to work on.
fn next_of(open: &[Open<'_>], may_plan: bool, cutoff: f64) -> Option<usize> {
    let order = |index: &usize| {
        let next = &open[*index];
        Some((next.order(may_plan, cutoff)?, next.bound, &next.joint))
    };
    let all = (0..open.len()).filter_map(|index| Some((order(&index)?, index)));
    let first = all.min_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(b.2)));
    first.map(|(_, index)| index)
}

/// Raises bounds by prices.
fn screen(
    open: &mut Vec<Open<'_>>,
    bounding: &Prepared<'_>,
    prices: &Prices,
    cutoff: f64,
    seconds: &impl Fn() -> f64,
) {
    // Without a cheap plan nearly all remain, and the whole search would take long; except where these prices are those
    // of variants that cannot serve the rates.
    let too_much = bounding.too_much();
    let is_worth_it = cutoff < f64::INFINITY || prices.least() >= too_much;
    let cutoff = cutoff.min(too_much);
    for open in open.iter_mut().filter(|open| matches!(open.done, Done::Nothing) && open.bound < cutoff) {
        if seconds() <= 0.0 {
            return;
        }
        let routes = Routes::new(bounding, &open.joint);
        open.bound = open.bound.max(routes.least_without_times(prices));
        if open.bound < cutoff && is_worth_it {
            let least = routes.least_by(prices, cutoff);
            open.bound = open.bound.max(least.unwrap_or(0.0));
        }
    }
    open.retain(|open| open.bound < cutoff);
}
