//! Models that keep tensors from record to record, such as recurrent networks: their states by key, as part of snapshots.
use super::{MlInstance, arrow, dead};
use crate::model::Memory;
use crate::prepared::PreparedRow;
use crate::preprocess::Rejected;
use crate::tensor::{Tensor, TensorData};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_operators::api::{OperatorError, Output, Stateful};
use tidemill_operators::kind::{InputPort, OperatorContext};
use tidemill_operators::record::{EventTime, METADATA_COLUMNS, Metadata};
use tidemill_operators::relational::expression::Expression;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, StreamType};
use tidemill_spec::units::TimeSpan;

/// Format of snapshots.
const FORMAT: u8 = 1;

/// Which records of a model with states follow each other.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StateOptions {
    /// Column whose records follow each other, such as a microphone: text, int64 or bool. Default: all records do.
    #[serde(default)]
    pub(super) key: Option<Located<String>>,
    /// Time without a record after which the next one starts with the first values. Default: 1h.
    #[serde(default = "hour")]
    pub(super) reset_after: TimeSpan,
    /// Condition over the columns of the input; a record for which it holds starts with the first values.
    #[serde(default)]
    pub(super) reset_when: Option<Located<String>>,
}

fn hour() -> TimeSpan {
    TimeSpan(3_600_000_000_000)
}

/// The rules of a bound operator.
#[derive(Clone)]
pub(super) struct Rules {
    /// Position of the key in the input batch, if there is one.
    pub(super) key: Option<usize>,
    /// In microseconds.
    pub(super) reset_after: i64,
    pub(super) reset_when: Option<Expression>,
}

/// Returns the rules of the states of a model; `None` if it has none.
pub(super) fn rules(
    context: &OperatorContext<'_>,
    port: &InputPort,
    written: Option<&Located<StateOptions>>,
    manifest: &Manifest,
    output: &StreamType,
) -> Result<Option<Rules>, Diagnostics> {
    let Some(written) = written else {
        let Some(state) = manifest.states.first() else { return Ok(None) };
        let text = format!(
            "the model `{}` keeps `{}` from record to record, and `{}` does not say which records follow each other",
            manifest.id, state.input, context.id
        );
        let help = "write `options: {state: {key: COLUMN}}`, or `state: {}` if all records are one sequence";
        return Err(Diagnostic::error("E0559", text).at(context.id.span.clone()).with_help(help).into());
    };
    if manifest.states.is_empty() {
        let text = format!("the model `{}` keeps nothing from record to record", manifest.id);
        let help = "remove `state`, or add `states` to the manifest";
        return Err(Diagnostic::error("E0559", text).at(written.span.clone()).with_help(help).into());
    }
    let mut errors = Diagnostics::new();
    let is_key =
        |found: &ColumnType| matches!(found, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool);
    let mut key = None;
    if let Some(name) = &written.key {
        match port.column(context.id, 0, name, "text, int64 or bool", is_key) {
            Ok((index, column)) if output.column(name) == Some(column) => {
                key = Some(METADATA_COLUMNS + index)
            }
            Ok(_) => {
                let text = format!("the key `{name}` of the state is not in the output of `{}`", context.id);
                let help = "rename the column that the model writes";
                errors.push(Diagnostic::error("E0559", text).at(name.span.clone()).with_help(help));
            }
            Err(error) => errors.push(error),
        }
    }
    let condition = written.reset_when.as_ref().map(|text| (text, Expression::compile(text, &port.stream)));
    let reset_when = match condition {
        None => None,
        Some((_, Ok(compiled))) if compiled.result() == Some(ColumnType::Bool) => Some(compiled),
        Some((text, Ok(_))) => {
            let message = format!("`{text}` is no condition");
            let help = "write one that is true or false, such as `start == 0.0`";
            errors.push(Diagnostic::error("E0606", message).at(text.span.clone()).with_help(help));
            None
        }
        Some((text, Err(error))) => {
            let help = error.help.clone().unwrap_or_else(|| "correct the expression".to_owned());
            errors.push(Diagnostic::error("E0606", error.message).at(text.span.clone()).with_help(help));
            None
        }
    };
    let reset_after = i64::try_from(written.reset_after.0 / 1_000).unwrap_or(i64::MAX);
    errors.into_result(Some(Rules { key, reset_after, reset_when }))
}

