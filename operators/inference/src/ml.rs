//! The operator kind `ml`: a model over the rows of one stream.
//!
//! ```yaml
//! - id: image_features
//!   kind: ml
//!   inputs: [images]
//!   variants: [models/scene-features-small.yaml, models/scene-features-large.yaml]
//!   backend: auto          # auto | rten | ort
//!   options: {keep: [image]}
//! ```
//! A model whose manifest has `states` needs the option `state`, which says what records follow each other. It computes epoch
//! by epoch, and its states are part of snapshots:
//!
//! ```yaml
//! - id: speech
//!   kind: ml
//!   input: chunks
//!   variants: [models/voice-activity.yaml]
//!   options: {state: {key: microphone, reset_after: 5s}}
//! ```
//! Columns that the manifest reads as image, sound, bytes or tensor are consumed unless `keep` names them; texts and numbers
//! stay. An unusable
//! record becomes a dead letter (`image_truncated`, `audio_empty`, ...); the others of its batch are processed.
mod columns;
mod rows;
mod stateful;

pub use self::columns::CellReader;
use self::columns::{array, is_alike};
pub use self::rows::{Rows, files_of};
use self::stateful::{StateOptions, StatefulMl, rules};
use crate::backend::{Backend, BackendError};
use crate::blueprint::{Blueprint, ReadColumn, Wanted};
use crate::choice;
use crate::error::ModelError;
use crate::model::Model;
use crate::prepared::PreparedRows;
use crate::preprocess::Rejected;
use crate::preprocess::features;
use crate::steps::{Cell, OutputColumn};
use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow_schema::SchemaRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{
    BoundOperator, Computation, DeadLetter, Inference, Instance, MakeInstance, OperatorError, Output, Spread,
};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind, Step};
use tidemill_operators::model::{ChosenBackend, ModelSpec};
use tidemill_operators::record::{METADATA_COLUMNS, derive_metadata, operator_number, record_schema};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::manifest::{InputType, Manifest};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::Value;

/// The kind `ml`; see the module. Clones share what was read: each manifest and its file are read once.
#[derive(Clone, Default)]
pub struct MlKind {
    models: Arc<Models>,
}

#[derive(Default)]
struct Models {
    /// Manifests with their files, by path of the manifest.
    blueprints: Mutex<HashMap<PathBuf, Arc<Blueprint>>>,
    /// Manifests alone.
    on_paper: Mutex<HashMap<PathBuf, Arc<Blueprint>>>,
}

