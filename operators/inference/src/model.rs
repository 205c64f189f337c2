//! A model ready to run: prepare records, run a batch, finish the results.
mod apart;
mod feeds;
mod processors;
mod texts;

use crate::backend::{Backend, BackendError, Session, Timed};
use crate::blueprint::{Blueprint, Feed, Records, labels_text};
use crate::decode_loop;
use crate::error::{ModelError, Role};
use crate::location;
use crate::origin::Origin;
use crate::output_steps::Beside;
use crate::postprocess::pool;
use crate::prepared::{PreparedRow, PreparedRows};
use crate::preprocess::Rejected;
use crate::sequence::encoder_decoder::EncoderDecoder;
use crate::sequence::generation::Generator;
use crate::steps::{Cell, InputSteps, OutputColumn, OutputSteps, StepsError};
use crate::tensor::{Tensor, TensorData};
use std::sync::Arc;
use tidemill_spec::manifest::{Dimension, InputType, ModelInput, Postprocess, Preprocess};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::ElementType;

/// Samples of the sound of a trial, for models that take sounds of any length.
const TRIAL_SAMPLES: usize = 16_000;
/// Width by height of the picture of a trial, for models that take pictures of any width: a short line of text.
const TRIAL_RATIO: u32 = 8;

/// Tokens of a text that a model writes on trial; the prompt has half as many.
const TRIAL_TOKENS: u32 = 8;

/// Outputs of the model for a batch, before the output steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RawOutputs {
    /// One for each output of the manifest; the first dimension is the batch.
    pub tensors: Vec<Tensor>,
    /// The texts collected by a declared loop or written by a decoder, one per record.
    pub texts: Option<Vec<String>>,
    /// Number of texts that ended at their largest number of tokens, not at the end token.
    pub cut_off: u64,
    /// A token was chosen among scores that are not numbers (NaN).
    pub undecided: bool,
    /// The scores of the first token that a model generates for the first record.
    pub(crate) first_scores: Option<Tensor>,
    /// The states after the records, each with the records first.
    after: Vec<Tensor>,
    /// The outputs that detection heads read beside their own, in their order.
    beside: Vec<Tensor>,
    /// The picture or text that each record was made of.
    origins: Vec<Origin>,
    /// The outputs of further records, if not all were run together.
    others: Vec<RawOutputs>,
    /// Place of each record among all runs, if it is not that of their order.
    order: Option<Vec<usize>>,
}

impl RawOutputs {
    /// The outputs of all runs.
    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }
}

/// The states of one record, each with a first dimension of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory(pub(crate) Vec<Tensor>);

/// A model: manifest, session and steps. Uses one thread.
pub struct Model {
    blueprint: Arc<Blueprint>,
    backend: &'static str,
    session: Timed,
    decoder: Option<EncoderDecoder>,
    generator: Option<Generator>,
    before: Vec<InputSteps>,
    after: Vec<OutputSteps>,
}

