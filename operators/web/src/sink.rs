//! `http`: results as answers to the requests of a source `http`.
//!
//! ```yaml
//! - {id: answers, kind: http, input: classify, options: {answers: requests, columns: [label, score]}}
//! ```
//! A row is the answer of the request from whose record it comes, through operators of any kind; a row of a join answers the
//! request of its first input. The first row of a record is its answer, at once. With `rows: all` the answer has all rows of
//! the record, as a JSON array where there are several, when their epoch is complete (a tick later).
//!
//! A client that is gone gets nothing. After a restart a row may come again; it is answered once.
//!
//! Source and sink run in one process: a plan that separates them fails with the first row.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_web::register(&mut registry);
//! let stream = StreamType::new([Column::new("label", ColumnType::Text)]);
//! let port = InputPort { from: "classify".into(), stream, span: Span::nowhere() };
//! let id = "answers".into();
//! let context = EndContext::new(&id, std::path::Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "answers: requests")).unwrap();
//! let sink = registry.sink("http").unwrap().bind(&context, &port, &options).unwrap();
//! assert_eq!(sink.answers.as_ref().unwrap().as_str(), "requests");
//! ```
use crate::desk::Desk;
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_operators::api::{BoundSink, OperatorError, Sink};
use tidemill_operators::kind::{EndContext, InputPort, TypedSinkKind};
use tidemill_operators::record::Metadata;
use tidemill_operators::sinks::rows::Rows;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;

/// The kind `http`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Http;

/// Options of the sink `http`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Source of kind `http` whose requests it answers.
    answers: Located<String>,
    /// Columns of an answer, in this order. Default: all.
    #[serde(default)]
    columns: Option<Vec<Located<String>>>,
    /// Whether to write `_id` and `_time` (event time, microseconds) too. Default: false.
    #[serde(default)]
    metadata: bool,
    /// `one`: the first row of a record is its answer; `all`: all of its rows are. Default: one.
    #[serde(default)]
    rows: Which,
}

/// Rows of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Which {
    /// The first one, at once.
    #[default]
    One,
    /// All of them, when their epoch is complete.
    All,
}

impl TypedSinkKind for Http {
    type Options = Options;
    const KIND: &'static str = "http";
    const FACTS: SinkFacts =
        SinkFacts { publication: Publication::OnArrival, writes: &[], ..SinkFacts::DEFAULT };
    const SUMMARY: &'static str = "Answers to the requests of a source `http`.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let rows = Rows::choose(context, input, options.columns.as_deref(), options.metadata)?;
        let desk = Desk::of(context.base, &options.answers);
        let (is_first, source) = (options.rows == Which::One, options.answers.value.clone());
        let make = Arc::new(move || {
            let (desk, rows, source) = (Arc::clone(&desk), rows.clone(), source.clone());
            Ok(Box::new(Replies { desk, rows, is_first, source, text: Vec::new() }) as Box<dyn Sink>)
        });
        Ok(BoundSink {
            answers: Some(options.answers),
            ..context.sink(<Self as TypedSinkKind>::KIND, input, Vec::new(), make)
        })
    }
}

struct Replies {
    desk: Arc<Desk>,
    rows: Rows,
    is_first: bool,
    source: String,
    text: Vec<u8>,
}

impl Sink for Replies {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        if !self.desk.is_here() {
            return Err(OperatorError::new(format!(
                "requests of `{}` come to another process: place the source and this sink on one worker",
                self.source
            )));
        }
        self.text.clear();
        self.rows.json(batch, &mut self.text)?;
        let metadata = Metadata::of(batch);
        // An object has no line break.
        for (row, text) in self.text.split(|byte| *byte == b'\n').take(batch.num_rows()).enumerate() {
            let (source, sequence) = (metadata.sources.value(row), metadata.sequences.value(row));
            self.desk.answer(source, sequence, text, self.is_first);
        }
        Ok(())
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        self.desk.complete(epoch);
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        false
    }

    fn publication(&self) -> Publication {
        Publication::OnArrival
    }
}
