//! Plans again with one change, from what is known.
//!
//! A stricter problem costs no less than the plan that is explained: its bound ends a search as soon as a plan costs as
//! little. A plan that is known from another question and keeps the changed limits is an answer, or at least only
//! cheaper plans are searched for.
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SAME_COST, SearchLimits};
use crate::planners::exact::Exact;
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use crate::waits::with_least_waits;
use std::borrow::Cow;

/// Costs that differ by less, in $/h, are printed alike.
pub const PRINTED: f64 = 5e-5;

/// Equal shares of the remaining time that one question may take: known plans answer many others.
const SHARES: f64 = 3.0;

/// A changed problem.
pub(super) struct Question<'a> {
    pub(super) problem: &'a Problem,
    /// Joint variants that no plan may have.
    pub(super) excluded: &'a [Vec<usize>],
    /// Plans that may keep its limits.
    pub(super) known: Vec<Solution>,
    /// No plan costs less, in $/h.
    pub(super) floor: f64,
    /// Cost of a plan that is an answer, although it may not be proven: no search found less for a looser problem.
    pub(super) enough: f64,
    /// Only plans that cost less are answers.
    pub(super) ceiling: f64,
    /// Whether accuracy decides between equally cheap plans.
    pub(super) more_accurate: bool,
}

/// The cheapest plan of a question, as far as it is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) found: Option<(f64, Solution)>,
    /// No plan costs less; infinite: there is none.
    pub(super) least: f64,
    /// Whether the time limit ended the search.
    pub(super) is_cut: bool,
}

/// Effort of all searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// Questions with an answer.
    pub answered: usize,
    /// Searches for them: fewer, as known plans answer some.
    pub searches: usize,
    /// Nodes of the searches.
    pub nodes: u64,
    /// Searches that the time limit ended.
    pub cut: usize,
}

/// The searches of an explanation, under one time limit.
pub(super) struct Searches {
    limits: SearchLimits,
    time: SearchTime,
    /// Questions that follow, an estimate: each gets a share of the time.
    pub(super) left: usize,
    pub(super) effort: Effort,
}

impl Searches {
    pub(super) fn new(limits: &SearchLimits) -> Self {
        let limits = SearchLimits { every_wait: false, ..*limits };
        Self { limits, time: SearchTime::begin(), left: 0, effort: Effort::default() }
    }

    /// Answers a question.
    pub(super) fn answer(&mut self, question: Question<'_>) -> Result<Answer, PlannerError> {
        let Question { problem, excluded, known, floor, enough, ceiling, more_accurate } = question;
        let waits = |plan: Solution| match problem.limits.wait_levels.is_empty() {
            true => with_least_waits(problem, &plan),
            false => plan,
        };
        let costs = |plan: &Solution| cost(problem, plan).ok().map(|cost| cost.total());
        let mut found: Option<(f64, Solution)> = None;
        for plan in known.into_iter().map(waits) {
            let Some(total) = costs(&plan).filter(|total| *total < ceiling) else { continue };
            let is_cheaper = found.as_ref().is_none_or(|(least, _)| total < *least);
            if is_cheaper && !excluded.contains(&plan.variants) && check(problem, &plan).is_empty() {
                found = Some((total, plan));
            }
        }
        let enough = floor.max(enough * (1.0 + SAME_COST));
        self.effort.answered += 1;
        let share = (SHARES / self.left.max(1) as f64).min(1.0);
        self.left = self.left.saturating_sub(1);
        if found.as_ref().is_some_and(|(total, _)| *total <= enough + 0.5 * PRINTED) {
            return Ok(Answer { found, least: floor, is_cut: false });
        }
        let below = found.as_ref().map_or(ceiling, |(total, _)| ceiling.min(total - 0.5 * PRINTED));
        let left = self.time.left_of(self.limits.wall_seconds);
        if left <= 0.0 {
            self.effort.cut += 1;
            return Ok(Answer { found, least: floor, is_cut: true });
        }
        let limits = SearchLimits {
            wall_seconds: self.limits.wall_seconds.map(|_| left * share),
            floor: enough,
            ceiling: below,
            more_accurate: more_accurate && self.limits.more_accurate,
            ..self.limits
        };
        self.effort.searches += 1;
        let mut is_cut = false;
        let mut least = floor;
        // With few waits, as each question is searched once. Its bound then is that without latency limits.
        let mut with_waits = Cow::Borrowed(problem);
        if !problem.limits.latency.is_empty() && problem.limits.wait_levels.is_empty() {
            let mut free = problem.clone();
            free.limits.latency.clear();
            let found = Exact.plan_without(&free, &limits, excluded)?;
            self.effort.nodes += found.nodes;
            is_cut |= found.status == Status::TimeLimited;
            least = least.max(proven(&found, enough));
            with_waits.to_mut().limits.wait_levels = problem.limits.waits();
        }
        if least < below {
            let limits = SearchLimits { floor: enough.max(least), ..limits };
            let outcome = Exact.plan_without(&with_waits, &limits, excluded)?;
            self.effort.nodes += outcome.nodes;
            is_cut |= outcome.status == Status::TimeLimited;
            if matches!(with_waits, Cow::Borrowed(_)) {
                least = least.max(proven(&outcome, enough));
            }
            found = outcome.cost.zip(outcome.solution).filter(|(total, _)| *total < below).or(found);
        }
        self.effort.cut += usize::from(is_cut);
        let least = found.as_ref().map_or(least, |(total, _)| least.min(*total));
        Ok(Answer { found, least, is_cut })
    }
}

/// The bound of a search that was over at a plan of a cost that is enough: above that cost it is proven, at it not.
fn proven(outcome: &Outcome, enough: f64) -> f64 {
    outcome.bound.filter(|bound| *bound > enough * (1.0 + SAME_COST)).unwrap_or(0.0)
}
