//! Mean average precision of boxes of objects, by the definition of COCO.
//!
//! The truth is a JSONL file: `{"key": "a", "boxes": [[left, top, width, height, class], ...]}`. Lines of one
//! key add up; a picture without objects has an empty list. The prediction is a tensor of rows `left, top,
//! width, height, score, class` as `decode_boxes` gives them; rows whose score is not above 0 are no boxes.
//! Both are in the same unit, such as shares of the picture.
//!
//! For each class and each overlap (intersection over union, IoU) of 0.5, 0.55 ... 0.95, the boxes of a
//! picture choose the true box that they overlap most and that is free, the best score first, at most 100 of
//! a class in a picture. Average precision is the mean of the interpolated precision at the 101 recalls 0,
//! 0.01 ... 1. Its mean over the overlaps and the classes of the truth is the accuracy. A picture without a
//! row has no boxes.
use crate::ground_truth::{GroundTruthError, objects_of};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Most boxes of a class in a picture.
const MOST: usize = 100;
/// Number of recalls.
const RECALLS: usize = 101;
/// Number of overlaps.
const OVERLAPS: usize = 10;

/// Left, top, width, height.
type Area = [f64; 4];

/// The true boxes by key. Two are equal if they are the same one.
#[derive(Debug)]
pub struct BoxTruth {
    pictures: BTreeMap<String, Vec<(Area, i64)>>,
}

impl PartialEq for BoxTruth {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for BoxTruth {}

impl BoxTruth {
    /// Reads a file; `key` and `boxes` are fields of its lines.
    ///
    /// # Errors
    /// See [`GroundTruthError`]; also if no picture has a box.
    pub fn load(path: &Path, key: &str, boxes: &str) -> Result<Self, GroundTruthError> {
        let mut pictures: BTreeMap<String, Vec<(Area, i64)>> = BTreeMap::new();
        let mut count = 0usize;
        objects_of(path, |line, object| {
            let wrong = |what: String| GroundTruthError::Line { path: path.into(), line, what };
            let key = match object.get(key) {
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
                    value.to_string()
                }
                Some(_) => return Err(wrong(format!("field `{key}` is not a text, number or bool"))),
                None => return Err(wrong(format!("there is no field `{key}`"))),
            };
            let Some(listed) = object.get(boxes) else {
                return Err(wrong(format!("there is no field `{boxes}`")));
            };
            let Some(listed) = listed.as_array() else {
                return Err(wrong(format!("field `{boxes}` is not a list of boxes")));
            };
            let picture = pictures.entry(key).or_default();
            for (number, one) in listed.iter().enumerate() {
                let found = read_box(one)
                    .map_err(|why| wrong(format!("box {number} of field `{boxes}` {why}: {one}")))?;
                picture.push(found);
                count += 1;
            }
            Ok(())
        })?;
        if count == 0 {
            return Err(GroundTruthError::Empty { path: path.into() });
        }
        Ok(Self { pictures })
    }
}

/// Reads `[left, top, width, height, class]`.
fn read_box(value: &serde_json::Value) -> Result<(Area, i64), &'static str> {
    let form = "is not `[left, top, width, height, class]`";
    let numbers = value.as_array().filter(|list| list.len() == 5).ok_or(form)?;
    let number = |place: usize| numbers[place].as_f64().ok_or(form);
    let area = [number(0)?, number(1)?, number(2)?, number(3)?];
    let class = numbers[4].as_i64().or_else(|| {
        numbers[4]
            .as_f64()
            .filter(|class| class.fract() == 0.0 && class.abs() < 1e15)
            .map(|class| class as i64)
    });
    let class = class.ok_or("has a class that is not a whole number")?;
    if area[2] <= 0.0 || area[3] <= 0.0 {
        return Err("has no area");
    }
    Ok((area, class))
}

/// Mean average precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoxMeasures {
    /// Mean over the classes and the overlaps 0.5, 0.55 ... 0.95.
    pub map_percent: f64,
    /// Mean over the classes at the overlap 0.5.
    pub map_50_percent: f64,
    /// Each class of the truth.
    pub classes: Vec<BoxClass>,
    /// True boxes.
    pub boxes: u64,
    /// Pictures of the truth.
    pub pictures: u64,
}

/// Average precision of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoxClass {
    /// Its number.
    pub class: i64,
    /// Mean over the overlaps.
    pub average_precision_percent: f64,
    /// At the overlap 0.5.
    pub average_precision_50_percent: f64,
    /// True boxes of it.
    pub boxes: u64,
}

/// A found box; the numbers are bits, so that tallies can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    area: [u64; 4],
    score: u64,
    class: i64,
}

/// The boxes found so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoxTally {
    truth: Arc<BoxTruth>,
    found: BTreeMap<String, Vec<Found>>,
    /// Only pictures with a row count.
    only_given: bool,
}

impl BoxTally {
    pub(crate) fn new(truth: &Arc<BoxTruth>) -> Self {
        Self { truth: Arc::clone(truth), found: BTreeMap::new(), only_given: false }
    }

