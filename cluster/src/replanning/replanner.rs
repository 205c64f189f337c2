//! Checks a run periodically, searches other plans if there is a reason, and returns a verdict. A controller calls it with measurements, a
//! simulation with simulated figures.
use super::assessment::{
    Drift, Times, assessed, busy, denied, drift_text, drifted, has_changed, is_other, measured, moved, times,
};
use super::decision::{Assessment, Assessments, Candidate, Decision, History, Miss, decide};
use super::degradation::{mark, planned_with_less, yielded_rate};
use super::load::{Load, Loads};
use super::scores::{Scores, with_scores};
use super::{Late, Use};
use std::collections::BTreeMap;
use tidemill_app::expectation::Expectation;
use tidemill_app::planned::Planned;
use tidemill_app::planning::Case;
use tidemill_app::service_level::LevelSetting;
use tidemill_optimizer::assemble::Level;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::Plan;
use tidemill_spec::units::Rate;

/// Seconds between two checks of a plan.
pub const CHECK: f64 = 10.0;
/// Seconds between two searches for a run.
pub const SEARCH: f64 = 30.0;
/// Window of the figures in seconds. A run has to be complete this long before they cover all of it.
pub const WHOLE: f64 = 10.0;

/// Result of a search.
pub struct Best {
    /// As it would be run.
    pub plan: Plan,
    /// Mark that identifies it among others.
    pub mark: String,
    /// In the planner's form.
    pub planned: Planned,
    /// Its expected behaviour.
    pub expectation: Expectation,
    /// Share of each worker that it uses.
    pub uses: BTreeMap<String, Use>,
}

/// A planner.
pub trait Search {
    /// The best plan of a case.
    ///
    /// # Errors
    /// There is no such plan; the reason. With `explains` it names the levels to relax, which may take a while.
    fn best(&mut self, case: &Case, explains: bool) -> Result<Best, String>;

    /// The mark of an existing plan.
    fn mark(&self, plan: &Plan) -> String;
}

/// Workers that a run cannot leave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bound {
    /// Price in $/h of workers that hold its files, by worker.
    pub prices: BTreeMap<String, f64>,
    /// Misses for such workers that are absent.
    pub gone: Vec<Miss>,
}

impl Bound {
    /// Sum of their prices, $/h.
    pub fn cost(&self) -> f64 {
        self.prices.values().sum()
    }
}

/// A run at one time.
pub struct Situation<'a> {
    /// The planning problem with current workers, links and prices.
    pub case: &'a mut Case,
    /// Its plan, on the workers that have its roles.
    pub plan: &'a Plan,
    /// Its recent measurements.
    pub late: &'a Late,
    /// Workers that it cannot leave.
    pub bound: &'a Bound,
    /// Levels that may be relaxed, in order.
    pub degrade: &'a [LevelSetting],
}

/// Findings of a check.
pub struct Look {
    /// The plan beside others.
    pub seen: Assessments,
    /// Workers and links that were planned with.
    pub infrastructure: Infrastructure,
    /// Measured times that differ from the profile.
    pub drift: Drift,
    /// Load, where it differs from the workflow's.
    pub load: Option<Load>,
}

impl Look {
    /// Figures that differ from those of the plan: ` (…)`, or nothing.
    pub fn because(&self, plan: &Plan) -> String {
        let load = self.load.map(|load| load.text(plan));
        let drift = (!self.drift.is_empty()).then(|| drift_text(&self.drift));
        let all: Vec<String> = load.into_iter().chain(drift).collect();
        if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
    }
}

/// Measurements of a run, including those under earlier plans.
#[derive(Default)]
struct Memory {
    loads: Loads,
    scores: Scores,
    times: Times,
}

/// Facts about a run for one check.
struct RunCheck<'a> {
    load: Option<Load>,
    scores: &'a Scores,
    drift: Drift,
}

impl Memory {
    fn see(&mut self, situation: &Situation<'_>, now: f64) -> Result<RunCheck<'_>, String> {
        let Situation { case, plan, late, .. } = situation;
        let assembly = case.assemble().map_err(|found| found.to_string())?;
        let load = self.loads.see(late, case, &assembly, now);
        self.scores.see(plan, late);
        let measured = times(&case.profile, plan, &late.stages, &busy(&case.infrastructure));
        let drift = self.times.see(measured, now);
        Ok(RunCheck { load, scores: &self.scores, drift })
    }
}

/// State of a run between two checks.
#[derive(Default)]
pub struct Replanner {
    history: History,
    memory: Memory,
    checked: Option<f64>,
    searched: Option<f64>,
    /// Time at which the run was last incomplete.
    waited: Option<f64>,
    /// Last version of the plan that was seen.
    version: Option<u64>,
    /// Workers, service times and load of the last search.
    looked_for: Option<(Infrastructure, Drift, Option<f64>)>,
}

/// Outcome of a check.
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// Whether a search took place.
    pub has_searched: bool,
    /// Whether a search found no reason to change.
    pub has_no_reason: bool,
    /// Figures that differ from those of the plan: ` (…)`, or nothing.
    pub because: String,
}

