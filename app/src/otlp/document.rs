//! Spans as OTLP's JSON: names of traces and spans as hexadecimal digits, times as texts of nanoseconds since 1970.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidemill_engine::{Happening, Span, trace_name};

/// OTLP's `SPAN_KIND_INTERNAL`.
const INTERNAL: u32 = 1;

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    // 64-bit numbers are texts in it.
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn name(span: &Span) -> String {
    match (span.what, &span.from) {
        (Happening::Transfer, Some(from)) => format!("transfer {from} -> {}", span.operator),
        (what, _) => format!("{what} {}", span.operator),
    }
}

fn of_span(span: &Span) -> Value {
    let mut value = json!({
        "traceId": trace_name(&span.trace),
        "spanId": format!("{:016x}", span.id),
        "name": name(span),
        "kind": INTERNAL,
        "startTimeUnixNano": span.begin.to_string(),
        "endTimeUnixNano": span.end.to_string(),
        "attributes": [
            text("tidemill.operator", &span.operator),
            text("tidemill.stage", &span.stage),
            number("tidemill.batch.records", span.batch),
            number("tidemill.record.sequence", span.sequence),
        ],
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = format!("{parent:016x}").into();
    }
    value
}

/// Spans with their runs and workflows: a resource for each worker of each run.
pub(super) fn document<'a>(spans: impl Iterator<Item = (&'a str, &'a str, &'a Span)>) -> Value {
    let mut resources: BTreeMap<(&str, &str, &str), Vec<Value>> = BTreeMap::new();
    for (run, workflow, span) in spans {
        resources.entry((run, workflow, &span.worker)).or_default().push(of_span(span));
    }
    let resources = resources.into_iter().map(|((run, workflow, worker), spans)| {
        json!({
            "resource": {"attributes": [
                text("service.name", "tidemill"),
                text("service.namespace", workflow),
                text("service.instance.id", &format!("{run}/{worker}")),
                text("tidemill.run", run),
                text("tidemill.worker", worker),
            ]},
            "scopeSpans": [{
                "scope": {"name": "tidemill", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans,
            }],
        })
    });
    json!({"resourceSpans": resources.collect::<Vec<_>>()})
}
