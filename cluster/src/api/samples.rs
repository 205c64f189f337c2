//! The newest records of the sinks of a run, to be looked at.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What came to the sinks of a run of late. A few records of each, now and then one more: it is no copy of the output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplesView {
    /// The workflow says that no records are to be shown: `samples: off` of its `run`.
    pub is_off: bool,
    /// By sink.
    pub sinks: Vec<SinkSamples>,
}

/// Records of a sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SinkSamples {
    /// The sink.
    pub sink: String,
    /// The newest first.
    pub samples: Vec<SampleView>,
}

/// A record, and what it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleView {
    /// Grows with the time at which it came.
    pub number: u64,
    /// Milliseconds from the intended emission to the arrival.
    pub latency_ms: f64,
    /// Right or wrong, where the sink has ground truth for it.
    pub is_right: Option<bool>,
    /// Values of the record, and of the source records that it came from.
    pub values: Vec<SampleValue>,
    /// Pictures and sounds of them.
    pub media: Vec<SampleMedium>,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampleValue {
    /// The source whose record has it; none: the record that came to the sink.
    pub source: Option<String>,
    /// The column.
    pub name: String,
    /// As text, which is cut where it is long.
    pub value: String,
}

/// A picture or a sound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampleMedium {
    /// The source whose record has it; none: the record that came to the sink.
    pub source: Option<String>,
    /// The column.
    pub name: String,
    /// `image/jpeg`, `image/png` or `audio/wav`, as its first bytes say; none: something else, which is not sent.
    pub media_type: Option<String>,
    /// Its size.
    pub bytes: u64,
    /// The bytes in base64; empty where there is no type.
    pub base64: String,
}
