//! `tidemill deploy`: the files that deploy a plan.
mod identity;
mod tree;

pub(crate) use identity::parse as parse_id;

use crate::answer;
use crate::arguments::{DeployArguments, NetworkChoice, OutputForm, TargetChoice};
use crate::exit::Exit;
use crate::manual::unwritable_folder;
use crate::terminal::Terminal;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_deploy::deployment::Deployment;
use tidemill_deploy::{DeployError, Files, NetworkMode, Request, Target};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::workflow::Workflow;

/// Writes the files, and tells what was written.
pub(crate) fn deploy(arguments: &DeployArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let plan_text = text_of(&arguments.plan)?;
    let plan = PlanFile::load(&arguments.plan)?;
    let infrastructure =
        match chosen(arguments.infrastructure.as_deref(), &arguments.plan, "infrastructure.yaml") {
            Some(path) => Some((Infrastructure::load(&path)?, text_of(&path)?)),
            None => {
                terminal.note(
                    "without an infrastructure (`--infra`) there are no limits of processors and memory",
                );
                None
            }
        };
    let workflow = match chosen(arguments.workflow.as_deref(), &arguments.plan, "workflow.yaml") {
        Some(path) => workflow(arguments, &path, &plan)?.map(|workflow| (workflow, path)),
        None => {
            terminal.note("without a workflow (`--workflow`) `tidemill up` starts controller and workers and submits no run");
            None
        }
    };
    let from = |path: &Path| relative(&arguments.out, path);
    let mut request = Request::new(&plan, &plan_text);
    request.infrastructure =
        infrastructure.as_ref().map(|(infrastructure, text)| (infrastructure, text.as_str()));
    request.workflow = workflow.as_ref().map(|(workflow, _)| workflow);
    request.workflow_path = workflow.as_ref().map(|(_, path)| from(path)).transpose()?;
    request.profiles = arguments.profiles.iter().map(|path| from(path)).collect::<Result<_, _>>()?;
    request.target = target(arguments.target);
    request.controller.clone_from(&arguments.controller);
    request.network = arguments.network.map(|network| match network {
        NetworkChoice::Bridge => NetworkMode::Bridge,
        NetworkChoice::Host => NetworkMode::Host,
    });
    request.first_port = arguments.first_port;
    if request.target == Target::Kubernetes && request.first_port.is_some() {
        let text =
            "`--first-port` numbers ports of machines, and in a cluster each pod has an address of its own";
        return Err(Failure::new(Kind::Usage, text).with_help("leave it out").into());
    }
    if let Some(image) = &arguments.image {
        request.image.clone_from(image);
    }
    if request.target == Target::Compose {
        let before = identity::before(&arguments.out)?;
        request.former = before.as_ref().map(Deployment::places).unwrap_or_default();
        request.id = Some(identity::choose(arguments.id.as_deref(), before.as_ref())?);
    }
    if let Some(text) =
        request.workflow.and_then(|workflow| tidemill_deploy::elastic_elsewhere(workflow, request.target))
    {
        terminal.note(&text);
    }
    for (sink, path) in request.workflow.map(tidemill_deploy::unwritable).unwrap_or_default() {
        terminal.note(&format!(
            "sink `{sink}` writes to {path}, where a deployed worker cannot write: a path beneath {} is kept, a relative one is in the folder \
             of the run",
            tidemill_deploy::RESULTS_FOLDER
        ));
    }
    for (source, address) in tidemill_deploy::unheard(&request) {
        terminal.note(&format!(
            "source `{source}` listens at {address}, which nobody outside of its container reaches: write the address 0.0.0.0; with Compose its \
             port is published then"
        ));
    }
    let files = tidemill_deploy::deploy(&request).map_err(failed)?;
    is_free(arguments, &files)?;
    for (path, text) in files.iter() {
        write(&arguments.out.join(path), text).map_err(|error| {
            unwritable_folder("the deployment", &arguments.out, &error, "tidemill deploy PLAN --out DIR")
        })?;
    }
    tell(arguments, &files)?;
    Ok(Exit::Success)
}

fn target(choice: TargetChoice) -> Target {
    match choice {
        TargetChoice::Compose => Target::Compose,
        TargetChoice::Kubernetes => Target::Kubernetes,
        TargetChoice::Systemd => Target::Systemd,
    }
}

/// What was named, else what lies beside the plan.
fn chosen(named: Option<&Path>, plan: &Path, beside: &str) -> Option<PathBuf> {
    let there = || Some(plan.with_file_name(beside)).filter(|path| path.is_file());
    named.map(Path::to_owned).or_else(there)
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    Ok(tidemill_spec::yaml::read(path)?.text().to_owned())
}

