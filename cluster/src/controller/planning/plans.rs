//! Turns a request into a plan: lays out the files, describes the workers as an infrastructure, and calls the library of `tidemill plan`.
//! Sinks stay where their files are.
use super::explanation::{explained, refused};
use super::{Shared, Taken};
use crate::api::{Bundle, ModelView, Planning, Quota};
use crate::controller::{backends, drive};
use crate::replanning::assessment::{as_placed, read};
use crate::replanning::{Use, degradation};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tidemill_app::expectation::Expectation;
use tidemill_app::listener::Listener;
use tidemill_app::planned::{JudgedPlan, Planned, guaranteed, planned};
use tidemill_app::planning::{Case, PlanningOptions, SolverName};
use tidemill_app::service_level::{LevelError, LevelSetting};
use tidemill_optimizer::assemble::{Assembly, Options};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::plan::{Plan, PlanWorker};
use tidemill_spec::policies::added_to;
use tidemill_spec::units::TimeSpan;

/// Relative gap between the cost of a plan and the bound at which a search ends, as in `tidemill plan`.
const GAP: f64 = 1e-6;

/// A planning request.
#[derive(Clone, Copy)]
pub(crate) struct PlanningRequest<'a> {
    /// The run.
    pub(crate) name: &'a str,
    pub(crate) bundle: &'a Bundle,
    pub(crate) planning: &'a Planning,
    pub(crate) quota: Quota,
    /// Sinks that stay on a worker of the plan.
    pub(crate) pins: &'a BTreeMap<String, PlanWorker>,
}

/// A plan with its usage and explanation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedRun {
    pub(crate) plan: Plan,
    /// Use by worker of the plan.
    pub(crate) uses: BTreeMap<String, Use>,
    pub(crate) explanation: Vec<String>,
    /// Candidate models of the profile.
    pub(crate) models: Vec<ModelView>,
}

/// Collects messages while files are read.
#[derive(Default)]
pub(crate) struct NoteCollector(RefCell<Vec<String>>);

impl NoteCollector {
    pub(crate) fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

impl Listener for NoteCollector {
    fn note(&self, text: &str) {
        self.0.borrow_mut().push(text.to_owned());
    }
    fn warning(&self, text: &str) {
        self.note(text);
    }
    fn warnings(&self, findings: &Diagnostics) {
        findings.iter().for_each(|finding| self.note(&finding.message));
    }
}

/// Describes an error of the libraries, with a remedy.
pub(super) fn in_words(error: &anyhow::Error) -> String {
    if let Some(findings) = error.downcast_ref::<Diagnostics>() {
        return findings.to_string();
    }
    let help = error.downcast_ref::<tidemill_app::failure::Failure>().and_then(|failure| failure.help());
    match help {
        Some(help) => format!("{error:#}; {help}"),
        None => format!("{error:#}"),
    }
}

/// Moves sinks to the workers where they have to stay.
pub(crate) fn pinned(mut plan: Plan, pins: &BTreeMap<String, PlanWorker>) -> Plan {
    for (sink, worker) in pins {
        for stage in plan.stages.iter_mut().filter(|stage| stage.operator == *sink) {
            stage.worker.clone_from(&worker.id);
        }
        if plan.workers.iter().all(|known| known.id != worker.id) {
            plan.workers.push(worker.clone());
        }
        // It starts nowhere else, so the loss of its worker is none that the plan survives.
        plan.fallbacks.retain(|fallback| !fallback.lost.contains(&worker.id));
        for fallback in &mut plan.fallbacks {
            fallback.starts.retain(|stage| stage.operator != *sink);
        }
    }
    let used: BTreeSet<String> = plan.stages.iter().map(|stage| stage.worker.clone()).collect();
    plan.workers.retain(|worker| used.contains(&worker.id));
    plan
}

/// Service levels and rules that override the workflow's.
fn options(planning: &Planning) -> Result<Options, LevelError> {
    let mut options = Options { max_utilization: planning.max_utilization, ..Options::default() };
    for text in &planning.slo {
        text.parse::<LevelSetting>()?.set(&mut options);
    }
    Ok(options)
}

impl Shared {
    /// Builds the planning problem for current workers and free capacity, with notes.
    ///
    /// # Errors
    /// Input is invalid or missing.
    pub(crate) fn case(&self, wish: &PlanningRequest<'_>) -> Result<(Case, Vec<String>), String> {
        self.case_with(wish, None)
    }

