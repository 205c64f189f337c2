//! Measuring: from the command line to the profiler, and what it says meanwhile.
use super::{WORKER, written};
use crate::arguments::{OutputForm, ProfileArguments};
use crate::choice::{self, Candidates};
use crate::exit::{Exit, Failure};
use crate::figures::seconds;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output_file::OutputFile;
use crate::preparation::{load, registry};
use crate::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidemill_inference::backend::{backend, library};
use tidemill_profiler::child::Program;
use tidemill_profiler::subject::{Model, Subject};
use tidemill_profiler::tasks::Host;
use tidemill_profiler::{Finished, Options, ProfileError, Stage};
use tidemill_spec::diagnostic::suggestion;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::workflow::{BackendChoice, Workflow};

/// Seconds between plain lines.
const PLAIN_EVERY: f64 = 5.0;
/// Folder for states in the folder of the profile.
const STATE: &str = "measured";

/// Measures and writes the profile.
pub(super) fn measure(arguments: &ProfileArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (Some(workflow_file), Some(infra)) = (&arguments.workflow, &arguments.infra) else {
        return Ok(Exit::Usage); // the command line asks for both
    };
    let interrupt = Interrupt::listen()?;
    let workflow = load(workflow_file, terminal)?;
    let infrastructure = Infrastructure::load(infra)?;
    let factors = factors(arguments, &infrastructure)?;
    let candidates = choice::candidates(&workflow)?;
    let mut skipped = Vec::new();
    let models = models(&workflow, &candidates, &arguments.backend, &mut skipped)?;
    for line in &skipped {
        terminal.note(line);
    }
    let file = profile_file(arguments.out.as_deref(), workflow_file);
    let target = OutputFile::create(&file)?;
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let state = folder.join(STATE);
    if arguments.fresh && state.is_dir() {
        std::fs::remove_dir_all(&state).map_err(|error| unwritable(&state, &error))?;
    }
    let machine = Machine::look();
    let busy = load_average().filter(|load| *load > 0.5 * machine.cores as f64);
    if let Some(load) = busy {
        terminal.warning(&format!(
            "this machine is busy (load average {load}, {} processors): times will be too long",
            machine.cores
        ));
    }
    let options = Options {
        samples: arguments.samples as usize,
        budget: arguments.budget,
        factors,
        cache: library::cache_folder().unwrap_or_else(|| folder.clone()).join("outputs"),
        state,
        program: Program {
            path: std::env::current_exe()?,
            arguments: vec![WORKER.to_owned(), "--log-level".to_owned(), "error".to_owned()],
        },
        host: Host { cpu: machine.processor, cores: machine.cores, memory: machine.memory, busy },
    };
    let subject = Subject { file: workflow_file.clone(), workflow, registry: registry(), models };
    interrupt.is_watched();
    let mut line = Line::new(*terminal, arguments.output);
    let result = tidemill_profiler::profile(
        &subject,
        &infrastructure,
        &options,
        &mut |stage| line.show(&stage),
        &|| interrupt.is_wanted(),
    );
    line.finish();
    let finished = match result {
        Ok(finished) => finished,
        Err(ProfileError::Interrupted) => {
            terminal.note(&ProfileError::Interrupted.to_string());
            return Ok(Exit::Interrupted);
        }
        Err(ProfileError::Files(found)) => return Err(found.into()),
        Err(error @ ProfileError::NoRecords(_)) => {
            return Err(Failure::new(Exit::Configuration, error.to_string()).into());
        }
        Err(error) => return Err(Failure::new(Exit::Unavailable, error.to_string()).into()),
    };
    let text = written(&finished.profile)?;
    target.write(|out| out.write_all(text.as_bytes()))?;
    for note in &finished.notes {
        terminal.note(&format!("not measured: {note}"));
    }
    tell(&finished, &file, &skipped, arguments.output)?;
    Ok(Exit::Success)
}

/// What came out, on stdout.
fn tell(finished: &Finished, file: &Path, skipped: &[String], output: OutputForm) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let profile = &finished.profile;
    let rows = profile.accuracy.as_ref().map_or(0, |accuracy| accuracy.end_to_end.len());
    match output {
        OutputForm::Table => {
            writeln!(
                out,
                "{}: {} times of {} operators on {} types of workers, {} of them with a mean known to 5 %",
                file.display(),
                finished.figures,
                operators(finished),
                profile.machines.len(),
                finished.certain
            )?;
            writeln!(
                out,
                "{} message sizes, {} accuracies; `tidemill profile show {}` prints them",
                profile.messages.len(),
                rows,
                file.display()
            )?;
        }
        OutputForm::Json => {
            let document = json!({
                "version": 1, "profile": file, "digest": profile.digest(), "figures": finished.figures,
                "certain": finished.certain, "services": profile.services.len(), "messages": profile.messages.len(),
                "accuracies": rows, "not_measured": finished.notes, "skipped": skipped,
            });
            writeln!(out, "{document:#}")?;
        }
    }
    out.flush()
}

/// How many programs wanted a processor in the last minute.
fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().next()?.parse().ok()
}

