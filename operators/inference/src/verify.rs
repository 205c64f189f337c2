//! Checks that a model is usable, without real data.
mod independence;

use crate::backend;
use crate::blueprint::Blueprint;
use crate::error::ModelError;
use crate::facts::ModelFacts;
use crate::model::{Model, RawOutputs};
use crate::prepared::PreparedRow;
use crate::tensor::TensorData;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::types::{ElementType, StreamType};

/// Result of one backend of the manifest.
#[derive(Debug)]
pub struct BackendReport {
    /// Name of the backend.
    pub backend: String,
    /// Success if it loaded the model, the trial run gave the right shapes, records do not depend on others of their batch, and
    /// it agrees with the first backend that did.
    pub result: Result<(), ModelError>,
}

/// Result of [`verify`].
#[derive(Debug)]
pub struct Report {
    /// Id of the model.
    pub id: String,
    /// Facts from the model file.
    pub facts: ModelFacts,
    /// The output columns.
    pub output: StreamType,
    /// One entry for each backend of the manifest.
    pub backends: Vec<BackendReport>,
}

impl Report {
    /// Returns whether at least one backend can run the model and none of the available ones fails.
    pub fn is_usable(&self) -> bool {
        let unavailable = |error: &ModelError| {
            matches!(error, ModelError::Backend(backend::BackendError::Unavailable { .. }))
        };
        self.backends.iter().any(|b| b.result.is_ok())
            && self.backends.iter().all(|b| b.result.as_ref().err().is_none_or(unavailable))
    }
}

/// Checks a manifest, its model file, and a trial run on each backend that the manifest allows; compares the outputs for a
/// generated record alone with those for the same one beside another, and the backends' outputs for generated inputs. The values of an output may differ by a thousandth of the largest of them, or of 1 if that
/// is more (by a tenth in an 8-bit model); integers may not. Texts of a loop, decoder or generation are not compared, because
/// one close decision changes the rest; of a generation, the scores of the first new token are. `directory`: where the search for libraries starts.
///
/// # Errors
/// Every disagreement between manifest and file. Results of backends are in the report.
pub fn verify(manifest_path: &Path, directory: &Path) -> Result<Report, Vec<ModelError>> {
    let blueprint = Blueprint::read(manifest_path)?;
    let (mut backends, mut first) = (Vec::new(), None);
    for name in blueprint.manifest.backends.iter() {
        let backend = name.to_string();
        let loaded = backend::backend(&backend, directory)
            .map_err(ModelError::from)
            .and_then(|b| Model::load(blueprint.clone(), b.as_ref()));
        let result = loaded.and_then(|mut loaded| {
            independence::check(&mut loaded)?;
            match &mut first {
                Some(first) => compare(first, &mut loaded),
                none => {
                    *none = Some(loaded);
                    Ok(())
                }
            }
        });
        backends.push(BackendReport { backend, result });
    }
    let blueprint: &Arc<Blueprint> = &blueprint;
    Ok(Report {
        id: blueprint.manifest.id.to_string(),
        facts: blueprint.facts.clone(),
        output: StreamType::new(blueprint.output_columns()),
        backends,
    })
}

/// The largest allowed difference, for an output whose largest value is 1 or less.
const TOLERANCE: f64 = 1e-3;
/// Tolerance for an 8-bit model: a value between two steps may be rounded up or down.
const TOLERANCE_OF_8_BITS: f64 = 0.1;

/// The generated inputs: their seed, the range of floats and the number of integers.
const INPUTS: &[(u64, f32, f32, u64)] = &[(1, 0.0, 1.0, 2), (2, -1.0, 1.0, 5), (3, -30.0, 30.0, 100)];

/// The difference that is allowed for a model, by the largest value of an output.
fn allowed(model: &Model) -> f64 {
    if model.blueprint().facts.is_quantised { TOLERANCE_OF_8_BITS } else { TOLERANCE }
}