/// Value of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Key {
    All,
    Text(String),
    Int(i64),
    Bool(bool),
}

/// States after the last record of a key.
struct Kept {
    last: EventTime,
    memory: Memory,
}

/// A loaded model with the states of all keys.
pub(super) struct StatefulMl {
    ml: MlInstance,
    rules: Rules,
    keys: BTreeMap<Key, Kept>,
}

impl StatefulMl {
    pub(super) fn new(ml: MlInstance, rules: Rules) -> Self {
        Self { ml, rules, keys: BTreeMap::new() }
    }

    fn key(&self, column: Option<&ArrayRef>, row: usize) -> Option<Key> {
        let Some(column) = column else { return Some(Key::All) };
        if column.is_null(row) {
            return None;
        }
        if let Some(texts) = column.as_string_opt::<i32>() {
            return Some(Key::Text(texts.value(row).to_owned()));
        }
        if let Some(numbers) = column.as_primitive_opt::<Int64Type>() {
            return Some(Key::Int(numbers.value(row)));
        }
        column.as_boolean_opt().map(|truths| Key::Bool(truths.value(row)))
    }

    /// Runs rows of different keys together. Returns the result and its rows.
    fn wave(
        &mut self,
        batch: &RecordBatch,
        wave: &[Member],
        output: &mut Output,
    ) -> Result<Vec<(Vec<u32>, RecordBatch)>, OperatorError> {
        let before = |this: &Self, member: &Member| {
            let kept = this.keys.get(&member.key).filter(|_| !member.is_first)?;
            let gap = member.time.saturating_sub(kept.last);
            (gap <= this.rules.reset_after).then(|| kept.memory.clone())
        };
        let mut states: Vec<Option<Memory>> = wave.iter().map(|member| before(self, member)).collect();
        let rows: Vec<PreparedRow> = wave.iter().map(|member| member.prepared.clone()).collect();
        let raw = match self.ml.model.run_after(&rows, &mut states) {
            Ok(raw) if !self.ml.model.is_undecided(&raw) => raw,
            // One record may have values that the model cannot take; the losses do not depend on the others.
            _ if wave.len() > 1 => {
                let mut results = Vec::new();
                for member in wave {
                    results.extend(self.wave(batch, std::slice::from_ref(member), output)?);
                }
                return Ok(results);
            }
            Ok(_) => {
                let detail = "the model's scores are not numbers (NaN), so none is the largest";
                return Ok(self.lose(batch, wave, Rejected::new("not_a_number", detail), output));
            }
            Err(error) => {
                let rejected = Rejected::new("model_failed", error.to_string());
                return Ok(self.lose(batch, wave, rejected, output));
            }
        };
        for (member, memory) in wave.iter().zip(states) {
            if let Some(memory) = memory {
                self.keys.insert(member.key.clone(), Kept { last: member.time, memory });
            }
        }
        let columns = self.ml.columns(self.ml.model.finish(raw))?;
        let rows: Vec<u32> = wave.iter().map(|member| member.row).collect();
        let result = self.ml.result(batch, &rows, columns.into_iter())?;
        Ok(vec![(rows, result)])
    }

    /// Makes dead letters of the records; the next ones of their keys start anew.
    fn lose(
        &mut self,
        batch: &RecordBatch,
        wave: &[Member],
        rejected: Rejected,
        output: &mut Output,
    ) -> Vec<(Vec<u32>, RecordBatch)> {
        for member in wave {
            self.keys.remove(&member.key);
            dead(batch, member.row as usize, rejected.clone(), output);
        }
        Vec::new()
    }
}

/// A record to run.
struct Member {
    row: u32,
    key: Key,
    time: EventTime,
    is_first: bool,
    prepared: PreparedRow,
}

