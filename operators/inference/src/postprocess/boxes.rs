//! Boxes from the cells of a detection head, and non-maximum suppression: of overlapping boxes, the best stays.
use super::head::{self, Part, Points};
use super::head_shapes;
use super::layout::{self, Places, Reading};
use super::scores::sigmoid;
use crate::frame::Frame;
use std::sync::OnceLock;
use tidemill_spec::manifest::{Activation, Background, BoxDecoding, BoxForm, BoxScores, GridForm};

/// Numbers of a box in a column of boxes: left, top, width and height as shares of the picture, score, class.
pub const BOX_NUMBERS: usize = 6;

/// Most places considered, those with the best scores, as in Ultralytics. More would make suppression slow for a head with
/// detections everywhere.
const MOST_CANDIDATES: usize = 30_000;

/// A candidate box of a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    left: f32,
    top: f32,
    width: f32,
    height: f32,
    score: f32,
    class: f32,
}

impl Candidate {
    /// Intersection over union.
    fn overlap(&self, other: &Self) -> f32 {
        let side =
            |a: f32, length: f32, b: f32, other: f32| ((a + length).min(b + other) - a.max(b)).max(0.0);
        let common = side(self.left, self.width, other.left, other.width)
            * side(self.top, self.height, other.top, other.height);
        let union = self.width * self.height + other.width * other.height - common;
        if union > 0.0 { common / union } else { 0.0 }
    }

    /// Whether it covers anything.
    fn is_box(&self) -> bool {
        !self.left.is_nan() && !self.top.is_nan() && self.width > 0.0 && self.height > 0.0
    }

    /// The part within the picture; `None` if there is none.
    fn clipped(self) -> Option<Self> {
        let (left, top) = (self.left.max(0.0), self.top.max(0.0));
        let (right, bottom) = ((self.left + self.width).min(1.0), (self.top + self.height).min(1.0));
        let is_there = right > left && bottom > top;
        is_there.then_some(Self { left, top, width: right - left, height: bottom - top, ..self })
    }
}

/// Decodes the tensors of one picture.
#[derive(Debug, Clone)]
pub struct BoxDecoder {
    decoding: BoxDecoding,
    /// Size of the model's input in pixels, to which cells refer.
    input: Option<[f32; 2]>,
    /// The cells, once the number of places is known.
    points: OnceLock<Option<Points>>,
}

/// The numbers of all places, with the meaning of those after the box.
struct Numbers<'a> {
    places: Places<'a>,
    scores: BoxScores,
    anchors_first: bool,
}

impl BoxDecoder {
    /// Creates a decoder. `input`: width and height of the picture that the model reads, for heads with a grid.
    pub fn new(decoding: &BoxDecoding, input: Option<[f32; 2]>) -> Self {
        Self { decoding: decoding.clone(), input, points: OnceLock::new() }
    }

    /// Returns whether outputs of these shapes, without the batch, can be read: the head's, then those of
    /// [`outputs_beside`].
    pub fn reads(&self, shapes: &[&[usize]]) -> bool {
        let zeros: Vec<Vec<f32>> = shapes.iter().map(|shape| vec![0.0; shape.iter().product()]).collect();
        let parts = zeros.iter().zip(shapes).map(|(values, shape)| Part { values, shape });
        let parts: Vec<Part<'_>> = parts.collect();
        let mut joined = Vec::new();
        self.numbers(&parts, &mut joined)
            .is_some_and(|numbers| self.decoding.grid.is_none() || self.points(&numbers).is_some())
    }

    /// Returns why outputs of these shapes cannot be read, or are not of the declared kind; see [`BoxDecoder::reads`].
    pub fn refusal(&self, shapes: &[&[usize]]) -> Option<String> {
        if self.reads(shapes) {
            return match *shapes {
                [shape] => head_shapes::exchanged(&self.decoding, self.input?, shape),
                _ => None,
            };
        }
        let reason = head_shapes::reason(&self.decoding, self.input, shapes);
        Some(match *shapes {
            [shape] => format!("decode_boxes cannot read the shape {shape:?}: {reason}"),
            _ => format!("decode_boxes cannot read outputs of the shapes {shapes:?}: {reason}"),
        })
    }

