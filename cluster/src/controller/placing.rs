//! Assigns the workers of plans to workers of the cluster.
use super::{Happened, Shared, backends, changing, locked};
use crate::api::WorkerView;
use crate::facts::{Document, Role};
use crate::replanning::placement::{Spare, WorkerPreferences, best};
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_spec::plan::PlanWorker;

/// The best worker with the backends of a role: the one with its name, else by tier, location, type and fewest duties. `None` if there is
/// none.
pub(crate) fn choose(shared: &Shared, run: &str, version: u64, role: &str) -> Option<String> {
    let views = shared.worker_views();
    shared.facts.look(|document| Choice::of(&views, document).choose(document, run, version, role))
}

/// Chooses for a role whose process has ended. It stays on a draining worker if no other can take it.
pub(crate) fn choose_again(shared: &Shared, run: &str, version: u64, role: &str) -> Option<String> {
    choose(shared, run, version, role).or_else(|| {
        let own = shared.facts.look(|document| {
            let role = document.runs.get(run)?.roles_of(version)?.get(role)?;
            role.worker.clone()
        });
        own.filter(|worker| shared.is_alive(worker))
    })
}

/// Candidates.
struct Choice<'a> {
    views: BTreeMap<&'a str, &'a WorkerView>,
    /// Workers that accept work.
    spares: Vec<Spare>,
}

impl<'a> Choice<'a> {
    fn of(views: &'a [WorkerView], document: &Document) -> Self {
        let mut load: BTreeMap<String, usize> = BTreeMap::new();
        duties(document).into_iter().for_each(|worker| *load.entry(worker).or_default() += 1);
        let spares = views.iter().filter(|view| view.is_alive && !view.is_drained).map(|view| Spare {
            name: view.name.clone(),
            tier: view.tier.clone(),
            location: view.location.clone(),
            worker_type: view.worker_type.clone(),
            duties: load.get(&view.name).copied().unwrap_or_default(),
        });
        let spares = spares.collect();
        Self { views: views.iter().map(|view| (view.name.as_str(), view)).collect(), spares }
    }

    fn can(&self, name: &str) -> bool {
        self.views.get(name).is_some_and(|view| view.is_alive && !view.is_drained)
    }

    /// Workers that accept work and have the backends of a role.
    fn able(&self, role: &Role) -> Vec<Spare> {
        self.spares.iter().filter(|spare| self.has_all(&spare.name, role)).cloned().collect()
    }

    fn has_all(&self, name: &str, role: &Role) -> bool {
        let view = self.views.get(name);
        view.is_none_or(|view| backends::lacking(view.backends.as_deref(), role).is_none())
    }

    fn choose(&self, document: &Document, run: &str, version: u64, role: &str) -> Option<String> {
        let run = document.runs.get(run);
        let roles = run.and_then(|run| run.roles_of(version));
        let own = roles.and_then(|roles| roles.get(role)).cloned().unwrap_or_default();
        if let Some(worker) = own.worker.as_deref().filter(|worker| self.can(worker)) {
            return Some(worker.to_owned());
        }
        if own.is_bound && own.worker.is_some() {
            return None;
        }
        if self.can(role) && self.has_all(role, &own) {
            return Some(role.to_owned());
        }
        let plans = run.into_iter().flat_map(|run| {
            let next = run.next.as_ref().filter(|next| next.version == version).map(|next| &next.plan);
            [next, Some(&run.plan)].into_iter().flatten()
        });
        let planned = plans.flat_map(|plan| &plan.workers).find(|worker| worker.id == role);
        // A name known to the cluster means that machine: it is waited for unless it is lost or drained.
        let known = self.views.get(role);
        let of_plan = |of: fn(&PlanWorker) -> Option<String>| planned.and_then(of);
        let location = known.and_then(|view| view.location.clone());
        let location = location.or(of_plan(|worker| worker.location.clone()));
        let tier = known.and_then(|view| view.tier.clone()).or(of_plan(|worker| Some(worker.tier.clone())));
        let worker_type = of_plan(|worker| Some(worker.worker_type.clone()));
        best(&self.able(&own), &WorkerPreferences { tier, location, worker_type })
    }
}

/// A role of a run without a possible worker; `None` if the run can start. If no role has a worker, no process of the run exists.
pub(crate) fn without_place(shared: &Shared, run: &str, version: u64) -> Option<String> {
    let views = shared.worker_views();
    let (role, is_nowhere) = shared.facts.look(|document| {
        let choice = Choice::of(&views, document);
        let roles = document.runs.get(run).and_then(|run| run.roles_of(version))?;
        let mut open = roles.iter().filter(|(_, of)| of.worker.is_none()).map(|(role, _)| role);
        let role = open.find(|role| choice.choose(document, run, version, role).is_none())?;
        Some((role.clone(), roles.values().all(|of| of.worker.is_none())))
    })?;
    if is_nowhere && let Some(live) = locked(&shared.runs).get_mut(run) {
        live.is_settled = true;
    }
    Some(role)
}

