//! Sources and sinks of a workflow.
use super::choice::port;
use super::{rest, truth};
use crate::api::{BoundSink, BoundSource, OperatorError, SourceInput};
use crate::kind::{EndContext, Step};
use crate::registry::{Registry, Role};
use crate::sources::repeat::repeated;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, StreamType};
use tidemill_spec::workflow::{Sink, Source, Workflow};

/// The error for an unknown kind.
pub(super) fn unknown_kind<'a>(
    what: &str,
    kind: &Located<String>,
    registry: &'a Registry,
    role: Role,
) -> Diagnostics {
    let kinds: Vec<&'a str> = registry.kinds().iter().filter(|k| k.role == role).map(|k| k.kind).collect();
    Diagnostic::error("E0604", format!("there is no {what} kind `{kind}`"))
        .at(kind.span.clone())
        .with_help(suggestion(kind, kinds, &format!("{what} kinds")))
        .into()
}

/// Binds a source, with the common settings of all sources.
pub(super) fn bind_source(
    source: &Source,
    registry: &Registry,
    workflow: &Workflow,
    step: Step,
) -> Result<BoundSource, Diagnostics> {
    let Some(kind) = registry.source(&source.kind) else {
        return Err(unknown_kind("source", &source.kind, registry, Role::Source));
    };
    let context = EndContext { step, ..EndContext::new(&source.id, &workflow.directory.0) };
    let mut bound = rest::bind(&source.options, |options| kind.bind(&context, options))?;
    // Through a journal it is a stream, whose records can be read again.
    bound.live = kind.facts().is_live && (source.journal.is_none() || bound.journalled.is_none());
    if let Some(key) = &source.key {
        check_key(&source.id, key, &bound.output)?;
        bound.key = Some(key.value.clone());
    }
    bound.rate_per_second = source.rate.as_ref().map(|rate| rate.0);
    if bound.live && bound.journalled.is_none() && source.journal.is_some() {
        return Err(no_journal(source, bound.rereads).into());
    }
    bound.journal.clone_from(&source.journal);
    if step == Step::Check {
        let text = format!("source `{}` was checked, but not opened here", source.id);
        bound.make = Arc::new(move || Err(OperatorError::new(text.clone())));
        bound.input = None;
    }
    if source.repeat {
        bound.make = repeated(Arc::clone(&bound.make));
        bound.input = bound.input.map(SourceInput::repeated);
        bound.has_event_times = false; // they begin again with each lap
    }
    Ok(bound)
}

/// The error for a journal of a live source that cannot be read through one.
fn no_journal(source: &Source, rereads: bool) -> Diagnostic {
    let text = format!(
        "source `{}` has a journal, but one of kind `{}` cannot be read through it",
        source.id, source.kind
    );
    let error = Diagnostic::error("E0613", text).with_help(match rereads {
        true => "leave out `journal`: it is read again from where it was",
        false => "leave out `journal`: what it has given and a fault loses is not given again",
    });
    // A line with an address may have a password.
    match source.id.span.line_text() {
        Some(line) if line.contains("://") => error,
        _ => error.at(source.id.span.clone()),
    }
}

fn check_key(source: &str, key: &Located<String>, output: &StreamType) -> Result<(), Diagnostic> {
    let names = output.columns.iter().map(|c| c.name.as_str());
    match output.column(key).map(|c| &c.column_type) {
        Some(ColumnType::Text | ColumnType::Int64 | ColumnType::Bool) => Ok(()),
        Some(other) => Err(Diagnostic::error(
            "E0601",
            format!("the key `{key}` of `{source}` is {other}, expected text, int64 or bool"),
        )
        .at(key.span.clone())
        .with_help("leave out `key`, then the records are spread by their number")),
        None => Err(Diagnostic::error("E0605", format!("source `{source}` has no column `{key}`"))
            .at(key.span.clone())
            .with_help(suggestion(key, names, "columns of the source"))),
    }
}

/// Binds a sink; its ground truth may be bound at another step.
pub(super) fn bind_sink(
    sink: &Sink,
    registry: &Registry,
    workflow: &Workflow,
    stream: StreamType,
    (step, step_of_truth): (Step, Step),
) -> Result<BoundSink, Diagnostics> {
    let Some(kind) = registry.sink(&sink.kind) else {
        return Err(unknown_kind("sink", &sink.kind, registry, Role::Sink));
    };
    let context = EndContext { step, ..EndContext::new(&sink.id, &workflow.directory.0) };
    let port = port(&sink.input, stream);
    if !kind.accepts_revisions() {
        port.only_adds(&sink.id, &sink.kind, || registry.takers_of_corrections())?;
    }
    let of_truth = EndContext { step: step_of_truth, ..context };
    let truth = sink.ground_truth.as_ref();
    let truth = truth.map(|truth| truth::bind(&of_truth, sink, truth, workflow, &port)).transpose()?;
    let context = EndContext { truth: truth.as_ref(), ..context };
    let mut bound = rest::bind(&sink.options, |options| kind.bind(&context, &port, options))?;
    bound.ground_truth = truth;
    Ok(bound)
}
