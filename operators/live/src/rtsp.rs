//! `rtsp`: the pictures of cameras that stream over the network.
//!
//! ```yaml
//! - id: cameras
//!   kind: rtsp
//!   key: camera
//!   options:
//!     cameras:                                  # or `url: rtsp://...` alone: one camera, named after the source
//!       gate: rtsp://10.0.0.7/stream1
//!       dock: {url: "rtsp://10.0.0.8/h264", user: viewer, password_env: DOCK_PASSWORD}   # or password_file
//!     scale: 640x360        # default: as they are
//!     most: 10/s            # frames a second of one camera at most; default: all
//!     frames: raw           # raw | jpeg
//!     session: own          # own | ffmpeg, for cameras that encrypt and for odd ones
//!     transport: tcp        # tcp | udp
//!     connect: 20s          # longest time for a connection; slow cameras need that long
//!     stall: 10s            # connected but no frame: connect again
//!     idle: 1s              # time without any frame after which the source reports that it is idle
//!     clock: arrival        # arrival | camera (its sender reports): the event time
//! ```
//! A frame is a record `{camera: text, frame: int64, image: image}`: the name of the camera, the number of the frame,
//! counted per camera since the start, and the picture, as that of `video`. Event times are microseconds since 1970; those
//! of a camera always increase (see [`crate::event_time`]).
//!
//! **It is live.** Of each camera the newest frame waits for the run, and no other; what was not read in time is counted as
//! dropped: `superseded` by a newer one, above `most` (`rate`), `behind` where the decoder had no time, `paused`. At most
//! once: a frame that was read is not given again after a fault, unless the source has a `journal`.
//!
//! **It is cut and comes back.** See [`crate::supervision`] for when it connects again. A camera that is cut holds up no
//! other: while one gives frames, the event time of the source follows the newest frame, less `out_of_order`. While none
//! does, the source reports each `idle` that nothing older than `idle` will come.
//!
//! ffmpeg decodes, in one process per camera, and reads the camera too with `session: ffmpeg`. A camera that refuses, or sends another codec than H.264, H.265 and MJPEG,
//! fails with the cause (see [`tidemill_operators::feeds`]).
//!
//! ```
//! use tidemill_operators::kind::{EndContext, Step};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_live::register(&mut registry);
//! let id = "gate".into();
//! // Checked, not connected.
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "url: rtsp://10.0.0.7/stream1")).unwrap();
//! let gate = registry.source("rtsp").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(gate.feeds.unwrap().status()[0].feed, "gate");
//! ```
mod hidden;
mod named;

use crate::address::Address;
use crate::camera::{Origin, Settings, Via};
use crate::decoder::PictureForm;
use crate::ffmpeg::Ffmpeg;
use crate::hub::{FeedKind, Hub};
use crate::journalled::Patience;
use crate::limits::{self, HOUR};
use crate::reader;
use crate::session::{Clock, SessionBy, Transport};
use crate::streams::Streams;
use crate::supervision::Policy;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::BoundSource;
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_operators::video::program;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::{Rate, TimeSpan};
use tidemill_spec::value::Value;

/// The kind `rtsp`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Rtsp;

/// Options of `rtsp`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Cameras by name, each `rtsp://HOST/PATH` or a map of `url`, `user` and `password_env` or `password_file`.
    #[serde(default)]
    #[schemars(with = "Option<std::collections::BTreeMap<String, named::Written>>")]
    cameras: Option<Value>,
    /// Address of the only camera, instead of `cameras`.
    #[serde(default)]
    url: Option<Located<String>>,
    /// User of the only camera.
    #[serde(default)]
    user: Option<Located<String>>,
    /// Variable of the environment with the password of the only camera.
    #[serde(default)]
    password_env: Option<Located<String>>,
    /// File with the password of the only camera, relative to the workflow file.
    #[serde(default)]
    password_file: Option<Located<String>>,
    /// Size of the pictures, such as `640x360`. Default: that of the camera.
    #[serde(default)]
    scale: Option<Located<String>>,
    /// Frames a second of one camera at most; others are dropped. Default: all.
    #[serde(default)]
    most: Option<Located<Rate>>,
    /// `raw`, pixels that are not compressed, or `jpeg`. Default: raw.
    #[serde(default)]
    frames: Frames,
    /// Reader of the cameras: `own`, this program, or `ffmpeg`, also for addresses `rtsps://`. Default: own.
    #[serde(default)]
    session: SessionBy,
    /// Carrier of the pictures. Default: tcp.
    #[serde(default)]
    transport: Transport,
    /// Longest time for a connection. Default: 20s.
    #[serde(default)]
    connect: Option<Located<TimeSpan>>,
    /// Time without a frame after which a connection is made again. Default: 10s.
    #[serde(default)]
    stall: Option<Located<TimeSpan>>,
    /// Time without any frame after which the source reports that it is idle, at most 1s. Default: 1s.
    #[serde(default)]
    idle: Option<Located<TimeSpan>>,
    /// Source of event times. Default: arrival.
    #[serde(default)]
    clock: Clock,
    /// Longest time by which a record may be older than the newest one: frames of several cameras are decoded at different
    /// speeds. Default: 500ms.
    #[serde(default)]
    out_of_order: Option<Located<TimeSpan>>,
    /// Largest picture, in pixels (width times height). Default: 64000000.
    #[serde(default = "default_pixels")]
    max_pixels: u64,
}

