//! Shared parts of file sinks: their options, and for text formats everything but the format.
use super::appending;
use super::rows::Rows;
use super::staging::Staging;
use super::stream::{Printer, Stream};
use crate::api::{BoundSink, Flush, MakeDurableSink, OperatorError, Sink};
use crate::kind::{EndContext, InputPort};
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;

/// Options of the file sinks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileOptions {
    /// The file, relative to the workflow file; `-` is standard output, where rows are text.
    pub(super) path: Located<String>,
    /// Columns to write, in this order. Default: all.
    #[serde(default)]
    pub(super) columns: Option<Vec<Located<String>>>,
    /// Whether to write `_id` and `_time` (event time, microseconds) too. Default: false.
    #[serde(default)]
    pub(super) metadata: bool,
    /// Whether to replace the file of an earlier run; if not, an existing file is an error. Default: true.
    #[serde(default = "yes")]
    pub(super) overwrite: bool,
    /// Treatment of the file of an earlier run. Default: replace.
    #[serde(default)]
    pub(super) mode: Located<Mode>,
}

/// Treatment of the file of an earlier run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// Replaces it.
    #[default]
    Replace,
    /// Continues it, after the rows of runs that are complete. Text files only.
    Append,
}

fn yes() -> bool {
    true
}

/// Text form of rows.
pub(super) trait TextFormat: Send + Sync {
    /// Appends the header.
    fn header(&self, rows: &Rows, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        let _ = (rows, out);
        Ok(())
    }
    /// Appends the rows of a batch.
    fn append(&self, rows: &Rows, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), OperatorError>;
    /// Whether a file ends with a whole row.
    fn is_whole(&self, file: &File) -> io::Result<bool> {
        appending::ends_with_line_break(file)
    }
    /// Number of whole rows at the start of a text that `append` made.
    fn rows_in(&self, text: &[u8]) -> u64 {
        text.iter().filter(|byte| **byte == b'\n').count() as u64
    }
}

/// A sink that prints rows in this format.
pub(super) fn print(
    kind: &str,
    rows: Rows,
    format: Arc<dyn TextFormat>,
    context: &EndContext<'_>,
    input: &InputPort,
) -> BoundSink {
    let make = move || {
        let printer = Printer::new(rows.clone(), Arc::clone(&format), Stream::standard_output()?);
        Ok(Box::new(printer) as Box<dyn Sink>)
    };
    BoundSink { is_standard_output: true, ..context.sink(kind, input, Vec::new(), Arc::new(make)) }
}

/// A sink that writes a file in this format.
pub(super) fn bind(
    kind: &str,
    format: impl TextFormat + 'static,
    context: &EndContext<'_>,
    input: &InputPort,
    options: &FileOptions,
) -> Result<BoundSink, Diagnostics> {
    let rows = Rows::choose(context, input, options.columns.as_deref(), options.metadata)?;
    let format: Arc<dyn TextFormat> = Arc::new(format);
    if options.path == "-" {
        return Ok(print(kind, rows, format, context, input));
    }
    let (path, overwrite) = (context.path(&options.path), options.overwrite);
    let appends = options.mode.value == Mode::Append;
    if appends && !overwrite {
        let message = "`overwrite: false` requires that there is no file, but `mode: append` continues it";
        let error = Diagnostic::error("E0606", message).at(options.mode.span.clone());
        return Err(error.with_help("remove `overwrite`, or write `mode: replace`").into());
    }
    let files = vec![path.clone()];
    let is_continued = !is_stream(&path);
    let durable: MakeDurableSink = Arc::new(move |token| {
        let staging = match token {
            Some(token) => Staging::resume(&path, token)?,
            None if is_stream(&path) => {
                let printer = Printer::new(rows.clone(), Arc::clone(&format), Stream::open(&path)?);
                return Ok(Box::new(printer) as Box<dyn Sink>);
            }
            None => {
                let mut header = Vec::new();
                format.header(&rows, &mut header)?;
                match appends {
                    true => appending::open(&path, &header, |file| format.is_whole(file))?,
                    false => {
                        let mut staging = Staging::begin(&path, overwrite, &header)?;
                        // Not staged, because a rollback must not remove the header.
                        staging.buffer().append(&mut header);
                        staging.commit()?;
                        staging
                    }
                }
            }
        };
        let writer = Writer { rows: rows.clone(), format: Arc::clone(&format), staging };
        Ok(Box::new(writer) as Box<dyn Sink>)
    });
    let make = Arc::clone(&durable);
    let sink = context.sink(kind, input, files, Arc::new(move || make(None)));
    Ok(BoundSink { durable: is_continued.then_some(durable), ..sink })
}

/// Whether the path is a pipe or a device, where rows are written at once and cannot be removed.
fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

struct Writer {
    rows: Rows,
    format: Arc<dyn TextFormat>,
    staging: Staging,
}

impl Sink for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.format.append(&self.rows, batch, self.staging.buffer())?;
        self.staging.spill()
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        self.staging.commit()
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staging.rollback()
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.staging.close()
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        self.staging.token()
    }

    fn flush(&self) -> Option<Flush> {
        self.staging.flush()
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        // The part that the last token covers is flushed, the rest is cut off.
        self.staging.release()
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        // A token takes back every later commit.
        Publication::EachEpoch
    }
}
