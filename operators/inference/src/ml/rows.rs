//! Models whose rows are prepared and finished by another process, which gets only the columns that the model reads.
use super::{Layout, arrow};
use crate::location;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::{Schema, SchemaRef};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_operators::api::{DeadLetter, OperatorError, Output};
use tidemill_operators::model::ModelSpec;
use tidemill_operators::record::{METADATA_COLUMNS, Metadata, record_schema};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// Column with the place of a row among all that were sent.
const ROW: &str = "_row";

/// The rows of a model as another process gets and gives them.
///
/// [`Rows::narrowed`] takes the columns that the model reads, the other process computes an [instance](super::MlKind::instance_on) of
/// [`Rows::spec`], and [`Rows::widened`] puts the columns that stay beside its answers.
#[derive(Debug)]
pub struct Rows {
    spec: ModelSpec,
    sent: SchemaRef,
    consumed: Vec<usize>,
    kept: Vec<usize>,
    variant: Option<String>,
    schema: SchemaRef,
}

impl Rows {
    /// Of a model.
    ///
    /// # Errors
    /// If its data are not those of an operator `ml`.
    pub fn of(spec: &ModelSpec) -> Result<Self, OperatorError> {
        let layout: Layout = serde_json::from_value(spec.layout.clone())
            .map_err(|error| OperatorError::new(format!("the model of `{}`: {error}", spec.operator)))?;
        let row = Column::new(ROW, ColumnType::Int64);
        let read = layout.consumed.iter().filter_map(|at| spec.input.columns.get(at - METADATA_COLUMNS));
        let input = StreamType::new(std::iter::once(row.clone()).chain(read.cloned()));
        let answers = spec.output.columns.iter().skip(layout.kept.len()).take(layout.answers);
        let output = StreamType::new(std::iter::once(row).chain(answers.cloned()));
        let there = Layout {
            kept: vec![METADATA_COLUMNS],
            consumed: (0..layout.consumed.len()).map(|at| METADATA_COLUMNS + 1 + at).collect(),
            answers: layout.answers,
            variant: None,
        };
        let text = |error: serde_json::Error| OperatorError::new(error.to_string());
        let layout_there = serde_json::to_value(there).map_err(text)?;
        Ok(Self {
            sent: record_schema(&input),
            spec: ModelSpec { input, output, layout: layout_there, ..spec.clone() },
            consumed: layout.consumed,
            kept: layout.kept,
            variant: layout.variant,
            schema: record_schema(&spec.output),
        })
    }