    /// Builds the problem for a given plan that the run does not have yet: its figures are needed, too.
    fn case_with(
        &self,
        wish: &PlanningRequest<'_>,
        given: Option<&Plan>,
    ) -> Result<(Case, Vec<String>), String> {
        let planning = wish.planning;
        if !(planning.max_utilization > 0.0 && planning.max_utilization <= 1.0) {
            return Err("`max_utilization` must be above 0 and at most 1".to_owned());
        }
        let problem = options(planning).map_err(|error| error.to_string())?;
        let folder = self.run_folder(wish.name);
        let files = folder.join("files");
        self.blobs.lay_out(wish.bundle, &files).map_err(|error| error.to_string())?;
        let own = folder.join("planning");
        let sent = planning.profiles.iter().chain(&planning.infrastructure).cloned().collect();
        let own_files = Bundle { files: sent, ..Bundle::default() };
        self.blobs.lay_out(&own_files, &own).map_err(|error| error.to_string())?;
        let sent = drive::sent(&files, wish.bundle).map_err(|error| error.to_string())?;
        let file = planning.infrastructure.as_ref().map(|file| sent.infrastructure(&own.join(&file.path)));
        let file = file.transpose().map_err(|found| found.to_string())?;
        let (infrastructure, mut notes) = self.infrastructure(file.as_ref(), Some(wish.name))?;
        let path = own.join("workers.yaml");
        let yaml = infrastructure.to_yaml().map_err(|found| found.to_string())?;
        std::fs::write(&path, yaml).map_err(|error| format!("{}: {error}", path.display()))?;
        let asked = PlanningOptions {
            infrastructure: Some(path),
            profiles: planning.profiles.iter().map(|file| own.join(&file.path)).collect::<Vec<PathBuf>>(),
            problem,
            gap: GAP,
            time_limit: TimeSpan((planning.time_limit_seconds.clamp(0.1, 600.0) * 1e9) as u64),
            keep_idle: planning.keep_idle,
            solver: SolverName::Auto,
        };
        let heard = NoteCollector::default();
        let mut case = Case::load_sent(&sent, &asked, &heard).map_err(|error| in_words(&error))?;
        notes.extend(heard.take());
        if file.is_none() {
            // The plan may have those of an infrastructure that was not sent.
            let added = |plan: &Plan| added_to(plan, &case.workflow);
            let of_run =
                || self.facts.look(|document| document.runs.get(wish.name).map(|run| added(&run.plan)));
            case.infrastructure.policies = given.map(added).or_else(of_run).unwrap_or_default();
        }
        let in_use = |plan: &Plan, workers: &BTreeMap<String, String>| {
            backends::in_use(&as_placed(plan, workers, &case.infrastructure))
        };
        let mut kept = self.facts.look(|document| {
            let Some(run) = document.runs.get(wish.name) else { return BTreeSet::new() };
            let places = run.roles.iter().filter_map(|(role, of)| Some((role.clone(), of.worker.clone()?)));
            let places: BTreeMap<String, String> = places.collect();
            in_use(&run.plan, &places)
        });
        kept.extend(given.into_iter().flat_map(|plan| in_use(plan, &BTreeMap::new())));
        notes.extend(backends::leave_out(&mut case.profile, &self.worker_views(), &kept));
        if case.profile.messages.is_empty() && file.is_none() {
            // Without message sizes the load of a link is unknown.
            let links = case.infrastructure.links.iter_mut();
            if links.filter_map(|link| link.bandwidth.take()).count() > 0 {
                notes.push(
                    "the profile has no sizes of messages: ignoring the measured rates of links".to_owned(),
                );
            }
        }
        Ok((case, notes))
    }

    /// Plans a run.
    ///
    /// # Errors
    /// Input is invalid or missing, or no plan keeps the levels: which to relax, and the usage by other runs.
    pub(crate) fn planned_run(&self, wish: &PlanningRequest<'_>) -> Result<PlannedRun, String> {
        let (case, notes) = self.checked_case(wish, None)?;
        self.planned_case(wish, &case, notes, true).map(|(run, ..)| run)
    }

