//! Order in which a tensor of a detection head has its numbers: place by place, number by number, or as maps of cells.
//!
//! ```
//! use tidemill_inference::postprocess::layout::{Places, Reading};
//! // Two numbers of three places each: the first ones, then the second ones.
//! let reading = Reading { is_transposed: true, anchors: 1, cells: None };
//! let places = Places::of(&[1.0, 2.0, 3.0, 10.0, 20.0, 30.0], &[2, 3], reading).unwrap();
//! assert_eq!((places.places, places.at(2, 0), places.at(2, 1)), (3, 3.0, 30.0));
//! ```
use super::head::{beside, cells};
use tidemill_spec::manifest::BoxDecoding;

/// What is known of the tensors of a level beside their shapes.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Whether numbers come before places.
    pub is_transposed: bool,
    /// Anchors of a cell, for maps.
    pub anchors: usize,
    /// Columns and rows of cells, where each stride has tensors of its own.
    pub cells: Option<(usize, usize)>,
}

impl Reading {
    /// Returns how the tensors of a level are read. `picture`: width and height of the model's input.
    pub fn of(decoding: &BoxDecoding, picture: Option<[f32; 2]>, level: usize) -> Self {
        let grid = decoding.grid.as_ref();
        let alone = grid.filter(|grid| grid.strides.len() == decoding.levels.len() + 1);
        let stride = alone.and_then(|grid| grid.strides.get(level));
        Self {
            is_transposed: decoding.transposed,
            anchors: grid.and_then(|grid| grid.anchors.get(level)).map_or(1, Vec::len),
            cells: stride.zip(picture).map(|(stride, picture)| cells(*stride, picture)),
        }
    }
}

/// Numbers of places, however the tensor has them.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    values: &'a [f32],
    /// Number of places.
    pub places: usize,
    /// Numbers of each place.
    pub numbers: usize,
    order: Order,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// All numbers of a place, then those of the next.
    Rows,
    /// The first number of all places, then the second.
    Columns,
    /// A map of cells for each number of each anchor.
    Maps { anchors: usize },
}

/// The parts of a shape.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Layout {
    places: usize,
    numbers: usize,
    order: Order,
    /// Whether all cells come with their first anchor first; `None` if the shape does not say it.
    anchors_first: Option<bool>,
}

impl<'a> Places<'a> {
    /// Views a tensor as places; `None` if it has another rank or too few values.
    pub fn of(values: &'a [f32], shape: &[usize], reading: Reading) -> Option<Self> {
        let Layout { places, numbers, order, .. } = layout(shape, reading)?;
        (values.len() >= places * numbers).then_some(Self { values, places, numbers, order })
    }

    /// Views rows of this many numbers as places.
    pub fn rows(values: &'a [f32], numbers: usize) -> Self {
        Self { values, places: values.len() / numbers.max(1), numbers, order: Order::Rows }
    }

    /// The number of a place.
    pub fn at(&self, place: usize, number: usize) -> f32 {
        self.values[match self.order {
            Order::Rows => place * self.numbers + number,
            Order::Columns => number * self.places + place,
            Order::Maps { anchors } => {
                let cells = self.places / anchors;
                (place % anchors * self.numbers + number) * cells + place / anchors
            }
        }]
    }
}

fn layout(shape: &[usize], reading: Reading) -> Option<Layout> {
    let known = |shape: &[usize]| reading.cells.and_then(|cells| map(shape, cells, reading.anchors));
    // A dimension of 1 before the others says nothing, unless it is the only number, anchor or row of a map.
    let inner = shape.strip_prefix(&[1]).filter(|inner| inner.len() == 3);
    if let Some(map) = inner.and_then(known).or_else(|| known(shape)) {
        return Some(map);
    }
    let of = |places, numbers, order| Layout { places, numbers, order, anchors_first: None };
    Some(match *shape {
        [1, ref inner @ ..] if inner.len() > 1 => return layout(inner, reading),
        [places] => of(places, 1, Order::Rows),
        [numbers, places] if reading.is_transposed => of(places, numbers, Order::Columns),
        [places, numbers] => of(places, numbers, Order::Rows),
        [_, height, width] => return map(shape, (width, height), reading.anchors),
        [_, height, width, _] => return map(shape, (width, height), reading.anchors),
        _ => return None,
    })
}

/// Reads maps of this many columns and rows of cells.
fn map(shape: &[usize], cells: (usize, usize), anchors: usize) -> Option<Layout> {
    let is_map = |height: usize, width: usize| (width, height) == cells;
    let per_anchor = |channels: usize| (anchors > 0 && channels.is_multiple_of(anchors)).then_some(channels);
    let count = cells.0 * cells.1;
    let of = |anchors, numbers, order, anchors_first| Layout {
        places: count * anchors,
        numbers,
        order,
        anchors_first: Some(anchors_first).filter(|_| anchors > 1),
    };
    match *shape {
        [channels, height, width] if is_map(height, width) => per_anchor(channels)
            .map(|channels| of(anchors, channels / anchors, Order::Maps { anchors }, false)),
        // Files from TensorFlow have channels last.
        [height, width, channels] if is_map(height, width) => {
            per_anchor(channels).map(|channels| of(anchors, channels / anchors, Order::Rows, false))
        }
        // YOLOv5 before its last layer.
        [anchors, height, width, numbers] if is_map(height, width) => {
            Some(of(anchors, numbers, Order::Rows, true))
        }
        [height, width, anchors, numbers] if is_map(height, width) => {
            Some(of(anchors, numbers, Order::Rows, false))
        }
        _ => None,
    }
}

