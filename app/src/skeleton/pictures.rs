//! Models that read a picture: classifiers, embeddings, and all others whose outputs have no step.
use super::draft::{Draft, Entry, Step};
use super::ports::{self, Side};
use super::preparation::Preparation;
use super::scores;
use super::subject::{Subject, Tried};
use super::tensors;
use tidemill_inference::facts::{Dimension, Port};
use tidemill_spec::types::ElementType;

/// Side of pictures if the file accepts any.
const SIDE: usize = 224;

/// An input that is a picture.
#[derive(Debug, Clone)]
pub(super) struct Picture<'a> {
    pub(super) port: &'a Port,
    /// 3, or 1 of brightness.
    pub(super) channels: usize,
    is_channel_last: bool,
    /// Declared height; `None` if it is free.
    pub(super) height: Option<usize>,
    pub(super) width: Option<usize>,
    /// Whether it can be nothing else, such as the spectrum of a sound.
    is_clear: bool,
}

/// Returns the only picture that a model reads.
pub(super) fn of<'a>(subject: &Subject<'a>) -> Option<Picture<'a>> {
    of_any(subject).filter(|picture| picture.is_clear)
}

/// Returns the only input that may be a picture.
pub(super) fn of_any<'a>(subject: &Subject<'a>) -> Option<Picture<'a>> {
    let mut all = subject.inputs.iter().filter_map(|port| picture(port));
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

fn picture(port: &Port) -> Option<Picture<'_>> {
    use Dimension::{Fixed, Free};
    let element = ports::element(port)?;
    if !matches!(element, ElementType::Float32 | ElementType::Float16 | ElementType::Uint8) {
        return None;
    }
    let (channels, height, width, is_channel_last) = match port.shape.as_deref()? {
        [Free(_) | Fixed(1), Fixed(channels @ (1 | 3)), height, width] => (*channels, height, width, false),
        [Free(_) | Fixed(1), height, width, Fixed(channels @ (1 | 3))] => (*channels, height, width, true),
        _ => return None,
    };
    let size = |side: &Dimension| match side {
        Fixed(size) => Some(*size),
        Free(_) => None,
    };
    let (height, width) = (size(height), size(width));
    if ports::is_named(port, &["mel", "spec", "fbank"]) {
        return None;
    }
    // One channel of other sizes is as often the spectrum of a sound.
    let is_clear = channels == 3 || height == width && height.is_none_or(|side| side > 4);
    Some(Picture { port, channels, is_channel_last, height, width, is_clear })
}

impl Picture<'_> {
    /// Height and width: of the file, else of the settings, else this side.
    pub(super) fn size(&self, subject: &Subject<'_>, otherwise: usize) -> (usize, usize) {
        let prepared = || Preparation::beside(subject.beside).and_then(|made| made.size());
        let (height, width) = subject.exporter.size.or_else(prepared).unwrap_or((otherwise, otherwise));
        (self.height.unwrap_or(height), self.width.unwrap_or(width))
    }

    /// Shape of one record's tensor.
    pub(super) fn shape(&self, (height, width): (usize, usize)) -> Vec<usize> {
        match self.is_channel_last {
            true => vec![1, height, width, self.channels],
            false => vec![1, self.channels, height, width],
        }
    }

    /// Returns the shapes of the outputs for a picture of this size.
    pub(super) fn tried(&self, subject: &Subject<'_>, size: (usize, usize)) -> Option<Tried> {
        subject.tried(&[(&self.port.name, self.shape(size))])
    }

    /// Whether the model reads floats, which `normalize` gives.
    pub(super) fn is_float(&self) -> bool {
        ports::is_float(self.port)
    }

    /// Drafts the input.
    pub(super) fn entry(&self, subject: &Subject<'_>, size: (usize, usize), steps: Vec<Step>) -> Entry {
        let sides = self.shape(size).into_iter().enumerate();
        let sides = sides.map(|(at, size)| if at == 0 { Side::Batch } else { Side::Size(size) });
        let entry = Entry::new(&self.port.name, "image", "image", ports::dtype(self.port), sides.collect());
        let is_free = self.height.is_none() || self.width.is_none();
        let entry = match (is_free, subject.exporter.size) {
            (true, None) => entry.guess("the size; the file takes any"),
            (true, Some(_)) => entry.note("the file takes any size; its metadata names this one"),
            (false, _) => entry,
        };
        entry.steps(steps)
    }

    /// Steps of a head whose boxes are to fit the picture: `sizing` and `last` for three channels.
    pub(super) fn boxed_steps(&self, sizing: Step, last: Vec<Step>) -> Vec<Step> {
        let grey = (self.channels == 1).then(|| Step::known("grey: {}"));
        let last = if self.is_float() { last } else { Vec::new() };
        std::iter::once(sizing).chain(grey).chain(last).collect()
    }

    /// Steps of a classifier.
    pub(super) fn steps(&self, subject: &Subject<'_>, (height, width): (usize, usize)) -> Vec<Step> {
        if let Some(made) = Preparation::beside(subject.beside) {
            return made.steps(height, width, self.channels, self.is_float());
        }
        if subject.exporter.is_for("classify") {
            let pixels = height.min(width);
            let mut steps = vec![
                Step::guessed(format!("shorter_side: {{pixels: {pixels}}}"), "as Ultralytics does"),
                Step::guessed(
                    format!("center_crop: {{width: {width}, height: {height}}}"),
                    "as Ultralytics does",
                ),
            ];
            steps.extend((self.channels == 1).then(|| Step::known("grey: {}")));
            return steps;
        }
        let sizing = Step::guessed(
            format!("resize: {{width: {width}, height: {height}}}"),
            "or `shorter_side` and `center_crop`, or `letterbox`; and its `filter`",
        );
        let maker =
            "its documentation has mean and std, and says whether it wants `bgr: {}` before this step";
        let normalize = match (self.channels, self.is_channel_last) {
            (1, _) => {
                let grey = Step::known("grey: {}");
                return vec![sizing, grey]
                    .into_iter()
                    .chain(self.is_float().then(|| {
                        Step::guessed(
                            "normalize: {mean: [0], std: [1]}",
                            "values from 0 to 1; its documentation has mean and std",
                        )
                    }))
                    .collect();
            }
            (_, true) => "normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}",
            (_, false) => "normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}",
        };
        std::iter::once(sizing).chain(self.is_float().then(|| Step::guessed(normalize, maker))).collect()
    }
}