impl MlKind {
    /// Returns the manifest at this path with the facts from its file; both are read at the first call only.
    ///
    /// # Errors
    /// See [`Blueprint::read`].
    pub fn blueprint(&self, path: &Path) -> Result<Arc<Blueprint>, Vec<ModelError>> {
        let mut known = self.models.blueprints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blueprint) = known.get(path) {
            return Ok(Arc::clone(blueprint));
        }
        let blueprint = Blueprint::read(path)?;
        known.insert(path.to_owned(), Arc::clone(&blueprint));
        Ok(blueprint)
    }

    /// Returns the manifest at this path without its file; it is read at the first call only. It serves to check types, and
    /// cannot be loaded.
    ///
    /// # Errors
    /// See [`Blueprint::read_manifest`].
    pub fn on_paper(&self, path: &Path) -> Result<Arc<Blueprint>, Vec<ModelError>> {
        let mut known = self.models.on_paper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blueprint) = known.get(path) {
            return Ok(Arc::clone(blueprint));
        }
        let blueprint = Blueprint::read_manifest(path)?;
        known.insert(path.to_owned(), Arc::clone(&blueprint));
        Ok(blueprint)
    }

    /// Loads and tries a model as [`choice::load`] does. Any process that has the files can: the data are all that it
    /// needs.
    ///
    /// # Errors
    /// An error in the data, the manifest, its file or its backends.
    pub fn instance(&self, spec: &ModelSpec) -> Result<Box<dyn Inference>, OperatorError> {
        Ok(Box::new(self.loaded(spec)?))
    }

    /// Loads a model as [`Self::instance`] does, with this backend, which may compute elsewhere. `why`: the reason for it.
    ///
    /// # Errors
    /// An error in the data, the manifest, its file or the backend; one that [is lost](OperatorError::lost) where the backend is.
    pub fn instance_on(
        &self,
        spec: &ModelSpec,
        backend: &dyn Backend,
        why: &str,
    ) -> Result<Box<dyn Inference>, OperatorError> {
        let blueprint = self.blueprint(&spec.manifest).map_err(ModelError::collect)?;
        let model = Model::load(blueprint, backend).map_err(|error| match error.lost() {
            Some(reason) => OperatorError::lost(reason),
            None => error.into_diagnostics().into(),
        })?;
        let backend = ChosenBackend { name: backend.name().to_owned(), why: why.to_owned() };
        Ok(Box::new(planned(spec, model, backend)?))
    }

    fn loaded(&self, spec: &ModelSpec) -> Result<MlInstance, OperatorError> {
        let blueprint = self.blueprint(&spec.manifest).map_err(ModelError::collect)?;
        let loaded = choice::load(&blueprint, &spec.backend, &spec.libraries);
        let (model, choice) = loaded.map_err(ModelError::into_diagnostics)?;
        planned(spec, model, ChosenBackend { why: choice.why(), name: choice.backend })
    }
}

/// A loaded model of an operator.
fn planned(spec: &ModelSpec, model: Model, backend: ChosenBackend) -> Result<MlInstance, OperatorError> {
    let layout = serde_json::from_value(spec.layout.clone())
        .map_err(|error| OperatorError::new(format!("the model of `{}`: {error}", spec.operator)))?;
    let (operator, schema) = (operator_number(&spec.operator), record_schema(&spec.output));
    let plan = Arc::new(Plan { operator, schema, layout, backend });
    Ok(MlInstance { rows: model.no_rows(), model, plan })
}

/// Options of `ml`; the manifest says everything about the model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Columns that the model reads and that stay in its output, such as the picture of a detection. Default: none;
    /// text always stays.
    #[serde(default)]
    keep: Vec<Located<String>>,
    /// Name of a text column with the id of the variant that answered, because it can change while an edge is cut
    /// (`when_cut: degrade`) and when a plan changes. Default: none.
    #[serde(default)]
    variant_column: Option<Located<String>>,
    /// For a model with `states` in its manifest: which records follow each other. `{}` if all do.
    #[serde(default)]
    state: Option<Located<StateOptions>>,
}

