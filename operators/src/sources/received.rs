//! Lines that are received over the network: the side of the reader, for the kinds of this crate and of others.
//!
//! A kind gives a [`LineStream`], which writes whole lines into a pipe; [`bind`] makes a source of it that parses them as
//! [`super::jsonl`] does, with its options, dead letters and journal.
pub use super::event_time::TimeUnit;
use super::input::Origin;
use super::jsonl::JsonlFormat;
pub use super::jump::MaxJump;
use super::table::{self, Options};
use crate::api::{BoundSource, Unread};
pub use crate::columns::DeclaredType;
use crate::kind::EndContext;
use std::fs::File;
use std::io;
use std::sync::Arc;
use tidemill_journal::Journal;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Gives lines through a pipe.
pub trait LineStream: Send + Sync {
    /// Describes it, for messages and positions: "connections to `:4100`".
    fn in_words(&self) -> String;

    /// Starts to write lines; returns the pipe to read them from. `is_journalled`: [`LineStream::journalled`] follows.
    ///
    /// # Errors
    /// It cannot start.
    fn open(&self, is_journalled: bool) -> io::Result<File>;

    /// Tells that this journal, from its present end on, takes the bytes of the pipe that was opened last.
    fn journalled(&self, journal: &Arc<Journal>) {
        let _ = journal;
    }

    /// The fate of data that was sent and is not in the journal yet, if the process dies.
    fn unread(&self) -> Unread;
}

/// The options of lines, as the kind `jsonl` has them.
#[derive(Debug)]
pub struct LineOptions {
    /// Place of the stream in the workflow, for findings.
    pub place: Located<String>,
    /// Columns with their types, as written.
    pub columns: Value,
    /// Column with the event time.
    pub event_time: Option<Located<String>>,
    /// Unit of event times that are numbers.
    pub time_unit: Option<Located<TimeUnit>>,
    /// Zone of event times in text without a zone.
    pub time_zone: Option<Located<String>>,
    /// Longest time by which a record may be older than the newest event time.
    pub out_of_order: TimeSpan,
    /// How far ahead of the newest event time a record may be.
    pub max_jump: MaxJump,
    /// Longest record.
    pub max_line: Bytes,
}

/// Binds a source of lines with a JSON object each. `options`: all options of the source.
///
/// # Errors
/// All errors in the columns and the event time, each at its place.
pub fn bind(
    kind: &str,
    context: &EndContext<'_>,
    options: &Value,
    lines: LineOptions,
    stream: Arc<dyn LineStream>,
) -> Result<BoundSource, Diagnostics> {
    table::have_event_time(options)?;
    let LineOptions { place, columns, event_time, time_unit, time_zone, out_of_order, max_jump, max_line } =
        lines;
    let options = Options {
        path: place,
        stream: None,
        columns,
        event_time,
        time_unit,
        time_zone,
        out_of_order,
        max_jump,
        max_line,
    };
    table::bind_origin(kind, context, &options, false, JsonlFormat::default, Origin::received(stream))
}
