//! Options of the sources of rows.
use crate::columns::DeclaredType;
use crate::sources::event_time::TimeUnit;
use crate::sources::input::Lasts;
use crate::sources::jump::MaxJump;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Options of both kinds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::sources) struct Options {
    /// The file, relative to the workflow file, plain or compressed with gzip or zstd; `-` is standard input. A pipe, a
    /// device and standard input can be read only once.
    pub(in crate::sources) path: Located<String>,
    /// The path is a pipe, a device or a socket of the machine that reads it, and need not exist before: with
    /// `until_end`, its end is the end of the source; with `forever`, a named pipe has no end, even if writers come and
    /// go. Default: decided by the file.
    #[serde(default)]
    pub(in crate::sources) stream: Option<Lasts>,
    /// Columns to read, each with its type: int64, float64, text, bool or a tensor such as "tensor<float32>[8]".
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    pub(in crate::sources) columns: Value,
    /// Column with the event time, of type int64 or float64, or of type text with times such as `2026-03-29T01:59:59Z`. Default: none;
    /// record number i has the time i / `rate`, or i milliseconds without a rate.
    #[serde(default)]
    pub(in crate::sources) event_time: Option<Located<String>>,
    /// Unit of event times that are numbers, counted from 1970: s, ms, us or ns. Default: ms.
    #[serde(default)]
    pub(in crate::sources) time_unit: Option<Located<TimeUnit>>,
    /// Zone of event times in text without a zone: an offset such as `+01:00`, or `Z` for UTC. Default: none; a time
    /// without a zone is a dead letter.
    #[serde(default)]
    pub(in crate::sources) time_zone: Option<Located<String>>,
    /// Longest time by which a record may be older than the newest event time. Default: 0s.
    #[serde(default)]
    pub(in crate::sources) out_of_order: TimeSpan,
    /// How far ahead of the newest event time so far a record may be if the next good record does not confirm it; a
    /// record that is further ahead is a dead letter. At least `out_of_order`. `none`: any. Default: 365d.
    #[serde(default)]
    pub(in crate::sources) max_jump: MaxJump,
    /// Longest record; longer ones are skipped. A line longer than 1GiB ends the run. Default: 8MiB.
    #[serde(default = "default_max_line")]
    pub(in crate::sources) max_line: Bytes,
}

/// Options that refer to the event time.
const OF_EVENT_TIMES: [&str; 4] = ["time_unit", "time_zone", "out_of_order", "max_jump"];

/// Refuses options that refer to the event time if there is none.
pub(in crate::sources) fn have_event_time(options: &Value) -> Result<(), Diagnostics> {
    if options.get("event_time").is_some_and(|name| !name.is_null()) {
        return Ok(());
    }
    let mut errors = Diagnostics::new();
    for entry in OF_EVENT_TIMES.iter().filter_map(|name| options.entry(name)) {
        let message = format!("`{}` has no effect without `event_time`", entry.key);
        errors.push(
            Diagnostic::error("E0606", message).at(entry.key.span.clone()).with_help(
                "name the column with the event time, as in `event_time: at`, or leave this out: records without an \
                 event time have the time of their number",
            ),
        );
    }
    errors.into_result(())
}

fn default_max_line() -> Bytes {
    Bytes(8 << 20)
}
