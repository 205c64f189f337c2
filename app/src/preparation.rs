//! From files to a program that can start: everything is checked here, before anything is read.
mod scope;

pub use scope::{Judge, Scope};

use crate::by_levels::choose_by_levels;
use crate::choice::{self, Candidate, Candidates, Chosen, Setting, Skipped};
use crate::default_plan::default_plan;
use crate::device_choice::{self, ChosenDevice, Devices};
use crate::failure::Failure;
use crate::listener::Listener;
use crate::models_of_state::keep_models;
use crate::served_by;
use crate::stand_ins;
use crate::state::place::StatePlace;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use tidemill_engine::{
    CPU, EMULATED, ExecutorSpec, OnPanic, PreparedModel, Program, UnknownDevice, factory_of,
};
use tidemill_inference::MlKind;
use tidemill_inference::backend::{self, Registration};
use tidemill_inference::error::ModelError;
use tidemill_operators::api::{BoundSource, OperatorError};
use tidemill_operators::bind::{self, BoundWorkflow, Choice, Part, Unopened};
use tidemill_operators::registry::Registry;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::kinds::KindTable;
use tidemill_spec::plan::{Plan, PlanFile, Stage};
use tidemill_spec::policies::resolve;
use tidemill_spec::value::Step::{Index, Key};
use tidemill_spec::variables::{self, Lookup};
use tidemill_spec::workflow::{self, DeviceChoice, Source, Workflow};

/// All kinds of operators, sources and sinks.
pub fn registry() -> Registry {
    registry_with(MlKind::default())
}

/// Facts about all kinds.
pub fn kinds() -> &'static KindTable {
    static KINDS: LazyLock<KindTable> = LazyLock::new(|| registry().facts());
    &KINDS
}

fn registry_with(models: MlKind) -> Registry {
    let mut registry = Registry::builtin();
    registry.register_operator(models);
    tidemill_live::register(&mut registry);
    #[cfg(feature = "streams")]
    tidemill_mqtt::register(&mut registry);
    #[cfg(feature = "streams")]
    tidemill_postgres_sink::register(&mut registry);
    tidemill_python::register(&mut registry);
    tidemill_python::wrap(&mut registry);
    #[cfg(feature = "streams")]
    tidemill_web::register(&mut registry);
    registry
}

/// A workflow that can start.
pub struct Prepared {
    /// The workflow as its file says it.
    pub workflow: Workflow,
    /// The program for the engine.
    pub program: Program,
    /// Which model each stage runs and why.
    pub models: Vec<ChosenModel>,
    /// Whether a plan was given.
    pub is_planned: bool,
    /// Models whose device an option chose.
    pub chosen_devices: Vec<ChosenDevice>,
}

/// The model of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenModel {
    /// Stage id.
    pub stage: String,
    /// The manifest's id.
    pub variant: String,
    /// The reason for the choice.
    pub why: String,
    /// The backend that runs it.
    pub backend: String,
    /// The reason for the backend.
    pub backend_why: String,
}

impl std::fmt::Display for ChosenModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { stage, variant, why, backend, backend_why } = self;
        write!(f, "{stage}: {variant} ({why}) on {backend} ({backend_why})")
    }
}

/// Codes of findings that hold for a workflow even if some keys were left out.
const INDEPENDENT: &[&str] = &["E0102", "E0103", "E0604", "E0609", "E0610"];

fn device(stage: &Stage) -> &str {
    stage.device.as_deref().unwrap_or(CPU)
}

/// Whether the model of a stage is loaded in the process that runs the stage.
fn loads_here(stage: &Stage) -> bool {
    factory_of(device(stage)).is_ok_and(|factory| factory.loads_here())
}