/// Drafts inputs beside the picture: its size before all steps, and tensors.
pub(super) fn others(subject: &Subject<'_>, picture: &Picture<'_>) -> Vec<Entry> {
    let rest = subject.inputs.iter().filter(|port| port.name != picture.port.name);
    rest.map(|port| {
        let sides = subject.input_sides(port);
        let is_size = Side::row(&sides) == [Side::Size(2)] && ports::is_named(port, &["size", "shape"]);
        let fits = matches!(
            ports::element(port),
            Some(ElementType::Int64 | ElementType::Int32 | ElementType::Float32)
        );
        if is_size && fits {
            return Entry::new(&port.name, "image", "picture_size", ports::dtype(port), sides)
                .guess("height and width of the picture before all steps");
        }
        tensors::input(subject, port)
    })
    .collect()
}

/// Drafts a model that reads a picture.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let picture = of(subject)?;
    let size = picture.size(subject, SIDE);
    let tried = picture.tried(subject, size);
    let mut inputs = vec![picture.entry(subject, size, picture.steps(subject, size))];
    inputs.extend(others(subject, &picture));
    let mut outputs = Vec::new();
    let mut has_label = false;
    for port in &subject.outputs {
        let shape = subject.output_sides(port, tried.as_ref());
        match Side::vector(&shape) {
            Some(length)
                if ports::is_float(port) && scores::is_embedding(subject, port, length) && !has_label =>
            {
                has_label = true;
                outputs.push(scores::embedding(port, shape));
            }
            Some(classes) if ports::is_float(port) && !has_label && shape.len() > 1 => {
                has_label = true;
                outputs.extend(scores::label_and_score(subject, port, shape, classes, tried.as_ref()));
            }
            _ => outputs.push(tensors::output(subject, port, shape)),
        }
    }
    let remarks = match subject.exporter.is_for("classify") {
        true => Vec::new(),
        false => subject.exporter.comments(),
    };
    Some(Draft { remarks, inputs, outputs, ..Draft::default() })
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};
    use super::*;

    #[test]
    fn a_classifier_gives_its_label_and_score() {
        let case = Case::new("net").input("x", "float32 [n, 3, 224, 224]").output("logits", "float32 [n, 3]");
        let text = case
            .beside("config.json", r#"{"id2label": {"0": "cat", "1": "dog", "2": "no"}}"#)
            .beside("preprocessor_config.json", r#"{"size": {"height": 224, "width": 224}, "resample": 3}"#)
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
    shape: [batch, 3, 224, 224]
    preprocess:
      - resize: {width: 224, height: 224, filter: pillow_bicubic}
outputs:
  - name: logits
    column: label
    type: text
    dtype: float32
    shape: [batch, 3]
    postprocess:
      - argmax: {labels: [cat, dog, \"no\"]}
  - name: logits
    column: score
    type: float64
    dtype: float32
    shape: [batch, 3]
    postprocess:
      - softmax: {} # guessed: the file gives logits; `sigmoid: {}` if classes do not exclude each other
      - max: {}
"
        );
    }

    #[test]
    fn spectra_are_no_pictures() {
        let is_picture = |text: &str| {
            let case = Case::new("x").input("x", text).output("y", "float32 [1, 2]");
            case.with(|subject| of(subject).is_some())
        };
        assert!(is_picture("float32 [1, 1, 28, 28]") && is_picture("uint8 [n, 224, 224, 3]"));
        assert!(!is_picture("float32 [n, 76, 32, 1]") && !is_picture("float32 [n, 1, 128, 1024]"));
        assert!(!is_picture("int64 [n, 3, 8, 8]") && !is_picture("float32 [8, 3, 8, 8]"));
    }

    #[test]
    fn a_file_may_leave_the_size_open() {
        let case = Case::new("net")
            .input("x", "float32 [?, ?, ?, 3]")
            .output("probabilities", "float32 [?, 2]")
            .made_by("probabilities", "Softmax");
        let text = case.draft();
        assert!(
            text.contains("shape: [batch, 224, 224, 3]\n    # guessed: the size; the file takes any\n"),
            "{text}"
        );
        assert!(!text.contains("softmax: {}") && text.contains("- max: {}\n"), "{text}");
    }
}
