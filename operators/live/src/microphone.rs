//! `microphone`: the sounds of microphones of this machine (ALSA).
//!
//! ```yaml
//! - id: hall
//!   kind: microphone
//!   options:
//!     device: default        # default; or `devices: {hall: plughw:1, door: plughw:2}`, see `arecord -L`
//!     sample_rate: 16000     # samples a second
//!     chunk: 1s              # sound of one record
//!     step: 500ms            # from the begin of one to that of the next; default: `chunk`, without overlap
//!     keep: 10s              # sound that waits for the run at most; the oldest is dropped beyond
//! ```
//! A record is `{microphone: text, chunk: int64, audio: audio}`: the name of the microphone, the number of the chunk,
//! counted per microphone since the start, and the sound, as that of `wav_directory` (16 bits, one channel). The event time
//! is that of its first sample by the clock of this machine. The operator `slices` cuts windows of any length across the chunks.
//!
//! Other than pictures, sounds wait for the run: the edges of this source drop nothing, unless they say so. What is
//! dropped in front of the run is counted as `superseded`, and the numbers show the gap. ffmpeg reads the microphone, in
//! one process per device. One that is pulled out is tried again, see [`crate::supervision`].
//!
//! ```
//! use tidemill_operators::kind::{EndContext, Step};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_live::register(&mut registry);
//! let id = "hall".into();
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "chunk: 2s")).unwrap();
//! let hall = registry.source("microphone").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(hall.output.columns[2].name, "audio");
//! ```
use crate::camera::{Noted, Origin, Settings, Via};
use crate::capture::{Capture, Captures, explain};
use crate::decoder::{PictureForm, Pictures};
use crate::devices;
use crate::hub::{FeedKind, Hub};
use crate::journalled::Patience;
use crate::limits::{self, HOUR};
use crate::reader;
use crate::rtsp::program;
use crate::session::{Clock, Transport};
use crate::supervision::{Fault, Policy};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{ChildStdout, Command};
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::BoundSource;
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::Value;

/// The kind `microphone`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Microphone;

/// Options of `microphone`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The only microphone, by its ALSA name. Default: default.
    #[serde(default)]
    device: Option<Located<String>>,
    /// Microphones by name, instead of `device`.
    #[serde(default)]
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    devices: Option<Value>,
    /// Samples a second. Default: 16000.
    #[serde(default)]
    sample_rate: Option<Located<u32>>,
    /// Sound of one record. Default: 1s.
    #[serde(default)]
    chunk: Option<Located<TimeSpan>>,
    /// Time from the begin of one record to that of the next, at most `chunk`. Default: `chunk`.
    #[serde(default)]
    step: Option<Located<TimeSpan>>,
    /// Sound that waits for the run at most. Default: 10s, or two chunks.
    #[serde(default)]
    keep: Option<Located<TimeSpan>>,
    /// Time without a record after which the device is opened again; more than two chunks. Default: 10s, or three chunks.
    #[serde(default)]
    stall: Option<Located<TimeSpan>>,
    /// Time without any record after which the source reports that it is idle, at most 1s. Default: 1s.
    #[serde(default)]
    idle: Option<Located<TimeSpan>>,
}

impl SourceKind for Microphone {
    fn kind(&self) -> &'static str {
        "microphone"
    }

    fn summary(&self) -> &'static str {
        "The sounds of microphones of this machine (ALSA)."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { is_live: true, reads: &[], ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "has the program that reads the microphone"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        let (device, devices) = (options.device.as_ref(), options.devices.as_ref());
        let microphones = devices::of_options(context, device, devices, "default", &mut errors);
        let rate = options.sample_rate.as_ref().map_or(16_000, |rate| rate.value);
        if let Some(given) = options.sample_rate.as_ref().filter(|_| !(1_000..=192_000).contains(&rate)) {
            let text = format!("`sample_rate: {rate}` is not possible");
            let help = "write samples a second from 1000 to 192000, such as 16000";
            errors.push(limits::wrong(text, help).at(given.span.clone()));
        }
        let mut span = |name, given: &Option<_>, default, limits| {
            limits::time(name, given.as_ref(), default, limits, &mut errors)
        };
        let chunk = span("chunk", &options.chunk, Duration::from_secs(1), (10, 60_000));
        let milliseconds = u64::try_from(chunk.as_millis()).unwrap_or(u64::MAX);
        let step = span("step", &options.step, chunk, (10, milliseconds));
        let keep = span(
            "keep",
            &options.keep,
            Duration::from_secs(10).max(2 * chunk),
            (milliseconds, 10 * HOUR / 60),
        );
        let stall =
            span("stall", &options.stall, Duration::from_secs(10).max(3 * chunk), (2 * milliseconds, HOUR));
        let idle = span("idle", &options.idle, Duration::from_secs(1), (10, 1000));
        let program = program(context, &mut errors);
        errors.into_result(())?;
        let samples = |time: Duration| (time.as_secs_f64() * f64::from(rate)).round().max(1.0) as usize;
        let cards = Cards { program, rate, chunk: samples(chunk), step: samples(step) };
        let form = PictureForm { size: None, jpeg: false, max_pixels: 0 };
        let settings = Settings {
            policy: Policy { stall, ..Policy::default() },
            transport: Transport::default(),
            clock: Clock::Arrival,
            form,
            most: None,
        };
        let keeps = (keep.as_secs_f64() / step.as_secs_f64()).ceil().max(1.0) as usize;
        let kind = FeedKind { noun: "microphone", parse: devices::parse, keeps };
        let hub = Hub::new(kind, microphones, settings, Via::Children(Arc::new(cards)));
        let output = StreamType::new([
            Column::new("microphone", ColumnType::Text),
            Column::new("chunk", ColumnType::Int64),
            Column::new("audio", ColumnType::Audio),
        ]);
        let bound = reader::bound(context, "microphone", output, hub, Patience { idle, lateness: chunk });
        Ok(BoundSource { waits_for_all: true, ..bound })
    }
}

