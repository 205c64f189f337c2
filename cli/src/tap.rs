//! `tidemill tap`: the records that pass a source or an operator of a running workflow.
//!
//! | question | module |
//! |---|---|
//! | how does a record look? | [`record`] |
//! | how does a picture look on this terminal? | [`picture`] |
//! | which files are written? | [`saved`] |
mod picture;
mod record;
mod saved;

use crate::answer;
use crate::arguments::{OutputForm, TapArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use record::Shown;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::grouped;
use tidemill_app::listener::Listener;
use tidemill_app::run_control::LocalRun;
use tidemill_app::run_control::taps::{Passed, Tapping};

/// Time limit of a wait, after which a signal or a missing reader ends the tap.
const LOOK: Duration = Duration::from_millis(200);

/// Shows records until the run, the limit or a signal.
pub(crate) fn tap(arguments: &TapArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let run = chosen(arguments)?;
    let answer = Tapping::begin(run.process, &arguments.edge).map_err(|error| {
        let text = format!("the run in process {} does not answer: {error}", run.process);
        Failure::new(Kind::Unavailable, text).with_help("it ends now, or is of a version that has no taps")
    })?;
    let known = run.edges.contains(&arguments.edge);
    let refused = if known { Kind::No } else { Kind::Missing };
    let mut tapping = answer.map_err(|why| Failure::new(refused, why))?;
    let mut shown = Shown::new(arguments, &tapping.begun().stream)?;
    terminal.note(&format!(
        "`{}` of {}, process {}; Ctrl-C ends only this tap",
        arguments.edge,
        tapping.begun().workflow,
        run.process
    ));
    interrupt.is_watched();
    let mut missed = Missed::default();
    let exit = loop {
        if interrupt.is_wanted() {
            break Exit::Interrupted;
        }
        if !answer::is_read() {
            break Exit::Success;
        }
        let passed = tapping.next(LOOK).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("process {} stopped answering: {error}", run.process))
                .with_help("it was killed, or it hangs")
        })?;
        match passed {
            Passed::Nothing => {}
            Passed::Records(batch, not_sent) => {
                missed.add(not_sent, arguments.output);
                shown.show(&batch, &mut answer::out())?;
                if arguments.limit.is_some_and(|limit| shown.count() >= limit) {
                    break Exit::Success;
                }
            }
            Passed::End(not_sent) => {
                missed.add(not_sent, arguments.output);
                terminal.note("the run has ended");
                break Exit::Success;
            }
        }
    };
    terminal.note(&format!("{} shown{}", records(shown.count()), missed.told()));
    Ok(exit)
}

fn records(number: u64) -> String {
    match number {
        1 => "1 record".to_owned(),
        number => format!("{} records", grouped(number)),
    }
}

/// Records that the tap could not take.
#[derive(Default)]
struct Missed(u64);

impl Missed {
    fn add(&mut self, number: u64, output: OutputForm) {
        use std::io::Write;
        self.0 += number;
        if number > 0 && output == OutputForm::Table {
            // A reader that is gone shows soon.
            let _ = writeln!(answer::out(), "… {} not shown", records(number));
        }
    }

    fn told(&self) -> String {
        match self.0 {
            0 => String::new(),
            number => format!(", {} not shown: they came faster than they were read", records(number)),
        }
    }
}

/// Finds the one run of this machine that has the edge.
fn chosen(arguments: &TapArguments) -> anyhow::Result<LocalRun> {
    let mut runs = crate::source::here(arguments.process)?;
    let edge = &arguments.edge;
    if runs.len() == 1 {
        // It knows best why it does not have it.
        return Ok(runs.remove(0));
    }
    let (mut with, without): (Vec<LocalRun>, Vec<LocalRun>) =
        runs.into_iter().partition(|run| run.edges.contains(edge));
    let names = |runs: &[LocalRun]| {
        let name = |run: &LocalRun| format!("{} ({})", run.process, run.workflow);
        runs.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    match with.len() {
        1 => Ok(with.remove(0)),
        0 if without.is_empty() => {
            Err(Failure::new(Kind::Missing, "no workflow of this user runs on this machine")
                .with_help("start one with `tidemill run`, and tap it from another terminal")
                .into())
        }
        0 => {
            let each = without
                .iter()
                .map(|run| format!("{} ({}): {}", run.process, run.workflow, run.edges.join(", ")));
            Err(Failure::new(
                Kind::Missing,
                format!("no run of this machine has a source or operator `{edge}`"),
            )
            .with_help(format!("the runs have {}", each.collect::<Vec<_>>().join("; ")))
            .into())
        }
        _ => Err(Failure::new(Kind::Usage, format!("several runs have a `{edge}`: {}", names(&with)))
            .with_help("name one: `--process PID`")
            .into()),
    }
}
