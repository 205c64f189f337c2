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
use tidemill_app::preparation::kinds;
use tidemill_app::sent::normal;
use tidemill_deploy::deployment::Deployment;
use tidemill_deploy::{DeployError, Files, NetworkMode, Request, Target};
use tidemill_inference::backend::onnxruntime;
use tidemill_spec::backend::runtime;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::{PlanFile, Stage};
use tidemill_spec::workflow::Workflow;

/// Writes the files, and prints their names.
pub(crate) fn deploy(arguments: &DeployArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    fits_target(arguments)?;
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
        Some(path) => workflow(arguments, &path, &plan, terminal)?.map(|workflow| (workflow, path)),
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
    request.kinds = kinds().clone();
    request.elastic = !arguments.no_elastic;
    request.services = tidemill_service::registered().iter().map(|service| service.needs).collect();
    match &arguments.image {
        Some(image) => request.image.clone_from(image),
        None => has_backends(&plan.plan.stages, &request.image)?,
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
    for (sink, path) in tidemill_deploy::unwritable(&request) {
        terminal.note(&format!(
            "sink `{sink}` writes to {path}, where a deployed worker cannot write: use a path below {}, \
             which stays, or a relative path, which is in the folder of the run",
            tidemill_deploy::RESULTS_FOLDER
        ));
    }
    for (source, address) in tidemill_deploy::unheard(&request) {
        terminal.note(&format!(
            "source `{source}` listens at {address}, which only its container reaches: write the address \
             0.0.0.0, and Compose publishes its port"
        ));
    }
    for kind in tidemill_deploy::lost_when_replanned(&request).map_err(failed)? {
        terminal.note(&format!(
            "a later plan of the controller would not use a device of the kind `{kind}`: its machine must have a worker of the plan, and be \
             the only one of its type, with one such device"
        ));
    }
    for text in tidemill_deploy::devices(&request) {
        terminal.note(&text);
    }
    let files = tidemill_deploy::deploy(&request).map_err(failed)?;
    is_free(arguments, &files)?;
    for (path, text) in files.iter() {
        write(&arguments.out.join(path), text).map_err(|error| {
            unwritable_folder("the deployment", &arguments.out, &error, "tidemill deploy PLAN --out DIR")
        })?;
    }
    for path in remove_outdated(&arguments.out, request.target, &files).map_err(|error| {
        unwritable_folder("the deployment", &arguments.out, &error, "tidemill deploy PLAN --out DIR")
    })? {
        terminal.note(&format!(
            "removed {path} of an earlier plan; containers that were started from it run until you end them"
        ));
    }
    tell(arguments, &files)?;
    Ok(Exit::Success)
}

/// The image of this version has the built-in backend alone: containers of it would start, and their run would not.
fn has_backends(stages: &[Stage], image: &str) -> Result<(), Failure> {
    let of = |stage: &Stage| stage.backend.clone().filter(|backend| runtime(backend) == onnxruntime::NAME);
    let missing = stages.iter().find_map(|stage| Some((stage, of(stage)?)));
    let Some((stage, backend)) = missing else { return Ok(()) };
    let message = format!(
        "`{}` of the plan runs on the backend {backend}, and the image {image} has no ONNX Runtime",
        stage.operator
    );
    if backend != onnxruntime::NAME {
        return Err(Failure::new(Kind::Configuration, message).with_help(format!(
            "name an image of yours, based on {image}, with a libonnxruntime.so that has this provider and with what it \
             needs: `--image IMAGE`"
        )));
    }
    Err(Failure::new(Kind::Configuration, message).with_help(format!(
        "name an image that has it: `--image {image}-onnxruntime`, which `scripts/image.sh --onnxruntime` \
         builds; or plan with a profile of the backend rten"
    )))
}

/// Removes files of workers that an earlier plan had: `kubectl apply` would start all of them again. Those of Compose stay, their containers
/// are known by their labels. What was not written by this program is left alone.
fn remove_outdated(out: &Path, target: Target, files: &Files) -> std::io::Result<Vec<String>> {
    let end = match target {
        Target::Compose => return Ok(Vec::new()),
        Target::Kubernetes => "yaml",
        Target::Systemd => "service",
    };
    let mut removed = Vec::new();
    for folder in std::fs::read_dir(out)?.flatten().filter(|entry| entry.path().is_dir()) {
        let name = folder.file_name().to_string_lossy().into_owned();
        if target == Target::Kubernetes && name != "kubernetes" {
            continue;
        }
        for entry in std::fs::read_dir(folder.path())?.flatten() {
            let (file, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let known = format!("{name}/{file}");
            let is_own =
                || std::fs::read_to_string(&path).is_ok_and(|text| tidemill_deploy::is_generated(&text));
            let is_kind = path.extension().is_some_and(|found| found == end);
            if is_kind && files.get(&known).is_none() && is_own() {
                std::fs::remove_file(&path)?;
                removed.push(known);
            }
        }
    }
    removed.sort();
    Ok(removed)
}

/// Rejects arguments without an effect on a target.
fn fits_target(arguments: &DeployArguments) -> Result<(), Failure> {
    let text = match arguments.target {
        TargetChoice::Kubernetes if arguments.first_port.is_some() => {
            "`--first-port` is for ports of machines; in a cluster each pod has its own address"
        }
        TargetChoice::Kubernetes if arguments.network.is_some() => {
            "`--network` is for machines; in a cluster each pod has its own address"
        }
        TargetChoice::Kubernetes if arguments.id.is_some() => {
            "`--id` distinguishes deployments of a container engine; in a cluster each has its own namespace"
        }
        TargetChoice::Systemd if arguments.id.is_some() => {
            "`--id` distinguishes deployments of a container engine; services of systemd use none"
        }
        _ => return Ok(()),
    };
    Err(Failure::new(Kind::Usage, text).with_help("leave it out"))
}

fn target(choice: TargetChoice) -> Target {
    match choice {
        TargetChoice::Compose => Target::Compose,
        TargetChoice::Kubernetes => Target::Kubernetes,
        TargetChoice::Systemd => Target::Systemd,
    }
}

/// Returns the named file, else the one beside the plan.
fn chosen(named: Option<&Path>, plan: &Path, beside: &str) -> Option<PathBuf> {
    let there = || Some(plan.with_file_name(beside)).filter(|path| path.is_file());
    named.map(Path::to_owned).or_else(there)
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    Ok(tidemill_spec::yaml::read(path)?.text().to_owned())
}

/// Returns the workflow of the plan. One that only lies beside it may be another, so it is reported.
fn workflow(
    arguments: &DeployArguments,
    path: &Path,
    plan: &PlanFile,
    terminal: &Terminal,
) -> anyhow::Result<Option<Workflow>> {
    let workflow = Workflow::load(path)?;
    let wanted = &plan.plan.workflow.name;
    if arguments.workflow.is_none() && workflow.name.value != *wanted {
        terminal.note(&format!(
            "`workflow.yaml` beside the plan is `{}`, but the plan is for `{wanted}`: name that workflow with `--workflow`; without it `tidemill up` \
             starts controller and workers and submits no run",
            workflow.name
        ));
        return Ok(None);
    }
    plan.validate_against(&workflow).into_result(())?;
    Ok(Some(workflow))
}

/// A path without symbolic links, as far as it is there; the rest is made later.
fn real(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    let there = |one: &Path| Some((one.canonicalize().ok()?, whole.strip_prefix(one).ok()?.to_owned()));
    let found = whole.ancestors().find_map(there).map(|(found, rest)| normal(&found.join(rest)));
    Ok(found.unwrap_or(whole))
}

/// Returns the relative path from a folder, which need not exist, to a file. A link is not followed: files beside it belong to it.
fn relative(folder: &Path, file: &Path) -> Result<String, Failure> {
    let place = |file: &Path| {
        let whole = std::path::absolute(file)?;
        match (whole.parent(), whole.file_name()) {
            (Some(folder), Some(name)) => Ok(real(folder)?.join(name)),
            _ => real(&whole),
        }
    };
    let plain = |path: &Path, found: std::io::Result<PathBuf>| -> Result<Vec<String>, Failure> {
        let found =
            found.map_err(|error| Failure::new(Kind::Unavailable, format!("{}: {error}", path.display())))?;
        let names = found.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        });
        Ok(names.collect())
    };
    let (from, to) = (plain(folder, real(folder))?, plain(file, place(file))?);
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
        _ if is_deployment => format!("{} contains a deployment already", folder.display()),
        Some(other) => format!("{} contains other files: `{other}`", folder.display()),
        None => format!("{} is not empty", folder.display()),
    };
    Err(Failure::new(Kind::Configuration, text)
        .with_help("name another folder, or replace the files of the same names with `--force`")
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
            format!("the next commands are in {}", arguments.out.join("README.md").display())
        }
    };
    writeln!(out, "\n{next}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::plan::Plan;

    #[test]
    fn ways_from_a_folder() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to)).unwrap();
        assert_eq!(way("/a/out", "/a/workflow.yaml"), "../workflow.yaml");
        assert_eq!(way("/a/out", "/a/out/workflow.yaml"), "workflow.yaml");
        assert_eq!(way("/a/b/../out", "/c/./d/../workflow.yaml"), "../../c/workflow.yaml");
        assert_eq!(way("out", "examples/vqa/workflow.yaml"), "../examples/vqa/workflow.yaml");
    }

    #[test]
    fn images_of_this_version_have_no_library_and_none_has_a_card() {
        let text = "version: 1\nworkflow: {name: w}\nworkers: [{id: here, tier: here, worker_type: here}]\n\
                    stages: [{id: see, operator: see, variant: m, backend: ort, worker: here}]\n\
                    classes: [{id: 0, share: 1.0, route: {see: see}}]\n";
        let refused = |backend: &str| {
            let plan = Plan::parse(&text.replace("ort,", &format!("{backend},")), "plan.yaml").unwrap();
            has_backends(&plan.stages, "tidemill:1").err().map(|failure| failure.to_string())
        };
        assert_eq!(refused("rten"), None);
        let told = refused("ort").unwrap();
        assert!(
            told.contains("runs on the backend ort, and the image tidemill:1 has no ONNX Runtime"),
            "{told}"
        );
        assert!(refused("ort:cuda").unwrap().contains("runs on the backend ort:cuda"));
    }

    /// Who reads the deployment is where the links lead.
    #[test]
    fn ways_through_links_lead_to_the_file() {
        let place = tempfile::tempdir().unwrap();
        let (deep, plans) = (place.path().join("a/b/c"), place.path().join("plans"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::create_dir_all(&plans).unwrap();
        std::fs::write(plans.join("workflow.yaml"), "").unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&deep, &link).unwrap();
        let way = relative(&link.join("out"), &plans.join("workflow.yaml")).unwrap();
        assert_eq!(way, "../../../../plans/workflow.yaml");
        std::fs::create_dir(link.join("out")).unwrap();
        assert!(deep.join("out").join(&way).is_file(), "{way}");
        assert_eq!(relative(&link.join("out"), &link.join("workflow.yaml")).unwrap(), "../workflow.yaml");
    }

    #[test]
    fn files_of_workers_that_are_gone_go_and_those_of_somebody_stay() {
        let out = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| super::write(&out.path().join(path), text).unwrap();
        let made = "# Worker x (edge) of v; made by `tidemill deploy`, which overwrites changes.\n";
        write("kubernetes/40-worker-x.yaml", made);
        write("kubernetes/50-mine.yaml", "kind: Service\n");
        write("edge/tidemill-worker-x.service", made);
        let none = Files::default();
        assert!(remove_outdated(out.path(), Target::Compose, &none).unwrap().is_empty());
        assert_eq!(
            remove_outdated(out.path(), Target::Kubernetes, &none).unwrap(),
            ["kubernetes/40-worker-x.yaml"]
        );
        assert!(out.path().join("kubernetes/50-mine.yaml").exists());
        assert_eq!(
            remove_outdated(out.path(), Target::Systemd, &none).unwrap(),
            ["edge/tidemill-worker-x.service"]
        );
    }
}