/// Reads microphones by ffmpeg.
struct Cards {
    program: PathBuf,
    rate: u32,
    /// Samples of a record.
    chunk: usize,
    /// Samples from one record to the next.
    step: usize,
}

impl Captures for Cards {
    fn start(&self, origin: &Origin, to: Noted) -> Result<Capture, Fault> {
        let device = origin.device()?;
        let mut command = Command::new(&self.program);
        let rate = self.rate;
        let all = format!(
            "-hide_banner -nostdin -nostats -loglevel error -fflags nobuffer -f alsa -i {device} -map 0:a:0 -ac 1 -ar {rate} \
             -c:a pcm_s16le -f s16le -flush_packets 1 pipe:1"
        );
        command.args(all.split_whitespace());
        let (chunk, step) = (self.chunk, self.step);
        let read = move |output: ChildStdout| read_sounds(output, (rate, chunk, step), || to.now(), &to);
        let device = device.to_owned();
        Capture::start(command, read, move |messages| match messages.contains("cannot set channel count") {
            true => Fault::Missing(format!(
                "`{device}` does not record in stereo: write `plug{device}`, which converts, if it begins with `hw:`"
            )),
            false => explain(&device, "microphone", "audio", messages),
        })
    }
}

/// Cuts samples, 16 bits each, into sounds until their end. `now` returns the time, microseconds.
fn read_sounds(
    mut output: impl Read,
    (rate, chunk, step): (u32, usize, usize),
    now: impl Fn() -> i64,
    to: &dyn Pictures,
) {
    let mut samples = Vec::with_capacity(2 * chunk);
    loop {
        let held = samples.len();
        samples.resize(2 * chunk, 0);
        if output.read_exact(&mut samples[held..]).is_err() {
            return;
        }
        let length = i64::try_from(chunk as u64 * 1_000_000 / u64::from(rate)).unwrap_or(i64::MAX);
        let begin = now().saturating_sub(length);
        if to.wants(begin) {
            let mut sound = to.buffer();
            sound.clear();
            write_wav(&mut sound, rate, &samples);
            to.picture(begin, sound);
        }
        samples.drain(..2 * step);
    }
}

/// Appends a WAV file of one channel with 16 bits.
fn write_wav(into: &mut Vec<u8>, rate: u32, samples: &[u8]) {
    let length = u32::try_from(samples.len()).unwrap_or(u32::MAX);
    into.extend_from_slice(b"RIFF");
    into.extend_from_slice(&length.saturating_add(36).to_le_bytes());
    into.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    into.extend_from_slice(&rate.to_le_bytes());
    into.extend_from_slice(&(2 * rate).to_le_bytes());
    into.extend_from_slice(b"\x02\0\x10\0data");
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(samples);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tidemill_media::wav;
    use tidemill_operators::record::EventTime;

    #[derive(Default)]
    struct Kept(Mutex<Vec<(EventTime, Vec<u8>)>>);

    impl Pictures for Kept {
        fn wants(&self, _: EventTime) -> bool {
            true
        }
        fn buffer(&self) -> Vec<u8> {
            Vec::new()
        }
        fn picture(&self, time: EventTime, sound: Vec<u8>) {
            self.0.lock().unwrap().push((time, sound));
        }
    }

    #[test]
    fn samples_are_cut_into_sounds_that_overlap() {
        let samples: Vec<u8> = (0..100i16).flat_map(|sample| (sample * 300).to_le_bytes()).collect();
        let kept = Kept::default();
        read_sounds(samples.as_slice(), (1000, 40, 25), || 7_000_000, &kept);
        let sounds = kept.0.into_inner().unwrap();
        assert_eq!(sounds.len(), 3, "the rest is shorter than a record");
        for (number, (time, sound)) in sounds.iter().enumerate() {
            assert_eq!(*time, 6_960_000);
            wav::check(sound).unwrap();
            let decoded = wav::decode(sound, 1000).unwrap();
            assert_eq!(decoded.len(), 40);
            let first = (25 * number) as f32 * 300.0 / 32768.0;
            assert!((decoded[0] - first).abs() < 1e-3, "{} {first}", decoded[0]);
        }
    }
}