impl OperatorKind for MlKind {
    fn kind(&self) -> &'static str {
        "ml"
    }

    fn summary(&self) -> &'static str {
        "Runs a model on every record; the manifest describes its inputs and outputs."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> OperatorFacts {
        OperatorFacts {
            computation: Computation::Inference,
            loads_models: true,
            device_prepares: true,
            ..OperatorFacts::DEFAULT
        }
    }

    fn facts_of(&self, options: &Value) -> OperatorFacts {
        match options.get("state") {
            Some(_) => OperatorFacts { computation: Computation::Stateful, ..self.facts() },
            None => self.facts(),
        }
    }

    fn spread(&self, options: &Value) -> Spread {
        match options.get("state") {
            Some(state) => Spread::by_group(state.get("key").and_then(Value::as_str)),
            None => Spread::Any,
        }
    }

    fn bind(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        written: &Value,
    ) -> Result<BoundOperator, Diagnostics> {
        let options: Options =
            if written.is_null() { Options::default() } else { written.deserialize_into()? };
        let path = variant(context)?;
        let blueprint = match context.step {
            Step::Check => self.on_paper(&path),
            Step::Open => self.blueprint(&path),
        };
        let blueprint = blueprint.map_err(ModelError::collect)?;
        let backend = context.backend.unwrap_or("auto").to_owned();
        available(&blueprint, &backend, context)?;
        let manifest = &blueprint.manifest;
        let read = blueprint.read_columns();
        kept_are_read(context, &options.keep, &manifest.id, &read)?;
        let keep: Vec<&str> = options.keep.iter().map(|name| name.value.as_str()).collect();
        let kept: Vec<usize> = kept_columns(&inputs[0].stream, manifest, &keep).collect();
        let (mut output, columns) = output_type(context, &inputs[0], &blueprint, &kept)?;
        let answers = output.columns.len() - kept.len();
        if let Some(name) = &options.variant_column {
            add_variant_column(context, &mut output, name)?;
        }
        let layout = Layout {
            kept: kept.into_iter().map(|i| METADATA_COLUMNS + i).collect(),
            consumed: columns.into_iter().map(|i| METADATA_COLUMNS + i).collect(),
            answers,
            variant: options.variant_column.is_some().then(|| manifest.id.value.clone()),
        };
        let spec = ModelSpec {
            operator: context.id.value.clone(),
            kind: self.kind().to_owned(),
            variant: manifest.id.value.clone(),
            manifest: path,
            backend,
            libraries: context.base.to_owned(),
            input: inputs[0].stream.clone(),
            output: output.clone(),
            layout: serde_json::to_value(layout)
                .map_err(|error| Diagnostic::error("E0606", error.to_string()).at(context.id.span.clone()))?,
        };
        let models = self.clone();
        let (computation, spread) = (self.facts_of(written).computation, self.spread(written));
        let (id, kind) = (spec.operator.clone(), spec.kind.clone());
        let Some(rules) = rules(context, &inputs[0], options.state.as_ref(), manifest, &output)? else {
            let model = Some(spec.clone());
            let make: MakeInstance = Arc::new(move || models.instance(&spec).map(Instance::Inference));
            return Ok(BoundOperator { id, kind, output, computation, spread, model, make });
        };
        let make: MakeInstance = Arc::new(move || {
            let loaded = models.loaded(&spec)?;
            Ok(Instance::Stateful(Box::new(StatefulMl::new(loaded, rules.clone()))))
        });
        Ok(BoundOperator { id, kind, output, computation, spread, model: None, make })
    }
}

/// Returns the manifest to bind: the requested one, else the first.
fn variant(context: &OperatorContext<'_>) -> Result<PathBuf, Diagnostics> {
    let path = |written: &str| context.base.join(written);
    let Some(first) = context.variants.first() else {
        return Err(Diagnostic::error(
            "E0560",
            format!("`{}` has no `variants`: there is no model to run", context.id),
        )
        .at(context.id.span.clone())
        .with_help("add `variants: [path/to/manifest.yaml]`")
        .into());
    };
    let Some(wanted) = context.variant else { return Ok(path(first)) };
    if let Some(written) = context.variants.iter().find(|v| v.value == wanted) {
        return Ok(path(written));
    }
    // Not a path, so it must be the id in one of the manifests.
    let mut ids = Vec::new();
    for written in context.variants {
        if let Ok(manifest) = Manifest::load(path(written)) {
            if manifest.id == wanted {
                return Ok(path(written));
            }
            ids.push(manifest.id.value);
        }
    }
    Err(Diagnostic::error("E0560", format!("`{}` has no variant `{wanted}`", context.id))
        .at(first.span.clone())
        .with_help(format!("variants: {}", ids.join(", ")))
        .into())
}

