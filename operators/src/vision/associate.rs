//! `associate`: says which tracks of several cameras are of one object, and corrects itself.
//!
//! ```yaml
//! - id: vehicles
//!   kind: associate
//!   input: tracks                  # as `track` with `gives: tracks` sends them
//!   options:
//!     likeness: 0.8                # cosine of the angle between embeddings, at least
//!     within: 40s                  # from one camera to the next
//! ```
//! A track may be followed by one of another camera that begins within a span of time after its end and looks alike. Of all
//! such pairs, those that are most alike are taken, each track being followed by at most one and following at most one;
//! tracks that are linked so are one object, named by its first track (see the crate `tidemill-incremental`).
//!
//! That depends on all tracks, and so changes when one comes late or is corrected. The operator sends each track with a
//! further column, `vehicle` (option `as`); when that changes, it takes the row back (`_change` = -1) and sends another. What
//! stays when all is added up is what would be said of all tracks at once, in whatever order they came. A track that comes
//! again under its name replaces the one before; its input may take rows back too.
//!
//! With `transitions`, only the cameras that are named there follow each other, each pair with its own times. A track is kept
//! until nothing that is still taken can change it: one that begins more than `keep` before the watermark is dropped
//! as `late`, and that bounds the state. Event times: that of the track, or the watermark where it has passed it. All tracks
//! must meet in one stage.
use super::associate_state::{Running, Setup};
use crate::api::{BoundOperator, Computation, Instance, Spread};
use crate::columns::declared_name;
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_incremental::chains::{Rules, Transition};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::units::TimeSpan;

/// The kind `associate`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Associate;

/// Options of `associate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Cosine of the angle between the embeddings of two tracks, at least, -1 to 1.
    likeness: Located<f64>,
    /// From the end of a track to the start of the one that follows it, at most. Whole milliseconds.
    within: TimeSpan,
    /// From the end of a track to the start of the one that follows it, at least. Default: 0s.
    #[serde(default)]
    after: TimeSpan,
    /// How long two cameras may see the same object at once, instead of `after`. Default: 0s.
    #[serde(default)]
    overlap: TimeSpan,
    /// Cameras that follow each other, where not all do.
    #[serde(default)]
    transitions: Vec<Pair>,
    /// How long before the watermark a track may begin that still comes or is corrected. Default: 1h.
    #[serde(default = "hour")]
    keep: TimeSpan,
    /// Name of the column that says which object it is. Default: vehicle.
    #[serde(default = "vehicle", rename = "as")]
    name: Located<String>,
    /// The column with the name of the track, text. Default: track.
    #[serde(default = "track")]
    track: Located<String>,
    /// The column of the camera, text. Default: camera.
    #[serde(default = "camera")]
    camera: Located<String>,
    /// The column of the event time of the first box, int64, milliseconds. Default: start.
    #[serde(default = "start")]
    start: Located<String>,
    /// The column of the event time of the last box, int64, milliseconds. Default: end.
    #[serde(default = "end")]
    end: Located<String>,
    /// The column of what the track looks like, a tensor of float32 values. Default: embedding.
    #[serde(default = "embedding")]
    embedding: Located<String>,
}

/// One camera after another.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Pair {
    /// The camera before.
    from: String,
    /// The camera behind.
    to: String,
    /// As the option of this name; default: that.
    #[serde(default)]
    after: Option<TimeSpan>,
    /// As the option of this name; default: that.
    #[serde(default)]
    within: Option<TimeSpan>,
}

fn hour() -> TimeSpan {
    TimeSpan(3_600_000_000_000)
}

fn vehicle() -> Located<String> {
    "vehicle".into()
}

fn track() -> Located<String> {
    "track".into()
}

fn camera() -> Located<String> {
    "camera".into()
}

fn start() -> Located<String> {
    "start".into()
}

fn end() -> Located<String> {
    "end".into()
}

fn embedding() -> Located<String> {
    "embedding".into()
}

fn milliseconds(span: TimeSpan) -> i64 {
    i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX / 4)
}

/// Which tracks may follow each other, in milliseconds.
fn rules(options: &Options) -> Rules {
    let shortest = |after: Option<TimeSpan>| {
        milliseconds(after.unwrap_or(options.after)) - milliseconds(options.overlap)
    };
    let longest = |within: Option<TimeSpan>| milliseconds(within.unwrap_or(options.within));
    let transition = |pair: &Pair| Transition {
        from: pair.from.as_str().into(),
        to: pair.to.as_str().into(),
        shortest_gap: shortest(pair.after),
        longest_gap: longest(pair.within),
    };
    Rules {
        least_likeness: options.likeness.value,
        shortest_gap: shortest(None),
        longest_gap: longest(None),
        transitions: options.transitions.iter().map(transition).collect(),
    }
}

impl TypedOperatorKind for Associate {
    type Options = Options;
    const KIND: &'static str = "associate";
    const SUMMARY: &'static str =
        "Says which tracks of several cameras are of one object, and corrects itself.";
    const ACCEPTS_REVISIONS: bool = true;

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<BoundOperator, Diagnostics> {
        let (port, options) = (&inputs[0], options.value);
        let mut errors = Diagnostics::new();
        if !(-1.0..=1.0).contains(&options.likeness.value) {
            let message = format!("`likeness` is {}", options.likeness.value);
            let place = options.likeness.span.clone();
            errors.push(
                Diagnostic::error("E0606", message)
                    .at(place)
                    .with_help("write a number from -1 to 1, such as 0.8"),
            );
        }
        if let Err(error) = declared_name(&options.name) {
            errors.push(error);
        } else if port.stream.column(&options.name).is_some() {
            let message =
                format!("`{}` receives a column `{}`, which it gives itself", context.id, options.name);
            let help = "choose another name: `as: object`";
            errors.push(Diagnostic::error("E0606", message).at(port.span.clone()).with_help(help));
        }
        let mut place = |name: &Located<String>, expected: &str, accepts: fn(&ColumnType) -> bool| {
            port.column(context.id, 0, name, expected, accepts).map_or_else(
                |error| {
                    errors.push(error);
                    0
                },
                |(index, _)| index,
            )
        };
        let is_text = |found: &ColumnType| *found == ColumnType::Text;
        let is_whole = |found: &ColumnType| *found == ColumnType::Int64;
        let rules = rules(&options);
        let columns = [
            place(&options.track, "text", is_text),
            place(&options.camera, "text", is_text),
            place(&options.start, "int64", is_whole),
            place(&options.end, "int64", is_whole),
            place(&options.embedding, "tensor<float32>", |found| {
                matches!(found, ColumnType::Tensor { element: ElementType::Float32, .. })
            }),
        ];
        let object = Column::new(options.name.value.clone(), ColumnType::Text);
        let output =
            StreamType::new(port.stream.columns.iter().cloned().chain([object])).with_revisions(true);
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            keep: milliseconds(options.keep),
            rules,
            columns,
            input: record_schema(&port.stream),
            output: record_schema(&output),
        });
        errors.into_result(BoundOperator {
            id: context.id.value.clone(),
            kind: Self::KIND.into(),
            output,
            computation: Computation::Stateful,
            spread: Spread::One,
            make: Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup)))))),
        })
    }
}
