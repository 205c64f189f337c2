//! Tensors of a detection head as one place after another: joined outputs, and boxes beside their cells.
use crate::postprocess::layout::{Places, Reading};
use crate::postprocess::scores::sigmoid;
use tidemill_spec::manifest::{BoxDecoding, BoxScores, Grid, GridForm};

/// The values of one record in an output, with their shape.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The values, last dimension fastest.
    pub values: &'a [f32],
    /// Their shape, without the batch.
    pub shape: &'a [usize],
}

/// Columns and rows of cells of this stride in a picture of this width and height.
pub(super) fn cells(stride: u32, [width, height]: [f32; 2]) -> (usize, usize) {
    let count = |side: f32| (side / stride as f32).ceil() as usize;
    (count(width), count(height))
}

/// Number of cells of these strides in a picture of this width and height.
pub fn cells_of(strides: &[u32], picture: [f32; 2]) -> usize {
    strides.iter().map(|stride| cells(*stride, picture)).map(|(columns, rows)| columns * rows).sum()
}

/// A point of a grid: its place in pixels of the model's input, its stride, and the size of its anchor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    x: f32,
    y: f32,
    stride: f32,
    anchor: [f32; 2],
}

/// The points of a grid, in the order of places.
#[derive(Debug, Clone, PartialEq)]
pub struct Points {
    form: GridForm,
    variance: [f32; 2],
    points: Vec<Point>,
}

impl Points {
    /// Lays a grid over a picture of this width and height, for a head with this number of places; `None` if it has another
    /// number. `anchors_first`: whether all cells come with their first anchor first.
    pub fn new(grid: &Grid, picture: [f32; 2], places: usize, anchors_first: bool) -> Option<Self> {
        let all = cells_of(&grid.strides, picture);
        if all == 0 {
            return None;
        }
        let without_size = places / all;
        let mut points = Vec::with_capacity(places);
        let offset = grid.offset.unwrap_or(if grid.form == GridForm::Ssd { 0.5 } else { 0.0 });
        for (level, stride) in grid.strides.iter().enumerate() {
            let anchors = match grid.anchors.get(level) {
                Some(anchors) => anchors.clone(),
                None => vec![[*stride as f32; 2]; without_size],
            };
            let (columns, rows) = cells(*stride, picture);
            let stride = *stride as f32;
            let point = |x: usize, y: usize, anchor: [f32; 2]| Point {
                x: (x as f32 + offset) * stride,
                y: (y as f32 + offset) * stride,
                stride,
                anchor,
            };
            let cells = (0..rows).flat_map(|y| (0..columns).map(move |x| (x, y)));
            if anchors_first {
                for anchor in &anchors {
                    points.extend(cells.clone().map(|(x, y)| point(x, y, *anchor)));
                }
            } else {
                for (x, y) in cells {
                    points.extend(anchors.iter().map(|anchor| point(x, y, *anchor)));
                }
            }
        }
        (points.len() == places).then_some(Self {
            form: grid.form,
            variance: grid.variance.unwrap_or([0.1, 0.2]),
            points,
        })
    }

    /// Returns left, top, width and height in pixels of the model's input, of the box with these four numbers at a place.
    pub fn boxed(&self, place: usize, [a, b, c, d]: [f32; 4]) -> [f32; 4] {
        let Point { x, y, stride, anchor: [anchor_w, anchor_h] } = self.points[place];
        let centred = |x: f32, y: f32, w: f32, h: f32| [x - w / 2.0, y - h / 2.0, w, h];
        match self.form {
            GridForm::Yolox => centred(x + a * stride, y + b * stride, c.exp() * stride, d.exp() * stride),
            GridForm::Yolov5 => {
                let middle = |value: f32| (2.0 * sigmoid(value) - 0.5) * stride;
                let side = |value: f32, anchor: f32| (2.0 * sigmoid(value)).powi(2) * anchor;
                centred(x + middle(a), y + middle(b), side(c, anchor_w), side(d, anchor_h))
            }
            GridForm::Yolov4 => {
                let (x, y) = (x + sigmoid(a) * stride, y + sigmoid(b) * stride);
                centred(x, y, c.exp() * anchor_w, d.exp() * anchor_h)
            }
            GridForm::Distances | GridForm::Distributions => {
                [x - a * stride, y - b * stride, (a + c) * stride, (b + d) * stride]
            }
            GridForm::Ssd => {
                let [place, size] = self.variance;
                let (x, y) = (x + a * place * anchor_w, y + b * place * anchor_h);
                centred(x, y, (c * size).exp() * anchor_w, (d * size).exp() * anchor_h)
            }
        }
    }
}