/// Fails early if no backend on this machine can run the model. A check skips this: another machine will run it.
fn available(blueprint: &Blueprint, backend: &str, context: &OperatorContext<'_>) -> Result<(), Diagnostics> {
    let located = |error: ModelError| -> Diagnostics {
        error
            .into_diagnostics()
            .iter()
            .cloned()
            .map(|d| if d.span.source().is_none() { d.at(context.id.span.clone()) } else { d })
            .collect()
    };
    choice::not_allowed(blueprint, backend).map_err(located)?;
    if context.step == Step::Check {
        return Ok(()); // that of another machine counts
    }
    let names: Vec<String> = match backend {
        "auto" => blueprint.manifest.backends.iter().map(ToString::to_string).collect(),
        one => vec![one.to_owned()],
    };
    let mut last = None;
    for name in names {
        match crate::backend::backend(&name, context.base) {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(located(error.into())),
        None => Ok(()),
    }
}

/// Returns the type of the output, and the input column of each model input.
fn output_type(
    context: &OperatorContext<'_>,
    port: &InputPort,
    blueprint: &Blueprint,
    kept: &[usize],
) -> Result<(StreamType, Vec<usize>), Diagnostics> {
    let mut errors = Diagnostics::new();
    let mut columns = Vec::new();
    for column in blueprint.read_columns() {
        let input = &blueprint.manifest.inputs[column.input].name;
        let of = format!("(input `{input}` of the model `{}`)", blueprint.manifest.id);
        let found = match &column.wanted {
            Wanted::Exactly(expected) => {
                port.column(context.id, 0, &column.name, &format!("{expected} {of}"), |found| {
                    is_alike(found, expected)
                })
            }
            Wanted::Feature(feature) => {
                let words = if feature.categories.is_empty() { "a number or bool" } else { "text or int64" };
                let words = format!("{words} {of}");
                port.column(context.id, 0, &column.name, &words, |found| features::accepts(feature, found))
            }
        };
        match found {
            Ok((index, _)) => columns.push(index),
            Err(error) => errors.push(error),
        }
    }
    let kept = kept.iter().map(|i| port.stream.columns[*i].clone());
    let mut output = StreamType::new(kept);
    for column in blueprint.output_columns() {
        if output.column(&column.name).is_some() {
            errors.push(
                Diagnostic::error(
                    "E0559",
                    format!(
                        "the model `{}` writes the column `{}`, which `{}` already receives from `{}`",
                        blueprint.manifest.id, column.name, context.id, port.from
                    ),
                )
                .at(port.span.clone())
                .with_help(
                    "put a `map` between them that does not keep that column, or rename it in the manifest",
                ),
            );
        }
        output.columns.push(column);
    }
    errors.into_result((output, columns))
}

/// Returns the input columns that stay: text and those that the model does not read, and those in `keep`.
fn kept_columns<'a>(
    stream: &'a StreamType,
    manifest: &'a Manifest,
    keep: &'a [&'a str],
) -> impl Iterator<Item = usize> + 'a {
    // Only large values are consumed.
    let is_large = |input: InputType| !matches!(input, InputType::Text | InputType::Features);
    (0..stream.columns.len()).filter(move |i| {
        let name = stream.columns[*i].name.as_str();
        keep.contains(&name)
            || !manifest.inputs.iter().any(|input| is_large(input.input_type) && input.column == name)
    })
}

/// Refuses to keep a column that the model does not read: it stays anyway, or does not exist.
fn kept_are_read(
    context: &OperatorContext<'_>,
    keep: &[Located<String>],
    model: &str,
    read: &[ReadColumn],
) -> Result<(), Diagnostics> {
    let read: Vec<&str> = read.iter().map(|column| column.name.as_str()).collect();
    let mut errors = Diagnostics::new();
    for name in keep.iter().filter(|name| !read.contains(&name.value.as_str())) {
        let help = tidemill_spec::diagnostic::suggestion(
            name,
            read.iter().copied(),
            &format!("columns that `{model}` reads"),
        );
        let text = format!("`{}` keeps the column `{name}`, which its model does not read", context.id);
        errors.push(Diagnostic::error("E0559", text).at(name.span.clone()).with_help(help));
    }
    errors.into_result(())
}

