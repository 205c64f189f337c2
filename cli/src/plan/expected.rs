//! `--latency expected`: the cheapest plan found that keeps the level on latency in a simulation.
//!
//! The bound of a plan adds up the levels of all stages, and is often several times the simulated latency. So the problem is planned under
//! limits that are looser than the level, the loosest and cheapest first, and each plan is simulated: the first that keeps the level is
//! near the cheapest, and some limits between it and the one before come nearer. The cost of a plan without any limit is a bound for all of
//! them.
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use serde_json::{Value, json};
use tidemill_app::expectation::{Contradiction, Expectation, expectation};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::milliseconds;
use tidemill_app::planned::{JudgedPlan, Planned};
use tidemill_app::planning::{Case, failed};
use tidemill_app::preparation::kinds;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::explain::with_latency;
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::{Outcome, Solution, Status};
use tidemill_spec::plan::LatencyBasis;
use tidemill_spec::publication::Publication;
use tidemill_spec::workflow::Sink;

/// Limits that are planned with, as multiples of the level; below 1 for levels that a bound keeps and a simulation does not.
const FACTORS: [f64; 13] = [64.0, 45.0, 32.0, 23.0, 16.0, 11.0, 8.0, 5.7, 4.0, 2.8, 2.0, 1.4, 1.0];
const STRICTER: [f64; 2] = [0.7, 0.5];
/// Limits between the loosest that is kept and the next one that is not.
const BETWEEN: usize = 4;
/// Simulations of a plan, each with other random numbers; all must keep the level.
const SEEDS: u64 = 3;
/// Part of the time that is left for one plan.
const PART_OF_TIME: f64 = 0.25;
/// Seconds that are too few for a plan.
const SHORT: f64 = 0.05;
/// Costs that differ by less than this part are equal.
const EQUAL: f64 = 1e-9;
/// Seconds in which a plan without the level is looked for where none is guaranteed.
const GLIMPSE_SECONDS: f64 = 5.0;

/// Result of the search.
pub(super) struct Search {
    /// With the plan that was found; its bound is that of a plan without a level on latency.
    pub(super) outcome: Outcome,
    pub(super) found: Option<JudgedPlan>,
    /// Without a plan: the nearest to the level of all that were simulated.
    pub(super) nearest: Option<Nearest>,
    /// Different plans that were simulated.
    pub(super) tried: usize,
}

/// Expected latency of a plan, against the level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Nearest {
    /// $/h.
    pub(crate) cost: f64,
    /// Percentile of the level, in percent.
    pub(crate) percentile: f64,
    /// Its latency, in seconds.
    pub(crate) seconds: f64,
    /// Whether all levels are expected to be kept.
    pub(crate) is_kept: bool,
}

impl Nearest {
    /// For programs.
    pub(super) fn value(&self) -> Value {
        json!({
            "cost": self.cost,
            "percentile": self.percentile,
            "expected_ms": self.seconds * 1e3,
            "is_kept": self.is_kept,
        })
    }
}

/// Result of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Kept,
    Missed,
    NoPlan,
}

/// Searches.
///
/// # Errors
/// As the planner; a profile without distributions of service times; a sink that publishes when the run ends.
pub(super) fn search(
    case: &Case,
    assembly: &Assembly,
    planner: &dyn Planner,
    terminal: &Terminal,
) -> anyhow::Result<Search> {
    let at_end = |sink: &&Sink| kinds().sink(&sink.kind).publication == Publication::AtEnd;
    if let Some(sink) = case.workflow.sinks.iter().find(at_end) {
        let message = format!(
            "the output of `{}` becomes visible when the run ends, so no plan keeps a level on latency there",
            sink.id
        );
        let help = "write to a `jsonl` or `csv` sink, or plan without a level (`--slo latency=none`)";
        return Err(Failure::new(Kind::Configuration, message)
            .at(sink.id.span.clone())
            .with_help(help)
            .into());
    }
    let mut judge = Judge { case, assembly, tried: Vec::new(), nearest: None, unknown: None };
    let mut line = StatusLine::new(*terminal);
    let mut all = Limits { planner, case, seconds: 0.0, nodes: 0, has_asked_highs: false, best: None };
    let free = without_latency(&assembly.problem);
    let first = all.plan(&free, 0.5, case.limits.more_accurate)?;
    if first.solution.is_none() {
        line.finish();
        return Ok(Search { outcome: first, found: None, nearest: None, tried: 0 });
    }
    let least = first.bound;
    let level =
        assembly.problem.limits.latency.iter().map(|limit| limit.seconds).fold(f64::INFINITY, f64::min);
    if all.judged(&free, first, &mut judge)? != Tried::Kept {
        // The loosest limit that is not kept, and the tightest that need not be looked at.
        let (mut missed, mut done) = (f64::INFINITY, None);
        for factor in FACTORS.into_iter().chain(STRICTER) {
            line.show(|_| progress(&judge, &all, factor * level));
            match all.within(factor, &mut judge)? {
                Tried::Missed => missed = factor,
                Tried::Kept | Tried::NoPlan => {
                    done = Some(factor);
                    break;
                }
            }
        }
        if let Some(mut done) = done.filter(|_| missed.is_finite()) {
            for _ in 0..BETWEEN {
                let factor = (done * missed).sqrt();
                line.show(|_| progress(&judge, &all, factor * level));
                match all.within(factor, &mut judge)? {
                    Tried::Missed => missed = factor,
                    Tried::Kept | Tried::NoPlan => done = factor,
                }
            }
        }
    }
    line.finish();
    if let (None, Some(why)) = (&all.best, &judge.unknown) {
        let message = format!("the expected latency is not known: {why}");
        let help = "measure the times with `tidemill profile`, or plan by the bound (`--latency guaranteed`)";
        return Err(Failure::new(Kind::Configuration, message).with_help(help).into());
    }
    let outcome = all.outcome(least);
    let found = all.best.map(|mut found| {
        found.expectation.write_into(&mut found.planned.plan);
        if let Some(predicted) = &mut found.planned.plan.predicted {
            predicted.latency_basis = LatencyBasis::Expected;
        }
        found
    });
    Ok(Search { outcome, found, nearest: judge.nearest, tried: judge.tried.len() })
}