fn operators(finished: &Finished) -> usize {
    let mut ids: Vec<&str> =
        finished.profile.services.iter().map(|service| service.operator.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// The file that `--out` means.
fn profile_file(out: Option<&Path>, workflow: &Path) -> PathBuf {
    match out {
        Some(file) if file.extension().is_some_and(|end| end == "yaml" || end == "yml") => file.to_owned(),
        Some(folder) => folder.join("profile.yaml"),
        None => workflow.with_file_name("profile").join("profile.yaml"),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Unavailable, format!("`{}` cannot be removed: {error}", path.display()))
        .with_help("choose another folder with `--out`, or allow writing there")
}

/// The stated factors, all of which must be of types that there are.
fn factors(
    arguments: &ProfileArguments,
    infrastructure: &Infrastructure,
) -> Result<BTreeMap<String, f64>, Failure> {
    let types: Vec<&str> = infrastructure
        .tiers
        .iter()
        .flat_map(|tier| tier.workers.iter().map(|worker| worker.worker_type.value.as_str()))
        .collect();
    for (name, _) in &arguments.factor {
        if !types.contains(&name.as_str()) {
            let message = format!("--factor names `{name}`, which is no type of worker");
            let help = suggestion(name, types.iter().copied(), "types of workers");
            return Err(Failure::new(Exit::Usage, message).with_help(help));
        }
    }
    Ok(arguments.factor.iter().cloned().collect())
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
            let allowed = |name: &String| match operator.backend.as_ref().map(|choice| choice.value) {
                Some(BackendChoice::Rten) => name == "rten",
                Some(BackendChoice::Ort) => name == "ort",
                Some(BackendChoice::Auto) | None => true,
            };
            let backends: Vec<String> = candidate
                .manifest
                .backends
                .iter()
                .map(ToString::to_string)
                .filter(|name| allowed(name) && (wanted.is_empty() || wanted.contains(name)))
                .filter(|name| backend(name, directory).is_ok())
                .collect();
            if backends.is_empty() {
                skipped.push(format!("{id}: {name} is left out: no backend that is wanted runs it here"));
                continue;
            }
            let (written, manifest) = (candidate.written.clone(), candidate.manifest.clone());
            models.push(Model { written, manifest, backends });
        }
        if models.is_empty() {
            let message = format!("none of the models of `{id}` can run here:\n  {}", skipped.join("\n  "));
            return Err(Failure::new(Exit::Configuration, message)
                .with_help("a profile of published figures can be written by hand: see docs/profiling.md"));
        }
        all.insert(id.to_owned(), models);
    }
    Ok(all)
}

/// How far it is, on stderr: a line that is redrawn on a terminal, else a line every few seconds, or JSON.
struct Line {
    bar: Option<ProgressBar>,
    terminal: Terminal,
    output: OutputForm,
    next_plain: f64,
}

impl Line {
    fn new(terminal: Terminal, output: OutputForm) -> Self {
        let bar = (terminal.animates() && output == OutputForm::Table).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, terminal, output, next_plain: 0.0 }
    }

    fn show(&mut self, stage: &Stage) {
        let now = match stage {
            Stage::Outputs { seconds, .. } | Stage::Times { seconds, .. } => *seconds,
        };
        if let Some(bar) = &self.bar {
            bar.set_message(text(stage));
            bar.tick();
        } else if now >= self.next_plain {
            self.next_plain = now + PLAIN_EVERY;
            match self.output {
                OutputForm::Table => self.terminal.note(&text(stage)),
                OutputForm::Json => self.terminal.note(&event(stage).to_string()),
            }
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn text(stage: &Stage) -> String {
    match stage {
        Stage::Outputs { done, of, .. } => {
            format!("computing outputs: {done} of {of} combinations of models")
        }
        Stage::Times { certain, of, left, what, .. } => {
            format!("measuring: {certain} of {of} times are certain, about {} left ({what})", seconds(*left))
        }
    }
}

fn event(stage: &Stage) -> serde_json::Value {
    match stage {
        Stage::Outputs { done, of, seconds } => {
            json!({"event": "outputs", "done": done, "of": of, "seconds": seconds})
        }
        Stage::Times { certain, of, left, what, seconds } => {
            json!({"event": "times", "certain": certain, "of": of, "left": left, "what": what, "seconds": seconds})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_is_a_folder_or_a_file() {
        let workflow = Path::new("a/workflow.yaml");
        assert_eq!(profile_file(None, workflow), Path::new("a/profile/profile.yaml"));
        assert_eq!(profile_file(Some(Path::new("b")), workflow), Path::new("b/profile.yaml"));
        assert_eq!(profile_file(Some(Path::new("b/c.yaml")), workflow), Path::new("b/c.yaml"));
    }

    #[test]
    fn progress_is_text_or_data() {
        let stage = Stage::Times { certain: 3, of: 9, left: 61.0, what: "speech".to_owned(), seconds: 2.0 };
        assert_eq!(text(&stage), "measuring: 3 of 9 times are certain, about 61.0 s left (speech)");
        assert_eq!(event(&stage)["of"], 9);
    }
}
