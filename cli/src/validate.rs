//! `tidemill validate`: is a file right?
use crate::arguments::{OutputForm, ValidateArguments};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use tidemill_app::choice;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::{check, check_plan, load, load_plan, streams};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::{load_manifest, location};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::profile::ProfileFile;
use tidemill_spec::workflow::Workflow;
use tidemill_spec::yaml;

/// What a file is, by its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Workflow,
    Plan,
    Infrastructure,
    Model,
    Profile,
}

impl FileKind {
    fn name(self) -> &'static str {
        match self {
            FileKind::Workflow => "workflow",
            FileKind::Plan => "plan",
            FileKind::Infrastructure => "infrastructure",
            FileKind::Model => "model",
            FileKind::Profile => "profile",
        }
    }

    /// Keys that only this kind has, the most telling first.
    fn keys(self) -> &'static [&'static str] {
        match self {
            FileKind::Workflow => &["sources", "sinks"],
            FileKind::Plan => &["stages", "classes"],
            FileKind::Infrastructure => &["tiers"],
            FileKind::Model => &["sha256", "backends", "licence"],
            FileKind::Profile => &["services", "machines", "messages"],
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
        let result = match kind {
            Ok(kind) => check_file(file, *kind, &workflows, terminal).map(|summary| (*kind, summary)),
            Err(findings) => Err(findings.clone()),
        };
        match (result, arguments.output) {
            (Ok((kind, summary)), OutputForm::Table) => {
                writeln!(out, "{}: {} ok{summary}", file.display(), kind.name())?;
            }
            (Ok((kind, _)), OutputForm::Json) => {
                listed.push(json!({"file": file, "kind": kind.name(), "ok": true, "findings": []}));
            }
            (Err(findings), form) => {
                listed.push(json!({"file": file, "ok": false, "findings": findings}));
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
    let all =
        [FileKind::Workflow, FileKind::Plan, FileKind::Infrastructure, FileKind::Model, FileKind::Profile];
    // Without any telling key it is taken for a workflow, whose errors then say what is missing.
    let has = |kind: &FileKind| kind.keys().iter().any(|key| tree.get(key).is_some());
    Ok(all.into_iter().find(has).unwrap_or(FileKind::Workflow))
}

fn check_file(
    file: &Path,
    kind: FileKind,
    workflows: &[&Path],
    terminal: &Terminal,
) -> Result<String, Diagnostics> {
    match kind {
        FileKind::Workflow => {
            let workflow = load(file, terminal)?;
            let bound = check(&workflow, |skipped| terminal.skipped(&skipped))?;
            for stream in streams(&bound.sources) {
                terminal.note(&format!("{stream}: what is in it is checked when the run starts"));
            }
            let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            Ok(format!(
                " ({}, {}, {})",
                count(workflow.sources.len(), "source"),
                count(workflow.operators.len(), "operator"),
                count(workflow.sinks.len(), "sink")
            ))
        }
        FileKind::Plan => {
            let plan = PlanFile::load(file)?.plan;
            for workflow in workflows {
                let Ok(workflow) = Workflow::load(workflow) else { continue };
                // With one workflow it is clear which one is meant, whatever its name.
                if workflow.name == *plan.workflow.name || workflows.len() == 1 {
                    let candidates = choice::candidates(&workflow)?;
                    let plan = load_plan(file, &workflow, &candidates)?;
                    check_plan(&workflow, plan)?;
                    return Ok(format!(" (for the workflow `{}`)", workflow.name));
                }
            }
            Ok(format!(" (alone; name its workflow `{}` too to check it against that)", plan.workflow.name))
        }
        FileKind::Profile => {
            let file = ProfileFile::load(file)?;
            let name = &file.profile.workflow.name;
            for workflow in workflows {
                let Ok(workflow) = Workflow::load(workflow) else { continue };
                if workflow.name == name.as_str() {
                    let found = file.validate_against(&workflow);
                    let warnings = found.clone();
                    found.into_result(())?;
                    terminal.warnings(&warnings);
                    return Ok(format!(" (of the workflow `{name}`)"));
                }
            }
            Ok(format!(" (alone; name its workflow `{name}` too to check it against that)"))
        }
        FileKind::Infrastructure => Infrastructure::load(file).map(|_| String::new()),
        FileKind::Model => {
            let manifest = load_manifest(file)?;
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
    }
}