/// Format of frames in records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Frames {
    /// Uncompressed pixels.
    #[default]
    Raw,
    /// JPEG.
    Jpeg,
}

pub(crate) fn default_pixels() -> u64 {
    64_000_000
}

impl SourceKind for Rtsp {
    fn kind(&self) -> &'static str {
        "rtsp"
    }

    fn summary(&self) -> &'static str {
        "The pictures of cameras that stream over the network (RTSP)."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts {
            is_live: true,
            reads: &["password_file"],
            size_of_frames: Some("scale"),
            ..SourceFacts::DEFAULT
        }
    }

    fn shown_by_opening(&self) -> &'static str {
        "has its passwords, and a program that decodes the pictures is there"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        // A finding shows its line, which may have a password.
        bind(context, options).map_err(|errors| hidden::without_secrets(errors, options))
    }
}

const CAMERAS: FeedKind = FeedKind {
    noun: "camera",
    parse: |text| Ok(Origin::Network(Address::parse(text).map_err(|error| error.to_string())?)),
    keeps: 1,
};

/// Type of the records of cameras.
pub(crate) fn pictures() -> StreamType {
    StreamType::new([
        Column::new("camera", ColumnType::Text),
        Column::new("frame", ColumnType::Int64),
        Column::new("image", ColumnType::Image),
    ])
}

/// Finds ffmpeg, where the source is opened.
pub(crate) fn program(context: &EndContext<'_>, errors: &mut Diagnostics) -> PathBuf {
    if !context.opens() {
        // The host that opens it finds the program.
        return PathBuf::new();
    }
    program::find(context.base).unwrap_or_else(|missing| {
        errors.push(
            Diagnostic::error("E0615", format!("source `{}`: {missing}", context.id))
                .at(context.id.span.clone())
                .with_help(program::HELP),
        );
        PathBuf::new()
    })
}

fn bind(context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
    let options: Options = options.deserialize_into()?;
    let mut errors = Diagnostics::new();
    let cameras = named::cameras(context, &options, &mut errors);
    let size = limits::size(options.scale.as_ref(), &mut errors);
    limits::check_rate("most", options.most.as_ref(), &mut errors);
    let policy = Policy::default();
    let mut span = |name, given: &Option<_>, default, limits| {
        limits::time(name, given.as_ref(), default, limits, &mut errors)
    };
    let policy = Policy {
        connect: span("connect", &options.connect, policy.connect, (100, HOUR)),
        stall: span("stall", &options.stall, policy.stall, (100, HOUR)),
        ..policy
    };
    let idle = span("idle", &options.idle, Duration::from_secs(1), (10, 1000));
    let out_of_order = span("out_of_order", &options.out_of_order, Duration::from_millis(500), (0, HOUR));
    let program = program(context, &mut errors);
    if options.session == SessionBy::Ffmpeg && options.clock == Clock::Camera {
        let text = "ffmpeg gives pictures without the time of the camera";
        let help = "leave out `clock: camera`, or `session: ffmpeg`";
        errors.push(limits::wrong(text, help).at(context.id.span.clone()));
    }
    if options.session == SessionBy::Own
        && let Some((name, _)) = cameras.iter().find(|(_, address)| address.is_encrypted())
    {
        let text = format!("camera `{name}` encrypts (`rtsps://`)");
        let help =
            "write `session: ffmpeg` beside the cameras; ffmpeg does not check the certificate of a camera";
        errors.push(limits::wrong(text, help).at(context.id.span.clone()));
    }
    errors.into_result(())?;
    let form = PictureForm { size, jpeg: options.frames == Frames::Jpeg, max_pixels: options.max_pixels };
    let via = match options.session {
        SessionBy::Own => Via::Sessions(Arc::new(Ffmpeg { program })),
        SessionBy::Ffmpeg => Via::Children(Arc::new(Streams { program, transport: options.transport, form })),
    };
    let settings = Settings {
        policy,
        transport: options.transport,
        clock: options.clock,
        form,
        most: options.most.map(|most| most.value.0),
    };
    // A camera's own clock is believed where it is off by less than a minute.
    let lateness = match settings.clock {
        Clock::Arrival => out_of_order,
        Clock::Camera => out_of_order + Duration::from_secs(60),
    };
    let cameras = cameras.into_iter().map(|(name, address)| (name, Origin::Network(address)));
    let hub = Hub::new(CAMERAS, cameras, settings, via);
    let bound = reader::bound(context, "rtsp", pictures(), hub, Patience { idle, lateness });
    let out_of_order_microseconds = i64::try_from(out_of_order.as_micros()).unwrap_or(i64::MAX);
    Ok(BoundSource { out_of_order_microseconds, ..bound })
}
