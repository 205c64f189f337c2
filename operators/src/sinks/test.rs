//! Helpers for tests of all sinks.
use crate::api::BoundSink;
use crate::kind::{EndContext, InputPort, SinkKind};
use crate::testing::{id, options};
use std::path::Path;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Span;
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// The type of the rows that are written.
pub(crate) fn answers() -> StreamType {
    StreamType::new([Column::new("key", ColumnType::Text), Column::new("n", ColumnType::Int64)])
}

/// Binds a sink in a folder.
pub(crate) fn bind(kind: &dyn SinkKind, base: &Path, yaml: &str) -> Result<BoundSink, Diagnostics> {
    let port = InputPort { from: "answer".into(), stream: answers(), span: Span::nowhere() };
    kind.bind(&EndContext::new(&id("sink"), base), &port, &options(yaml))
}
