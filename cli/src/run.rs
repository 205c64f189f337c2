//! `tidemill run`: everything in one process, or in one for each worker of the plan.
//!
//! | step | module |
//! |---|---|
//! | workers are processes of their own | `processes` |
//! | what an earlier run left is taken up | `keeping` |
//! | what is written beside the results is opened | `outputs` |
//! | sources are recorded, or read from a recording | `recording` |
//! | the run is watched until its end | `watching` |
//! | what a user must not miss is said | `warnings` |
mod keeping;
mod outputs;
pub(crate) mod processes;
mod recording;
mod warnings;
mod watching;

use crate::account::Account;
use crate::answer;
use crate::arguments::{OutputForm, RunArguments};
use crate::device::certificate;
use crate::exit::{Exit, explain, write_json};
use crate::interrupt::Interrupt;
use crate::progress::{Expected, ProgressLine};
use crate::report::RunDocument;
use crate::report::page::{End, Page};
use crate::report::records::sample_options;
use crate::report::series::Recorder;
use crate::terminal::Terminal;
use crate::visible::visible;
use keeping::Kept;
use outputs::Outputs;
use std::io::{self, Write};
use std::path::Path;
use tidemill_app::caller::Caller;
use tidemill_app::device_choice::Devices;
use tidemill_app::emulation::Emulated;
use tidemill_app::engine_failure::{failed, not_started};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::judgement::{Judgement, Levels};
use tidemill_app::levels::{self, RateChoice};
use tidemill_app::listener::Listener;
use tidemill_app::machine::{self, Usage};
use tidemill_app::metrics::{self, MetricsPort, RunsCollector};
use tidemill_app::open_files;
use tidemill_app::otlp::Exporter;
use tidemill_app::preparation::{PlanFrom, Prepared, prepare_on, streams};
use tidemill_app::processes::secret_number;
use tidemill_app::recording::Recording;
use tidemill_app::run_control::RunControl;
use tidemill_app::run_figures::RunPlace;
use tidemill_app::run_options::run_options;
use tidemill_app::served_by::{Serving, served_by};
use tidemill_app::state::Continued;
use tidemill_app::tally::Left;
use tidemill_engine::{EpochWriter, Observer, Run, RunError, RunOptions, RunReport, TraceOptions};
use watching::{Ends, Watchers, locked, watch};

/// The program of a run; one that continues from a state has the models that it had, unless changes are accepted.
fn prepared(arguments: &RunArguments, terminal: &Terminal) -> anyhow::Result<Prepared> {
    certificate::hold(&arguments.device_certificate)?;
    let (workflow, plan) = (&arguments.workflow, arguments.plan.as_deref());
    let has_no_state = arguments.emulate
        || arguments.replay.is_some()
        || arguments.epoch_log.is_some()
        || arguments.record.is_some();
    let otherwise = match has_no_state || arguments.accept_changes {
        true => PlanFrom::Settings(&arguments.set),
        false => PlanFrom::Continued(&arguments.set, arguments.state.as_ref()),
    };
    let devices = Devices { settings: &arguments.device, are_emulated: arguments.emulate };
    prepare_on(workflow, PlanFrom::file_or(plan, otherwise), devices, terminal)
}

