//! `tidemill state`: looks at the state of a run, compares it with a workflow, forgets all of it or the state of one operator.
pub(crate) mod changes;
mod show;

use crate::answer;
use crate::arguments::{OutputForm, StateDiffArguments, StateResetArguments, StateVerb};
use crate::exit::Exit;
use crate::terminal::Terminal;
use changes::{end_is_null, place_of};
use serde_json::json;
use std::io::Write;
use tidemill_app::figures::bytes;
use tidemill_app::levels;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::{PlanFrom, prepare_here};
use tidemill_app::state::place::StatePlace;
use tidemill_app::state::taking::reset_operator;
use tidemill_app::state::{self as app, described, failure};
use tidemill_state::{Manifest, StateError, StoreError};

/// Does what the verb says.
pub(crate) fn state(verb: &StateVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        StateVerb::Show(arguments) => show::show(arguments),
        StateVerb::Diff(arguments) => diff(arguments, terminal),
        StateVerb::Reset(arguments) => reset(arguments, terminal),
    }
}

/// The last checkpoint at a place.
fn manifest(place: &StatePlace) -> anyhow::Result<Manifest> {
    let look = || -> Result<Manifest, StateError> {
        let missing = || StoreError::NoState { place: place.to_string() };
        place.look()?.manifest().cloned().ok_or_else(|| missing().into())
    };
    Ok(look().map_err(|error| failure(&error))?)
}

/// Returns the checkpoint from which a run without limits would continue.
fn begins_with(place: &StatePlace) -> anyhow::Result<Manifest> {
    let last = manifest(place)?;
    if last.stopped_at.is_none() {
        return Ok(last);
    }
    let before_limit = || -> Result<Option<Manifest>, StateError> {
        Ok(place.look()?.with_older()?.pinned().filter(|pinned| pinned.identity == last.identity).cloned())
    };
    Ok(before_limit().map_err(|error| failure(&error))?.unwrap_or(last))
}

fn diff(arguments: &StateDiffArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let manifest = begins_with(&arguments.place)?;
    let otherwise = PlanFrom::Continued(&arguments.set, Some(&arguments.place));
    let plan = PlanFrom::file_or(arguments.plan.as_deref(), otherwise);
    let mut prepared = prepare_here(&arguments.workflow, plan, terminal)?;
    // The rate of a run is that of its plan where it has one.
    levels::settle(&mut prepared, arguments.rate, terminal);
    let difference = app::difference_of(&manifest, &prepared);
    let changes = app::changes(&manifest, &prepared);
    let goes_on = match &changes {
        Some(changes) => difference.is_none() || !changes.is_refused() && !changes.wants_acceptance(),
        None => difference.is_none(),
    };
    let mut out = answer::out();
    match (arguments.output, &changes) {
        (OutputForm::Json, changes) => {
            let mut told = json!({"version": 1, "ok": goes_on, "difference": difference});
            if let Some(changes) = changes {
                told["changes"] = serde_json::to_value(changes)?;
                told["is_refused"] = changes.is_refused().into();
                told["wants_acceptance"] = changes.wants_acceptance().into();
                end_is_null(&mut told);
            }
            serde_json::to_writer_pretty(&mut out, &told)?;
            writeln!(out)?;
        }
        (OutputForm::Table, Some(changes)) => {
            changes::write(changes, &mut out)?;
            match manifest.complete && difference.is_none() {
                true => writeln!(out, "the run of this state is complete: nothing left to do")?,
                false => writeln!(out, "{}", changes::verdict(changes))?,
            }
        }
        (OutputForm::Table, None) if goes_on => writeln!(out, "a run continues from this state")?,
        (OutputForm::Table, None) => writeln!(
            out,
            "{difference}\na run cannot continue from this state: tidemill {}, which wrote it, did not record its parts",
            manifest.written_by
        )?,
    }
    Ok(if goes_on { Exit::Success } else { Exit::No })
}

fn reset(arguments: &StateResetArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let place = &arguments.place;
    let (told, answer) = if let Some(operator) = &arguments.operator {
        let forgotten = reset_operator(place, operator)?;
        let lost: u64 = forgotten.stages.values().sum();
        let limit = forgotten.stopped_at.as_ref().map(|limits| {
            format!("; the run had stopped at {limits}, and continues from the checkpoint before that, to which outputs are truncated")
        });
        let told = format!(
            "operator `{operator}` starts empty at {}: it loses {} of state, and open windows and pairs get \
             only later records; its earlier output stays, and all others continue{}",
            place_of(forgotten.epoch),
            bytes(lost),
            limit.unwrap_or_default()
        );
        (told, json!({"reset": "operator", "forgotten": forgotten, "bytes": lost}))
    } else if let Some(epoch) = arguments.to {
        let manifest = app::go_back(place, epoch).map_err(|error| failure(&error))?;
        let from = manifest.as_ref().map(described).unwrap_or_default();
        let to = place_of(epoch);
        let told = format!("the next run with the state in `{place}` continues from {to}: {from}");
        (told, json!({"reset": "to", "checkpoint": manifest.map(|manifest| manifest.checkpoint)}))
    } else {
        app::reset(place)?;
        (format!("deleted the state in `{place}`"), json!({"reset": "all"}))
    };
    match arguments.output {
        OutputForm::Json => {
            let mut document = json!({"version": 1, "ok": true});
            document.as_object_mut().into_iter().zip(answer.as_object()).for_each(|(all, more)| {
                all.extend(more.clone());
            });
            let mut out = answer::out();
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        OutputForm::Table => terminal.note(&told),
    }
    Ok(Exit::Success)
}
