//! Inputs of any measurement: the workflow with the models that can run here, and this machine.
use super::WORKER;
use crate::arguments::DeviceCertificateArguments;
use crate::device::certificate;
use crate::terminal::Terminal;
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_app::choice::{self, Candidates};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::machine::Machine;
use tidemill_app::preparation::{Scope, load, registry};
use tidemill_inference::backend::backend;
use tidemill_profiler::child::Program;
use tidemill_profiler::subject::{Model, Subject};
use tidemill_profiler::tasks::Host;
use tidemill_remote::own_program;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::variables::environment;
use tidemill_spec::workflow::Workflow;

/// The workflow with the models that can run here with one of these backends (none: any), and a line for each that is
/// left out.
pub(super) fn subject(
    workflow_file: &Path,
    backends: &[String],
    terminal: &Terminal,
) -> anyhow::Result<(Subject, Vec<String>)> {
    let workflow = load(workflow_file, &environment, Scope::Files, terminal)?;
    let candidates = choice::candidates(&workflow)?;
    let mut skipped = Vec::new();
    let models = models(&workflow, &candidates, backends, &mut skipped)?;
    Ok((Subject { file: workflow_file.to_owned(), workflow, registry: registry(), models }, skipped))
}

/// This machine; a warning where other programs keep it busy.
pub(super) fn host(terminal: &Terminal) -> Host {
    let machine = Machine::look();
    let busy = load_average().filter(|load| *load > 0.5 * machine.cores as f64);
    if let Some(load) = busy {
        terminal.warning(&format!(
            "this machine is busy (load average {load}, {} processors): times will be too long",
            machine.cores
        ));
    }
    Host { cpu: machine.processor, cores: machine.cores, memory: machine.memory, busy }
}

/// Returns the command that starts a measuring process, with the certificate for devices.
pub(super) fn program(certificate: &DeviceCertificateArguments) -> std::io::Result<Program> {
    let mut arguments = vec![WORKER.to_owned(), "--log-level".to_owned(), "error".to_owned()];
    arguments.extend(certificate::options(certificate));
    Ok(Program { path: std::env::current_exe()?, arguments })
}

/// Returns the number of programs that wanted a processor in the last minute.
fn load_average() -> Option<f64> {
    tidemill_machine::load_average().map(|[minute, ..]| minute)
}

/// The backends of a model to measure: that of its operator, those that are wanted, or all of its manifest. `ort:cuda` runs what
/// the manifest allows for `ort`, but is measured only where it is named.
fn asked(named: Option<&str>, manifest: &Manifest, wanted: &[String]) -> impl Iterator<Item = String> {
    let mut names: Vec<String> = match named {
        Some(named) => vec![named.to_owned()],
        None => manifest.backends.iter().map(ToString::to_string).collect(),
    };
    if named.is_none() {
        let more: Vec<String> = wanted.iter().filter(|name| !names.contains(name)).cloned().collect();
        names.extend(more);
    }
    names.retain(|name| manifest.allows(name) && (wanted.is_empty() || wanted.contains(name)));
    names.into_iter()
}

/// The models that can run here with the backends that are wanted; why others are left out goes to `skipped`.
fn models(
    workflow: &Workflow,
    candidates: &Candidates,
    wanted: &[String],
    skipped: &mut Vec<String>,
) -> Result<BTreeMap<String, Vec<Model>>, Failure> {
    let directory = &workflow.directory.0;
    let mut all = BTreeMap::new();
    for operator in workflow.operators.iter().filter(|operator| !operator.variants.is_empty()) {
        let id = operator.id.value.as_str();
        let mut models = Vec::new();
        for candidate in candidates.get(id).into_iter().flatten() {
            let name = candidate.manifest.id.value.as_str();
            if let Some(obstacle) = &candidate.obstacle {
                skipped.push(format!("{id}: {name} is left out: {obstacle}"));
                continue;
            }
            let mut backends = Vec::new();
            for wanted in asked(operator.named_backend(), &candidate.manifest, wanted) {
                match own_program::of(&wanted) {
                    None if backend(&wanted, directory).is_err() => {}
                    Some(Err(missing)) => {
                        skipped.push(format!("{id}: {name} with {wanted} is left out: {missing}"));
                    }
                    None | Some(Ok(_)) => backends.push(wanted),
                }
            }
            if backends.is_empty() {
                let named: Vec<String> =
                    candidate.manifest.backends.iter().map(ToString::to_string).collect();
                let named = named.join(", ");
                skipped.push(format!(
                    "{id}: {name} is left out: no requested backend runs it here; its manifest names {named}"
                ));
                continue;
            }
            let (written, manifest) = (candidate.written.clone(), candidate.manifest.clone());
            models.push(Model { written, manifest, backends });
        }
        if models.is_empty() {
            let message = format!("no model of `{id}` can run here:\n  {}", skipped.join("\n  "));
            return Err(Failure::new(Kind::Configuration, message)
                .with_help("you can write a profile of published figures by hand: see docs/profiling.md"));
        }
        all.insert(id.to_owned(), models);
    }
    Ok(all)
}
