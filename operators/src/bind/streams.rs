//! Checks that sources that can be read only once (standard input, pipes, devices) are not read again.
use crate::api::BoundSource;
use std::collections::BTreeMap;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Span;
use tidemill_spec::workflow::{OnPanic, Source, Workflow};

/// Reports settings that would read a stream again: `repeat`, another source, a restart.
pub(super) fn check(workflow: &Workflow, bound: &BTreeMap<String, BoundSource>, errors: &mut Diagnostics) {
    let streams = workflow.sources.iter().filter_map(|source| {
        let stream = bound.get(&source.id.value)?.stream.as_deref()?;
        Some((source, stream))
    });
    let streams: Vec<(&Source, &str)> = streams.collect();
    let as_file = "save it as a file, and write its path";
    let mut refuse = |message: String, place: Span, help: &str| {
        errors.push(Diagnostic::error("E0614", message).at(place).with_help(help));
    };
    for (index, (source, stream)) in streams.iter().enumerate() {
        if source.repeat {
            let message = format!("source `{}` cannot repeat {stream}: it can be read only once", source.id);
            refuse(message, place(source), &format!("remove `repeat`, or {as_file}"));
        }
        if let Some((first, _)) = streams[..index].iter().find(|(_, other)| other == stream) {
            let message = format!(
                "sources `{}` and `{}` both read {stream}: each would get only a part of the records",
                first.id, source.id
            );
            refuse(message, place(source), "let operators share one source, or save it as a file");
        }
    }
    let Some((source, stream)) = streams.first() else { return };
    for operator in workflow.operators.iter().filter(|operator| operator.on_panic == OnPanic::Restart) {
        let message = format!(
            "`{}` has `on_panic: restart`, but source `{}` reads {stream}, which cannot be read again after a restart",
            operator.id, source.id
        );
        refuse(message, operator.id.span.clone(), &format!("write `on_panic: stop`, or {as_file}"));
    }
}

/// Position of the input in the workflow.
fn place(source: &Source) -> Span {
    source.options.get("path").map_or_else(|| source.id.span.clone(), |path| path.span.clone())
}