impl Replanner {
    /// Whether a check is due, in seconds of a monotonic clock.
    pub fn is_due(&self, now: f64) -> bool {
        self.is_time(now) && self.waited.is_none_or(|at| now - at >= WHOLE)
    }

    fn is_time(&self, now: f64) -> bool {
        self.checked.is_none_or(|at| now - at >= CHECK)
    }

    /// Postpones checks because part of the run is silent, cut off or starting. They resume once it has been complete for [`WHOLE`], with
    /// new observation periods. Returns whether a check was due.
    pub fn wait(&mut self, now: f64) -> bool {
        self.waited = Some(now);
        self.history.watch_anew();
        let was_due = self.is_time(now);
        if was_due {
            self.checked = Some(now);
        }
        was_due
    }

    /// Records the plan's version and how many recent changes failed. A new version restarts the observation periods.
    pub fn sees_plan(&mut self, version: u64, failed: u32, now: f64) {
        self.history.has_failed(failed);
        if self.version.replace(version).is_some_and(|before| before != version) {
            self.history.has_changed(now);
        }
    }

    /// Checks a run. `has_proposal`: another plan waits for a decision, so the reason for it is checked again.
    ///
    /// # Errors
    /// The figures cannot be planned with.
    pub fn look(
        &mut self,
        situation: Situation<'_>,
        has_proposal: bool,
        search: &mut dyn Search,
        now: f64,
    ) -> Result<Verdict, String> {
        self.checked = Some(now);
        let known = self.memory.see(&situation, now)?;
        let load = known.load;
        let may_search = self.searched.is_none_or(|at| now - at >= SEARCH);
        let plan = situation.plan;
        let is_watching = self.history.is_watching();
        let looked_for = &self.looked_for;
        let found = look_at(situation, known, search, |current, infrastructure, drift| {
            let is_as_before = looked_for.as_ref().is_some_and(|(workers, times, planned)| {
                !is_other(workers, infrastructure)
                    && !has_changed(times, drift)
                    && *planned == load.map(|load| load.planned)
            });
            let may_change = !current.misses.is_empty() || is_watching || has_proposal;
            may_search && (may_change || !is_as_before)
        })?;
        let because = found.because(plan);
        let has_searched = found.seen.is_searched;
        let has_no_reason = has_searched && found.seen.has_no_reason();
        let decision = decide(&mut self.history, found.seen, now);
        if has_searched {
            self.searched = Some(now);
            self.looked_for = Some((found.infrastructure, found.drift, load.map(|load| load.planned)));
        }
        Ok(Verdict { decision, has_searched, has_no_reason, because })
    }

    /// Checks a run on request, with a search in any case.
    ///
    /// # Errors
    /// The figures cannot be planned with.
    pub fn ask(
        &mut self,
        situation: Situation<'_>,
        search: &mut dyn Search,
        now: f64,
    ) -> Result<Look, String> {
        let known = self.memory.see(&situation, now)?;
        look_at(situation, known, search, |_, _, _| true)
    }
}

/// Assesses the plan of a run by current figures. Searches another one if `searches` says so.
///
/// # Errors
/// The figures cannot be planned with.
fn look_at(
    situation: Situation<'_>,
    known: RunCheck<'_>,
    search: &mut dyn Search,
    searches: impl FnOnce(&Assessment, &Infrastructure, &Drift) -> bool,
) -> Result<Look, String> {
    let Situation { case, plan, late, bound, degrade } = situation;
    let RunCheck { load, scores, drift } = known;
    drifted(&mut case.profile, &drift);
    with_scores(&mut case.profile, scores);
    if let Some(load) = load {
        case.options.rate = Some(Rate(load.now));
    }
    let judged = |case: &mut Case, simulates: bool| {
        let mut current = present(case, plan, bound, simulates);
        if current.misses.iter().any(|miss| miss.found.is_none()) {
            give_way(case, plan, degrade, &mut current);
        }
        current.misses.extend(measured(late));
        mark(&mut current.misses, degrade);
        current
    };
    let mut current = judged(case, false);
    let infrastructure = case.infrastructure.clone();
    if !searches(&current, &infrastructure, &drift) {
        let seen = Assessments { current, candidate: None, none: None, is_searched: false };
        return Ok(Look { seen, infrastructure, drift, load });
    }
    current = judged(case, true);
    let (candidate, none) = match other(case, load, degrade, search) {
        Err(why) => (None, Some(why)),
        Ok((best, mut misses)) if search.mark(plan) != best.mark => {
            misses.extend(denied(&best.expectation));
            misses.extend(bound.gone.iter().cloned());
            // At the current load, as the present plan.
            let own = assessed(case, &best.plan, false).map(|of| of.cost);
            let cost = match load {
                Some(_) => own.unwrap_or_else(|_| best.planned.summary.cost.total()),
                None => best.planned.summary.cost.total(),
            };
            let Best { plan: other, mark, uses, .. } = best;
            let assessment = Assessment { cost: cost + bound.cost(), misses };
            (Some(Candidate { moved: moved(plan, &other), plan: other, mark, assessment, uses }), None)
        }
        Ok(_) => (None, None),
    };
    let seen = Assessments { current, candidate, none, is_searched: true };
    Ok(Look { seen, infrastructure, drift, load })
}