/// Adds the column with the variant that answered.
fn add_variant_column(
    context: &OperatorContext<'_>,
    output: &mut StreamType,
    name: &Located<String>,
) -> Result<(), Diagnostics> {
    if output.column(name).is_some() {
        let text = format!("`{}` has a column `{name}` already", context.id);
        let help = "write another name at `variant_column`";
        return Err(Diagnostic::error("E0559", text).at(name.span.clone()).with_help(help).into());
    }
    if name.is_empty() || name.starts_with('_') {
        let text = format!("`{name}` cannot be the name of a column of a workflow");
        let help = "write one that does not start with `_`, such as `answered_by`";
        return Err(Diagnostic::error("E0559", text).at(name.span.clone()).with_help(help).into());
    }
    output.columns.push(Column::new(name.value.clone(), ColumnType::Text));
    Ok(())
}

/// Which columns a model reads and gives.
#[derive(Serialize, Deserialize)]
struct Layout {
    /// Columns of the input batch that stay, in order.
    kept: Vec<usize>,
    /// Columns of the input batch for the model's inputs.
    consumed: Vec<usize>,
    /// Number of columns from the model.
    answers: usize,
    /// Value of the variant column, if the workflow requests it.
    variant: Option<String>,
}

/// The inputs from which an instance was made.
struct Plan {
    operator: u64,
    schema: SchemaRef,
    layout: Layout,
    backend: ChosenBackend,
}

/// One loaded model.
struct MlInstance {
    model: Model,
    plan: Arc<Plan>,
    /// The records of the previous batch; their buffers are reused.
    rows: PreparedRows,
}

impl Inference for MlInstance {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.infer_parts(std::slice::from_ref(batch), output)
    }

    fn infer_parts(&mut self, parts: &[RecordBatch], output: &mut Output) -> Result<(), OperatorError> {
        // If an error occurs in between, new buffers are allocated.
        let mut prepared = std::mem::replace(&mut self.rows, self.model.no_rows());
        prepared.clear();
        let mut usable = Vec::with_capacity(parts.len());
        for part in parts {
            usable.push(self.prepare(part, &mut prepared, output)?);
        }
        if !prepared.is_empty() {
            match self.model.run_rows(&mut prepared) {
                Ok(raw) if !self.model.is_undecided(&raw) => {
                    output.note_rows("text_cut_off", raw.cut_off);
                    let columns = self.columns(self.model.finish(raw))?;
                    let mut start = 0;
                    for (part, rows) in parts.iter().zip(&usable) {
                        let own = columns.iter().map(|column| column.slice(start, rows.len()));
                        output.push(self.result(part, rows, own)?);
                        start += rows.len();
                    }
                }
                // No record is the reason.
                Err(BackendError::Lost { reason, .. }) => return Err(OperatorError::lost(reason)),
                _ => self.run_alone(parts, &usable, &prepared, output)?,
            }
        }
        self.rows = prepared;
        Ok(())
    }

    fn processor_time_elsewhere(&self) -> Duration {
        self.model.processor_time_elsewhere()
    }

    fn model_time(&self) -> Option<Duration> {
        Some(self.model.run_time())
    }

    fn backend(&self) -> Option<ChosenBackend> {
        Some(self.plan.backend.clone())
    }
}

