//! Changes the plan of a running job: new processes start and load their models while the old ones continue. When all are ready, the old
//! plan ends with its last checkpoint, and the new one starts from it.
//!
//! The change is one atomic replacement of the version in the run's facts: a restarted controller finds the old or the new plan. The
//! version is part of the greeting, so processes of two plans cannot be confused.
mod pause;

pub(super) use pause::Suspended;

use super::launcher::Launcher;
use super::runs::Job;
use super::{Shared, backends, drive, locked};
use crate::api::{ChangeOutcome, PlanChange, PlanView, RunState};
use crate::clock::instant;
use crate::facts::{FactsError, FormerPlan, LastFigures, NextPlan, Role, RunFacts, Survived};
use pause::in_words;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_app::preparation::Prepared;
use tidemill_app::state::change::carried;
use tidemill_app::streams;
use tidemill_engine::{Hosts, Listen, Standby, Timing};
use tidemill_spec::plan::Plan;

/// Time for the processes of a new plan to fetch files and load models, while the old plan continues.
const PREPARING: Duration = Duration::from_secs(300);
/// Interval of looks at a plan that is being prepared.
const LOOK: Duration = Duration::from_millis(50);
/// Number of changes that are kept of a run.
const MOST_CHANGES: usize = 200;

/// Reason for a rejected change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("there is no run `{0}`")]
    NoRun(String),
    #[error("run `{name}` is {state}: there is no plan to change")]
    Over { name: String, state: RunState },
    #[error("run `{0}` is still starting: change its plan when it runs")]
    NotRunning(String),
    #[error("plan {version} of run `{name}` is being prepared: wait for it (`tidemill events`)")]
    Busy { name: String, version: u64 },
    #[error("{0}")]
    Wrong(String),
    #[error(transparent)]
    Facts(#[from] FactsError),
}

/// A plan that a run is to have next.
pub(super) struct Next {
    pub(super) version: u64,
    prepared: Prepared,
    rates: BTreeMap<String, Option<f64>>,
}

/// A plan whose processes are ready.
pub(crate) struct Switch {
    pub(super) version: u64,
    pub(super) prepared: Prepared,
    pub(super) standby: Standby,
    /// Time from the request until they were ready.
    took: Duration,
}

impl Switch {
    /// Records that the old plan has been ended for it.
    pub(super) fn suspended(&self, timing: Timing) -> Suspended {
        Suspended::of(timing, self.took)
    }
}

impl RunFacts {
    /// A version that no plan of the run had, failed ones included: their processes may still exist.
    fn next_version(&self) -> u64 {
        let changes = self.changes.iter().map(|change| change.version);
        changes.chain([self.plan_version]).max().unwrap_or(self.plan_version) + 1
    }

    /// Adopts the prepared plan; false if it was given up meanwhile.
    fn follow(&mut self, version: u64, counted: LastFigures) -> bool {
        let Some(next) = self.next.take_if(|next| next.version == version) else { return false };
        let plan = std::mem::replace(&mut self.plan, next.plan);
        let roles = std::mem::replace(&mut self.roles, next.roles);
        let survived = std::mem::replace(&mut self.survived, next.survived);
        self.former = Some(FormerPlan { plan, roles, survived, is_past: false });
        self.plan_version = version;
        self.before = counted.and(self.before);
        self.last = None;
        true
    }

    /// Restores the previous plan under a new version. Returns the failed and the new version; `None` if that is no longer possible.
    fn go_back(&mut self, why: &str) -> Option<(u64, u64)> {
        let former = self.former.take_if(|former| !former.is_past)?;
        let failed = self.plan_version;
        let version = self.next_version();
        let plan = std::mem::replace(&mut self.plan, Plan { plan_version: version, ..former.plan });
        let roles = std::mem::replace(&mut self.roles, former.roles);
        let survived = std::mem::replace(&mut self.survived, former.survived);
        // The state may belong to the failed plan.
        self.former = Some(FormerPlan { plan, roles, survived, is_past: true });
        self.plan_version = version;
        self.set_outcome(failed, ChangeOutcome::Failed { why: why.to_owned() });
        let reason = format!("back from plan {failed}");
        let time = tidemill_app::machine::now();
        self.changes.push(PlanChange { version, reason, time, outcome: None });
        Some((failed, version))
    }

