//! A model ready to run: prepare records, run a batch, finish the results.
use crate::backend::{Backend, BackendError, Session};
use crate::blueprint::{Blueprint, Feed};
use crate::decode_loop;
use crate::error::ModelError;
use crate::prepared::{PreparedRow, PreparedRows};
use crate::preprocess::Rejected;
use crate::sequence::greedy::{self, Greedy};
use crate::sequence::tokenizer::normalized;
use crate::steps::{Cell, InputSteps, OutputColumn, OutputSteps};
use crate::tensor::{Tensor, TensorData};
use std::sync::Arc;
use std::time::Duration;
use tidemill_spec::manifest::{Dimension, ModelInput};
use tidemill_spec::span::Span;

/// Outputs of the model for a batch, before the output steps.
#[derive(Debug, Clone, PartialEq)]
pub struct RawOutputs {
    /// One for each output of the manifest; the first dimension is the batch.
    pub tensors: Vec<Tensor>,
    /// The texts collected by a declared loop or written by a decoder, one per record.
    pub texts: Option<Vec<String>>,
    /// Number of texts that ended at their largest number of tokens, not at the end token.
    pub cut_off: u64,
    /// A token was chosen among scores that are not numbers (NaN).
    pub undecided: bool,
}

/// A model: manifest, session and steps. Uses one thread.
pub struct Model {
    blueprint: Arc<Blueprint>,
    backend: &'static str,
    session: Box<dyn Session>,
    decoder: Option<Greedy>,
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
        if !manifest.backends.iter().any(|allowed| allowed.to_string() == backend.name()) {
            return Err(ModelError::NotAllowed {
                asked: backend.name().to_owned(),
                allowed: manifest.backends.value.clone(),
                span: manifest.backends.span.clone(),
            });
        }
        let wrong = |message: String, span: &Span| ModelError::Loop { message, span: span.clone() };
        let before = manifest
            .inputs
            .iter()
            .zip(&blueprint.input_rows)
            .map(|(input, row)| {
                let steps = InputSteps::new(input, row).map(|steps| steps.at_most(longest_sound(&blueprint)));
                steps.map_err(|e| wrong(e.message, &input.shape.span))
            })
            .collect::<Result<_, _>>()?;
        let after = manifest
            .outputs
            .iter()
            .zip(&blueprint.output_rows)
            .map(|(output, row)| {
                OutputSteps::new(output, row).map_err(|e| wrong(e.message, &output.shape.span))
            })
            .collect::<Result<_, _>>()?;
        let session = backend.load(&blueprint.facts)?;
        let decoder = match &blueprint.sequence {
            Some(plan) => {
                Some(Greedy::new(backend.load(&plan.decoder)?, plan, blueprint.manifest.id.to_string()))
            }
            None => None,
        };
        let mut model = Self { backend: backend.name(), session, decoder, before, after, blueprint };
        for rows in [1, 2] {
            if rows == 1 || !model.blueprint.one_by_one {
                model
                    .run_steps(&vec![model.zeros(); rows], 2)
                    .map_err(|cause| ModelError::Trial { rows, cause })?;
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

    /// Processor time so far of the backend's own threads, if it has any.
    pub fn processor_time_elsewhere(&self) -> Duration {
        let decoder = self.decoder.as_ref().map(|decoder| decoder.session.processor_time_elsewhere());
        self.session.processor_time_elsewhere() + decoder.unwrap_or_default()
    }

    /// A record of zeros, for trials and probes; for a model that takes sounds of any length, a second.
    pub fn zeros(&self) -> PreparedRow {
        let inputs = self.blueprint.manifest.inputs.iter().zip(&self.blueprint.input_rows);
        if let Some(plan) = &self.blueprint.sequence {
            let length =
                |(input, row): (&ModelInput, &Vec<usize>)| match input.shape.contains(&Dimension::Any) {
                    true => plan.sample_rate as usize,
                    false => row.iter().product(),
                };
            return PreparedRow(inputs.map(|each| TensorData::zeros(each.0.dtype, length(each))).collect());
        }
        PreparedRow(inputs.map(|(input, row)| TensorData::zeros(input.dtype, row.iter().product())).collect())
    }

    /// Prepares one record; `cells` are the values of the columns that the manifest's inputs name, in that order.
    ///
    /// # Errors
    /// [`Rejected`] if the record is unusable.
    pub fn prepare(&mut self, cells: &[Cell<'_>]) -> Result<PreparedRow, Rejected> {
        let values = self.before.iter_mut().zip(cells).map(|(steps, cell)| steps.apply(*cell));
        let row = PreparedRow(values.collect::<Result<_, _>>()?);
        let values = row.0.first().map_or(0, TensorData::len);
        self.longer_than_a_text(values).map_or(Ok(row), Err)
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
        let inputs = self.before.iter_mut().zip(cells).zip(&mut rows.inputs);
        let mut appended = Ok(());
        for ((steps, cell), values) in inputs {
            appended = steps.append(*cell, values);
            if appended.is_err() {
                break;
            }
        }
        if appended.is_ok()
            && !rows.inputs.is_empty()
            && let Some(too_long) = self.longer_than_a_text(rows.unfinished(0))
        {
            appended = Err(too_long);
        }
        match &appended {
            Ok(()) => rows.finish(),
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

    /// Runs the model on prepared records: once for all, or one by one if the file has a batch dimension of 1.
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
        if self.blueprint.one_by_one || self.decoder.is_some() {
            let rows: Vec<PreparedRow> = (0..rows.len()).map(|row| rows.row(row)).collect();
            return self.run(&rows);
        }
        let blueprint = Arc::clone(&self.blueprint);
        let count = rows.len();
        let mut inputs = Vec::with_capacity(blueprint.inputs.len());
        for input in &blueprint.inputs {
            let shape: Vec<usize> = std::iter::once(count).chain(input.row.iter().copied()).collect();
            inputs.push(match input.feed {
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
                Feed::State(_) | Feed::Token => Tensor::zeros(input.element, shape),
            });
        }
        let result = self.run_inputs(&mut inputs, count, self.most_steps());
        give_back(&blueprint, inputs, rows);
        result
    }

    fn most_steps(&self) -> u32 {
        let manifest = &self.blueprint.manifest;
        let repeat = manifest.repeat.as_ref().map(|repeat| repeat.max_steps.value);
        let decoder = manifest.decoder.as_ref().map(|decoder| decoder.max_tokens.value);
        repeat.or(decoder).unwrap_or(1)
    }

    /// Converts the outputs to columns, in the order of [`Blueprint::output_columns`].
    pub fn finish(&self, raw: RawOutputs) -> Vec<OutputColumn> {
        let outputs =
            self.after.iter().zip(raw.tensors).map(|(steps, tensor)| steps.apply(tensor.into_data()));
        outputs.chain(raw.texts.map(OutputColumn::Text)).collect()
    }

    /// Returns whether a text would be chosen among scores that are not numbers, see [`OutputSteps::is_undecided`].
    pub fn is_undecided(&self, raw: &RawOutputs) -> bool {
        let mut outputs = self.after.iter().zip(&raw.tensors);
        raw.undecided || outputs.any(|(steps, tensor)| steps.is_undecided(tensor.data()))
    }

    /// `max_steps` bounds a declared loop; the trial uses fewer than a real run.
    fn run_steps(&mut self, rows: &[PreparedRow], max_steps: u32) -> Result<RawOutputs, BackendError> {
        if !self.blueprint.one_by_one || rows.len() <= 1 {
            return self.run_batch(rows, max_steps);
        }
        let mut parts: Vec<Vec<Tensor>> = vec![Vec::new(); self.after.len()];
        let mut texts: Option<Vec<String>> = None;
        let (mut cut_off, mut undecided) = (0, false);
        for row in rows {
            let raw = self.run_batch(std::slice::from_ref(row), max_steps)?;
            for (all, part) in parts.iter_mut().zip(raw.tensors) {
                all.push(part);
            }
            if let Some(more) = raw.texts {
                texts.get_or_insert_default().extend(more);
            }
            cut_off += raw.cut_off;
            undecided |= raw.undecided;
        }
        let tensors = parts
            .into_iter()
            .map(|parts| Tensor::concatenate(parts).map_err(|error| self.failed(error.to_string())))
            .collect::<Result<_, _>>()?;
        Ok(RawOutputs { tensors, texts, cut_off, undecided })
    }

    /// Decodes the text of each record.
    fn write(&mut self, rows: &[PreparedRow], max_tokens: u32) -> Result<Option<RawOutputs>, BackendError> {
        let (Some(greedy), Some(plan), Some(decoder)) =
            (&mut self.decoder, &self.blueprint.sequence, &self.blueprint.manifest.decoder)
        else {
            return Ok(None);
        };
        let mut texts = Vec::with_capacity(rows.len());
        let (mut cut_off, mut undecided) = (0, false);
        for row in rows {
            let Some(values) = row.0.first() else { continue };
            let shape = match self.blueprint.input_rows.first() {
                Some(row) if row.iter().product::<usize>() == values.len() => [&[1], row.as_slice()].concat(),
                _ => vec![1, values.len()],
            };
            let failed = |error: crate::tensor::ShapeError| BackendError::Run {
                backend: self.backend,
                model: greedy.model.clone(),
                reason: error.to_string(),
            };
            let record = Tensor::new(shape, values.clone()).map_err(failed)?;
            let most = max_tokens.min(greedy::most_tokens(plan, decoder, values.len()));
            let written = greedy.write(self.session.as_mut(), plan, decoder, &record, most)?;
            cut_off += u64::from(!written.ended);
            undecided |= written.undecided;
            let text = plan.tokenizer.text(&written.tokens);
            texts.push(match &decoder.alphabet {
                Some(alphabet) => normalized(&text, alphabet),
                None => text,
            });
        }
        Ok(Some(RawOutputs { tensors: Vec::new(), texts: Some(texts), cut_off, undecided }))
    }

    fn run_batch(&mut self, rows: &[PreparedRow], max_steps: u32) -> Result<RawOutputs, BackendError> {
        if let Some(written) = self.write(rows, max_steps)? {
            return Ok(written);
        }
        let mut inputs = self.inputs(rows)?;
        self.run_inputs(&mut inputs, rows.len(), max_steps)
    }

    /// `inputs` are those of the file, in order; a loop changes those that it feeds back.
    fn run_inputs(
        &mut self,
        inputs: &mut [Tensor],
        rows: usize,
        max_steps: u32,
    ) -> Result<RawOutputs, BackendError> {
        let (tensors, texts, cut_off, undecided) = match &self.blueprint.manifest.repeat {
            Some(repeat) => {
                let session = self.session.as_mut();
                let outcome = decode_loop::run(session, &self.blueprint, repeat, inputs, rows, max_steps)?;
                (outcome.tensors, Some(outcome.texts), outcome.cut_off, outcome.undecided)
            }
            None => (self.session.run(inputs, &self.blueprint.wanted)?, None, 0, false),
        };
        for ((tensor, row), output) in
            tensors.iter().zip(&self.blueprint.output_rows).zip(&self.blueprint.manifest.outputs)
        {
            let expected: Vec<usize> = std::iter::once(rows).chain(row.iter().copied()).collect();
            if tensor.shape() != expected || tensor.data().element() != output.dtype {
                let changes = tensor.shape().len() == expected.len()
                    && (rows == 1 && tensor.rows() != 1 || tensor.rows() == 0)
                    && tensor.shape()[1..] == expected[1..];
                return Err(BackendError::Shape {
                    backend: self.backend,
                    model: self.blueprint.manifest.id.to_string(),
                    reason: format!(
                        "output `{}`: expected {expected:?} {}, found {tensor}",
                        output.name, output.dtype
                    ),
                    changes,
                });
            }
        }
        Ok(RawOutputs { tensors, texts, cut_off, undecided })
    }

    /// The tensors of all inputs of the file; those of a loop are zeros that its first step replaces.
    fn inputs(&self, rows: &[PreparedRow]) -> Result<Vec<Tensor>, BackendError> {
        let batch =
            |row: &[usize]| std::iter::once(rows.len()).chain(row.iter().copied()).collect::<Vec<_>>();
        self.blueprint
            .inputs
            .iter()
            .map(|input| match input.feed {
                Feed::Column(i) => {
                    let mut data = TensorData::zeros(input.element, 0);
                    for row in rows {
                        data.append(row.0[i].clone()).map_err(|error| self.failed(error.to_string()))?;
                    }
                    Tensor::new(batch(&input.row), data).map_err(|error| self.failed(error.to_string()))
                }
                Feed::State(_) | Feed::Token => Ok(Tensor::zeros(input.element, batch(&input.row))),
            })
            .collect()
    }

    fn failed(&self, reason: String) -> BackendError {
        BackendError::Run { backend: self.backend, model: self.blueprint.manifest.id.to_string(), reason }
    }
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
