//! `crop`: emits one record per detected box, with that part of the picture.
//!
//! ```yaml
//! - id: vehicles
//!   kind: crop
//!   input: detect                  # an `ml` whose model gives boxes, with `options: {keep: [image]}`
//!   options:
//!     classes: [car, van, truck, bus]
//!     least: 12                    # pixels; what is smaller is left out
//! ```
//! It reads the column `boxes`, a tensor of [most, 6] numbers from the manifest step `decode_boxes` (left, top, width and
//! height as shares of the picture, score, class), and the picture in which they were found. A picture without boxes gives
//! no record; an unreadable one is a dead letter.
//!
//! Output columns: all columns of the input but these two; `box` (int64, index among the picture's boxes); `left`, `top`,
//! `width` and `height` (float64, pixels of the picture); `score` (float64); `class` (text if `classes` names them, else
//! int64); the uncompressed part of the picture in the column of the picture, unless `pictures: false`.
use super::pixels::Pixels;
use crate::api::{DeadLetter, Instance, MakeInstance, OperatorError, Output, Stateless};
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{METADATA_COLUMNS, binary, operator_number, record_schema, tensor_f32, unfold_metadata};
use arrow_array::builder::BinaryBuilder;
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::SchemaRef;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};

/// The kind `crop`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Crop;

/// Options of `crop`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The column of the boxes. Default: boxes.
    #[serde(default = "boxes")]
    boxes: Located<String>,
    /// The column of the picture. Default: image.
    #[serde(default = "image")]
    image: Located<String>,
    /// Names of the classes, in the order of their numbers. Default: the numbers.
    #[serde(default)]
    classes: Vec<Located<String>>,
    /// Least width and height of a box in pixels; smaller boxes are left out. Default: 1.
    #[serde(default = "one")]
    least: u32,
    /// Whether to send the part of the picture. Default: true.
    #[serde(default = "yes")]
    pictures: bool,
}

fn boxes() -> Located<String> {
    "boxes".into()
}

fn image() -> Located<String> {
    "image".into()
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// Numbers per box.
const NUMBERS: usize = 6;

fn holds_boxes(found: &ColumnType) -> bool {
    matches!(found, ColumnType::Tensor { element: ElementType::Float32, shape } if matches!(shape[..], [_, NUMBERS]))
}

impl TypedOperatorKind for Crop {
    type Options = Options;
    const KIND: &'static str = "crop";
    const SUMMARY: &'static str =
        "A record for each box that a model found in a picture, with that part of it.";

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let (port, options) = (&inputs[0], options.value);
        let mut errors = Diagnostics::new();
        let mut place =
            |name: &Located<String>, expected: &str, accepts: &dyn Fn(&ColumnType) -> bool| match port
                .column(context.id, 0, name, expected, accepts)
            {
                Ok((index, _)) => index,
                Err(error) => {
                    errors.push(error);
                    0
                }
            };
        let boxes = place(&options.boxes, "tensor<float32>[most, 6]", &holds_boxes);
        let image = place(&options.image, "image", &|found| *found == ColumnType::Image);
        let kept: Vec<usize> =
            (0..port.stream.columns.len()).filter(|i| *i != boxes && *i != image).collect();
        let class = if options.classes.is_empty() { ColumnType::Int64 } else { ColumnType::Text };
        let mut columns: Vec<Column> = kept.iter().map(|i| port.stream.columns[*i].clone()).collect();
        let mut added = vec![Column::new("box", ColumnType::Int64)];
        added.extend(
            ["left", "top", "width", "height", "score"].map(|name| Column::new(name, ColumnType::Float64)),
        );
        added.push(Column::new("class", class));
        if options.pictures {
            added.push(Column::new(options.image.value.clone(), ColumnType::Image));
        }
        for column in added {
            if columns.iter().any(|known| known.name == column.name) {
                let message =
                    format!("`{}` receives a column `{}`, which it adds itself", context.id, column.name);
                let help = "put a `map` before it that removes the column";
                errors.push(Diagnostic::error("E0606", message).at(port.span.clone()).with_help(help));
            }
            columns.push(column);
        }
        let output = StreamType::new(columns);
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            schema: record_schema(&output),
            boxes: METADATA_COLUMNS + boxes,
            image: METADATA_COLUMNS + image,
            kept: kept.into_iter().map(|i| METADATA_COLUMNS + i).collect(),
            classes: options.classes.into_iter().map(|name| name.value).collect(),
            least: f64::from(options.least),
            pictures: options.pictures,
        });
        errors.into_result((
            output,
            Arc::new(move || Ok(Instance::Stateless(Box::new(Running { setup: Arc::clone(&setup) })))),
        ))
    }
}

