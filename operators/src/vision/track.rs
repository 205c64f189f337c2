//! `track`: follows detections from frame to frame in each camera.
//!
//! ```yaml
//! - id: tracks
//!   kind: track
//!   input: vehicles                # a record for each box, as `crop` gives them
//!   options:
//!     gives: tracks                # or `boxes`
//!     patience: 20                 # frames
//! ```
//! The tracker is BoT-SORT (see the crate `tidemill-tracking`): boxes are compared with the predictions of a Kalman filter,
//! and by their embeddings if there is such a column. A frame is processed when the watermark has passed it, so results
//! depend on the frames alone, not on epochs, batches or restarts; a later box is dropped as `late`. The boxes of a frame
//! share its event time (several frames may have one time); those with a later one are dropped as `frame_again`. A file of
//! boxes without `event_time` has no usable one: each row would have its own. A number lower than that of the frame before
//! means that the camera restarted its count: all its tracks end, and its next frame counts as its first.
//!
//! - `gives: boxes`: each box is sent with a further column, `track` (text, `CAMERA/NUMBER`). Boxes without a track are
//!   dropped as `untracked`; the first box of a track is among them, except in the first frame, since one detection may be
//!   a mistake.
//! - `gives: tracks`: each track is a record once it has ended: `camera`, `track`, `class` (if there is one),
//!   `first_frame`, `last_frame`, `start` and `end` (int64, milliseconds, event times of the first and last box),
//!   `detections`, `embedding` (mean over its boxes, if there are any), and with `path: true` a text of
//!   `frame,left,top,width,height` for each box, separated by `;`. To bound memory, a track of more than 100,000 boxes
//!   keeps every second one, of more than 200,000 every fourth, and so on. The event time is that of its last box.
//!
//! A track ends after `patience` frames without a detection. If the camera sends no more boxes, the frames are estimated
//! from its recent pace, or one per second if only one frame had boxes, or all had one time. That wait is intended, so it
//! is not part of the latency, which counts from the intended time of the box that showed the end of the track. Several
//! stages may share the work by camera.
use super::track_rows::{Columns, Gives};
use super::track_state::{Running, Setup};
use crate::api::{Computation, GroupColumn, Instance, MakeInstance, Spread};
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_tracking::tracker::TrackerSettings;

/// The kind `track`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Track;

/// Output of `track`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// Each box with its track.
    #[default]
    Boxes,
    /// Each track when it has ended.
    Tracks,
}

/// Options of `track`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Each box with its track (`boxes`), or each track when it has ended (`tracks`). Default: boxes.
    #[serde(default)]
    gives: Form,
    /// With `gives: tracks`, whether each has a column `path` with all its boxes. Default: false.
    #[serde(default)]
    path: bool,
    /// The column of the camera, text. Default: camera.
    #[serde(default = "camera")]
    camera: Located<String>,
    /// The column of the frame's number, int64. Default: frame.
    #[serde(default = "frame")]
    frame: Located<String>,
    /// The columns of left, top, width and height, float64. Default: columns of these names.
    #[serde(default = "areas", rename = "box")]
    area: [Located<String>; 4],
    /// The column of the score, float64. Default: score.
    #[serde(default = "score")]
    score: Located<String>,
    /// The column of the class, text or int64. Default: `class`, if there is one.
    #[serde(default)]
    class: Option<Located<String>>,
    /// Column of the look of the box, a tensor of float32 values. Default: `embedding`, if there is one.
    #[serde(default)]
    embedding: Option<Located<String>>,
    /// Least score of boxes to match first, 0 to 1. Default: 0.6.
    #[serde(default)]
    high_score: Option<Located<f64>>,
    /// Least score of boxes to match at all. Default: 0.1.
    #[serde(default)]
    low_score: Option<Located<f64>>,
    /// Least score of the first box of a track. Default: 0.7.
    #[serde(default)]
    first_score: Option<Located<f64>>,
    /// Largest half of the cosine distance of embeddings, 0 to 1. Default: 0.25.
    #[serde(default)]
    appearance_distance: Option<Located<f64>>,
    /// Number of frames without a detection after which a track ends. Default: 30.
    #[serde(default)]
    patience: Option<u32>,
    /// Whether a track accepts only boxes of its own class. Default: false.
    #[serde(default)]
    keeps_class: bool,
}

fn camera() -> Located<String> {
    "camera".into()
}

fn frame() -> Located<String> {
    "frame".into()
}

fn areas() -> [Located<String>; 4] {
    ["left", "top", "width", "height"].map(Into::into)
}

fn score() -> Located<String> {
    "score".into()
}

