//! Detectors whose places are in one output, or in one with boxes and one with scores.
use super::cells::{self, STRIDES};
use super::draft::{Draft, Entry, Step};
use super::pictures::{self, Picture};
use super::ports::{self, Side};
use super::preparation::Preparation;
use super::subject::Subject;
use super::{labels, tensors, yaml};
use tidemill_inference::facts::Port;

/// Side of pictures if the file accepts any.
const SIDE: usize = 640;
/// Places of a head that chooses few boxes by itself, such as DETR.
const FEW: usize = 1000;

/// A head: the outputs that it reads, and the step.
struct Head {
    /// Name of the output with the boxes.
    boxes: String,
    shape: Vec<Side>,
    /// Name of the output with the scores, if that is another one.
    scores: Option<String>,
    /// The settings of `decode_boxes`.
    settings: String,
    guess: &'static str,
    /// Steps after the one that gives the size.
    colours: Vec<Step>,
    sizing: Sizing,
    classes: Option<usize>,
}

enum Sizing {
    Letterbox,
    /// At the left and the top.
    TopLeft,
    Stretch,
}

/// Drafts a detector.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let picture = pictures::of(subject)?;
    let task = subject.exporter.task.as_deref();
    if task.is_some_and(|task| task != "detect") {
        return None;
    }
    let size = picture.size(subject, SIDE);
    let mut shapes: Vec<(&Port, Vec<Side>)> =
        subject.outputs.iter().map(|port| (*port, subject.output_sides(port, None))).collect();
    let is_likely = shapes.iter().any(|(_, shape)| shape.len() == 3);
    if !is_likely {
        return None;
    }
    if shapes.iter().any(|(_, shape)| shape.iter().any(|side| matches!(side, Side::Open(_)))) {
        let tried = picture.tried(subject, size);
        shapes.iter_mut().for_each(|(port, shape)| *shape = subject.output_sides(port, tried.as_ref()));
    }
    let floats: Vec<(&Port, Vec<Side>)> = shapes
        .iter()
        .filter(|(port, shape)| ports::is_float(port) && shape.len() == 3)
        .map(|(port, shape)| (*port, shape.clone()))
        .collect();
    let head = match floats.as_slice() {
        [(port, shape)] => of_one(subject, port, shape, size),
        [first, second] => of_two(subject, first, second).or_else(|| of_two(subject, second, first)),
        _ => None,
    }?;
    Some(drafted(subject, &picture, size, head, &shapes))
}

