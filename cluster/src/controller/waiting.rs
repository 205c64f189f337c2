//! Missing parts that open runs wait for.
use super::{Shared, backends, locked};
use crate::api::{CutStage, CutView, RunState};
use crate::facts::{Document, Role, RunFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Multiple of the detection time after which a silent worker is given up, if no other can take its work and the run need not wait for it.
const GIVEN_UP: u32 = 2;

/// Live workers, each with its backends if it reports them.
pub(crate) type Alive = BTreeMap<String, Option<Arc<[String]>>>;

/// Describes needs of a run that are not met; empty if there are none.
pub(crate) fn waits_for(document: &Document, run: &RunFacts, alive: &Alive) -> Vec<String> {
    if run.state.is_over() {
        return Vec::new();
    }
    let is_free = |name: &String| document.workers.get(name).is_some_and(|facts| !facts.is_drained);
    let somebody = |role: &Role| {
        let able = |has: &Option<Arc<[String]>>| backends::lacking(has.as_deref(), role).is_none();
        alive.iter().any(|(name, has)| is_free(name) && able(has))
    };
    let waits = run.roles.iter().filter_map(|(role, of)| match &of.worker {
        Some(worker) if alive.contains_key(worker) => None,
        Some(worker) if of.held_milliseconds.is_some() => {
            Some(format!("worker {worker}, where '{role}' may continue by itself (`when_cut`)"))
        }
        Some(worker) if of.is_bound => {
            Some(format!("worker {worker}, the only one with some files of '{role}'"))
        }
        Some(worker) => Some(format!("worker {worker}, or another one that can run '{role}'")),
        // A worker is about to be assigned.
        None if somebody(of) => None,
        None if of.backends.is_empty() => Some(format!("a worker that can run '{role}'")),
        None => {
            let needed: Vec<&str> = of.backends.keys().map(String::as_str).collect();
            Some(format!("a worker that can run '{role}' and has the backend {}", needed.join(" and ")))
        }
    });
    waits.collect()
}

/// State of a run, `Waiting` included.
pub(crate) fn state_now(document: &Document, run: &RunFacts, alive: &Alive) -> RunState {
    match waits_for(document, run, alive).is_empty() {
        true => run.state,
        false => RunState::Waiting,
    }
}

/// Missing parts of an open run. While there are any, figures cover only part of the run, and its plan could not be ended for another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Descriptions of roles with a silent worker and no other, and of edges that are cut or deliver stored records.
    pub(crate) parts: Vec<String>,
    /// Roles whose processes are starting.
    pub(crate) begins: Vec<String>,
}

impl Missing {
    /// Missing parts of a run with these cut edges. `silent` returns the silence of a worker, `None` if it is alive. `given_up`: see
    /// [`GIVEN_UP`].
    fn of(
        run: &RunFacts,
        cuts: &[CutView],
        given_up: Duration,
        silent: impl Fn(&str) -> Option<Duration>,
    ) -> Self {
        let roles = run.roles.iter().filter_map(|(role, of)| {
            let worker = of.worker.as_deref()?;
            let silent = silent(worker)?;
            let why = match of.held_milliseconds {
                _ if of.is_bound => ", and is the only one with some of its files",
                Some(_) if silent < of.held() => ", and may continue by itself (`when_cut`)",
                _ if silent < given_up.max(of.held()) => "",
                _ => return None,
            };
            Some(format!("worker {worker}, which has '{role}', sends no heartbeats{why}"))
        });
        // A silent worker is listed already.
        let cuts = cuts.iter().filter(|cut| cut.stage != CutStage::Silent).map(CutView::in_words);
        Self { parts: roles.chain(cuts).collect(), begins: Vec::new() }
    }

    /// Whether no part is missing.
    pub(crate) fn is_none(&self) -> bool {
        self.parts.is_empty() && self.begins.is_empty()
    }

    /// Describes the missing parts; `None` if there are none.
    pub(crate) fn in_words(&self) -> Option<String> {
        (!self.parts.is_empty()).then(|| self.parts.join("; "))
    }
}

impl Shared {
    /// Missing parts of a run.
    pub(crate) fn missing_of(&self, name: &str) -> Missing {
        let (cuts, observer) = match locked(&self.runs).get(name) {
            Some(live) => (live.cuts.clone(), live.observer.clone()),
            None => return Missing::default(),
        };
        // A worker without a heartbeat to this process counts as silent since its start.
        let heard: BTreeMap<String, Option<Duration>> = locked(&self.workers)
            .iter()
            .map(|(name, worker)| (name.clone(), (!worker.is_alive).then(|| worker.heard.elapsed())))
            .collect();
        let silent = |worker: &str| heard.get(worker).copied().unwrap_or_else(|| Some(self.begun.elapsed()));
        let (mut missing, here) = self.facts.look(|document| {
            let Some(run) = document.runs.get(name) else { return (Missing::default(), BTreeSet::new()) };
            let here = run
                .roles
                .iter()
                .filter(|(_, of)| of.worker.as_deref().is_some_and(|worker| silent(worker).is_none()));
            (
                Missing::of(run, &cuts, GIVEN_UP * self.detection.time, silent),
                here.map(|(role, _)| role.clone()).collect(),
            )
        });
        let opening = observer.map(|observer| observer.opening()).unwrap_or_default();
        missing.begins = opening.into_iter().filter(|role| here.contains(role)).collect();
        missing
    }

