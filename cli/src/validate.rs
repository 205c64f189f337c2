//! `tidemill validate`: is a file right?
use crate::arguments::{OutputForm, ValidateArguments};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::json;
use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use tidemill_app::choice;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::{Scope, check, check_plan, load, load_plan, streams};
use tidemill_app::resumption::check_sources;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::{load_manifest, location};
use tidemill_operators::bind::{BoundWorkflow, Unopened};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::job::JobFile;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::profile::ProfileFile;
use tidemill_spec::variables::environment;
use tidemill_spec::workflow::Workflow;
use tidemill_spec::workflow_test::WorkflowTests;
use tidemill_spec::yaml;

/// The kind of a file, by its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Workflow,
    Plan,
    Infrastructure,
    Model,
    Profile,
    Test,
    Job,
}

impl FileKind {
    fn name(self) -> &'static str {
        match self {
            FileKind::Workflow => "workflow",
            FileKind::Plan => "plan",
            FileKind::Infrastructure => "infrastructure",
            FileKind::Model => "model",
            FileKind::Profile => "profile",
            FileKind::Test => "test file",
            FileKind::Job => "job file",
        }
    }

    /// Keys that only this kind has, the most distinctive first.
    fn keys(self) -> &'static [&'static str] {
        match self {
            FileKind::Workflow => &["sources", "sinks"],
            FileKind::Plan => &["stages", "classes"],
            FileKind::Infrastructure => &["tiers"],
            FileKind::Model => &["sha256", "backends", "licence"],
            FileKind::Profile => &["services", "machines", "messages"],
            FileKind::Test => &["tests"],
            FileKind::Job => &["job"],
        }
    }
}

/// Checks all files; 78 if one is wrong.
pub(crate) fn validate(arguments: &ValidateArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut kinds: Vec<(PathBuf, Result<FileKind, Diagnostics>)> = Vec::new();
    for file in &arguments.files {
        kinds.push((file.clone(), kind_of(file)));
    }
    let workflows: Vec<&Path> = kinds
        .iter()
        .filter(|(_, kind)| matches!(kind, Ok(FileKind::Workflow)))
        .map(|(file, _)| file.as_path())
        .collect();
    let mut wrong = Diagnostics::new();
    let (mut listed, mut any_wrong) = (Vec::new(), false);
    let mut out = crate::answer::out();
    for (file, kind) in &kinds {
        let heard = WarningKeeper::new(terminal);
        let result = match kind {
            Ok(kind) => {
                let looks = !arguments.without_files;
                check_file(file, *kind, &workflows, looks, &heard).map(|found| (*kind, found))
            }
            Err(findings) => Err(findings.clone()),
        };
        let mut told = heard.warnings.into_inner();
        match (result, arguments.output) {
            (Ok((kind, Right { summary, unopened })), OutputForm::Table) => {
                unopened.iter().for_each(|one| terminal.note(&one.text));
                writeln!(out, "{}: {} ok{summary}", file.display(), kind.name())?;
            }
            (Ok((kind, Right { unopened, .. })), OutputForm::Json) => {
                let file = file.display().to_string();
                let mut document = json!({"file": file, "kind": kind.name(), "ok": true, "findings": told});
                if arguments.without_files {
                    document["unopened"] = json!(unopened);
                }
                listed.push(document);
            }
            (Err(findings), form) => {
                told.extend(findings.iter().cloned());
                listed.push(json!({"file": file.display().to_string(), "ok": false, "findings": told}));
                any_wrong = true;
                if form == OutputForm::Table {
                    wrong.append(findings);
                }
            }
        }
    }
    if arguments.output == OutputForm::Json {
        serde_json::to_writer_pretty(&mut out, &json!({"version": 1, "files": listed}))?;
        writeln!(out)?;
    } else if any_wrong {
        terminal.findings(&wrong);
    }
    Ok(if any_wrong { Exit::Configuration } else { Exit::Success })
}

fn kind_of(file: &Path) -> Result<FileKind, Diagnostics> {
    let source = yaml::read(file)?;
    let tree = yaml::parse(&source)?;
    // An infrastructure may have `sources` too: where they are.
    let all = [
        FileKind::Infrastructure,
        FileKind::Workflow,
        FileKind::Plan,
        FileKind::Model,
        FileKind::Profile,
        FileKind::Test,
        FileKind::Job,
    ];
    // Without a distinctive key it is taken for a workflow, whose errors then say what is missing.
    let has = |kind: &FileKind| kind.keys().iter().any(|key| tree.get(key).is_some());
    Ok(all.into_iter().find(has).unwrap_or(FileKind::Workflow))
}

/// Keeps the warnings for the answer; the terminal shows them all the same.
struct WarningKeeper<'a> {
    terminal: &'a Terminal,
    warnings: RefCell<Diagnostics>,
}

impl<'a> WarningKeeper<'a> {
    fn new(terminal: &'a Terminal) -> Self {
        Self { terminal, warnings: RefCell::default() }
    }
}

