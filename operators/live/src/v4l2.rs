//! `v4l2`: the pictures of cameras of this machine (Video4Linux).
//!
//! ```yaml
//! - id: desk
//!   kind: v4l2
//!   options:
//!     device: /dev/video0    # default; or `devices: {desk: /dev/video0, door: /dev/video2}`
//!     capture: 1280x720      # size that the camera takes; default: its own
//!     rate: 30/s             # frames that the camera takes; default: its own
//!     format: mjpeg          # form in which it sends: mjpeg | yuyv422 | h264 | ...; default: its first one
//!     scale: 640x360         # size of the pictures of records
//! ```
//! Records, event times, drops and the remaining options (`most`, `frames`, `stall`, `idle`, `out_of_order`, `max_pixels`)
//! are those of [`crate::rtsp`]; the time is that of the arrival. ffmpeg reads the camera, in one process per device. A
//! camera that is pulled out or in use by another program is tried again, see [`crate::supervision`].
//!
//! ```
//! use tidemill_operators::kind::{EndContext, Step};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_live::register(&mut registry);
//! let id = "desk".into();
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "device: /dev/video2")).unwrap();
//! let desk = registry.source("v4l2").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(desk.feeds.unwrap().status()[0].feed, "desk");
//! ```
use crate::camera::{Noted, Origin, Settings, Via};
use crate::capture::{Capture, Captures, explain};
use crate::decoder::PictureForm;
use crate::devices;
use crate::ffmpeg::{Piped, read_all};
use crate::hub::{FeedKind, Hub};
use crate::journalled::Patience;
use crate::limits::{self, HOUR};
use crate::reader;
use crate::rtsp::{Frames, default_pixels, pictures, program};
use crate::session::{Clock, Transport};
use crate::supervision::{Fault, Policy};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ChildStdout, Command};
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::BoundSource;
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Rate, TimeSpan};
use tidemill_spec::value::Value;

/// The kind `v4l2`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct V4l2;

/// Options of `v4l2`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The only camera. Default: /dev/video0.
    #[serde(default)]
    device: Option<Located<String>>,
    /// Cameras by name, instead of `device`.
    #[serde(default)]
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    devices: Option<Value>,
    /// Size of the pictures that the camera takes, such as `1280x720`. Default: its own.
    #[serde(default)]
    capture: Option<Located<String>>,
    /// Frames a second that the camera takes. Default: its own.
    #[serde(default)]
    rate: Option<Located<Rate>>,
    /// Form in which it sends: mjpeg, yuyv422, h264 and others of `ffmpeg -f v4l2 -list_formats all -i DEVICE`. Default: the
    /// first one.
    #[serde(default)]
    format: Option<Located<String>>,
    /// Size of the pictures of records, such as `640x360`. Default: that of the camera.
    #[serde(default)]
    scale: Option<Located<String>>,
    /// Frames a second of one camera at most; others are dropped. Default: all.
    #[serde(default)]
    most: Option<Located<Rate>>,
    /// `raw`, pixels that are not compressed, or `jpeg`. Default: raw.
    #[serde(default)]
    frames: Frames,
    /// Time without a frame after which the device is opened again. Default: 10s.
    #[serde(default)]
    stall: Option<Located<TimeSpan>>,
    /// Time without any frame after which the source reports that it is idle, at most 1s. Default: 1s.
    #[serde(default)]
    idle: Option<Located<TimeSpan>>,
    /// Longest time by which a record may be older than the newest one. Default: 500ms.
    #[serde(default)]
    out_of_order: Option<Located<TimeSpan>>,
    /// Largest picture, in pixels (width times height). Default: 64000000.
    #[serde(default = "default_pixels")]
    max_pixels: u64,
}

