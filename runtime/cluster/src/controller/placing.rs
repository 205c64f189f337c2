//! Which worker of the cluster has which worker of a plan.
use super::{Shared, locked};
use crate::facts::{Document, Role};

/// The best worker for a role of a run: the one of that name, else one that is of the same location, and among these one that
/// has the least to do. None: nobody is there.
pub(crate) fn choose(shared: &Shared, run: &str, role: &str) -> Option<String> {
    let views = shared.worker_views();
    let (own, taken) = shared.facts.look(|document| {
        let own = document.runs.get(run).and_then(|run| run.roles.get(role)).cloned().unwrap_or_default();
        (own, duties(document))
    });
    let can = |name: &str| views.iter().any(|view| view.name == name && view.is_alive && !view.is_drained);
    if let Some(worker) = own.worker.as_deref().filter(|worker| can(worker)) {
        return Some(worker.to_owned());
    }
    if own.is_bound && own.worker.is_some() {
        return None;
    }
    if can(role) {
        return Some(role.to_owned());
    }
    // A name that the cluster knows means that machine: it is waited for unless it is lost or drained.
    let location = views.iter().find(|view| view.name == role).and_then(|view| view.location.clone());
    let mut candidates: Vec<_> = views.iter().filter(|view| view.is_alive && !view.is_drained).collect();
    candidates.sort_by_key(|view| {
        let load = taken.iter().filter(|worker| **worker == view.name).count();
        (view.location != location, load, view.name.clone())
    });
    candidates.first().map(|view| view.name.clone())
}

/// The worker of each role that is wanted.
fn duties(document: &Document) -> Vec<String> {
    let running = document.runs.values().filter(|run| !run.state.is_over());
    running.flat_map(|run| run.roles.values().filter_map(|role| role.worker.clone())).collect()
}

/// Takes all that can go on elsewhere from a worker.
pub(crate) fn leave(shared: &Shared, worker: &str, why: &str) {
    let there: Vec<(String, String, Role)> = shared.facts.look(|document| {
        let running = document.runs.iter().filter(|(_, run)| !run.state.is_over());
        let roles = running.flat_map(|(name, run)| {
            run.roles.iter().map(move |(role, of)| (name.clone(), role.clone(), of.clone()))
        });
        roles.filter(|(.., of)| of.worker.as_deref() == Some(worker)).collect()
    });
    for (run, role, of) in there {
        if of.is_bound {
            let text = format!(
                "run {run} waits for worker {worker}: {why}, and it has files of '{role}' that are nowhere else"
            );
            shared.tell("run_waits", Some(&run), Some(worker), &text);
            continue;
        }
        match choose(shared, &run, &role) {
            Some(next) => {
                let text = format!("'{role}' of run {run} goes from worker {worker} to {next}: {why}");
                place(shared, &run, &role, &next);
                shared.tell("role_moved", Some(&run), Some(&next), &text);
            }
            None => {
                let text =
                    format!("run {run} waits: {why}, and nobody else can have '{role}' of worker {worker}");
                shared.tell("run_waits", Some(&run), Some(worker), &text);
            }
        }
    }
}

/// Has a worker have a role, in a new process.
pub(crate) fn place(shared: &Shared, run: &str, role: &str, worker: &str) {
    let kept = shared.facts.change(|document| {
        if let Some(of) = document.runs.get_mut(run).and_then(|run| run.roles.get_mut(role)) {
            of.worker = Some(worker.to_owned());
            of.generation += 1;
        }
    });
    if let Err(error) = kept {
        tracing::error!("{error}");
    }
    if let Some(live) = locked(&shared.runs).get_mut(run) {
        live.moved.insert(role.to_owned());
    }
}
