//! From files to a program that can start: everything is checked here, before anything is read.
use crate::by_levels::choose_by_levels;
use crate::choice::{self, Candidate, Candidates, Chosen, Setting, Skipped};
use crate::default_plan::default_plan;
use crate::listener::Listener;
use crate::models_of_state::keep_models;
use crate::sent::{self, Sent};
use crate::stand_ins;
use crate::state_place::StatePlace;
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_engine::{OnPanic, Program};
use tidemill_inference::MlKind;
use tidemill_inference::choice::Reason;
use tidemill_inference::error::ModelError;
use tidemill_operators::api::BoundSource;
use tidemill_operators::bind::{self, BoundWorkflow, Checked, Choice, Part, bind_workflow};
use tidemill_operators::kind::Step;
use tidemill_operators::registry::Registry;
use tidemill_spec::backend::BackendChoice;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::plan::{Plan, PlanFile, Stage};
use tidemill_spec::value::Step::{Index, Key};
use tidemill_spec::variables::{self, Lookup};
use tidemill_spec::workflow::{self, Source, Workflow};

/// All kinds of operators, sources and sinks.
pub fn registry() -> Registry {
    registry_with(MlKind::default())
}

fn registry_with(models: MlKind) -> Registry {
    let mut registry = Registry::builtin();
    registry.register_operator(models);
    registry
}

/// A workflow that can start.
pub struct Prepared {
    /// The workflow as its file says it.
    pub workflow: Workflow,
    /// What the engine runs.
    pub program: Program,
    /// Which model each stage runs and why.
    pub models: Vec<ChosenModel>,
    /// Whether somebody gave a plan.
    pub is_planned: bool,
}

/// The model of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenModel {
    /// Stage id.
    pub stage: String,
    /// The manifest's id.
    pub variant: String,
    /// Why this one.
    pub why: String,
    /// What runs it.
    pub backend: String,
    /// Why that.
    pub backend_why: String,
}

impl std::fmt::Display for ChosenModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { stage, variant, why, backend, backend_why } = self;
        write!(f, "{stage}: {variant} ({why}) on {backend} ({backend_why})")
    }
}

/// Codes of what can be said of a workflow of which some keys were left out.
const INDEPENDENT: &[&str] = &["E0102", "E0103", "E0604", "E0609", "E0610"];

/// Reads and checks a workflow; warnings go to the listener. Where only keys are unknown or units wrong, missing files
/// are reported with them.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(file: &Path, listener: &dyn Listener) -> Result<Workflow, Diagnostics> {
    load_with(file, &variables::environment, listener, |rest| check(rest, |_| {}).map(drop))
}

/// The same without a look at any file that the workflow names.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_alone(file: &Path, listener: &dyn Listener) -> Result<Workflow, Diagnostics> {
    load_with(file, &variables::environment, listener, |rest| check_alone(rest).map(drop))
}

/// Reads and checks a workflow with these variables; where only keys are unknown or units wrong, what `check_rest` finds in the others
/// comes with them.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn load_with(
    file: &Path,
    lookup: Lookup<'_>,
    listener: &dyn Listener,
    check_rest: impl Fn(&Workflow) -> Result<(), Diagnostics>,
) -> Result<Workflow, Diagnostics> {
    match Workflow::load_or_rest(file, lookup) {
        Ok(workflow) => {
            listener.warnings(&workflow.check());
            tidemill_inference::backend::check_workflow(&workflow).into_result(workflow)
        }
        Err((mut found, None)) => {
            found.sort();
            Err(found)
        }
        Err((mut found, Some(rest))) => {
            found.extend(tidemill_inference::backend::check_workflow(&rest));
            let more = check_rest(&rest).err().unwrap_or_default();
            found.extend(more.into_iter().filter(|finding| INDEPENDENT.contains(&finding.code)));
            found.sort();
            Err(found)
        }
    }
}

/// Checks the types of a workflow without loading its models.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(workflow: &Workflow, tell: impl FnMut(Skipped)) -> Result<BoundWorkflow, Diagnostics> {
    let candidates = choice::candidates(workflow)?;
    stand_ins::check(workflow, &candidates)?;
    let pruned = choice::without_obstacles(workflow, &candidates, |_, _| false, tell);
    bind_workflow(&pruned, &registry(), |_| Choice::default())
}

