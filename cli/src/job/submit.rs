//! `tidemill job submit`: gathers the files of a job, sends them, and queues it.
use super::{naming, queue};
use crate::answer;
use crate::arguments::{OutputForm, SubmitJobArguments};
use crate::cluster::{ask, client, json, send};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{BundleFile, JobSubmission, JobView};
use tidemill_cluster::blobs::digest_of_file;
use tidemill_cluster::bundle::{self, Gathered};
use tidemill_spec::job::aggregation::By;
use tidemill_spec::job::{JobFile, JobKind, JobSpec, is_name};
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};

/// Name of the result of a `profile`.
const PROFILE: &str = "profile.yaml";
/// Names of the results of a `train`; it leaves those that its model has.
const TRAINED: [&str; 4] = ["report.json", "weights.json", "model.onnx", "model.yaml"];

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Kind::Configuration, text.into())
}

/// Queues a job.
pub(crate) fn submit(arguments: &SubmitJobArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (spec, folder) = spec_of(arguments)?;
    let mut gathered = gather(&spec, &folder)?;
    if let Some(file) = &arguments.file {
        of_training(&spec, file, &mut gathered)?;
    }
    if spec.kind == JobKind::Command {
        let travels: Vec<String> = gathered.submission.files.iter().map(|file| file.path.clone()).collect();
        let hints = naming::hints(&arguments.command, &travels, &folder);
        hints.iter().for_each(|hint| terminal.warning(hint));
    }
    let client = client(&arguments.asked.of)?;
    send(&client, &gathered.files, terminal)?;
    let job: JobView = ask(client.post("/v1/jobs", &gathered.submission))?;
    if let Some(obstacle) = &job.obstacle {
        terminal.warning(&format!("job {} waits, because no worker can take it now: {obstacle}", job.job));
    }
    if arguments.follow {
        terminal.note(&format!("job {} is {}", job.job, job.state));
        return queue::follow(&client, &job.job, arguments.asked.output);
    }
    match arguments.asked.output {
        OutputForm::Json => json("job", &job)?,
        OutputForm::Table => writeln!(answer::out(), "{}", job.job)?,
    }
    Ok(Exit::Success)
}

/// The job of a file or of a command, with the options of the command line, and the folder that its paths begin in.
fn spec_of(arguments: &SubmitJobArguments) -> anyhow::Result<(JobSpec, PathBuf)> {
    let (mut spec, folder) = match &arguments.file {
        Some(file) => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            (JobFile::load(file)?.job, folder.unwrap_or(Path::new(".")).to_owned())
        }
        None => {
            let name = naming::name_of(&arguments.command);
            (JobSpec::of_command(&name, arguments.command.iter().cloned()), PathBuf::from("."))
        }
    };
    if let Some(name) = &arguments.name {
        if !is_name(name) {
            let help = "write lower-case letters, digits and `-`, with a letter first";
            return Err(wrong(format!("`{name}` is not a name for a job")).with_help(help).into());
        }
        spec.name = name.as_str().into();
    }
    if let Some(gang) = arguments.gang {
        spec.gang = gang.into();
    }
    if let Some(cores) = arguments.cores {
        spec.resources.cores = cores.into();
    }
    if let Some(memory) = arguments.memory {
        spec.resources.memory = Bytes(memory).into();
    }
    if let Some(device) = &arguments.device {
        spec.resources.device = Some(device.as_str().into());
    }
    if let Some(within) = arguments.checkpoint_within {
        let nanoseconds = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        spec.checkpoint_within = TimeSpan(nanoseconds).into();
    }
    spec.preemptible &= !arguments.not_preemptible;
    spec.files.extend(arguments.files.iter().map(|path| Located::from(path.as_str())));
    spec.results.extend(arguments.results.iter().map(|path| Located::from(path.as_str())));
    spec.check().into_result(())?;
    Ok((spec, folder))
}

/// A submission, and where its files are here, by digest.
struct Sent {
    submission: JobSubmission,
    files: BTreeMap<String, PathBuf>,
}

fn gather(spec: &JobSpec, folder: &Path) -> anyhow::Result<Sent> {
    let mut sent = Sent { submission: submission(spec), files: BTreeMap::new() };
    if let Some(workflow) = &spec.workflow {
        let path = folder.join(&workflow.value);
        let gathered = bundle::gather(&path).map_err(|error| wrong(error.to_string()))?;
        of_workflow(spec, &gathered, &path, &mut sent)?;
    }
    let mut paths = BTreeSet::new();
    let of_train = spec.train.iter().flat_map(|train| std::iter::once(&train.dataset).chain(&train.from));
    for path in spec.files.iter().chain(of_train) {
        all_at(folder, Path::new(&path.value), &mut paths)?;
    }
    for path in spec.train.iter().flat_map(|train| crate::train::files_of(train, folder)) {
        all_at(folder, &path, &mut paths)?;
    }
    // A program of the job is one of its files.
    let program = spec.command.first().filter(|program| program.contains('/') && !program.starts_with('/'));
    if let Some(program) = program {
        all_at(folder, Path::new(&program.value), &mut paths)?;
    }
    for path in paths {
        let at = folder.join(&path);
        let (digest, bytes) = digest_of_file(&at).map_err(|error| wrong(error.to_string()))?;
        let name =
            path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/");
        sent.submission.files.push(BundleFile { path: name, digest: digest.clone(), bytes });
        sent.files.insert(digest, at);
    }
    Ok(sent)
}