    /// The model as the other process makes it.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Takes the columns that the model reads.
    ///
    /// # Errors
    /// If the batches have other columns.
    pub fn narrowed(&self, parts: &[RecordBatch]) -> Result<Vec<RecordBatch>, OperatorError> {
        let mut first = 0;
        let narrow = |part: &RecordBatch| {
            let rows = Int64Array::from_iter_values((first..).take(part.num_rows()));
            first += part.num_rows() as i64;
            let mut columns: Vec<ArrayRef> = part.columns().iter().take(METADATA_COLUMNS).cloned().collect();
            columns.push(Arc::new(rows));
            columns.extend(self.consumed.iter().map(|at| Arc::clone(part.column(*at))));
            // A batch may know of its columns more than their names: whether they are empty.
            let fields = self.sent.fields().iter().zip(&columns).map(|(field, column)| {
                Arc::new(
                    field.as_ref().clone().with_data_type(column.data_type().clone()).with_nullable(true),
                )
            });
            RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns).map_err(arrow)
        };
        parts.iter().map(narrow).collect()
    }

    /// Puts the columns that stay beside the answers. `answered`: output of the other process for the narrowed `parts`.
    ///
    /// # Errors
    /// If it is not.
    pub fn widened(
        &self,
        parts: &[RecordBatch],
        answered: Output,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let wrong = || OperatorError::new("the device gave other rows than it was given");
        for batch in answered.batches {
            let numbers = batch
                .columns()
                .get(METADATA_COLUMNS)
                .and_then(|column| column.as_primitive_opt::<Int64Type>());
            let numbers = numbers.ok_or_else(wrong)?;
            let mut first = 0;
            let at = *numbers.values().first().ok_or_else(wrong)?;
            let part = parts.iter().find(|part| {
                let begins = first;
                first += part.num_rows() as i64;
                (begins..first).contains(&at)
            });
            let part = part.ok_or_else(wrong)?;
            let begins = first - part.num_rows() as i64;
            let rows: Option<Vec<u32>> =
                numbers.values().iter().map(|row| u32::try_from(row - begins).ok()).collect();
            let rows = rows
                .filter(|rows| rows.iter().all(|row| (*row as usize) < part.num_rows()))
                .ok_or_else(wrong)?;
            let kept = part.project(&self.kept).map_err(arrow)?;
            let kept =
                arrow_select::take::take_record_batch(&kept, &UInt32Array::from(rows)).map_err(arrow)?;
            let mut columns: Vec<ArrayRef> = batch.columns().iter().take(METADATA_COLUMNS).cloned().collect();
            columns.extend(kept.columns().iter().cloned());
            columns.extend(batch.columns().iter().skip(METADATA_COLUMNS + 1).cloned());
            if let Some(variant) = &self.variant {
                columns.push(Arc::new(StringArray::from(vec![variant.as_str(); batch.num_rows()])));
            }
            output.push(RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(arrow)?);
        }
        for letter in answered.dead_letters {
            // Its values are those of the whole row.
            let places = parts.iter().flat_map(|part| (0..part.num_rows()).map(move |row| (part, row)));
            let place = places.into_iter().find(|(part, row)| Some(Metadata::of(part).id(*row)) == letter.id);
            let (part, row) = place.ok_or_else(wrong)?;
            output.dead_letters.push(DeadLetter::of_row(part, row, letter.reason, letter.detail));
        }
        output.drops.extend(answered.drops);
        output.notes.extend(answered.notes);
        Ok(())
    }
}

/// Returns the folder of a model's files, and the names of all files that loading it reads, relative to it, without the manifest.
///
/// # Errors
/// If the manifest cannot be read.
pub fn files_of(manifest_path: &Path) -> Result<(PathBuf, Vec<String>), OperatorError> {
    let manifest = Manifest::load(manifest_path).map_err(OperatorError::from)?;
    let folder = location::folder(&manifest, manifest_path);
    let mut named = BTreeSet::new();
    let written = serde_json::to_value(&manifest).map_err(|error| OperatorError::new(error.to_string()))?;
    collect(&written, &mut named);
    for model in manifest.files() {
        if let Ok(bytes) = std::fs::read(folder.join(model)) {
            named.extend(crate::external::files(&bytes));
        }
    }
    Ok((folder, named.into_iter().collect()))
}

/// Adds what the keys that name files have: those of models, tokenizers, labels and alphabets.
fn collect(value: &serde_json::Value, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    serde_json::Value::String(name)
                        if matches!(key.as_str(), "file" | "labels_file" | "alphabet_file") =>
                    {
                        into.extend((!name.is_empty()).then(|| name.clone()));
                    }
                    other => collect(other, into),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_found() {
        let mut named = BTreeSet::new();
        let manifest = serde_json::json!({
            "file": "m.onnx", "script": "x.py",
            "inputs": [{"preprocess": [{"tokenize": {"file": "t.json"}}]}],
            "outputs": [{"postprocess": [
                {"argmax": {"labels_file": "l.txt"}}, {"ctc_decode": {"alphabet_file": "a.txt"}},
            ]}],
        });
        collect(&manifest, &mut named);
        assert_eq!(named.into_iter().collect::<Vec<_>>(), ["a.txt", "l.txt", "m.onnx", "t.json"]);
    }
}
