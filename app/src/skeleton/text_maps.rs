//! Models that mark text in a picture: a map of its probability (differentiable binarization, DB).
use super::draft::{Draft, Entry, Step};
use super::pictures;
use super::ports::{self, Side};
use super::subject::Subject;

/// Side of pictures if the file accepts any.
const SIDE: usize = 640;
/// Sides of the pictures are multiples of this one.
const MULTIPLE: usize = 32;

/// Drafts a model with one map as large as its picture.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let picture = pictures::of(subject).filter(|picture| picture.channels == 3)?;
    let &[port] = subject.outputs.as_slice() else { return None };
    let declared = subject.output_sides(port, None);
    if !matches!(declared.as_slice(), [Side::Batch, Side::Size(1), _, _]) || !ports::is_float(port) {
        return None;
    }
    let size = picture.size(subject, SIDE);
    let (height, width) = size;
    if !(height.is_multiple_of(MULTIPLE) && width.is_multiple_of(MULTIPLE)) {
        return None;
    }
    let mut shape = subject.output_sides(port, picture.tried(subject, size).as_ref());
    for (side, size) in shape.iter_mut().skip(2).zip([height, width]) {
        match side {
            Side::Size(found) if *found != size => return None,
            side => *side = Side::Size(size),
        }
    }
    let sizing = Step::guessed(
        format!(
            "letterbox: {{width: {width}, height: {height}, fill: 255, align: top_left, enlarge: false, filter: opencv_linear}}"
        ),
        "larger pages need a larger size, of multiples of 32",
    );
    let steps = picture.boxed_steps(
        sizing,
        vec![
            Step::guessed("bgr: {}", "as PP-OCR"),
            Step::guessed(
                "normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}",
                "its documentation has mean and std",
            ),
        ],
    );
    let output = Entry::new(&port.name, "boxes", "tensor", ports::dtype(port), shape)
        .guess("a map of text; for one of another kind remove the step")
        .step(Step::guessed("text_boxes: {threshold: 0.3, score: 0.5, grow: 1.6}", "as PP-OCR"));
    let mut inputs = vec![picture.entry(subject, size, steps)];
    inputs.extend(pictures::others(subject, &picture));
    Some(Draft { inputs, outputs: vec![output], ..Draft::default() })
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn a_map_as_large_as_the_picture_becomes_boxes() {
        let text = Case::new("det")
            .input("x", "float32 [n.0, 3, n.1, n.2]")
            .output("sigmoid_0.tmp_0", "float32 [n.3, 1, n.4, n.5]")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: x
    column: image
    type: image
    dtype: float32
    shape: [batch, 3, 640, 640]
    # guessed: the size; the file takes any
    preprocess:
      - letterbox: {width: 640, height: 640, fill: 255, align: top_left, enlarge: false, filter: opencv_linear} # guessed: larger pages need a larger size, of multiples of 32
      - bgr: {} # guessed: as PP-OCR
      - normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]} # guessed: its documentation has mean and std
outputs:
  - name: sigmoid_0.tmp_0
    column: boxes
    type: tensor
    dtype: float32
    shape: [batch, 1, 640, 640]
    # guessed: a map of text; for one of another kind remove the step
    postprocess:
      - text_boxes: {threshold: 0.3, score: 0.5, grow: 1.6} # guessed: as PP-OCR
"
        );
    }

    #[test]
    fn a_smaller_map_is_a_tensor() {
        let text = Case::new("depth")
            .input("x", "float32 [1, 3, 256, 256]")
            .output("y", "float32 [1, 1, 64, 64]")
            .draft();
        assert!(!text.contains("text_boxes") && text.contains("[batch, 1, 64, 64]"), "{text}");
    }
}
