//! `associate`: links the tracks of several cameras that show one object, and corrects itself.
//!
//! ```yaml
//! - id: vehicles
//!   kind: associate
//!   input: tracks                  # as `track` with `gives: tracks` sends them
//!   options:
//!     likeness: 0.8                # cosine of the angle between embeddings, at least
//!     within: 40s                  # from one camera to the next
//! ```
//! A track may be followed by one of another camera that starts within a span of time after its end and looks alike. Of all
//! such pairs the most alike are chosen; each track is followed by at most one and follows at most one. Linked tracks are
//! one object, named by its first track (see the crate `tidemill-incremental`).
//!
//! The links depend on all tracks, so they change when a track arrives late or is corrected. The operator sends each track
//! with a further column, `vehicle` (option `as`). When its value changes, the operator retracts the row (`_change` = -1)
//! and sends a new one. The sum of all changes is the result for all tracks at once, in any order of arrival. A track that
//! arrives again under its name replaces the one before; the input may contain retractions too.
//!
//! # Transitions
//!
//! ```yaml
//!   options:
//!     likeness: 0.87
//!     within: 40s
//!     boxes: path                  # as `track` with `path: true` sends it
//!     transitions:
//!       - {from: camera-1, leaves: [320, 0, 160, 288], to: camera-4, enters: [0, 0, 240, 288], after: 2s, within: 12s}
//! ```
//! With `transitions`, only the named cameras follow each other, each pair with its own times. The centre of the last box
//! of the earlier track must lie in `leaves`, that of the first box of the later track in `enters`: left, top, width and
//! height in pixels. All values are rounded to hundredths of a pixel; the left and the upper edge belong to the area, the
//! others do not. Without an area, the box may be anywhere; a track without boxes matches only then. There may be several
//! transitions between two cameras; any of them suffices.
//!
//! # State
//!
//! A track that starts more than `keep` before the watermark is too late to be linked: its predecessors may have been
//! removed. If it also ended before that, it is dropped as `late`, and so is a correction or retraction of a linked one.
//! Otherwise, as for a car that was parked for longer than `keep`, it becomes an object of its own, linked with none, and
//! is noted as `unlinked`.
//!
//! An object is removed, with all its tracks, when its last track ended before the *horizon*: the watermark less `keep`,
//! the longest `within` and, where `overlap` is longer than `after`, the difference. Its results stay. So the state holds
//! each object with a track that ended after the horizon, with all its tracks from the first on. That is as much as passes
//! in that time. An object that keeps getting tracks is never removed, and grows. A low `likeness` creates such objects in
//! dense traffic; transitions without a cycle exclude them.
//!
//! Links of removed objects are final. So the results equal those for all tracks at once as long as no change reaches back
//! before the horizon. A track as late as `keep` allows can take the place of another, which would then go to its second
//! choice; if that is removed already, it stays without. One such displacement can cause the next, each further back, so no
//! horizon excludes them. This always holds: the results for the kept tracks follow from these tracks alone.
//!
//! Event times: that of the track, or the watermark if it is later. All tracks must meet in one stage.
use super::associate_state::{Running, Setup, hundredths};
use crate::api::{Computation, Instance, MakeInstance, Spread};
use crate::columns::declared_name;
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_incremental::chains::{Area, Rules, Transition};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::units::TimeSpan;

/// The kind `associate`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Associate;

/// Options of `associate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Least cosine of the angle between the embeddings of two linked tracks, -1 to 1.
    likeness: Located<f64>,
    /// Longest time from the end of a track to the start of the next one. Whole milliseconds.
    within: Located<TimeSpan>,
    /// Shortest time from the end of a track to the start of the next one. Default: 0s.
    #[serde(default)]
    after: TimeSpan,
    /// Longest time during which two cameras see the same object, instead of `after`. Default: 0s.
    #[serde(default)]
    overlap: TimeSpan,
    /// Pairs of cameras that follow each other. Default: all.
    #[serde(default)]
    transitions: Vec<Located<Pair>>,
    /// Column of the boxes of the track, text, as `track` sends it with `path: true`; only for areas in `transitions`.
    #[serde(default)]
    boxes: Option<Located<String>>,
    /// Longest time before the watermark at which a new or corrected track can start. Default: 1h.
    #[serde(default = "hour")]
    keep: TimeSpan,
    /// Name of the column with the object. Default: vehicle.
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
    /// Column of the look of the track, a tensor of float32 values. Default: embedding.
    #[serde(default = "embedding")]
    embedding: Located<String>,
}