/// Where no plan is guaranteed: what the plan without the level on latency is expected to do, else one within the limit, in
/// seconds, that can be `guaranteed`. None where no such plan is found soon, or nothing is known of what to expect.
pub(super) fn glimpse(
    case: &Case,
    assembly: &Assembly,
    planner: &dyn Planner,
    guaranteed: f64,
) -> anyhow::Result<Option<Nearest>> {
    let mut judge = Judge { case, assembly, tried: Vec::new(), nearest: None, unknown: None };
    let seconds = case.limits.wall_seconds.map_or(GLIMPSE_SECONDS, |wall| wall.min(GLIMPSE_SECONDS));
    let limits =
        SearchLimits { wall_seconds: Some(seconds), more_accurate: false, every_wait: false, ..case.limits };
    let problems = [without_latency(&assembly.problem), with_latency(&assembly.problem, |_| guaranteed)];
    for problem in problems {
        let Some(solution) = planner.plan(&problem, &limits).map_err(failed)?.solution else { continue };
        if judge.judge(&solution)?.0 {
            break;
        }
    }
    Ok(judge.nearest)
}

fn progress(judge: &Judge<'_>, all: &Limits<'_>, limit: f64) -> String {
    let best = all.best.as_ref().map(|found| super::dollars(found.planned.summary.cost.total()));
    let best = best.map(|cost| format!(", the best {cost}")).unwrap_or_default();
    format!(
        "simulated {} plans{best}, now those with a bound of {}",
        judge.tried.len(),
        milliseconds(limit * 1e3)
    )
}

fn without_latency(problem: &Problem) -> Problem {
    let mut free = problem.clone();
    free.limits.latency.clear();
    free
}

/// Plans under limits, and the best of them that keeps the level.
struct Limits<'a> {
    planner: &'a dyn Planner,
    case: &'a Case,
    /// Seconds for all plans together.
    seconds: f64,
    nodes: u64,
    has_asked_highs: bool,
    best: Option<JudgedPlan>,
}

