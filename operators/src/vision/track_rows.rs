//! Conversion between rows and the tracker's boxes and tracks.
use super::track_path;
use crate::api::OperatorError;
use crate::record::{METADATA_COLUMNS, Metadata, RecordId, float64, int64, tensor_f32, text};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int8Array, Int64Array,
    RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, SchemaRef};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidemill_tracking::bounding_box::BoundingBox;
use tidemill_tracking::tracker::Track;

/// Largest score, so that sums of scores stay finite. Detectors give 0 to 1, or the raw output of their models.
const LARGEST_SCORE: f64 = 1e7;

/// Payload positions of the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) camera: usize,
    pub(super) frame: usize,
    pub(super) area: [usize; 4],
    pub(super) score: usize,
    pub(super) class: Option<usize>,
    pub(super) embedding: Option<usize>,
}

/// Output of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gives {
    Boxes,
    Tracks { path: bool },
}

/// One box of a batch.
pub(super) struct BoxRow<'a> {
    pub(super) camera: &'a str,
    pub(super) frame: u64,
    pub(super) area: BoundingBox,
    pub(super) score: f64,
    pub(super) class: Option<String>,
    pub(super) embedding: Vec<f32>,
}

impl Columns {
    /// Reads the box of a row.
    ///
    /// # Errors
    /// A stable code and a message if a value is missing or implausible.
    pub(super) fn row<'a>(
        &self,
        batch: &'a RecordBatch,
        row: usize,
    ) -> Result<BoxRow<'a>, (&'static str, String)> {
        let column = |index: usize| batch.column(METADATA_COLUMNS + index);
        let missing = |index: usize| {
            let name = batch.schema_ref().field(METADATA_COLUMNS + index).name().clone();
            ("missing_value", format!("the column `{name}` is empty"))
        };
        let there = |index: usize| column(index).is_valid(row).then_some(index).ok_or_else(|| missing(index));
        let number = |index: usize| -> Result<f64, (&'static str, String)> {
            let array = float64(column(there(index)?)).ok_or_else(|| missing(index))?;
            Ok(array.value(row))
        };
        let camera = text(column(there(self.camera)?)).ok_or_else(|| missing(self.camera))?.value(row);
        let frame = int64(column(there(self.frame)?)).ok_or_else(|| missing(self.frame))?.value(row);
        let frame = u64::try_from(frame)
            .map_err(|_| ("bad_frame", format!("the frame is {frame}, but frames count from 0")))?;
        let [left, top, width, height] = self.area;
        let area = BoundingBox {
            left: number(left)?,
            top: number(top)?,
            width: number(width)?,
            height: number(height)?,
        };
        let score = number(self.score)?;
        if !area.is_valid() || !score.is_finite() || score.abs() > LARGEST_SCORE {
            return Err(("bad_box", format!("the box is {area:?} with the score {score}")));
        }
        let class = match self.class.filter(|index| column(*index).is_valid(row)).map(column) {
            Some(array) => match text(array) {
                Some(texts) => Some(texts.value(row).to_owned()),
                None => Some(array.as_primitive::<Int64Type>().value(row).to_string()),
            },
            None => None,
        };
        let embedding = match self
            .embedding
            .filter(|index| column(*index).is_valid(row))
            .and_then(|i| tensor_f32(column(i)))
        {
            Some((values, length)) => values.values()[row * length..(row + 1) * length].to_vec(),
            None => Vec::new(),
        };
        Ok(BoxRow { camera, frame, area, score, class, embedding })
    }
}

/// Data of a track's row that the tracker does not keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// Id of the first box.
    pub(super) id: RecordId,
    pub(super) source: u32,
    pub(super) sequence: u64,
    pub(super) class: u32,
    /// Event time of the first box, microseconds.
    pub(super) start: i64,
    /// Event time of the last one.
    pub(super) end: i64,
    /// All boxes if requested; a sample of very many.
    pub(super) path: String,
    /// Number of its boxes.
    #[serde(default)]
    noted: u64,
}

impl Origin {
    pub(super) fn of(metadata: &Metadata<'_>, row: usize) -> Self {
        let time = metadata.times.value(row);
        Self {
            id: metadata.id(row),
            source: metadata.sources.value(row),
            sequence: metadata.sequences.value(row),
            class: metadata.classes.value(row),
            start: time,
            end: time,
            path: String::new(),
            noted: 0,
        }
    }

