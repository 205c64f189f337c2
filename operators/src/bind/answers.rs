//! Sinks that answer the requests of a source.
use crate::api::{BoundSink, BoundSource};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};

/// Checks that each such sink answers a source whose records reach it, the only one that does, and tells that source.
pub(super) fn check(
    sources: &BTreeMap<String, BoundSource>,
    sinks: &BTreeMap<String, BoundSink>,
    inputs: &BTreeMap<String, Vec<String>>,
    errors: &mut Diagnostics,
) {
    let mut answered = BTreeMap::new();
    for (id, sink) in sinks {
        let Some(source) = &sink.answers else { continue };
        let mut refuse = |message: String, help: String| {
            errors.push(Diagnostic::error("E0606", message).at(source.span.clone()).with_help(help));
        };
        let takes = sources.iter().filter(|(_, bound)| bound.requests.is_some()).map(|(id, _)| id.as_str());
        let Some(requests) = sources.get(&source.value).and_then(|bound| bound.requests.as_ref()) else {
            let message = format!("`{source}` is not a source of requests, so sink `{id}` cannot answer it");
            refuse(message, suggestion(source, takes, "sources of kind `http`"));
            continue;
        };
        if !is_upstream(&source.value, id, inputs) {
            let message = format!("no record of source `{source}` reaches sink `{id}`, which answers it");
            refuse(message, format!("connect `{id}` to an operator behind `{source}`"));
        } else if let Some(other) = answered.insert(&source.value, id) {
            let message = format!("sinks `{other}` and `{id}` both answer source `{source}`");
            refuse(message, "let one sink answer it: the first row would win".into());
        }
        requests.expect_answers();
    }
}

/// Whether records of a source reach a sink.
fn is_upstream(source: &str, sink: &str, inputs: &BTreeMap<String, Vec<String>>) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![sink]);
    while let Some(next) = open.pop() {
        if next == source {
            return true;
        }
        if seen.insert(next) {
            open.extend(inputs.get(next).into_iter().flatten().map(String::as_str));
        }
    }
    false
}
