//! Runs of a model on records, one by one.
use super::records::Record;
use std::time::Duration;
use tidemill_inference::backend::BackendError;
use tidemill_inference::blueprint::{ReadColumn, Wanted};
use tidemill_inference::cell::Cell;
use tidemill_inference::model::{Memory, Model, RawOutputs};
use tidemill_inference::prepared::PreparedRow;
use tidemill_inference::preprocess::Rejected;
use tidemill_inference::steps::OutputColumn;

/// Result of a run.
pub(super) struct Ran {
    /// The outputs before the steps after the model.
    pub(super) raw: RawOutputs,
    /// The columns of the manifest.
    pub(super) columns: Vec<OutputColumn>,
    /// Time of the model alone.
    pub(super) took: Duration,
}

/// The result for a record, or the reason why it would become a dead letter.
pub(super) type Outcome = Result<Ran, Rejected>;

/// Runs the model on each record; those of a model with states follow one another.
pub(super) fn run(model: &mut Model, records: &[Record]) -> Vec<Outcome> {
    let read = model.blueprint().read_columns();
    let mut states: [Option<Memory>; 1] = [None];
    let mut is_warm = false;
    let outcomes = records.iter().map(|record| {
        let outcome = run_one(model, record, &read, &mut states, &mut is_warm);
        if outcome.is_err() {
            states = [None];
        }
        outcome
    });
    outcomes.collect()
}

#[expect(clippy::disallowed_methods, reason = "measures this machine; no record's time depends on it")]
fn run_one(
    model: &mut Model,
    record: &Record,
    read: &[ReadColumn],
    states: &mut [Option<Memory>; 1],
    is_warm: &mut bool,
) -> Outcome {
    let mut cells = Vec::with_capacity(read.len());
    for column in read {
        let cell = record.values.get(&column.name.value).map_or(Cell::Missing, |value| value.cell());
        // Features have a rule for empty values.
        if cell == Cell::Missing && matches!(column.wanted, Wanted::Exactly(_)) {
            return Err(Rejected::new("missing_value", format!("the column `{}` is empty", column.name)));
        }
        cells.push(cell);
    }
    let rows = [model.prepare(&cells)?];
    let failed = |error: BackendError| Rejected::new("model_failed", error.to_string());
    if !std::mem::replace(is_warm, true) {
        once(model, &rows, &mut states.clone()).map_err(failed)?;
    }
    let start = std::time::Instant::now();
    let raw = once(model, &rows, states).map_err(failed)?;
    let took = start.elapsed();
    if model.is_undecided(&raw) {
        let detail = "the model's scores are not numbers (NaN), so none is the largest";
        return Err(Rejected::new("not_a_number", detail));
    }
    let columns = model.finish(raw.clone());
    Ok(Ran { raw, columns, took })
}

fn once(
    model: &mut Model,
    rows: &[PreparedRow],
    states: &mut [Option<Memory>; 1],
) -> Result<RawOutputs, BackendError> {
    match model.blueprint().manifest.states.is_empty() {
        true => model.run(rows),
        false => model.run_after(rows, states),
    }
}