/// Checks a workflow whose data and models lie elsewhere: by what its own file says, and the manifests of its models that are here.
///
/// # Errors
/// Everything that is wrong with these.
pub fn check_alone(workflow: &Workflow) -> Result<Checked, Diagnostics> {
    if let Ok(candidates) = choice::candidates(workflow) {
        stand_ins::check(workflow, &candidates)?;
    }
    bind::check(workflow, &registry(), |_| Choice::default())
}

/// What a source reads that cannot be looked at before the run, in words with the source's id.
pub fn streams(sources: &BTreeMap<String, BoundSource>) -> impl Iterator<Item = String> {
    sources.iter().filter_map(|(id, source)| Some(format!("source `{id}` reads {}", source.stream.as_ref()?)))
}

/// Reads a workflow and a plan for it, or makes the default plan, binds both and loads the models once.
///
/// # Errors
/// Everything that is wrong with the files, the types or the models; settings that name what is not there.
pub fn prepare(
    workflow_file: &Path,
    plan_file: Option<&Path>,
    settings: &[Setting],
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    prepare_with(workflow_file, plan_file, settings, |_| None, listener)
}

/// The same for a run that continues from a state, if there is one in `place` or where the workflow says: without a plan it has the
/// models that it had.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_continued(
    workflow_file: &Path,
    plan_file: Option<&Path>,
    settings: &[Setting],
    place: Option<&StatePlace>,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    let place = |workflow: &Workflow| {
        // A wrong address is reported where the state is opened.
        place.cloned().or_else(|| StatePlace::of_workflow(workflow)?.ok())
    };
    prepare_with(workflow_file, plan_file, settings, place, listener)
}

fn prepare_with(
    workflow_file: &Path,
    plan_file: Option<&Path>,
    settings: &[Setting],
    place: impl Fn(&Workflow) -> Option<StatePlace>,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    let workflow = load(workflow_file, listener)?;
    let candidates = choice::candidates(&workflow)?;
    let (mut plan, reasons) = match plan_file {
        Some(file) => (load_plan(file, &workflow, &candidates)?, BTreeMap::new()),
        None => {
            let mut chosen = choice::choose(&workflow, &candidates, settings)?;
            let is_kept =
                place(&workflow).is_some_and(|place| keep_models(&place, &candidates, settings, &mut chosen));
            if !is_kept {
                choose_by_levels(&workflow, &candidates, settings, &mut chosen, listener);
            }
            (default_plan(&workflow, &chosen), chosen)
        }
    };
    stand_ins::place(&mut plan, &workflow, &candidates)?;
    let tell = |skipped: Skipped| {
        if plan_file.is_none() {
            listener.skipped(&skipped);
        }
    };
    let used = |operator: &str, candidate: &Candidate| uses(&plan, operator, candidate);
    let pruned = choice::without_obstacles(&workflow, &candidates, used, tell);
    let kind = MlKind::default();
    let bound = bind_workflow(&pruned, &registry_with(kind.clone()), |id| choice_of(&plan, id))?;
    let models = choose_backends(&workflow, &candidates, &mut plan, &reasons, &kind, |_| true)?;
    add_freshness(&workflow, &mut plan);
    let program = program(&workflow, bound, plan, |_| Step::Open)?;
    Ok(Prepared { workflow, program, models, is_planned: plan_file.is_some() })
}

/// Who has judged a workflow before a worker opens what is its own of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Somebody who sees the same files as the worker.
    OfThisMachine,
    /// A controller, which sees the files that were sent, and has told what the workflow promises without a look at others.
    Elsewhere,
}

/// A worker cannot open what is its own.
pub struct NotOpened {
    /// Why.
    pub error: anyhow::Error,
    /// The same, checked and not opened: enough to tell the coordinator why. None: not even that is right.
    pub checked: Option<Box<Prepared>>,
}

impl std::fmt::Debug for NotOpened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotOpened").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<E: Into<anyhow::Error>> From<E> for NotOpened {
    fn from(error: E) -> Self {
        Self { error: error.into(), checked: None }
    }
}

