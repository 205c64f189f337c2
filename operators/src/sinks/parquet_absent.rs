//! Stands in for the writers of Parquet files in a build without the feature `formats`.
use super::parquet::Parquet;
use super::rows::Rows;
use super::text_file::FileOptions;
use crate::api::{BoundSink, OperatorError};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use std::path::Path;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};

/// Refuses the sink.
pub(super) fn bound(
    context: &EndContext<'_>,
    _: &InputPort,
    _: &FileOptions,
    _: Rows,
) -> Result<BoundSink, Diagnostics> {
    let message = format!("sink `{}`: this build lacks the kind `{}`", context.id, Parquet::KIND);
    Err(Diagnostic::error("E0604", message)
        .at(context.id.span.clone())
        .with_help(
            "build the command with `cargo build -p tidemill --features formats`, or take a `jsonl` or `csv` sink",
        )
        .into())
}

/// Has nothing to check: there is no such sink.
pub(super) fn check(_: &Path, _: &[u8]) -> Result<(), OperatorError> {
    Ok(())
}
