//! `slices`: windows of samples over sounds, for models that hear a fixed length: wake words, voice activity,
//! events.
//!
//! ```yaml
//! - id: heard
//!   kind: slices
//!   input: hall                 # chunks of microphones, or whole files
//!   options:
//!     length: 1280ms            # of a window; or in samples, as in `512 samples`
//!     every: 80ms               # from the start of one window to that of the next; default: `length`, without overlap
//!     before: 64 samples        # silence before the start of a sound; default: none
//!     sample_rate: 16000        # samples a second; default: 16000
//!     key: microphone           # sounds with one value here continue one another; default: each is by itself
//!     number: chunk             # counts the sounds of each key; default: their event times decide
//! ```
//! A window is a record with the columns of the sound it comes from except the sound, `start` (float64,
//! seconds) and `samples` (`tensor<float32>[N]`, N by `length` and `sample_rate`; the mean of the channels,
//! -1 to 1). Sounds are decoded here.
//!
//! Without `key` each sound is a sequence of its own, like those of `wav_directory`: `start` counts from its
//! beginning, and its rest that fills no window is left out. With `last: pad` the rest is in one more window,
//! which silence fills. A sound of another rate is converted. One that
//! is shorter than a window gives nothing and is counted as a drop, `short`, if it is not padded. One epoch
//! gives windows of at most 32 MiB; those left follow in the next.
//!
//! `before` puts silence before the start of each sound, with `key` before the first one and after each gap; the
//! windows start with it, so the first `start` is negative. For models that get each chunk with the samples
//! before it, `length` is both together: `{length: 576 samples, every: 512 samples, before: 64 samples}`.
//! `after` puts silence after the end.
//!
//! With `key` the sounds of each value follow one another by their event times, as those of `microphone` do,
//! and windows run across their borders; `start` is in seconds since 1970. The time at which a sound begins
//! may be off by half of `every`. If it begins later than that, something is missing: what was held is left
//! out, counted as a note `gap` on the sound that follows, and windows start anew with it. Chunks that
//! overlap are cut where the one before ended. A sound that ends before the one before did is counted as a
//! drop, `late`. With `number`, sounds of consecutive numbers have nothing between them and do not overlap,
//! however late the machine noted their times; any other number is a gap. A sound must have `sample_rate`,
//! because chunks cannot be converted one by one; else it is a dead letter, `audio_sample_rate`, as are those
//! that cannot be decoded.
//!
//! The event time of a window is that of its end: the time of the sound with its last sample, and the time from the start of
//! that sound. So the windows of a sound follow one another also where records are sorted by time. Several stages may share the work by
//! key.
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let sounds = InputPort {
//!     from: "sounds".into(),
//!     stream: StreamType::new([Column::new("key", ColumnType::Text), Column::new("audio", ColumnType::Audio)]),
//!     span: Span::nowhere(),
//! };
//! let id = "heard".into();
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "{length: 32ms}")).unwrap();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let bound = Registry::builtin().operator("slices").unwrap().bind(&context, &[sounds], &options).unwrap();
//! assert_eq!(bound.output.to_string(), "{key: text, start: float64, samples: tensor<float32>[512]}");
//! ```
use super::slices_state::{Running, Setup};
use crate::api::{Computation, Instance, MakeInstance, Spread};
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_media::resample::RATES;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::units::{SoundLength, TimeSpan};

/// Most samples of a window: a minute at 192 kHz, more than any model hears at once.
const MOST_SAMPLES: u64 = 60 * 192_000;

/// The kind `slices`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Slices;

/// Options of `slices`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Length of a window, for instance `1280ms` or `512 samples`; a whole number of samples.
    length: Located<SoundLength>,
    /// From the start of one window to that of the next, for instance `80ms` or `1280 samples`; a whole number
    /// of samples. Default: as `length`.
    #[serde(default)]
    every: Option<Located<SoundLength>>,
    /// Silence before the start of a sound, for instance `64 samples`, less than `length`; with `key` also after
    /// a gap. Default: none.
    #[serde(default)]
    before: Option<Located<SoundLength>>,
    /// Silence after the end of a sound, not with `key`. Default: none.
    #[serde(default)]
    after: Option<Located<SoundLength>>,
    /// The rest of a sound that fills no window: left out, or in a window that silence fills, not with `key`.
    /// Default: drop.
    #[serde(default)]
    last: Option<Located<Last>>,
    /// Samples a second. Default: 16000.
    #[serde(default = "rate")]
    sample_rate: Located<u32>,
    /// Text column of the name of what is heard; sounds with one name continue one another. Default: each
    /// sound is by itself.
    #[serde(default)]
    key: Option<Located<String>>,
    /// With `key`, an int64 column that counts the sounds of each key; sounds whose numbers follow one another
    /// have nothing between them, whatever their times. Default: their times decide.
    #[serde(default)]
    number: Option<Located<String>>,
    /// The column of the sound. Default: audio.
    #[serde(default = "audio")]
    audio: Located<String>,
}

/// What becomes of the rest of a sound that fills no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Last {
    /// It is left out.
    Drop,
    /// It is in one more window, filled with silence.
    Pad,
}

fn rate() -> Located<u32> {
    Located::new(16_000, tidemill_spec::span::Span::nowhere())
}

fn audio() -> Located<String> {
    "audio".into()
}

