//! Detectors with outputs for each stride: SCRFD, FCOS and the like (distances), PicoDet and GFL (distributions).
use super::cells;
use super::draft::{Draft, Entry, Step};
use super::heads::class_names;
use super::pictures;
use super::ports::{self, Side};
use super::subject::Subject;
use super::yaml;
use std::collections::BTreeMap;
use tidemill_inference::facts::Port;

/// Side of pictures if the file accepts any.
const SIDE: usize = 640;
/// Bins of a distribution: of PicoDet, and of GFL and YOLOv8.
const BINS: [usize; 2] = [8, 17];

/// An output with the places of one stride.
struct Part<'a> {
    port: &'a Port,
    shape: Vec<Side>,
    numbers: usize,
}

/// Drafts a detector with levels.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let picture = pictures::of(subject)?;
    if subject.outputs.len() < 4 {
        return None;
    }
    let size = picture.size(subject, SIDE);
    let tried = picture.tried(subject, size);
    // By number of places, the most first: the smallest stride.
    let mut levels: BTreeMap<std::cmp::Reverse<usize>, Vec<Part<'_>>> = BTreeMap::new();
    for port in &subject.outputs {
        let shape = subject.output_sides(port, tried.as_ref());
        let row = Side::row(&shape);
        let [Side::Size(places), Side::Size(numbers)] = *row.as_slice() else { return None };
        levels.entry(std::cmp::Reverse(places)).or_default().push(Part { port, shape, numbers });
    }
    let mut strides = Vec::new();
    for std::cmp::Reverse(places) in levels.keys() {
        strides.push(cells::stride(size.0, size.1, *places)?);
    }
    let ascending = strides.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 == pair[1].1);
    let levels: Vec<Vec<Part<'_>>> = levels.into_values().collect();
    let first = levels.first().filter(|_| levels.len() >= 2 && ascending)?;
    let is_distribution = |numbers: usize| BINS.iter().any(|bins| bins * 4 == numbers);
    let boxes =
        first.iter().map(|part| part.numbers).find(|numbers| *numbers == 4 || is_distribution(*numbers))?;
    let classes = first.iter().map(|part| part.numbers).find(|numbers| *numbers != boxes)?;
    let pairs: Option<Vec<(&Part<'_>, &Part<'_>)>> = levels
        .iter()
        .map(|parts| {
            let of = |numbers: usize| parts.iter().find(|part| part.numbers == numbers);
            of(boxes).zip(of(classes))
        })
        .collect();
    let pairs = pairs?;
    let (head, scores) = pairs.first()?;
    let strides: Vec<String> = strides.iter().map(|(stride, _)| stride.to_string()).collect();
    let (form, offset) = if boxes == 4 { ("distances", "") } else { ("distributions", ", offset: 0.5") };
    let further: Vec<String> = pairs[1..]
        .iter()
        .map(|(boxes, scores)| {
            let (boxes, scores) = (yaml::scalar(&boxes.port.name), yaml::scalar(&scores.port.name));
            format!("{{boxes: {boxes}, scores: {scores}}}")
        })
        .collect();
    let settings = format!(
        "decode_boxes: {{grid: {{form: {form}, strides: [{}]{offset}}}, scores_from: {}, levels: [{}], threshold: 0.5, iou: 0.5}}",
        strides.join(", "),
        yaml::scalar(&scores.port.name),
        further.join(", ")
    );
    let guess = match boxes {
        4 => "as SCRFD; `offset: 0.5` for FCOS and NanoDet, `activation: sigmoid` if scores are logits",
        _ => {
            "as PicoDet; `activation: sigmoid` if scores are logits, `per_class: true` compares boxes of a class only"
        }
    };
    let entry = Entry::new(&head.port.name, "boxes", "tensor", ports::dtype(head.port), head.shape.clone());
    let entry = class_names(subject, Some(classes)).into_iter().fold(entry, Entry::note);
    let left: Vec<&str> = levels
        .iter()
        .flatten()
        .filter(|part| part.numbers != boxes && part.numbers != classes)
        .map(|part| part.port.name.as_str())
        .collect();
    let remarks = match left.is_empty() {
        true => Vec::new(),
        false => vec![format!("left out, because no step reads them with boxes: {}", yaml::list(&left))],
    };
    let (height, width) = size;
    let steps = match boxes {
        4 => picture.boxed_steps(
            Step::guessed(
                format!("letterbox: {{width: {width}, height: {height}, fill: 0, align: top_left, filter: opencv_linear}}"),
                "as SCRFD",
            ),
            vec![Step::guessed(
                "normalize: {divide_by: 128, mean: [0.99609375, 0.99609375, 0.99609375]}",
                "as SCRFD: (value - 127.5) / 128",
            )],
        ),
        _ => {
            let is_opencv = subject.facts.metadata.contains_key("character");
            let bgr = is_opencv.then(|| Step::guessed("bgr: {}", "as RapidOCR, which reads with OpenCV"));
            let normalize = Step::guessed(
                "normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}",
                "its documentation has mean and std, and says whether it wants `bgr: {}` before this step",
            );
            picture.boxed_steps(
                Step::guessed(
                    format!("resize: {{width: {width}, height: {height}, filter: opencv_linear}}"),
                    "as PicoDet",
                ),
                bgr.into_iter().chain([normalize]).collect(),
            )
        }
    };
    let mut inputs = vec![picture.entry(subject, size, steps)];
    inputs.extend(pictures::others(subject, &picture));
    Some(Draft {
        remarks,
        inputs,
        outputs: vec![entry.step(Step::guessed(settings, guess))],
        ..Draft::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn levels_of_distributions_are_joined() {
        let sizes = [("0", "7600"), ("2", "1900"), ("4", "475"), ("6", "130")];
        let case = Case::new("layout").input("image", "float32 [1, 3, 800, 608]");
        let case = sizes.iter().fold(case, |case, (at, places)| {
            case.output(&format!("transpose_{at}.tmp_0"), &format!("float32 [1, {places}, 10]"))
        });
        let case = sizes.iter().fold(case, |case, (at, places)| {
            let at = at.parse::<u32>().unwrap() + 1;
            case.output(&format!("transpose_{at}.tmp_0"), &format!("float32 [1, {places}, 32]"))
        });
        assert_eq!(
            body(&case.draft()),
            "\
backends: [ort, rten]
inputs:
  - name: image
    column: image
    type: image
    dtype: float32
    shape: [batch, 3, 800, 608]
    preprocess:
      - resize: {width: 608, height: 800, filter: opencv_linear} # guessed: as PicoDet
      - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]} # guessed: its documentation has mean and std, and says whether it wants `bgr: {}` before this step
outputs:
  - name: transpose_1.tmp_0
    column: boxes
    type: tensor
    dtype: float32
    shape: [batch, 7600, 32]
    postprocess:
      - decode_boxes: {grid: {form: distributions, strides: [8, 16, 32, 64], offset: 0.5}, scores_from: transpose_0.tmp_0, levels: [{boxes: transpose_3.tmp_0, scores: transpose_2.tmp_0}, {boxes: transpose_5.tmp_0, scores: transpose_4.tmp_0}, {boxes: transpose_7.tmp_0, scores: transpose_6.tmp_0}], threshold: 0.5, iou: 0.5} # guessed: as PicoDet; `activation: sigmoid` if scores are logits, `per_class: true` compares boxes of a class only
"
        );
    }

    #[test]
    fn a_level_may_have_two_anchors_and_no_batch() {
        let case = Case::new("scrfd").input("input.1", "float32 [1, 3, ?, ?]");
        let all =
            [("448", 12_800, 1), ("471", 3200, 1), ("494", 800, 1), ("451", 12_800, 4), ("474", 3200, 4)];
        let all = all.into_iter().chain([
            ("497", 800, 4),
            ("454", 12_800, 10),
            ("477", 3200, 10),
            ("500", 800, 10),
        ]);
        let case = all.fold(case, |case, (name, places, numbers)| {
            case.output(name, &format!("float32 [{places}, {numbers}]"))
        });
        let text = case.draft();
        assert!(
            text.contains("grid: {form: distances, strides: [8, 16, 32]}, scores_from: \"448\""),
            "{text}"
        );
        assert!(
            text.contains("shape: [12800, 4]\n") && text.contains("# left out, because no step"),
            "{text}"
        );
    }
}
