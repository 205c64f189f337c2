//! `tidemill run`: everything in one process.
use crate::answer;
use crate::arguments::{OutputForm, RateChoice, RunArguments};
use crate::emulate::{Account, Emulated};
use crate::epoch_file::{self, EpochFile};
use crate::exit::{Exit, Failure, explain, write_json};
use crate::figures::grouped;
use crate::interrupt::Interrupt;
use crate::letters::{LetterLimit, LetterVerdict, causes, letter_writer, spoilt};
use crate::levels::{self, Origin};
use crate::machine::{self, Usage};
use crate::metrics::MetricsPort;
use crate::open_files;
use crate::output_file::OutputFile;
use crate::preparation::{Prepared, prepare, streams};
use crate::progress::{Expected, ProgressLine};
use crate::report::RunDocument;
use crate::report::page::{End, Page};
use crate::report::records::sample_options;
use crate::report::series::Recorder;
use crate::slo::verdicts;
use crate::slo_watch::{SloWatch, add_windows};
use crate::terminal::Terminal;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::clock::DilatedClock;
use tidemill_engine::{EpochWriter, Observer, Run, RunError, RunOptions, RunReport};
use tidemill_operators::bind::files::check_written;
use tidemill_operators::kind::TypedSinkKind;
use tidemill_operators::sinks::parquet::Parquet;
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks that an interrupted run gets to end in order: about a second.
const LOOKS_AFTER_INTERRUPT: u32 = 9;