/// Returns the samples of a length, at least 1.
fn samples(span: &Located<SoundLength>, rate: u32, what: &str) -> Result<usize, Diagnostic> {
    const SECOND: u128 = 1_000_000_000;
    let wrong = |message: String, help: String| {
        Err(Diagnostic::error("E0606", message).at(span.span.clone()).with_help(help))
    };
    let whole = match span.value {
        SoundLength::Samples(0) => {
            return wrong(format!("{what} without samples"), "write at least `1 sample`".to_owned());
        }
        SoundLength::Samples(count) => u128::from(count),
        SoundLength::Time(time) => {
            let samples = u128::from(time.0) * u128::from(rate);
            let whole = samples / SECOND;
            if whole == 0 || !samples.is_multiple_of(SECOND) {
                let count = whole.max(1);
                let near = count * SECOND / u128::from(rate.max(1));
                let help = match (count * SECOND).is_multiple_of(u128::from(rate.max(1))) {
                    true => format!(
                        "write `{}` or `{count} samples`, or another `sample_rate`",
                        TimeSpan(near as u64)
                    ),
                    false => {
                        format!("write it in samples, such as `{count} samples`, or another `sample_rate`")
                    }
                };
                return wrong(
                    format!("{what} of {} is not a whole number of samples at {rate} a second", span.value),
                    help,
                );
            }
            whole
        }
    };
    if whole > u128::from(MOST_SAMPLES) {
        return wrong(
            format!("{what} of {} has {whole} samples; at most {MOST_SAMPLES} are possible", span.value),
            "write a shorter one".to_owned(),
        );
    }
    Ok(whole as usize)
}

/// Returns the samples of silence, which may be none.
fn silence(span: Option<&Located<SoundLength>>, rate: u32) -> Result<usize, Diagnostic> {
    match span {
        Some(span) if !matches!(span.value, SoundLength::Samples(0) | SoundLength::Time(TimeSpan(0))) => {
            samples(span, rate, "silence")
        }
        _ => Ok(0),
    }
}

impl TypedOperatorKind for Slices {
    type Options = Options;
    const KIND: &'static str = "slices";
    const SUMMARY: &'static str = "Windows of samples over sounds, across the chunks of a microphone.";
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, ..OperatorFacts::DEFAULT };

    fn spread(options: &Options) -> Spread {
        match &options.key {
            Some(key) => Spread::by_group([key.value.as_str()]),
            None => Spread::Any,
        }
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let (port, options) = (&inputs[0], options.value);
        let mut errors = Diagnostics::new();
        let rate = options.sample_rate.value;
        if !RATES.contains(&rate) {
            let message = format!("`sample_rate: {rate}` is not possible");
            let help =
                format!("write samples a second from {} to {}, such as 16000", RATES.start(), RATES.end());
            errors.push(
                Diagnostic::error("E0606", message).at(options.sample_rate.span.clone()).with_help(help),
            );
            return Err(errors);
        }
        let mut count = |found: Result<usize, Diagnostic>| found.map_err(|error| errors.push(error)).ok();
        let length = count(samples(&options.length, rate, "a window"));
        let every = options.every.as_ref().map(|every| count(samples(every, rate, "a step")));
        let before = count(silence(options.before.as_ref(), rate));
        let after = count(silence(options.after.as_ref(), rate));
        let ([Some(length), Some(before), Some(after)], Some(every)) =
            ([length, before, after], every.unwrap_or(length))
        else {
            return Err(errors);
        };
        if let Some(span) = options.before.as_ref().filter(|_| before >= length) {
            let message = format!("silence of {span} before a sound fills windows of {}", options.length);
            let help = "write less than `length`";
            errors.push(Diagnostic::error("E0606", message).at(span.span.clone()).with_help(help));
        }
        let pads = options.last.as_ref().filter(|last| last.value == Last::Pad);
        let at_end = pads.map(|last| (&last.span, "`last: pad`"));
        let at_end = at_end.or_else(|| Some((&options.after.as_ref()?.span, "`after`")));
        if let (Some(_), Some((span, what))) = (&options.key, at_end) {
            let message =
                format!("{what} is at the end of a sound, but with `key` the next sound continues it");
            let help = "leave it out, or `key` if each sound is by itself";
            errors.push(Diagnostic::error("E0606", message).at(span.clone()).with_help(help));
        }
        let mut place = |name: &Located<String>, expected: &str, wanted: ColumnType| {
            port.column(context.id, 0, name, expected, |found| *found == wanted).map_or_else(
                |error| {
                    errors.push(error);
                    0
                },
                |(index, _)| index,
            )
        };
        let audio = place(&options.audio, "audio", ColumnType::Audio);
        let key = options.key.as_ref().map(|key| place(key, "text", ColumnType::Text));
        let number = options.number.as_ref().map(|number| place(number, "int64", ColumnType::Int64));
        if let (None, Some(number)) = (key, &options.number) {
            let error = Diagnostic::error("E0606", "sounds are counted by `key`, which is not there");
            errors.push(
                error.at(number.span.clone()).with_help("write `key: microphone` too, or leave out `number`"),
            );
        }
        let kept: Vec<usize> = (0..port.stream.columns.len()).filter(|index| *index != audio).collect();
        for name in ["start", "samples"] {
            if kept.iter().any(|index| port.stream.columns[*index].name == name) {
                let message = format!("slices `{}` has two output columns `{name}`", context.id);
                let help =
                    format!("put a `map` before it that leaves the column `{name}` of `{}` out", port.from);
                errors.push(Diagnostic::error("E0606", message).at(port.span.clone()).with_help(help));
            }
        }
        errors.into_result(())?;
        let columns = kept.iter().map(|index| port.stream.columns[*index].clone());
        let own = [
            Column::new("start", ColumnType::Float64),
            Column::new("samples", ColumnType::Tensor { element: ElementType::Float32, shape: vec![length] }),
        ];
        let output = StreamType::new(columns.chain(own));
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            rate,
            length,
            every,
            before,
            after,
            pads: pads.is_some(),
            audio,
            key,
            number,
            kept,
            input: record_schema(&port.stream),
            output: record_schema(&output),
        });
        Ok((output, Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup))))))))
    }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
