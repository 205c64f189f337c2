//! `tail`: the lines of a text file that grows, such as a log.
//!
//! ```yaml
//! - id: visits
//!   kind: tail
//!   options:
//!     path: /var/log/shop/visits.jsonl
//!     columns: {page: text, at: text, seconds: float64}
//!     event_time: at
//!     idle: 5s              # after so long without a line, event times follow the clock
//! ```
//! `format` is `jsonl` (the default), `csv`, or `lines`: then there is one column of type text, which gets the line. Columns,
//! `event_time`, `time_unit`, `time_zone`, `out_of_order`, `max_jump`, `max_line` and dead letters are those of `csv` and
//! `jsonl`. The source is live and never ends. Lines are read from the beginning of the file; a last line without a line break
//! is read when that comes. The file need not exist yet.
//!
//! | what happens | what is read |
//! |---|---|
//! | the file is renamed and another one takes its place (rotation) | the old one until the new one has something and nothing was added for a second, its last line even without a line break; then the new one |
//! | it is truncated, or written anew (`copytruncate`) | it, from its beginning; what was not read before is lost |
//! | the run continues from its state | from the position on: found by device, number and first bytes, also under another name in the folder |
//! | ... and the file of before is gone | the present one from its beginning |
//!
//! Each of these is a warning. A run with a state needs no journal. While nothing comes, the run goes on: a source that is
//! joined with this one waits only for its event times, and with `idle` not longer than that.
//!
//! ```
//! use tidemill_operators::api::{SourcePromise, SourceRead};
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("a.log"), "started\nstopp").unwrap();
//! let id = "log".into();
//! let context = EndContext::new(&id, folder.path());
//! let yaml = "path: a.log\nformat: lines\ncolumns: {line: text}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
//! let log = Registry::builtin().source("tail").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(log.promise(), SourcePromise::Replayable);
//! let mut reader = (log.make)().unwrap();
//! let payload = loop {
//!     match reader.read(8, 1 << 20).unwrap() {
//!         SourceRead::Rows { payload, .. } => break payload,
//!         _ => {} // nothing came for a while
//!     }
//! };
//! assert_eq!(payload.num_rows(), 1);
//! ```
use super::cells::Refusal;
use super::csv::CsvFormat;
use super::event_time::TimeUnit;
use super::jsonl::JsonlFormat;
use super::jump::MaxJump;
use super::lines::Lines;
use super::table::{self, Fields, Format, growing};
use crate::api::BoundSource;
use crate::columns::DeclaredType;
use crate::kind::{EndContext, SourceKind};
use crate::relational::expression::Cell;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::str;
use std::time::Duration;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::Column;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::{Node, Value};

/// The kind `tail`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Tail;

/// Format of the lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TailFormat {
    /// A JSON object each.
    #[default]
    Jsonl,
    /// Rows of CSV; the first line of each file names the columns.
    Csv,
    /// Any text.
    Lines,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TailOptions {
    /// The file, relative to the workflow file. It need not exist yet.
    path: Located<String>,
    /// `jsonl`: a JSON object per line; `csv`: the first line of each file names the columns; `lines`: each line is a text.
    /// Default: jsonl.
    #[serde(default)]
    format: TailFormat,
    /// Columns to read, each with its type: int64, float64, text, bool or a tensor such as "tensor<float32>[8]". With `format: lines` one, of type text.
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    columns: Value,
    /// Column with the event time, of type int64 or float64, or of type text with times such as `2026-03-29T01:59:59Z`. Default: none;
    /// record number i has the time i milliseconds.
    #[serde(default)]
    event_time: Option<Located<String>>,
    /// Unit of event times that are numbers, counted from 1970: s, ms, us or ns. Default: ms.
    #[serde(default)]
    time_unit: Option<Located<TimeUnit>>,
    /// Zone of event times in text without a zone: an offset such as `+01:00`, or `Z` for UTC. Default: none; a time
    /// without a zone is a dead letter.
    #[serde(default)]
    time_zone: Option<Located<String>>,
    /// Longest time by which a record may be older than the newest event time. Default: 0s.
    #[serde(default)]
    out_of_order: TimeSpan,
    /// How far ahead of the newest event time so far a record may be if the next good record does not confirm it; a
    /// record that is further ahead is a dead letter. At least `out_of_order`. `none`: any. Default: 365d.
    #[serde(default)]
    max_jump: MaxJump,
    /// Time without a line after which event times follow the clock of this machine: lines that are older than `idle` and
    /// `out_of_order` are late then. Default: none; event times follow the lines only.
    #[serde(default)]
    idle: Option<Located<TimeSpan>>,
    /// Longest record; longer ones are skipped. A line longer than 1GiB ends the run. Default: 8MiB.
    #[serde(default = "default_max_line")]
    max_line: Bytes,
}

fn default_max_line() -> Bytes {
    Bytes(8 << 20)
}

fn wrong(text: &str, help: &str) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

impl SourceKind for Tail {
    fn kind(&self) -> &'static str {
        "tail"
    }

    fn summary(&self) -> &'static str {
        "The lines of a text file that grows, such as a log."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(TailOptions)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { is_live: true, ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "can be read, if it is there"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let read: TailOptions = options.deserialize_into()?;
        table::have_event_time(options)?;
        check(&read)?;
        let idle = read.idle.as_ref().map(|idle| Duration::from_nanos(idle.value.0));
        let of_file = table::Options {
            path: read.path,
            stream: None,
            columns: read.columns,
            event_time: read.event_time,
            time_unit: read.time_unit,
            time_zone: read.time_zone,
            out_of_order: read.out_of_order,
            max_jump: read.max_jump,
            max_line: read.max_line,
        };
        match read.format {
            TailFormat::Jsonl => {
                growing::bind(self.kind(), context, &of_file, (false, idle), JsonlFormat::default)
            }
            TailFormat::Csv => growing::bind(self.kind(), context, &of_file, (true, idle), CsvFormat::new),
            TailFormat::Lines => growing::bind(self.kind(), context, &of_file, (false, idle), || LineFormat),
        }
    }
}

fn check(read: &TailOptions) -> Result<(), Diagnostics> {
    if let (Some(idle), None) = (&read.idle, &read.event_time) {
        let help = "name the column with the event time, as in `event_time: at`, or leave this out";
        return Err(wrong("`idle` has no effect without `event_time`", help).at(idle.span.clone()).into());
    }
    if read.format != TailFormat::Lines {
        return Ok(());
    }
    let is_one_text = match &read.columns.node {
        Node::Map(entries) => matches!(&entries[..], [entry] if entry.value.as_str() == Some("text")),
        _ => true, // reported with its other errors
    };
    if !is_one_text {
        let error =
            wrong("with `format: lines` there is one column, of type text", "write `columns: {line: text}`");
        return Err(error.at(read.columns.span.clone()).into());
    }
    if let Some(time) = &read.event_time {
        let help = "leave it out, or write `format: jsonl` or `format: csv`";
        return Err(wrong("a whole line is no event time", help).at(time.span.clone()).into());
    }
    Ok(())
}

/// Each line is the value of the only column.
struct LineFormat;

impl Format for LineFormat {
    fn start(&mut self, _: &mut Lines, _: &[Column]) -> Result<(), (String, String)> {
        Ok(())
    }

    fn parse(&mut self, record: &[u8], _: &[Column], fields: &mut Fields) -> Result<(), Refusal> {
        let text = str::from_utf8(record).map_err(|error| {
            ("invalid_utf8", format!("byte {} of the line is not UTF-8", error.valid_up_to() + 1))
        })?;
        fields.push(Cell::Text(text));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