    /// Returns the boxes of one picture: [`BOX_NUMBERS`] for each, as many as the manifest says, padded with 0. Outputs that
    /// [`BoxDecoder::reads`] refuses give none.
    pub fn decode(&self, parts: &[Part<'_>], frame: Frame) -> Vec<f32> {
        let mut joined = Vec::new();
        let mut found = match self.numbers(parts, &mut joined) {
            Some(numbers) => self.candidates(&numbers, frame),
            None => Vec::new(),
        };
        // A stable sort keeps equal scores in the order of cells.
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(MOST_CANDIDATES);
        let most = self.decoding.most as usize;
        let (mut kept, mut visible): (Vec<Candidate>, Vec<Candidate>) = (Vec::new(), Vec::new());
        for candidate in found {
            let hides = |better: &Candidate| {
                (!self.decoding.per_class || better.class == candidate.class)
                    && better.overlap(&candidate) > self.decoding.iou
            };
            if !kept.iter().any(hides) {
                kept.push(candidate);
                visible.extend(candidate.clipped());
                if visible.len() == most {
                    break;
                }
            }
        }
        let numbers =
            visible.iter().flat_map(|it| [it.left, it.top, it.width, it.height, it.score, it.class]);
        let mut numbers: Vec<f32> = numbers.collect();
        numbers.resize(most * BOX_NUMBERS, 0.0);
        numbers
    }

    /// Views the outputs as places; those that must be joined are copied to `joined`.
    fn numbers<'a>(&self, parts: &[Part<'a>], joined: &'a mut Vec<f32>) -> Option<Numbers<'a>> {
        let scores = head::scores(&self.decoding);
        let shapes = parts.iter().map(|part| part.shape);
        let anchors_first = layout::anchors_first(&self.decoding, self.input, shapes).ok()?;
        let places = if let [part] = parts {
            Places::of(part.values, part.shape, Reading::of(&self.decoding, self.input, 0))?
        } else {
            let (rows, width) = head::joined(&self.decoding, self.input, parts)?;
            *joined = rows;
            Places::rows(joined, width)
        };
        let least = match scores {
            BoxScores::Each => 5,
            BoxScores::Best | BoxScores::Objectness => 6,
        };
        let before = if scores == BoxScores::Objectness { 5 } else { 4 };
        let least = self.decoding.classes.map_or(least, |classes| least.max(before + classes as usize));
        (places.numbers >= least).then_some(Numbers { places, scores, anchors_first })
    }

    fn points(&self, numbers: &Numbers<'_>) -> Option<&Points> {
        let grid = self.decoding.grid.as_ref()?;
        let points = || Points::new(grid, self.input?, numbers.places.places, numbers.anchors_first);
        self.points.get_or_init(points).as_ref()
    }

    fn candidates(&self, numbers: &Numbers<'_>, frame: Frame) -> Vec<Candidate> {
        let points = self.points(numbers);
        if points.is_none() && self.decoding.grid.is_some() {
            return Vec::new();
        }
        let all = 0..numbers.places.places;
        all.filter_map(|place| self.candidate(numbers, place, points, frame)).collect()
    }

    /// Returns the function from logits to scores.
    fn activation(&self) -> Option<Activation> {
        let logits = |form| matches!(form, GridForm::Yolov4 | GridForm::Yolov5);
        let of_grid = self.decoding.grid.as_ref().filter(|grid| logits(grid.form));
        self.decoding.activation.or(of_grid.map(|_| Activation::Sigmoid))
    }

    /// Returns the best class of a place, from number `first` on, and its score.
    fn best(&self, places: &Places<'_>, place: usize, first: usize) -> (f32, usize) {
        let end = self.decoding.classes.map_or(places.numbers, |classes| first + classes as usize);
        let (from, to) = match self.decoding.background {
            None => (first, end),
            Some(Background::First) => (first + 1, end),
            Some(Background::Last) => (first, end - 1),
        };
        let classes = (from..to).map(|number| (places.at(place, number), number - from));
        let (best, class) =
            classes.fold((f32::NEG_INFINITY, 0), |best, this| if this.0 > best.0 { this } else { best });
        let score = match self.activation() {
            None => best,
            Some(Activation::Sigmoid) => sigmoid(best),
            Some(Activation::Softmax) => {
                let all = (first..end).map(|number| places.at(place, number));
                let most = all.clone().fold(f32::NEG_INFINITY, f32::max);
                (best - most).exp() / all.map(|value| (value - most).exp()).sum::<f32>()
            }
        };
        (score, class)
    }

