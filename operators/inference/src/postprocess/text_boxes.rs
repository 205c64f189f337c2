//! Boxes around lines of text, from a map of text probabilities, as detectors with differentiable binarization give it (DB,
//! Liao et al. 2020).
//!
//! ```
//! use tidemill_inference::postprocess::text_boxes::TextBoxDecoder;
//! use tidemill_spec::manifest::TextDecoding;
//! let decoding = TextDecoding { threshold: 0.3, score: 0.5, grow: 0.0, least: 2, most: 1 };
//! let decoder = TextBoxDecoder::new(&decoding, &[4, 8]).unwrap();
//! let mut map = [0.0; 32];
//! for place in [10, 11, 12, 13, 18, 19, 20, 21] {
//!     map[place] = 0.75; // two rows of four places
//! }
//! // Left, top, width, height as shares of the picture, score, class.
//! assert_eq!(decoder.decode(&map), [0.25, 0.25, 0.5, 0.5, 0.75, 0.0]);
//! ```
//! Touching cells form one line, and its box is the smallest upright one around them; the published decoding rotates boxes
//! with the text. Growing follows the published decoding.
use super::boxes::BOX_NUMBERS;
use tidemill_spec::manifest::TextDecoding;

/// A line of text, in cells of the map.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    left: f32,
    top: f32,
    right: f32,
    bottom: f32,
    score: f32,
}

impl Line {
    fn middle(&self) -> f32 {
        f32::midpoint(self.top, self.bottom)
    }
}

/// Decodes the map of one picture.
#[derive(Debug, Clone, PartialEq)]
pub struct TextBoxDecoder {
    decoding: TextDecoding,
    width: usize,
    height: usize,
}

impl TextBoxDecoder {
    /// Creates a decoder for maps of this shape, without the batch; `None` if it does not fit.
    pub fn new(decoding: &TextDecoding, shape: &[usize]) -> Option<Self> {
        let (&[height, width] | &[1, height, width]) = shape else { return None };
        (width > 0 && height > 0).then(|| Self { decoding: decoding.clone(), width, height })
    }

    /// Returns the boxes of one picture in reading order: left, top, width, height, score and 0 for each, as many as the
    /// manifest says, padded with 0.
    pub fn decode(&self, map: &[f32]) -> Vec<f32> {
        let most = self.decoding.most as usize;
        let mut lines = self.lines(map);
        // A stable sort keeps equal scores in the order of cells.
        lines.sort_by(|a, b| b.score.total_cmp(&a.score));
        lines.truncate(most);
        let ordered = in_reading_order(lines);
        let mut numbers: Vec<f32> = ordered.into_iter().flat_map(|line| self.grown(line)).collect();
        numbers.resize(most * BOX_NUMBERS, 0.0);
        numbers
    }

    /// Returns touching text cells that are large and likely enough.
    fn lines(&self, map: &[f32]) -> Vec<Line> {
        let is_text = |value: f32| value > self.decoding.threshold;
        let mut seen = vec![false; map.len()];
        let (mut open, mut lines) = (Vec::new(), Vec::new());
        for start in 0..map.len().min(self.width * self.height) {
            if seen[start] || !is_text(map[start]) {
                continue;
            }
            seen[start] = true;
            open.push(start);
            let (x, y) = (start % self.width, start / self.width);
            let (mut first, mut last) = ((x, y), (x, y));
            let (mut sum, mut count) = (0.0_f64, 0_u32);
            while let Some(place) = open.pop() {
                let (x, y) = (place % self.width, place / self.width);
                first = (first.0.min(x), first.1.min(y));
                last = (last.0.max(x), last.1.max(y));
                sum += f64::from(map[place]);
                count += 1;
                for row in y.saturating_sub(1)..=(y + 1).min(self.height - 1) {
                    for column in x.saturating_sub(1)..=(x + 1).min(self.width - 1) {
                        let next = row * self.width + column;
                        if !seen[next] && is_text(map[next]) {
                            seen[next] = true;
                            open.push(next);
                        }
                    }
                }
            }
            let least = self.decoding.least as usize;
            let is_large = last.0 + 1 - first.0 >= least && last.1 + 1 - first.1 >= least;
            let score = (sum / f64::from(count)) as f32;
            // A score of 0 would mean that there is no box.
            if is_large && score >= self.decoding.score && score > 0.0 {
                let (left, top) = (first.0 as f32, first.1 as f32);
                let (right, bottom) = ((last.0 + 1) as f32, (last.1 + 1) as f32);
                lines.push(Line { left, top, right, bottom, score });
            }
        }
        lines
    }

    /// Returns the numbers of a box, grown, within the picture.
    fn grown(&self, line: Line) -> [f32; BOX_NUMBERS] {
        let (width, height) = (line.right - line.left, line.bottom - line.top);
        let by = self.decoding.grow * width * height / (2.0 * (width + height));
        let share = |at: f32, whole: usize| (at / whole as f32).clamp(0.0, 1.0);
        let (left, right) = (share(line.left - by, self.width), share(line.right + by, self.width));
        let (top, bottom) = (share(line.top - by, self.height), share(line.bottom + by, self.height));
        [left, top, right - left, bottom - top, line.score, 0.0]
    }
}

