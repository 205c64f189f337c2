//! `dataset`: labelled records in a folder, to train a model on.
//!
//! ```yaml
//! - id: collected
//!   kind: dataset
//!   input: intent
//!   options: {path: out/questions, inputs: [question], label: kind, most: 50000}
//!   ground_truth: {path: data/kinds.csv, key: key, prediction: intent, truth: kind}
//! ```
//! Inputs are numbers, truth values, texts and tensors. The label is a column of the record, or the right answer of the sink's
//! `ground_truth` for the record's key; a record with a label of its own keeps it. So labels that come later than the record arrive by a
//! `join`, and those that are known already by a file. Records without a label or without a value in one of the inputs are left out and
//! counted. With `ground_truth` the report also has the accuracy of the predictions that are collected.
//!
//! The folder has JSON lines in shards and `dataset.json`, which [`tidemill_dataset`] describes. Rows become part of it when their tick is
//! complete: first the shard grows, then `dataset.json` is replaced. There are at most `most` rows: the oldest shards, each a sixteenth
//! of them, are removed.
//!
//! Exactly once: as [`super::jsonl`]. A process that continues the run cuts off everything after the last recorded checkpoint.
//! A new run replaces the dataset; with `mode: append` it continues the dataset of earlier runs. Other files in the folder stay.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! let input = InputPort {
//!     from: "answer".into(),
//!     stream: StreamType::new([Column::new("width", ColumnType::Float64), Column::new("kind", ColumnType::Text)]),
//!     span: Span::nowhere(),
//! };
//! let id = "collected".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "{path: widths, inputs: [width], label: kind}")).unwrap();
//! let sink = Registry::builtin().sink("dataset").unwrap().bind(&context, &input, &options).unwrap();
//! let mut writer = (sink.make)().unwrap();
//! writer.commit(1).unwrap();
//! writer.close().unwrap();
//! assert_eq!(tidemill_dataset::Description::load(&folder.path().join("widths")).unwrap().rows(), 0);
//! ```
mod labels;
#[cfg(test)]
mod tests;
mod writer;

use super::rows::Rows;
use super::text_file::Mode;
use crate::api::{BoundSink, MakeDurableSink, Sink};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use labels::Labels;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_dataset::{Column, Description, Form};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, ElementType};
pub(super) use writer::check;
use writer::{Plan, Writer};

/// The kind `dataset`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Dataset;

/// Options of `dataset`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The folder, relative to the workflow file.
    path: Located<String>,
    /// Columns that a model is to learn from, in this order: numbers, truth values, texts and tensors.
    inputs: Vec<Located<String>>,
    /// The class that a model is to learn: a column of the records, or else the name of the answer of `ground_truth` in the dataset.
    label: Located<String>,
    /// Most rows; the oldest are removed when more come. Default: 100000.
    #[serde(default = "most")]
    most: Located<u64>,
    /// Treatment of the dataset of an earlier run. Default: replace.
    #[serde(default)]
    mode: Mode,
}

fn most() -> Located<u64> {
    Located::from(100_000)
}

impl TypedSinkKind for Dataset {
    type Options = Options;
    const KIND: &'static str = "dataset";
    const FACTS: SinkFacts =
        SinkFacts { publication: Publication::EachEpoch, free: &["most", "mode"], ..SinkFacts::DEFAULT };
    const SUMMARY: &'static str = "A folder with labelled records, to train a model on.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let mut errors = Diagnostics::new();
        let mut columns = Vec::new();
        for name in &options.inputs {
            let expected = "a number, a truth value, a text or a tensor of numbers";
            match input.column(context.id, 0, name, expected, |found| form(found).is_some()) {
                Ok((_, found)) => {
                    columns.extend(form(&found.column_type).map(|form| Column::new(&found.name, form)));
                }
                Err(error) => errors.push(error),
            }
        }
        let wrong = |at: &Located<String>, text: String, help: &str| {
            Diagnostic::error("E0606", text).at(at.span.clone()).with_help(help.to_owned())
        };
        if options.inputs.is_empty() {
            let error =
                Diagnostic::error("E0606", format!("`inputs` of sink `{}` names no column", context.id));
            errors.push(
                error.at(context.id.span.clone()).with_help("name the columns that a model is to learn from"),
            );
        }
        if options.path == "-" {
            let text = "a dataset is a folder and cannot be written to standard output".to_owned();
            errors.push(wrong(&options.path, text, "write the path of a folder, such as `out/collected`"));
        }
        if options.inputs.iter().any(|name| name.value == options.label.value) {
            let text = format!("`{}` is an input and the label", options.label);
            errors.push(wrong(
                &options.label,
                text,
                "a model cannot learn a column from itself: name another one",
            ));
        }
        if options.most.value == 0 {
            let error = Diagnostic::error("E0606", "a dataset of no rows").at(options.most.span.clone());
            errors.push(error.with_help("write the most rows to keep, such as `most: 100000`"));
        }
        let labels = match Labels::bind(context, input, &options.label) {
            Ok(labels) => Some(labels),
            Err(error) => {
                errors.push(error);
                None
            }
        };
        let rows = match Rows::choose(context, input, Some(&options.inputs), false) {
            Ok(rows) => Some(rows),
            Err(found) if !errors.has_errors() => return Err(found),
            Err(_) => None,
        };
        let (Some(labels), Some(rows), false) = (labels, rows, errors.has_errors()) else {
            return Err(errors);
        };
        let plan = Arc::new(Plan {
            folder: context.path(&options.path),
            rows,
            labels,
            empty: Description::new(columns, options.label.value.clone()),
            most: options.most.value,
            appends: options.mode == Mode::Append,
        });
        let files = vec![plan.folder.clone()];
        let durable: MakeDurableSink =
            Arc::new(move |token| Ok(Box::new(Writer::open(&plan, token)?) as Box<dyn Sink>));
        let make = Arc::clone(&durable);
        let sink = context.sink(Self::KIND, input, files, Arc::new(move || make(None)));
        Ok(BoundSink { durable: Some(durable), ..sink })
    }
}

/// Returns the form of a column in a dataset, if it can have one.
fn form(column: &ColumnType) -> Option<Form> {
    match column {
        ColumnType::Text => Some(Form::Text),
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Bool => Some(Form::Number),
        ColumnType::Tensor { element: ElementType::Text, .. } => None,
        ColumnType::Tensor { shape, .. } => Some(Form::Tensor { shape: shape.clone() }),
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => None,
    }
}