    /// Whether the truth has a picture.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.truth.pictures.contains_key(key)
    }

    /// Leaves out pictures without a row: they may belong to input that was not read.
    pub(crate) fn end_with_rows(&mut self) {
        self.only_given = true;
    }

    /// Adds the boxes of a row. An empty tensor has none.
    pub(crate) fn read(&mut self, key: &str, column: &ArrayRef, row: usize) {
        let boxes = self.found.entry(key.to_owned()).or_default();
        let Some(lists) = column.as_fixed_size_list_opt().filter(|lists| lists.is_valid(row)) else { return };
        for one in floats(&lists.value(row)).chunks_exact(6) {
            let [left, top, width, height, score, class] = one else { continue };
            let is_box = *score > 0.0 && one.iter().all(|number| number.is_finite());
            if is_box {
                let area = [left, top, width, height].map(|number| number.to_bits());
                boxes.push(Found { area, score: score.to_bits(), class: class.round() as i64 });
            }
        }
    }

    pub(crate) fn add(&mut self, later: Self) {
        for (key, boxes) in later.found {
            self.found.entry(key).or_default().extend(boxes);
        }
    }

    pub(crate) fn measures(&self) -> Option<BoxMeasures> {
        let counts = |key: &String| !self.only_given || self.found.contains_key(key);
        let pictures: Vec<_> = self.truth.pictures.iter().filter(|(key, _)| counts(key)).collect();
        let classes: BTreeSet<i64> =
            pictures.iter().flat_map(|(_, boxes)| boxes.iter().map(|(_, class)| *class)).collect();
        let mut rows = Vec::new();
        for class in classes {
            let of_class: Vec<Compared> = pictures
                .iter()
                .map(|(key, truth)| {
                    let truth = truth.iter().filter(|(_, of)| *of == class).map(|(area, _)| *area).collect();
                    let found = self.found.get(*key).into_iter().flatten();
                    let found = found.filter(|found| found.class == class);
                    let found =
                        found.map(|found| (found.area.map(f64::from_bits), f64::from_bits(found.score)));
                    (truth, best(found.collect()))
                })
                .collect();
            let precisions: Vec<f64> =
                (0..OVERLAPS).map(|number| average_precision(&of_class, overlap(number))).collect();
            rows.push(BoxClass {
                class,
                average_precision_percent: 100.0 * precisions.iter().sum::<f64>() / OVERLAPS as f64,
                average_precision_50_percent: 100.0 * precisions[0],
                boxes: of_class.iter().map(|(truth, _)| truth.len() as u64).sum(),
            });
        }
        if rows.is_empty() {
            return None;
        }
        let mean = |value: fn(&BoxClass) -> f64| rows.iter().map(value).sum::<f64>() / rows.len() as f64;
        Some(BoxMeasures {
            map_percent: mean(|row| row.average_precision_percent),
            map_50_percent: mean(|row| row.average_precision_50_percent),
            boxes: rows.iter().map(|row| row.boxes).sum(),
            pictures: pictures.len() as u64,
            classes: rows,
        })
    }
}

/// The overlap of this number: evenly from 0.5 to 0.95.
fn overlap(number: usize) -> f64 {
    if number + 1 == OVERLAPS { 0.95 } else { 0.5 + number as f64 * ((0.95 - 0.5) / (OVERLAPS - 1) as f64) }
}

/// The values of a tensor of floats.
fn floats(values: &ArrayRef) -> Vec<f64> {
    if let Some(values) = values.as_primitive_opt::<Float32Type>() {
        return values.values().iter().map(|value| f64::from(*value)).collect();
    }
    if let Some(values) = values.as_primitive_opt::<Float64Type>() {
        return values.values().to_vec();
    }
    let halves = values.as_primitive_opt::<Float16Type>();
    halves.map(|values| values.values().iter().map(|value| value.to_f64()).collect()).unwrap_or_default()
}

/// The boxes with the best scores, the best first; equal ones keep their order.
fn best(mut found: Vec<(Area, f64)>) -> Vec<(Area, f64)> {
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.truncate(MOST);
    found
}

/// Intersection over union.
fn iou(a: &Area, b: &Area) -> f64 {
    let width = (a[0] + a[2]).min(b[0] + b[2]) - a[0].max(b[0]);
    let height = (a[1] + a[3]).min(b[1] + b[3]) - a[1].max(b[1]);
    if width <= 0.0 || height <= 0.0 {
        return 0.0;
    }
    let common = width * height;
    common / (a[2] * a[3] + b[2] * b[3] - common)
}

/// True boxes of a picture, and found ones with their scores.
type Compared = (Vec<Area>, Vec<(Area, f64)>);

/// Average precision of one class: true and found boxes of each picture.
fn average_precision(pictures: &[Compared], overlap: f64) -> f64 {
    let mut judged: Vec<(f64, bool)> = Vec::new();
    let mut all = 0usize;
    for (truth, found) in pictures {
        all += truth.len();
        let mut taken = vec![false; truth.len()];
        for (area, score) in found {
            let mut least = overlap;
            let mut chosen = None;
            for (place, right) in truth.iter().enumerate() {
                let common = iou(area, right);
                // Of equal ones the last, as in COCO's own program.
                if !taken[place] && common >= least {
                    (least, chosen) = (common, Some(place));
                }
            }
            if let Some(place) = chosen {
                taken[place] = true;
            }
            judged.push((*score, chosen.is_some()));
        }
    }
    judged.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut recalls, mut precisions) = (Vec::new(), Vec::new());
    let mut right = 0usize;
    for (place, (_, is_right)) in judged.iter().enumerate() {
        right += usize::from(*is_right);
        recalls.push(right as f64 / all as f64);
        precisions.push(right as f64 / (place + 1) as f64);
    }
    // The best precision at this recall or a higher one.
    for place in (1..precisions.len()).rev() {
        precisions[place - 1] = f64::max(precisions[place - 1], precisions[place]);
    }
    let at = |number: usize| {
        let wanted = number as f64 * 0.01;
        let place = recalls.partition_point(|recall| *recall < wanted);
        precisions.get(place).copied().unwrap_or(0.0)
    };
    (0..RECALLS).map(at).sum::<f64>() / RECALLS as f64
}

#[cfg(test)]
mod tests;