/// Sorts row by row from the top, each from the left. A line belongs to the row if its middle is above the bottom of the
/// row's first line.
fn in_reading_order(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_by(|a, b| a.middle().total_cmp(&b.middle()));
    let mut start = 0;
    while start < lines.len() {
        let bottom = lines[start].bottom;
        let row = lines[start..].iter().take_while(|line| line.middle() < bottom).count().max(1);
        lines[start..start + row].sort_by(|a, b| a.left.total_cmp(&b.left));
        start += row;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoding() -> TextDecoding {
        TextDecoding { threshold: 0.3, score: 0.5, grow: 0.0, least: 2, most: 3 }
    }

    /// A map of 20 x 10 cells with these rectangles: left, top, right, bottom, value.
    fn map(rectangles: &[(usize, usize, usize, usize, f32)]) -> Vec<f32> {
        let mut map = vec![0.0; 200];
        for (left, top, right, bottom, value) in rectangles {
            for row in *top..*bottom {
                map[row * 20 + left..row * 20 + right].fill(*value);
            }
        }
        map
    }

    /// Left, top, right, bottom of the boxes found, in cells.
    fn found(decoder: &TextBoxDecoder, map: &[f32]) -> Vec<[f32; 4]> {
        let decoded = decoder.decode(map);
        assert_eq!(decoded.len(), decoder.decoding.most as usize * BOX_NUMBERS);
        let there = decoded.chunks(BOX_NUMBERS).filter(|numbers| numbers[4] > 0.0);
        let places = there.map(|n| [n[0] * 20.0, n[1] * 10.0, (n[0] + n[2]) * 20.0, (n[1] + n[3]) * 10.0]);
        places.map(|corners| corners.map(|at| (at * 100.0).round() / 100.0)).collect()
    }

    #[test]
    fn rows_are_read_from_the_left() {
        // The price stands a little higher than its name.
        let rows = [(12, 1, 18, 4, 0.9), (1, 2, 8, 5, 0.8), (2, 6, 9, 8, 0.7)];
        let decoder = TextBoxDecoder::new(&decoding(), &[1, 10, 20]).unwrap();
        let expected = [[1.0, 2.0, 8.0, 5.0], [12.0, 1.0, 18.0, 4.0], [2.0, 6.0, 9.0, 8.0]];
        assert_eq!(found(&decoder, &map(&rows)), expected);
        let fewer = TextDecoding { most: 2, ..decoding() };
        let decoder = TextBoxDecoder::new(&fewer, &[10, 20]).unwrap();
        assert_eq!(found(&decoder, &map(&rows)), expected[..2], "the least likely one is left out");
    }

    #[test]
    fn what_is_small_or_unlikely_is_no_text() {
        let rows = [(0, 0, 4, 1, 0.9), (6, 0, 7, 5, 0.9), (9, 0, 12, 3, 0.45), (14, 5, 16, 7, 0.9)];
        let decoder = TextBoxDecoder::new(&decoding(), &[10, 20]).unwrap();
        assert_eq!(found(&decoder, &map(&rows)), [[14.0, 5.0, 16.0, 7.0]]);
        assert!(found(&decoder, &map(&[])).is_empty());
        assert!(found(&decoder, &[f32::NAN; 200]).is_empty());
    }

    #[test]
    fn places_that_touch_by_a_corner_are_one_line() {
        let decoder = TextBoxDecoder::new(&decoding(), &[10, 20]).unwrap();
        let touching = [(1, 1, 4, 3, 0.9), (4, 3, 7, 5, 0.9)];
        assert_eq!(found(&decoder, &map(&touching)), [[1.0, 1.0, 7.0, 5.0]]);
        let apart = [(1, 1, 4, 3, 0.9), (5, 3, 7, 5, 0.9)];
        assert_eq!(found(&decoder, &map(&apart)).len(), 2);
    }

    #[test]
    fn boxes_grow_by_area_over_circumference_within_the_picture() {
        // 6 x 3 cells: 18 / 18 = 1 cell to each side.
        let grown = TextDecoding { grow: 1.0, ..decoding() };
        let decoder = TextBoxDecoder::new(&grown, &[10, 20]).unwrap();
        assert_eq!(found(&decoder, &map(&[(5, 4, 11, 7, 0.9)])), [[4.0, 3.0, 12.0, 8.0]]);
        assert_eq!(found(&decoder, &map(&[(0, 0, 6, 3, 0.9)])), [[0.0, 0.0, 7.0, 4.0]]);
    }

    #[test]
    fn other_shapes_are_refused() {
        for shape in [&[10][..], &[2, 10, 20], &[0, 4], &[1, 1, 10, 20]] {
            assert!(TextBoxDecoder::new(&decoding(), shape).is_none(), "{shape:?}");
        }
    }

    proptest! {
        /// For any model output: boxes are within the picture, and without growth each cell of a likely line is in one.
        #[test]
        fn every_line_has_its_box(values in proptest::collection::vec(0.0f32..1.0, 48), grow in 0.0f32..3.0) {
            let settings = TextDecoding { score: 0.0, least: 1, most: 48, ..decoding() };
            let boxes = TextBoxDecoder::new(&settings, &[6, 8]).unwrap().decode(&values);
            for (place, _) in values.iter().enumerate().filter(|(_, value)| **value > 0.3) {
                let (x, y) = ((place % 8) as f32 + 0.5, (place / 8) as f32 + 0.5);
                let holds = |n: &[f32]| {
                    n[0] * 8.0 <= x && x <= (n[0] + n[2]) * 8.0 && n[1] * 6.0 <= y && y <= (n[1] + n[3]) * 6.0
                };
                prop_assert!(boxes.chunks(6).any(|numbers| numbers[4] > 0.3 && holds(numbers)));
            }
            let grown = TextDecoding { grow, ..settings };
            for numbers in TextBoxDecoder::new(&grown, &[6, 8]).unwrap().decode(&values).chunks(6) {
                prop_assert!(numbers[..4].iter().all(|share| (0.0..=1.0).contains(share)));
                prop_assert!(numbers[0] + numbers[2] < 1.0001 && numbers[1] + numbers[3] < 1.0001);
            }
        }
    }
}
