//! Emits events for changes without a user's action: a service level is missed or kept again, a run stops waiting, a proposal is obsolete.
//! The last report is stored, so another controller process does not repeat it.
use super::planning::mark_of;
use super::waiting::{Alive, waits_for};
use super::{Shared, locked};
use crate::api::LevelView;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Consecutive looks that must differ from the last report of a level.
const LOOKS: u32 = 5;
/// Looks without another notice of a level after one. A level that is missed every other second would fill the list.
const QUIET: u32 = 30;

/// A level between two looks.
#[derive(Debug, Default)]
struct LevelHistory {
    /// Consecutive looks that differ from the last report.
    otherwise: u32,
    quiet: u32,
}

impl LevelHistory {
    /// Whether to report the level as found; `told` is the last reported one.
    fn look(&mut self, found: Option<bool>, told: bool) -> bool {
        self.quiet = self.quiet.saturating_sub(1);
        match found {
            Some(found) if found != told => self.otherwise += 1,
            Some(_) => self.otherwise = 0,
            None => {}
        }
        let tells = self.otherwise >= LOOKS && self.quiet == 0;
        if tells {
            (self.otherwise, self.quiet) = (0, QUIET);
        }
        tells
    }
}

type Levels = BTreeMap<(String, String), LevelHistory>;

/// Looks until the controller ends.
pub(super) fn watch(shared: &Arc<Shared>) {
    let mut levels = Levels::new();
    shared.waited_before();
    while !shared.is_ending() {
        let names: Vec<String> = shared.facts.look(|document| {
            let open = document.runs.iter().filter(|(_, run)| !run.state.is_over());
            open.map(|(name, _)| name.clone()).collect()
        });
        levels.retain(|(run, _), _| names.contains(run));
        for name in &names {
            shared.notice_levels(name, &mut levels);
            shared.notice_proposal(name);
        }
        shared.notice_waits();
        shared.logs.share();
        std::thread::park_timeout(LOOK);
    }
    // Stores the last lines, too, if there is time.
    shared.logs.share();
}

/// Text of a notice about a level.
fn text(run: &str, level: &LevelView, is_kept: bool) -> String {
    let measured = level.measured.as_deref().unwrap_or("nothing");
    match is_kept {
        true => {
            format!("run {run} keeps its level on {} again: {measured}, wanted {}", level.level, level.wanted)
        }
        false => {
            let less = level.gives_way.as_ref().map(|less| format!("; relaxed: the plan keeps {less}"));
            let less = less.unwrap_or_default();
            format!(
                "run {run} misses its level on {}: {measured}, wanted {}{less}",
                level.level, level.wanted
            )
        }
    }
}

impl Shared {
    fn notice_levels(&self, name: &str, levels: &mut Levels) {
        let Some(view) = self.run_view(name) else { return };
        for level in &view.levels {
            let was_missed = self.facts.look(|document| {
                document.runs.get(name).is_some_and(|run| run.missed.contains(&level.level))
            });
            let seen = levels.entry((name.to_owned(), level.level.clone())).or_default();
            if !seen.look(level.is_kept, !was_missed) {
                continue;
            }
            let is_kept = was_missed;
            let kept = self.facts.change(|document| {
                let Some(run) = document.runs.get_mut(name) else { return };
                match is_kept {
                    true => run.missed.remove(&level.level),
                    false => run.missed.insert(level.level.clone()),
                };
            });
            if let Err(error) = kept {
                tracing::error!("{error}");
            }
            let kind = if is_kept { "level_kept" } else { "level_missed" };
            self.tell(kind, Some(name), None, &text(name, level, is_kept));
        }
    }

    /// Withdraws a proposal that the run already uses. An accepted one is reported once the run has it.
    fn notice_proposal(&self, name: &str) {
        let has_it = self.facts.look(|document| {
            let run = document.runs.get(name)?;
            let proposal = run.planned.proposal.as_ref().filter(|proposal| proposal.accepted.is_none())?;
            Some(mark_of(&proposal.plan) == mark_of(&run.plan))
        });
        if has_it == Some(true) {
            self.withdraw(name, "the run now follows this plan");
        }
    }