/// The same for a worker's process, with a plan that was checked: opens what its own stages read, and loads their models alone. The
/// variables are those that who has judged the workflow had.
///
/// # Errors
/// As [`prepare`]; the files have changed since, or lie only here and are not what they were taken for.
pub fn prepare_worker(
    (workflow_file, lookup): (&Path, Lookup<'_>),
    mut plan: Plan,
    worker: &str,
    judge: Judge,
    listener: &dyn Listener,
) -> Result<Prepared, NotOpened> {
    let workflow = load_with(workflow_file, lookup, listener, |rest| check_alone(rest).map(drop))?;
    let candidates = choice::candidates(&workflow)?;
    stand_ins::place(&mut plan, &workflow, &candidates)?;
    let kind = MlKind::default();
    let checked = checked(&workflow, &candidates, &plan, &kind)?;
    let opened = open_own(&workflow, &candidates, &checked, &mut plan, (worker, judge), &kind);
    let (error, plan) = match opened {
        Ok((program, models)) => return Ok(Prepared { workflow, program, models, is_planned: true }),
        Err(error) => (error.into(), plan),
    };
    let program = program(&workflow, checked.bound().clone(), plan, |_| Step::Check).ok();
    let checked =
        program.map(|program| Box::new(Prepared { workflow, program, models: Vec::new(), is_planned: true }));
    Err(NotOpened { error, checked })
}

fn open_own(
    workflow: &Workflow,
    candidates: &Candidates,
    checked: &Checked,
    plan: &mut Plan,
    (worker, judge): (&str, Judge),
    kind: &MlKind,
) -> Result<(Program, Vec<ChosenModel>), Diagnostics> {
    let is_own = |stage: &Stage| stage.worker == worker;
    let has = |id: &str| plan.stages.iter().any(|stage| stage.operator == *id && is_own(stage));
    let bound = checked.open(|part| match part {
        Part::Source(source) => has(&source.id),
        Part::Sink(sink) | Part::GroundTruth(sink) => has(&sink.id),
        // Stage by stage, each with its own variant.
        Part::Operator(_) => false,
    })?;
    if judge == Judge::Elsewhere {
        checked.compare(&bound)?;
    }
    let models = choose_backends(workflow, candidates, plan, &BTreeMap::new(), kind, is_own)?;
    let step = |stage: &Stage| if is_own(stage) { Step::Open } else { Step::Check };
    Ok((program(workflow, bound, plan.clone(), step)?, models))
}

/// A workflow and a plan for it, checked with the variants that the plan names.
fn checked(
    workflow: &Workflow,
    candidates: &Candidates,
    plan: &Plan,
    kind: &MlKind,
) -> Result<Checked, Diagnostics> {
    let used = |operator: &str, candidate: &Candidate| uses(plan, operator, candidate);
    let pruned = choice::without_obstacles(workflow, candidates, used, |_| {});
    bind::check(&pruned, &registry_with(kind.clone()), |id| choice_of(plan, id))
}

/// Judges a workflow for workers of other machines, with a plan or the default plan: looks into the files that were sent with it, and
/// leaves to the workers what lies there. A source or ground truth with an absolute path lies on the worker that has it; so
/// may the model of a manifest.
///
/// # Errors
/// Everything that is wrong with the files, the types and the plan, as far as that is known here; see [`Sent::load`].
pub fn prepare_elsewhere(
    sent: &Sent<'_>,
    plan: Option<Plan>,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    let workflow = sent.load(listener)?;
    let candidates = sent.candidates(&workflow)?;
    let is_planned = plan.is_some();
    let mut plan = match plan {
        Some(plan) => plan,
        None => default_plan(&workflow, &choice::choose(&workflow, &candidates, &[])?),
    };
    stand_ins::place(&mut plan, &workflow, &candidates)?;
    let kind = MlKind::default();
    let checked = checked(&workflow, &candidates, &plan, &kind)?;
    let bound = checked.open(sent::opens)?;
    compare_models(&workflow, &candidates, &plan, &kind)?;
    let program = program(&workflow, bound, plan, |_| Step::Check)?;
    Ok(Prepared { workflow, program, models: Vec::new(), is_planned })
}

/// Whether a source reads a file of the worker that has it, and not one that is sent with the workflow.
pub fn is_of_worker(source: &Source) -> bool {
    let path = source.options.get("path").and_then(|path| path.as_str());
    path.is_some_and(|path| Path::new(path).is_absolute())
}

/// Compares the manifests of models whose files are here with these.
fn compare_models(
    workflow: &Workflow,
    candidates: &Candidates,
    plan: &Plan,
    kind: &MlKind,
) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    for (operator, list) in candidates {
        for candidate in list.iter().filter(|one| one.bytes.is_some() && uses(plan, operator, one)) {
            if let Err(found) = kind.blueprint(&workflow.resolve(&candidate.written)) {
                errors.append(ModelError::collect(found));
            }
        }
    }
    errors.into_result(())
}