/// Runs a workflow to its end and reports.
pub(crate) fn run(arguments: &RunArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let caller = arguments.caller.as_deref().map(Caller::attach).transpose()?;
    let mut prepared = prepared(arguments, terminal)?;
    certificate::is_of_use(&arguments.device_certificate, &prepared.program.plan)?;
    caller.map_or(Ok(()), |caller| caller.check(&prepared.program))?;
    let (slo, rate_of) = levels::settle(&mut prepared, arguments.rate, terminal);
    keeping::check(arguments, &prepared)?;
    processes::check(arguments, &prepared)?;
    let mut recording = recording::begin(arguments, &prepared)?;
    let mut outputs = Outputs::open(arguments, &prepared)?;
    announce(&prepared, recording::replayed(arguments).is_some(), terminal);
    let logs = outputs.replay.as_ref();
    recording::take_part(arguments, recording.as_mut(), logs, &mut prepared, terminal)?;
    let emulation = arguments.emulation();
    let emulated =
        arguments.emulate.then(|| Emulated::prepare(&emulation, &mut prepared, terminal)).transpose()?;
    let state = match keeping::open(arguments, &mut prepared, terminal)? {
        Kept::Complete(exit) => return Ok(exit),
        Kept::Not => None,
        Kept::Continued(state) => Some(*state),
    };
    let before = state.as_ref().map(|state| (state.place.clone(), state.before.clone()));
    let lock = state.as_ref().and_then(|state| state.workers_lock.clone());
    let mut options = options(arguments, &prepared, &mut outputs, emulated.as_ref(), state)?;
    let serving = Serving::find(&prepared.program)?;
    match &serving {
        Some(serving) if serving.is_own() => {
            terminal.note("a transport service of this run executes the policies of the plan");
            if let Some(folder) = serving.logs(&prepared.program) {
                terminal.note(&format!("policies write their logs into {}", folder.display()));
            }
        }
        Some(serving) => terminal.note(&format!(
            "the transport service at {} counts the edges, and executes their policies",
            serving.socket().display()
        )),
        None => {}
    }
    let socket = serving.as_ref().map(|serving| serving.socket().to_owned());
    if !arguments.processes {
        options.served_by =
            socket.as_ref().map(|socket| served_by(socket, &prepared.program, &prepared.workflow));
    }
    if arguments.processes {
        let warm_ups = emulated.as_ref().map(|emulated| emulated.warm_ups.clone()).unwrap_or_default();
        options.hosts = Some(processes::hosts(arguments, &prepared, warm_ups, (lock, socket), terminal)?);
    }
    let begun = machine::now();
    let metrics = outputs.metrics.take();
    let exporter = arguments.traces.exporter()?;
    if exporter.is_some() {
        let seed = secret_number()
            .map_err(|error| Failure::new(Kind::Unavailable, format!("/dev/urandom: {error}")))?;
        options.traces = Some(TraceOptions::new(arguments.traces.trace_share, seed as u64));
    }
    let ran = start_and_watch(
        arguments,
        &prepared,
        options,
        Levels { slo, rate_of },
        (metrics, exporter.as_ref(), recording.as_mut()),
        &interrupt,
        terminal,
    )?;
    drop(serving);
    // From here on there is nothing to end in order.
    let interrupted = interrupt.is_wanted();
    interrupt.is_over();
    let left =
        before.and_then(|(place, before)| keeping::left(&ran.report, &place, &before, &prepared, terminal));
    let judgement = ran.judged(arguments, &prepared, emulated.as_ref());
    let account = emulated.as_ref().zip(judgement.comparison.as_ref());
    let account = account.map(|(emulated, comparison)| Account::of(emulated, comparison));
    let judged = (&judgement, account.as_ref());
    let mut unwritten =
        tell(&ran, judged, arguments, &prepared, outputs, (interrupted, begun, left.as_ref()), terminal)?;
    unwritten.extend(recording.and_then(|recording| recording::finish(recording, arguments, terminal)));
    warnings::warn(&judgement, account.as_ref(), &ran.report, &prepared, terminal);
    let failure = ran.failure.as_ref();
    let failure = failure.map(|error| anyhow::Error::from(failed(error, &prepared.workflow)));
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
    let is_no = arguments.require_slo && judgement.is_missed() || judgement.has_too_many_letters();
    Ok(match (interrupted, is_no) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::No,
        (false, false) => Exit::Success,
    })
}

/// Says which models run, and which sources are read until they end.
fn announce(prepared: &Prepared, is_replayed: bool, terminal: &Terminal) {
    for line in &prepared.models {
        terminal.note(&line.to_string());
    }
    for chosen in &prepared.chosen_devices {
        terminal.note(&chosen.to_string());
    }
    for stream in streams(&prepared.program.sources).filter(|_| !is_replayed) {
        terminal.note(&format!("{stream} until its end"));
    }
}

fn options(
    arguments: &RunArguments,
    prepared: &Prepared,
    outputs: &mut Outputs,
    emulated: Option<&Emulated>,
    state: Option<Continued>,
) -> Result<RunOptions, Failure> {
    let mut options = run_options(prepared, emulated, state)?;
    options.records = arguments.records;
    options.duration = arguments.duration;
    options.replay = outputs.replay.take();
    options.epochs = outputs.epochs.clone().map(|file| Box::new(file) as Box<dyn EpochWriter>);
    options.samples = outputs.page.is_some().then(|| sample_options(&prepared.workflow, &prepared.program));
    if let Some(copies) = arguments.model_copies {
        options.model_copies = usize::from(copies);
    }
    Ok(options)
}

/// A run that has ended, well or not.
struct Ran {
    report: RunReport,
    failure: Option<RunError>,
    observer: Observer,
    watchers: Watchers,
    levels: Levels,
    /// Processor time of this process since the run began.
    processor_seconds: f64,
}

