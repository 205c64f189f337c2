//! Continues a run at once when one of its workers is lost, if its plan covers that (`survive`): the classes of the lost worker go to stages of
//! the same operators on the workers that remain ([`Plan::without`]). Nothing is planned meanwhile.
//!
//! It is a change of the plan like any other ([`super::changing`]), with two differences: the lost workers are not waited for, and the
//! present plan ends at its last checkpoint that is written, because no other can be written without them. When the workers are
//! back, or others can take their place, the plan before the loss returns as an ordinary change.
use super::changing::make_ready;
use super::{Shared, locked, placing};
use crate::api::{LossView, RunState, covered_in_words};
use crate::clock::instant;
use crate::facts::{Document, RunFacts, Survived};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_engine::Timing;
use tidemill_spec::plan::Plan;

/// Time for the plan without the lost workers to stand ready. After that the run waits for its workers as one whose plan covers nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after a loss before the plan before it returns: a worker that comes and goes must not change the plan each time.
const RESTORE_AFTER: Duration = Duration::from_secs(5);
/// Time between two tries to return to the plan before a loss.
const RESTORE_AGAIN: Duration = Duration::from_secs(30);
/// Interval of looks for a worker that takes the place of a lost one.
const LOOK: Duration = Duration::from_millis(500);

/// Silence of a worker and of its processes that counts as its loss for such a run, unless `--detection` is shorter.
const SILENCE: Duration = Duration::from_secs(1);
/// Milliseconds between two heartbeats of a worker of such a run: with the next one it learns that it has more to do.
const SOON_MILLISECONDS: u64 = 100;

/// Workers of the plan of a run that were lost, while it changes to the plan without them.
#[derive(Default)]
pub(crate) struct Lost {
    roles: BTreeSet<String>,
    /// When the first of them was lost; until a record has reached a sink under the plan without it.
    since: Option<Instant>,
    /// A thread changes the plan.
    is_busy: bool,
    /// The plan that could not be continued without lost workers: its run waits for them.
    waits_under: Option<u64>,
    /// When to look next for workers in the place of lost ones.
    look_at: Option<Instant>,
}

impl RunFacts {
    /// The plan before the first loss, and the workers of it that were lost until now.
    fn whole(&self) -> (&Plan, BTreeSet<String>) {
        match &self.survived {
            Some(survived) => {
                (&survived.plan, survived.losses.iter().map(|loss| loss.role.clone()).collect())
            }
            None => (&self.plan, BTreeSet::new()),
        }
    }

    /// The plan without these workers of the present one, besides those that were lost before. `None`: the run waits for them, or has no
    /// plan that covers losses.
    fn without(&self, roles: &BTreeSet<String>) -> Option<Plan> {
        let (whole, mut lost) = self.whole();
        let stays = |role: &String| {
            let of = self.roles.get(role);
            // Records of a source that is lost would be missing; files of sinks, and journals, are only there.
            let has_source = self.plan.stages.iter().any(|stage| {
                stage.worker == *role && !self.plan.edges.iter().any(|edge| edge.to == stage.id)
            });
            has_source || of.is_none_or(|of| of.is_bound || of.held_milliseconds.is_some())
        };
        if whole.survive == 0 || roles.iter().any(stays) {
            return None;
        }
        lost.extend(roles.iter().cloned());
        whole.without(&lost).ok()
    }