/// The workflow of the plan. One that only lies beside it may be another.
fn workflow(arguments: &DeployArguments, path: &Path, plan: &PlanFile) -> anyhow::Result<Option<Workflow>> {
    let workflow = Workflow::load(path)?;
    if arguments.workflow.is_none() && workflow.name.value != plan.plan.workflow.name {
        return Ok(None);
    }
    plan.validate_against(&workflow).into_result(())?;
    Ok(Some(workflow))
}

/// The way from a folder that need not be there to a file.
fn relative(folder: &Path, file: &Path) -> Result<String, Failure> {
    let plain = |path: &Path| -> Result<Vec<String>, Failure> {
        let whole = std::path::absolute(path)
            .map_err(|error| Failure::new(Kind::Unavailable, format!("{}: {error}", path.display())))?;
        let mut parts = Vec::new();
        for part in whole.components() {
            match part {
                Component::ParentDir => drop(parts.pop()),
                Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
                _ => {}
            }
        }
        Ok(parts)
    };
    let (from, to) = (plain(folder)?, plain(file)?);
    let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[same..].iter().map(|_| "..".to_owned());
    Ok(up.chain(to[same..].iter().cloned()).collect::<Vec<_>>().join("/"))
}

fn failed(error: DeployError) -> anyhow::Error {
    let help = error.help();
    match error {
        DeployError::Plan(found) => found.into(),
        other => {
            let kind = match &other {
                DeployError::Yaml(_) | DeployError::Json(_) => Kind::Defect,
                _ => Kind::Configuration,
            };
            let failure = Failure::new(kind, other.to_string());
            match help {
                Some(help) => failure.with_help(help).into(),
                None => failure.into(),
            }
        }
    }
}

/// A folder with other things in it is left alone.
fn is_free(arguments: &DeployArguments, files: &Files) -> anyhow::Result<()> {
    let folder = &arguments.out;
    if arguments.force || !folder.exists() {
        return Ok(());
    }
    let entries = std::fs::read_dir(folder).map_err(|error| {
        unwritable_folder("the deployment", folder, &error, "tidemill deploy PLAN --out DIR")
    })?;
    let names: BTreeSet<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let own: BTreeSet<&str> = files.iter().filter_map(|(path, _)| path.split('/').next()).collect();
    // Besides its files it has what `up` has left there: tokens, notes of an upgrade.
    let is_deployment = own.iter().all(|name| names.contains(*name));
    let other = names.iter().find(|name| !own.contains(name.as_str()));
    let text = match other {
        _ if is_deployment => format!("there is a deployment in {} already", folder.display()),
        Some(other) => format!("{} has other things in it: `{other}`", folder.display()),
        None => format!("{} is not empty", folder.display()),
    };
    Err(Failure::new(Kind::Configuration, text)
        .with_help("name another folder, or write over the files of the same names with `--force`")
        .into())
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

fn tell(arguments: &DeployArguments, files: &Files) -> anyhow::Result<()> {
    let mut out = answer::out();
    let folder = arguments.out.display().to_string();
    if arguments.output == OutputForm::Json {
        let paths: Vec<&str> = files.iter().map(|(path, _)| path).collect();
        let target = match arguments.target {
            TargetChoice::Compose => "compose",
            TargetChoice::Kubernetes => "kubernetes",
            TargetChoice::Systemd => "systemd",
        };
        let told = json!({"version": 1, "ok": true, "folder": folder, "target": target, "files": paths});
        return Ok(writeln!(out, "{told:#}")?);
    }
    writeln!(out, "{folder}/")?;
    tree::write(&mut out, files.iter().map(|(path, _)| path))?;
    let next = match arguments.target {
        TargetChoice::Compose => format!("start it: tidemill up {folder}"),
        TargetChoice::Kubernetes | TargetChoice::Systemd => {
            format!("what to type next stands in {}", arguments.out.join("README.md").display())
        }
    };
    writeln!(out, "\n{next}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::relative;
    use std::path::Path;

    #[test]
    fn ways_from_a_folder() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to)).unwrap();
        assert_eq!(way("/a/out", "/a/workflow.yaml"), "../workflow.yaml");
        assert_eq!(way("/a/out", "/a/out/workflow.yaml"), "workflow.yaml");
        assert_eq!(way("/a/b/../out", "/c/./d/../workflow.yaml"), "../../c/workflow.yaml");
        assert_eq!(way("out", "examples/vqa/workflow.yaml"), "../examples/vqa/workflow.yaml");
    }
}