/// Runs a workflow to its end and reports.
pub(crate) fn run(arguments: &RunArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut prepared = prepare(&arguments.workflow, arguments.plan.as_deref(), &arguments.set, terminal)?;
    let (slo, rate_of) = levels::settle(&mut prepared, arguments.rate, terminal);
    let beside: Vec<(&Path, &str)> = [
        (&arguments.report, "`--report`"),
        (&arguments.report_json, "`--report-json`"),
        (&arguments.epoch_log, "`--epoch-log`"),
    ]
    .into_iter()
    .filter_map(|(path, who)| Some((path.as_deref()?, who)))
    .collect();
    let read = [
        (&arguments.replay, "`--replay`"),
        (&arguments.plan, "`--plan`"),
        (&arguments.infrastructure, "`--infra`"),
    ];
    let read: Vec<(&Path, &str)> =
        read.into_iter().filter_map(|(path, who)| Some((path.as_deref()?, who))).collect();
    check_written(&prepared.workflow, &prepared.program.sinks, &read, &beside)?;
    let replay = arguments.replay.as_deref().map(|path| epoch_file::read(path, &prepared.program));
    let replay = replay.transpose()?;
    let take = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::create).transpose();
    let page_file = take(&arguments.report)?;
    let report_file = take(&arguments.report_json)?;
    let epoch_file = arguments.epoch_log.as_deref();
    let epoch_file = epoch_file.map(|path| EpochFile::create(path, &prepared.program)).transpose()?;
    let port = arguments.metrics.as_deref().map(MetricsPort::open).transpose()?;
    for line in &prepared.models {
        terminal.note(&line.to_string());
    }
    for stream in streams(&prepared.program.sources) {
        terminal.note(&format!("{stream} until its end"));
    }
    let emulated =
        arguments.emulate.then(|| Emulated::prepare(arguments, &mut prepared, terminal)).transpose()?;
    let mut options = RunOptions {
        records: arguments.records,
        duration: arguments.duration,
        letters: letter_writer(&prepared.workflow)?,
        replay,
        epochs: epoch_file.clone().map(|file| Box::new(file) as Box<dyn EpochWriter>),
        samples: page_file.is_some().then(|| sample_options(&prepared.workflow, &prepared.program)),
        model_copies: arguments.model_copies.map_or_else(
            || {
                if prepared.is_planned {
                    1
                } else {
                    std::thread::available_parallelism().map_or(1, usize::from)
                }
            },
            usize::from,
        ),
        ..RunOptions::default()
    };
    if let Some(emulated) = &emulated {
        options.emulation = Some(emulated.emulation.clone());
        if emulated.dilation.factor != 1.0 {
            options.clock = Arc::new(DilatedClock::new(emulated.dilation.factor));
        }
    }
    let begun = machine::now();
    open_files::reserve(&prepared.program, terminal)?;
    let run = Run::start(prepared.program.clone(), options)
        .map_err(|error| not_started(&error, &prepared.workflow))?;
    interrupt.ends(run.stopper());
    // Loading the models was before the run.
    let before = Usage::look().processor_seconds;
    let observer = run.observer();
    let mut watchers = Watchers {
        slo: SloWatch::new(&slo, &prepared.program),
        recorder: page_file.is_some().then(|| Recorder::new(&prepared.program)),
    };
    if let Some(port) = port {
        if let Some(address) = port.address() {
            terminal.note(&format!("metrics at http://{address}/metrics"));
        }
        let name = prepared.workflow.name.value.clone();
        port.serve(name, prepared.program.plan.clone(), run.observer(), watchers.slo.violations())?;
    }
    let expected = Expected::later(&prepared.program, arguments.records, arguments.duration);
    let line = ProgressLine::new(*terminal, expected);
    let ends = Ends { interrupt: &interrupt, letters: arguments.max_dead_letters, terminal };
    let (report, failure) =
        match watch(&run, &ends, line, |is_last| watchers.look(&observer, &prepared, is_last)) {
            Ok(report) => (report, None),
            Err(error) => (run.report(), Some(error)),
        };
    // From here on there is nothing to end in order.
    let interrupted = interrupt.is_wanted();
    interrupt.is_over();
    // One that cannot be written keeps nothing else from being told.
    let mut unwritten = Vec::new();
    unwritten.extend(epoch_file.and_then(|file| file.failure()));
    let letters =
        arguments.max_dead_letters.map(|limit| LetterVerdict::of(limit, &report, &prepared.program));
    let mut verdicts = verdicts(&slo, &report, &prepared.program, &observer);
    add_windows(&mut verdicts, &watchers.slo.violations());
    if prepared.is_planned {
        for verdict in &mut verdicts {
            verdict.of = Some(if verdict.slo == "rate" { rate_of } else { Origin::Workflow });
        }
    }
    let account = emulated.as_ref().map(|emulated| Account::of(emulated, &prepared.program, &report));
    if let Some(doubt) = account.as_ref().and_then(Account::doubt) {
        verdicts
            .iter_mut()
            .filter(|verdict| verdict.slo == "latency")
            .for_each(|verdict| verdict.doubt(doubt));
    }
    if !report.complete {
        verdicts
            .iter_mut()
            .filter(|verdict| verdict.measured.is_none())
            .for_each(|verdict| verdict.met = None);
    }
    // A level without evidence is not shown to be kept.
    let missed = verdicts.iter().any(|verdict| verdict.met != Some(true));
    let document = RunDocument {
        workflow: &prepared.workflow.name.value,
        program: &prepared.program,
        interrupted,
        letters,
        report: &report,
        slo: &verdicts,
        processor_seconds: Usage::look().processor_seconds - before,
        emulation: account.as_ref(),
    };
    if let (Some(file), Some(recorder)) = (page_file, &watchers.recorder) {
        let end = match &failure {
            Some(error) => End::Failed(error.to_string()),
            None if report.complete => End::Complete,
            None => End::Interrupted,
        };
        let options = told_options(arguments);
        let (document, prepared, observer) = (&document, &prepared, &observer);
        let page = Page { document, prepared, observer, recorder, end, begun, options }.html();
        unwritten.extend(file.write(|out| out.write_all(page.as_bytes())).err());
    }
    if failure.is_none() {
        if let Some(file) = report_file {
            unwritten.extend(file.write(|out| document.write_json(out)).err());
        }
        show(&document, arguments.output, &prepared, terminal)?;
    }
    for warning in account.iter().flat_map(Account::warnings) {
        terminal.warning(&warning);
    }
    let spoilt = spoilt(&report, &prepared.program);
    for source in &spoilt {
        terminal.alarm(&format!(
            "source `{}` gave nothing but dead letters, {} of them, most or all for the reason `{}`: are its columns and \
             their types those of the data?",
            source.id,
            grouped(source.letters),
            source.reasons[0]
        ));
    }
    if spoilt.is_empty() && report.dead_letters > 0 && report.sinks.iter().all(|sink| sink.records == 0) {
        let letters = grouped(report.dead_letters);
        terminal.alarm(&format!("no record reached a sink: there are {letters} dead letters and no results"));
    }
    let too_many = letters.filter(|letters| letters.is_passed);
    if let Some(letters) = too_many {
        terminal.error(&letters.text(), Some(&causes(&report)));
    }
    let failure = failure.map(|error| anyhow::Error::from(failed(&error, &prepared.workflow)));
    if let Some(failure) = &failure
        && arguments.output == OutputForm::Json
        && !takes_stdout(&prepared)
    {
        write_json(failure, &mut answer::out());
    }
    let unwritten = unwritten.into_iter().map(anyhow::Error::from);
    let told = failure.into_iter().chain(unwritten).map(|failure| explain(&failure, terminal));
    if let Some(exit) = told.reduce(|first, _| first) {
        return Ok(exit);
    }
    Ok(match (interrupted, arguments.require_slo && missed || too_many.is_some()) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::No,
        (false, false) => Exit::Success,
    })
}