/// Number of places in a tensor, and of numbers of each; see [`Places::of`].
pub fn sizes(shape: &[usize], reading: Reading) -> Option<(usize, usize)> {
    layout(shape, reading).map(|layout| (layout.places, layout.numbers))
}

/// Returns whether all cells of a head come with their first anchor, then all with the second one. `picture`: width and
/// height of the model's input; `shapes`: those of its outputs, without the batch.
///
/// # Errors
/// The reason, if the shapes contradict each other or the setting.
pub fn anchors_first<'a>(
    decoding: &BoxDecoding,
    picture: Option<[f32; 2]>,
    shapes: impl Iterator<Item = &'a [usize]>,
) -> Result<bool, String> {
    let Some(grid) = &decoding.grid else { return Ok(false) };
    let levels = (0..=decoding.levels.len()).flat_map(|level| {
        let (has_scores, has_objectness) = beside(decoding, level);
        std::iter::repeat_n(level, 1 + usize::from(has_scores) + usize::from(has_objectness))
    });
    let mut known: Option<(bool, &[usize])> = None;
    for (level, shape) in levels.zip(shapes) {
        let found = layout(shape, Reading::of(decoding, picture, level));
        let Some(this) = found.and_then(|layout| layout.anchors_first) else { continue };
        if grid.anchors_first.is_some_and(|setting| setting != this) {
            return Err(match this {
                true => format!("{shape:?} has all cells of an anchor together: leave `anchors_first` out"),
                false => format!("{shape:?} has all anchors of a cell together: leave `anchors_first` out"),
            });
        }
        match known {
            Some((other, of)) if other != this => {
                return Err(format!("anchors come in another order in {of:?} than in {shape:?}"));
            }
            _ => known = Some((this, shape)),
        }
    }
    Ok(known.map(|(first, _)| first).or(grid.anchors_first).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(anchors: usize, cells: Option<(usize, usize)>) -> Reading {
        Reading { is_transposed: false, anchors, cells }
    }

    fn rows(values: &[f32], shape: &[usize], reading: Reading) -> Vec<Vec<f32>> {
        let places = Places::of(values, shape, reading).unwrap();
        let row = |place| (0..places.numbers).map(|number| places.at(place, number)).collect();
        (0..places.places).map(row).collect()
    }

    #[test]
    fn maps_are_read_cell_by_cell() {
        // Two anchors with two numbers each, in two cells.
        let expected = [[1.0, 10.0], [3.0, 30.0], [2.0, 20.0], [4.0, 40.0]];
        let first = [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0];
        assert_eq!(rows(&first, &[4, 1, 2], reading(2, None)), expected);
        assert_eq!(rows(&first, &[4, 1, 2], reading(2, Some((2, 1)))), expected);
        let last = [1.0, 10.0, 3.0, 30.0, 2.0, 20.0, 4.0, 40.0];
        assert_eq!(rows(&last, &[1, 2, 4], reading(2, Some((2, 1)))), expected);
        assert_eq!(rows(&last, &[1, 2, 2, 2], reading(2, Some((2, 1)))), expected);
        let by_anchor = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
        let found = rows(&by_anchor, &[2, 1, 2, 2], reading(2, Some((2, 1))));
        assert_eq!(found, [expected[0], expected[2], expected[1], expected[3]]);
    }

    #[test]
    fn a_map_of_one_number_is_a_map() {
        let of = |shape: &[usize], cells| sizes(shape, reading(1, cells)).unwrap();
        for shape in [&[1, 8, 6][..], &[8, 6, 1], &[1, 1, 8, 6], &[1, 8, 6, 1]] {
            assert_eq!(of(shape, Some((6, 8))), (48, 1), "{shape:?}");
        }
        for shape in [&[4, 8, 6][..], &[8, 6, 4], &[1, 4, 8, 6], &[1, 8, 6, 4]] {
            assert_eq!(of(shape, Some((6, 8))), (48, 4), "{shape:?}");
        }
        assert_eq!(of(&[1, 48, 6], Some((6, 8))), (48, 6));
        assert_eq!(of(&[1, 8, 8, 8], Some((8, 8))), (64, 8));
        assert_eq!(of(&[1, 8, 6], None), (8, 6), "places without a grid");
    }

    #[test]
    fn shapes_say_whether_anchors_come_first() {
        let first = |settings: &str, shapes: &[&[usize]]| {
            let text = format!(
                "{{threshold: 0.3, iou: 0.5, scores: objectness, grid: {{form: yolov5, strides: [16], \
                 anchors: [[[10, 13], [16, 30], [33, 23]]]{settings}}}}}"
            );
            let source = tidemill_spec::span::SourceFile::new("boxes.yaml", text);
            let decoding: BoxDecoding =
                tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap();
            anchors_first(&decoding, Some([64.0, 64.0]), shapes.iter().copied())
        };
        assert_eq!(first("", &[&[3, 4, 4, 7]]), Ok(true));
        assert_eq!(first("", &[&[21, 4, 4]]), Ok(false));
        assert_eq!(first("", &[&[4, 4, 3, 7]]), Ok(false));
        assert_eq!(first("", &[&[48, 7]]), Ok(false));
        assert_eq!(first(", anchors_first: true", &[&[48, 7]]), Ok(true));
        assert_eq!(first(", anchors_first: true", &[&[3, 4, 4, 7]]), Ok(true));
        let refused = first(", anchors_first: false", &[&[3, 4, 4, 7]]).unwrap_err();
        assert_eq!(refused, "[3, 4, 4, 7] has all cells of an anchor together: leave `anchors_first` out");
        let refused = first(", anchors_first: true", &[&[21, 4, 4]]).unwrap_err();
        assert_eq!(refused, "[21, 4, 4] has all anchors of a cell together: leave `anchors_first` out");
    }
}