/// One camera after another.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Pair {
    /// The earlier camera.
    from: String,
    /// The later camera.
    to: String,
    /// Overrides the option of this name.
    #[serde(default)]
    after: Option<TimeSpan>,
    /// Overrides the option of this name.
    #[serde(default)]
    within: Option<TimeSpan>,
    /// Area for the centre of the last box of the earlier track: left, top, width, height in pixels. Default: anywhere.
    #[serde(default)]
    leaves: Option<Located<Vec<f64>>>,
    /// Area for the centre of the first box of the later track. Default: anywhere.
    #[serde(default)]
    enters: Option<Located<Vec<f64>>>,
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

/// Parses an area into hundredths of a pixel.
fn area(given: Option<&Located<Vec<f64>>>, name: &str, errors: &mut Diagnostics) -> Option<Area> {
    let given = given?;
    let area = match given.value.as_slice() {
        &[left, top, width, height] if given.value.iter().all(|number| number.is_finite()) => Some(Area {
            left: hundredths(left),
            top: hundredths(top),
            right: hundredths(left + width),
            bottom: hundredths(top + height),
        }),
        _ => None,
    };
    let area = area.filter(|area| area.left < area.right && area.top < area.bottom);
    if area.is_none() {
        let message = match given.value.len() {
            4 => format!("`{name}` is {:?}, which is empty", given.value),
            count => format!("`{name}` has {count} numbers, but needs 4"),
        };
        let help = "write left, top, width and height in pixels: [320, 0, 160, 288]";
        errors.push(Diagnostic::error("E0606", message).at(given.span.clone()).with_help(help));
    }
    area
}

/// Returns the rules for links, in milliseconds and hundredths of a pixel.
fn rules(options: &Options, errors: &mut Diagnostics) -> Rules {
    let shortest = |after: Option<TimeSpan>| {
        milliseconds(after.unwrap_or(options.after)) - milliseconds(options.overlap)
    };
    let longest = |within: Option<TimeSpan>| milliseconds(within.unwrap_or(options.within.value));
    let mut check = |shortest: i64, longest: i64, at: &Span| {
        if shortest > longest {
            let message = format!("`after` less `overlap` is {shortest} ms, `within` is {longest} ms");
            let help = "no track could follow another: `within` must be at least as long";
            errors.push(Diagnostic::error("E0606", message).at(at.clone()).with_help(help));
        }
    };
    // With transitions, the other options are only their defaults.
    if options.transitions.is_empty() {
        check(shortest(None), longest(None), &options.within.span);
    }
    for pair in &options.transitions {
        check(shortest(pair.after), longest(pair.within), &pair.span);
    }
    for pair in options.transitions.iter().filter(|pair| pair.from == pair.to) {
        let message = format!("a transition from `{}` to `{}`", pair.from, pair.to);
        let help = "only tracks of different cameras are linked: name two of them";
        errors.push(Diagnostic::error("E0606", message).at(pair.span.clone()).with_help(help));
    }
    let mut areas = options.transitions.iter().flat_map(|pair| [&pair.leaves, &pair.enters]).flatten();
    if let (Some(area), None) = (areas.next(), &options.boxes) {
        let message = "transitions have areas, but `boxes` does not name the column with the boxes";
        let help = "name the column that `track` gives with `path: true`: `boxes: path`";
        errors.push(Diagnostic::error("E0606", message).at(area.span.clone()).with_help(help));
    }
    let transition = |pair: &Located<Pair>| Transition {
        from: pair.from.as_str().into(),
        to: pair.to.as_str().into(),
        shortest_gap: shortest(pair.after),
        longest_gap: longest(pair.within),
        leaves: area(pair.leaves.as_ref(), "leaves", errors),
        enters: area(pair.enters.as_ref(), "enters", errors),
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
        "Links the tracks of several cameras that show one object, and corrects itself.";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, ..OperatorFacts::DEFAULT };

    fn spread(_: &Options) -> Spread {
        Spread::One
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
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
                format!("`{}` receives a column `{}`, which it adds itself", context.id, options.name);
            let help = "choose another name: `as: object`";
            errors.push(Diagnostic::error("E0606", message).at(port.span.clone()).with_help(help));
        }
        let rules = rules(&options, &mut errors);
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
        let columns = [
            place(&options.track, "text", is_text),
            place(&options.camera, "text", is_text),
            place(&options.start, "int64", is_whole),
            place(&options.end, "int64", is_whole),
            place(&options.embedding, "tensor<float32>", |found| {
                matches!(found, ColumnType::Tensor { element: ElementType::Float32, .. })
            }),
        ];
        let boxes = options.boxes.as_ref().map(|name| place(name, "text", is_text));
        let object = Column::new(options.name.value.clone(), ColumnType::Text);
        let output =
            StreamType::new(port.stream.columns.iter().cloned().chain([object])).with_revisions(true);
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            keep: milliseconds(options.keep),
            rules,
            columns,
            boxes,
            input: record_schema(&port.stream),
            output: record_schema(&output),
        });
        errors.into_result((
            output,
            Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup)))))),
        ))
    }
}
