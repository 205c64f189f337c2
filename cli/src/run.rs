//! `tidemill run`: everything in one process.
use crate::arguments::{OutputForm, RateChoice, RunArguments};
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::letters::letter_writer;
use crate::metrics::MetricsPort;
use crate::preparation::{Prepared, prepare};
use crate::progress::{Expected, ProgressLine};
use crate::report::RunDocument;
use crate::slo::verdicts;
use crate::terminal::Terminal;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;
use tidemill_engine::{EpochLog, Program, Run, RunError, RunOptions, RunReport};
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks that an interrupted run gets to end in order: a little less than two seconds.
const LOOKS_AFTER_INTERRUPT: u32 = 17;

/// Runs a workflow to its end and reports.
pub(crate) fn run(arguments: &RunArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut prepared = prepare(&arguments.workflow, arguments.plan.as_deref(), &arguments.set, terminal)?;
    if let Some(choice) = arguments.rate {
        for source in prepared.program.sources.values_mut() {
            source.rate_per_second = match choice {
                RateChoice::Max => None,
                RateChoice::PerSecond(rate) => Some(rate),
            };
        }
    }
    let replay = arguments.replay.as_deref().map(|path| read_epoch_log(path, &prepared.program));
    let replay = replay.transpose()?;
    let mut report_file = arguments.report_json.as_deref().map(create).transpose()?;
    let mut epoch_file = arguments.epoch_log.as_deref().map(create).transpose()?;
    let port = arguments.metrics.as_deref().map(MetricsPort::open).transpose()?;
    for line in &prepared.models {
        terminal.note(line);
    }
    let options = RunOptions {
        records: arguments.records,
        duration: arguments.duration,
        letters: letter_writer(&prepared.workflow)?,
        replay,
        keep_epoch_log: epoch_file.is_some(),
        ..RunOptions::default()
    };
    let run = Run::start(prepared.program.clone(), options)
        .map_err(|error| not_started(&error, &prepared.workflow))?;
    interrupt.ends(run.stopper());
    if let Some(port) = port {
        if let Some(address) = port.address() {
            terminal.note(&format!("metrics at http://{address}/metrics"));
        }
        let name = prepared.workflow.name.value.clone();
        port.serve(name, prepared.program.plan.clone(), run.observer())?;
    }
    let expected = Expected::of(&prepared.program, arguments.records, arguments.duration);
    let report = match watch(&run, &interrupt, ProgressLine::new(*terminal, expected)) {
        Err(error) if is_broken_pipe(&error) => return Ok(Exit::Success),
        result => result.map_err(|error| failed(&error, &prepared.workflow))?,
    };
    if let (Some(file), Some(path)) = (&mut epoch_file, &arguments.epoch_log) {
        let written = serde_json::to_writer(&mut *file, &run.epoch_log()).map_err(io::Error::from);
        written.and_then(|()| file.flush()).map_err(|error| unwritten(path, &error))?;
    }
    let verdicts = verdicts(&prepared.workflow.slo, &report, &prepared.program, &run.observer());
    let missed = verdicts.iter().any(|verdict| !verdict.met);
    let document = RunDocument {
        workflow: &prepared.workflow.name.value,
        program: &prepared.program,
        interrupted: interrupt.is_wanted(),
        report: &report,
        slo: &verdicts,
    };
    show(&document, arguments.output, &prepared, terminal)?;
    if let (Some(file), Some(path)) = (&mut report_file, &arguments.report_json) {
        document.write_json(file).and_then(|()| file.flush()).map_err(|error| unwritten(path, &error))?;
    }
    Ok(match (interrupt.is_wanted(), arguments.require_slo && missed) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::No,
        (false, false) => Exit::Success,
    })
}

/// Waits for the end and shows the progress meanwhile.
fn watch(run: &Run, interrupt: &Interrupt, mut line: ProgressLine) -> Result<RunReport, RunError> {
    let mut looks_left = LOOKS_AFTER_INTERRUPT;
    loop {
        if let Some(result) = run.wait_for(LOOK_EVERY) {
            line.finish();
            return result;
        }
        line.show(&run.progress());
        if interrupt.is_wanted() {
            if looks_left == 0 {
                line.finish();
                return Ok(run.report());
            }
            looks_left -= 1;
        }
    }
}

