//! Watches runs and checks by current figures, with a planner and a simulation, whether another plan is better.
//!
//! | question | module |
//! |---|---|
//! | what do plans come to, and is another one worth a change? | [`crate::replanning`] |
//! | who asks, and what is done? | `replan_requests` |
mod replan_requests;

pub(super) use replan_requests::ReplanError;

use super::planning::{PlanningRequest, mark_of, pinned};
use super::{Shared, locked};
use crate::api::{ChangeOutcome, PlanChange, Proposal, Replan};
use crate::clock::instant;
use crate::facts::RunFacts;
use crate::replanning::Late;
use crate::replanning::assessment::{as_placed, charge, keep_sources, paid};
use crate::replanning::decision::{Candidate, Decision, Miss};
use crate::replanning::replanner::{Best, Bound, Look, Replanner, Search, Situation};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_app::planning::Case;
use tidemill_app::service_level::LevelSetting;
use tidemill_spec::plan::{Plan, PlanWorker};

/// Interval at which due checks are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds that a search may take.
const SEARCH_SECONDS: f64 = 10.0;
/// Miss of a plan whose files are absent: larger than any other.
const GONE: f64 = 100.0;
/// Number of recent changes examined for failures.
const LAST_CHANGES: usize = 4;
/// Number of plans of a run whose usage is kept.
const MOST_USES: usize = 6;

/// Replanners by run, for the watch and for requests.
pub(crate) struct Replanners {
    begun: Instant,
    of: BTreeMap<String, Replanner>,
}

impl Replanners {
    pub(crate) fn new() -> Self {
        Self { begun: instant(), of: BTreeMap::new() }
    }
}

/// State of a run between two looks.
#[derive(Default)]
struct Watched {
    /// The last decision, so that it is reported once.
    told: Option<String>,
    /// Time since which a missing part has been reported as the reason for no decision.
    waits: Option<Instant>,
}

/// Current facts and measurements of a run.
struct Now {
    facts: RunFacts,
    late: Late,
    /// Sinks with files, and the workers of the plan that hold them.
    pins: BTreeMap<String, PlanWorker>,
}

impl Now {
    /// The cluster's worker by role.
    fn workers(&self) -> BTreeMap<String, String> {
        let roles = self.facts.roles.iter();
        roles.filter_map(|(role, of)| Some((role.clone(), of.worker.clone()?))).collect()
    }

    /// Levels that may be relaxed, in order. Invalid ones were rejected at submission.
    fn degrade(&self) -> Vec<LevelSetting> {
        let planning = self.facts.planned.planning.iter();
        planning.flat_map(|planning| &planning.degrade).filter_map(|text| text.parse().ok()).collect()
    }
}

/// The planning problem of a run by current figures.
struct Problem<'a> {
    shared: &'a Shared,
    wish: PlanningRequest<'a>,
    case: Case,
    notes: Vec<String>,
    /// The present plan on the workers that have its roles.
    placed: Plan,
    bound: Bound,
    degrade: Vec<LevelSetting>,
}

/// The controller's planner: uses free capacity within the run's quota and keeps sinks with their files.
struct Planner<'a> {
    shared: &'a Shared,
    wish: PlanningRequest<'a>,
    notes: &'a [String],
    bound: &'a Bound,
}

impl Search for Planner<'_> {
    fn best(&mut self, case: &Case, explains: bool) -> Result<Best, String> {
        let (mut run, planned, expectation, _) =
            self.shared.planned_case(&self.wish, case, self.notes.to_vec(), explains)?;
        charge(&mut run.plan, &self.bound.prices);
        let mark = mark_of(&run.plan);
        Ok(Best { plan: run.plan, mark, planned, expectation, uses: run.uses })
    }

    fn mark(&self, plan: &Plan) -> String {
        mark_of(&pinned(plan.clone(), &BTreeMap::new()))
    }
}