/// Assigns all open roles of a run at once, to change the facts only once.
pub(crate) fn place_first(shared: &Shared, run: &str, version: u64) {
    let views = shared.worker_views();
    let chosen: Vec<(String, String)> = shared.facts.look(|document| {
        let mut choice = Choice::of(&views, document);
        let roles = document.runs.get(run).and_then(|run| run.roles_of(version));
        let open = roles.into_iter().flatten().filter(|(_, of)| of.worker.is_none());
        let mut chosen = Vec::new();
        for (role, _) in open {
            if let Some(worker) = choice.choose(document, run, version, role) {
                if let Some(spare) = choice.spares.iter_mut().find(|spare| spare.name == worker) {
                    spare.duties += 1;
                }
                chosen.push((role.clone(), worker));
            }
        }
        chosen
    });
    if chosen.is_empty() {
        return;
    }
    let happened = chosen.iter().map(|(role, worker)| Happened {
        kind: "role_started",
        run: Some(run),
        worker: Some(worker),
        text: format!("worker {worker} starts '{role}' of run {run}"),
    });
    shared.tell_all(happened.collect(), |document| {
        let Some(roles) = document.runs.get_mut(run).and_then(|run| run.roles_of_mut(version)) else {
            return;
        };
        for (role, worker) in &chosen {
            if let Some(of) = roles.get_mut(role) {
                of.worker = Some(worker.clone());
                of.generation += 1;
            }
        }
    });
}

/// The worker of each wanted role.
fn duties(document: &Document) -> Vec<String> {
    let running = document.runs.values().filter(|run| !run.state.is_over());
    running.flat_map(|run| run.roles.values().filter_map(|role| role.worker.clone())).collect()
}

/// Moves roles away from a worker. Roles that may still run on a silent worker stay; returns the silence after which to call this again.
pub(crate) fn leave(shared: &Shared, worker: &str, why: &str) -> Option<Duration> {
    changing::give_up_with(shared, worker, why);
    let there: Vec<(String, u64, String, Role)> = shared.facts.look(|document| {
        let running = document.runs.iter().filter(|(_, run)| !run.state.is_over());
        let roles = running.flat_map(|(name, run)| {
            let of = move |(role, of): (&String, &Role)| {
                (name.clone(), run.plan_version, role.clone(), of.clone())
            };
            run.roles.iter().map(of)
        });
        roles.filter(|(.., of)| of.worker.as_deref() == Some(worker)).collect()
    });
    let silent = if shared.is_alive(worker) { None } else { shared.silence(worker) };
    let mut again: Option<Duration> = None;
    for (run, version, role, of) in there {
        if shared.is_alive(worker) && (of.is_bound || choose(shared, &run, version, &role).is_none()) {
            let because = match of.is_bound {
                true => "only it has some of its files",
                false => "no other worker can run it",
            };
            let text = format!("'{role}' of run {run} stays on worker {worker}, though {why}: {because}");
            shared.tell("role_stays", Some(&run), Some(worker), &text);
            continue;
        }
        let held = of.held();
        if silent.is_some_and(|silent| silent < held) {
            again = Some(again.map_or(held, |other| other.min(held)));
            let text = format!(
                "run {run} waits up to {:.0} s for worker {worker}: {why}, and '{role}' stays there by `when_cut` of the workflow",
                held.as_secs_f64()
            );
            shared.tell("run_waits", Some(&run), Some(worker), &text);
            continue;
        }
        if of.is_bound {
            let text =
                format!("run {run} waits for worker {worker}: {why}, and only it has some files of '{role}'");
            shared.tell("run_waits", Some(&run), Some(worker), &text);
            continue;
        }
        match choose(shared, &run, version, &role) {
            Some(next) => {
                let text = format!("'{role}' of run {run} moves from worker {worker} to {next}: {why}");
                place(shared, &run, version, &role, &next);
                shared.tell("role_moved", Some(&run), Some(&next), &text);
            }
            None => {
                let text = format!(
                    "run {run} waits: {why}, and no other worker can run '{role}' of worker {worker}"
                );
                shared.tell("run_waits", Some(&run), Some(worker), &text);
            }
        }
    }
    again
}

