//! Models that read the bytes of a file, such as those that recognise its type.
use super::draft::{Draft, Entry, Step};
use super::ports::{self, Side};
use super::scores;
use super::subject::Subject;
use super::tensors;

/// Drafts a model whose only input is named after bytes.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let &[port] = subject.inputs.as_slice() else { return None };
    let sides = subject.input_sides(port);
    let [Side::Batch, Side::Size(length)] = *sides.as_slice() else { return None };
    if !ports::is_named(port, &["byte"]) || !ports::is_whole(port) {
        return None;
    }
    let half = length / 2;
    let step = Step::guessed(
        format!("ends: {{first: {}, last: {half}, padding: 256}}", length - half),
        "the start and the end of a file; its documentation has their numbers and the value for missing bytes",
    );
    let input = Entry::new(&port.name, "bytes", "bytes", ports::dtype(port), sides.clone()).step(step);
    let tried = subject.tried(&[]);
    let mut outputs = Vec::new();
    for port in &subject.outputs {
        let shape = subject.output_sides(port, tried.as_ref());
        match Side::vector(&shape) {
            Some(classes) if ports::is_float(port) && outputs.is_empty() => {
                outputs.extend(scores::label_and_score(subject, port, shape, classes, tried.as_ref()));
            }
            _ => outputs.push(tensors::output(subject, port, shape)),
        }
    }
    Some(Draft { inputs: vec![input], outputs, ..Draft::default() })
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn bytes_are_the_ends_of_a_file() {
        let text = Case::new("magika")
            .input("bytes", "int32 [n, 2048]")
            .output("target_label", "float32 [n, 214]")
            .made_by("target_label", "Softmax")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: bytes
    column: bytes
    type: bytes
    dtype: int32
    shape: [batch, 2048]
    preprocess:
      - ends: {first: 1024, last: 1024, padding: 256} # guessed: the start and the end of a file; its documentation has their numbers and the value for missing bytes
outputs:
  - name: target_label
    column: label
    type: int64
    dtype: float32
    shape: [batch, 214]
    # for names of classes: `type: text`, and `argmax: {labels: [...]}` or `argmax: {labels_file: FILE}`
    postprocess:
      - argmax: {} # guessed: a score for each class; for all of them remove the step, `type: tensor`
  - name: target_label
    column: score
    type: float64
    dtype: float32
    shape: [batch, 214]
    postprocess:
      - max: {}
"
        );
    }
}