/// The files at a path in a folder.
fn all_at(folder: &Path, path: &Path, into: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let path: PathBuf =
        path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect();
    let at = folder.join(&path);
    let failed = |error: std::io::Error| {
        wrong(format!("{}: {error}", at.display())).with_help("name files and folders beside the job file")
    };
    if fs::metadata(&at).map_err(failed)?.is_dir() {
        for entry in fs::read_dir(&at).map_err(failed)? {
            all_at(folder, &path.join(entry.map_err(failed)?.file_name()), into)?;
        }
    } else {
        into.insert(path);
    }
    Ok(())
}

fn submission(spec: &JobSpec) -> JobSubmission {
    let texts = |all: &[Located<String>]| all.iter().map(|one| one.value.clone()).collect();
    JobSubmission {
        name: spec.name.value.clone(),
        kind: spec.kind,
        command: texts(&spec.command),
        gang: spec.gang.value,
        cores: spec.resources.cores.value,
        memory_bytes: spec.resources.memory.value.0,
        device: spec.resources.device.as_ref().map(|device| device.value.clone()),
        preemptible: spec.preemptible,
        checkpoint_within_milliseconds: spec.checkpoint_within.value.0.div_ceil(1_000_000),
        signal: spec.signal,
        environment: spec
            .environment
            .iter()
            .map(|(name, value)| (name.clone(), value.value.clone()))
            .collect(),
        files: Vec::new(),
        results: texts(&spec.results),
        survive: spec.train.as_ref().map_or(0, |train| train.survive.value),
    }
}

/// Adds what a `train` needs beside its dataset: its own file, with the variables that it names.
fn of_training(spec: &JobSpec, file: &Path, sent: &mut Sent) -> anyhow::Result<()> {
    if spec.kind != JobKind::Train {
        return Ok(());
    }
    let aggregation = spec.train.as_ref().map(|train| &train.aggregation);
    if let Some(own) =
        aggregation.filter(|own| own.by != By::Ranks && own.at.is_none() && spec.gang.value > 1)
    {
        let help = "write `aggregation: {by: shared, at: tcp://HOST:7500, token: {secret_file: FILE}}`";
        let text = "the ranks of a job are on several machines, and must know that of the aggregators";
        return Err(wrong(text.to_owned()).at(own.span.clone()).with_help(help).into());
    }
    let variables = bundle::variables_of(file).map_err(|error| wrong(error.to_string()))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (digest, bytes) = digest_of_file(file).map_err(|error| wrong(error.to_string()))?;
    let submission = &mut sent.submission;
    submission.environment.extend(variables);
    submission.command = ["tidemill", "train", name.as_str(), "--out", "."].map(str::to_owned).to_vec();
    submission.results.extend(TRAINED.map(str::to_owned));
    if !submission.files.iter().any(|of| of.path == name) {
        submission.files.push(BundleFile { path: name, digest: digest.clone(), bytes });
        sent.files.insert(digest, file.to_owned());
    }
    Ok(())
}

/// Adds what a `profile` or a `backfill` of a workflow needs.
fn of_workflow(spec: &JobSpec, gathered: &Gathered, path: &Path, sent: &mut Sent) -> anyhow::Result<()> {
    let workflow = &gathered.bundle.workflow;
    let submission = &mut sent.submission;
    submission.files.extend(gathered.bundle.files.iter().cloned());
    sent.files.extend(gathered.files.clone());
    submission.environment.extend(gathered.bundle.variables.clone());
    let verb = match spec.kind {
        JobKind::Profile => "profile",
        _ => "run",
    };
    submission.command = vec!["tidemill".to_owned(), verb.to_owned(), workflow.clone()];
    submission.command.extend(spec.arguments.iter().map(|one| one.value.clone()));
    if spec.kind == JobKind::Profile {
        submission.command.extend(["--out".to_owned(), ".".to_owned()]);
        submission.results.push(PROFILE.to_owned());
        return Ok(());
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let value =
        tidemill_spec::yaml::to_json(&text).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let folder = Path::new(workflow).parent().unwrap_or(Path::new(""));
    for written in sinks(&value) {
        let name = folder.join(written).display().to_string();
        if !submission.results.contains(&name) {
            submission.results.push(name);
        }
    }
    Ok(())
}

/// Relative paths of the files that the sinks of a workflow write.
fn sinks(workflow: &Value) -> Vec<&str> {
    let sinks = workflow.get("sinks").and_then(Value::as_array).into_iter().flatten();
    let paths = sinks.filter_map(|sink| sink.pointer("/options/path")?.as_str());
    paths.filter(|path| !path.is_empty() && Path::new(path).is_relative() && !path.contains("..")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_backfill_are_the_files_of_its_sinks() {
        let text = "sinks: [{options: {path: out/a.csv}}, {options: {path: /abs.csv}}, {options: {url: x}}]";
        let value = tidemill_spec::yaml::to_json(text).unwrap();
        assert_eq!(sinks(&value), ["out/a.csv"]);
    }
}