/// Assigns a role to a worker, in a new process.
pub(crate) fn place(shared: &Shared, run: &str, version: u64, role: &str, worker: &str) {
    let kept = shared.facts.change(|document| {
        let roles = document.runs.get_mut(run).and_then(|run| run.roles_of_mut(version));
        if let Some(of) = roles.and_then(|roles| roles.get_mut(role)) {
            of.worker = Some(worker.to_owned());
            of.generation += 1;
        }
    });
    if let Err(error) = kept {
        tracing::error!("{error}");
    }
    if let Some(live) = locked(&shared.runs).get_mut(run) {
        live.sets.entry(version).or_default().moved.insert(role.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RunState;
    use crate::controller::{Controller, ControllerOptions};
    use crate::facts::{RunFacts, WorkerFacts};
    use std::path::Path;
    use tidemill_spec::plan::{Plan, PlanWorkflow};

    fn view(name: &str, is_alive: bool) -> WorkerView {
        let text = format!(
            r#"{{"name": "{name}", "is_alive": {is_alive}, "silent_milliseconds": 20, "is_drained": false, "location": null, "tier": null,
            "worker_type": null, "capacity": {{"processors": 2, "memory_bytes": 1}}, "labels": {{}}, "address": null, "hosts": [], "version": "1"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn all_roles_get_places_as_one_after_the_other_would() {
        let views = [view("a", true), view("b", true), view("lost", false)];
        let mut document = Document::default();
        let mut run =
            RunFacts::test(Plan::new(PlanWorkflow { name: "w".into(), digest: None }), RunState::Starting);
        for role in ["b", "x", "y", "z"] {
            run.roles.insert(role.to_owned(), Role::default());
        }
        document.runs.insert("night".to_owned(), run);
        let mut choice = Choice::of(&views, &document);
        let mut place = |role: &str| {
            let worker = choice.choose(&document, "night", 1, role).unwrap();
            choice.spares.iter_mut().filter(|spare| spare.name == worker).for_each(|spare| spare.duties += 1);
            worker
        };
        // Its own name first, then the worker with the fewest duties.
        assert_eq!(["b", "x", "y", "z"].map(&mut place), ["b", "a", "a", "b"]);
        assert_eq!(Choice::of(&views[2..], &document).choose(&document, "night", 1, "x"), None);
    }

    #[test]
    fn a_role_goes_to_a_worker_that_has_its_backends() {
        let of = |name: &str, backends: Option<&[&str]>| {
            let backends = backends.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            WorkerView { backends, ..view(name, true) }
        };
        let mut document = Document::default();
        let mut run =
            RunFacts::test(Plan::new(PlanWorkflow { name: "w".into(), digest: None }), RunState::Starting);
        let backends = BTreeMap::from([("ort".to_owned(), "see".to_owned())]);
        run.roles.insert("x".to_owned(), Role { backends, ..Role::default() });
        run.roles.insert("y".to_owned(), Role::default());
        document.runs.insert("night".to_owned(), run);
        let chosen = |views: &[WorkerView], role: &str| {
            Choice::of(views, &document).choose(&document, "night", 1, role)
        };
        let views = [of("a", Some(&["rten"])), of("b", Some(&["ort", "rten"]))];
        assert_eq!(chosen(&views, "x").as_deref(), Some("b"));
        assert_eq!(chosen(&views, "y").as_deref(), Some("a"));
        assert_eq!(chosen(&views[..1], "x"), None);
        // An older program does not report its backends.
        assert_eq!(chosen(&[of("a", None)], "x").as_deref(), Some("a"));
        // Its own name does not help a worker that lacks them.
        let views = [of("x", Some(&["rten"])), of("b", Some(&["ort", "rten"]))];
        assert_eq!(chosen(&views, "x").as_deref(), Some("b"));
        assert_eq!(chosen(&views[..1], "x"), None);
        assert_eq!(chosen(&[of("x", None), of("b", Some(&["ort"]))], "x").as_deref(), Some("x"));
    }

    fn options(folder: &Path) -> ControllerOptions {
        ControllerOptions { replan_pace: Default::default(), ..ControllerOptions::of_test(folder) }
    }

    /// The controller exits after the cancel request and before the run has ended.
    #[test]
    fn the_next_controller_ends_a_run_that_was_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let controller = Controller::start(&options(folder.path())).unwrap();
        let run =
            RunFacts::test(Plan::new(PlanWorkflow { name: "w".into(), digest: None }), RunState::Starting);
        let insert = |document: &mut Document| document.runs.insert("night".to_owned(), run);
        controller.shared.facts.change(insert).unwrap();
        // No driver runs here.
        assert!(controller.shared.cancel("night", "ada").unwrap().is_some());
        controller.end();
        let controller = Controller::start(&options(folder.path())).unwrap();
        let state = || controller.shared.facts.look(|document| document.runs["night"].state);
        let is_cancelled = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            state() == RunState::Cancelled
        });
        assert!(is_cancelled, "it is {:?}", state());
    }

    #[test]
    fn a_run_whose_roles_nobody_can_have_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let controller = Controller::start(&options(folder.path())).unwrap();
        let shared = &controller.shared;
        let mut run =
            RunFacts::test(Plan::new(PlanWorkflow { name: "w".into(), digest: None }), RunState::Complete);
        run.roles.insert("edge".to_owned(), Role::default());
        let insert = |document: &mut Document| {
            document.runs.insert("night".to_owned(), run);
            document.workers.insert("edge".to_owned(), WorkerFacts::default());
        };
        shared.facts.change(insert).unwrap();
        place_first(shared, "night", 1);
        let placed = shared.facts.look(|document| document.runs["night"].roles["edge"].worker.clone());
        assert_eq!(placed, None, "it was not heard");
        controller.end();
    }
}