impl Model {
    /// Loads the model with a backend and tries it on zeros, with one record and, if the batch size is free, with two.
    ///
    /// # Errors
    /// [`ModelError`] if the backend is not allowed, refuses the model, or the trial shows other shapes than the manifest.
    pub fn load(blueprint: Arc<Blueprint>, backend: &dyn Backend) -> Result<Self, ModelError> {
        let blueprint = blueprint.for_backend(backend.name());
        let manifest = &blueprint.manifest;
        if backend.is_named_by_manifests() && !manifest.allows(backend.name()) {
            return Err(ModelError::NotAllowed {
                asked: backend.name().to_owned(),
                allowed: manifest.backends.value.clone(),
                span: manifest.backends.span.clone(),
            });
        }
        let wrong = |role, name: &Located<String>, message: String, span: &Span| ModelError::Steps {
            role,
            name: name.to_string(),
            message,
            span: span.clone(),
        };
        let folder = location::folder(manifest, &blueprint.manifest_path);
        let mut before = manifest
            .inputs
            .iter()
            .zip(&blueprint.input_rows)
            .map(|(input, row)| {
                let steps = InputSteps::new(input, row).map(|steps| steps.at_most(longest_sound(&blueprint)));
                let wrong = |error: StepsError| {
                    let span = input.preprocess.first().map_or(&input.name.span, |step| &step.span);
                    wrong(Role::Input, &input.name, error.message, span)
                };
                let steps = steps.map_err(wrong)?;
                let mut steps = match &manifest.generate {
                    Some(generate) => steps.for_prompt(generate),
                    None => steps,
                };
                steps.open(&folder).map_err(wrong)?;
                Ok(steps)
            })
            .collect::<Result<Vec<_>, ModelError>>()?;
        if manifest.outputs.iter().any(labels_text)
            && let Some(steps) = before.iter_mut().find(|steps| steps.splits_text())
        {
            steps.keep_text();
        }
        let picture = blueprint.picture();
        let after = manifest
            .outputs
            .iter()
            .zip(&blueprint.output_rows)
            .map(|(output, row)| {
                OutputSteps::with_picture(output, row, picture).map_err(|error| {
                    let span = output.postprocess.first().map_or(&output.shape.span, |step| &step.span);
                    wrong(Role::Output, &output.name, error.message, span)
                })
            })
            .collect::<Result<_, _>>()?;
        let session = Timed::new(backend.load(&blueprint.facts)?);
        let decoder = match &blueprint.sequence {
            Some(plan) => {
                let session = Timed::new(backend.load(&plan.decoder)?);
                Some(EncoderDecoder { session, model: blueprint.manifest.id.to_string() })
            }
            None => None,
        };
        let tokenizer = manifest.prompt().and_then(|at| before.get(at)).and_then(InputSteps::tokenizer);
        let generator = manifest.generate.as_ref().zip(tokenizer);
        let generator = generator
            .map(|(generate, tokenizer)| Generator::new(generate, tokenizer.clone(), manifest.id.to_string()))
            .transpose()?;
        let mut model =
            Self { backend: backend.name(), session, decoder, generator, before, after, blueprint };
        for rows in [1, 2] {
            if rows == 1 || !model.blueprint.one_by_one {
                match model.run_steps(&vec![model.zeros(); rows], 2) {
                    Ok(_) => {}
                    // No zero and no empty text is one of its categories; records show whether it runs.
                    Err(BackendError::Run { .. }) if model.blueprint.facts.has_categories() => {}
                    Err(cause) => return Err(ModelError::Trial { rows, cause }),
                }
            }
        }
        Ok(model)
    }

    /// The manifest with the facts from the file.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Name of the backend.
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// A record of zeros, for trials and probes; for a model that takes sounds of any length, a second, and of pictures of any
    /// width, a short line of text.
    pub fn zeros(&self) -> PreparedRow {
        let inputs = self.blueprint.manifest.inputs.iter().zip(&self.blueprint.input_rows);
        if let Some(plan) = &self.blueprint.sequence {
            let length =
                |(input, row): (&ModelInput, &Vec<usize>)| match input.shape.contains(&Dimension::Any) {
                    true => plan.sample_rate as usize,
                    false => row.iter().product(),
                };
            return PreparedRow::new(
                inputs.map(|each| TensorData::zeros(each.0.dtype, length(each))).collect(),
            );
        }
        let length = |input: &ModelInput, row: &[usize]| {
            let is_open = input.shape.contains(&Dimension::Any);
            match input.input_type {
                InputType::Audio if is_open => TRIAL_SAMPLES,
                InputType::Text if self.generator.is_some() => TRIAL_TOKENS as usize / 2,
                _ => row.iter().product::<usize>() * trial_width(input),
            }
        };
        PreparedRow::new(
            inputs.map(|(input, row)| TensorData::zeros(input.dtype, length(input, row))).collect(),
        )
    }