impl Problem<'_> {
    /// Passes it to `ask` together with a planner.
    fn with<T>(&mut self, late: &Late, ask: impl FnOnce(Situation<'_>, &mut Planner<'_>) -> T) -> T {
        let mut planner =
            Planner { shared: self.shared, wish: self.wish, notes: &self.notes, bound: &self.bound };
        let situation = Situation {
            case: &mut self.case,
            plan: &self.placed,
            late,
            bound: &self.bound,
            degrade: &self.degrade,
        };
        ask(situation, &mut planner)
    }
}

/// Watches the runs until the controller ends.
pub(super) fn watch(shared: &Arc<Shared>) {
    let mut all: BTreeMap<String, Watched> = BTreeMap::new();
    while !shared.is_ending() {
        let running: Vec<String> = {
            let runs = locked(&shared.runs);
            runs.iter().filter(|(_, live)| live.observer.is_some()).map(|(name, _)| name.clone()).collect()
        };
        all.retain(|name, _| running.contains(name));
        shared.forget_replanners();
        for name in running {
            let watched = all.entry(name.clone()).or_default();
            look(shared, &name, watched);
        }
        std::thread::park_timeout(LOOK.div_f64(shared.replan_pace.max(1.0)));
    }
}

/// Whether part of the run is missing. Its plan then stays: it could not be ended before that part returns, and figures would cover only
/// the other parts.
fn waits(shared: &Shared, name: &str, watched: &mut Watched) -> bool {
    let missing = shared.missing_of(name);
    if missing.is_none() {
        if let Some(since) = watched.waits.take() {
            let seconds = since.elapsed().as_secs();
            let text = format!(
                "run {name} is complete again after {seconds} s: judging its plan again, by new measurements"
            );
            shared.tell("replan_goes_on", Some(name), None, &text);
        }
        return false;
    }
    let was_due = shared.with_replanner(name, Replanner::wait);
    let is_judged = shared.facts.look(|document| {
        let planned = document.runs.get(name).map(|run| &run.planned);
        planned.is_some_and(|planned| planned.planning.is_some() && planned.replan != Replan::Off)
    });
    if let Some(parts) = missing.in_words().filter(|_| was_due && is_judged && watched.waits.is_none()) {
        let text = format!(
            "run {name} keeps its plan, without a search for another one, until it is complete again: {parts}"
        );
        shared.tell("replan_waits", Some(name), None, &text);
        watched.waits = Some(instant());
    }
    true
}

fn look(shared: &Arc<Shared>, name: &str, watched: &mut Watched) {
    if shared.is_changing(name) {
        return;
    }
    if waits(shared, name, watched) {
        return;
    }
    if !shared.with_replanner(name, |replanner, now| replanner.is_due(now)) {
        return;
    }
    let Some(run) = shared.run_now(name) else { return };
    // There are no figures for a run that has just started.
    let is_looked_at = run.facts.planned.planning.is_some() && run.facts.planned.replan != Replan::Off;
    if !is_looked_at || run.late.measured.sources.is_empty() {
        return;
    }
    let planned = &run.facts.planned;
    let found = {
        let _alone = locked(&shared.planning);
        shared.problem(name, &run).and_then(|mut problem| {
            problem.with(&run.late, |situation, planner| {
                shared.with_replanner(name, |replanner, now| {
                    replanner.look(situation, planned.proposal.is_some(), planner, now)
                })
            })
        })
    };
    let found = match found {
        Ok(found) => found,
        Err(why) => {
            let text = format!("cannot plan run {name} again: {why}");
            return tell_once(shared, name, watched, "replan_failed", &text);
        }
    };
    // The search may have taken a while.
    if waits(shared, name, watched) {
        return;
    }
    let because = &found.because;
    match found.decision {
        Decision::Keep(why) if found.has_searched => {
            if found.has_no_reason && planned.proposal.as_ref().is_some_and(|proposal| proposal.by.is_none())
            {
                shared.withdraw(name, &why);
            }
            let text = format!("run {name} keeps its plan: {why}{because}");
            tell_once(shared, name, watched, "replan_kept", &text);
        }
        Decision::Keep(_) => {}
        Decision::Tell(text) => {
            let text = format!("run {name}: {text}{because}");
            tell_once(shared, name, watched, "replan_impossible", &text);
        }
        Decision::Change(candidate, why) => {
            let why = format!("{why}{because}");
            shared.propose(name, *candidate, &why, None);
            if planned.replan == Replan::Auto {
                // A failure is reported, and tried again after the next search.
                let _ = shared.apply(name, &why);
            }
        }
    }
}