    fn set_outcome(&mut self, version: u64, outcome: ChangeOutcome) {
        if matches!(outcome, ChangeOutcome::Failed { .. })
            && let Some(proposal) = &mut self.planned.proposal
        {
            // It may be accepted once more.
            proposal.accepted.take_if(|accepted| *accepted == version);
        }
        if let Some(change) = self.changes.iter_mut().rev().find(|change| change.version == version) {
            change.outcome = Some(outcome);
        }
    }
}

/// Rejects a plan that moves a sink away from its files, or a source from its stream.
fn check_bound(facts: &RunFacts, new: &Prepared) -> Result<(), ChangeError> {
    let program = &new.program;
    let sinks = program.sinks.values().filter(|sink| !sink.files.is_empty());
    let sinks = sinks.map(|sink| (&sink.id, format!("sink `{}` writes files, which are", sink.id)));
    let streams = streams::kept(program).map(|source| {
        let stream = source.stream.as_deref().unwrap_or_default();
        (&source.id, format!("source `{}` reads {stream}, whose journal is", source.id))
    });
    for (operator, what) in sinks.chain(streams) {
        let worker_of = |plan: &Plan| {
            plan.stages.iter().find(|stage| stage.operator == *operator).map(|stage| stage.worker.clone())
        };
        let (Some(before), Some(after)) = (worker_of(&facts.plan), worker_of(&program.plan)) else {
            continue;
        };
        if before != after {
            let there = facts.roles.get(&before).and_then(|role| role.worker.clone());
            let there = there.filter(|worker| *worker != before).map(|worker| format!(" (worker {worker})"));
            return Err(ChangeError::Wrong(format!(
                "{what} only on `{before}`{}: a plan that moves it to `{after}` is rejected; leave it on `{before}`",
                there.unwrap_or_default()
            )));
        }
    }
    Ok(())
}

impl RunFacts {
    /// Sinks and sources that other plans must not move, each with the worker of the plan.
    fn bound(&self) -> BTreeMap<String, String> {
        let sinks = self.outputs.iter().map(|one| (one.sink.clone(), one.role.clone()));
        let streams = self.plan.stages.iter().filter(|stage| self.streams.contains(&stage.operator));
        sinks.chain(streams.map(|stage| (stage.operator.clone(), stage.worker.clone()))).collect()
    }
}