    /// Prepares one record; `cells` are the values of the columns that the manifest's inputs name, in that order.
    ///
    /// # Errors
    /// [`Rejected`] if the record is unusable.
    pub fn prepare(&mut self, cells: &[Cell<'_>]) -> Result<PreparedRow, Rejected> {
        let mut rows = self.no_rows();
        self.prepare_into(cells, &mut rows)?;
        Ok(rows.row(0))
    }

    /// Creates an empty buffer for prepared records.
    pub fn no_rows(&self) -> PreparedRows {
        PreparedRows::new(self.before.iter().map(|steps| TensorData::zeros(steps.element(), 0)).collect())
    }

    /// Like [`Model::prepare`], but appends to `rows`, which was made by [`Model::no_rows`].
    ///
    /// # Errors
    /// [`Rejected`] if the record is unusable; `rows` is then unchanged.
    pub fn prepare_into(&mut self, cells: &[Cell<'_>], rows: &mut PreparedRows) -> Result<(), Rejected> {
        let mut appended = Ok(());
        let (mut origin, mut start) = (Origin::default(), 0);
        for (steps, values) in self.before.iter_mut().zip(&mut rows.inputs) {
            let end = start + steps.columns();
            match steps.append(cells.get(start..end).unwrap_or_default(), values) {
                Ok(read) => origin = origin.or(read),
                Err(rejected) => {
                    appended = Err(rejected);
                    break;
                }
            }
            start = end;
        }
        if appended.is_ok()
            && !rows.inputs.is_empty()
            && let Some(too_long) = self.longer_than_a_text(rows.unfinished(0))
        {
            appended = Err(too_long);
        }
        match &appended {
            Ok(()) => rows.finish(origin),
            Err(_) => rows.cut(),
        }
        appended
    }

    /// Rejects a sound (its values) that is longer than a decoder's largest text: only a part would be transcribed.
    fn longer_than_a_text(&self, values: usize) -> Option<Rejected> {
        let (plan, most) = (self.blueprint.sequence.as_ref()?, longest_sound(&self.blueprint)?);
        let seconds = plan.seconds(values)?;
        (seconds > most).then(|| {
            let detail = format!("it lasts {seconds:.1} s, the model accepts at most {most:.1} s");
            Rejected::new("audio_too_long", detail)
        })
    }

    /// Runs the model on prepared records: once for all, or one by one if the file has a batch dimension of 1. Texts of other
    /// lengths, for which the model has no mask, are run apart from each other.
    ///
    /// # Errors
    /// [`BackendError::Run`].
    pub fn run(&mut self, rows: &[PreparedRow]) -> Result<RawOutputs, BackendError> {
        self.run_steps(rows, self.most_steps())
    }

    /// Like [`Model::run`], for records in one piece, which are run in place and stay unchanged, also on failure.
    ///
    /// # Errors
    /// [`BackendError::Run`].
    pub fn run_rows(&mut self, rows: &mut PreparedRows) -> Result<RawOutputs, BackendError> {
        if self.blueprint.one_by_one || !self.is_plain() {
            let rows: Vec<PreparedRow> = (0..rows.len()).map(|row| rows.row(row)).collect();
            return self.run(&rows);
        }
        let blueprint = Arc::clone(&self.blueprint);
        let count = rows.len();
        let mut inputs = Vec::with_capacity(blueprint.inputs.len());
        for input in &blueprint.inputs {
            let shape: Vec<usize> = std::iter::once(count).chain(input.row.iter().copied()).collect();
            inputs.push(match input.feed {
                Feed::Constant(i) => match self.constant(input, i, count) {
                    Ok(tensor) => tensor,
                    Err(error) => {
                        give_back(&blueprint, inputs, rows);
                        return Err(error);
                    }
                },
                Feed::Column(i) if rows.inputs[i].len() == shape.iter().product::<usize>() => {
                    let nothing = TensorData::zeros(input.element, 0);
                    Tensor::new(shape, std::mem::replace(&mut rows.inputs[i], nothing))
                        .expect("the length was compared")
                }
                Feed::Column(i) => {
                    let reason = format!("{} values do not fill {shape:?}", rows.inputs[i].len());
                    give_back(&blueprint, inputs, rows);
                    return Err(self.failed(reason));
                }
                Feed::Memory(i) => self.initial(input, i, count),
                Feed::State(_) | Feed::Token => Tensor::zeros(input.element, shape),
            });
        }
        let origins = rows.origins.clone();
        let result = self.run_inputs(&mut inputs, origins, self.most_steps());
        give_back(&blueprint, inputs, rows);
        result
    }

    fn most_steps(&self) -> u32 {
        let manifest = &self.blueprint.manifest;
        let repeat = manifest.repeat.as_ref().map(|repeat| repeat.max_steps.value);
        let decoder = manifest.decoder.as_ref().map(|decoder| decoder.max_tokens.value);
        let generate = manifest.generate.as_ref().map(|generate| generate.max_tokens.value);
        repeat.or(decoder).or(generate).unwrap_or(1)
    }

    /// Like [`Model::run`], for records that only serve to look at the model: a generation writes few tokens.
    ///
    /// # Errors
    /// [`BackendError::Run`].
    pub(crate) fn run_trial(&mut self, rows: &[PreparedRow]) -> Result<RawOutputs, BackendError> {
        let most = if self.generator.is_some() { TRIAL_TOKENS } else { u32::MAX };
        self.run_steps(rows, self.most_steps().min(most))
    }

    /// Returns whether the values of prepared records are the model's inputs as they are.
    fn is_plain(&self) -> bool {
        self.blueprint.inputs.iter().all(|input| match input.feed {
            Feed::Column(i) => {
                input.records == Records::At(0)
                    && !self.blueprint.manifest.inputs[i].shape.contains(&Dimension::Any)
            }
            _ => true,
        })
    }

    /// Converts the outputs to columns, in the order of [`Blueprint::output_columns`].
    pub fn finish(&self, raw: RawOutputs) -> Vec<OutputColumn> {
        let RawOutputs { tensors, texts, beside, origins, others, order, .. } = raw;
        let mut beside = beside.as_slice();
        let mut columns = Vec::with_capacity(tensors.len() + usize::from(texts.is_some()));
        for ((steps, tensor), count) in self.after.iter().zip(tensors).zip(self.blueprint.beside()) {
            let (own, rest) = beside.split_at(count.min(beside.len()));
            beside = rest;
            let shape = tensor.shape().get(1..).unwrap_or_default().to_vec();
            let beside = Beside { outputs: own, origins: &origins, shape: Some(&shape) };
            columns.push(steps.apply_beside(tensor.into_data(), beside));
        }
        columns.extend(texts.map(OutputColumn::Text));
        for other in others {
            for (column, more) in columns.iter_mut().zip(self.finish(other)) {
                // Columns of the same steps have the same type.
                let appended = column.append(more);
                debug_assert!(appended.is_ok(), "{appended:?}");
            }
        }
        match order {
            Some(order) => columns.into_iter().map(|column| column.reordered(&order)).collect(),
            None => columns,
        }
    }

    /// Returns whether a text would be chosen among scores that are not numbers, see [`OutputSteps::is_undecided`].
    pub fn is_undecided(&self, raw: &RawOutputs) -> bool {
        raw.all().any(|raw| {
            let mut outputs = self.after.iter().zip(&raw.tensors);
            raw.undecided || outputs.any(|(steps, tensor)| steps.is_undecided(tensor.data()))
        })
    }

    /// `max_steps` bounds a declared loop; the trial uses fewer than a real run.
    fn run_steps(&mut self, rows: &[PreparedRow], max_steps: u32) -> Result<RawOutputs, BackendError> {
        if rows.len() <= 1 || self.decoder.is_some() || self.generator.is_some() {
            return self.run_batch(rows, max_steps);
        }
        if !self.blueprint.one_by_one {
            let groups = self.groups(rows);
            return match groups.len() {
                1 => self.run_batch(rows, max_steps),
                _ => self.run_groups(rows, &groups, max_steps),
            };
        }
        let mut rows = rows.chunks(1);
        let mut first = self.run_batch(rows.next().unwrap_or_default(), max_steps)?;
        for row in rows {
            let raw = self.run_batch(row, max_steps)?;
            first.cut_off += raw.cut_off;
            first.others.push(raw);
        }
        Ok(first)
    }

    fn run_batch(&mut self, rows: &[PreparedRow], max_steps: u32) -> Result<RawOutputs, BackendError> {
        if let Some(written) = self.texts(rows, max_steps)? {
            return Ok(written);
        }
        let mut inputs = self.inputs(rows)?;
        let origins = rows.iter().map(|row| row.origin.clone()).collect();
        self.run_inputs(&mut inputs, origins, max_steps)
    }

    /// `inputs` are those of the file, in order; a loop changes those that it feeds back. `origins`: one for each record.
    fn run_inputs(
        &mut self,
        inputs: &mut [Tensor],
        origins: Vec<Origin>,
        max_steps: u32,
    ) -> Result<RawOutputs, BackendError> {
        let rows = origins.len();
        let (mut tensors, texts, cut_off, undecided) = match &self.blueprint.manifest.repeat {
            Some(repeat) => {
                let session = &mut self.session;
                let outcome = decode_loop::run(session, &self.blueprint, repeat, inputs, rows, max_steps)?;
                (outcome.tensors, Some(outcome.texts), outcome.cut_off, outcome.undecided)
            }
            None => (self.session.run(inputs, &self.blueprint.wanted)?, None, 0, false),
        };
        let manifest = &self.blueprint.manifest;
        let mut beside = tensors.split_off(tensors.len().min(manifest.outputs.len()));
        let after = beside.split_off(beside.len().saturating_sub(manifest.states.len()));
        let after = after.into_iter().enumerate();
        let after = after.map(|(at, tensor)| self.state(at, tensor, rows)).collect::<Result<Vec<_>, _>>()?;
        let outputs = tensors.into_iter().enumerate();
        let tensors = outputs.map(|(at, tensor)| {
            let tensor = self.output(at, tensor, rows)?;
            self.pooled(at, tensor, inputs)
        });
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let beside = beside
            .into_iter()
            .map(|tensor| {
                let shape = tensor.shape().to_vec();
                match shape.first() {
                    Some(first) if *first == rows => Ok(tensor),
                    _ if rows == 1 => tensor
                        .reshaped([&[1], shape.as_slice()].concat())
                        .map_err(|error| self.failed(error.to_string())),
                    _ => {
                        let reason = format!("an output for {rows} records has the shape {shape:?}");
                        Err(self.failed(reason))
                    }
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.check_heads(&tensors, &beside)?;
        Ok(RawOutputs { tensors, texts, cut_off, undecided, after, beside, origins, ..RawOutputs::default() })
    }

    /// Makes one vector of the places of each record, if the first step of the output says so. `inputs`: those of the file.
    fn pooled(&self, at: usize, tensor: Tensor, inputs: &[Tensor]) -> Result<Tensor, BackendError> {
        let output = &self.blueprint.manifest.outputs[at];
        let failed = |reason: &str| self.failed(format!("output `{}`: {reason}", output.name));
        match output.postprocess.first().map(|step| &step.value) {
            Some(Postprocess::MeanPool { mask }) => {
                let mask = mask.as_ref().and_then(|mask| self.mask(mask, inputs));
                pool::mean(tensor, mask.as_ref()).ok_or_else(|| failed("the mask has another length"))
            }
            Some(Postprocess::Pick { at }) => {
                pool::pick(tensor, *at).ok_or_else(|| failed("it has no such place"))
            }
            _ => Ok(tensor),
        }
    }

    /// The tensor of an input of the file, with the records in its first dimension.
    fn mask(&self, name: &str, inputs: &[Tensor]) -> Option<Tensor> {
        let at = self.blueprint.facts.inputs.iter().position(|port| port.name == name)?;
        let mask = inputs.get(at)?.clone();
        Some(match self.blueprint.inputs.get(at)?.records {
            Records::At(axis) if axis < mask.shape().len() => mask.moved(axis, 0),
            _ => mask,
        })
    }

    /// Brings the records of a state after them to its first dimension.
    fn state(&self, at: usize, tensor: Tensor, rows: usize) -> Result<Tensor, BackendError> {
        let state = &self.blueprint.manifest.states[at];
        let fed = self.blueprint.inputs.iter().find(|input| matches!(input.feed, Feed::Memory(i) if i == at));
        let element = fed.map_or(tensor.data().element(), |input| input.element);
        self.with_rows_first(&state.output, element, &state.shape, tensor, rows)
    }

    /// Brings the records of an output to its first dimension and compares its shape with the manifest.
    fn output(&self, at: usize, tensor: Tensor, rows: usize) -> Result<Tensor, BackendError> {
        let output = &self.blueprint.manifest.outputs[at];
        self.with_rows_first(&output.name, output.dtype, &output.shape, tensor, rows)
    }

    fn with_rows_first(
        &self,
        name: &str,
        element: ElementType,
        declared: &[Dimension],
        tensor: Tensor,
        rows: usize,
    ) -> Result<Tensor, BackendError> {
        let found = tensor.to_string();
        let row = Dimension::row(declared);
        let is_one = |side: &usize| *side == rows;
        let tensor = match Records::of(declared) {
            Records::At(axis) if tensor.shape().get(axis).is_some_and(is_one) => tensor.moved(axis, 0),
            Records::One if rows == 1 && tensor.shape().len() == row.len() => {
                let shape = [&[1], tensor.shape()].concat();
                tensor.reshaped(shape).map_err(|error| self.failed(error.to_string()))?
            }
            _ => tensor,
        };
        let fits = |(expected, found): (&Dimension, &usize)| match expected {
            Dimension::Fixed(size) => *size as usize == *found,
            Dimension::Any | Dimension::Batch => true,
        };
        // Some exporters declare another number of dimensions of 1 than the file gives.
        let tensor =
            match fixed(&row).filter(|row| wide(row).eq(wide(tensor.shape().get(1..).unwrap_or_default()))) {
                Some(row) if tensor.shape().first() == Some(&rows) => tensor
                    .reshaped([&[rows], row.as_slice()].concat())
                    .map_err(|error| self.failed(error.to_string()))?,
                _ => tensor,
            };
        let is_right = tensor.data().element() == element
            && tensor.shape().first() == Some(&rows)
            && tensor.shape().len() == row.len() + 1
            && row.iter().zip(&tensor.shape()[1..]).all(fits);
        if is_right {
            return Ok(tensor);
        }
        let expected: Vec<String> = declared
            .iter()
            .map(|side| match side {
                Dimension::Batch => rows.to_string(),
                other => other.to_string(),
            })
            .collect();
        let changes = tensor.shape().len() == row.len() + 1
            && (rows == 1 && tensor.rows() != 1 || tensor.rows() == 0)
            && row.iter().zip(&tensor.shape()[1..]).all(fits);
        Err(BackendError::Shape {
            backend: self.backend,
            model: self.blueprint.manifest.id.to_string(),
            reason: format!("output `{name}`: expected [{}] {element}, found {found}", expected.join(", "),),
            changes,
        })
    }

    /// Compares the shapes that detection heads read.
    fn check_heads(&self, tensors: &[Tensor], mut beside: &[Tensor]) -> Result<(), BackendError> {
        fn row(tensor: &Tensor) -> &[usize] {
            tensor.shape().get(1..).unwrap_or_default()
        }
        for ((steps, tensor), count) in self.after.iter().zip(tensors).zip(self.blueprint.beside()) {
            let (own, rest) = beside.split_at(count.min(beside.len()));
            beside = rest;
            let shapes: Vec<&[usize]> = std::iter::once(tensor).chain(own).map(row).collect();
            if let Some(reason) = steps.refused(&shapes) {
                return Err(BackendError::Shape {
                    backend: self.backend,
                    model: self.blueprint.manifest.id.to_string(),
                    reason,
                    changes: false,
                });
            }
        }
        Ok(())
    }

    fn failed(&self, reason: String) -> BackendError {
        BackendError::Run { backend: self.backend, model: self.blueprint.manifest.id.to_string(), reason }
    }
}

/// Width of the picture of a trial, for models that take pictures of any width; else 1.
fn trial_width(input: &ModelInput) -> usize {
    let width = |step: &Located<Preprocess>| match step.value {
        Preprocess::FitHeight { height, width: None, least, .. } => {
            Some(least.max(height.saturating_mul(TRIAL_RATIO)) as usize)
        }
        _ => None,
    };
    input.preprocess.iter().find_map(width).unwrap_or(1)
}

/// Returns the sizes of a row; `None` if one of them is open.
fn fixed(row: &[Dimension]) -> Option<Vec<usize>> {
    row.iter()
        .map(|side| if let Dimension::Fixed(size) = side { Some(*size as usize) } else { None })
        .collect()
}

/// Returns the sizes other than 1.
fn wide(sizes: &[usize]) -> impl Iterator<Item = usize> + '_ {
    sizes.iter().copied().filter(|size| *size != 1)
}

/// Returns the values of the records to their buffers.
fn give_back(blueprint: &Blueprint, inputs: Vec<Tensor>, rows: &mut PreparedRows) {
    for (input, tensor) in blueprint.inputs.iter().zip(inputs) {
        if let Feed::Column(i) = input.feed {
            rows.inputs[i] = tensor.into_data();
        }
    }
}

/// Longest sound, in seconds, whose whole text fits; `None` if its length does not matter.
fn longest_sound(blueprint: &Blueprint) -> Option<f64> {
    let decoder = blueprint.manifest.decoder.as_ref()?;
    Some(f64::from(decoder.max_tokens.value) / decoder.tokens_per_second.as_ref()?.value)
}
