//! Runs the profiler from the command line, with progress.
use super::{devices, prepare, written};
use crate::arguments::{OutputForm, ProfileArguments};
use crate::device::certificate;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::seconds;
use tidemill_app::listener::Listener;
use tidemill_app::output_file::OutputFile;
use tidemill_inference::backend::library;
use tidemill_profiler::state::StateFolder;
use tidemill_profiler::{Finished, Options, ProfileError, Stage};
use tidemill_spec::diagnostic::suggestion;
use tidemill_spec::infrastructure::Infrastructure;

/// Seconds between plain lines.
const PLAIN_EVERY: f64 = 5.0;
/// Folder for states in the folder of the profile.
const STATE: &str = "measured";
/// Most remaining files that are listed by name.
const MOST_NAMED: usize = 5;

/// Measures and writes the profile.
pub(super) fn measure(arguments: &ProfileArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (Some(workflow_file), Some(infra)) = (&arguments.workflow, &arguments.infra) else {
        return Ok(Exit::Usage); // the command line asks for both
    };
    let interrupt = Interrupt::listen()?;
    let infrastructure = Infrastructure::load(infra)?;
    let factors = factors(arguments, &infrastructure)?;
    certificate::hold(&arguments.device_certificate)?;
    let devices = devices::chosen(&arguments.device, &arguments.backend, &infrastructure, terminal)?;
    let (subject, skipped) = prepare::subject(workflow_file, &arguments.backend, terminal)?;
    for line in &skipped {
        terminal.note(line);
    }
    let file = profile_file(arguments.out.as_deref(), workflow_file);
    let target = OutputFile::create(&file)?;
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let state = folder.join(STATE);
    if arguments.fresh {
        forget(&state, terminal)?;
    }
    let options = Options {
        samples: arguments.samples as usize,
        budget: arguments.budget,
        factors,
        devices,
        cache: library::cache_folder().unwrap_or_else(|| folder.clone()).join("outputs"),
        state,
        program: prepare::program(&arguments.device_certificate)?,
        host: prepare::host(terminal),
    };
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
        Err(error) => return ended(error, kept(arguments.fresh), terminal),
    };
    let text = written(&finished.profile)?;
    target.write(|out| out.write_all(text.as_bytes()))?;
    for note in &finished.notes {
        terminal.note(&format!("not measured: {note}"));
    }
    tell(&finished, &file, &skipped, arguments.output)?;
    Ok(Exit::Success)
}

/// The message about the data kept after an interrupt, and how to continue.
fn kept(fresh: bool) -> &'static str {
    match fresh {
        true => {
            "measurements are saved: the same command without `--fresh` continues (with it, it starts from the beginning)"
        }
        false => "measurements are saved; the same command continues",
    }
}

/// Ends the program after the profiler; `kept`: the message about the data kept after an interrupt.
pub(super) fn ended(error: ProfileError, kept: &str, terminal: &Terminal) -> anyhow::Result<Exit> {
    match error {
        ProfileError::Interrupted => {
            terminal.note(&format!("{error}; {kept}"));
            Ok(Exit::Interrupted)
        }
        ProfileError::Files(found) => Err(found.into()),
        ProfileError::NoRecords(_) | ProfileError::Stream(..) => {
            Err(Failure::new(Kind::Configuration, error.to_string()).into())
        }
        error => Err(Failure::new(Kind::Unavailable, error.to_string()).into()),
    }
}

/// Prints the results to stdout.
fn tell(finished: &Finished, file: &Path, skipped: &[String], output: OutputForm) -> io::Result<()> {
    let mut out = crate::answer::out();
    let profile = &finished.profile;
    let rows = profile.accuracy.as_ref().map_or(0, |accuracy| accuracy.end_to_end.len());
    match output {
        OutputForm::Table => {
            writeln!(
                out,
                "{}: {} times of {} operators on {} types of workers and devices, {} of them with a mean known to 5 %",
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
                "version": 1, "profile": file.display().to_string(), "digest": profile.digest(),
                "figures": finished.figures, "certain": finished.certain, "services": profile.services.len(),
                "messages": profile.messages.len(), "accuracies": rows, "not_measured": finished.notes,
                "skipped": skipped,
            });
            writeln!(out, "{document:#}")?;
        }
    }
    out.flush()
}

fn operators(finished: &Finished) -> usize {
    let mut ids: Vec<&str> =
        finished.profile.services.iter().map(|service| service.operator.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// Resolves the file of `--out`.
fn profile_file(out: Option<&Path>, workflow: &Path) -> PathBuf {
    match out {
        Some(file) if file.extension().is_some_and(|end| end == "yaml" || end == "yml") => file.to_owned(),
        Some(folder) => folder.join("profile.yaml"),
        None => workflow.with_file_name("profile").join("profile.yaml"),
    }
}

/// Discards the measurements in a folder, and reports remaining files.
fn forget(state: &Path, terminal: &Terminal) -> Result<(), Failure> {
    let others = StateFolder::new(state).forget().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot remove earlier measurements: {error}"))
            .with_help("choose another folder with `--out`, or make it writable")
    })?;
    let more = others.len().saturating_sub(MOST_NAMED);
    let named: Vec<&str> = others.iter().take(MOST_NAMED).map(String::as_str).collect();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    if !named.is_empty() {
        terminal.note(&format!(
            "`{}` also contains {}{more}, which Tidemill did not measure and leaves unchanged",
            state.display(),
            named.join(", ")
        ));
    }
    Ok(())
}

/// Returns the stated factors, which must be of existing types.
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
            let message = format!("--factor names `{name}`, which is not a type of worker");
            let help = suggestion(name, types.iter().copied(), "types of workers");
            return Err(Failure::new(Kind::Usage, message).with_help(help));
        }
    }
    Ok(arguments.factor.iter().cloned().collect())
}

/// Progress on stderr: a line that is redrawn on a terminal, else a line every few seconds, or JSON.
pub(super) struct Line {
    bar: Option<ProgressBar>,
    terminal: Terminal,
    output: OutputForm,
    next_plain: f64,
}

impl Line {
    pub(super) fn new(terminal: Terminal, output: OutputForm) -> Self {
        let bar = (terminal.animates() && output == OutputForm::Table).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, terminal, output, next_plain: 0.0 }
    }

    pub(super) fn show(&mut self, stage: &Stage) {
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

    pub(super) fn finish(&self) {
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
            format!("measuring: {certain} of {of} times certain, about {} left ({what})", seconds(*left))
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
        assert_eq!(text(&stage), "measuring: 3 of 9 times certain, about 61.0 s left (speech)");
        assert_eq!(event(&stage)["of"], 9);
    }
}