    /// Records one more detection of the track.
    pub(super) fn note(&mut self, metadata: &Metadata<'_>, row: usize, seen: Option<&BoxRow<'_>>) {
        self.end = metadata.times.value(row);
        if let Some(BoxRow { frame, area, .. }) = seen {
            let BoundingBox { left, top, width, height } = *area;
            track_path::add(&mut self.path, self.noted, &(*frame, [left, top, width, height]));
            self.noted = self.noted.saturating_add(1);
        }
    }
}

/// A track that has ended.
pub(super) struct Ended {
    pub(super) camera: String,
    pub(super) class: Option<String>,
    pub(super) track: Track,
    pub(super) origin: Origin,
    /// Intended time of the latest box that showed that the track had ended.
    pub(super) intended: i64,
}

/// Name of a track.
pub(super) fn track_name(camera: &str, number: u64) -> String {
    format!("{camera}/{number}")
}

/// Converts tracks to rows of this schema.
pub(super) fn track_rows(
    schema: &SchemaRef,
    operator: u64,
    ended: &[Ended],
) -> Result<RecordBatch, OperatorError> {
    let origins = || ended.iter().map(|ended| &ended.origin);
    let ids: Vec<u8> =
        origins().flat_map(|origin| crate::record::derive_id(operator, &[origin.id], 0)).collect();
    let numbers = |value: fn(&Ended) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(ended.iter().map(value)))
    };
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from_iter_values(origins().map(|origin| origin.source))),
        Arc::new(UInt64Array::from_iter_values(origins().map(|origin| origin.sequence))),
        numbers(|ended| ended.origin.end),
        numbers(|ended| ended.intended),
        Arc::new(UInt32Array::from_iter_values(origins().map(|origin| origin.class))),
        Arc::new(Int8Array::from(vec![1; ended.len()])),
    ];
    for field in &schema.fields()[METADATA_COLUMNS..] {
        columns.push(match field.name().as_str() {
            "camera" => Arc::new(StringArray::from_iter_values(ended.iter().map(|ended| &ended.camera))),
            "track" => {
                let names = ended.iter().map(|ended| track_name(&ended.camera, ended.track.number));
                Arc::new(StringArray::from_iter_values(names))
            }
            "class" if *field.data_type() == DataType::Int64 => {
                let numbers = ended
                    .iter()
                    .map(|ended| ended.class.as_ref().and_then(|class| class.parse::<i64>().ok()));
                Arc::new(Int64Array::from_iter(numbers))
            }
            "class" => Arc::new(StringArray::from_iter(ended.iter().map(|ended| ended.class.as_ref()))),
            "first_frame" => numbers(|ended| ended.track.first_frame as i64),
            "last_frame" => numbers(|ended| ended.track.last_frame as i64),
            "start" => numbers(|ended| ended.origin.start.div_euclid(1000)),
            "end" => numbers(|ended| ended.origin.end.div_euclid(1000)),
            "detections" => numbers(|ended| ended.track.detections as i64),
            "path" => Arc::new(StringArray::from_iter_values(ended.iter().map(|ended| &ended.origin.path))),
            _ => embeddings(field.data_type(), ended)?,
        });
    }
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(broken)
}

/// Returns the tracks' embeddings; empty if none of the boxes had one.
fn embeddings(data_type: &DataType, ended: &[Ended]) -> Result<ArrayRef, OperatorError> {
    let DataType::FixedSizeList(item, length) = data_type else {
        return Err(OperatorError::new(format!("track: unexpected column of the type {data_type}")));
    };
    let mut values = Vec::with_capacity(ended.len() * *length as usize);
    let mut is_there = Vec::with_capacity(ended.len());
    for ended in ended {
        let embedding = ended.track.embedding();
        is_there.push(embedding.len() == *length as usize);
        match is_there.last() {
            Some(true) => values.extend(embedding),
            _ => values.resize(values.len() + *length as usize, 0.0),
        }
    }
    let list = FixedSizeListArray::try_new(
        item.clone(),
        *length,
        Arc::new(Float32Array::from(values)),
        Some(is_there.into()),
    );
    Ok(Arc::new(list.map_err(broken)?))
}

pub(super) fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("track: {error}"))
}
