//! Other backends of a manifest on the same records: how far their outputs are from those of the first.
use super::records::Record;
use super::runs::{self, Outcome, Ran};
use super::shown::number;
use crate::table::{Side, Table};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::backend::{self, BackendError};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::verify::farthest;

/// Another backend.
pub(super) struct Compared {
    backend: String,
    found: Found,
}

enum Found {
    /// It is not on this machine.
    NotHere(String),
    /// It cannot load the model.
    Fails(String),
    /// One for each output of the model.
    Outputs(Vec<Difference>),
}

/// Difference of an output over all records.
#[derive(Debug, Clone, PartialEq)]
struct Difference {
    output: String,
    /// The largest difference of two values; `None` for texts.
    most: Option<f64>,
    /// The largest value.
    largest: f64,
    /// Records with another text or another shape.
    others: usize,
    /// Records with a result of one backend only.
    alone: usize,
    records: usize,
}

impl Compared {
    /// Whether the backend gives results for the same records, in the same shapes.
    pub(super) fn is_well(&self) -> bool {
        match &self.found {
            Found::NotHere(_) => true,
            Found::Fails(_) => false,
            // Texts of both may be right: one close decision changes the rest.
            Found::Outputs(outputs) => outputs
                .iter()
                .all(|output| output.alone == 0 && (output.most.is_none() || output.others == 0)),
        }
    }
}

/// Runs the model on the other backends of its manifest. `first`: the backend of `outcomes`.
pub(super) fn compare(
    blueprint: &Arc<Blueprint>,
    first: &str,
    outcomes: &[Outcome],
    records: &[Record],
    directory: &Path,
) -> Vec<Compared> {
    let names = blueprint.manifest.backends.iter().map(ToString::to_string);
    let others = names.filter(|name| name != first).map(|name| {
        let loaded = backend::backend(&name, directory)
            .map_err(ModelError::from)
            .and_then(|backend| Model::load(Arc::clone(blueprint), backend.as_ref()));
        let found = match loaded {
            Err(error @ ModelError::Backend(BackendError::Unavailable { .. })) => {
                Found::NotHere(error.to_string())
            }
            Err(error) => Found::Fails(error.to_string()),
            Ok(mut model) => {
                Found::Outputs(differences(blueprint, outcomes, &runs::run(&mut model, records)))
            }
        };
        Compared { backend: name, found }
    });
    others.collect()
}

fn differences(blueprint: &Blueprint, a: &[Outcome], b: &[Outcome]) -> Vec<Difference> {
    let manifest = &blueprint.manifest;
    let mut differences: Vec<Difference> = Vec::new();
    for (at, output) in manifest.outputs.iter().enumerate() {
        if differences.iter().all(|known| known.output != output.name.value) {
            differences.push(of_tensors(at, &output.name, a, b));
        }
    }
    // Texts that a loop or a decoder writes are columns after those of the outputs.
    let texts = blueprint.output_columns().into_iter().skip(manifest.outputs.len());
    differences.extend(texts.map(|column| of_texts(&column.name, a, b)));
    differences
}

/// Pairs the runs of two backends; counts records that only one of them can run.
fn pairs<'a>(a: &'a [Outcome], b: &'a [Outcome]) -> (Vec<(&'a Ran, &'a Ran)>, usize) {
    let both = a.iter().zip(b).filter_map(|(a, b)| Some((a.as_ref().ok()?, b.as_ref().ok()?)));
    let alone = a.iter().zip(b).filter(|(a, b)| a.is_ok() != b.is_ok()).count();
    (both.collect(), alone)
}

fn of_tensors(at: usize, output: &str, a: &[Outcome], b: &[Outcome]) -> Difference {
    let (pairs, alone) = pairs(a, b);
    let (mut most, mut largest, mut others) = (0f64, 0f64, 0);
    for (a, b) in pairs {
        let (Some(a), Some(b)) = (a.raw.tensors.get(at), b.raw.tensors.get(at)) else { continue };
        if a.shape() != b.shape() {
            others += 1;
            continue;
        }
        let (a, b) = (a.data().to_f64(), b.data().to_f64());
        let far = farthest(&a, &b);
        // NaN is more than any.
        most = if most.is_nan() || far.is_nan() { f64::NAN } else { most.max(far) };
        largest =
            a.iter().filter(|value| value.is_finite()).fold(largest, |most, value| most.max(value.abs()));
    }
    Difference { output: output.to_owned(), most: Some(most), largest, others, alone, records: a.len() }
}