/// Joins the outputs of a head to rows of four numbers, a score for any object if there is one, and the scores of classes.
/// `picture`: width and height of the model's input. `parts`: the output itself, its scores and objectness, then those of
/// each level. Returns the rows and the numbers of each.
pub fn joined(
    decoding: &BoxDecoding,
    picture: Option<[f32; 2]>,
    parts: &[Part<'_>],
) -> Option<(Vec<f32>, usize)> {
    let mut parts = parts.iter();
    let mut rows = Vec::new();
    let mut width = None;
    for level in 0..=decoding.levels.len() {
        let (has_scores, has_objectness) = beside(decoding, level);
        let reading = Reading::of(decoding, picture, level);
        let mut next = || {
            let part = parts.next()?;
            Places::of(part.values, part.shape, reading)
        };
        let boxes = next()?;
        let scores = if has_scores { Some(next()?) } else { None };
        let objectness = if has_objectness { Some(next()?) } else { None };
        let is_distribution = decoding.grid.as_ref().is_some_and(|grid| grid.form == GridForm::Distributions);
        let own = if scores.is_some() { 4 } else { boxes.numbers };
        if is_distribution && (scores.is_none() || !boxes.numbers.is_multiple_of(4)) {
            return None;
        }
        // More numbers of a side are its distribution.
        let is_distance = decoding.grid.as_ref().is_some_and(|grid| grid.form == GridForm::Distances);
        if is_distance && scores.is_some() && boxes.numbers != 4 {
            return None;
        }
        if objectness.is_some_and(|part| part.numbers != 1) {
            return None;
        }
        let this = own + usize::from(has_objectness) + scores.map_or(0, |scores| scores.numbers);
        let all = [scores, objectness].into_iter().flatten();
        if *width.get_or_insert(this) != this || all.clone().any(|part| part.places != boxes.places) {
            return None;
        }
        rows.reserve(boxes.places * this);
        for place in 0..boxes.places {
            if is_distribution {
                rows.extend((0..4).map(|side| expected(&boxes, place, side)));
            } else {
                rows.extend((0..4).map(|number| boxes.at(place, number)));
            }
            rows.extend(objectness.map(|part| part.at(place, 0)));
            rows.extend((4..own).map(|number| boxes.at(place, number)));
            if let Some(scores) = scores {
                rows.extend((0..scores.numbers).map(|number| scores.at(place, number)));
            }
        }
    }
    Some((rows, width?))
}

/// Whether a level has outputs with its scores and with its objectness beside that with its boxes.
pub(super) fn beside(decoding: &BoxDecoding, level: usize) -> (bool, bool) {
    match level.checked_sub(1).and_then(|at| decoding.levels.get(at)) {
        None => (decoding.scores_from.is_some(), decoding.objectness_from.is_some()),
        Some(level) => (level.scores.is_some(), level.objectness.is_some()),
    }
}

/// The mean of the distribution of a side's distance, whose logits follow each other.
fn expected(boxes: &Places<'_>, place: usize, side: usize) -> f32 {
    let bins = boxes.numbers / 4;
    let logits = (0..bins).map(|bin| boxes.at(place, side * bins + bin));
    let most = logits.clone().fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut weighted) = (0.0, 0.0);
    for (bin, logit) in logits.enumerate() {
        let share = (logit - most).exp();
        sum += share;
        weighted += share * bin as f32;
    }
    weighted / sum
}

