//! From files to a program that can start: everything is checked here, before anything is read.
use crate::choice::{self, Candidate, Candidates, Chosen, Setting, Skipped};
use crate::default_plan::default_plan;
use crate::listener::Listener;
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_engine::{OnPanic, Program};
use tidemill_inference::MlKind;
use tidemill_inference::choice::Reason;
use tidemill_inference::error::ModelError;
use tidemill_operators::api::BoundSource;
use tidemill_operators::bind::{BoundWorkflow, Choice, bind_workflow};
use tidemill_operators::registry::Registry;
use tidemill_spec::backend::BackendChoice;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::plan::{Plan, PlanFile, Stage};
use tidemill_spec::value::Step::{Index, Key};
use tidemill_spec::workflow::{self, Workflow};

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
    match Workflow::load_or_rest(file) {
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
            let more = check(&rest, |_| {}).err().unwrap_or_default();
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
    let pruned = choice::without_obstacles(workflow, &candidates, |_, _| false, tell);
    bind_workflow(&pruned, &registry(), |_| Choice::default())
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
    let workflow = load(workflow_file, listener)?;
    let candidates = choice::candidates(&workflow)?;
    let (mut plan, reasons) = match plan_file {
        Some(file) => (load_plan(file, &workflow, &candidates)?, BTreeMap::new()),
        None => {
            let chosen = choice::choose(&workflow, &candidates, settings)?;
            (default_plan(&workflow, &chosen), chosen)
        }
    };
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
    for edge in &mut plan.edges {
        let operator =
            |id: &str| plan.stages.iter().find(|stage| stage.id == id).map(|stage| stage.operator.as_str());
        if edge.freshness.is_none() {
            edge.freshness = operator(&edge.to).and_then(|to| freshness(&workflow, to, edge.input as usize));
        }
    }
    let program = program(&workflow, bound, plan)?;
    Ok(Prepared { workflow, program, models, is_planned: plan_file.is_some() })
}

/// The same for a worker's process, with a plan that was checked: loads the models of its stages alone.
///
/// # Errors
/// As [`prepare`]; the files have changed since.
pub fn prepare_worker(
    workflow_file: &Path,
    mut plan: Plan,
    worker: &str,
    listener: &dyn Listener,
) -> anyhow::Result<Prepared> {
    let workflow = load(workflow_file, listener)?;
    let candidates = choice::candidates(&workflow)?;
    let used = |operator: &str, candidate: &Candidate| uses(&plan, operator, candidate);
    let pruned = choice::without_obstacles(&workflow, &candidates, used, |_| {});
    let kind = MlKind::default();
    let bound = bind_workflow(&pruned, &registry_with(kind.clone()), |id| choice_of(&plan, id))?;
    let is_own = |stage: &Stage| stage.worker == worker;
    let models = choose_backends(&workflow, &candidates, &mut plan, &BTreeMap::new(), &kind, is_own)?;
    let program = program(&workflow, bound, plan)?;
    Ok(Prepared { workflow, program, models, is_planned: true })
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
pub fn check_plan(workflow: &Workflow, plan: Plan) -> Result<(), Diagnostics> {
    let candidates = choice::candidates(workflow)?;
    let used = |operator: &str, candidate: &Candidate| uses(&plan, operator, candidate);
    let pruned = choice::without_obstacles(workflow, &candidates, used, |_| {});
    let bound = bind_workflow(&pruned, &registry(), |id| choice_of(&plan, id))?;
    program(workflow, bound, plan).map(drop)
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

fn program(workflow: &Workflow, bound: BoundWorkflow, plan: Plan) -> Result<Program, Diagnostics> {
    let mut operators = BTreeMap::new();
    let mut errors = Diagnostics::new();
    for stage in plan.stages.iter().filter(|stage| bound.operators.contains_key(&stage.operator)) {
        match bound.bind_operator(&stage.operator, &stage_choice(stage)) {
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
    let program = Program { plan, sources: bound.sources, operators, sinks: bound.sinks, on_panic };
    if !errors.has_errors()
        && let Err(error) = program.check_spread()
    {
        errors.push(Diagnostic::error("E0417", error.to_string()));
    }
    errors.into_result(program)
}