/// The report goes to stdout, unless that belongs to a sink.
fn show(
    document: &RunDocument<'_>,
    form: OutputForm,
    prepared: &Prepared,
    terminal: &Terminal,
) -> io::Result<()> {
    let taken = prepared.program.sinks.values().any(|sink| sink.kind == "stdout");
    if taken && terminal.is_quiet() {
        return Ok(());
    }
    let mut out: Box<dyn Write> = match taken {
        true => Box::new(io::stderr().lock()),
        false => Box::new(io::stdout().lock()),
    };
    match form {
        OutputForm::Table => document.write_table(&mut out)?,
        OutputForm::Json => document.write_json(&mut out)?,
    }
    out.flush()
}

fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    File::create(path).map(BufWriter::new).map_err(|error| {
        let failure =
            Failure::new(Exit::Configuration, format!("`{}` cannot be written: {error}", path.display()));
        failure.with_help(match error.kind() {
            io::ErrorKind::NotFound => "make its folder first, or choose another path",
            io::ErrorKind::PermissionDenied => "allow writing to the folder or choose another path",
            io::ErrorKind::IsADirectory => "this is a folder: write the path of a file",
            _ => "choose another path",
        })
    })
}

/// The run is over, but what it should leave could not be written.
fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Unavailable, format!("`{}` cannot be written: {error}", path.display()))
        .with_help("the run itself is complete; free some space or choose another path, and run again")
}

fn read_epoch_log(path: &Path, program: &Program) -> Result<BTreeMap<String, EpochLog>, Failure> {
    let wrong = |error: String| {
        Failure::new(Exit::Configuration, format!("{} is no epoch log: {error}", path.display()))
            .with_help("`tidemill run --epoch-log FILE` writes one")
    };
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let logs: BTreeMap<String, EpochLog> =
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    // A stage of several partitions has a log for each, `stage#0`, `stage#1`.
    let logged = |stage: &str| {
        logs.keys()
            .any(|key| key.strip_prefix(stage).is_some_and(|rest| rest.is_empty() || rest.starts_with('#')))
    };
    let mut sources =
        program.plan.stages.iter().filter(|stage| program.sources.contains_key(&stage.operator));
    if !sources.all(|stage| logged(&stage.id)) {
        let found: Vec<&str> = logs.keys().map(String::as_str).collect();
        let message = format!(
            "{} is the epoch log of another workflow or plan: its sources are `{}`",
            path.display(),
            found.join("`, `")
        );
        return Err(Failure::new(Exit::Configuration, message)
            .with_help("replay a log that `tidemill run --epoch-log FILE` wrote for this workflow"));
    }
    Ok(logs)
}

/// Before the first record was read: the files or the plan are wrong.
fn not_started(error: &RunError, workflow: &Workflow) -> Failure {
    match error {
        RunError::System(_) => Failure::new(Exit::Unavailable, error.to_string()),
        _ => Failure::new(Exit::Configuration, error.to_string()).at(place(error, workflow)),
    }
}

/// Where the workflow says what failed: the path of a sink, else its id.
fn place(error: &RunError, workflow: &Workflow) -> Span {
    let (RunError::Operator { operator, .. } | RunError::Panic { operator, .. }) = error else {
        return Span::nowhere();
    };
    let ends = workflow.sinks.iter().map(|sink| (&sink.id, Some(&sink.options)));
    let ends = ends.chain(workflow.sources.iter().map(|source| (&source.id, Some(&source.options))));
    let operators = workflow.operators.iter().map(|operator| (&operator.id, None));
    let found = ends.chain(operators).find(|(id, _)| id.value == *operator);
    found.map_or_else(Span::nowhere, |(id, options)| {
        let path = options.and_then(|options| options.get("path"));
        path.map_or_else(|| id.span.clone(), |path| path.span.clone())
    })
}

fn failed(error: &RunError, workflow: &Workflow) -> Failure {
    let kept = "what the last complete checkpoint committed is kept";
    let failure = match error {
        // A source or sink lost its file or its disk.
        RunError::Operator { .. } | RunError::System(_) => {
            Failure::new(Exit::Unavailable, error.to_string()).with_help(kept)
        }
        RunError::Panic { .. } | RunError::Plan(_) => Failure::new(Exit::Bug, error.to_string())
            .with_help(format!("{kept}; `on_panic: restart` goes on after panics")),
    };
    failure.at(place(error, workflow))
}

/// Somebody read enough of what a sink writes to stdout.
fn is_broken_pipe(error: &RunError) -> bool {
    let RunError::Operator { text, .. } = error else { return false };
    text.contains(&io::Error::from(io::ErrorKind::BrokenPipe).to_string()) || text.contains("Broken pipe")
}
