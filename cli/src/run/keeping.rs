//! The state that a run keeps: its place, and the messages about it.
use crate::answer;
use crate::arguments::{OutputForm, RunArguments};
use crate::exit::Exit;
use crate::state::changes;
use crate::terminal::Terminal;
use std::io::{self, Write};
use std::time::Duration;
use tidemill_app::delivery::promise_lines;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::journals::{self, Look};
use tidemill_app::letters::LetterVerdict;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::Prepared;
use tidemill_app::resumption::check_sources;
use tidemill_app::state::diff::Changes;
use tidemill_app::state::place::StatePlace;
use tidemill_app::state::{self, Begin, Complete, Continued, Habit, Limits, Taking};
use tidemill_app::tally::{Left, Tally};
use tidemill_engine::{Guarantee, RunReport, promises};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::units::TimeSpan;
use tidemill_spec::workflow::Workflow;

/// Default, without a value on the command line or in the workflow.
const INTERVAL: Duration = Duration::from_secs(1);

/// The start of a run.
pub(super) enum Kept {
    /// It keeps nothing.
    Not,
    /// No work is left, which is reported; the exit of the command.
    Complete(Exit),
    /// It continues, or starts.
    Continued(Box<Continued>),
}

/// Rejects a run that cannot keep a state before any file is made.
///
/// # Errors
/// A source cannot be read again.
pub(super) fn check(arguments: &RunArguments, prepared: &Prepared) -> Result<(), Diagnostics> {
    let leaves_it = arguments.emulate
        || arguments.replay.is_some()
        || arguments.epoch_log.is_some()
        || arguments.record.is_some();
    match arguments.state.is_some() || (prepared.workflow.checkpoint.state.is_some() && !leaves_it) {
        true => check_sources(&prepared.workflow, &prepared.program.sources),
        false => Ok(()),
    }
}

/// Takes up the state that the command line or the workflow names.
pub(super) fn open(
    arguments: &RunArguments,
    prepared: &mut Prepared,
    terminal: &Terminal,
) -> anyhow::Result<Kept> {
    let Some(place) = place(arguments, &prepared.workflow, terminal)? else {
        if arguments.accept_changes {
            return Err(Failure::new(Kind::Usage, "`--accept-changes` without a state")
                .with_help("add `--state DIR`, or `checkpoint: {state: DIR}` to the workflow")
                .into());
        }
        if arguments.checkpoint_interval.is_some() {
            return Err(Failure::new(Kind::Usage, "`--checkpoint-interval` without a state")
                .with_help("add `--state DIR`, or `checkpoint: {state: DIR}` to the workflow")
                .into());
        }
        return Ok(Kept::Not);
    };
    let options = &prepared.workflow.checkpoint;
    let of_workflow = options.interval.as_ref().map(|interval| Duration::from_nanos(interval.value.0));
    let interval = arguments.checkpoint_interval.or(of_workflow);
    if let Some(warning) = interval.and_then(|interval| without_effect(interval, prepared)) {
        terminal.warning(&warning);
    }
    let interval = interval.unwrap_or(INTERVAL);
    let keep = options.keep.as_ref().map_or(1, |keep| keep.value as usize);
    let limits = Limits::new(arguments.records, arguments.duration);
    let is_read_here = !arguments.processes;
    let habit = Habit { interval, keep, is_read_here, sees_inputs: true, limits };
    let tell = |changes: &Changes| changes::lines(changes).iter().for_each(|line| terminal.note(line));
    let taking = Taking { accepts: arguments.accept_changes, tell: &tell };
    Ok(match state::open(&place, prepared, habit, &taking)? {
        Begin::Complete(complete) => {
            Kept::Complete(tell_complete(arguments, &place, &complete, prepared, terminal)?)
        }
        Begin::Continued(state) => {
            tell_continued(&place, &state, prepared, terminal);
            Kept::Continued(Box::new(state))
        }
    })
}