    /// Live workers.
    pub(crate) fn alive_workers(&self) -> Alive {
        let workers = locked(&self.workers);
        let alive = workers.iter().filter(|(_, worker)| worker.is_alive);
        alive.map(|(name, worker)| (name.clone(), worker.backends.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::WorkerFacts;
    use tidemill_spec::plan::{Plan, PlanWorkflow};

    #[test]
    fn a_run_waits_for_workers_and_says_for_which() {
        let mut document = Document::default();
        for worker in ["edge", "hub"] {
            document.workers.insert(worker.into(), WorkerFacts::default());
        }
        let plan = Plan::new(PlanWorkflow { name: "flow".into(), digest: None });
        let mut run = RunFacts::test(plan, RunState::Running);
        let role = |worker: Option<&str>, is_bound| Role {
            worker: worker.map(str::to_owned),
            generation: 1,
            is_bound,
            ..Role::default()
        };
        run.roles.insert("a".into(), role(Some("edge"), true));
        run.roles.insert("b".into(), role(Some("hub"), false));
        run.roles.insert("c".into(), role(None, false));
        let alive = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), None)).collect::<Alive>();
        let told =
            |document: &Document, run: &RunFacts, names: &[&str]| waits_for(document, run, &alive(names));
        assert_eq!(told(&document, &run, &["edge", "hub"]), Vec::<String>::new());
        assert_eq!(told(&document, &run, &["hub"]), ["worker edge, the only one with some files of 'a'"]);
        assert_eq!(told(&document, &run, &["edge"]), ["worker hub, or another one that can run 'b'"]);
        let mut held = run.clone();
        held.roles.insert("b".into(), Role { held_milliseconds: Some(630_000), ..role(Some("hub"), false) });
        assert_eq!(
            told(&document, &held, &["edge"]),
            ["worker hub, where 'b' may continue by itself (`when_cut`)"]
        );
        assert_eq!(state_now(&document, &run, &alive(&["hub"])), RunState::Waiting);
        let mut able = run.clone();
        let backends = BTreeMap::from([("ort".to_owned(), "see".to_owned())]);
        able.roles.insert("c".into(), Role { backends, ..Role::default() });
        let mut there = alive(&["edge", "hub"]);
        assert_eq!(
            waits_for(&document, &able, &there),
            Vec::<String>::new(),
            "they do not say what they have"
        );
        there.values_mut().for_each(|has| *has = Some(["rten".to_owned()].into()));
        let needed = ["a worker that can run 'c' and has the backend ort"];
        assert_eq!(waits_for(&document, &able, &there), needed);
        // A draining worker cannot take unassigned roles.
        document.workers.values_mut().for_each(|worker| worker.is_drained = true);
        assert_eq!(told(&document, &run, &["edge", "hub"]), ["a worker that can run 'c'"]);
        run.state = RunState::Cancelled;
        assert_eq!(told(&document, &run, &[]), Vec::<String>::new(), "it is over");
        assert_eq!(state_now(&document, &run, &alive(&[])), RunState::Cancelled);
    }

    #[test]
    fn a_part_is_missing_until_it_is_back_or_given_up() {
        let plan = Plan::new(PlanWorkflow { name: "flow".into(), digest: None });
        let mut run = RunFacts::test(plan, RunState::Running);
        let role = |worker: &str, is_bound, held_milliseconds| Role {
            worker: Some(worker.to_owned()),
            generation: 1,
            is_bound,
            held_milliseconds,
            ..Role::default()
        };
        run.roles.insert("a".into(), role("edge", false, Some(630_000)));
        run.roles.insert("b".into(), role("hub", false, None));
        run.roles.insert("c".into(), role("rack", true, None));
        run.roles.insert("d".into(), Role::default());
        let missing = |silent: &str, seconds: u64, cuts: &[CutView]| {
            let of = |worker: &str| (worker == silent).then_some(Duration::from_secs(seconds));
            Missing::of(&run, cuts, Duration::from_secs(4), of).in_words()
        };
        assert_eq!(missing("nobody", 9, &[]), None);
        let held = "worker edge, which has 'a', sends no heartbeats, and may continue by itself (`when_cut`)";
        assert_eq!(missing("edge", 2, &[]).as_deref(), Some(held));
        assert_eq!(missing("edge", 629, &[]).as_deref(), Some(held));
        assert_eq!(missing("edge", 631, &[]), None, "it is given up");
        assert_eq!(missing("hub", 2, &[]).as_deref(), Some("worker hub, which has 'b', sends no heartbeats"));
        assert_eq!(missing("hub", 5, &[]), None, "no run waits for it");
        assert!(
            missing("rack", 90_000, &[]).unwrap().contains("the only one with some of its files"),
            "no other worker can run it"
        );
        let mut cut = CutView {
            from: "detect".into(),
            to: "answers".into(),
            worker: Some("edge".into()),
            stage: CutStage::Delivers,
            seconds: 0.0,
            kept_bytes: Some(7),
            size_bytes: Some(9),
            most_seconds: 600.0,
        };
        assert!(missing("nobody", 0, &[cut.clone()]).unwrap().contains("delivers the kept records"));
        cut.stage = CutStage::Cut;
        assert!(missing("nobody", 0, &[cut.clone()]).unwrap().contains("detect -> answers cut"));
        cut.stage = CutStage::Silent;
        assert_eq!(missing("nobody", 0, &[cut]), None, "that is told of its worker");
    }
}