impl SourceKind for V4l2 {
    fn kind(&self) -> &'static str {
        "v4l2"
    }

    fn summary(&self) -> &'static str {
        "The pictures of cameras of this machine (Video4Linux)."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { is_live: true, reads: &[], size_of_frames: Some("scale"), ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "has the program that reads the camera"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        let (device, devices) = (options.device.as_ref(), options.devices.as_ref());
        let cameras = devices::of_options(context, device, devices, "/dev/video0", &mut errors);
        let size = limits::size(options.scale.as_ref(), &mut errors);
        let capture = limits::size(options.capture.as_ref(), &mut errors);
        limits::check_rate("rate", options.rate.as_ref(), &mut errors);
        limits::check_rate("most", options.most.as_ref(), &mut errors);
        if let Some(format) = options.format.as_ref().filter(|format| !is_word(format)) {
            let text = format!("`{format}` is not the name of a format");
            errors.push(limits::wrong(text, "write one word, such as `mjpeg`").at(format.span.clone()));
        }
        let policy = Policy::default();
        let mut span = |name, given: &Option<_>, default, limits| {
            limits::time(name, given.as_ref(), default, limits, &mut errors)
        };
        let policy = Policy { stall: span("stall", &options.stall, policy.stall, (100, HOUR)), ..policy };
        let idle = span("idle", &options.idle, Duration::from_secs(1), (10, 1000));
        let out_of_order = span("out_of_order", &options.out_of_order, Duration::from_millis(500), (0, HOUR));
        let program = program(context, &mut errors);
        errors.into_result(())?;
        let form = PictureForm { size, jpeg: options.frames == Frames::Jpeg, max_pixels: options.max_pixels };
        let cards = Cards {
            program,
            format: options.format.map(|format| format.value),
            size: capture,
            rate: options.rate.map(|rate| rate.value.0),
            form,
        };
        let settings = Settings {
            policy,
            transport: Transport::default(),
            clock: Clock::Arrival,
            form,
            most: options.most.map(|most| most.value.0),
        };
        let hub = Hub::new(CAMERAS, cameras, settings, Via::Children(Arc::new(cards)));
        Ok(reader::bound(context, "v4l2", pictures(), hub, Patience { idle, lateness: out_of_order }))
    }
}

const CAMERAS: FeedKind = FeedKind { noun: "camera", parse: devices::parse, keeps: 1 };

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Reads cameras by ffmpeg.
struct Cards {
    program: PathBuf,
    format: Option<String>,
    size: Option<(u32, u32)>,
    rate: Option<f64>,
    form: PictureForm,
}

impl Cards {
    fn arguments(&self, device: &str) -> Vec<String> {
        let mut all = "-hide_banner -nostdin -nostats -loglevel error -fflags nobuffer -f v4l2".to_owned();
        if let Some(format) = &self.format {
            all += &format!(" -input_format {format}");
        }
        if let Some((width, height)) = self.size {
            all += &format!(" -video_size {width}x{height}");
        }
        if let Some(rate) = self.rate {
            all += &format!(" -framerate {rate}");
        }
        all += &format!(" -i {device} {}", Piped::of(self.size, &self.form).arguments(&self.form));
        all.split_whitespace().map(str::to_owned).collect()
    }
}

impl Captures for Cards {
    fn start(&self, origin: &Origin, to: Noted) -> Result<Capture, Fault> {
        let device = origin.device()?;
        let mut command = Command::new(&self.program);
        command.args(self.arguments(device));
        let (piped, most) = (Piped::of(self.size, &self.form), self.form.most_bytes());
        let read = move |output: ChildStdout| read_all(output, piped, most, || Some(to.now()), &to);
        let device = device.to_owned();
        Capture::start(command, read, move |messages| explain(&device, "camera", "video", messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_camera_is_asked_for_what_is_wanted() {
        let form = PictureForm { size: None, jpeg: false, max_pixels: 1 };
        let mut cards = Cards { program: PathBuf::new(), format: None, size: None, rate: None, form };
        let all = cards.arguments("/dev/video2").join(" ");
        assert!(all.contains("-f v4l2 -i /dev/video2 ") && all.contains("-c:v ppm"), "{all}");
        cards.format = Some("mjpeg".to_owned());
        (cards.size, cards.rate) = (Some((1280, 720)), Some(30.0));
        let all = cards.arguments("/dev/video0").join(" ");
        let asked = "-input_format mjpeg -video_size 1280x720 -framerate 30 -i /dev/video0 ";
        assert!(all.contains(asked) && all.contains("-c:v pgmyuv"), "{all}");
    }
}