/// The best plan for the load with headroom, else for the current load, else with relaxed levels; and its misses.
fn other(
    case: &mut Case,
    load: Option<Load>,
    degrade: &[LevelSetting],
    search: &mut dyn Search,
) -> Result<(Best, Vec<Miss>), String> {
    let now = case.options.rate;
    if let Some(load) = load.filter(|load| load.planned > load.now) {
        case.options.rate = Some(Rate(load.planned));
        let found = search.best(case, false);
        case.options.rate = now;
        if let Ok(best) = found {
            return Ok((best, Vec::new()));
        }
    }
    let why = match search.best(case, degrade.is_empty()) {
        Ok(best) => return Ok((best, Vec::new())),
        Err(why) => why,
    };
    if degrade.is_empty() {
        return Err(why);
    }
    match planned_with_less(case, degrade, search) {
        Some(found) => Ok(found),
        None => Err(search.best(case, true).err().unwrap_or(why)),
    }
}

/// Assesses the present plan. One outside of the planning problem misses everything.
fn present(case: &Case, plan: &Plan, bound: &Bound, simulates: bool) -> Assessment {
    let found = assessed(case, plan, simulates);
    let found = found.map(|of| Assessment { cost: of.cost + bound.cost(), ..of });
    found.unwrap_or_else(|why| Assessment {
        // Its own prediction includes everything.
        cost: plan.predicted.as_ref().and_then(|all| Some(all.cost.as_ref()?.value.0)).unwrap_or(0.0),
        misses: vec![Miss::other(why, 1.0)],
    })
}

/// Reduces the misses of a plan that carries the conceded rate to a miss of the rate alone.
fn give_way(case: &mut Case, plan: &Plan, degrade: &[LevelSetting], current: &mut Assessment) {
    let rate = degrade.iter().find_map(|step| match step {
        LevelSetting::Rate(rate) => *rate,
        _ => None,
    });
    let Some((rate, now)) = rate.zip(case.options.rate).filter(|(rate, now)| rate.0 < now.0) else { return };
    case.options.rate = Some(rate);
    let least = present(case, plan, &Bound::default(), false);
    case.options.rate = Some(now);
    let is_of_accuracy = |miss: &Miss| miss.found.is_some_and(|(level, _)| level == Level::Accuracy);
    if least.misses.iter().all(is_of_accuracy) {
        current.misses = least.misses;
        current.misses.push(yielded_rate(now.0, rate.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_begins_anew_with_another_plan_and_not_with_a_proposal() {
        let mut replanner = Replanner::default();
        replanner.sees_plan(1, 0, 5.0);
        assert_eq!(replanner.history, History::default(), "it has this plan since it began");
        replanner.sees_plan(1, 0, 9.0);
        assert_eq!(replanner.history, History::default());
        replanner.sees_plan(2, 0, 12.0);
        let mut changed = History::default();
        changed.has_changed(12.0);
        assert_eq!(replanner.history, changed);
    }

    #[test]
    fn nobody_looks_while_a_run_is_not_whole_nor_right_after() {
        let mut replanner = Replanner { checked: Some(0.0), ..Replanner::default() };
        assert!(!replanner.is_due(9.0) && replanner.is_due(10.0));
        assert!(!replanner.wait(9.0), "it was no time for a look");
        assert!(replanner.wait(10.0) && !replanner.wait(11.0));
        assert!(!replanner.is_due(20.5), "half of its figures are of then");
        assert!(replanner.wait(300.0));
        assert!(!replanner.is_due(309.0) && replanner.is_due(310.0));
    }
}
