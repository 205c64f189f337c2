//! Converts errors of the engine to failures: kind, position in the workflow, and the kept results.
use crate::failure::{Failure, Kind};
use tidemill_engine::RunError;
use tidemill_operators::journal::{is_of_again, is_of_loss};
use tidemill_operators::kind::TypedSinkKind;
use tidemill_operators::sinks::has_lost_rows;
use tidemill_operators::sinks::parquet::Parquet;
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// A failure before the first record: the files or the plan are wrong.
pub fn not_started(error: &RunError, workflow: &Workflow) -> Failure {
    match error {
        RunError::System(_) => Failure::new(Kind::Unavailable, error.to_string()),
        RunError::Operator { text, .. } if has_lost_rows(text) => {
            Failure::new(Kind::Data, error.to_string()).at(place(error, workflow))
        }
        _ => Failure::new(Kind::Configuration, error.to_string()).at(place(error, workflow)),
    }
}

/// Position of the failed part in the workflow: the path of a sink, else its id.
fn place(error: &RunError, workflow: &Workflow) -> Span {
    let (RunError::Operator { operator, .. } | RunError::Panic { operator, .. }) = error else {
        return Span::nowhere();
    };
    let ends = workflow.sinks.iter().map(|sink| (&sink.id, Some(&sink.options)));
    let ends = ends.chain(workflow.sources.iter().map(|source| (&source.id, Some(&source.options))));
    let operators = workflow.operators.iter().map(|operator| (&operator.id, None));
    let found = ends.chain(operators).find(|(id, _)| id.value == *operator);
    found.map_or_else(Span::nowhere, |(id, options)| {
        let path = options.and_then(|options| options.get("path"));
        path.map_or_else(|| id.span.clone(), |path| path.span.clone())
    })
}

/// A failure during the run: committed rows are kept.
pub fn failed(error: &RunError, workflow: &Workflow) -> Failure {
    let kept = match error {
        RunError::Operator { operator, .. } if has_no_part(operator, workflow) => {
            "committed rows of other outputs stay"
        }
        _ => "committed rows stay",
    };
    let failure = match error {
        RunError::NotOpened { .. } => Failure::new(Kind::Configuration, error.to_string()).with_help(kept),
        RunError::Cut(_) => Failure::new(Kind::Unavailable, error.to_string())
            .with_help(format!("{kept}; with `when_cut: buffer` a run continues while an edge is cut")),
        RunError::Operator { text, .. } if has_lost_rows(text) || is_of_again(text) || is_of_loss(text) => {
            Failure::new(Kind::Data, error.to_string()).with_help(kept)
        }
        // A source or sink lost its file or its disk.
        RunError::Operator { .. } | RunError::System(_) => {
            Failure::new(Kind::Unavailable, error.to_string()).with_help(kept)
        }
        RunError::Unbalanced { .. } => Failure::new(Kind::Defect, error.to_string()).with_help(kept),
        RunError::Panic { .. } | RunError::Plan(_) => Failure::new(Kind::Defect, error.to_string())
            .with_help(format!("{kept}; with `on_panic: restart` a run continues after panics")),
    };
    failure.at(place(error, workflow))
}

/// Whether this is a sink whose file is complete or absent.
fn has_no_part(sink: &str, workflow: &Workflow) -> bool {
    workflow.sinks.iter().any(|found| *found.id.value == *sink && found.kind.value == Parquet::KIND)
}
