//! `tally`: how often each value of a text column came, as one JSON object that appears when the run ends.
//!
//! ```yaml
//! - {id: sizes, kind: tally, input: sized, options: {path: out/sizes.json, column: size}}
//! ```
//! Exactly once: another process continues with the counts of the last checkpoint. Empty values are not counted.
//! ```
//! use tidemill_extension::tally::Tally;
//! use tidemill_operators::registry::{Registry, register_sink};
//! register_sink(Tally);
//! assert_eq!(Registry::builtin().facts().sink("tally").writes, ["path"]);
//! ```
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use tidemill_operators::api::{BoundSink, MakeDurableSink, OperatorError, Sink};
use tidemill_operators::kind::{EndContext, InputPort, TypedSinkKind};
use tidemill_operators::record::{METADATA_COLUMNS, text};
use tidemill_operators::sinks::whole_file::WholeFile;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;
use tidemill_spec::types::ColumnType;

/// The kind `tally`; see the module.
pub struct Tally;

/// Options of `tally`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The file, relative to the workflow file.
    path: Located<String>,
    /// A text column of the input.
    column: Located<String>,
}

impl TypedSinkKind for Tally {
    type Options = Options;
    const KIND: &'static str = "tally";
    const SUMMARY: &'static str = "How often each value of a column came, as a JSON object.";
    const FACTS: SinkFacts = SinkFacts { publication: Publication::AtEnd, ..SinkFacts::DEFAULT };

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let is_text = |found: &ColumnType| *found == ColumnType::Text;
        let (index, _) = input.column(context.id, 0, &options.column, "text", is_text)?;
        let (path, column) = (context.path(&options.path), METADATA_COLUMNS + index);
        let files = vec![path.clone()];
        let durable: MakeDurableSink = Arc::new(move |token| Ok(Box::new(open(&path, column, token)?)));
        let (make, durable) = (Arc::clone(&durable), Some(durable));
        Ok(BoundSink { durable, ..context.sink(Self::KIND, input, files, Arc::new(move || make(None))) })
    }
}

/// A sink that counts. Its token is the counts themselves.
struct Counts {
    column: usize,
    file: Option<WholeFile>,
    committed: BTreeMap<String, u64>,
    staged: BTreeMap<String, u64>,
}

fn failed(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(format!("tally: {error}"))
}

fn open(path: &std::path::Path, column: usize, token: Option<&[u8]>) -> Result<Counts, OperatorError> {
    let committed = token.map(serde_json::from_slice).transpose().map_err(failed)?.unwrap_or_default();
    Ok(Counts { column, file: Some(WholeFile::create(path, true)?), committed, staged: BTreeMap::new() })
}

impl Sink for Counts {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let values = text(batch.column(self.column)).ok_or_else(|| failed("the column is no text"))?;
        values.iter().flatten().for_each(|value| *self.staged.entry(value.to_owned()).or_default() += 1);
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        let staged = std::mem::take(&mut self.staged).into_iter();
        staged.for_each(|(value, count)| *self.committed.entry(value).or_default() += count);
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staged.clear();
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let object = serde_json::to_string(&self.committed).map_err(failed)?;
        file.content().and_then(|mut content| writeln!(content, "{object}")).map_err(failed)?;
        file.finish()
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        serde_json::to_vec(&self.committed).map(Some).map_err(failed)
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.file = None;
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        Publication::AtEnd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::StringArray;
    use tidemill_operators::record::{first_records, payload_schema};
    use tidemill_spec::types::{Column, StreamType};

    #[test]
    fn another_process_continues_with_the_counts_of_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out/tally.json");
        let stream = StreamType::new([Column::new("size", ColumnType::Text)]);
        let sizes = Arc::new(StringArray::from(vec![Some("large"), None, Some("small"), Some("large")]));
        let payload = RecordBatch::try_new(payload_schema(&stream), vec![sizes]).unwrap();
        let rows = first_records(&payload).unwrap();
        let mut first = open(&path, METADATA_COLUMNS, None).unwrap();
        first.write(&rows).and_then(|()| first.commit(1)).unwrap();
        let token = first.token().unwrap();
        first.write(&rows).and_then(|()| first.suspend()).unwrap();
        assert!(!path.exists(), "it appears at the end");
        let mut second = open(&path, METADATA_COLUMNS, token.as_deref()).unwrap();
        second.write(&rows).and_then(|()| second.rollback()).unwrap();
        second.write(&rows.slice(0, 1)).and_then(|()| second.commit(2)).unwrap();
        second.close().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"large\":3,\"small\":1}\n");
    }
}