impl Stateful for StatefulMl {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let (holds, failed) = match &self.rules.reset_when {
            Some(condition) => {
                let (holds, failed) = condition.holds(batch);
                (Some(holds), failed)
            }
            None => (None, Vec::new()),
        };
        let mut prepared = self.ml.model.no_rows();
        let usable = self.ml.prepare(batch, &mut prepared, output)?;
        let column = self.rules.key.map(|index| batch.column(index).clone());
        let times = Metadata::of(batch).times.clone();
        // The records of a key one after another, those of different keys together.
        let mut waves: Vec<Vec<Member>> = Vec::new();
        let mut counts: BTreeMap<Key, usize> = BTreeMap::new();
        for (at, row) in usable.into_iter().enumerate() {
            let index = row as usize;
            if let Some((_, why)) = failed.iter().find(|(failed, _)| *failed == index) {
                let detail = format!("`reset_when` cannot be evaluated: {why}");
                dead(batch, index, Rejected::new("expression_failed", detail), output);
                continue;
            }
            let Some(key) = self.key(column.as_ref(), index) else {
                let detail = "the key of the state is empty".to_owned();
                dead(batch, index, Rejected::new("missing_value", detail), output);
                continue;
            };
            let count = counts.entry(key.clone()).or_default();
            let member = Member {
                row,
                key,
                time: times.value(index),
                is_first: holds.as_ref().is_some_and(|holds| holds.value(index)),
                prepared: prepared.row(at),
            };
            if waves.len() <= *count {
                waves.push(Vec::new());
            }
            waves[*count].push(member);
            *count += 1;
        }
        let mut results = Vec::new();
        for wave in &waves {
            results.extend(self.wave(batch, wave, output)?);
        }
        let rows: Vec<u32> = results.iter().flat_map(|(rows, _)| rows.iter().copied()).collect();
        let batches: Vec<RecordBatch> = results.into_iter().map(|(_, result)| result).collect();
        let Some(first) = batches.first() else { return Ok(()) };
        let joined = arrow_select::concat::concat_batches(&first.schema(), &batches).map_err(arrow)?;
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_unstable_by_key(|at| rows[*at as usize]);
        let sorted =
            arrow_select::take::take_record_batch(&joined, &UInt32Array::from(order)).map_err(arrow)?;
        output.push(sorted);
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, _output: &mut Output) -> Result<(), OperatorError> {
        // A later record starts with the first values in any case.
        let reset_after = self.rules.reset_after;
        self.keys.retain(|_, kept| watermark.saturating_sub(kept.last) <= reset_after);
        Ok(())
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let keys = self.keys.iter().map(|(key, kept)| {
            let states = kept.memory.0.iter().map(Written::of).collect();
            (key.clone(), kept.last, states)
        });
        let keys: Vec<(Key, EventTime, Vec<Written>)> = keys.collect();
        rmp_serde::to_vec(&(FORMAT, keys))
            .map_err(|error| OperatorError::new(format!("cannot write the states of the model: {error}")))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        let broken = |why: String| {
            OperatorError::new(format!(
                "cannot read the states of the model ({why}): start the run from the beginning"
            ))
        };
        let (format, keys): (u8, Vec<(Key, EventTime, Vec<Written>)>) =
            rmp_serde::from_slice(snapshot).map_err(|error| broken(error.to_string()))?;
        if format != FORMAT {
            return Err(broken(format!("they have format {format}")));
        }
        self.keys.clear();
        let states = self.ml.model.blueprint().manifest.states.len();
        for (key, last, written) in keys {
            let memory: Option<Vec<Tensor>> = written.into_iter().map(Written::tensor).collect();
            let memory = memory.filter(|memory| memory.len() == states);
            let memory = memory.ok_or_else(|| broken("they belong to another model".to_owned()))?;
            self.keys.insert(key, Kept { last, memory: Memory(memory) });
        }
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.data().len() * 4 + 64;
        self.keys.values().map(|kept| kept.memory.0.iter().map(bytes).sum::<usize>()).sum()
    }
}

/// A tensor in a snapshot.
#[derive(Serialize, Deserialize)]
struct Written {
    shape: Vec<usize>,
    values: TensorData,
}

impl Written {
    fn of(tensor: &Tensor) -> Self {
        Self { shape: tensor.shape().to_vec(), values: tensor.data().clone() }
    }

    /// Returns the tensor; `None` if its values do not fill its shape.
    fn tensor(self) -> Option<Tensor> {
        Tensor::new(self.shape, self.values).ok()
    }
}