/// Runs two backends on the same inputs.
fn compare(first: &mut Model, second: &mut Model) -> Result<(), ModelError> {
    let allowed = allowed(first);
    for &(seed, least, most, integers) in INPUTS {
        let inputs = described(least, most, integers);
        let rows = [made_up(&first.zeros(), seed, least, most, integers)];
        let (a, b) = (first.run_trial(&rows), second.run_trial(&rows));
        let (a, b) = match (a, b) {
            (Ok(a), Ok(b)) => (a, b),
            // The model has no row for these integers, so no backend can be compared.
            (Err(_), Err(_)) => continue,
            (Err(cause), _) | (_, Err(cause)) => return Err(cause.into()),
        };
        difference(first, &a, &b, allowed).map_or(Ok(()), |(output, difference, tolerance)| {
            let (backend, other) = (second.backend().to_owned(), first.backend().to_owned());
            Err(ModelError::Differs { backend, other, output, difference, tolerance, inputs })
        })?;
    }
    Ok(())
}

/// Generated inputs in words.
fn described(least: f32, most: f32, integers: u64) -> String {
    format!("random inputs: floats from {least} to {most}, integers from 0 to {}", integers - 1)
}

/// Returns the first output that differs by more than allowed: its name, the difference, and the limit.
fn difference(model: &Model, a: &RawOutputs, b: &RawOutputs, allowed: f64) -> Option<(String, f64, f64)> {
    let manifest = &model.blueprint().manifest;
    let outputs = manifest.outputs.iter().map(|output| &output.name).zip(a.tensors.iter().zip(&b.tensors));
    let scores = manifest.generate.iter().map(|generate| &generate.logits);
    let scores = scores.zip(a.first_scores.iter().zip(&b.first_scores));
    outputs.chain(scores).find_map(|(output, (a, b))| {
        let (most, tolerance) = too_far(a.data(), b.data(), allowed)?;
        Some((output.to_string(), most, tolerance))
    })
}

/// Returns the largest difference and its limit, if it is above that.
fn too_far(a: &TensorData, b: &TensorData, allowed: f64) -> Option<(f64, f64)> {
    let whole = !a.element().is_float();
    let (a, b) = (a.to_f64(), b.to_f64());
    let largest = a.iter().filter(|value| value.is_finite()).fold(1f64, |most, value| most.max(value.abs()));
    let tolerance = if whole && allowed < TOLERANCE_OF_8_BITS { 0.0 } else { allowed * largest };
    let most = farthest(&a, &b);
    (most.is_nan() || most > tolerance).then_some((most, tolerance))
}

/// Returns the largest difference of two values at the same place; NaN, which is more than any, if only one of them is a number.
pub fn farthest(a: &[f64], b: &[f64]) -> f64 {
    let far = |(a, b): (&f64, &f64)| {
        if a == b || a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() }
    };
    a.iter().zip(b).map(far).fold(0f64, |most, far| if far > most || far.is_nan() { far } else { most })
}

/// A generated record of these lengths, deterministic by seed.
fn made_up(zeros: &PreparedRow, seed: u64, least: f32, most: f32, integers: u64) -> PreparedRow {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    let span = (most - least) / (1u64 << 24) as f32;
    let made = zeros.values.iter().map(|values| {
        let mut made = TensorData::zeros(values.element(), 0);
        for _ in 0..values.len() {
            made.push(match values.element() {
                element if element.is_float() => f64::from(least + next() as f32 * span),
                ElementType::Uint8 => (next() & 255) as f64,
                ElementType::Int8 => (next() & 127) as f64,
                ElementType::Bool => (next() & 1) as f64,
                _ => (next() % integers) as f64,
            });
        }
        made
    });
    PreparedRow::new(made.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_wherever_they_are() {
        assert_eq!(farthest(&[1.0, -2.0, f64::NAN], &[1.5, -4.0, f64::NAN]), 2.0);
        assert_eq!(farthest(&[f64::INFINITY, 3.0], &[f64::INFINITY, 3.0]), 0.0);
        assert!(farthest(&[f64::NAN, 1.0], &[0.0, 9.0]).is_nan(), "a later difference does not hide it");
        assert_eq!(farthest(&[], &[]), 0.0);
    }
}