fn of_texts(column: &str, a: &[Outcome], b: &[Outcome]) -> Difference {
    let (pairs, alone) = pairs(a, b);
    let others = pairs.iter().filter(|(a, b)| a.raw.texts != b.raw.texts).count();
    Difference { output: column.to_owned(), most: None, largest: 0.0, others, alone, records: a.len() }
}

/// Writes the differences as a table.
///
/// # Errors
/// Errors of `out`.
pub(super) fn write(out: &mut dyn Write, first: &str, compared: &[Compared]) -> io::Result<()> {
    writeln!(out)?;
    if compared.is_empty() {
        return writeln!(out, "the manifest has no other backend than {first}");
    }
    let mut table = Table::new(&[
        ("compared with", Side::Left),
        ("output", Side::Left),
        ("largest difference", Side::Right),
        ("largest value", Side::Right),
        ("", Side::Left),
    ]);
    for one in compared {
        let line = |text: String| [one.backend.clone(), String::new(), String::new(), String::new(), text];
        match &one.found {
            Found::NotHere(why) => table.row(line(why.clone())),
            Found::Fails(why) => table.row(line(format!("FAILED: {why}"))),
            Found::Outputs(outputs) => {
                for output in outputs {
                    let of = |count: usize| format!("{count} of {} records", output.records);
                    let mut notes = match (output.most, output.others) {
                        (None, 0) => vec!["the same texts".to_owned()],
                        (None, others) => vec![format!("other texts for {}", of(others))],
                        (Some(_), 0) => Vec::new(),
                        (Some(_), others) => vec![format!("another shape for {}", of(others))],
                    };
                    if output.alone > 0 {
                        notes.push(format!("no result of one of them for {}", of(output.alone)));
                    }
                    table.row([
                        one.backend.clone(),
                        output.output.clone(),
                        output.most.map_or_else(String::new, number),
                        output.most.map_or_else(String::new, |_| number(output.largest)),
                        notes.join(", "),
                    ]);
                }
            }
        }
    }
    table.write(out)
}

/// Returns the differences as JSON.
pub(super) fn json(compared: &[Compared]) -> Value {
    let all = compared.iter().map(|one| {
        let (error, is_here, outputs) = match &one.found {
            Found::NotHere(why) => (Some(why), false, &[][..]),
            Found::Fails(why) => (Some(why), true, &[][..]),
            Found::Outputs(outputs) => (None, true, outputs.as_slice()),
        };
        let outputs = outputs.iter().map(|output| {
            json!({
                "name": output.output, "difference": output.most, "largest": output.largest,
                "other_records": output.others, "records_of_one": output.alone,
            })
        });
        json!({
            "backend": one.backend, "here": is_here, "error": error, "outputs": outputs.collect::<Vec<_>>(),
        })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tidemill_inference::model::RawOutputs;
    use tidemill_inference::preprocess::Rejected;
    use tidemill_inference::tensor::{Tensor, TensorData};

    fn ran(values: &[f32], text: &str) -> Outcome {
        let tensor = Tensor::new(vec![1, values.len()], TensorData::Float32(values.to_vec())).unwrap();
        let mut raw = RawOutputs::default();
        raw.tensors.push(tensor);
        raw.texts = Some(vec![text.to_owned()]);
        Ok(Ran { raw, columns: Vec::new(), took: Duration::ZERO })
    }

    #[test]
    fn the_largest_difference_of_all_records_counts() {
        let a = [ran(&[1.0, -4.0], "a"), ran(&[2.0, 2.0], "b")];
        let b = [ran(&[1.0, -4.5], "a"), ran(&[2.25, 2.0], "c")];
        let found = of_tensors(0, "y", &a, &b);
        assert_eq!((found.most, found.largest, found.others), (Some(0.5), 4.0, 0));
        assert_eq!(of_texts("t", &a, &b).others, 1);
        let b = [ran(&[f32::NAN, -4.0], "a"), ran(&[2.0], "b")];
        let found = of_tensors(0, "y", &a, &b);
        assert!(found.most.is_some_and(f64::is_nan) && found.others == 1, "{found:?}");
        let b = [Err(Rejected::new("model_failed", "")), ran(&[2.0, 2.0], "b")];
        assert_eq!((of_tensors(0, "y", &a, &b).alone, of_texts("t", &a, &b).alone), (1, 1));
        let is_well =
            |outputs| Compared { backend: "b".to_owned(), found: Found::Outputs(outputs) }.is_well();
        assert!(is_well(vec![of_texts("t", &a, &[ran(&[1.0], "x"), ran(&[1.0], "y")])]));
        assert!(!is_well(vec![of_texts("t", &a, &b)]));
    }
}