impl MlInstance {
    /// Appends the prepared rows of a batch; returns those that are usable.
    fn prepare(
        &mut self,
        batch: &RecordBatch,
        prepared: &mut PreparedRows,
        output: &mut Output,
    ) -> Result<Vec<u32>, OperatorError> {
        let plan = Arc::clone(&self.plan);
        let readers: Option<Vec<_>> =
            plan.layout.consumed.iter().map(|i| CellReader::new(batch.column(*i))).collect();
        let readers = readers
            .ok_or_else(|| OperatorError::new("the column types of a batch differ from the bound ones"))?;
        let mut rows = Vec::with_capacity(batch.num_rows());
        let mut cells = Vec::with_capacity(readers.len());
        let read = self.model.blueprint().read_columns();
        for row in 0..batch.num_rows() {
            cells.clear();
            cells.extend(readers.iter().map(|reader| reader.cell(row)));
            // Features have a rule for empty values.
            let mut empty = cells.iter().zip(&read).filter(|(cell, column)| {
                matches!(cell, Cell::Missing) && matches!(column.wanted, Wanted::Exactly(_))
            });
            let result = match empty.next() {
                None => self.model.prepare_into(&cells, prepared),
                Some((_, column)) => {
                    let detail = format!("the column `{}` is empty", column.name);
                    Err(Rejected::new("missing_value", detail))
                }
            };
            match result {
                Ok(()) => rows.push(row as u32),
                Err(rejected) => dead(batch, row, rejected, output),
            }
        }
        Ok(rows)
    }

    /// One record may have values that the model cannot take (an index out of range). So each is tried alone, and the
    /// losses do not depend on the other records of the batch.
    fn run_alone(
        &mut self,
        parts: &[RecordBatch],
        usable: &[Vec<u32>],
        prepared: &PreparedRows,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let places =
            parts.iter().zip(usable).flat_map(|(part, rows)| rows.iter().map(move |row| (part, *row)));
        for (at, (part, row)) in places.enumerate() {
            match self.model.run(&[prepared.row(at)]) {
                Ok(raw) if self.model.is_undecided(&raw) => {
                    let text = "the model's scores are not numbers (NaN), so none is the largest";
                    dead(part, row as usize, Rejected::new("not_a_number", text), output);
                }
                Ok(raw) => {
                    output.note_rows("text_cut_off", raw.cut_off);
                    let columns = self.columns(self.model.finish(raw))?;
                    output.push(self.result(part, &[row], columns.into_iter())?);
                }
                Err(BackendError::Lost { reason, .. }) => return Err(OperatorError::lost(reason)),
                Err(error) => {
                    dead(part, row as usize, Rejected::new("model_failed", error.to_string()), output);
                }
            }
        }
        Ok(())
    }

    /// Converts the model's outputs to the last columns of the output.
    fn columns(&self, results: Vec<OutputColumn>) -> Result<Vec<ArrayRef>, OperatorError> {
        let first = METADATA_COLUMNS + self.plan.layout.kept.len();
        let fields = self.plan.schema.fields().iter().skip(first).take(self.plan.layout.answers);
        let columns = results.into_iter().zip(fields).map(|(column, field)| array(column, field.data_type()));
        columns.collect::<Result<_, _>>().map_err(arrow)
    }

    /// Returns the rows `rows` of the batch with the model's columns.
    fn result(
        &self,
        batch: &RecordBatch,
        rows: &[u32],
        columns: impl Iterator<Item = ArrayRef>,
    ) -> Result<RecordBatch, OperatorError> {
        let taken;
        let batch = if rows.len() == batch.num_rows() {
            batch
        } else {
            taken = arrow_select::take::take_record_batch(batch, &UInt32Array::from(rows.to_vec()))
                .map_err(arrow)?;
            &taken
        };
        let mut arrays = derive_metadata(batch, self.plan.operator);
        arrays.extend(self.plan.layout.kept.iter().map(|i| batch.column(*i).clone()));
        arrays.extend(columns);
        if let Some(variant) = &self.plan.layout.variant {
            arrays.push(Arc::new(StringArray::from(vec![variant.as_str(); rows.len()])));
        }
        RecordBatch::try_new(self.plan.schema.clone(), arrays).map_err(arrow)
    }
}

fn arrow(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(error.to_string())
}

/// Emits a dead letter for an unusable row.
fn dead(batch: &RecordBatch, row: usize, rejected: Rejected, output: &mut Output) {
    output.dead_letters.push(DeadLetter::of_row(batch, row, rejected.reason, rejected.detail));
}
