//! Assigns the workers of plans to workers of the cluster.
mod exchanges;

use super::link_hints::For;
use super::measured_links::Place;
use super::{Happened, Shared, backends, changing, locked};
use crate::api::WorkerView;
use crate::facts::{Document, Role};
use crate::replanning::placement::{Spare, WorkerPreferences, best, equals};
use exchanges::{Candidate, Placed};
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_spec::plan::PlanWorker;

/// The best worker with the backends of a role: the one with its name, else by tier, location, type and fewest duties. `None` if there is
/// none.
pub(crate) fn choose(shared: &Shared, run: &str, version: u64, role: &str) -> Option<String> {
    let views = shared.worker_views();
    shared.facts.look(|document| {
        let choice = Choice::of(&views, document);
        let (mut found, _) = choice.by_exchange(document, run, version, &[role], links(shared, run));
        found.remove(role).or_else(|| choice.choose(document, run, version, role))
    })
}

/// Returns bits per second that are left between two workers of places, by fresh hints.
fn links<'a>(
    shared: &'a Shared,
    run: &'a str,
) -> impl Fn((&str, &Place), (&str, &Place)) -> Result<f64, String> + Copy + 'a {
    move |(from, here), (to, there)| {
        let nominal = shared.nominal_rate(None, from, to);
        let hint = shared.link_hint((here, there), nominal, For::Run(Some(run)), &shared.traffic())?;
        hint.verdict.map(|_| hint.bits_per_second)
    }
}