    /// Withdraws the proposal for a run.
    pub(crate) fn withdraw(&self, name: &str, why: &str) {
        let was_there = self.facts.change(|document| {
            let run = document.runs.get_mut(name);
            run.and_then(|run| run.planned.proposal.take()).is_some()
        });
        match was_there {
            Ok(true) => {
                let text = format!("the proposed plan for run {name} is withdrawn: {why}");
                self.tell("replan_withdrawn", Some(name), None, &text);
            }
            Ok(false) => {}
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Finds runs that were last reported as waiting by the previous process.
    fn waited_before(&self) {
        let waited = self.facts.look(|document| {
            let mut last: BTreeMap<&String, &str> = BTreeMap::new();
            for event in &document.events {
                let is_of_it = event.kind == "run_waits" || event.kind == "run_goes_on";
                if let Some(run) = event.run.as_ref().filter(|_| is_of_it) {
                    last.insert(run, &event.kind);
                }
            }
            let waited = last.into_iter().filter(|(_, kind)| *kind == "run_waits");
            waited.map(|(run, _)| run.clone()).collect::<Vec<String>>()
        });
        locked(&self.waited).extend(waited);
    }

    /// Reports runs that no longer wait.
    fn notice_waits(&self) {
        let waited: Vec<String> = locked(&self.waited).iter().cloned().collect();
        let alive = if waited.is_empty() { Alive::new() } else { self.alive_workers() };
        let found: Vec<(String, bool, bool)> = self.facts.look(|document| {
            let look = |name: String| {
                let run = document.runs.get(&name);
                let is_over = run.is_none_or(|run| run.state.is_over());
                (name, is_over, run.is_none_or(|run| waits_for(document, run, &alive).is_empty()))
            };
            waited.into_iter().map(look).collect()
        });
        for (name, is_over, has_all) in found {
            if is_over || has_all {
                locked(&self.waited).remove(&name);
            }
            if !is_over && has_all {
                let text = format!("run {name} no longer waits: it has everything that it needs");
                self.tell("run_goes_on", Some(&name), None, &text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_told_when_it_is_otherwise_for_a_while_and_not_all_the_time() {
        let mut seen = LevelHistory::default();
        let mut look = |found: bool, told: bool| seen.look(Some(found), told);
        // Occasional misses do not count.
        assert!(!(0..20).any(|n| look(n % 4 != 0, true)));
        let first = (0..20).position(|_| look(false, true));
        assert_eq!(first, Some(4));
        // It is now reported as missed. It is kept at once, but the report is delayed.
        let again = (0..60).position(|_| look(true, false));
        assert_eq!(again, Some(29));
        assert!(!(0..60).any(|_| look(true, true)), "nothing new");
        assert!(!LevelHistory::default().look(None, true), "nothing is known");
    }

    #[test]
    fn a_proposal_that_means_nothing_is_withdrawn_and_that_is_told_once() {
        use crate::api::{Proposal, RunState};
        use crate::controller::{Controller, ControllerOptions};
        use crate::facts::RunFacts;
        use tidemill_spec::plan::Plan;
        let text = "version: 1\nworkflow: {name: w}\nworkers: [{id: a, tier: t, worker_type: s}]\nstages: [{id: rows, operator: rows, worker: a}, {id: out, operator: out, worker: a}]\nclasses: [{id: 0, share: 1, route: {rows: rows, out: out}}]\nedges: [{from: rows, to: out}]\n";
        let plan = Plan::parse(text, "plan.yaml").unwrap();
        let other = Plan::parse(
            &text
                .replace("operator: out, worker: a", "operator: out, worker: b")
                .replace("[{id: a,", "[{id: b, tier: t, worker_type: s}, {id: a,"),
            "plan.yaml",
        );
        let folder = tempfile::tempdir().unwrap();
        let options = ControllerOptions::of_test(folder.path());
        let controller = Controller::start(&options).unwrap();
        let shared = &controller.shared;
        let propose = |plan: &Plan| {
            let (reason, time) = (String::new(), String::new());
            let proposal = Proposal { plan: plan.clone(), reason, time, by: None, accepted: None };
            let set = |run: &mut RunFacts| run.planned.proposal = Some(proposal);
            shared.facts.change(|document| document.runs.get_mut("night").map(set)).unwrap();
        };
        let is_proposed = || shared.facts.look(|document| document.runs["night"].planned.proposal.is_some());
        let told = || {
            shared.events(0, Duration::ZERO).iter().filter(|event| event.kind == "replan_withdrawn").count()
        };
        // It is over, so that no other thread looks at it.
        let run = RunFacts::test(plan.clone(), RunState::Complete);
        shared.facts.change(|document| document.runs.insert("night".to_owned(), run)).unwrap();
        propose(&other.unwrap());
        shared.notice_proposal("night");
        assert!(is_proposed() && told() == 0, "it is another plan");
        propose(&plan);
        shared.notice_proposal("night");
        shared.notice_proposal("night");
        assert!(!is_proposed() && told() == 1);
        propose(&plan);
        shared.withdraw("night", "the level is kept again");
        shared.withdraw("night", "the level is kept again");
        assert!(!is_proposed() && told() == 2);
        controller.end();
    }
}