/// Reads a plan and checks it against its workflow and the models that there are.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_plan(file: &Path, workflow: &Workflow, candidates: &Candidates) -> Result<Plan, Diagnostics> {
    let file = PlanFile::load(file)?;
    let mut findings = file.validate_against(workflow);
    if findings.iter().any(|finding| finding.code == "E0411") {
        return Err(findings); // of another workflow, or another state of it: variants too
    }
    for (index, stage) in file.plan.stages.iter().enumerate() {
        let (Some(variant), Some(list)) = (&stage.variant, candidates.get(&stage.operator)) else { continue };
        if list.iter().any(|candidate| candidate.manifest.id == **variant || candidate.written == *variant) {
            continue;
        }
        let ids = list.iter().map(|candidate| candidate.manifest.id.value.as_str());
        findings.push(
            Diagnostic::error("E0412", format!("`{}` has no variant `{variant}`", stage.operator))
                .at(file.tree().span_at(&[Key("stages"), Index(index), Key("variant")]))
                .with_help(suggestion(variant, ids, "variants")),
        );
    }
    findings.into_result(file.plan)
}

/// Checks that a plan gives what its workflow would give in one stage an operator; loads no models.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check_plan(workflow: &Workflow, mut plan: Plan) -> Result<(), Diagnostics> {
    let candidates = choice::candidates(workflow)?;
    stand_ins::place(&mut plan, workflow, &candidates)?;
    let used = |operator: &str, candidate: &Candidate| uses(&plan, operator, candidate);
    let pruned = choice::without_obstacles(workflow, &candidates, used, |_| {});
    let bound = bind_workflow(&pruned, &registry(), |id| choice_of(&plan, id))?;
    program(workflow, bound, plan, |_| Step::Open).map(drop)
}

/// The same without a look at any file but manifests.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check_plan_alone(workflow: &Workflow, mut plan: Plan) -> Result<(), Diagnostics> {
    let candidates = choice::candidates(workflow)?;
    stand_ins::place(&mut plan, workflow, &candidates)?;
    let checked = checked(workflow, &candidates, &plan, &MlKind::default())?;
    program(workflow, checked.bound().clone(), plan, |_| Step::Check).map(drop)
}

fn uses(plan: &Plan, operator: &str, candidate: &Candidate) -> bool {
    let named = |variant: &String| candidate.manifest.id == **variant || candidate.written == *variant;
    plan.stages.iter().any(|stage| stage.operator == operator && stage.variant.as_ref().is_some_and(named))
}

fn choice_of(plan: &Plan, operator: &str) -> Choice {
    let stage = plan.stages.iter().find(|stage| stage.operator == operator);
    stage.map_or_else(Choice::default, stage_choice)
}

fn stage_choice(stage: &Stage) -> Choice {
    Choice { variant: stage.variant.clone(), backend: stage.backend.clone() }
}

/// Gives the edges of a plan the freshness that the workflow wants, where the plan says nothing.
fn add_freshness(workflow: &Workflow, plan: &mut Plan) {
    let stages = &plan.stages;
    for edge in plan.edges.iter_mut().filter(|edge| edge.freshness.is_none()) {
        let to = stages.iter().find(|stage| stage.id == edge.to);
        edge.freshness = to.and_then(|to| freshness(workflow, &to.operator, edge.input as usize));
    }
}

