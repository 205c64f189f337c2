//! Boxes from the cells of a detection head, and non-maximum suppression: of overlapping boxes, the best stays.
use tidemill_spec::manifest::{BoxDecoding, BoxForm, BoxScores};

/// Numbers of a box in a column of boxes: left, top, width and height as shares of the picture, score, class.
pub const BOX_NUMBERS: usize = 6;

/// Most cells considered, those with the best scores; twice the requested number of boxes if that is more. More would make
/// suppression slow for a head with detections everywhere.
const MOST_CANDIDATES: usize = 1024;

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

    /// The part within the picture; `None` if there is none.
    fn clipped(self) -> Option<Self> {
        let (left, top) = (self.left.max(0.0), self.top.max(0.0));
        let (right, bottom) = ((self.left + self.width).min(1.0), (self.top + self.height).min(1.0));
        // `max` and `min` return the other number if one is NaN.
        let is_number = [self.left, self.top, self.width, self.height].iter().all(|number| !number.is_nan());
        let is_there = is_number && right > left && bottom > top;
        is_there.then_some(Self { left, top, width: right - left, height: bottom - top, ..self })
    }
}

/// Decodes the tensor of one picture.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxDecoder {
    decoding: BoxDecoding,
    places: usize,
    numbers: usize,
}

impl BoxDecoder {
    /// Creates a decoder for tensors of this shape, without the batch; `None` if it does not fit.
    pub fn new(decoding: &BoxDecoding, shape: &[usize]) -> Option<Self> {
        let (places, numbers) = match (shape, decoding.transposed) {
            (&[places, numbers], false) | (&[numbers, places], true) => (places, numbers),
            _ => return None,
        };
        let is_readable = match decoding.scores {
            BoxScores::Best => numbers == 6,
            BoxScores::Each => numbers > 4,
            BoxScores::Objectness => numbers > 5,
        };
        is_readable.then(|| Self { decoding: decoding.clone(), places, numbers })
    }

    /// Returns the boxes of one picture: [`BOX_NUMBERS`] for each, as many as the manifest says, padded with 0.
    pub fn decode(&self, values: &[f32]) -> Vec<f32> {
        let mut found: Vec<Candidate> =
            (0..self.places).filter_map(|place| self.candidate(values, place)).collect();
        // A stable sort keeps equal scores in the order of cells.
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        let most = self.decoding.most as usize;
        found.truncate(MOST_CANDIDATES.max(2 * most));
        let mut kept: Vec<Candidate> = Vec::with_capacity(most);
        for candidate in found {
            let hides = |better: &Candidate| {
                (!self.decoding.per_class || better.class == candidate.class)
                    && better.overlap(&candidate) > self.decoding.iou
            };
            if !kept.iter().any(hides) {
                kept.push(candidate);
                if kept.len() == most {
                    break;
                }
            }
        }
        let mut numbers: Vec<f32> =
            kept.iter().flat_map(|it| [it.left, it.top, it.width, it.height, it.score, it.class]).collect();
        numbers.resize(most * BOX_NUMBERS, 0.0);
        numbers
    }