/// The source of a workflow's plan.
pub enum PlanFrom<'a> {
    /// A file.
    File(&'a Path),
    /// A plan that the caller has read.
    Given(&'a Plan),
    /// No plan: all in one place, with these models or the most accurate ones.
    Settings(&'a [Setting]),
    /// For a run that continues from a state, if there is one in the place or where the workflow says: it keeps its models.
    Continued(&'a [Setting], Option<&'a StatePlace>),
}

impl<'a> PlanFrom<'a> {
    /// The file, where there is one.
    pub fn file_or(file: Option<&'a Path>, otherwise: Self) -> Self {
        file.map_or(otherwise, Self::File)
    }
}

/// Reads and checks a workflow with these variables; warnings go to the listener. Where only keys are unknown or units wrong, what is
/// wrong with the rest in this scope is reported with them.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(
    file: &Path,
    lookup: Lookup<'_>,
    scope: Scope<'_>,
    listener: &dyn Listener,
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
            let more = check(&rest, scope, |_| {}).err().unwrap_or_default();
            found.extend(more.into_iter().filter(|finding| INDEPENDENT.contains(&finding.code)));
            found.sort();
            Err(found)
        }
    }
}

/// Checks the types of a workflow without a plan and without loading its models; with what was not looked at.
///
/// # Errors
/// Everything that is wrong with it, as far as the scope shows it.
pub fn check(
    workflow: &Workflow,
    scope: Scope<'_>,
    tell: impl FnMut(Skipped),
) -> Result<(BoundWorkflow, Vec<Unopened>), Diagnostics> {
    let bind = |workflow: &Workflow, is_here: fn(&Workflow, Part<'_>) -> bool| {
        bind::bind(workflow, &registry(), |_| Choice::default(), |part| is_here(workflow, part))
    };
    let checked = match scope {
        Scope::Elsewhere(sent) => {
            sent.check(workflow)?;
            bind(workflow, |_, _| false)
        }
        Scope::Manifests | Scope::Worker(..) => {
            if let Ok(candidates) = choice::candidates(workflow) {
                stand_ins::check(workflow, &candidates)?;
            }
            bind(workflow, |_, _| false)
        }
        Scope::Files | Scope::Here | Scope::Test => {
            let candidates = choice::candidates(workflow)?;
            stand_ins::check(workflow, &candidates)?;
            bind(&choice::without_obstacles(workflow, &candidates, |_, _| false, tell), opens_here)
        }
    }?;
    served_by::check_workflow(workflow, &checked.0)?;
    Ok(checked)
}

/// Whether a part can be opened in this process: a model whose back end is only on its device cannot.
fn opens_here(workflow: &Workflow, part: Part<'_>) -> bool {
    let Part::Operator(operator) = part else { return true };
    let on_device = operator.device.as_ref().is_some_and(|device| device.0 != DeviceChoice::CPU);
    let is_absent = |known: Registration| {
        operator.named_backend() == Some(known.name)
            && known.is_here.is_some_and(|is_here| !is_here(&workflow.directory.0))
    };
    !(on_device && backend::registered().any(is_absent))
}

/// Returns descriptions, with the source's id, of inputs that cannot be checked before the run.
pub fn streams(sources: &BTreeMap<String, BoundSource>) -> impl Iterator<Item = String> {
    sources.iter().filter_map(|(id, source)| Some(format!("source `{id}` reads {}", source.stream.as_ref()?)))
}

/// Reads a workflow of this machine and prepares all of it to run here.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_here(file: &Path, plan: PlanFrom<'_>, listener: &dyn Listener) -> anyhow::Result<Prepared> {
    prepare_on(file, plan, Devices::default(), listener)
}

/// As [`prepare_here`], with other devices than those of the plan.
///
/// # Errors
/// As [`prepare`]; devices of operators that are not there, or that cannot be emulated.
pub fn prepare_on(
    file: &Path,
    plan: PlanFrom<'_>,
    devices: Devices<'_>,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    let workflow = load(file, &variables::environment, Scope::Here, listener)?;
    prepared(workflow, plan, devices, Scope::Here, listener)
}

/// Makes a program of a workflow and a plan: binds both, opens what the scope says, and has the factories of their devices load the
/// models of the stages that run here.
///
/// # Errors
/// Everything that is wrong with the files, the types or the models; settings that name what is not there. For a worker: the files
/// have changed since they were judged, or lie only here and are not what they were taken for.
pub fn prepare(
    workflow: Workflow,
    plan: PlanFrom<'_>,
    scope: Scope<'_>,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    prepared(workflow, plan, Devices::default(), scope, listener)
}