impl Listener for WarningKeeper<'_> {
    fn note(&self, text: &str) {
        self.terminal.note(text);
    }

    fn warning(&self, text: &str) {
        self.terminal.warning(text);
    }

    fn warnings(&self, findings: &Diagnostics) {
        self.terminal.warnings(findings);
        self.warnings.borrow_mut().extend(findings.iter().cloned());
    }
}

/// The report on a correct file.
#[derive(Default)]
struct Right {
    summary: String,
    /// Files that were not opened.
    unopened: Vec<Unopened>,
}

impl From<String> for Right {
    fn from(summary: String) -> Self {
        Self { summary, unopened: Vec::new() }
    }
}

/// `looks`: at data and models too.
fn check_file(
    file: &Path,
    kind: FileKind,
    workflows: &[&Path],
    looks: bool,
    listener: &dyn Listener,
) -> Result<Right, Diagnostics> {
    match kind {
        FileKind::Workflow => check_workflow(file, looks, listener),
        FileKind::Plan => check_plan_file(file, workflows, looks).map(Right::from),
        FileKind::Profile => check_profile(file, workflows, listener).map(Right::from),
        FileKind::Infrastructure => Infrastructure::load(file).map(|_| Right::default()),
        FileKind::Model => check_model(file, looks).map(Right::from),
        FileKind::Job => JobFile::load(file).map(|_| Right::default()),
        FileKind::Test => WorkflowTests::load(file).map(|tests| count_of(tests.tests.len()).into()),
    }
}

fn check_workflow(file: &Path, looks: bool, listener: &dyn Listener) -> Result<Right, Diagnostics> {
    let scope = scope(looks);
    let workflow = load(file, &environment, scope, listener)?;
    let (bound, unopened) = check(&workflow, scope, |skipped| listener.skipped(&skipped))?;
    check_streams(&workflow, &bound, listener)?;
    let what = match unopened.iter().any(|one| one.hides_types) {
        true => "; judged in part",
        false if !unopened.is_empty() => "; files not checked",
        false => "",
    };
    Ok(Right { summary: summary_of(&workflow, what), unopened })
}

fn count_of(tests: usize) -> String {
    format!(" ({tests} test{}; `tidemill test` runs them)", if tests == 1 { "" } else { "s" })
}

fn scope(looks: bool) -> Scope<'static> {
    if looks { Scope::Files } else { Scope::Manifests }
}

fn check_streams(
    workflow: &Workflow,
    bound: &BoundWorkflow,
    listener: &dyn Listener,
) -> Result<(), Diagnostics> {
    for stream in streams(&bound.sources) {
        listener.note(&format!("{stream}: its content is checked when the run starts"));
    }
    match workflow.checkpoint.state {
        Some(_) => check_sources(workflow, &bound.sources),
        None => Ok(()),
    }
}

fn summary_of(workflow: &Workflow, what: &str) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!(
        " ({}, {}, {}{what})",
        count(workflow.sources.len(), "source"),
        count(workflow.operators.len(), "operator"),
        count(workflow.sinks.len(), "sink")
    )
}

fn check_plan_file(file: &Path, workflows: &[&Path], looks: bool) -> Result<String, Diagnostics> {
    let plan = PlanFile::load(file)?.plan;
    for workflow in workflows {
        let Ok(workflow) = Workflow::load(workflow) else { continue };
        // With one workflow it is clear which one is meant, whatever its name.
        if workflow.name == *plan.workflow.name || workflows.len() == 1 {
            let candidates = choice::candidates(&workflow)?;
            let plan = load_plan(file, &workflow, &candidates)?;
            check_plan(&workflow, plan, scope(looks))?;
            return Ok(format!(" (for the workflow `{}`)", workflow.name));
        }
    }
    Ok(format!(" (alone; name its workflow `{}` too for a check against it)", plan.workflow.name))
}

fn check_profile(file: &Path, workflows: &[&Path], listener: &dyn Listener) -> Result<String, Diagnostics> {
    let file = ProfileFile::load(file)?;
    let name = &file.profile.workflow.name;
    for workflow in workflows {
        let Ok(workflow) = Workflow::load(workflow) else { continue };
        if workflow.name == name.as_str() {
            let found = file.validate_against(&workflow);
            let warnings = found.clone();
            found.into_result(())?;
            listener.warnings(&warnings);
            return Ok(format!(" (of the workflow `{name}`)"));
        }
    }
    Ok(format!(" (alone; name its workflow `{name}` too for a check against it)"))
}

fn check_model(file: &Path, looks: bool) -> Result<String, Diagnostics> {
    let manifest = load_manifest(file)?;
    if !looks {
        return Ok(format!(" ({}; its files were not checked)", manifest.id));
    }
    if let Some(command) = location::command(&manifest)
        && location::bytes(&manifest, file).is_none()
    {
        return Ok(format!(
            " ({}; its files were not compared: not {}, {command})",
            manifest.id,
            location::obtained(&manifest).unwrap_or("here")
        ));
    }
    Blueprint::check(manifest, file)
        .map(|blueprint| format!(" ({})", blueprint.manifest.id))
        .map_err(ModelError::collect)
}