/// Returns the warning about an interval between checkpoints that is shorter than a checkpoint's content: the rows of `checkpoint_every`
/// ticks come together, where a source has a rate.
fn without_effect(interval: Duration, prepared: &Prepared) -> Option<String> {
    let plan = &prepared.program.plan;
    let is_paced = prepared.program.sources.values().any(|source| source.rate_per_second.is_some());
    let interval = u64::try_from(interval.as_nanos()).ok()?;
    let (tick, every) = (plan.tick, plan.checkpoint_every.max(1));
    let least = tick.0.saturating_mul(every);
    if !is_paced || interval >= least {
        return None;
    }
    let fewer = (interval / tick.0.max(1)).max(1);
    let place = if prepared.is_planned { "in the plan" } else { "in `run:` of the workflow" };
    let least = TimeSpan(least);
    let help = match every {
        1 => format!("write a shorter `tick` {place}, or an interval of {least} or more"),
        _ => format!(
            "write `checkpoint_every: {fewer}` {place} for one each {}, which an existing state does not \
             accept, or an interval of {least} or more",
            TimeSpan(tick.0.saturating_mul(fewer))
        ),
    };
    Some(format!(
        "`checkpoint_every: {every}` and `tick: {tick}` allow a checkpoint each {least} at most: the interval of {} has no effect; {help}",
        TimeSpan(interval)
    ))
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
        ("--record", arguments.record.is_some()),
    ];
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            terminal.note(&format!(
                "does not use the state in `{place}`: `{option}` cannot be combined with a state"
            ));
            Ok(None)
        }
        None => Ok(Some(place)),
    }
}

/// Says where the run continues, and which of its outputs repeat rows.
fn tell_continued(place: &StatePlace, state: &Continued, prepared: &Prepared, terminal: &Terminal) {
    terminal.note(&match &state.from {
        Some(from) => format!("continues from the state in `{place}`: {from}"),
        None => format!("keeps its state in `{place}`: the same command continues from there"),
    });
    state.notes.iter().for_each(|note| terminal.note(note));
    for source in &state.ended {
        terminal.note(&format!(
            "source `{source}` had ended before: it reads no more of its stream; `tidemill state reset \
             {place}` starts from the beginning"
        ));
    }
    let looks = journals::look(place).unwrap_or_default();
    for (source, look) in looks.into_iter().filter(|(source, _)| !state.ended.contains(source)) {
        let bound = prepared.program.sources.get(&source);
        let is_same = bound.and_then(|bound| journals::is_same_stream(place, bound));
        terminal.note(&format!(
            "source `{source}` has {} in its journal, and continues with its stream {}",
            bytes(look.extent.end - look.extent.first),
            goes_on_behind(&look, is_same)
        ));
    }
    let promises = promises(&prepared.program, true);
    let weak = promises.iter().filter(|(_, promise)| promise.guarantee != Guarantee::ExactlyOnce);
    for line in promise_lines(weak.map(|(sink, promise)| (sink.as_str(), promise))) {
        terminal.note(&line);
    }
}

/// Says where a stream continues: a returning producer must start there, or a record is lost or comes twice. `is_same`: whether it is the
/// stream that the journal was read from.
fn goes_on_behind(look: &Look, is_same: Option<bool>) -> String {
    let Look { extent, end_of_lines } = look;
    match (look.half_a_line(), is_same) {
        (0, _) | (_, Some(true)) => format!("after byte {}", extent.end),
        (half, Some(false)) => format!(
            "after byte {end_of_lines}, the end of its last whole line: it skips the {half} bytes of half a \
             line after it, because another stream follows"
        ),
        (_, None) => format!(
            "after byte {end_of_lines}, the end of its last whole line; the pipe still has the rest of the \
             line, and continues after byte {}",
            extent.end
        ),
    }
}

/// Returns the remaining state of the run; reports an error if that cannot be read any more.
pub(super) fn left(
    report: &RunReport,
    place: &StatePlace,
    before: &Tally,
    prepared: &Prepared,
    terminal: &Terminal,
) -> Option<Left> {
    let written = report.sinks.iter().map(|sink| (sink.sink.clone(), sink.records)).collect();
    Left::look(place, before, &written, &prepared.program.plan).unwrap_or_else(|error| {
        terminal.warning(&format!("cannot report the totals of the run: {error}"));
        None
    })
}

