//! The questions of an explanation, one after the other. Plans and bounds of one serve the next.
use super::asked::{Answer, Question, Searches};
use super::devices::{device_reason, has_both_kinds};
use super::percentiles::is_slower;
use super::{
    Binding, Explanation, LevelChange, LevelPrice, LossPrice, Open, OtherPercentile, PercentileCost, Reason,
    Rejected, binding, with_accuracy, with_latency, with_losses, with_rate,
};
use crate::planner::{PlannerError, SAME_COST, SearchLimits};
use crate::problem::Problem;
use crate::solution::Solution;
use crate::summary::Summary;

/// Number of rejected plans shown.
const REJECTED: usize = 3;

/// The plan to explain, and the answers so far.
pub(super) struct Questions<'a> {
    pub(super) problem: &'a Problem,
    pub(super) solution: &'a Solution,
    pub(super) cost: f64,
    /// No plan costs less.
    pub(super) bound: f64,
    /// Plans of the problem that are known.
    pub(super) known: Vec<Solution>,
    searches: Searches,
    explanation: Explanation,
    seen: &'a mut dyn FnMut(&Explanation),
}

impl<'a> Questions<'a> {
    pub(super) fn new(
        problem: &'a Problem,
        (cost, bound, solution): (f64, f64, &'a Solution),
        limits: &SearchLimits,
        seen: &'a mut dyn FnMut(&Explanation),
    ) -> Self {
        Self {
            problem,
            solution,
            cost,
            bound,
            known: vec![solution.clone()],
            searches: Searches::new(limits),
            explanation: Explanation::default(),
            seen,
        }
    }

    /// Answers all questions.
    pub(super) fn answered(
        mut self,
        rate: f64,
        percentiles: &[OtherPercentile],
    ) -> Result<Explanation, PlannerError> {
        let changes = changes(self.problem, rate);
        let problem = self.problem;
        let survived = problem.limits.survive;
        let mut fewer: Vec<u32> =
            [0, survived.saturating_sub(1)].into_iter().filter(|of| *of < survived).collect();
        fewer.dedup();
        let devices = (0..problem.operators.len()).filter(|operator| has_both_kinds(problem, *operator));
        let devices: Vec<usize> = devices.collect();
        let percentiles_left = percentiles.iter().filter(|other| other.problem.is_some()).count();
        self.searches.left = changes.len() + fewer.len() + devices.len() + REJECTED + percentiles_left;
        self.explanation.questions = self.searches.left;
        self.explanation.binding = binding(problem, self.solution);
        for (change, changed) in changes {
            let price = self.price(change, &changed)?;
            self.explanation.prices.push(price);
            self.show();
        }
        for instead in fewer {
            let price = self.losses(instead)?;
            self.explanation.losses.push(price);
            self.show();
        }
        for operator in devices {
            let reason = device_reason(&mut self, operator)?;
            self.explanation.devices.extend(reason);
            self.show();
        }
        self.levels_left_out()?;
        self.other_variants()?;
        for other in percentiles {
            let cost = self.percentile(other)?;
            self.explanation.percentiles.push(cost);
            self.show();
        }
        self.searches.left = 0; // fewer rejected plans than expected
        self.show();
        Ok(self.explanation)
    }

    fn show(&mut self) {
        self.explanation.effort = self.searches.effort;
        self.explanation.questions = self.searches.effort.answered + self.searches.left;
        (self.seen)(&self.explanation);
    }

    /// Answers a question about a problem that every plan of is a plan of this one, too.
    pub(super) fn stricter(
        &mut self,
        problem: &Problem,
        known: Vec<Solution>,
        more_accurate: bool,
    ) -> Result<Answer, PlannerError> {
        self.searches.answer(Question {
            problem,
            excluded: &[],
            known,
            floor: self.bound,
            enough: self.cost,
            ceiling: f64::INFINITY,
            more_accurate,
        })
    }

    /// The price of a stricter level.
    fn price(&mut self, change: LevelChange, changed: &Problem) -> Result<LevelPrice, PlannerError> {
        let answer = self.stricter(changed, self.known.clone(), true)?;
        let price = answer.found.as_ref().map(|(cost, _)| {
            // A stricter level is never cheaper.
            ((answer.least - self.cost).max(0.0), (cost - self.bound).max(0.0))
        });
        let is_impossible = answer.least == f64::INFINITY;
        let after = answer.found.map(|(_, solution)| solution);
        self.known.extend(after.clone());
        Ok(LevelPrice { change, price, is_impossible, after, is_cut: answer.is_cut })
    }

    /// The price of surviving more losses.
    fn losses(&mut self, instead: u32) -> Result<LossPrice, PlannerError> {
        let answer = self.cheaper(&with_losses(self.problem, instead))?;
        let survived = self.problem.limits.survive;
        let price = match &answer.found {
            Some((cost, _)) => Some(((self.bound - cost).max(0.0), (self.cost - answer.least).max(0.0))),
            None if answer.is_cut => None,
            None => Some((0.0, 0.0)),
        };
        Ok(LossPrice { survived, instead, price, after: answer.found.map(|(_, solution)| solution) })
    }

    /// The cheapest plans without one of the service levels, where they cost less.
    fn levels_left_out(&mut self) -> Result<(), PlannerError> {
        let problem = self.problem;
        if problem.limits.accuracy.is_some() {
            let free = with_accuracy(problem, None);
            let answer = self.cheaper(&free)?;
            let reason = |solution: &Solution| Reason::Accuracy(problem.accuracy_of(&solution.variants));
            let is_found = self.rejected(answer, Open::WithoutAccuracy, reason);
            if let (true, Some(limit), Some(accuracy)) =
                (is_found, problem.limits.accuracy, problem.accuracy_of(&self.solution.variants))
            {
                self.explanation.binding.push(Binding::Accuracy { slack: accuracy - limit });
            }
            self.show();
        }
        if !problem.limits.latency.is_empty() {
            let mut free = problem.clone();
            free.limits.latency.clear();
            let answer = self.cheaper(&free)?;
            let reason = |solution: &Solution| {
                let summary = Summary::new(&free, solution).ok();
                let slowest = summary.as_ref().and_then(Summary::slowest).map_or(0.0, |path| path.total());
                Reason::Latency(slowest)
            };
            self.rejected(answer, Open::WithoutLatency, reason);
            self.show();
        }
        Ok(())
    }

    /// The cheapest plan of a looser problem, where it costs less.
    fn cheaper(&mut self, looser: &Problem) -> Result<Answer, PlannerError> {
        self.searches.answer(Question {
            problem: looser,
            excluded: &[],
            known: Vec::new(),
            floor: 0.0,
            enough: 0.0,
            ceiling: self.cost * (1.0 - SAME_COST),
            more_accurate: true,
        })
    }

    /// Adds the plan of an answer; returns whether there is one.
    fn rejected(&mut self, answer: Answer, without: Open, reason: impl FnOnce(&Solution) -> Reason) -> bool {
        let is_found = answer.found.is_some();
        match answer.found {
            Some((cost, solution)) => {
                let (reason, least) = (reason(&solution), answer.least);
                let is_cut = answer.is_cut;
                self.explanation.rejected.push(Rejected { solution, cost, reason, least, is_cut });
            }
            None if answer.is_cut => self.explanation.open.push(without),
            None => {}
        }
        is_found
    }

    /// The cheapest plans with other variants, until there are enough rejected plans.
    fn other_variants(&mut self) -> Result<(), PlannerError> {
        let mut excluded = vec![self.solution.variants.clone()];
        let (mut floor, mut enough) = (self.bound, self.cost);
        while self.explanation.rejected.len() < REJECTED {
            let answer = self.searches.answer(Question {
                problem: self.problem,
                excluded: &excluded,
                known: self.known.clone(),
                floor,
                enough,
                ceiling: f64::INFINITY,
                more_accurate: true,
            })?;
            // More variants excluded: the next plan costs no less.
            floor = floor.max(answer.least);
            if let Some((cost, solution)) = &answer.found {
                enough = enough.max(*cost);
                excluded.push(solution.variants.clone());
                self.known.push(solution.clone());
            }
            let more = answer.found.as_ref().map_or(0.0, |(cost, _)| cost - self.cost);
            let is_found = self.rejected(answer, Open::OtherVariants(floor), |_| Reason::Dearer(more));
            self.show();
            if !is_found {
                break;
            }
        }
        Ok(())
    }

    /// The cost at another percentile.
    fn percentile(&mut self, other: &OtherPercentile) -> Result<PercentileCost, PlannerError> {
        let percentile = other.percentile;
        let Some(problem) = &other.problem else {
            return Ok(PercentileCost { percentile, cost: None, least: 0.0, is_cut: false });
        };
        let is_slower = is_slower(problem, self.problem);
        let (floor, enough) = if is_slower { (self.bound, self.cost) } else { (0.0, 0.0) };
        let answer = self.searches.answer(Question {
            problem,
            excluded: &[],
            known: self.known.clone(),
            floor,
            enough,
            ceiling: f64::INFINITY,
            more_accurate: false,
        })?;
        let cost = answer.found.map(|(cost, _)| cost);
        Ok(PercentileCost { percentile, cost, least: answer.least, is_cut: answer.is_cut })
    }
}

/// One record per second more, one point of accuracy more, and 10 ms less: for the levels in force.
fn changes(problem: &Problem, rate: f64) -> Vec<(LevelChange, Problem)> {
    let mut changes = vec![(LevelChange::Rate(1.0), with_rate(problem, (rate + 1.0) / rate))];
    if let Some(accuracy) = problem.limits.accuracy {
        changes.push((LevelChange::Accuracy(1.0), with_accuracy(problem, Some(accuracy + 1.0))));
    }
    if problem.limits.latency.iter().any(|limit| limit.seconds > 0.01) {
        changes.push((LevelChange::Latency(0.01), with_latency(problem, |seconds| seconds - 0.01)));
    }
    changes
}