/// Returns the head of one output.
fn of_one(
    subject: &Subject<'_>,
    port: &Port,
    shape: &[Side],
    (height, width): (usize, usize),
) -> Option<Head> {
    let cells = cells::count(height, width, &STRIDES);
    let picture = format!("picture: [{width}, {height}]");
    let head = |shape: Vec<Side>, settings: String, guess, colours, sizing, classes| Head {
        boxes: port.name.clone(),
        shape,
        scores: None,
        settings,
        guess,
        colours,
        sizing,
        classes: Some(classes),
    };
    let known = subject.exporter.labels.len();
    match shape {
        // Chosen by the file: corners, score, class.
        [Side::Batch, Side::Size(places), Side::Size(6)]
            if *places <= FEW && (subject.exporter.is_final || subject.exporter.is_for("detect")) =>
        {
            Some(head(
                shape.to_vec(),
                format!("{{form: corners, scores: best, {picture}, threshold: 0.25, iou: 1}}"),
                "the file leaves out boxes that overlap",
                Vec::new(),
                Sizing::Letterbox,
                known,
            ))
        }
        [Side::Batch, Side::Size(numbers), places @ (Side::Size(_) | Side::Open(_))]
            if *numbers > 4 && (known > 0 && *numbers == known + 4 || *places == Side::Size(cells)) =>
        {
            let places = match places {
                Side::Size(places) => *places,
                _ => cells,
            };
            Some(head(
                vec![Side::Batch, Side::Size(*numbers), Side::Size(places)],
                format!("{{transposed: true, scores: each, {picture}, threshold: 0.25, iou: 0.45}}"),
                "as YOLOv8 to v11; `per_class: true` compares boxes of a class only",
                Vec::new(),
                Sizing::Letterbox,
                *numbers - 4,
            ))
        }
        [Side::Batch, Side::Size(_), Side::Size(6)]
            if ports::is_named(port, &["box", "detection"])
                && cells.saturating_mul(3) != size_of(shape)
                && cells != size_of(shape) =>
        {
            let mut made = head(
                shape.to_vec(),
                "{scores: best, threshold: 0.25, iou: 0.45}".to_owned(),
                "centre, width, height, score and class, as shares of the picture; `picture: [WIDTH, HEIGHT]` for pixels, `form: corners` for other boxes",
                Vec::new(),
                Sizing::Stretch,
                known,
            );
            made.classes = None;
            Some(made)
        }
        [Side::Batch, places, Side::Size(numbers)] if *numbers > 5 => {
            let classes = *numbers - 5;
            match places {
                Side::Size(places) if *places == cells.saturating_mul(3) => Some(head(
                    shape.to_vec(),
                    format!("{{scores: objectness, {picture}, threshold: 0.25, iou: 0.45}}"),
                    "as YOLOv5 and v7; `per_class: true` compares boxes of a class only",
                    Vec::new(),
                    Sizing::Letterbox,
                    classes,
                )),
                Side::Size(places) if *places == cells => Some(head(
                    shape.to_vec(),
                    "{scores: objectness, grid: {form: yolox, strides: [8, 16, 32]}, threshold: 0.25, iou: 0.45}".to_owned(),
                    "as YOLOX; a file that decodes its boxes has `picture` instead of `grid`",
                    vec![
                        Step::guessed("bgr: {}", "as YOLOX"),
                        Step::guessed("normalize: {divide_by: 1}", "as YOLOX, which reads values from 0 to 255"),
                    ],
                    Sizing::TopLeft,
                    classes,
                )),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Number of places of a shape.
fn size_of(shape: &[Side]) -> usize {
    match shape.get(1) {
        Some(Side::Size(places)) => *places,
        _ => 0,
    }
}

/// Returns the head of boxes in one output and scores in another.
fn of_two(
    subject: &Subject<'_>,
    (boxes, shape): &(&Port, Vec<Side>),
    (scores, others): &(&Port, Vec<Side>),
) -> Option<Head> {
    let [Side::Batch, Side::Size(places), Side::Size(4)] = shape.as_slice() else { return None };
    let [Side::Batch, Side::Size(same), Side::Size(classes)] = others.as_slice() else { return None };
    if places != same {
        return None;
    }
    let from = format!("scores_from: {}", yaml::scalar(&scores.name));
    let named =
        subject.beside.json("config.json").and_then(|config| labels::names(&config)).map(|all| all.len());
    let is_few = *places <= FEW || ports::is_named(boxes, &["pred_boxes"]);
    let (settings, guess, sizing, classes) = if is_few {
        // DETR has one class more than labels, which stands for nothing; 92 are those of COCO.
        let (activation, classes) = match named == Some(*classes - 1) || *classes == 92 {
            true => ("activation: softmax, background: last", *classes - 1),
            false => ("activation: sigmoid", *classes),
        };
        let settings = format!("{{{from}, {activation}, threshold: 0.5, iou: 1}}");
        (
            settings,
            "as DETR and RT-DETR: boxes are shares of the picture, scores are logits",
            Sizing::Stretch,
            classes,
        )
    } else {
        let settings = format!("{{form: corners, {from}, background: first, threshold: 0.5, iou: 0.45}}");
        (
            settings,
            "as SSD with decoded boxes, shares of the picture, and probabilities",
            Sizing::Stretch,
            *classes - 1,
        )
    };
    Some(Head {
        boxes: boxes.name.clone(),
        shape: shape.clone(),
        scores: Some(scores.name.clone()),
        settings,
        guess,
        colours: match is_few {
            true => Vec::new(),
            false => vec![Step::guessed(
                "normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}",
                "its documentation has mean and std",
            )],
        },
        sizing,
        classes: Some(classes),
    })
}

fn drafted(
    subject: &Subject<'_>,
    picture: &Picture<'_>,
    size: (usize, usize),
    head: Head,
    shapes: &[(&Port, Vec<Side>)],
) -> Draft {
    let (height, width) = size;
    let sizing = match head.sizing {
        Sizing::Letterbox => Step::guessed(
            format!("letterbox: {{width: {width}, height: {height}}}"),
            "as Ultralytics: grey around the picture, values from 0 to 1",
        ),
        Sizing::TopLeft => Step::guessed(
            format!(
                "letterbox: {{width: {width}, height: {height}, align: top_left, filter: opencv_linear}}"
            ),
            "as YOLOX",
        ),
        Sizing::Stretch => Step::guessed(
            format!("resize: {{width: {width}, height: {height}}}"),
            "or `letterbox`; its documentation says which, and whether it wants `normalize`",
        ),
    };
    let steps = match (Preparation::beside(subject.beside), &head.sizing) {
        (Some(made), Sizing::Stretch) => made.steps(height, width, picture.channels, picture.is_float()),
        _ => picture.boxed_steps(sizing, head.colours),
    };
    let mut inputs = vec![picture.entry(subject, size, steps)];
    inputs.extend(pictures::others(subject, picture));
    let mut outputs = Vec::new();
    for (port, shape) in shapes {
        if port.name == head.boxes {
            let names = class_names(subject, head.classes);
            let entry = Entry::new(&port.name, "boxes", "tensor", ports::dtype(port), head.shape.clone());
            let entry = names.into_iter().fold(entry, Entry::note);
            outputs.push(entry.step(Step::guessed(format!("decode_boxes: {}", head.settings), head.guess)));
        } else if head.scores.as_ref() != Some(&port.name) {
            outputs.push(tensors::output(subject, port, shape.clone()));
        }
    }
    Draft { inputs, outputs, ..Draft::default() }
}

/// Names of the classes, as a comment: boxes have their numbers.
pub(super) fn class_names(subject: &Subject<'_>, classes: Option<usize>) -> Option<String> {
    let config = || subject.beside.json("config.json").and_then(|config| labels::names(&config));
    let names = match subject.exporter.labels.is_empty() {
        true => config().or_else(|| {
            let lines = |text: &String| {
                tidemill_inference::alphabet::lines(text).map(str::to_owned).collect::<Vec<_>>()
            };
            subject
                .facts
                .metadata
                .values()
                .map(lines)
                .find(|lines| Some(lines.len()) == classes && lines.len() > 1)
        })?,
        false => subject.exporter.labels.clone(),
    };
    Some(format!("its classes in order are {}", yaml::list(&names)))
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn a_detector_of_ultralytics_names_size_and_classes() {
        let text = Case::new("320n")
            .input("images", "float32 [batch, 3, height, width]")
            .output("output0", "float32 [batch, 6, anchors]")
            .metadata("names", "{0: 'face', 1: 'hand'}")
            .metadata("task", "detect")
            .metadata("imgsz", "[320, 320]")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: images
    column: image
    type: image
    dtype: float32
    shape: [batch, 3, 320, 320]
    # the file takes any size; its metadata names this one
    preprocess:
      - letterbox: {width: 320, height: 320} # guessed: as Ultralytics: grey around the picture, values from 0 to 1
outputs:
  - name: output0
    column: boxes
    type: tensor
    dtype: float32
    shape: [batch, 6, 2100]
    # its classes in order are [face, hand]
    postprocess:
      - decode_boxes: {transposed: true, scores: each, picture: [320, 320], threshold: 0.25, iou: 0.45} # guessed: as YOLOv8 to v11; `per_class: true` compares boxes of a class only
"
        );
    }

    #[test]
    fn heads_are_known_by_their_places() {
        let draft = |size: &str, outputs: &[(&str, &str)]| {
            let case = Case::new("x").input("images", &format!("float32 [1, 3, {size}, {size}]"));
            outputs.iter().fold(case, |case, (name, text)| case.output(name, text)).draft()
        };
        let text = draft("416", &[("output", "float32 [1, 3549, 6]")]);
        assert!(
            text.contains("grid: {form: yolox, strides: [8, 16, 32]}") && text.contains("divide_by: 1"),
            "{text}"
        );
        let text = draft("640", &[("output", "float32 [1, 25200, 85]")]);
        assert!(text.contains("{scores: objectness, picture: [640, 640]"), "{text}");
        let text = draft("480", &[("boxes", "float32 [1, 2160, 6]")]);
        assert!(text.contains("decode_boxes: {scores: best, threshold: 0.25, iou: 0.45}"), "{text}");
        let text = draft("640", &[("output", "float32 [1, 84, 8400]")]);
        assert!(text.contains("{transposed: true, scores: each, picture: [640, 640]"), "{text}");
        let text = draft("800", &[("logits", "float32 [1, 100, 92]"), ("pred_boxes", "float32 [1, 100, 4]")]);
        assert!(text.contains("scores_from: logits, activation: softmax, background: last"), "{text}");
        let text = draft("640", &[("logits", "float32 [1, 300, 80]"), ("pred_boxes", "float32 [1, 300, 4]")]);
        assert!(text.contains("scores_from: logits, activation: sigmoid, threshold: 0.5, iou: 1"), "{text}");
        let text = draft("300", &[("scores", "float32 [1, 3000, 2]"), ("boxes", "float32 [1, 3000, 4]")]);
        assert!(text.contains("{form: corners, scores_from: scores, background: first"), "{text}");
        assert_eq!(text.matches("column: boxes").count(), 1, "scores have no column: {text}");
    }

    #[test]
    fn other_tasks_are_said() {
        let text = Case::new("pose")
            .input("images", "float32 [1, 3, 640, 640]")
            .output("output0", "float32 [1, 56, 8400]")
            .metadata("task", "pose")
            .draft();
        assert!(
            text.contains("# the file says: its task is pose\n") && text.contains("type: tensor"),
            "{text}"
        );
    }
}
