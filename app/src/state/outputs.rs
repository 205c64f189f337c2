//! Checks whether a run could write its outputs before its state is created or changed, so that a refused run leaves
//! everything unchanged. Opening them later gives the same errors.
use crate::engine_failure::not_started;
use crate::failure::{Failure, Kind};
use crate::letters;
use crate::preparation::Prepared;
use crate::state::definition::{Definition, Role};
use crate::state::diff::{Changes, Verdict};
use crate::state::taking::{left, left_of_sinks};
use serde_json::Value;
use std::path::Path;
use tidemill_engine::{LettersPast, RunError};
use tidemill_operators::api::OperatorError;
use tidemill_operators::sinks::checking::{check, check_cut_back, check_ended};
use tidemill_state::Manifest;

/// Checks the outputs of a new run.
///
/// # Errors
/// Another run writes one.
pub(crate) fn check_new(prepared: &Prepared) -> Result<(), Failure> {
    for sink in prepared.program.sinks.values() {
        check(sink, None).map_err(|error| refused(&sink.id, error.message, prepared))?;
    }
    letters::check(&prepared.workflow, None)
}

/// Checks the outputs of a run that continues from a checkpoint; `ended`: the last one of that run, if it had ended after
/// the other; `taken`: their old definitions, and the changes since.
///
/// # Errors
/// Another run writes one, it has lost rows, or another run has continued after the end of this one.
pub(crate) fn check_continued(
    prepared: &Prepared,
    (from, ended): (&Manifest, Option<&Manifest>),
    taken: Option<&(Definition, Changes)>,
    now: &Definition,
) -> Result<(), Failure> {
    let goes_on = |id: &String| {
        taken.is_none_or(|(_, changes)| {
            matches!(changes.verdict(Role::Sink, id), Some(Verdict::GoesOn | Verdict::Changed))
        })
    };
    for sink in prepared.program.sinks.values() {
        let kept = from.sinks.get(&sink.id).filter(|_| goes_on(&sink.id));
        let token = kept.and_then(|kept| kept.token.as_ref()).map(|token| token.0.as_slice());
        check(sink, token).map_err(|error| refused(&sink.id, error.message, prepared))?;
        if let (Some(token), [file]) = (token, &sink.files[..]) {
            check_behind((from, ended), &sink.id, (&sink.kind, file, token))
                .map_err(|error| refused(&sink.id, error.message, prepared))?;
        }
    }
    if let Some((old, changes)) = taken {
        for (file, token) in left(from, old, now, changes, &prepared.workflow) {
            check_cut_back(&file, &token)
                .map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
        }
        for (id, file, token) in left_of_sinks(from, old, changes, &prepared.workflow) {
            let kind = old.parts[id].written.get("kind").and_then(Value::as_str).unwrap_or_default();
            check_behind((from, ended), id, (kind, &file, &token))
                .map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
        }
    }
    let is_other = taken.is_some_and(|(old, _)| old.dead_letters != now.dead_letters);
    let past: Option<LettersPast> = serde_json::from_value(from.letters.clone()).ok();
    let token = past.filter(|_| !is_other).and_then(|past| past.token);
    letters::check(&prepared.workflow, token.as_deref())
}

/// Checks that only the run itself has written a sink's file after the checkpoint that it continues from.
fn check_behind(
    (from, ended): (&Manifest, Option<&Manifest>),
    sink: &str,
    (kind, file, token): (&str, &Path, &[u8]),
) -> Result<(), OperatorError> {
    match (from.sinks.get(sink), ended.and_then(|ended| ended.sinks.get(sink))) {
        (Some(before), Some(end)) => check_ended(kind, file, token, end.rows.saturating_sub(before.rows)),
        _ => Ok(()),
    }
}

fn refused(sink: &str, text: String, prepared: &Prepared) -> Failure {
    not_started(&RunError::Operator { operator: sink.to_owned(), text }, &prepared.workflow)
}