fn prepared(
    workflow: Workflow,
    plan: PlanFrom<'_>,
    devices: Devices<'_>,
    scope: Scope<'_>,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    let candidates = scope.candidates(&workflow)?;
    let is_planned = matches!(plan, PlanFrom::File(_) | PlanFrom::Given(_));
    if !is_planned && matches!(scope, Scope::Here) {
        devices.need_no_plan(&workflow)?;
    }
    let (mut plan, reasons) = match plan {
        PlanFrom::File(file) => (load_plan(file, &workflow, &candidates)?, BTreeMap::new()),
        PlanFrom::Given(plan) => (plan.clone(), BTreeMap::new()),
        PlanFrom::Settings(settings) => chosen(&workflow, &candidates, settings, None, scope, listener)?,
        PlanFrom::Continued(settings, place) => {
            // A wrong address is reported where the state is opened.
            let place = place.cloned().or_else(|| StatePlace::of_workflow(&workflow)?.ok());
            chosen(&workflow, &candidates, settings, place.as_ref(), scope, listener)?
        }
    };
    let chosen_devices = devices.place(&mut plan, (&workflow, &candidates), is_planned)?;
    let tell = |skipped: Skipped| {
        if !is_planned && matches!(scope, Scope::Here | Scope::Test) {
            listener.skipped(&skipped);
        }
    };
    let (program, models) = bound(&workflow, &candidates, plan, &reasons, scope, tell)?;
    served_by::check_program(&workflow, &program)?;
    Ok(Prepared { workflow, program, models, is_planned, chosen_devices })
}

/// Checks that a plan gives what its workflow would give in one stage an operator; loads no models.
///
/// # Errors
/// Everything that is wrong with it, as far as the scope shows it.
pub fn check_plan(workflow: &Workflow, plan: Plan, scope: Scope<'_>) -> Result<(), Diagnostics> {
    bound(workflow, &scope.candidates(workflow)?, plan, &BTreeMap::new(), scope, |_| {}).map(drop)
}

/// The plan of a workflow that comes without one, and why it has its models.
fn chosen(
    workflow: &Workflow,
    candidates: &Candidates,
    settings: &[Setting],
    place: Option<&StatePlace>,
    scope: Scope<'_>,
    listener: &dyn Listener,
) -> Result<(Plan, BTreeMap<String, Chosen>), Failure> {
    let mut chosen = choice::choose(workflow, candidates, settings)?;
    let is_kept = place.is_some_and(|place| keep_models(place, candidates, settings, &mut chosen));
    if !is_kept && matches!(scope, Scope::Here) {
        choose_by_levels(workflow, candidates, settings, &mut chosen, listener);
    }
    Ok((default_plan(workflow, &chosen), chosen))
}

/// Binds a workflow and a plan, with the models of the stages that run here.
fn bound(
    workflow: &Workflow,
    candidates: &Candidates,
    mut plan: Plan,
    reasons: &BTreeMap<String, Chosen>,
    scope: Scope<'_>,
    tell: impl FnMut(Skipped),
) -> Result<(Program, Vec<ChosenModel>), Diagnostics> {
    stand_ins::place(&mut plan, workflow, candidates)?;
    if plan.policies.is_empty() {
        plan.policies = resolve(workflow, None);
    }
    let used = |operator: &str, candidate: &Candidate| uses(&plan, operator, candidate);
    let pruned = choice::without_obstacles(workflow, candidates, used, tell);
    let kind = MlKind::default();
    let registry = registry_with(kind.clone());
    let opens = |part: Part<'_>| scope.opens(&plan, part);
    let bound = match scope {
        Scope::Worker(_, judge) => {
            let checked = bind::check(&pruned, &registry, |id| choice_of(&plan, id))?;
            let bound = checked.open(opens)?;
            if judge == Judge::Elsewhere {
                checked.compare(&bound)?;
            }
            bound
        }
        _ => bind::bind(&pruned, &registry, |id| choice_of(&plan, id), opens)?.0,
    };
    if let Scope::Elsewhere(_) = scope {
        compare_models(workflow, candidates, &plan, &kind)?;
    }
    if let Scope::Here | Scope::Test = scope {
        add_freshness(workflow, &mut plan);
    }
    program(workflow, bound, plan, reasons, scope)
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
        let place = |key| file.tree().span_at(&[Key("stages"), Index(index), Key(key)]);
        if let Err(error) = factory_of(device(stage)) {
            findings.push(unknown_device(stage, &error).at(place("device")));
        }
        let (Some(variant), Some(list)) = (&stage.variant, candidates.get(&stage.operator)) else { continue };
        if let Some(candidate) = list.iter().find(|candidate| candidate.is_named(Some(variant))) {
            let found = device_choice::unprepared(workflow, stage, candidate);
            findings.extend(found.map(|finding| finding.at(place("sends"))));
            continue;
        }
        let ids = list.iter().map(|candidate| candidate.manifest.id.value.as_str());
        findings.push(
            Diagnostic::error("E0412", format!("`{}` has no variant `{variant}`", stage.operator))
                .at(place("variant"))
                .with_help(suggestion(variant, ids, "variants")),
        );
    }
    findings.into_result(file.plan)
}

