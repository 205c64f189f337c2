//! Records of a run, in the batches that a module was compiled for.
use crate::about::{About, Port};
use std::ops::Range;
use tidemill_device::value::Value;

/// Number of records in the inputs of a run; none if the module takes them as they are.
pub(crate) fn records(about: &About, inputs: &[&Value]) -> Result<Option<usize>, String> {
    let first = inputs.first().and_then(|value| value.shape().first());
    let records = about.batch.map(|_| first.copied().unwrap_or_default());
    for (port, value) in about.inputs.iter().zip(inputs) {
        let Port { name, element, shape } = port;
        let expected = records.into_iter().chain(shape.iter().skip(records.iter().len()).copied());
        if value.element() != *element || !expected.eq(value.shape().iter().copied()) {
            let fixed = if records.is_some() {
                " for each record, and the same number of records in all inputs"
            } else {
                ""
            };
            return Err(format!(
                "its input {name} was compiled for {element:?} {shape:?}{fixed}, and got {:?} {:?}; compile it for these sizes",
                value.element(),
                value.shape()
            ));
        }
    }
    Ok(records)
}

/// The records of each run of a module that computes `batch` of them at once.
pub(crate) fn runs(records: usize, batch: usize) -> impl Iterator<Item = Range<usize>> {
    (0..records).step_by(batch.max(1)).map(move |start| start..records.min(start + batch.max(1)))
}

/// The bytes of some records of a tensor.
pub(crate) fn of(bytes: &[u8], records: usize, range: &Range<usize>) -> Range<usize> {
    let each = bytes.len() / records.max(1);
    range.start * each..range.end * each
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_device::value::Element;

    fn about(batch: &str) -> About {
        let text = format!(
            r#"{{"version": 1, "inputs": [{{"name": "a", "element": "uint8", "shape": [2, 3]}},
            {{"name": "b", "element": "uint8", "shape": [2]}}], "outputs": [], "batch": {batch}, "needs": []}}"#
        );
        About::read(&text, "").expect("a description")
    }

    fn zeros(shapes: [&[usize]; 2]) -> [Value; 2] {
        shapes.map(|shape| Value::zeros(Element::Uint8, shape.to_vec()).expect("a tensor"))
    }

    #[test]
    fn every_record_is_in_one_run() {
        let split = |records, batch| runs(records, batch).collect::<Vec<_>>();
        assert_eq!(split(5, 2), [0..2, 2..4, 4..5]);
        assert_eq!(split(4, 2), [0..2, 2..4]);
        assert_eq!(split(2, 1), [0..1, 1..2]);
        assert_eq!(split(1, 8).len(), 1);
        assert!(split(0, 2).is_empty());
        assert_eq!(of(&[0; 15], 5, &(2..4)), 6..12);
    }

    #[test]
    fn a_batch_may_have_any_number_of_records_but_each_its_shape() {
        let records = |about: &About, inputs: &[Value]| records(about, &inputs.iter().collect::<Vec<_>>());
        let batched = about("2");
        assert_eq!(records(&batched, &zeros([&[5, 3], &[5]])), Ok(Some(5)));
        assert!(records(&batched, &zeros([&[5, 4], &[5]])).is_err());
        assert!(records(&batched, &zeros([&[5, 3], &[4]])).is_err());
        assert!(records(&batched, &zeros([&[], &[]])).is_err());
        let fixed = about("null");
        assert_eq!(records(&fixed, &zeros([&[2, 3], &[2]])), Ok(None));
        let refused = records(&fixed, &zeros([&[5, 3], &[5]])).expect_err("another size");
        assert!(refused.contains("input a was compiled for Uint8 [2, 3], and got Uint8 [5, 3]"), "{refused}");
        let float = Value::zeros(Element::Float32, vec![2, 3]).expect("a tensor");
        let [_, second] = zeros([&[2, 3], &[2]]);
        assert!(records(&fixed, &[float, second]).is_err(), "another type");
    }
}