fn freshness(workflow: &Workflow, to: &str, port: usize) -> Option<tidemill_spec::plan::Freshness> {
    let operator = workflow.operators.iter().find(|operator| operator.id == *to);
    let sink = workflow.sinks.iter().find(|sink| sink.id == *to);
    let input = operator.and_then(|operator| operator.inputs.get(port)).or(sink.map(|sink| &sink.input));
    input.and_then(|input| input.freshness)
}

/// Loads every model, so that a bad one is found before anything else is done, and writes the backend that runs it into
/// the plan. The run takes the models that were loaded here.
fn choose_backends(
    workflow: &Workflow,
    candidates: &Candidates,
    plan: &mut Plan,
    reasons: &BTreeMap<String, Chosen>,
    kind: &MlKind,
    is_loaded: impl Fn(&Stage) -> bool,
) -> Result<Vec<ChosenModel>, Diagnostics> {
    let directory = &workflow.directory.0;
    let mut lines = Vec::new();
    for stage in plan.stages.iter_mut().filter(|stage| is_loaded(stage)) {
        let (Some(variant), Some(list)) = (&stage.variant, candidates.get(&stage.operator)) else { continue };
        let candidate = list.iter().find(|c| c.manifest.id == **variant || c.written == *variant);
        let Some(candidate) = candidate else { continue };
        let operator = workflow.operators.iter().find(|operator| operator.id == *stage.operator);
        let asked = match (&stage.backend, operator.and_then(|operator| operator.backend.as_ref())) {
            (Some(backend), _) => backend.clone(),
            (None, Some(backend)) => backend.value.0.clone(),
            (None, None) => BackendChoice::AUTO.to_owned(),
        };
        let blueprint = kind.blueprint(&workflow.resolve(&candidate.written)).map_err(ModelError::collect)?;
        let choice = kind.load(&blueprint, &asked, directory).map_err(ModelError::into_diagnostics)?;
        let backend_reason = match &choice.reason {
            Reason::Asked => "as asked".to_owned(),
            Reason::OnlyOne => "the only one here".to_owned(),
            Reason::Probed(probes) | Reason::Remembered(probes) => {
                let times = probes.iter().map(|p| format!("{} {:.2} ms", p.backend, p.median_us / 1e3));
                times.collect::<Vec<_>>().join(", ")
            }
        };
        let why = reasons.get(&stage.operator).map_or("as planned", |chosen| chosen.why.as_str());
        lines.push(ChosenModel {
            stage: stage.id.clone(),
            variant: candidate.manifest.id.value.clone(),
            why: why.to_owned(),
            backend: choice.backend.clone(),
            backend_why: backend_reason,
        });
        stage.backend = Some(choice.backend);
    }
    Ok(lines)
}

fn program(
    workflow: &Workflow,
    bound: BoundWorkflow,
    plan: Plan,
    step: impl Fn(&Stage) -> Step,
) -> Result<Program, Diagnostics> {
    let mut operators = BTreeMap::new();
    let mut errors = Diagnostics::new();
    for stage in plan.stages.iter().filter(|stage| bound.operators.contains_key(&stage.operator)) {
        match bound.bind_operator(&stage.operator, &stage_choice(stage), step(stage)) {
            Ok(operator) => drop(operators.insert(stage.id.clone(), operator)),
            Err(found) => errors.append(found),
        }
    }
    let on_panic = workflow.operators.iter().map(|operator| {
        let reaction = match operator.on_panic {
            workflow::OnPanic::Stop => OnPanic::Stop,
            workflow::OnPanic::Restart => OnPanic::Restart,
        };
        (operator.id.value.clone(), reaction)
    });
    let on_panic = on_panic.collect();
    let when_cut = workflow.when_cut();
    let program = Program { plan, sources: bound.sources, operators, sinks: bound.sinks, on_panic, when_cut };
    if !errors.has_errors()
        && let Err(error) = program.check_spread().and_then(|()| program.check_edges())
    {
        errors.push(Diagnostic::error("E0417", error.to_string()));
    }
    errors.into_result(program)
}

#[cfg(test)]
mod tests;