impl Shared {
    /// Starts a change of a run's plan and returns the new version. The events `plan_changed` and `plan_change_failed` report the result.
    ///
    /// # Errors
    /// The run cannot continue under this plan, or another change is in progress.
    pub(crate) fn change_plan(
        self: &Arc<Self>,
        run: &str,
        plan: Plan,
        reason: &str,
    ) -> Result<u64, ChangeError> {
        let asked = instant();
        let next = self.begin_change(run, plan, reason, None)?;
        let version = next.version;
        let (shared, name) = (Arc::clone(self), run.to_owned());
        let work = move || {
            if let Err(why) = make_ready(&shared, &name, next, (&[], PREPARING), asked) {
                shared.change_failed(&name, version, &why);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("tm-change".into()).spawn(work) {
            self.change_failed(run, version, &format!("cannot start its thread: {error}"));
        }
        Ok(version)
    }

    /// Checks a plan, and makes it the next one of a run. `survived`: the losses that it is for.
    pub(super) fn begin_change(
        &self,
        run: &str,
        plan: Plan,
        reason: &str,
        survived: Option<Box<Survived>>,
    ) -> Result<Next, ChangeError> {
        let Some(facts) = self.facts.look(|document| document.runs.get(run).cloned()) else {
            return Err(ChangeError::NoRun(run.to_owned()));
        };
        let busy = |version| ChangeError::Busy { name: run.to_owned(), version };
        if facts.state.is_over() {
            return Err(ChangeError::Over { name: run.to_owned(), state: facts.state });
        }
        if let Some(next) = &facts.next {
            return Err(busy(next.version));
        }
        let rates = locked(&self.runs)
            .get(run)
            .and_then(|live| live.sets.get(&facts.plan_version)?.job.as_ref().map(|job| job.rates.clone()));
        let Some(rates) = rates.filter(|_| facts.state == RunState::Running) else {
            return Err(ChangeError::NotRunning(run.to_owned()));
        };
        let version = facts.next_version();
        let plan = Plan { plan_version: version, ..plan };
        let mut prepared = drive::prepared(self, run, &facts.bundle, Some(plan))
            .map_err(|error| ChangeError::Wrong(drive::in_words(&error)))?;
        drive::keep_rates(&mut prepared, &rates);
        prepared.program.check().map_err(|error| ChangeError::Wrong(error.to_string()))?;
        carried(&facts.plan, &prepared.program).map_err(|error| ChangeError::Wrong(error.to_string()))?;
        check_bound(&facts, &prepared)?;
        let roles = drive::roles(&prepared);
        drive::check_names(&roles).map_err(ChangeError::Wrong)?;
        let roles = roles.into_iter().map(|(name, role)| {
            let worker = facts.roles.get(&name).and_then(|before| before.worker.clone());
            (name, Role { worker, ..role })
        });
        let roles: BTreeMap<String, Role> = roles.collect();
        backends::check(&self.worker_views(), &roles).map_err(ChangeError::Wrong)?;
        let next = NextPlan { plan: prepared.program.plan.clone(), version, roles, survived };
        let change = PlanChange {
            version,
            reason: reason.to_owned(),
            time: tidemill_app::machine::now(),
            outcome: None,
        };
        let taken = self.facts.change(|document| {
            let facts = document.runs.get_mut(run)?;
            if let Some(other) = &facts.next {
                return Some(other.version);
            }
            if facts.next_version() != version {
                return Some(facts.next_version());
            }
            facts.next = Some(next);
            facts.rates = Some(rates.clone());
            facts.changes.push(change);
            let surplus = facts.changes.len().saturating_sub(MOST_CHANGES);
            facts.changes.drain(..surplus);
            None
        })?;
        if let Some(other) = taken {
            return Err(busy(other));
        }
        let text =
            format!("preparing plan {version} of run {run} beside plan {}: {reason}", facts.plan_version);
        self.tell("plan_change_begun", Some(run), None, &text);
        Ok(Next { version, prepared, rates })
    }

    /// Gives up a plan that is being prepared, if it still is. The old plan continues.
    pub(super) fn change_failed(&self, run: &str, version: u64, why: &str) {
        let given_up = self.facts.change(|document| {
            let Some(facts) = document.runs.get_mut(run) else { return false };
            if facts.next.as_ref().is_none_or(|next| next.version != version) {
                return false;
            }
            facts.next = None;
            facts.set_outcome(version, ChangeOutcome::Failed { why: why.to_owned() });
            true
        });
        let present = self.facts.look(|document| document.runs.get(run).map(|facts| facts.plan_version));
        if let Some(live) = locked(&self.runs).get_mut(run)
            && live.switch.as_ref().is_none_or(|switch| switch.version != version)
            && present != Some(version)
        {
            live.sets.remove(&version);
        }
        match given_up {
            Ok(true) => {
                let text =
                    format!("run {run} continues under its present plan: plan {version} is given up, {why}");
                self.tell("plan_change_failed", Some(run), None, &text);
            }
            Ok(false) => {}
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// The plan of a run and its changes.
    pub(crate) fn plan_view(&self, run: &str) -> Option<PlanView> {
        self.facts.look(|document| {
            let facts = document.runs.get(run)?;
            Some(PlanView {
                plan: facts.plan.clone(),
                version: facts.plan_version,
                next: facts.next.as_ref().map(|next| next.version),
                changes: facts.changes.clone(),
                bound: facts.bound(),
            })
        })
    }

    /// Adopts the next plan; false if it was given up meanwhile.
    pub(super) fn take_next(
        &self,
        run: &str,
        version: u64,
        counted: LastFigures,
    ) -> Result<bool, FactsError> {
        self.facts
            .change(|document| document.runs.get_mut(run).is_some_and(|facts| facts.follow(version, counted)))
    }

    /// Restores the previous plan of a run whose new plan has brought no record to a sink; false: the run keeps its plan.
    pub(super) fn go_back(&self, run: &str, why: &str) -> bool {
        let back = self.facts.change(|document| document.runs.get_mut(run)?.go_back(why));
        match back {
            Ok(Some((failed, version))) => {
                let text = format!(
                    "run {run} returns to its last plan, as plan {version}: under plan {failed} {why}"
                );
                self.tell("plan_change_failed", Some(run), None, &text);
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        }
    }

    /// Reports the cost of a change once it is known. True: there is nothing more to report.
    pub(super) fn tell_change(
        &self,
        run: &str,
        suspended: Option<&Suspended>,
        timing: &Timing,
        is_over: bool,
    ) -> bool {
        let pause = match suspended {
            Some(suspended) => match suspended.pause(timing, is_over) {
                Some(pause) => Some(pause),
                None => return false,
            },
            None if timing.arrivals.is_empty() && !is_over => return false,
            None => None,
        };
        let told = self.facts.change(|document| {
            let facts = document.runs.get_mut(run)?;
            let version = facts.plan_version;
            if let Some(former) = &mut facts.former {
                former.is_past = true;
            }
            let is_open = |change: &&mut PlanChange| change.version == version && change.outcome.is_none();
            let change = facts.changes.iter_mut().rev().find(is_open)?;
            change.outcome = Some(ChangeOutcome::Changed {
                pause_ms: pause.as_ref().and_then(|pause| pause.at_sinks()),
                sinks_ms: pause.as_ref().map(|pause| pause.of_sinks.clone()).unwrap_or_default(),
                gap_ms: pause.as_ref().map(|pause| pause.of_sources),
                prepared_ms: pause.as_ref().map(|pause| pause.prepared),
            });
            let reason = change.reason.clone();
            let proposal = &mut facts.planned.proposal;
            let was_proposed = proposal.take_if(|proposal| proposal.accepted == Some(version)).is_some();
            Some((version, reason, was_proposed))
        });
        match told {
            Ok(Some((version, reason, was_proposed))) => {
                if was_proposed {
                    let text = format!("run {run} changes its plan: {reason}");
                    self.tell("replan_accepted", Some(run), None, &text);
                }
                let text = format!("run {run} has plan {version}: {reason}{}", in_words(pause.as_ref()));
                self.tell("plan_changed", Some(run), None, &text);
                self.tell_survived(run, timing);
            }
            Ok(None) => {}
            Err(error) => tracing::error!("{error}"),
        }
        true
    }
}

impl Shared {
    /// Closes unreported changes of a run that is over.
    pub(super) fn end_changes(&self, run: &str, state: RunState) {
        let is_open = |change: &&mut PlanChange| change.outcome.is_none();
        let kept = self.facts.change(|document| {
            let Some(facts) = document.runs.get_mut(run) else { return };
            facts.next = None;
            for change in facts.changes.iter_mut().filter(is_open) {
                change.outcome = Some(ChangeOutcome::Failed { why: format!("the run is {state}") });
            }
        });
        if let Err(error) = kept {
            tracing::error!("{error}");
        }
    }
}

/// Starts the processes of the next plan, waits up to `patience` until they are ready, and ends the present plan. `lost`: workers of the
/// present plan that are not waited for.
pub(super) fn make_ready(
    shared: &Arc<Shared>,
    run: &str,
    Next { version, prepared, rates }: Next,
    (lost, patience): (&[String], Duration),
    asked: Instant,
) -> Result<(), String> {
    let secret = shared.facts.look(|document| document.runs.get(run).map(|facts| facts.secret.clone()));
    let secret =
        secret.and_then(|secret| u128::from_str_radix(&secret, 16).ok()).ok_or("the run was removed")?;
    if let Some(live) = locked(&shared.runs).get_mut(run) {
        live.sets.entry(version).or_default().job = Some(Job::new(prepared.program.plan.clone(), rates));
    }
    let hosts = Hosts {
        launcher: Box::new(Launcher::new(shared, run, version)),
        run: secret,
        plan_version: version,
        listen: Listen::With(Arc::clone(&shared.exchange)),
    };
    let mut standby = Standby::start(&prepared.program, hosts).map_err(|error| error.to_string())?;
    let missing = |is_told: &mut bool| {
        if !lost.is_empty() {
            return None;
        }
        let parts = shared.missing_of(run).in_words()?;
        if !std::mem::replace(is_told, true) {
            let text =
                format!("run {run} continues under its present plan until it is complete again: {parts}");
            shared.tell("plan_change_waits", Some(run), None, &text);
        }
        Some(parts)
    };
    let mut is_told = false;
    while !standby.wait_for(LOOK).map_err(|error| error.to_string())? {
        check_wanted(shared, run, version)?;
        missing(&mut is_told);
        if asked.elapsed() > patience {
            let missing = standby.missing().join(", ");
            return Err(format!("{missing} did not become ready within {} s", patience.as_secs()));
        }
    }
    let mut switch = Some(Box::new(Switch { version, prepared, standby, took: asked.elapsed() }));
    let text = format!("plan {version} of run {run} is ready: ending the present plan");
    shared.tell("plan_ready", Some(run), None, &text);
    while switch.is_some() {
        check_wanted(shared, run, version)?;
        // Sources would wait for the last checkpoint of the present plan, which needs the missing parts.
        let missing = missing(&mut is_told);
        if asked.elapsed() > patience {
            return Err(missing.unwrap_or_else(|| {
                "the run was not running meanwhile, so nothing could continue".to_owned()
            }));
        }
        if missing.is_none() {
            hand_over(shared, run, lost, &mut switch);
        }
        if switch.is_some() {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

/// Ends the present plan, if it runs now.
fn hand_over(shared: &Shared, run: &str, lost: &[String], switch: &mut Option<Box<Switch>>) {
    let state = shared.facts.look(|document| document.runs.get(run).map(|facts| facts.state));
    let mut runs = locked(&shared.runs);
    let Some(live) = runs.get_mut(run).filter(|_| state == Some(RunState::Running)) else { return };
    if let Some(stopper) = &live.stopper {
        live.switch = switch.take();
        match lost {
            [] => stopper.stop(),
            lost => stopper.stop_without(lost),
        }
    }
}

/// Checks that a plan is still to be prepared.
fn check_wanted(shared: &Shared, run: &str, version: u64) -> Result<(), String> {
    if shared.is_ending() {
        return Err("the controller ends".to_owned());
    }
    shared.facts.look(|document| {
        let facts = document.runs.get(run).ok_or("the run was removed")?;
        if facts.state.is_over() {
            return Err(format!("the run is {}", facts.state));
        }
        let is_next = facts.next.as_ref().is_some_and(|next| next.version == version);
        if is_next { Ok(()) } else { Err("it is no longer needed".to_owned()) }
    })
}

/// Gives up plans in preparation that use a lost or drained worker.
pub(super) fn give_up_with(shared: &Shared, worker: &str, why: &str) {
    let with_it: Vec<(String, u64)> = shared.facts.look(|document| {
        let next = document.runs.iter().filter_map(|(name, run)| Some((name.clone(), run.next.as_ref()?)));
        let with_it =
            next.filter(|(_, next)| next.roles.values().any(|role| role.worker.as_deref() == Some(worker)));
        with_it.map(|(name, next)| (name, next.version)).collect()
    });
    for (run, version) in with_it {
        shared.change_failed(&run, version, &format!("it needs worker {worker}, and {why}"));
    }
}

/// Gives up plans in preparation after a restart of the controller.
pub(super) fn give_up_all(shared: &Shared) {
    let open: Vec<(String, u64)> = shared.facts.look(|document| {
        let next =
            document.runs.iter().filter_map(|(name, run)| Some((name.clone(), run.next.as_ref()?.version)));
        next.collect()
    });
    for (run, version) in open {
        shared.change_failed(&run, version, "the controller was restarted meanwhile");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Facts as written by a controller that could not change plans.
    fn facts() -> RunFacts {
        let text = "version: 1\nworkflow: {name: w}\nworkers: [{id: a, tier: t, worker_type: s}]\nstages: [{id: rows, operator: rows, worker: a}, {id: out, operator: out, worker: a}]\nclasses: [{id: 0, share: 1, route: {rows: rows, out: out}}]\nedges: [{from: rows, to: out}]\n";
        let plan = Plan::parse(text, "plan.yaml").unwrap();
        let document = json!({
            "workflow": "w", "bundle": {"workflow": "w.yaml", "files": []}, "plan": plan, "records": null, "digest": "d",
            "secret": "1", "submitted": "now", "submitted_by": "somebody", "state": "running", "reason": null,
            "roles": {"a": {"worker": "edge", "generation": 3, "is_bound": true}}, "last": null
        });
        serde_json::from_value(document).unwrap()
    }

    fn next(facts: &RunFacts) -> NextPlan {
        let version = facts.next_version();
        let mut plan = facts.plan.clone();
        plan.plan_version = version;
        plan.stages[0].worker = "b".to_owned();
        let roles = BTreeMap::from([("b".to_owned(), Role::default())]);
        NextPlan { plan, version, roles, survived: None }
    }

    fn asked(facts: &mut RunFacts) -> u64 {
        let next = next(facts);
        let version = next.version;
        let (reason, time) = (String::new(), String::new());
        facts.changes.push(PlanChange { version, reason, time, outcome: None });
        facts.next = Some(next);
        version
    }

    #[test]
    fn a_plan_that_stands_ready_is_followed_at_once_or_not_at_all() {
        let mut facts = facts();
        assert_eq!((facts.plan_version, facts.next_version()), (1, 2));
        let version = asked(&mut facts);
        assert!(facts.roles_of(1).is_some_and(|roles| roles.contains_key("a")));
        assert!(facts.roles_of(2).is_some_and(|roles| roles.contains_key("b")));
        let counted = LastFigures { arrived: 7, ..LastFigures::default() };
        assert!(!facts.clone().follow(version + 1, counted), "another one");
        assert!(facts.follow(version, counted));
        assert!(!facts.follow(version, counted), "twice");
        assert_eq!((facts.plan_version, facts.before.arrived), (2, 7));
        assert!(facts.roles_of(1).is_none() && facts.roles.contains_key("b"));
        assert_eq!(facts.former.as_ref().map(|former| former.plan.stages[0].worker.as_str()), Some("a"));
        assert_eq!(facts.next_version(), 3);
    }

    #[test]
    fn a_plan_that_fails_before_a_record_is_taken_back_once() {
        let mut facts = facts();
        assert_eq!(facts.go_back("nothing to go back from"), None);
        let version = asked(&mut facts);
        assert!(facts.follow(version, LastFigures::default()));
        assert_eq!(facts.go_back("it is broken"), Some((2, 3)));
        assert_eq!((facts.plan.stages[0].worker.as_str(), facts.plan.plan_version), ("a", 3));
        assert!(facts.roles.contains_key("a"));
        assert_eq!(facts.changes[0].outcome, Some(ChangeOutcome::Failed { why: "it is broken".to_owned() }));
        assert_eq!(facts.go_back("again"), None);
        // A version that was given up is not used again: its processes may still exist.
        let version = asked(&mut facts);
        facts.next = None;
        assert_eq!((version, facts.next_version()), (4, 5));
    }
}