fn start_and_watch(
    arguments: &RunArguments,
    prepared: &Prepared,
    options: RunOptions,
    levels: Levels,
    (metrics, exporter, recording): (Option<MetricsPort>, Option<&Exporter>, Option<&mut Recording>),
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> anyhow::Result<Ran> {
    let program = &prepared.program;
    let records_curves = options.samples.is_some();
    open_files::reserve(program, terminal)?;
    let run =
        Run::start(program.clone(), options).map_err(|error| not_started(&error, &prepared.workflow))?;
    interrupt.ends(run.stopper());
    let mut recording = recording::Watch::new(recording);
    // Loading the models was before the run.
    let before = Usage::look().processor_seconds;
    let observer = run.observer();
    let mut watchers = Watchers::new(&observer, &levels.slo, records_curves.then(|| Recorder::new(program)));
    if let (Some(exporter), Some(traces)) = (exporter, observer.traces()) {
        let workflow = &prepared.workflow.name.value;
        exporter.follow(workflow, workflow, traces);
    }
    if let Some(port) = metrics {
        if let Some(address) = port.address() {
            terminal.note(&format!("metrics at http://{address}/metrics"));
        }
        let place = RunPlace::here(&prepared.workflow.name.value);
        let (watched, of_figures, at) = (watchers.watched(), watchers.watched(), place.clone());
        let observed = move || vec![locked(&watched).observed(None, &place)];
        let text =
            move || metrics::text([Box::new(RunsCollector(observed.clone())) as Box<dyn metrics::Collector>]);
        port.serve(text, move || vec![locked(&of_figures).figures("", &at)])?;
    }
    let control = RunControl::listen(&prepared.workflow.name.value, observer.clone());
    if let Err(error) = &control {
        terminal.warning(&format!("`tidemill source` and `tidemill tap` cannot reach this run: {error}"));
    }
    let line = ProgressLine::new(*terminal, Expected::later(program, arguments.records, arguments.duration));
    let ends = Ends { interrupt, letters: arguments.max_dead_letters, terminal };
    let ended = watch(&run, &ends, line, |is_last| {
        watchers.look(&observer, is_last);
        recording.look(&run, terminal);
    });
    let (report, failure) = match ended {
        Ok(report) => (report, None),
        Err(error) => (run.report(), Some(error)),
    };
    drop(control);
    let processor_seconds = Usage::look().processor_seconds - before;
    Ok(Ran { report, failure, observer, watchers, levels, processor_seconds })
}

impl Ran {
    fn judged(
        &self,
        arguments: &RunArguments,
        prepared: &Prepared,
        emulated: Option<&Emulated>,
    ) -> Judgement {
        let (limit, violations) = (arguments.max_dead_letters, self.watchers.violations());
        Judgement::of(&self.report, &self.observer, prepared, &self.levels, &violations, limit, emulated)
    }

    fn end(&self) -> End {
        match &self.failure {
            Some(error) => End::Failed(error.to_string()),
            None if self.report.complete => End::Complete,
            None => End::Interrupted,
        }
    }
}

/// Writes the page and the reports. A file that cannot be written does not stop the others: its error is returned.
fn tell(
    ran: &Ran,
    (judgement, account): (&Judgement, Option<&Account<'_>>),
    arguments: &RunArguments,
    prepared: &Prepared,
    outputs: Outputs,
    (interrupted, begun, left): (bool, String, Option<&Left>),
    terminal: &Terminal,
) -> io::Result<Vec<Failure>> {
    let mut unwritten: Vec<Failure> = outputs.epochs.and_then(|file| file.finish()).into_iter().collect();
    let document = RunDocument {
        workflow: &prepared.workflow.name.value,
        program: &prepared.program,
        interrupted,
        letters: judgement.letters,
        report: &ran.report,
        slo: &judgement.verdicts,
        processor_seconds: ran.processor_seconds,
        has_processes: arguments.processes,
        emulation: account,
        left,
        chosen_devices: &prepared.chosen_devices,
    };
    if let (Some(file), Some(recorder)) = (outputs.page, &ran.watchers.recorder) {
        let (end, options) = (ran.end(), told_options(arguments, prepared));
        let (document, observer) = (&document, &ran.observer);
        let place = arguments.report.as_deref().unwrap_or(Path::new(""));
        let page = Page { document, prepared, observer, recorder, end, begun, place, options }.html();
        unwritten.extend(file.write(|out| out.write_all(page.as_bytes())).err());
    }
    if ran.failure.is_none() {
        if let Some(file) = outputs.report {
            unwritten.extend(file.write(|out| document.write_json(out)).err());
        }
        show(&document, arguments.output, prepared, terminal)?;
    }
    Ok(unwritten)
}

/// The options that change a run, for a report.
fn told_options(arguments: &RunArguments, prepared: &Prepared) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    told.extend(arguments.plan.as_ref().map(|plan| ("Plan file", plan.display().to_string())));
    told.extend(prepared.chosen_devices.iter().map(|chosen| ("Device", chosen.to_string())));
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

/// Whether a sink of the workflow writes to stdout.
fn takes_stdout(prepared: &Prepared) -> bool {
    prepared.program.sinks.values().any(|sink| sink.is_standard_output)
}

/// The report goes to stdout, unless that belongs to a sink. A closed stderr changes nothing.
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
    let mut text: Vec<u8> = Vec::new();
    match form {
        OutputForm::Table => document.write_table(&mut text)?,
        OutputForm::Json => document.write_json(&mut text)?,
    }
    match taken {
        true => {
            let text = String::from_utf8_lossy(&text);
            drop(io::stderr().lock().write_all(visible(&text).as_bytes()));
        }
        false => answer::out().write_all(&text)?,
    }
    answer::out().flush()
}
