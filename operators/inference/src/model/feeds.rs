//! The tensors of all inputs of a model: columns, constants and states.
use super::{Memory, Model, RawOutputs};
use crate::backend::BackendError;
use crate::blueprint::{Feed, FileInput, Records};
use crate::exact::fitting;
use crate::prepared::PreparedRow;
use crate::tensor::{Tensor, TensorData};
use std::sync::Arc;
use tidemill_spec::manifest::{Dimension, Initial};

impl Model {
    /// The tensors of all inputs of the file; those of a loop are zeros that its first step replaces.
    pub(super) fn inputs(&self, rows: &[PreparedRow]) -> Result<Vec<Tensor>, BackendError> {
        let batch =
            |row: &[usize]| std::iter::once(rows.len()).chain(row.iter().copied()).collect::<Vec<_>>();
        self.blueprint
            .inputs
            .iter()
            .map(|input| match input.feed {
                Feed::Column(i) => self.column(input, i, rows),
                Feed::Constant(i) => self.constant(input, i, rows.len()),
                Feed::Memory(i) => Ok(self.initial(input, i, rows.len())),
                Feed::State(_) | Feed::Token => Ok(Tensor::zeros(input.element, batch(&input.row))),
            })
            .collect()
    }

    /// The tensor of an input of the manifest; rows of an open dimension are filled to the longest.
    fn column(&self, input: &FileInput, at: usize, rows: &[PreparedRow]) -> Result<Tensor, BackendError> {
        let wrong = |error: crate::tensor::ShapeError| self.failed(error.to_string());
        let mut row = input.row.clone();
        let declared = Dimension::row(&self.blueprint.manifest.inputs[at].shape);
        let mut data = TensorData::zeros(input.element, 0);
        if let Some(open) = declared.iter().position(|side| *side == Dimension::Any) {
            let inner: usize = row.iter().product::<usize>().max(1);
            let longest = rows.iter().map(|row| row.values[at].len()).max().unwrap_or(0);
            // No model reads a text or sound of nothing.
            row[open] = (longest / inner).max(1);
            let filling = self.before[at].filling();
            for prepared in rows {
                let missing = row[open] * inner - prepared.values[at].len();
                if missing > 0 && longest > 0 && filling.is_none() {
                    return Err(self.failed("the records of a batch have different lengths".to_owned()));
                }
                let (value, is_before) = filling.unwrap_or_default();
                let (before, after) = if is_before { (missing, 0) } else { (0, missing) };
                (0..before).for_each(|_| data.push(value));
                data.append(prepared.values[at].clone()).map_err(wrong)?;
                (0..after).for_each(|_| data.push(value));
            }
        } else {
            for prepared in rows {
                data.append(prepared.values[at].clone()).map_err(wrong)?;
            }
        }
        let one = [&[rows.len()], row.as_slice()].concat();
        match input.records {
            Records::At(axis) => Ok(Tensor::new(one, data).map_err(wrong)?.moved(0, axis)),
            Records::One => Tensor::new(row, data).map_err(wrong),
        }
    }

    /// Runs the model on prepared records that follow others: `states` has those of each record, `None` for the first of its
    /// kind, and gets those after it.
    ///
    /// # Errors
    /// [`BackendError::Run`].
    pub fn run_after(
        &mut self,
        rows: &[PreparedRow],
        states: &mut [Option<Memory>],
    ) -> Result<RawOutputs, BackendError> {
        let is_apart = self.blueprint.one_by_one || self.groups(rows).len() > 1;
        let count = if is_apart { 1 } else { rows.len().max(1) };
        let mut all: Option<RawOutputs> = None;
        for (rows, states) in rows.chunks(count).zip(states.chunks_mut(count)) {
            let mut inputs = self.inputs(rows)?;
            let blueprint = Arc::clone(&self.blueprint);
            for (input, tensor) in blueprint.inputs.iter().zip(&mut inputs) {
                let Feed::Memory(at) = input.feed else { continue };
                let first = self.initial(&FileInput { records: Records::At(0), ..input.clone() }, at, 1);
                let parts = states.iter().map(|state| match state {
                    Some(memory) => memory.0[at].clone(),
                    None => first.clone(),
                });
                let joined =
                    Tensor::concatenate(parts.collect()).map_err(|error| self.failed(error.to_string()))?;
                *tensor = self.with_records(joined, input.records)?;
            }
            let origins = rows.iter().map(|row| row.origin.clone()).collect();
            let mut raw = self.run_inputs(&mut inputs, origins, 1)?;
            let after = std::mem::take(&mut raw.after);
            for (row, state) in states.iter_mut().enumerate() {
                *state = Some(Memory(after.iter().map(|tensor| tensor.row(row)).collect()));
            }
            match &mut all {
                None => all = Some(raw),
                Some(all) => all.others.push(raw),
            }
        }
        Ok(all.unwrap_or_default())
    }

    /// Moves the dimension of records from the first place to that of an input.
    fn with_records(&self, tensor: Tensor, records: Records) -> Result<Tensor, BackendError> {
        match records {
            Records::At(axis) => Ok(tensor.moved(0, axis)),
            Records::One => {
                let shape = tensor.shape().get(1..).unwrap_or_default().to_vec();
                tensor.reshaped(shape).map_err(|error| self.failed(error.to_string()))
            }
        }
    }

    /// The first value of a state for a number of records.
    pub(super) fn initial(&self, input: &FileInput, at: usize, rows: usize) -> Tensor {
        let value = match self.blueprint.manifest.states[at].initial {
            Initial::Zeros => 0.0,
            Initial::Constant(value) => value,
        };
        let mut shape = input.row.clone();
        if let Records::At(axis) = input.records {
            shape.insert(axis.min(shape.len()), rows);
        }
        let data = TensorData::filled(input.element, shape.iter().product(), value);
        Tensor::new(shape, data).expect("the length is that of the shape")
    }

    /// The tensor of a constant for a number of records.
    pub(super) fn constant(&self, input: &FileInput, at: usize, rows: usize) -> Result<Tensor, BackendError> {
        let mut shape = input.row.clone();
        if input.records == Records::At(0)
            && let Some(first) = shape.first_mut()
        {
            *first = rows;
        }
        let mut each = TensorData::zeros(input.element, 0);
        for value in self.blueprint.manifest.constants[at].value.values() {
            let value = fitting(input.element, *value).map_err(|error| self.failed(error.to_string()))?;
            each.append(value).map_err(|error| self.failed(error.to_string()))?;
        }
        let places: Vec<usize> = (0..each.len()).cycle().take(shape.iter().product()).collect();
        let data = each.picked(&places);
        Tensor::new(shape, data).map_err(|error| self.failed(error.to_string()))
    }
}