    /// Accepts the submitted plan. Planning inputs are kept for later plans. If the plan is outside of the planning problem, its own
    /// figures give its usage.
    ///
    /// # Errors
    /// Files, levels or the quota are invalid. Missed levels are no error.
    pub(crate) fn given_run(&self, wish: &PlanningRequest<'_>, plan: &Plan) -> Result<PlannedRun, String> {
        if let Err(why) = self.infrastructure(None, Some(wish.name)) {
            // No worker has joined, for instance: it waits for its workers like a plan without profiles.
            let text = format!("the plan is the submitted one: its figures are not known: {why}");
            return Ok(PlannedRun {
                plan: plan.clone(),
                uses: BTreeMap::new(),
                explanation: vec![text],
                models: Vec::new(),
            });
        }
        let (case, notes) = self.checked_case(wish, Some(plan))?;
        let placed = as_placed(plan, &BTreeMap::new(), &case.infrastructure);
        let (uses, text) = match read(&case, &placed) {
            Ok(read) => {
                let uses = uses(&read.assembly, &read.planned);
                self.keeps_quota("the plan", wish.quota, &uses, &self.taken(Some(wish.name)))?;
                (uses, read.assessment(&case, &placed, true).text())
            }
            Err(why) => (BTreeMap::new(), format!("its figures are not known: {why}")),
        };
        let text = format!("the plan is the submitted one: {text}");
        let explanation = std::iter::once(text).chain(notes).collect();
        Ok(PlannedRun { plan: plan.clone(), uses, explanation, models: models(&case) })
    }

    /// Calls [`Shared::case_with`] and checks the order in which levels are relaxed.
    fn checked_case(
        &self,
        wish: &PlanningRequest<'_>,
        given: Option<&Plan>,
    ) -> Result<(Case, Vec<String>), String> {
        let (case, notes) = self.case_with(wish, given)?;
        let degrade: Result<Vec<LevelSetting>, LevelError> =
            wish.planning.degrade.iter().map(|text| text.parse()).collect();
        degradation::check(&case, &degrade.map_err(|error| error.to_string())?)?;
        Ok((case, notes))
    }

    /// Plans a case. With `explains`, searches for levels to relax if there is no plan, which takes a while.
    ///
    /// # Errors
    /// As [`Shared::planned_run`].
    pub(crate) fn planned_case(
        &self,
        wish: &PlanningRequest<'_>,
        case: &Case,
        mut notes: Vec<String>,
        explains: bool,
    ) -> Result<(PlannedRun, Planned, Expectation, Assembly), String> {
        let heard = NoteCollector::default();
        let taken = self.taken(Some(wish.name));
        let mut assembly = case.assemble().map_err(|found| {
            format!("{}{}{}", found.to_string().trim_end(), others(&taken), noted(&notes))
        })?;
        let outcome = planned(case, &mut assembly, &Exact, &heard).map_err(|error| in_words(&error))?;
        let found = guaranteed(case, &assembly, &outcome).map_err(|failure| failure.to_string())?;
        let Some(JudgedPlan { planned, expectation }) = found else {
            return Err(match explains {
                true => refused(case, &assembly, &outcome, &taken, &notes),
                false => "no plan keeps the service levels".to_owned(),
            });
        };
        notes.extend(heard.take());
        notes.extend(assembly.notes.iter().cloned());
        let uses = uses(&assembly, &planned);
        self.keeps_quota("the cheapest plan", wish.quota, &uses, &taken)?;
        let explanation = explained(case, &assembly, &outcome, &planned, &expectation, &notes);
        let plan = pinned(planned.plan.clone(), wish.pins);
        let models = models(case);
        Ok((PlannedRun { plan, uses, explanation, models }, planned, expectation, assembly))
    }

