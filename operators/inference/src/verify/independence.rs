//! Whether the outputs of a record are the same alone and beside another record.
use super::{INPUTS, allowed, described, made_up, too_far};
use crate::error::ModelError;
use crate::model::Model;
use crate::prepared::PreparedRow;
use crate::tensor::TensorData;
use tidemill_spec::manifest::{Dimension, InputType, Preprocess, TokenValues};

/// Sets of generated inputs that are compared.
const SETS: usize = 2;

/// Compares the outputs of two generated records alone and in one batch. An output that differs in each set of inputs is an
/// error: close decisions of a model, such as an order of places, may differ in one. Where texts may have any length, the
/// second record has a longer one.
pub(super) fn check(model: &mut Model) -> Result<(), ModelError> {
    if model.blueprint().one_by_one {
        return Ok(());
    }
    let allowed = allowed(model);
    let mut found = None;
    for &(seed, least, most, integers) in INPUTS.iter().take(SETS) {
        let (short, long) = (model.zeros(), longer(model));
        let rows = [(short, seed), (long, seed + 100)]
            .map(|(zeros, seed)| seen(model, made_up(&zeros, seed, least, most, integers)));
        let alone = rows.each_ref().map(|row| model.run_trial(std::slice::from_ref(row)));
        // The model has no row for these integers, or another reason not to take them.
        let [Ok(first), Ok(second)] = alone else { continue };
        let both = model.run_trial(&rows)?;
        let pairs = [(first, 0), (second, 1)];
        let mut pairs = pairs.iter().flat_map(|(alone, row)| {
            let outputs = &model.blueprint().manifest.outputs;
            outputs.iter().zip(alone.record(0).into_iter().zip(both.record(*row)))
        });
        // Outputs for each token are longer beside a longer text.
        let differs = pairs.find_map(|(output, (alone, beside))| {
            let is_same = alone.shape() == beside.shape();
            let (difference, tolerance) =
                is_same.then(|| too_far(alone.data(), beside.data(), allowed))??;
            Some(ModelError::Mixes {
                output: output.name.to_string(),
                difference,
                tolerance,
                inputs: described(least, most, integers),
                span: output.name.span.clone(),
            })
        });
        match differs {
            None => return Ok(()),
            differs => found = differs,
        }
    }
    found.map_or(Ok(()), Err)
}

/// A record of zeros with texts of 4 tokens or characters, where the manifest allows any number.
fn longer(model: &Model) -> PreparedRow {
    let mut row = model.zeros();
    for (input, values) in model.blueprint().manifest.inputs.iter().zip(&mut row.values) {
        if input.input_type == InputType::Text && input.shape.contains(&Dimension::Any) {
            *values = TensorData::zeros(values.element(), values.len() * 4);
        }
    }
    row
}

/// Marks all tokens of generated texts as such.
fn seen(model: &Model, mut row: PreparedRow) -> PreparedRow {
    let of_token = |step: &Preprocess| match step {
        Preprocess::Tokenize { give: TokenValues::Mask, .. } => Some(1.0),
        Preprocess::Tokenize { give: TokenValues::Types, .. } => Some(0.0),
        _ => None,
    };
    for (input, values) in model.blueprint().manifest.inputs.iter().zip(&mut row.values) {
        if let Some(value) = input.preprocess.iter().find_map(|step| of_token(&step.value)) {
            *values = TensorData::filled(values.element(), values.len(), value);
        }
    }
    row
}