impl Limits<'_> {
    fn left(&self) -> f64 {
        self.case.limits.wall_seconds.map_or(f64::INFINITY, |wall| wall - self.seconds)
    }

    fn plan(&mut self, problem: &Problem, part: f64, more_accurate: bool) -> Result<Outcome, Failure> {
        let wall_seconds = self.case.limits.wall_seconds.map(|_| part * self.left());
        let limits = SearchLimits { wall_seconds, more_accurate, every_wait: false, ..self.case.limits };
        let outcome = self.planner.plan(problem, &limits).map_err(failed)?;
        self.seconds += outcome.seconds;
        self.nodes += outcome.nodes;
        self.has_asked_highs |= outcome.has_asked_highs;
        Ok(outcome)
    }

    /// The plan within a multiple of the level.
    fn within(&mut self, factor: f64, judge: &mut Judge<'_>) -> anyhow::Result<Tried> {
        if self.left() < SHORT {
            return Ok(Tried::NoPlan);
        }
        let mut problem = with_latency(&judge.assembly.problem, |seconds| factor * seconds);
        // The limit is there to get other plans, and simulated they are all: waits of their own would take the time of many.
        problem.limits.wait_levels = problem.limits.waits();
        let outcome = self.plan(&problem, PART_OF_TIME, self.case.limits.more_accurate)?;
        self.judged(&problem, outcome, judge)
    }

    /// Simulates a plan. Where more accurate models for the same money cost too much time, those that were found first may not.
    fn judged(
        &mut self,
        problem: &Problem,
        outcome: Outcome,
        judge: &mut Judge<'_>,
    ) -> anyhow::Result<Tried> {
        let Some(solution) = outcome.solution else { return Ok(Tried::NoPlan) };
        let (mut is_kept, mut found) = judge.judge(&solution)?;
        if !is_kept
            && self.case.limits.more_accurate
            && self.left() >= SHORT
            && let Some(cheapest) = self.plan(problem, PART_OF_TIME, false)?.solution
        {
            (is_kept, found) = judge.judge(&cheapest)?;
        }
        if !is_kept {
            return Ok(Tried::Missed);
        }
        let Some(kept) = found else { return Ok(Tried::Kept) }; // as before
        let rank = |found: &JudgedPlan| {
            (found.planned.summary.cost.total(), found.planned.summary.accuracy.unwrap_or(0.0))
        };
        let is_better = self.best.as_ref().is_none_or(|best| {
            let ((cost, accuracy), (least, most)) = (rank(&kept), rank(best));
            cost < least * (1.0 - EQUAL) || (cost <= least * (1.0 + EQUAL) && accuracy > most)
        });
        if is_better {
            self.best = Some(kept);
        }
        Ok(Tried::Kept)
    }

    /// Returns the knowledge about the best plan, where none costs less than `least`.
    fn outcome(&self, least: Option<f64>) -> Outcome {
        let cost = self.best.as_ref().map(|found| found.planned.summary.cost.total());
        let bound = least.map(|least| cost.map_or(least, |cost| least.min(cost)));
        let gap = cost.zip(bound).map(|(cost, bound)| Outcome::gap_between(cost, bound));
        let status = match (cost, gap) {
            (None, _) if self.left() < SHORT => Status::TimeLimited,
            (None, _) => Status::Infeasible,
            (Some(_), Some(gap)) if gap <= self.case.limits.gap + EQUAL => Status::Optimal,
            (Some(_), _) => Status::Feasible,
        };
        Outcome {
            planner: self.planner.name().to_owned(),
            status,
            solution: self.best.as_ref().map(|found| found.planned.solution.clone()),
            cost,
            bound,
            gap,
            nodes: self.nodes,
            has_asked_highs: self.has_asked_highs,
            seconds: self.seconds,
        }
    }
}

/// Simulates plans, each once, and judges them by the levels that were asked for.
struct Judge<'a> {
    case: &'a Case,
    /// With the level on latency as it was asked for.
    assembly: &'a Assembly,
    /// Plans that were simulated, without their waits, and whether they keep all levels.
    tried: Vec<(Solution, bool)>,
    nearest: Option<Nearest>,
    /// The reason why a plan has no expectation.
    unknown: Option<String>,
}

impl Judge<'_> {
    /// Whether a plan keeps all levels in all simulations; where it does and was not simulated before, with what is expected.
    fn judge(&mut self, solution: &Solution) -> Result<(bool, Option<JudgedPlan>), Failure> {
        let mut plain = solution.clone();
        plain.hostings.iter_mut().for_each(|hosting| hosting.wait_seconds = None);
        if let Some((_, is_kept)) = self.tried.iter().find(|(known, _)| *known == plain) {
            return Ok((*is_kept, None));
        }
        let planned = Planned::new(self.case, self.assembly, solution)?;
        let mut worst: Option<Expectation> = None;
        let mut is_kept = true;
        for seed in 1..=SEEDS {
            if !is_kept {
                break;
            }
            let expected = expectation(self.case, self.assembly, solution, &planned.plan, seed);
            match &expected {
                Expectation::Unknown(why) => {
                    self.unknown = Some(why.clone());
                    is_kept = false;
                }
                Expectation::Known { contradictions, .. } => is_kept = contradictions.is_empty(),
            }
            if worst.as_ref().is_none_or(|worst| part_of_level(&expected) > part_of_level(worst)) {
                worst = Some(expected);
            }
        }
        self.tried.push((plain, is_kept));
        self.note(&planned, worst.as_ref(), is_kept);
        Ok((is_kept, worst.filter(|_| is_kept).map(|expectation| JudgedPlan { planned, expectation })))
    }

    /// Remembers what comes nearest to the level.
    fn note(&mut self, planned: &Planned, expected: Option<&Expectation>, is_kept: bool) {
        let Some(level) = expected.and_then(Expectation::slowest_level) else { return };
        let nearest = Nearest {
            cost: planned.summary.cost.total(),
            percentile: level.percentile,
            seconds: level.seconds,
            is_kept,
        };
        let is_nearer = |before: &Nearest| {
            (is_kept && !before.is_kept) || (is_kept == before.is_kept && level.seconds < before.seconds)
        };
        if self.nearest.as_ref().is_none_or(is_nearer) {
            self.nearest = Some(nearest);
        }
    }
}

/// The expected latency as a part of the level; infinite where something else is not kept.
fn part_of_level(expected: &Expectation) -> f64 {
    let Expectation::Known { contradictions, .. } = expected else { return f64::INFINITY };
    if contradictions.iter().any(|one| !matches!(one, Contradiction::Latency { .. })) {
        return f64::INFINITY;
    }
    expected.slowest_level().map_or(0.0, |level| level.seconds / level.limit)
}