    /// Returns the box of a place, if its score is high enough.
    fn candidate(
        &self,
        numbers: &Numbers<'_>,
        place: usize,
        points: Option<&Points>,
        frame: Frame,
    ) -> Option<Candidate> {
        let places = &numbers.places;
        let at = |number: usize| places.at(place, number);
        let (score, class) = match numbers.scores {
            BoxScores::Best => (at(4), at(5)),
            BoxScores::Each => {
                let (score, class) = self.best(places, place, 4);
                (score, class as f32)
            }
            BoxScores::Objectness => {
                let any = if self.activation().is_some() { sigmoid(at(4)) } else { at(4) };
                // Most cells are empty: their classes are not read.
                if any < self.decoding.threshold {
                    return None;
                }
                let (score, class) = self.best(places, place, 5);
                (any * score, class as f32)
            }
        };
        // A score that is no number is too low; 0 means that there is no box.
        if !(score >= self.decoding.threshold && score > 0.0 && class.is_finite()) {
            return None;
        }
        let [a, b, c, d] = [at(0), at(1), at(2), at(3)];
        let [left, top, width, height] = match (points, self.decoding.form) {
            (Some(points), _) => points.boxed(place, [a, b, c, d]),
            (None, BoxForm::Center) => [a - c / 2.0, b - d / 2.0, c, d],
            (None, BoxForm::Corners) => [a, b, c - a, d - b],
            (None, BoxForm::TopLeftCorners) => [b, a, d - b, c - a],
            (None, BoxForm::LeftTop) => [a, b, c, d],
        };
        let [w, h] = self.decoding.picture.or(points.and(self.input)).unwrap_or([1.0, 1.0]);
        let [left, top, width, height] = frame.original([left / w, top / h, width / w, height / h]);
        let candidate = Candidate { left, top, width, height, score, class };
        let candidate = candidate.is_box().then_some(candidate)?;
        if self.decoding.clip_first { candidate.clipped() } else { Some(candidate) }
    }
}