    /// Whether a plan stays within the quota; `what` names it in messages.
    fn keeps_quota(
        &self,
        what: &str,
        quota: Quota,
        uses: &BTreeMap<String, Use>,
        taken: &BTreeMap<String, Taken>,
    ) -> Result<(), String> {
        let machines = self.machines();
        let processors_of = |name: &str| {
            machines.iter().find(|machine| machine.name == name).map_or(1.0, |machine| machine.processors)
        };
        let processors: f64 = uses.iter().map(|(worker, of)| of.time * processors_of(worker)).sum();
        let memory: u64 = uses.values().map(|of| of.memory_bytes).sum();
        let others = others(taken);
        if let Some(most) = quota.processors.filter(|most| processors > *most + 1e-9) {
            return Err(format!(
                "{what} takes {processors:.2} processors, but the quota of this submission is {most}: raise it \
                 (`--processors`), or lower a service level (`--slo`){others}"
            ));
        }
        if let Some(most) = quota.memory_bytes.filter(|most| memory > *most) {
            let bytes = tidemill_app::figures::bytes;
            return Err(format!(
                "{what} takes {} of memory, but the quota of this submission is {}: raise it (`--memory`), or lower a \
                 service level (`--slo`){others}",
                bytes(memory),
                bytes(most)
            ));
        }
        Ok(())
    }
}

/// The candidate models of a profile.
fn models(case: &Case) -> Vec<ModelView> {
    let models = case.profile.accuracy.iter().flat_map(|accuracy| &accuracy.models);
    models.map(ModelView::from).collect()
}

/// Describes the usage by other runs.
fn others(taken: &BTreeMap<String, Taken>) -> String {
    let all: Vec<String> =
        taken.iter().map(|(worker, taken)| format!("\n  {worker}: {}", taken.text())).collect();
    if all.is_empty() { String::new() } else { format!("\nother runs have:{}", all.concat()) }
}

/// Formats the notes. Shared workers are listed with the usage by others.
fn noted(notes: &[String]) -> String {
    let lines = notes.iter().filter(|note| !note.contains(" is shared and costs "));
    let lines: Vec<String> = lines.map(|note| format!("\n  {note}")).collect();
    if lines.is_empty() { String::new() } else { format!("\nnoted:{}", lines.concat()) }
}

/// Usage of each worker by a plan, as a share of its whole time.
pub(crate) fn uses(assembly: &Assembly, planned: &Planned) -> BTreeMap<String, Use> {
    let loads = planned.workers.iter().zip(&planned.summary.workers);
    let of = loads.map(|(name, load)| {
        let time = load.utilization / assembly.slowdown(load.class);
        (name.clone(), Use { time, memory_bytes: load.memory_bytes.round() as u64 })
    });
    of.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replanning::assessment::mark_of;
    use tidemill_spec::plan::{PlanEdge, PlanWorkflow, Stage};

    fn worker(id: &str) -> PlanWorker {
        PlanWorker {
            id: id.into(),
            tier: "edge".into(),
            location: None,
            worker_type: "small".into(),
            price: None,
        }
    }

    fn plan() -> Plan {
        Plan {
            workers: vec![worker("a"), worker("b")],
            stages: vec![
                Stage::new("rows", "rows", "a"),
                Stage::new("some", "some", "b"),
                Stage::new("out", "out", "b"),
            ],
            edges: vec![PlanEdge::new("rows", "some", 0), PlanEdge::new("some", "out", 0)],
            ..Plan::new(PlanWorkflow { name: "flow".into(), digest: None })
        }
    }

    #[test]
    fn sinks_stay_where_their_files_are() {
        let pins = BTreeMap::from([("out".to_owned(), worker("c"))]);
        let found = pinned(plan(), &pins);
        assert_eq!(found.stages[2].worker, "c");
        assert_eq!(found.workers.len(), 3);
        let inside = pinned(plan(), &BTreeMap::from([("out".to_owned(), worker("b"))]));
        assert_eq!(inside.workers.len(), 2);
    }

    #[test]
    fn plans_that_do_the_same_have_one_mark() {
        let (one, mut other) = (plan(), plan());
        other.plan_version = 7;
        other.stages.reverse();
        assert_eq!(mark_of(&one), mark_of(&other));
        other.stages[0].worker = "c".into();
        assert_ne!(mark_of(&one), mark_of(&other));
    }

    #[test]
    fn levels_are_those_of_the_command_line() {
        let mut planning = Planning {
            profiles: Vec::new(),
            infrastructure: None,
            slo: vec!["rate=40/s".into(), "latency=none".into()],
            degrade: Vec::new(),
            max_utilization: 0.7,
            keep_idle: false,
            time_limit_seconds: 30.0,
        };
        let found = options(&planning).unwrap();
        assert_eq!((found.rate.unwrap().0, found.max_utilization, found.without.len()), (40.0, 0.7, 1));
        planning.slo.push("speed=9".into());
        assert!(options(&planning).unwrap_err().to_string().contains("is not a service level"));
    }
}