struct Setup {
    operator: u64,
    schema: SchemaRef,
    boxes: usize,
    image: usize,
    kept: Vec<usize>,
    classes: Vec<String>,
    least: f64,
    pictures: bool,
}

struct Running {
    setup: Arc<Setup>,
}

/// Boxes found in the pictures of a batch.
#[derive(Default)]
struct DetectedBoxes {
    /// Row of the picture.
    rows: Vec<u32>,
    /// Index among its boxes.
    places: Vec<u32>,
    /// Left, top, width, height, score.
    numbers: [Vec<f64>; 5],
    classes: Vec<i64>,
    pictures: BinaryBuilder,
}

impl Setup {
    /// Adds the boxes of a picture.
    fn unfold(
        &self,
        row: u32,
        boxes: &[f32],
        bytes: &[u8],
        found: &mut DetectedBoxes,
    ) -> Result<(), (&'static str, String)> {
        if boxes.chunks_exact(NUMBERS).all(|numbers| numbers[4] <= 0.0) {
            return Ok(()); // a picture without boxes is not even decoded
        }
        let pixels = Pixels::of(bytes)?;
        let (width, height) = (f64::from(pixels.width), f64::from(pixels.height));
        let mut part = Vec::new();
        for (place, numbers) in boxes.chunks_exact(NUMBERS).enumerate() {
            let [left, top, wide, high, score, class] =
                [0, 1, 2, 3, 4, 5].map(|index| f64::from(numbers[index]));
            if score <= 0.0 {
                continue;
            }
            let area = [left * width, top * height, wide * width, high * height];
            if !area.iter().all(|value| value.is_finite()) || area[2] < self.least || area[3] < self.least {
                continue;
            }
            // Whole pixels, at least one, within the picture.
            let start = |at: f64, most: f64| at.floor().clamp(0.0, most - 1.0);
            let (x, y) = (start(area[0], width), start(area[1], height));
            let end = |at: f64, start: f64, most: f64| at.ceil().clamp(start + 1.0, most);
            let (right, bottom) = (end(area[0] + area[2], x, width), end(area[1] + area[3], y, height));
            found.rows.push(row);
            found.places.push(place as u32);
            for (column, value) in found.numbers.iter_mut().zip([area[0], area[1], area[2], area[3], score]) {
                column.push(value);
            }
            found.classes.push(class as i64);
            if self.pictures {
                part.clear();
                pixels.append_part([x as u32, y as u32, right as u32, bottom as u32], &mut part);
                found.pictures.append_value(&part);
            }
        }
        Ok(())
    }

    fn class_column(&self, numbers: Vec<i64>) -> ArrayRef {
        if self.classes.is_empty() {
            return Arc::new(Int64Array::from(numbers));
        }
        let name = |number: &i64| {
            let known = usize::try_from(*number).ok().and_then(|number| self.classes.get(number));
            known.cloned().unwrap_or_else(|| number.to_string())
        };
        Arc::new(StringArray::from_iter_values(numbers.iter().map(name)))
    }
}