/// The meaning of the numbers after a box in [`joined`] rows.
pub fn scores(decoding: &BoxDecoding) -> BoxScores {
    match (decoding.scores_from.is_some(), decoding.objectness_from.is_some()) {
        (false, false) => decoding.scores,
        (_, true) => BoxScores::Objectness,
        (true, false) => BoxScores::Each,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(text: &str) -> Grid {
        let source = tidemill_spec::span::SourceFile::new("grid.yaml", text.to_owned());
        tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
    }

    #[test]
    fn cells_come_row_by_row_and_level_by_level() {
        let yolox = Points::new(&grid("{form: yolox, strides: [8, 16]}"), [16.0, 16.0], 5, false).unwrap();
        assert_eq!(yolox.boxed(1, [0.5, 0.5, 0.0, 0.0]), [8.0, 0.0, 8.0, 8.0]);
        assert_eq!(yolox.boxed(4, [0.5, 0.5, 0.0, 0.0]), [0.0, 0.0, 16.0, 16.0]);
        assert_eq!(Points::new(&grid("{form: yolox, strides: [8, 16]}"), [16.0, 16.0], 6, false), None);
        let scrfd = Points::new(&grid("{form: distances, strides: [8]}"), [16.0, 8.0], 4, false).unwrap();
        assert_eq!(scrfd.boxed(2, [0.5, 0.25, 1.0, 1.0]), [4.0, -2.0, 12.0, 10.0]);
        let text = "{form: yolov5, strides: [8], anchors: [[[10, 20], [30, 40]]]}";
        let yolov5 = Points::new(&grid(text), [16.0, 8.0], 4, true).unwrap();
        // The sigmoid of 0 is a half: the middle of the cell, and the size of the anchor.
        assert_eq!(yolov5.boxed(1, [0.0; 4]), [7.0, -6.0, 10.0, 20.0]);
        assert_eq!(yolov5.boxed(2, [0.0; 4]), [-11.0, -16.0, 30.0, 40.0]);
        let ssd =
            Points::new(&grid("{form: ssd, strides: [8], anchors: [[[10, 10]]]}"), [8.0, 8.0], 1, false)
                .unwrap();
        assert_eq!(ssd.boxed(0, [1.0, 0.0, 0.0, 0.0]), [0.0, -1.0, 10.0, 10.0]);
    }

    #[test]
    fn outputs_are_joined_place_by_place() {
        let decoding: BoxDecoding = {
            let text = "{threshold: 0.5, iou: 0.5, scores_from: s, objectness_from: o, \
                        grid: {form: yolox, strides: [8, 16]}, levels: [{boxes: b, scores: c, objectness: d}]}";
            let source = tidemill_spec::span::SourceFile::new("boxes.yaml", text.to_owned());
            tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
        };
        let boxes = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let (scores, objectness) = ([0.1, 0.2, 0.3, 0.4], [0.9, 0.8]);
        let part = |values, shape| Part { values, shape };
        let parts = [
            part(&boxes[..], &[2, 4]),
            part(&scores[..], &[2, 2]),
            part(&objectness[..], &[2]),
            part(&boxes[..4], &[1, 4]),
            part(&scores[..2], &[1, 2]),
            part(&objectness[..1], &[1, 1]),
        ];
        let (rows, width) = joined(&decoding, None, &parts).unwrap();
        assert_eq!(width, 7);
        assert_eq!(rows[..14], [1.0, 2.0, 3.0, 4.0, 0.9, 0.1, 0.2, 5.0, 6.0, 7.0, 8.0, 0.8, 0.3, 0.4]);
        assert_eq!(rows[14..], [1.0, 2.0, 3.0, 4.0, 0.9, 0.1, 0.2]);
        assert!(joined(&decoding, None, &parts[..5]).is_none());
    }

    #[test]
    fn distances_are_means_of_distributions() {
        let text = "{threshold: 0.5, iou: 0.5, scores_from: s, grid: {form: distributions, strides: [8]}}";
        let source = tidemill_spec::span::SourceFile::new("boxes.yaml", text.to_owned());
        let decoding = tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap();
        let logits = [0.0, 0.0, 0.0, 30.0, 30.0, 0.0, 0.0, 0.0];
        let parts = [Part { values: &logits, shape: &[1, 8] }, Part { values: &[0.5, 0.6], shape: &[1, 2] }];
        let (rows, width) = joined(&decoding, None, &parts).unwrap();
        let expected = [0.5, 1.0, 0.0, 0.5, 0.5, 0.6];
        let is_near = rows.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(width == 6 && rows.len() == 6 && is_near, "{rows:?}");
    }
}