/// A wish for the worker of a role.
enum Wish {
    /// This worker; none: it waits.
    One(Option<String>),
    /// The best one.
    Best(WorkerPreferences, Role),
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
        match self.wish(document, run, version, role) {
            Wish::One(worker) => worker,
            Wish::Best(wanted, own) => best(&self.able(&own), &wanted),
        }
    }

    /// Chooses workers of these open roles by what they exchange with each other and with roles that have a worker, where workers are
    /// equally good otherwise. Returns the reasons, too.
    fn by_exchange(
        &self,
        document: &Document,
        run: &str,
        version: u64,
        open: &[&str],
        link: impl Fn((&str, &Place), (&str, &Place)) -> Result<f64, String> + Copy,
    ) -> (BTreeMap<String, String>, Vec<String>) {
        let place = |worker: &str| {
            document.workers.get(worker).map(|of| (of.tier.clone(), of.location.clone())).unwrap_or_default()
        };
        let nothing = (BTreeMap::new(), Vec::new());
        let Some((facts, roles)) = document.runs.get(run).and_then(|of| Some((of, of.roles_of(version)?)))
        else {
            return nothing;
        };
        let next = facts.next.as_ref().filter(|next| next.version == version).map(|next| &next.plan);
        let flows = exchanges::flows(next.unwrap_or(&facts.plan));
        let given =
            |role: &String, worker: String| Placed { role: role.clone(), place: place(&worker), worker };
        let is_open = |role: &String| open.contains(&role.as_str());
        let others = roles.iter().filter(|(role, _)| !is_open(role));
        let mut placed: Vec<Placed> =
            others.filter_map(|(role, of)| Some(given(role, of.worker.clone()?))).collect();
        let mut duties: BTreeMap<String, usize> =
            self.spares.iter().map(|spare| (spare.name.clone(), spare.duties)).collect();
        let mut groups: Vec<(WorkerPreferences, Role, Vec<String>)> = Vec::new();
        for role in roles.keys().filter(|role| is_open(role)) {
            match self.wish(document, run, version, role) {
                Wish::One(None) => {}
                Wish::One(Some(worker)) => {
                    *duties.entry(worker.clone()).or_default() += 1;
                    placed.push(given(role, worker));
                }
                Wish::Best(wanted, own) => {
                    let same = |(known, of, _): &&mut (WorkerPreferences, Role, _)| {
                        *known == wanted && of.backends == own.backends
                    };
                    match groups.iter_mut().find(same) {
                        Some((.., group)) => group.push(role.clone()),
                        None => groups.push((wanted, own, vec![role.clone()])),
                    }
                }
            }
        }
        let (mut found, mut reasons) = nothing;
        for (wanted, own, roles) in groups {
            let able = self.able(&own);
            let candidates = equals(&able, &wanted).into_iter().map(|spare| Candidate {
                name: spare.name.clone(),
                place: place(&spare.name),
                duties: duties.get(&spare.name).copied().unwrap_or_default(),
            });
            let candidates: Vec<Candidate> = candidates.collect();
            let worker_at = |of: &Place| {
                let known = candidates.iter().map(|one| (&one.name, &one.place));
                let mut known = known.chain(placed.iter().map(|one| (&one.worker, &one.place)));
                known.find(|(_, place)| *place == of).map(|(worker, _)| worker.clone()).unwrap_or_default()
            };
            let hint = |here: &Place, there: &Place| {
                let (one, other) = (worker_at(here), worker_at(there));
                link((one.as_str(), here), (other.as_str(), there))
            };
            let Some((workers, why)) = exchanges::chosen(&roles, &candidates, &placed, &flows, hint) else {
                continue;
            };
            reasons
                .push(format!("{} of run {run} get workers by what they exchange: {why}", roles.join(", ")));
            for (role, worker) in workers {
                *duties.entry(worker.clone()).or_default() += 1;
                placed.push(given(&role, worker.clone()));
                found.insert(role, worker);
            }
        }
        (found, reasons)
    }

    fn wish(&self, document: &Document, run: &str, version: u64, role: &str) -> Wish {
        let run = document.runs.get(run);
        let roles = run.and_then(|run| run.roles_of(version));
        let own = roles.and_then(|roles| roles.get(role)).cloned().unwrap_or_default();
        if let Some(worker) = own.worker.as_deref().filter(|worker| self.can(worker)) {
            return Wish::One(Some(worker.to_owned()));
        }
        if own.is_bound && own.worker.is_some() {
            return Wish::One(None);
        }
        if self.can(role) && self.has_all(role, &own) {
            return Wish::One(Some(role.to_owned()));
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
        Wish::Best(WorkerPreferences { tier, location, worker_type }, own)
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
    shared.read_files();
    let (chosen, reasons) = shared.facts.look(|document| {
        let mut choice = Choice::of(&views, document);
        let roles = document.runs.get(run).and_then(|run| run.roles_of(version));
        let open = roles.into_iter().flatten().filter(|(_, of)| of.worker.is_none());
        let open: Vec<&str> = open.map(|(role, _)| role.as_str()).collect();
        let (mut found, reasons) = choice.by_exchange(document, run, version, &open, links(shared, run));
        let mut chosen: Vec<(String, String)> = Vec::new();
        for role in open {
            let worker = found.remove(role).or_else(|| choice.choose(document, run, version, role));
            if let Some(worker) = worker {
                if let Some(spare) = choice.spares.iter_mut().find(|spare| spare.name == worker) {
                    spare.duties += 1;
                }
                chosen.push((role.to_owned(), worker));
            }
        }
        (chosen, reasons)
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
    let placed =
        reasons.into_iter().map(|text| Happened { kind: "roles_placed", run: Some(run), worker: None, text });
    shared.tell_all(placed.chain(happened).collect(), |document| {
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
        if silent.is_some() && shared.role_lost(&run, version, &role) {
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
    use tidemill_spec::plan::{Plan, PlanEdge, PlanWorkflow, Stage};
    use tidemill_spec::units::{Bytes, Rate};

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

    #[test]
    fn roles_that_exchange_much_get_workers_of_one_site() {
        let mut document = Document::default();
        let site = |name: &str| Some(if matches!(name, "a" | "c") { "north" } else { "south" }.to_owned());
        let views = ["a", "b", "c", "d"].map(|name| {
            document.workers.or_insert(name, WorkerFacts::default()).location = site(name);
            WorkerView { location: site(name), ..view(name, true) }
        });
        let mut plan = Plan::new(PlanWorkflow { name: "w".into(), digest: None });
        let open = ["m1", "m2", "r1", "r2"];
        plan.stages = open.map(|role| Stage::new(role, role, role)).to_vec();
        for (from, to, bytes) in [("m1", "r1", 1), ("m1", "r2", 900), ("m2", "r1", 900), ("m2", "r2", 1)] {
            let mut edge = PlanEdge::new(from, to, 0);
            (edge.bytes_per_record, edge.rate) = (Some(Bytes(bytes)), Some(Rate(100.0)));
            plan.edges.push(edge);
        }
        let mut run = RunFacts::test(plan, RunState::Starting);
        run.roles = open.map(|role| (role.to_owned(), Role::default())).into();
        document.runs.insert("night".to_owned(), run);
        let choose = |document: &Document, open: &[&str]| {
            let link = |_: (&str, &Place), _: (&str, &Place)| Err("nothing is counted".to_owned());
            Choice::of(&views, document).by_exchange(document, "night", 1, open, link)
        };
        let (found, why) = choose(&document, &open);
        let at = |role: &str| site(&found[role]);
        assert_eq!((at("m1"), at("m2")), (at("r2"), at("r1")), "{found:?}");
        assert_ne!(at("m1"), at("m2"), "one role each");
        let text = "m1, m2, r1, r2 of run night get workers by what they exchange: 1.6kbps leave a site instead of 1.44Mbps, \
                    by topology only, because nothing is counted";
        assert_eq!(why, [text]);
        // One of them is lost: the next worker of its role is at the site of the other end.
        let roles = document.runs.get_mut("night").and_then(|run| run.roles_of_mut(1)).unwrap();
        for (role, worker) in [("m1", "a"), ("r1", "d"), ("m2", "d"), ("r2", "gone")] {
            roles.entry(role.to_owned()).or_default().worker = Some(worker.to_owned());
        }
        let (found, _) = choose(&document, &["r2"]);
        assert_eq!(found, [("r2".to_owned(), "c".to_owned())].into(), "b has as few roles, in the south");
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