impl Stateless for Running {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = &self.setup;
        let other = || OperatorError::new("crop: the column types of a batch differ from the bound ones");
        let (boxes, length) = tensor_f32(batch.column(setup.boxes)).ok_or_else(other)?;
        let pictures = binary(batch.column(setup.image)).ok_or_else(other)?;
        let mut found = DetectedBoxes::default();
        for row in 0..batch.num_rows() {
            if batch.column(setup.boxes).is_null(row) {
                continue;
            }
            let numbers = &boxes.values()[row * length..(row + 1) * length];
            let result = match pictures.is_valid(row) {
                true => setup.unfold(row as u32, numbers, pictures.value(row), &mut found),
                false => Err(("missing_value", "there is no picture".to_owned())),
            };
            if let Err((reason, detail)) = result {
                output.dead_letters.push(DeadLetter::of_row(batch, row, reason, detail));
            }
        }
        if found.rows.is_empty() {
            return Ok(());
        }
        let broken = |error: arrow_schema::ArrowError| OperatorError::new(format!("crop: {error}"));
        let mut columns =
            unfold_metadata(batch, &found.rows, &found.places, setup.operator).map_err(broken)?;
        let rows = UInt32Array::from(found.rows);
        for index in &setup.kept {
            columns.push(arrow_select::take::take(batch.column(*index), &rows, None).map_err(broken)?);
        }
        columns
            .push(Arc::new(Int64Array::from_iter_values(found.places.iter().map(|place| i64::from(*place)))));
        columns.extend(found.numbers.map(|values| -> ArrayRef { Arc::new(Float64Array::from(values)) }));
        columns.push(setup.class_column(found.classes));
        if setup.pictures {
            columns.push(Arc::new(found.pictures.finish()));
        }
        output.push(RecordBatch::try_new(Arc::clone(&setup.schema), columns).map_err(broken)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_image::RawImage;
    use crate::record::{Metadata, derive_id, float64, int64, record_schema, source_id, text};
    use crate::relational::test::{bind, run_stateless};
    use crate::testing::{batch, only};
    use arrow_array::{BinaryArray, FixedSizeListArray, Float32Array};
    use arrow_schema::{DataType, Field};
    use serde_json::json;

    fn frames() -> StreamType {
        let boxes = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2, 6] };
        StreamType::new([
            Column::new("camera", ColumnType::Text),
            Column::new("image", ColumnType::Image),
            Column::new("boxes", boxes),
        ])
    }

    /// Frames of 10 x 10 pixels; the second one is unreadable.
    fn rows(boxes: [[[f32; 6]; 2]; 3]) -> RecordBatch {
        let camera = json!({"camera": "north"});
        let batch = batch(&frames(), &[camera.clone(), camera.clone(), camera]);
        let mut picture = Vec::new();
        RawImage::write_header(10, 10, &mut picture);
        picture.extend((0..300).map(|value| value as u8));
        let pictures: Vec<&[u8]> = vec![&picture, b"nothing", &picture];
        let values = Float32Array::from_iter_values(boxes.as_flattened().as_flattened().iter().copied());
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let mut columns = batch.columns().to_vec();
        columns[METADATA_COLUMNS + 1] = Arc::new(BinaryArray::from(pictures));
        columns[METADATA_COLUMNS + 2] = Arc::new(FixedSizeListArray::new(item, 12, Arc::new(values), None));
        RecordBatch::try_new(record_schema(&frames()), columns).unwrap()
    }

    #[test]
    fn each_box_is_a_record_with_its_part() {
        let none = [0.0; 6];
        let boxes = [
            [[0.2, 0.3, 0.4, 0.2, 0.9, 1.0], [0.0, 0.0, 0.1, 0.1, 0.5, 7.0]],
            [[0.1, 0.1, 0.1, 0.1, 0.5, 0.0], none],
            [none, none],
        ];
        let bound = bind(&Crop, &[frames()], "classes: [car, van]").unwrap();
        let output = run_stateless(&bound, &rows(boxes));
        assert_eq!(output.dead_letters.len(), 1);
        assert_eq!(
            (&*output.dead_letters[0].reason, output.dead_letters[0].id),
            ("image_invalid", Some(source_id(0, 1)))
        );
        let [found] = &output.batches[..] else { panic!("one batch") };
        assert_eq!(found.num_rows(), 2);
        let metadata = Metadata::of(found);
        let operator = operator_number("op");
        assert_eq!(metadata.id(1), derive_id(operator, &[source_id(0, 0)], 1));
        let column = |name: &str| found.column_by_name(name).unwrap();
        assert_eq!(int64(column("box")).unwrap().values().to_vec(), [0, 1]);
        let number = |name: &str| float64(column(name)).unwrap().value(0);
        assert!((number("left") - 2.0).abs() < 1e-5 && (number("width") - 4.0).abs() < 1e-5);
        assert_eq!(text(column("class")).unwrap().iter().flatten().collect::<Vec<_>>(), ["van", "7"]);
        let part = RawImage::parse(binary(column("image")).unwrap().value(0)).unwrap();
        assert!(part.width >= 4 && part.height >= 2);
        assert_eq!(part.pixels[0], (3 * (3 * 10 + 2)) as u8);
    }

    #[test]
    fn small_ones_are_left_out_and_pictures_may_stay_behind() {
        let boxes =
            [[[0.2, 0.3, 0.4, 0.2, 0.9, 1.0], [0.0, 0.0, 0.5, 0.5, 0.5, 0.0]], [[0.0; 6]; 2], [[0.0; 6]; 2]];
        let bound = bind(&Crop, &[frames()], "{least: 3, pictures: false}").unwrap();
        assert_eq!(
            bound.output.to_string(),
            "{camera: text, box: int64, left: float64, top: float64, width: float64, height: float64, score: float64, class: int64}"
        );
        let output = run_stateless(&bound, &rows(boxes));
        let places = int64(output.batches[0].column_by_name("box").unwrap()).unwrap();
        assert_eq!(places.values().to_vec(), [1]);
        // A picture without boxes is not read.
        assert!(output.dead_letters.is_empty());
    }

    #[test]
    fn mistakes_are_told() {
        let error = only(bind(&Crop, &[frames()], "boxes: image").err().unwrap());
        assert_eq!(error.code, "E0601");
        let double =
            StreamType::new(frames().columns.into_iter().chain([Column::new("score", ColumnType::Float64)]));
        let error = only(bind(&Crop, &[double], "least: 2").err().unwrap());
        assert_eq!((error.code, error.message.contains("`score`")), ("E0606", true), "{error}");
    }
}