/// Names of the outputs that a head reads beside its own, in the order of [`BoxDecoder::decode`].
pub fn outputs_beside(decoding: &BoxDecoding) -> Vec<&tidemill_spec::span::Located<String>> {
    let own = [&decoding.scores_from, &decoding.objectness_from].into_iter().flatten();
    let levels = decoding.levels.iter().flat_map(|level| {
        [Some(&level.boxes), level.scores.as_ref(), level.objectness.as_ref()].into_iter().flatten()
    });
    own.chain(levels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoding() -> BoxDecoding {
        parsed("{threshold: 0.3, iou: 0.5, most: 3}")
    }

    fn parsed(text: &str) -> BoxDecoding {
        let source = tidemill_spec::span::SourceFile::new("boxes.yaml", text.to_owned());
        tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
    }

    fn decoded(decoding: &BoxDecoding, values: &[f32], shape: &[usize]) -> Vec<f32> {
        let decoder = BoxDecoder::new(decoding, None);
        assert!(decoder.reads(&[shape]));
        decoder.decode(&[Part { values, shape }], Frame::WHOLE)
    }

    /// Compares with a tolerance, since values are computed.
    fn assert_boxes(found: &[f32], expected: &[[f32; 6]]) {
        let expected: Vec<f32> = expected.iter().flatten().copied().collect();
        assert_eq!(found.len(), expected.len());
        let is_close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(is_close, "{found:?} {expected:?}");
    }

    #[test]
    fn the_best_of_those_that_overlap_stays() {
        let head = [
            [0.5, 0.5, 0.2, 0.2, 0.6, 0.0],
            [0.51, 0.5, 0.2, 0.2, 0.9, 1.0],
            [0.1, 0.1, 0.2, 0.2, 0.4, 0.0],
            [0.9, 0.9, 0.1, 0.1, 0.2, 0.0],
            [0.3, 0.3, f32::NAN, 0.1, 0.9, 0.0],
            [0.3, 0.3, 0.1, 0.1, f32::NAN, 0.0],
        ];
        let values: Vec<f32> = head.iter().flatten().copied().collect();
        let none = [0.0; 6];
        let best = [0.41, 0.4, 0.2, 0.2, 0.9, 1.0];
        let alone = [0.0, 0.0, 0.2, 0.2, 0.4, 0.0];
        assert_boxes(&decoded(&decoding(), &values, &[6, 6]), &[best, alone, none]);
        let per_class = BoxDecoding { per_class: true, ..decoding() };
        assert_boxes(&decoded(&per_class, &values, &[6, 6]), &[best, [0.4, 0.4, 0.2, 0.2, 0.6, 0.0], alone]);
        let fewer = BoxDecoding { per_class: true, most: 1, ..decoding() };
        assert_boxes(&decoded(&fewer, &values, &[6, 6]), &[best]);
    }

    #[test]
    fn common_heads_are_read() {
        // Corners in pixels of a picture of 100 x 50, objectness, two classes; numbers before cells.
        let decoding = BoxDecoding {
            form: BoxForm::Corners,
            scores: BoxScores::Objectness,
            picture: Some([100.0, 50.0]),
            transposed: true,
            most: 2,
            ..decoding()
        };
        let places = [[10.0, 10.0, 30.0, 20.0, 0.9, 0.1, 0.8], [60.0, 20.0, 90.0, 60.0, 0.5, 0.7, 0.2]];
        let values: Vec<f32> = (0..7).flat_map(|number| places.map(|place| place[number])).collect();
        // The second one exceeds the picture.
        assert_boxes(
            &decoded(&decoding, &values, &[7, 2]),
            &[[0.1, 0.2, 0.2, 0.2, 0.72, 1.0], [0.6, 0.4, 0.3, 0.6, 0.35, 0.0]],
        );
        let each = BoxDecoding {
            scores: BoxScores::Each,
            form: BoxForm::LeftTop,
            most: 1,
            ..super::tests::decoding()
        };
        assert_boxes(
            &decoded(&each, &[0.1, 0.2, 0.3, 0.4, 0.1, 0.6, 0.5], &[1, 7]),
            &[[0.1, 0.2, 0.3, 0.4, 0.6, 1.0]],
        );
        let decoder = BoxDecoder::new(&each, None);
        assert!(!decoder.reads(&[&[4, 4]]) && !decoder.reads(&[&[5]]));
    }

    #[test]
    fn boxes_are_compared_as_a_whole_and_clipped_at_the_end() {
        // Half of the first box is outside: together they overlap by 0.6, within the picture by 0.33.
        let head = [0.0, 0.5, 0.4, 0.2, 0.9, 0.0, 0.1, 0.5, 0.4, 0.2, 0.6, 0.0];
        let outside = [0.0, 0.4, 0.2, 0.2, 0.9, 0.0];
        assert_boxes(&decoded(&decoding(), &head, &[2, 6]), &[outside, [0.0; 6], [0.0; 6]]);
        let first = BoxDecoding { clip_first: true, iou: 0.7, ..decoding() };
        let both = [outside, [0.0, 0.4, 0.3, 0.2, 0.6, 0.0], [0.0; 6]];
        assert_boxes(&decoded(&first, &head, &[2, 6]), &both);
        assert_boxes(&decoded(&BoxDecoding { clip_first: false, iou: 0.6, ..first }, &head, &[2, 6]), &both);
        // A box outside of the picture hides others, but is none of the result.
        let head =
            [-0.2, 0.5, 0.3, 0.2, 0.9, 0.0, -0.1, 0.5, 0.3, 0.2, 0.6, 0.0, 0.5, 0.5, 0.2, 0.2, 0.5, 0.0];
        let one = BoxDecoding { most: 1, iou: 0.4, ..decoding() };
        assert_boxes(&decoded(&one, &head, &[3, 6]), &[[0.4, 0.4, 0.2, 0.2, 0.5, 0.0]]);
    }

    #[test]
    fn a_box_behind_a_thousand_better_places_is_found() {
        let mut values = [0.2, 0.2, 0.1, 0.1, 0.9, 0.0].repeat(2000);
        values.extend([0.8, 0.8, 0.2, 0.2, 0.4, 1.0]);
        let most = BoxDecoding { most: 2, per_class: true, ..decoding() };
        let expected = [[0.15, 0.15, 0.1, 0.1, 0.9, 0.0], [0.7, 0.7, 0.2, 0.2, 0.4, 1.0]];
        assert_boxes(&decoded(&most, &values, &[2001, 6]), &expected);
    }

    #[test]
    fn maps_of_anchors_are_read_as_their_shape_says() {
        let text = "{threshold: 0.3, iou: 0.5, most: 1, scores: objectness, grid: {form: yolov5, strides: [16], \
                    anchors: [[[8, 8], [16, 16], [32, 32]]]}}";
        let decoder = BoxDecoder::new(&parsed(text), Some([64.0, 64.0]));
        let numbers = [0.0, 0.0, 0.0, 0.0, 9.0, 9.0, -9.0];
        // The second anchor of the cell in row 2 and column 3; half a cell right of and below its corner.
        let (anchor, row, column) = (1, 2, 3);
        let score = sigmoid(9.0) * sigmoid(9.0);
        let expected = [[(56.0 - 8.0) / 64.0, (40.0 - 8.0) / 64.0, 0.25, 0.25, score, 0.0]];
        let by_anchor = |number: usize| ((anchor * 4 + row) * 4 + column) * 7 + number;
        let channels = |number: usize| ((anchor * 7 + number) * 4 + row) * 4 + column;
        let by_cell = |number: usize| ((row * 4 + column) * 3 + anchor) * 7 + number;
        type Place<'a> = &'a dyn Fn(usize) -> usize;
        let places: [(&[usize], Place<'_>); 5] = [
            (&[3, 4, 4, 7], &by_anchor),
            (&[21, 4, 4], &channels),
            (&[4, 4, 3, 7], &by_cell),
            (&[4, 4, 21], &by_cell),
            (&[48, 7], &by_cell),
        ];
        for (shape, place) in places {
            let decoder = BoxDecoder::new(&decoder.decoding, decoder.input);
            let mut values = [-9.0; 336];
            (0..7).for_each(|number| values[place(number)] = numbers[number]);
            assert!(decoder.reads(&[shape]), "{shape:?}");
            assert_boxes(&decoder.decode(&[Part { values: &values, shape }], Frame::WHOLE), &expected);
        }
        let contradicting =
            BoxDecoder::new(&parsed(&text.replace("]]]}", "]]], anchors_first: false}")), decoder.input);
        let refusal = contradicting.refusal(&[&[3, 4, 4, 7]]).unwrap();
        assert!(refusal.ends_with("leave `anchors_first` out"), "{refusal}");
    }

    #[test]
    fn maps_of_one_class_are_read() {
        let text =
            "{threshold: 0.3, iou: 0.5, most: 1, scores_from: s, grid: {form: distances, strides: [8]}}";
        let (boxes, mut scores) = ([1.0; 256], [0.0; 64]);
        scores[8 * 3 + 4] = 0.9;
        let expected = [[24.0 / 64.0, 16.0 / 64.0, 0.25, 0.25, 0.9, 0.0]];
        for shapes in [[&[4, 8, 8], &[1, 8, 8]], [&[8, 8, 4], &[8, 8, 1]]] {
            let decoder = BoxDecoder::new(&parsed(text), Some([64.0, 64.0]));
            let [boxes_shape, scores_shape] = shapes.map(|shape| &shape[..]);
            assert_eq!(decoder.refusal(&[boxes_shape, scores_shape]), None);
            let parts =
                [Part { values: &boxes, shape: boxes_shape }, Part { values: &scores, shape: scores_shape }];
            assert_boxes(&decoder.decode(&parts, Frame::WHOLE), &expected);
        }
    }

    #[test]
    fn numbers_after_the_classes_are_left_out() {
        let decoding =
            parsed("{threshold: 0.3, iou: 0.5, most: 1, scores: each, classes: 2, activation: softmax}");
        let place = [0.5, 0.5, 0.2, 0.2, 1.0, 2.0, 99.0, 77.0];
        let score = 2f32.exp() / (1f32.exp() + 2f32.exp());
        assert_boxes(&decoded(&decoding, &place, &[1, 8]), &[[0.4, 0.4, 0.2, 0.2, score, 1.0]]);
        assert!(!BoxDecoder::new(&decoding, None).reads(&[&[1, 5]]), "one class is missing");
    }

    #[test]
    fn logits_and_background_are_understood() {
        let text = "{threshold: 0.3, iou: 0.5, most: 1, form: corners, scores_from: logits, activation: softmax, \
                    background: first}";
        let decoder = BoxDecoder::new(&parsed(text), None);
        let (boxes, logits) = ([0.1, 0.2, 0.4, 0.6], [0.0, 1.0, 2.0]);
        let parts = [Part { values: &boxes, shape: &[1, 4] }, Part { values: &logits, shape: &[1, 3] }];
        let score = 2f32.exp() / (1.0 + 1f32.exp() + 2f32.exp());
        assert_boxes(&decoder.decode(&parts, Frame::WHOLE), &[[0.1, 0.2, 0.3, 0.4, score, 1.0]]);
        let text = "{threshold: 0.3, iou: 1, most: 1, scores_from: logits, activation: sigmoid}";
        let decoder = BoxDecoder::new(&parsed(text), None);
        let score = 1.0 / (1.0 + (-2f32).exp());
        assert_boxes(&decoder.decode(&parts, Frame::WHOLE), &[[0.0, 0.0, 0.3, 0.5, score, 2.0]]);
    }

    #[test]
    fn cells_of_a_grid_become_boxes_of_the_picture_before_the_letterbox() {
        let decoding = parsed(
            "{threshold: 0.3, iou: 0.5, most: 1, scores: objectness, grid: {form: yolox, strides: [8]}}",
        );
        let decoder = BoxDecoder::new(&decoding, Some([16.0, 16.0]));
        let mut values = [0.0; 24];
        values[18..].copy_from_slice(&[0.0, 0.0, 0.0, 0.0, 0.8, 0.5]);
        // The picture is 16 x 8, in the upper half.
        let frame = Frame::WHOLE.inside([0.0, 0.0, 1.0, 0.5]);
        assert!(decoder.reads(&[&[4, 6]]) && !BoxDecoder::new(&decoding, None).reads(&[&[4, 6]]));
        let found = decoder.decode(&[Part { values: &values, shape: &[4, 6] }], frame);
        assert_boxes(&found, &[[0.25, 0.5, 0.5, 0.5, 0.4, 0.0]]);
    }

    /// A width or height in shares of the picture, sometimes none. Whole numbers are drawn because proptest 1.12 panics on
    /// the last step of a range of f32 whose lower end is no multiple of the steps of its upper end.
    fn side() -> impl Strategy<Value = f32> {
        (-1_000i16..8_000).prop_map(|parts| f32::from(parts) / 10_000.0)
    }

    proptest! {
        /// For any output of a head: boxes are within the picture, the best first, none overlaps a better one, and each
        /// missing one overlaps a present one or comes after the last.
        #[test]
        fn what_is_left_is_the_best(
            places in proptest::collection::vec(
                (0.0f32..1.0, 0.0f32..1.0, side(), side(), 0.0f32..1.0, 0u8..3), 0..40),
            per_class in any::<bool>(), most in 1u32..20,
        ) {
            let decoding = BoxDecoding { per_class, most, ..decoding() };
            let values: Vec<f32> =
                places.iter().flat_map(|p| [p.0, p.1, p.2, p.3, p.4, f32::from(p.5)]).collect();
            let decoder = BoxDecoder::new(&decoding, None);
            let shape = [places.len(), 6];
            let part = Part { values: &values, shape: &shape };
            let found = decoder.decode(&[part], Frame::WHOLE);
            prop_assert_eq!(found.len(), most as usize * 6);
            let visible: Vec<Candidate> = found.chunks(6).filter(|b| b[4] > 0.0).map(|b| Candidate {
                left: b[0], top: b[1], width: b[2], height: b[3], score: b[4], class: b[5],
            }).collect();
            let hides = |a: &Candidate, b: &Candidate| (!per_class || a.class == b.class) && a.overlap(b) > 0.5;
            for (index, this) in visible.iter().enumerate() {
                prop_assert!(this.left >= 0.0 && this.top >= 0.0 && this.left + this.width < 1.0001);
                prop_assert!(visible[..index].iter().all(|better| better.score >= this.score));
            }
            let mut joined = Vec::new();
            let numbers = decoder.numbers(&[part], &mut joined).unwrap();
            let candidates = decoder.candidates(&numbers, Frame::WHOLE);
            let (kept, missing): (Vec<Candidate>, Vec<Candidate>) = candidates
                .into_iter()
                .partition(|candidate| candidate.clipped().is_some_and(|part| visible.contains(&part)));
            for (index, this) in kept.iter().enumerate() {
                prop_assert!(kept[..index].iter().all(|other| !hides(other, this)));
            }
            for candidate in missing {
                let is_behind = kept.len() == most as usize && kept.iter().all(|k| k.score >= candidate.score);
                prop_assert!(is_behind || kept.iter().any(|k| k.score >= candidate.score && hides(k, &candidate)));
            }
        }
    }
}
