//! The declared loop: states and the last token are fed back until every record has ended.
//!
//! The whole batch goes through every step; outputs of a record after its end token are ignored. So the text of a record
//! does not depend on the others in its batch.
use crate::backend::{BackendError, Session};
use crate::blueprint::{Blueprint, Feed};
use crate::postprocess::scores::argmax;
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::{Initial, ModelLoop};

/// Result of a loop.
pub(crate) struct Outcome {
    /// The outputs of the manifest, each record's from its own last step.
    pub(crate) tensors: Vec<Tensor>,
    /// The collected text of each record, trimmed.
    pub(crate) texts: Vec<String>,
    /// Number of texts with an end token that did not reach it.
    pub(crate) cut_off: u64,
    /// Whether a token was chosen among scores that are not numbers.
    pub(crate) undecided: bool,
}

/// Runs the loop for `rows` records, at most `max_steps` steps. `inputs` are those of the file, in order; states and
/// token change.
pub(crate) fn run(
    session: &mut dyn Session,
    blueprint: &Blueprint,
    repeat: &ModelLoop,
    inputs: &mut [Tensor],
    rows: usize,
    max_steps: u32,
) -> Result<Outcome, BackendError> {
    let mut texts = vec![String::new(); rows];
    let mut ended = vec![false; rows];
    let mut undecided = false;
    let mut last: Vec<Vec<Option<Tensor>>> = vec![vec![None; rows]; blueprint.output_rows.len()];
    for (input, tensor) in blueprint.inputs.iter().zip(inputs.iter_mut()) {
        match input.feed {
            Feed::Column(_) | Feed::Constant(_) | Feed::Memory(_) => {}
            Feed::State(i) => fill(tensor, initial(&repeat.states[i].initial)),
            Feed::Token => fill(tensor, f64::from(repeat.feed.start)),
        }
    }
    for step in 0..max_steps {
        let mut results = session.run(inputs, &blueprint.wanted)?;
        let scores = results.pop().and_then(|tensor| match tensor.into_data() {
            TensorData::Float32(values) => Some(values),
            _ => None,
        });
        let states = results.split_off(last.len());
        if let Some(other) = results.iter().find(|result| result.shape().first() != Some(&rows)) {
            return Err(BackendError::Run {
                backend: "loop",
                model: blueprint.manifest.id.to_string(),
                reason: format!("an output for {rows} records has the shape {:?}", other.shape()),
            });
        }
        let scores = scores.filter(|values| values.len() >= rows && values.len() % rows.max(1) == 0);
        let Some(scores) = scores else {
            return Err(BackendError::Run {
                backend: "loop",
                model: blueprint.manifest.id.to_string(),
                reason: format!("the token scores `{}` are not float32 for each record", repeat.feed.output),
            });
        };
        let classes = repeat.collect.labels.len();
        let mut tokens = Vec::with_capacity(rows);
        for (row, values) in scores.chunks_exact(scores.len() / rows).enumerate() {
            // If the output has a time axis, its last step decides.
            let scores = &values[values.len().saturating_sub(classes)..];
            let token = argmax(scores);
            tokens.push(token as i64);
            if ended[row] {
                continue;
            }
            undecided |= scores.iter().any(|score| score.is_nan());
            for (kept, result) in last.iter_mut().zip(&results) {
                kept[row] = Some(result.row(row));
            }
            if repeat.end.is_some_and(|end| end as usize == token) {
                ended[row] = true;
            } else if let Some(label) = repeat.collect.labels.get(token) {
                texts[row].push_str(label);
            }
        }
        if ended.iter().all(|ended| *ended) || step + 1 == max_steps {
            break;
        }
        let mut states: Vec<Option<Tensor>> = states.into_iter().map(Some).collect();
        for (input, tensor) in blueprint.inputs.iter().zip(inputs.iter_mut()) {
            match input.feed {
                Feed::Column(_) | Feed::Constant(_) | Feed::Memory(_) => {}
                Feed::State(i) => {
                    if let Some(next) = states.get_mut(i).and_then(Option::take) {
                        *tensor = next;
                    }
                }
                Feed::Token => {
                    let shape = tensor.shape().to_vec();
                    *tensor = Tensor::new(shape, TensorData::Int64(tokens.clone())).map_err(|error| {
                        BackendError::Run {
                            backend: "loop",
                            model: blueprint.manifest.id.to_string(),
                            reason: error.to_string(),
                        }
                    })?;
                }
            }
        }
    }
    let tensors = last
        .into_iter()
        .map(|rows| Tensor::concatenate(rows.into_iter().flatten().collect()))
        .collect::<Result<_, _>>()
        .map_err(|error| BackendError::Run {
            backend: "loop",
            model: blueprint.manifest.id.to_string(),
            reason: error.to_string(),
        })?;
    let cut_off = ended.iter().filter(|ended| repeat.end.is_some() && !**ended).count() as u64;
    Ok(Outcome {
        tensors,
        cut_off,
        undecided,
        texts: texts.into_iter().map(|text| text.trim().to_owned()).collect(),
    })
}

fn initial(initial: &Initial) -> f64 {
    match initial {
        Initial::Zeros => 0.0,
        Initial::Constant(value) => *value,
    }
}

fn fill(tensor: &mut Tensor, value: f64) {
    let (shape, length) = (tensor.shape().to_vec(), tensor.data().len());
    let data = TensorData::filled(tensor.data().element(), length, value);
    *tensor = Tensor::new(shape, data).expect("the length is that of the tensor");
}