/// Returns the finding for a stage on a device without an executor.
fn unknown_device(stage: &Stage, error: &UnknownDevice) -> Diagnostic {
    Diagnostic::error("E0419", format!("stage `{}` cannot run: {error}", stage.id))
        .with_help("remove `device` to compute on the processors of the worker, or name a device of those")
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

/// Binds each stage. The models of those that run here are loaded, so that a bad one is found before anything else is done: the
/// backend that runs it goes into the plan, and the run takes the model.
fn program(
    workflow: &Workflow,
    bound: BoundWorkflow,
    mut plan: Plan,
    reasons: &BTreeMap<String, Chosen>,
    scope: Scope<'_>,
) -> Result<(Program, Vec<ChosenModel>), Diagnostics> {
    let (mut operators, mut models) = (BTreeMap::new(), Vec::new());
    let mut errors = Diagnostics::new();
    let devices = std::mem::take(&mut plan.devices);
    for stage in &mut plan.stages {
        let factory = match factory_of(device(stage)) {
            Ok(factory) => factory,
            Err(error) => {
                errors.push(unknown_device(stage, &error));
                continue;
            }
        };
        if !bound.operators.contains_key(&stage.operator) {
            continue;
        }
        let bind =
            |stage: &Stage| bound.bind_operator(&stage.operator, &stage_choice(stage), scope.step(stage));
        let operator = match bind(stage) {
            Ok(operator) => operator,
            Err(found) => {
                errors.append(found);
                continue;
            }
        };
        let operator = match operator.model.as_ref().filter(|_| scope.runs(stage)) {
            None => operator,
            Some(model) => {
                let prepared = factory.prepare(
                    &ExecutorSpec::of(stage, &operator, (&workflow.name.value, &devices)),
                    &operator.make,
                );
                let PreparedModel { backend, instance } = match prepared {
                    // Its run may have begun, and then continues without the device: the start of the executor decides.
                    Err(error) if error.lost && matches!(scope, Scope::Worker(..)) => {
                        PreparedModel::default()
                    }
                    prepared => prepared.map_err(found_in)?,
                };
                let chosen_there = || (model.backend.clone(), format!("on {}", device(stage)));
                let is_chosen = backend.is_some();
                let (backend, backend_why) =
                    backend.map_or_else(chosen_there, |found| (found.name, found.why));
                let why = reasons.get(&stage.operator).map_or("as planned", |chosen| chosen.why.as_str());
                models.push(ChosenModel {
                    stage: stage.id.clone(),
                    variant: model.variant.clone(),
                    why: why.to_owned(),
                    backend: backend.clone(),
                    backend_why,
                });
                // A server of models is none that a plan could ask for. An emulated device has another than this machine.
                let is_here = factory.scheme() != EMULATED;
                let is_known =
                    || tidemill_inference::backend::registered().any(|known| known.name == backend);
                if is_chosen && is_here && is_known() {
                    stage.backend = Some(backend);
                }
                let mut operator = bind(stage)?;
                instance.into_iter().for_each(|model| operator.give_first(model));
                operator
            }
        };
        operators.insert(stage.id.clone(), operator);
    }
    plan.devices = devices;
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
    errors.into_result((program, models))
}

/// Converts the error of an executor that cannot load a model.
fn found_in(error: OperatorError) -> Diagnostics {
    match error.findings.is_empty() {
        true => Diagnostic::error("E0557", error.message).into(),
        false => error.findings,
    }
}

#[cfg(test)]
mod tests;
