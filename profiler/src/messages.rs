//! Bytes of a record on every edge, and records out per record in.
use crate::error::ProfileError;
use crate::flow::Flow;
use crate::subject::{Choice, Subject};
use arrow_array::RecordBatch;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_engine::link::{FrameBytes, LinkError};
use tidemill_operators::api::OperatorError;
use tidemill_spec::profile::{MessageSize, Ratio};
use tidemill_spec::units::Bytes;

/// Sizes that differ by less than this share count as equal.
const SAME: f64 = 0.005;

/// Returns the mean bytes of a record in frames of `rows` records, including header and Arrow message, without the schema,
/// which is sent once. `None` for a batch without rows.
///
/// # Errors
/// When Arrow cannot encode the batch.
pub fn bytes_per_record(batch: &RecordBatch, rows: usize) -> Result<Option<f64>, OperatorError> {
    let failed = |error: LinkError| OperatorError::new(error.to_string());
    let all = batch.num_rows();
    if all == 0 {
        return Ok(None);
    }
    let mut frames = FrameBytes::new(&batch.schema()).map_err(failed)?;
    let mut bytes = 0;
    let mut first = 0;
    while first < all {
        let frame = batch.slice(first, rows.max(1).min(all - first));
        first += frame.num_rows();
        bytes += frames.of(&frame).map_err(failed)?;
    }
    Ok(Some(bytes as f64 / all as f64))
}

/// Returns the sizes on all edges of the workflow: one entry if the models do not matter, else one for each choice of those
/// that do.
///
/// # Errors
/// An operator fails; [`ProfileError::Interrupted`].
pub fn sizes(
    subject: &Subject,
    flow: &mut Flow<'_>,
    choices: &[Choice],
) -> Result<Vec<MessageSize>, ProfileError> {
    let mut edges: Vec<(&str, &str, u32)> = Vec::new();
    for operator in &subject.workflow.operators {
        let inputs = (0u32..).zip(&operator.inputs);
        edges.extend(
            inputs.map(|(port, input)| (input.from.value.as_str(), operator.id.value.as_str(), port)),
        );
    }
    edges
        .extend(subject.workflow.sinks.iter().map(|s| (s.input.from.value.as_str(), s.id.value.as_str(), 0)));
    let mut all = Vec::new();
    for (from, to, input) in edges {
        let rows = subject.rows_per_frame(from);
        let mut sizes: BTreeMap<Choice, f64> = BTreeMap::new();
        let mut samples = 0;
        for choice in choices {
            let relevant = subject.relevant(from, choice);
            if sizes.contains_key(&relevant) {
                continue;
            }
            let batch = flow.output(from, choice)?;
            if let Some(bytes) = bytes_per_record(&batch, rows).map_err(ProfileError::operator(from))? {
                samples = batch.num_rows() as u64;
                sizes.insert(relevant, bytes);
            }
        }
        all.extend(reduced(sizes).into_iter().map(|(variants, bytes)| MessageSize {
            from: from.to_owned(),
            to: to.to_owned(),
            input,
            variants,
            bytes_per_record: Bytes(bytes.round() as u64),
            samples: Some(samples),
        }));
    }
    Ok(all)
}

/// Leaves out the operators whose models make no difference; sizes are averaged over them.
fn reduced(mut sizes: BTreeMap<Choice, f64>) -> BTreeMap<Choice, f64> {
    let operators: BTreeSet<String> = sizes.keys().flat_map(|choice| choice.keys().cloned()).collect();
    for operator in operators {
        let mut groups: BTreeMap<Choice, Vec<f64>> = BTreeMap::new();
        for (choice, bytes) in &sizes {
            let mut rest = choice.clone();
            rest.remove(&operator);
            groups.entry(rest).or_default().push(*bytes);
        }
        let same = |sizes: &Vec<f64>| {
            let (low, high) = sizes.iter().fold((f64::MAX, 0f64), |(l, h), x| (l.min(*x), h.max(*x)));
            high <= low * (1.0 + SAME)
        };
        if groups.values().all(same) {
            let mean = |sizes: Vec<f64>| sizes.iter().sum::<f64>() / sizes.len() as f64;
            sizes = groups.into_iter().map(|(choice, sizes)| (choice, mean(sizes))).collect();
        }
    }
    sizes
}

/// Returns the output records per input record of every operator: one entry if the models do not matter, else one for each
/// choice of those that do, its own or those of operators before it. (Untested combinations have no figure, so there is one
/// for the usual choice too.)
///
/// # Errors
/// An operator fails; [`ProfileError::Interrupted`].
pub fn ratios(
    subject: &Subject,
    flow: &mut Flow<'_>,
    choices: &[Choice],
) -> Result<Vec<Ratio>, ProfileError> {
    let reference = subject.reference();
    let mut all = Vec::new();
    for operator in &subject.workflow.operators {
        let id = operator.id.value.as_str();
        let mut ratios: BTreeMap<Choice, f64> = BTreeMap::new();
        let mut usual = None;
        for choice in std::iter::once(&reference).chain(choices) {
            let relevant = subject.relevant(id, choice);
            if ratios.contains_key(&relevant) {
                continue;
            }
            let inputs = flow.inputs(id, choice)?;
            let rows = inputs.iter().map(RecordBatch::num_rows).min().unwrap_or(0);
            let out = flow.output(id, choice)?.num_rows();
            if rows > 0 {
                let ratio = out as f64 / rows as f64;
                usual = usual.or(Some((ratio, rows as u64)));
                ratios.insert(relevant, ratio);
            }
        }
        let Some((usual, samples)) = usual else { continue };
        let entry = |variants: Choice, output_per_input| Ratio {
            operator: id.to_owned(),
            variant: None,
            variants,
            output_per_input,
            samples: Some(samples),
        };
        let ratios = reduced(ratios);
        if !ratios.contains_key(&Choice::new()) {
            all.push(entry(Choice::new(), usual));
        }
        all.extend(ratios.into_iter().map(|(variants, ratio)| entry(variants, ratio)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::tests::batch;

    #[test]
    fn frames_cost_less_the_fuller_they_are() {
        let batch = batch(&(0..64).collect::<Vec<i64>>());
        let alone = bytes_per_record(&batch, 1).unwrap().unwrap();
        let together = bytes_per_record(&batch, 64).unwrap().unwrap();
        // Every record has 16 + 4 + 8 + 8 + 8 + 4 + 1 bytes of metadata and 8 of payload.
        assert!(together > 57.0 && together < 100.0, "{together}");
        assert!(alone > together + 64.0, "{alone} {together}");
        assert_eq!(bytes_per_record(&batch.slice(0, 0), 8).unwrap(), None);
    }

    #[test]
    fn only_what_makes_a_difference_is_named() {
        let choice = |eye: &str, ear: &str| {
            Choice::from([("eye".to_owned(), eye.to_owned()), ("ear".to_owned(), ear.to_owned())])
        };
        let sizes = BTreeMap::from([
            (choice("e1", "s1"), 100.0),
            (choice("e1", "s2"), 100.2),
            (choice("e2", "s1"), 400.0),
            (choice("e2", "s2"), 400.2),
        ]);
        let reduced = reduced(sizes);
        let eye = |name: &str| Choice::from([("eye".to_owned(), name.to_owned())]);
        assert_eq!(reduced.len(), 2);
        assert!((reduced[&eye("e1")] - 100.1).abs() < 1e-9);
        let same = BTreeMap::from([(eye("e1"), 100.0), (eye("e2"), 100.0)]);
        assert_eq!(super::reduced(same), BTreeMap::from([(Choice::new(), 100.0)]));
    }
}