    /// Returns the box of a cell, if its score is high enough and a part of it is in the picture.
    fn candidate(&self, values: &[f32], place: usize) -> Option<Candidate> {
        let at = |number: usize| match self.decoding.transposed {
            true => values[number * self.places + place],
            false => values[place * self.numbers + number],
        };
        let best = |first: usize| {
            let classes = (first..self.numbers).map(|number| (number - first, at(number)));
            classes.fold((0, f32::NEG_INFINITY), |best, this| if this.1 > best.1 { this } else { best })
        };
        let (score, class) = match self.decoding.scores {
            BoxScores::Best => (at(4), at(5)),
            BoxScores::Each => {
                let (class, score) = best(4);
                (score, class as f32)
            }
            // Most cells are empty: their classes are not read.
            BoxScores::Objectness if at(4) < self.decoding.threshold => return None,
            BoxScores::Objectness => {
                let (class, score) = best(5);
                (at(4) * score, class as f32)
            }
        };
        // A score that is no number is too low; 0 means that there is no box.
        if !(score >= self.decoding.threshold && score > 0.0 && class.is_finite()) {
            return None;
        }
        let [width, height] = self.decoding.picture.unwrap_or([1.0, 1.0]);
        let [a, b, c, d] = [at(0) / width, at(1) / height, at(2) / width, at(3) / height];
        let [left, top, width, height] = match self.decoding.form {
            BoxForm::Center => [a - c / 2.0, b - d / 2.0, c, d],
            BoxForm::Corners => [a, b, c - a, d - b],
            BoxForm::LeftTop => [a, b, c, d],
        };
        Candidate { left, top, width, height, score, class }.clipped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoding() -> BoxDecoding {
        BoxDecoding {
            form: BoxForm::Center,
            scores: BoxScores::Best,
            picture: None,
            transposed: false,
            threshold: 0.3,
            iou: 0.5,
            per_class: false,
            most: 3,
        }
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
        let decoder = BoxDecoder::new(&decoding(), &[6, 6]).unwrap();
        let none = [0.0; 6];
        let best = [0.41, 0.4, 0.2, 0.2, 0.9, 1.0];
        let alone = [0.0, 0.0, 0.2, 0.2, 0.4, 0.0];
        assert_boxes(&decoder.decode(&values), &[best, alone, none]);
        let per_class = BoxDecoding { per_class: true, ..decoding() };
        let decoder = BoxDecoder::new(&per_class, &[6, 6]).unwrap();
        assert_boxes(&decoder.decode(&values), &[best, [0.4, 0.4, 0.2, 0.2, 0.6, 0.0], alone]);
        let fewer = BoxDecoding { per_class: true, most: 1, ..decoding() };
        assert_boxes(&BoxDecoder::new(&fewer, &[6, 6]).unwrap().decode(&values), &[best]);
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
        let decoder = BoxDecoder::new(&decoding, &[7, 2]).unwrap();
        // The second one exceeds the picture.
        assert_boxes(
            &decoder.decode(&values),
            &[[0.1, 0.2, 0.2, 0.2, 0.72, 1.0], [0.6, 0.4, 0.3, 0.6, 0.35, 0.0]],
        );
        let each = BoxDecoding {
            scores: BoxScores::Each,
            form: BoxForm::LeftTop,
            most: 1,
            ..super::tests::decoding()
        };
        let decoder = BoxDecoder::new(&each, &[1, 7]).unwrap();
        assert_boxes(
            &decoder.decode(&[0.1, 0.2, 0.3, 0.4, 0.1, 0.6, 0.5]),
            &[[0.1, 0.2, 0.3, 0.4, 0.6, 1.0]],
        );
        assert!(BoxDecoder::new(&each, &[4, 4]).is_none() && BoxDecoder::new(&each, &[5]).is_none());
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
            let decoder = BoxDecoder::new(&decoding, &[places.len(), 6]).unwrap();
            let found = decoder.decode(&values);
            prop_assert_eq!(found.len(), most as usize * 6);
            let kept: Vec<Candidate> = found.chunks(6).filter(|b| b[4] > 0.0).map(|b| Candidate {
                left: b[0], top: b[1], width: b[2], height: b[3], score: b[4], class: b[5],
            }).collect();
            let hides = |a: &Candidate, b: &Candidate| (!per_class || a.class == b.class) && a.overlap(b) > 0.5;
            for (index, this) in kept.iter().enumerate() {
                prop_assert!(this.left >= 0.0 && this.top >= 0.0 && this.left + this.width < 1.0001);
                prop_assert!(kept[..index].iter().all(|better| better.score >= this.score && !hides(better, this)));
            }
            let candidates = (0..places.len()).filter_map(|place| decoder.candidate(&values, place));
            for candidate in candidates.filter(|candidate| !kept.contains(candidate)) {
                let is_behind = kept.len() == most as usize && kept.iter().all(|k| k.score >= candidate.score);
                prop_assert!(is_behind || kept.iter().any(|k| k.score >= candidate.score && hides(k, &candidate)));
            }
        }
    }
}