    /// Workers of the cluster whose stages take more in this plan than in the present one.
    fn taken_by(&self, next: &Plan) -> Vec<String> {
        let before = |stage: &str| self.plan.stages.iter().find(|one| one.id == stage);
        let more = next.stages.iter().filter(|stage| {
            before(&stage.id).is_none_or(|known| known.worker != stage.worker || stage.share > known.share)
        });
        let workers = more.map(|stage| {
            let placed = self.roles.get(&stage.worker).and_then(|role| role.worker.clone());
            placed.unwrap_or_else(|| stage.worker.clone())
        });
        workers.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// How many more losses of workers its plan covers; `None`: it covers none even when it is whole.
    pub(crate) fn losses_covered(&self) -> Option<u32> {
        let (whole, lost) = self.whole();
        let lost = u32::try_from(lost.len()).unwrap_or(u32::MAX);
        (whole.survive > 0).then(|| whole.survive.saturating_sub(lost))
    }

    /// Losses until now, the oldest first.
    pub(crate) fn losses(&self) -> &[LossView] {
        self.survived.as_ref().map_or(&[], |survived| &survived.losses)
    }
}

impl Shared {
    /// Takes note that the worker of a role is lost. Returns whether the plan covers that; then the run continues without it. Does not
    /// block: the thread of the run follows.
    pub(crate) fn role_lost(&self, run: &str, version: u64, role: &str) -> bool {
        let mut runs = locked(&self.runs);
        let live = runs.get_mut(run).filter(|live| live.lost.waits_under != Some(version));
        let Some(live) = live else { return false };
        let is_covered = self.facts.look(|document| {
            let facts = document.runs.get(run).filter(|facts| facts.plan_version == version);
            let mut roles = live.lost.roles.clone();
            roles.insert(role.to_owned());
            facts.is_some_and(|facts| facts.state == RunState::Running && facts.without(&roles).is_some())
        });
        if is_covered && live.lost.roles.insert(role.to_owned()) {
            live.lost.since.get_or_insert_with(instant);
            tracing::info!("run {run} continues without worker '{role}' of its plan");
        }
        is_covered
    }

    /// Continues a run without lost workers, and returns to the plan before when others have taken their place. Called while the run runs.
    pub(super) fn follow_losses(self: &Arc<Self>, run: &str) {
        let is_lost = {
            let mut runs = locked(&self.runs);
            let Some(live) = runs.get_mut(run) else { return };
            let lost = &mut live.lost;
            if lost.is_busy || lost.look_at.is_some_and(|at| instant() < at) && lost.roles.is_empty() {
                return;
            }
            let is_lost = !lost.roles.is_empty() && live.switch.is_none();
            lost.is_busy = is_lost;
            lost.look_at =
                Some(instant() + if is_lost { RESTORE_AFTER.div_f64(self.replan_pace) } else { LOOK });
            is_lost
        };
        if !is_lost {
            return self.restore(run);
        }
        let (shared, name) = (Arc::clone(self), run.to_owned());
        let thread =
            std::thread::Builder::new().name("tm-losses".into()).spawn(move || fall_back(&shared, &name));
        if let Err(error) = thread {
            tracing::error!("cannot start the thread that continues run {run}: {error}");
            if let Some(live) = locked(&self.runs).get_mut(run) {
                live.lost = Lost::default();
            }
        }
    }

    /// Finds workers of covered runs that are silent, and whose processes are silent, too. They may count as lost for these runs before
    /// they do for all others: a false alarm costs a change of plan.
    pub(super) fn miss_covered(&self) {
        let silence = self.detection.time.min(SILENCE);
        let silent: Vec<String> = {
            let workers = locked(&self.workers);
            let silent =
                workers.iter().filter(|(_, worker)| worker.is_alive && worker.heard.elapsed() >= silence);
            silent.map(|(name, _)| name.clone()).collect()
        };
        for worker in silent {
            let roles: Vec<(String, u64, String)> = self.facts.look(|document| {
                let covered = document
                    .runs
                    .iter()
                    .filter(|(_, run)| run.state == RunState::Running && run.losses_covered().is_some());
                let roles = covered.flat_map(|(name, run)| {
                    run.roles.iter().map(move |(role, of)| (name, run.plan_version, role, of))
                });
                let here = roles.filter(|(.., of)| of.worker.as_deref() == Some(&worker));
                here.map(|(name, version, role, _)| (name.clone(), version, role.clone())).collect()
            });
            if roles.is_empty() || self.heard_in_a_run(&worker, silence).is_some() {
                continue;
            }
            for (run, version, role) in roles {
                self.role_lost(&run, version, &role);
            }
        }
    }

    /// Milliseconds between two heartbeats of a worker, if it has to know soon of a loss that it must take over.
    pub(super) fn pause_of(&self, worker: &str) -> Option<u64> {
        let is_soon = self.facts.look(|document| {
            document.runs.values().any(|run| {
                !run.state.is_over()
                    && run.losses_covered().is_some()
                    && run.roles.values().any(|role| role.worker.as_deref() == Some(worker))
            })
        });
        is_soon.then_some(SOON_MILLISECONDS)
    }