/// The verdict on a complete run without a process that runs it.
struct Verdict {
    /// Verdict on the dead letters, where they are limited; none within: its checkpoint does not say it.
    letters: Option<Option<LetterVerdict>>,
    /// Levels are to be kept, and nothing was measured.
    lacks_levels: bool,
}

impl Verdict {
    fn of(arguments: &RunArguments, complete: &Complete, prepared: &Prepared) -> Self {
        let tally = Tally::of(&complete.manifest, &prepared.program.plan);
        let records: u64 = tally.records_in.values().sum();
        let letters = arguments.max_dead_letters.map(|limit| match tally.processes {
            0 => None, // of a version that did not count them
            _ => LetterVerdict::of_totals(limit, tally.dead_letters, records),
        });
        let lacks_levels = arguments.require_slo && !prepared.workflow.slo.is_empty();
        Self { letters, lacks_levels }
    }

    /// An unproven level is a miss, as at the end of a run.
    fn exit(&self) -> Exit {
        let has_too_many = self.letters.is_some_and(|known| known.is_none_or(|letters| letters.is_passed));
        if has_too_many || self.lacks_levels { Exit::No } else { Exit::Success }
    }

    fn tell(&self, arguments: &RunArguments, terminal: &Terminal) {
        match self.letters {
            Some(Some(letters)) if letters.is_passed => terminal.error(&letters.text(), None),
            Some(None) => terminal
                .error("`--max-dead-letters`: the state does not contain the number of dead letters", None),
            _ => {}
        }
        let nothing = "this process measured nothing, since the run was complete before";
        if self.lacks_levels {
            let help = "the process that ended the run reported whether it kept the levels";
            terminal.error(&format!("`--require-slo`: {nothing}"), Some(help));
        }
        let reports = [(&arguments.report, "`--report`"), (&arguments.report_json, "`--report-json`")];
        for (_, option) in reports.iter().filter(|(path, _)| path.is_some()) {
            terminal.warning(&format!("{option} is not written: {nothing}"));
        }
    }
}

/// A run that is complete is not begun again.
fn tell_complete(
    arguments: &RunArguments,
    place: &StatePlace,
    complete: &Complete,
    prepared: &Prepared,
    terminal: &Terminal,
) -> io::Result<Exit> {
    let Complete { manifest, notes } = complete;
    let verdict = Verdict::of(arguments, complete, prepared);
    let stopped_at = manifest.stopped_at.as_ref().map(Limits::to_string);
    if arguments.output == OutputForm::Json {
        let is_well = verdict.exit() == Exit::Success;
        let mut told = serde_json::json!({"version": 1, "ok": is_well, "complete": true});
        if let Some(Some(letters)) = verdict.letters {
            told["max_dead_letters"] = letters.json();
        }
        if let Some(limits) = &stopped_at {
            told["stopped_at"] = limits.clone().into();
        }
        writeln!(answer::out(), "{told}")?;
    }
    let described = state::described(manifest);
    terminal.note(&match stopped_at {
        Some(limits) => format!(
            "the run in `{place}` stopped at {limits} ({described}): nothing left to do up to there; a \
             larger limit, or none, continues it"
        ),
        None => format!(
            "the run in `{place}` is complete ({described}): nothing left to do; after `tidemill state reset {place}` it starts from the beginning"
        ),
    });
    notes.iter().for_each(|note| terminal.note(note));
    verdict.tell(arguments, terminal);
    Ok(verdict.exit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::journal::Extent;

    #[test]
    fn another_stream_goes_on_behind_the_last_whole_line() {
        let look = Look { extent: Extent { end: 109, ..Extent::default() }, end_of_lines: 100 };
        assert_eq!(goes_on_behind(&look, Some(true)), "after byte 109");
        let other = goes_on_behind(&look, Some(false));
        assert!(other.starts_with("after byte 100,") && other.contains("the 9 bytes"), "{other}");
        let unknown = goes_on_behind(&look, None);
        assert!(unknown.starts_with("after byte 100,") && unknown.ends_with("after byte 109"), "{unknown}");
        let whole = Look { end_of_lines: 109, ..look };
        assert_eq!(goes_on_behind(&whole, None), "after byte 109");
    }
}
