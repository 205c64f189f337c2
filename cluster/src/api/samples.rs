//! The newest records of the sinks of a run, for display.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Recent records of the sinks of a run. A sample of each sink, not a copy of its output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplesView {
    /// The workflow forbids to show records: `samples: off` in its `run`.
    pub is_off: bool,
    /// Samples by sink.
    pub sinks: Vec<SinkSamples>,
}

/// Records of a sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SinkSamples {
    /// The sink.
    pub sink: String,
    /// Samples, the newest first.
    pub samples: Vec<SampleView>,
}

/// A record and its origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleView {
    /// Number of the sample, in the order of arrival.
    pub number: u64,
    /// Milliseconds from the intended emission to the arrival.
    pub latency_ms: f64,
    /// Whether the record is right, if the sink has ground truth for it.
    pub is_right: Option<bool>,
    /// Values of the record and of its source records.
    pub values: Vec<SampleValue>,
    /// Pictures and sounds of these records.
    pub media: Vec<SampleMedium>,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampleValue {
    /// The source of the record; none: the record at the sink.
    pub source: Option<String>,
    /// The column.
    pub name: String,
    /// Text of the value, truncated if it is long.
    pub value: String,
}

/// A picture or a sound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampleMedium {
    /// The source of the record; none: the record at the sink.
    pub source: Option<String>,
    /// The column.
    pub name: String,
    /// `image/jpeg`, `image/png`, `image/webp`, `image/bmp`, `image/gif`, `audio/wav`, `audio/flac`, `audio/ogg` or
    /// `audio/mpeg`, by its first bytes; none: another format, which is not sent.
    pub media_type: Option<String>,
    /// Its size.
    pub bytes: u64,
    /// The bytes in base64; empty without a type.
    pub base64: String,
}