/// Compares without digits, because numbers differ with every look.
fn tell_once(shared: &Shared, name: &str, watched: &mut Watched, kind: &str, text: &str) {
    let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    if watched.told.as_ref() != Some(&plain) {
        shared.tell(kind, Some(name), None, text);
        watched.told = Some(plain);
    }
}

impl Shared {
    /// Returns a run with its recent measurements; `None` if it does not run.
    fn run_now(&self, name: &str) -> Option<Now> {
        let outputs = locked(&self.runs).get(name)?.outputs.clone();
        let late = self.late(name);
        let facts = self.facts.look(|document| document.runs.get(name).cloned())?;
        let worker = |role: &str| facts.plan.workers.iter().find(|worker| worker.id == role).cloned();
        let pins = outputs.iter().filter_map(|(sink, role, _)| Some((sink.clone(), worker(role)?))).collect();
        Some(Now { facts, late, pins })
    }

    /// Builds the planning problem of a run by current figures.
    ///
    /// # Errors
    /// The figures cannot be planned with.
    fn problem<'a>(&'a self, name: &'a str, run: &'a Now) -> Result<Problem<'a>, String> {
        let Some(planning) = &run.facts.planned.planning else {
            return Err("it was submitted with a plan, without profiles to plan with".to_owned());
        };
        let (bundle, quota) = (&run.facts.bundle, run.facts.planned.quota);
        let wish = PlanningRequest { name, bundle, planning, quota, pins: &run.pins };
        let (mut case, notes) = self.case(&wish)?;
        let most = case.limits.wall_seconds.map_or(SEARCH_SECONDS, |wall| wall.min(SEARCH_SECONDS));
        case.limits.wall_seconds = Some(most);
        let bound = self.settle(&mut case, run);
        let placed = as_placed(&run.facts.plan, &run.workers(), &case.infrastructure);
        Ok(Problem { shared: self, wish, case, notes, placed, bound, degrade: run.degrade() })
    }

    /// Assesses the plan of a run and searches another one, on request.
    ///
    /// # Errors
    /// The figures cannot be planned with.
    fn look_at(&self, name: &str, run: &Now) -> Result<Look, String> {
        let mut problem = self.problem(name, run)?;
        problem.with(&run.late, |situation, planner| {
            self.with_replanner(name, |replanner, now| replanner.ask(situation, planner, now))
        })
    }

    /// Uses the replanner of a run, with the time in seconds scaled by the replanning pace.
    fn with_replanner<T>(&self, name: &str, ask: impl FnOnce(&mut Replanner, f64) -> T) -> T {
        let mut all = locked(&self.replanners);
        let now = all.begun.elapsed().as_secs_f64() * self.replan_pace;
        ask(all.of.entry(name.to_owned()).or_default(), now)
    }

    /// Whether its plan is being changed, with an unknown outcome. Otherwise records the plan's version.
    fn is_changing(&self, name: &str) -> bool {
        let known = self.facts.look(|document| {
            let run = document.runs.get(name)?;
            let is_open = |change: &PlanChange| change.outcome.is_none();
            let is_failed =
                |change: &&PlanChange| matches!(change.outcome, Some(ChangeOutcome::Failed { .. }));
            let failed = run.changes.iter().rev().take(LAST_CHANGES).filter(is_failed).count() as u32;
            Some((run.next.is_some() || run.changes.last().is_some_and(is_open), run.plan_version, failed))
        });
        let Some((is_changing, version, failed)) = known else { return true };
        if !is_changing {
            self.with_replanner(name, |replanner, now| replanner.sees_plan(version, failed, now));
        }
        is_changing
    }

    /// Drops replanners of runs that are over.
    fn forget_replanners(&self) {
        let open = |name: &String| {
            self.facts.look(|document| document.runs.get(name).is_some_and(|run| !run.state.is_over()))
        };
        locked(&self.replanners).of.retain(|name, _| open(name));
    }

    /// Fixes what a running job keeps: sources stay in place, and workers that hold files of its sinks are already paid for.
    fn settle(&self, case: &mut Case, run: &Now) -> Bound {
        let sources: Vec<String> =
            case.workflow.sources.iter().map(|source| source.id.value.clone()).collect();
        keep_sources(&mut case.infrastructure, &run.facts.plan, &sources);
        let mut bound = Bound::default();
        let roles: BTreeSet<&String> = run.pins.values().map(|worker| &worker.id).collect();
        for role in roles {
            let placed = run.facts.roles.get(role).and_then(|of| of.worker.clone());
            let worker = placed.unwrap_or_else(|| role.clone());
            match paid(&mut case.infrastructure, &worker) {
                Some(price) => *bound.prices.entry(worker).or_default() += price,
                // No other plan is better while this holds.
                None => bound.gone.push(Miss::other(
                    format!("worker {worker} has files of its sinks, but is unreachable or accepts no work"),
                    GONE,
                )),
            }
        }
        bound
    }

    /// Stores another plan of a run for a decision.
    fn propose(&self, name: &str, candidate: Candidate, why: &str, by: Option<&str>) {
        let Candidate { plan, mark, uses, .. } = candidate;
        let proposal = Proposal {
            plan,
            reason: why.to_owned(),
            time: tidemill_app::machine::now(),
            by: by.map(str::to_owned),
            accepted: None,
        };
        let is_known =
            self.facts.look(|document| document.runs.get(name).is_some_and(|run| run.proposes(&mark)));
        let kept = self.facts.change(|document| {
            let Some(run) = document.runs.get_mut(name) else { return };
            let present = mark_of(&run.plan);
            run.planned.proposal = Some(proposal);
            if !uses.is_empty() {
                run.planned.uses.retain(|(known, _)| *known != mark);
                run.planned.uses.push((mark, uses));
            }
            while run.planned.uses.len() > MOST_USES {
                let oldest = run.planned.uses.iter().position(|(known, _)| *known != present).unwrap_or(0);
                run.planned.uses.remove(oldest);
            }
        });
        if let Err(error) = kept {
            tracing::error!("cannot store a proposal: {error}");
        }
        if is_known {
            return; // it was told
        }
        let text = format!(
            "proposing another plan for run {name}: {why}; `tidemill change {name}` shows it and asks before changing"
        );
        self.tell("replan_proposed", Some(name), None, &text);
    }

    /// Changes a run to the proposed plan. The event `replan_accepted` reports success, `plan_change_failed` failure.
    ///
    /// # Errors
    /// There is no proposal, or it cannot be used. Reported as an event, too.
    fn apply(self: &Arc<Self>, name: &str, why: &str) -> Result<(), String> {
        if let Some(parts) = self.missing_of(name).in_words() {
            return Err(format!("run `{name}` keeps its plan until it is complete again: {parts}"));
        }
        let proposal =
            self.facts.look(|document| document.runs.get(name).and_then(|run| run.planned.proposal.clone()));
        let Some(proposal) = proposal else {
            return Err(format!("there is no proposed plan for run `{name}`"));
        };
        match self.change_plan(name, proposal.plan, why) {
            // The proposal stays until the run has it, because the change may still fail.
            Ok(version) => {
                let kept = self.facts.change(|document| {
                    let Some(run) = document.runs.get_mut(name) else { return };
                    let is_on_its_way = run.next.as_ref().is_some_and(|next| next.version == version);
                    if let Some(proposal) = run.planned.proposal.as_mut().filter(|_| is_on_its_way) {
                        proposal.accepted = Some(version);
                    }
                });
                if let Err(error) = kept {
                    tracing::error!("{error}");
                }
                Ok(())
            }
            Err(error) => {
                let text = format!("run {name} keeps its plan, because it cannot change: {error}");
                self.tell("replan_failed", Some(name), None, &text);
                Err(error.to_string())
            }
        }
    }
}