/// Returns the tracker's settings, and reports errors in them.
fn settings(options: &Options, errors: &mut Diagnostics) -> TrackerSettings {
    let mut settings = TrackerSettings::default();
    let shares = [
        (&options.high_score, "high_score", &mut settings.high_score),
        (&options.low_score, "low_score", &mut settings.low_score),
        (&options.first_score, "first_score", &mut settings.first_score),
        (&options.appearance_distance, "appearance_distance", &mut settings.appearance_distance),
    ];
    for (given, name, value) in shares {
        let Some(given) = given else { continue };
        *value = given.value;
        if !(0.0..=1.0).contains(&given.value) {
            let message = format!("`{name}` is {}", given.value);
            errors.push(
                Diagnostic::error("E0606", message)
                    .at(given.span.clone())
                    .with_help("write a number from 0 to 1"),
            );
        }
    }
    settings.patience = options.patience.map_or(settings.patience, u64::from);
    settings.keeps_class = options.keeps_class;
    settings
}

fn is_embedding(found: &ColumnType) -> bool {
    matches!(found, ColumnType::Tensor { element: ElementType::Float32, .. })
}

fn is_class(found: &ColumnType) -> bool {
    matches!(found, ColumnType::Text | ColumnType::Int64)
}

impl TypedOperatorKind for Track {
    type Options = Options;
    const KIND: &'static str = "track";
    const SUMMARY: &'static str = "Follows detections from frame to frame in each camera.";
    const FACTS: OperatorFacts = OperatorFacts {
        computation: Computation::Stateful,
        follows_event_time: true,
        ..OperatorFacts::DEFAULT
    };

    fn spread(options: &Options) -> Spread {
        let input = options.camera.value.clone();
        let output = match options.gives {
            Form::Boxes => input.clone(),
            Form::Tracks => "camera".to_owned(),
        };
        Spread::Group(GroupColumn { input, output })
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let (port, options) = (&inputs[0], options.value);
        let mut errors = Diagnostics::new();
        let settings = settings(&options, &mut errors);
        let mut place = |name: &Located<String>, expected: &str, accepts: fn(&ColumnType) -> bool| {
            port.column(context.id, 0, name, expected, accepts).map_or_else(
                |error| {
                    errors.push(error);
                    0
                },
                |(index, _)| index,
            )
        };
        let is_number = |found: &ColumnType| *found == ColumnType::Float64;
        // A column that is not named is used if it exists and fits.
        let by_default = |name: &str, accepts: fn(&ColumnType) -> bool| {
            port.stream
                .column(name)
                .filter(|column| accepts(&column.column_type))
                .map(|_| Located::from(name))
        };
        let class = options.class.clone().or_else(|| by_default("class", is_class));
        let embedding = options.embedding.clone().or_else(|| by_default("embedding", is_embedding));
        let columns = Columns {
            camera: place(&options.camera, "text", |found| *found == ColumnType::Text),
            frame: place(&options.frame, "int64", |found| *found == ColumnType::Int64),
            area: options.area.each_ref().map(|name| place(name, "float64", is_number)),
            score: place(&options.score, "float64", is_number),
            class: class.map(|name| place(&name, "text or int64", is_class)),
            embedding: embedding.map(|name| place(&name, "tensor<float32>", is_embedding)),
        };
        let input = &port.stream;
        let (output, gives) = match options.gives {
            Form::Boxes => {
                if input.column("track").is_some() {
                    let message = format!("`{}` receives a column `track`, which it adds itself", context.id);
                    let help = "put a `map` before it that removes the column";
                    errors.push(Diagnostic::error("E0606", message).at(port.span.clone()).with_help(help));
                }
                let track = Column::new("track", ColumnType::Text);
                (StreamType::new(input.columns.iter().cloned().chain([track])), Gives::Boxes)
            }
            Form::Tracks => (track_type(input, &columns, options.path), Gives::Tracks { path: options.path }),
        };
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            settings,
            columns,
            gives,
            input: record_schema(input),
            output: record_schema(&output),
        });
        errors.into_result((
            output,
            Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup)))))),
        ))
    }
}

/// The columns of tracks.
fn track_type(input: &StreamType, columns: &Columns, path: bool) -> StreamType {
    let of = |name: &str, index: usize| {
        Column::new(
            name,
            input.columns.get(index).map_or(ColumnType::Text, |column| column.column_type.clone()),
        )
    };
    let mut all = vec![of("camera", columns.camera), Column::new("track", ColumnType::Text)];
    all.extend(columns.class.map(|index| of("class", index)));
    let numbers = ["first_frame", "last_frame", "start", "end", "detections"];
    all.extend(numbers.map(|name| Column::new(name, ColumnType::Int64)));
    all.extend(columns.embedding.map(|index| of("embedding", index)));
    all.extend(path.then(|| Column::new("path", ColumnType::Text)));
    StreamType::new(all)
}