/// Who looks at a run while it goes on.
struct Watchers {
    slo: SloWatch,
    recorder: Option<Recorder>,
}

impl Watchers {
    fn look(&mut self, observer: &Observer, prepared: &Prepared, is_last: bool) {
        self.slo.look(observer, &prepared.program);
        if let Some(recorder) = &mut self.recorder {
            recorder.look(observer, is_last);
        }
    }
}

/// The options that change what a run does, as a report tells them.
fn told_options(arguments: &RunArguments) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    told.extend(arguments.plan.as_ref().map(|plan| ("Plan file", plan.display().to_string())));
    told.extend(arguments.duration.map(|duration| ("At most", format!("{} s", duration.as_secs_f64()))));
    told.extend(arguments.records.map(|records| ("Records", format!("the first {records} of each source"))));
    told.extend(arguments.rate.map(|rate| match rate {
        RateChoice::Max => ("Rate", "as fast as possible".to_owned()),
        RateChoice::PerSecond(rate) => ("Rate", format!("{rate} /s of each source")),
    }));
    told.extend(arguments.infrastructure.as_ref().map(|file| ("Infrastructure", file.display().to_string())));
    told.extend(arguments.replay.as_ref().map(|log| ("Replay of", log.display().to_string())));
    told
}

/// What may end a run before its sources do.
struct Ends<'a> {
    interrupt: &'a Interrupt,
    letters: Option<LetterLimit>,
    terminal: &'a Terminal,
}

/// Waits for the end, shows the progress meanwhile and lets others look, once more at the end.
fn watch(
    run: &Run,
    ends: &Ends<'_>,
    mut line: ProgressLine,
    mut look: impl FnMut(bool),
) -> Result<RunReport, RunError> {
    let mut looks_left = LOOKS_AFTER_INTERRUPT;
    loop {
        if let Some(result) = run.wait_for(LOOK_EVERY) {
            look(true);
            line.finish();
            return result;
        }
        let progress = run.progress();
        line.show(&progress);
        look(false);
        if ends.letters.is_some_and(|limit| limit.is_passed_for_good(progress.dead_letters)) {
            run.stopper().abort();
        }
        if !ends.interrupt.is_wanted() {
            continue;
        }
        match looks_left {
            // Something is stuck where nothing can call it off: a disk, a model. What is committed is on the disk.
            0 if !run.is_closing() => {
                line.finish();
                return Ok(run.report());
            }
            0 => {}
            1 if run.is_closing() => {
                ends.terminal.note("finishing the output files; a second signal leaves at once");
                looks_left = 0;
            }
            _ => looks_left -= 1,
        }
    }
}

/// Whether a sink of the workflow writes to stdout.
fn takes_stdout(prepared: &Prepared) -> bool {
    prepared.program.sinks.values().any(|sink| sink.is_standard_output)
}

/// The report goes to stdout, unless that belongs to a sink.
fn show(
    document: &RunDocument<'_>,
    form: OutputForm,
    prepared: &Prepared,
    terminal: &Terminal,
) -> io::Result<()> {
    let taken = takes_stdout(prepared);
    if taken && terminal.is_quiet() {
        return Ok(());
    }
    let mut out: Box<dyn Write> = match taken {
        true => Box::new(io::stderr().lock()),
        false => Box::new(answer::out()),
    };
    match form {
        OutputForm::Table => document.write_table(&mut out)?,
        OutputForm::Json => document.write_json(&mut out)?,
    }
    out.flush()
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
    let kept = match error {
        RunError::Operator { operator, .. } if has_no_part(operator, workflow) => {
            "what the last complete checkpoint committed to other outputs is kept"
        }
        _ => "what the last complete checkpoint committed is kept",
    };
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

/// Whether this is a sink whose file is there whole or not at all.
fn has_no_part(sink: &str, workflow: &Workflow) -> bool {
    workflow.sinks.iter().any(|found| *found.id.value == *sink && found.kind.value == Parquet::KIND)
}
