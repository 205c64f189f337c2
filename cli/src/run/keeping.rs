//! The state that a run keeps: where it is, and what the user is told of it.
use crate::answer;
use crate::arguments::{OutputForm, RunArguments};
use crate::terminal::Terminal;
use std::io::{self, Write};
use std::time::Duration;
use tidemill_app::delivery::promise_lines;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::journals;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::Prepared;
use tidemill_app::state::{self, Begin, Continued, Habit};
use tidemill_app::state_place::StatePlace;
use tidemill_engine::{Guarantee, promises};
use tidemill_spec::workflow::Workflow;
use tidemill_state::Manifest;

/// Where neither the command line nor the workflow says it.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a run begins with.
pub(super) enum Kept {
    /// It keeps nothing.
    Not,
    /// Nothing is left to do, which is told.
    Complete,
    /// It goes on, or begins.
    Continued(Box<Continued>),
}

/// Takes up the state that the command line or the workflow names.
pub(super) fn open(
    arguments: &RunArguments,
    prepared: &mut Prepared,
    terminal: &Terminal,
) -> anyhow::Result<Kept> {
    let Some(place) = place(arguments, &prepared.workflow, terminal)? else {
        if arguments.checkpoint_interval.is_some() {
            return Err(Failure::new(Kind::Usage, "`--checkpoint-interval` without a state")
                .with_help("add `--state DIR`, or `checkpoint: {state: DIR}` to the workflow")
                .into());
        }
        return Ok(Kept::Not);
    };
    let options = &prepared.workflow.checkpoint;
    let of_workflow = options.interval.as_ref().map(|interval| Duration::from_nanos(interval.value.0));
    let interval = arguments.checkpoint_interval.or(of_workflow).unwrap_or(INTERVAL);
    let keep = options.keep.as_ref().map_or(1, |keep| keep.value as usize);
    let habit = Habit { interval, keep, is_read_here: !arguments.processes };
    Ok(match state::open(&place, prepared, habit)? {
        Begin::Complete(manifest) => {
            tell_complete(arguments, &place, &manifest, terminal)?;
            Kept::Complete
        }
        Begin::Continued(state) => {
            tell_continued(&place, &state, prepared, terminal);
            Kept::Continued(Box::new(state))
        }
    })
}

fn place(
    arguments: &RunArguments,
    workflow: &Workflow,
    terminal: &Terminal,
) -> Result<Option<StatePlace>, Failure> {
    if let Some(place) = &arguments.state {
        return Ok(Some(place.clone()));
    }
    let Some(place) = StatePlace::of_workflow(workflow) else { return Ok(None) };
    let place = place.map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
    let options = [
        ("--emulate", arguments.emulate),
        ("--replay", arguments.replay.is_some()),
        ("--epoch-log", arguments.epoch_log.is_some()),
    ];
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            terminal.note(&format!(
                "leaves the state in `{place}` alone: `{option}` does not go together with it"
            ));
            Ok(None)
        }
        None => Ok(Some(place)),
    }
}

/// Says where the run goes on, and which of its outputs repeat rows.
fn tell_continued(place: &StatePlace, state: &Continued, prepared: &Prepared, terminal: &Terminal) {
    terminal.note(&match &state.from {
        Some(from) => format!("goes on from the state in `{place}`: {from}"),
        None => format!("keeps its state in `{place}`: the same command goes on from there"),
    });
    for (source, extent) in journals::extents(place).unwrap_or_default() {
        terminal.note(&format!(
            "source `{source}` has {} in its journal, and goes on with its stream behind byte {}",
            bytes(extent.end - extent.first),
            extent.end
        ));
    }
    let promises = promises(&prepared.program, true);
    let weak = promises.iter().filter(|(_, promise)| promise.guarantee != Guarantee::ExactlyOnce);
    for line in promise_lines(weak.map(|(sink, promise)| (sink.as_str(), promise))) {
        terminal.note(&line);
    }
}

/// A run that is complete is not begun again.
fn tell_complete(
    arguments: &RunArguments,
    place: &StatePlace,
    manifest: &Manifest,
    terminal: &Terminal,
) -> io::Result<()> {
    if arguments.output == OutputForm::Json {
        writeln!(answer::out(), "{}", serde_json::json!({"version": 1, "ok": true, "complete": true}))?;
    }
    terminal.note(&format!(
        "the run in `{place}` is complete ({}): nothing is left to do; `tidemill state reset {place}` has it begin anew",
        state::described(manifest)
    ));
    Ok(())
}