    /// Losses of an open run, and how many more its plan covers, in words.
    pub(super) fn losses_in_words(&self, run: &str) -> Vec<String> {
        self.facts.look(|document| {
            let facts = document.runs.get(run).filter(|facts| !facts.state.is_over());
            let Some(facts) = facts else { return Vec::new() };
            let more = covered_in_words(facts.losses(), facts.losses_covered().unwrap_or_default());
            facts.losses().iter().map(LossView::in_words).chain(more).collect()
        })
    }

    /// Completes the last loss of a run with the time until its first record at a sink, and reports it.
    pub(super) fn tell_survived(&self, run: &str, timing: &Timing) {
        let since = locked(&self.runs).get_mut(run).and_then(|live| live.lost.since.take());
        let Some(since) = since else { return };
        let first = timing.arrivals.values().map(|(first, _)| *first).max();
        let seconds = first.map(|first| since.elapsed().saturating_sub(first).as_secs_f64());
        let told = self.facts.change(|document| {
            let facts = document.runs.get_mut(run)?;
            let covered = facts.losses_covered().unwrap_or_default();
            let survived = facts.survived.as_mut()?;
            for loss in survived.losses.iter_mut().filter(|loss| loss.seconds.is_none()) {
                loss.seconds = seconds;
            }
            let last = survived.losses.last()?;
            let text = format!("run {run}: {}", last.in_words());
            let more = covered_in_words(&survived.losses, covered).unwrap_or_default();
            Some((last.worker.clone(), format!("{text}; {more}")))
        });
        match told {
            Ok(Some((worker, text))) => self.tell("loss_survived", Some(run), worker.as_deref(), &text),
            Ok(None) => {}
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Returns to the plan before the losses, if there are workers for it again.
    fn restore(self: &Arc<Self>, run: &str) {
        let views = self.worker_views();
        let found = self.facts.look(|document| {
            let facts = document.runs.get(run).filter(|facts| {
                facts.state == RunState::Running
                    && facts.next.is_none()
                    && facts.former.as_ref().is_none_or(|former| former.is_past)
            })?;
            let survived = facts.survived.as_ref()?;
            let is_free = |name: &str| {
                views.iter().any(|view| view.name == name && view.is_alive && !view.is_drained)
                    && !facts.roles.values().any(|role| role.worker.as_deref() == Some(name))
            };
            let replacements = replacements(document, &survived.losses, is_free)?;
            Some((survived.plan.clone(), replacements))
        });
        let Some((plan, workers)) = found else { return };
        if let Some(live) = locked(&self.runs).get_mut(run) {
            live.lost.look_at = Some(instant() + RESTORE_AGAIN.div_f64(self.replan_pace));
        }
        let are = if workers.len() == 1 { "can" } else { "can each" };
        let reason =
            format!("{} {are} take the place of a lost worker: the plan before the loss", workers.join(", "));
        if let Err(error) = self.change_plan(run, plan, &reason) {
            tracing::warn!("run {run} does not return to the plan before a loss: {error}");
        }
    }
}

/// Workers in the place of the lost ones: each itself if it is back, else another one of its tier. `None` unless there is one for each.
fn replacements(
    document: &Document,
    losses: &[LossView],
    is_free: impl Fn(&str) -> bool,
) -> Option<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    let own = |loss: &LossView| loss.worker.clone().filter(|worker| is_free(worker));
    let back: Vec<Option<String>> = losses.iter().map(own).collect();
    found.extend(back.iter().flatten().cloned());
    for loss in losses.iter().zip(&back).filter(|(_, back)| back.is_none()).map(|(loss, _)| loss) {
        let tier = |worker: &str| document.workers.get(worker).map(|facts| &facts.tier);
        let wanted = loss.worker.as_deref().and_then(tier);
        let other = document.workers.keys().find(|worker| {
            is_free(worker)
                && !found.contains(worker)
                && wanted.is_none_or(|wanted| tier(worker) == Some(wanted))
        })?;
        found.push(other.clone());
    }
    Some(found)
}

/// Changes the plan of a run to the one without its lost workers. Others may be lost meanwhile.
fn fall_back(shared: &Arc<Shared>, run: &str) {
    loop {
        let version = shared.facts.look(|document| document.runs.get(run).map(|facts| facts.plan_version));
        let (lost, since) = match locked(&shared.runs).get(run) {
            Some(live) => (live.lost.roles.clone(), live.lost.since.unwrap_or_else(instant)),
            None => return,
        };
        let done = change(shared, run, &lost, since);
        let mut runs = locked(&shared.runs);
        let Some(live) = runs.get_mut(run) else { return };
        if done.is_err() && live.lost.roles != lost {
            continue;
        }
        live.lost.roles.retain(|role| !lost.contains(role));
        live.lost.is_busy = false;
        if done.is_err() {
            (live.lost.since, live.lost.waits_under) = (None, version);
        }
        drop(runs);
        if let Err(why) = done {
            let names = lost.iter().cloned().collect::<Vec<_>>().join(", ");
            let text =
                format!("run {run} waits for a worker for {names}, although its plan covers the loss: {why}");
            shared.tell("loss_not_survived", Some(run), None, &text);
            let workers = shared.facts.look(|document| {
                let roles = document.runs.get(run).map(|facts| &facts.roles);
                let of_lost = roles.into_iter().flatten().filter(|(role, _)| lost.contains(*role));
                of_lost.filter_map(|(_, of)| of.worker.clone()).collect::<Vec<_>>()
            });
            for worker in workers.iter().filter(|worker| !shared.is_alive(worker)) {
                placing::leave(shared, worker, "it is lost");
            }
        }
        return;
    }
}

fn change(shared: &Arc<Shared>, run: &str, lost: &BTreeSet<String>, since: Instant) -> Result<(), String> {
    let facts = shared.facts.look(|document| document.runs.get(run).cloned()).ok_or("it was removed")?;
    // A worker that is silent is noticed again until the plan without it has begun.
    let lost: BTreeSet<String> =
        lost.iter().filter(|role| facts.roles.contains_key(*role)).cloned().collect();
    if lost.is_empty() {
        return Ok(());
    }
    if let Some(next) = &facts.next {
        shared.change_failed(run, next.version, "a worker of the run is lost");
    }
    let plan = facts.without(&lost).ok_or("no stage is left of an operator")?;
    let moved_to = facts.taken_by(&plan);
    let time = tidemill_app::machine::now();
    let new = lost.iter().map(|role| LossView {
        role: role.clone(),
        worker: facts.roles.get(role).and_then(|of| of.worker.clone()),
        time: time.clone(),
        moved_to: moved_to.clone(),
        seconds: None,
    });
    let losses: Vec<LossView> = facts.losses().iter().cloned().chain(new).collect();
    let names: Vec<&str> = losses.iter().map(|loss| loss.worker.as_deref().unwrap_or(&loss.role)).collect();
    let names = names.join(", ");
    let reason = format!("without {names}, lost: the rest of the plan covers it");
    let survived = Survived { plan: facts.whole().0.clone(), losses };
    let next = shared.begin_change(run, plan, &reason, Some(Box::new(survived)));
    let next = next.map_err(|error| error.to_string())?;
    let version = next.version;
    tracing::info!("run {run}: plan {version} without {names} after {:?}", since.elapsed());
    let lost: Vec<String> = lost.into_iter().collect();
    make_ready(shared, run, next, (&lost, PATIENCE), instant())
        .inspect_err(|why| shared.change_failed(run, version, why))?;
    tracing::info!("run {run}: plan {version} stands ready after {:?}", since.elapsed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Role, WorkerFacts};

    const PLAN: &str = "
version: 1
workflow: {name: copy}
survive: 1
workers: [{id: hub, tier: hub, worker_type: box}, {id: a, tier: edge, worker_type: box}, {id: b, tier: edge, worker_type: box}, {id: c, tier: edge, worker_type: box}]
stages:
  - {id: rows, operator: rows, worker: hub}
  - {id: out, operator: out, worker: hub}
  - {id: m@a, operator: m, worker: a, variant: s, share: 0.4}
  - {id: m@b, operator: m, worker: b, variant: s, share: 0.4}
  - {id: m@c, operator: m, worker: c, variant: s, share: 0.2}
classes:
  - {id: 0, share: 0.4, route: {rows: rows, m: m@a, out: out}}
  - {id: 1, share: 0.4, route: {rows: rows, m: m@b, out: out}}
  - {id: 2, share: 0.2, route: {rows: rows, m: m@c, out: out}}
edges:
  - {from: rows, to: m@a}
  - {from: rows, to: m@b}
  - {from: rows, to: m@c}
  - {from: m@a, to: out}
  - {from: m@b, to: out}
  - {from: m@c, to: out}
";

    fn facts() -> RunFacts {
        let plan = Plan::parse(PLAN, "plan.yaml").unwrap_or_else(|found| panic!("{found}"));
        let mut facts = RunFacts::test(plan, RunState::Running);
        for role in ["hub", "a", "b", "c"] {
            let worker = Some(format!("box-{role}"));
            facts.roles.insert(role.to_owned(), Role { worker, ..Role::default() });
        }
        facts
    }

    fn names(roles: &[&str]) -> BTreeSet<String> {
        roles.iter().map(|role| (*role).to_owned()).collect()
    }

    fn loss(role: &str) -> LossView {
        let (worker, time) = (Some(format!("box-{role}")), "now".to_owned());
        LossView { role: role.to_owned(), worker, time, moved_to: Vec::new(), seconds: Some(1.0) }
    }

    #[test]
    fn a_plan_covers_workers_whose_records_others_can_take() {
        let mut facts = facts();
        let next = facts.without(&names(&["b"])).expect("it is covered");
        assert!(next.stages.iter().all(|stage| stage.worker != "b"));
        assert_eq!(facts.taken_by(&next), ["box-a", "box-c"]);
        assert_eq!(facts.losses_covered(), Some(1));
        assert_eq!(facts.without(&names(&["hub"])), None, "its records would be missing");
        assert_eq!(facts.without(&names(&["unknown"])), None);
        facts.roles.get_mut("c").into_iter().for_each(|role| role.is_bound = true);
        assert_eq!(facts.without(&names(&["c"])), None, "it has files");
        facts.roles.get_mut("c").into_iter().for_each(|role| {
            (role.is_bound, role.held_milliseconds) = (false, Some(1));
        });
        assert_eq!(facts.without(&names(&["c"])), None, "it may continue alone");
        facts.plan.survive = 0;
        assert_eq!(
            (facts.without(&names(&["b"])), facts.losses_covered()),
            (None, None),
            "nobody asked for it"
        );
    }

    #[test]
    fn losses_add_up_until_an_operator_has_no_stage() {
        let mut facts = facts();
        let whole = facts.plan.clone();
        let next = facts.without(&names(&["b"])).expect("it is covered");
        facts.survived = Some(Box::new(Survived { plan: whole, losses: vec![loss("b")] }));
        facts.plan = next;
        facts.roles.remove("b");
        assert_eq!(facts.losses_covered(), Some(0));
        let second = facts.without(&names(&["a"])).expect("a stage is left");
        let left: Vec<&str> = second.stages.iter().map(|stage| stage.id.as_str()).collect();
        assert_eq!(left, ["rows", "out", "m@c"]);
        assert_eq!(facts.without(&names(&["a", "c"])), None);
    }

    #[test]
    fn a_lost_worker_is_replaced_by_itself_or_another_one_of_its_tier() {
        let mut document = Document::default();
        for (name, tier) in [("box-a", "edge"), ("box-b", "edge"), ("cloud", "cloud"), ("spare", "edge")] {
            let facts = WorkerFacts { tier: Some(tier.to_owned()), ..WorkerFacts::default() };
            document.workers.insert(name.to_owned(), facts);
        }
        let found = |losses: &[&str], free: &[&str]| {
            let losses: Vec<LossView> = losses.iter().map(|role| loss(role)).collect();
            replacements(&document, &losses, |name| free.contains(&name))
        };
        assert_eq!(found(&["b"], &["box-b", "spare"]), Some(vec!["box-b".to_owned()]));
        assert_eq!(found(&["b"], &["cloud", "spare"]), Some(vec!["spare".to_owned()]));
        assert_eq!(found(&["b"], &["cloud"]), None);
        assert_eq!(found(&["a", "b"], &["spare"]), None, "one for each");
        let both = Some(vec!["box-a".to_owned(), "spare".to_owned()]);
        assert_eq!(found(&["a", "b"], &["box-a", "spare"]), both);
    }
}
