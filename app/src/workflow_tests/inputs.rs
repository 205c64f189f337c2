//! The inputs and options of a test in place of those of its workflow.
use super::{TestFile, unknown};
use serde_json::{Map, Value as Json};
use std::fs;
use std::io::Write;
use std::path::Path;
use tidemill_engine::Program;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::value::{Entry, Node, Value};
use tidemill_spec::workflow::{CheckpointOptions, Input, Slo, Source, Workflow};
use tidemill_spec::workflow_test::{SourceInput, WorkflowTest};

/// Options of sources of rows that hold for the rows of a test too.
const OF_ROWS: [&str; 7] =
    ["columns", "event_time", "time_unit", "time_zone", "out_of_order", "max_jump", "max_line"];

/// Puts the inputs and options of a test into a workflow, and takes away what a test does not do: keeping a state, writing dead
/// letters, leaving out records. Rows are written into `folder`.
pub(super) fn replace(
    workflow: &mut Workflow,
    file: &TestFile,
    test: &WorkflowTest,
    folder: &Path,
) -> anyhow::Result<()> {
    let mut errors = Diagnostics::new();
    for (id, options) in test.options.iter() {
        let of_source = workflow.sources.iter_mut().find(|source| source.id == *id.value);
        let of_source = of_source.map(|source| &mut source.options);
        let of_operator = workflow.operators.iter_mut().find(|operator| operator.id == *id.value);
        match of_source.or(of_operator.map(|operator| &mut operator.options)) {
            Some(written) => merge(written, options),
            None => {
                let sources = workflow.sources.iter().map(|source| source.id.as_str());
                let names = sources.chain(workflow.operators.iter().map(|operator| operator.id.as_str()));
                errors.push(unknown(id, names, "sources and operators"));
            }
        }
    }
    for (id, input) in test.sources.iter() {
        let Some(place) = workflow.sources.iter().position(|source| source.id == *id.value) else {
            let names = workflow.sources.iter().map(|source| source.id.as_str());
            errors.push(unknown(id, names, "sources"));
            continue;
        };
        match replaced(&workflow.sources[place], id, input, file, folder)? {
            Ok((kind, options)) => {
                let source = &mut workflow.sources[place];
                (source.kind, source.options, source.journal) = (kind, options, None);
            }
            Err(found) => errors.append(found),
        }
    }
    for sink in workflow.sinks.iter_mut().filter(|sink| has(&sink.options, "answers")) {
        // It would answer requests, and rows of a test are none. Where it writes does not matter: a test keeps the rows.
        let span = &sink.options.span;
        let path = folder.join(format!("{}.jsonl", sink.id)).display().to_string();
        let path = Value { node: Node::Text(path.as_str().into()), span: span.clone() };
        let entry = Entry { key: Located::new("path".to_owned(), span.clone()), value: path };
        sink.options = Value { node: Node::Map(vec![entry]), span: span.clone() };
        sink.kind.value = "jsonl".to_owned();
    }
    for source in &mut workflow.sources {
        source.repeat = false;
        source.journal = None;
    }
    let of_operators = workflow.operators.iter_mut().flat_map(|operator| &mut operator.inputs);
    let losing = of_operators.chain(workflow.sinks.iter_mut().map(|sink| &mut sink.input));
    losing.for_each(|input: &mut Input| input.freshness = None);
    if let Some(tick) = &test.tick {
        workflow.run.tick = tick.clone();
    }
    workflow.run.dead_letters = None;
    workflow.checkpoint = CheckpointOptions::default();
    workflow.slo = Slo::default();
    workflow.policies.clear();
    Ok(errors.into_result(())?)
}

/// Whether the options have this one.
fn has(options: &Value, name: &str) -> bool {
    matches!(&options.node, Node::Map(entries) if entries.iter().any(|entry| entry.key.value == name))
}

/// Replaces options of the same name, and adds the others.
fn merge(written: &mut Value, options: &Value) {
    let Node::Map(more) = &options.node else { return };
    if !matches!(written.node, Node::Map(_)) {
        *written = Value { node: Node::Map(Vec::new()), span: options.span.clone() };
    }
    let Node::Map(entries) = &mut written.node else { return };
    for entry in more {
        match entries.iter_mut().find(|known| known.key.value == entry.key.value) {
            Some(known) => *known = entry.clone(),
            None => entries.push(entry.clone()),
        }
    }
}

/// Returns kind and options of the source that gives the input of a test.
fn replaced(
    source: &Source,
    id: &Located<String>,
    input: &SourceInput,
    file: &TestFile,
    folder: &Path,
) -> std::io::Result<Result<(Located<String>, Value), Diagnostics>> {
    let rows = match input {
        SourceInput::Source { kind, options } => return Ok(Ok((kind.clone(), options.clone()))),
        SourceInput::File(named) => {
            let kind = if named.ends_with(".csv") { "csv" } else { "jsonl" };
            // The options of the workflow are relative to another folder.
            let path = std::path::absolute(file.resolve(&named.value))?;
            return Ok(of_table(source, id, Located::new(kind.to_owned(), named.span.clone()), &path));
        }
        SourceInput::Rows(rows) => rows,
        SourceInput::Unclear => &Vec::new(),
    };
    let path = folder.join(format!("{id}.jsonl"));
    let source = match of_table(source, id, Located::new("jsonl".to_owned(), id.span.clone()), &path) {
        Ok(source) => source,
        Err(found) => return Ok(Err(found)),
    };
    let columns = columns_of(&source.1);
    let mut errors = Diagnostics::new();
    let mut out = std::io::BufWriter::new(fs::File::create(&path)?);
    for row in rows {
        let Node::Map(entries) = &row.node else { continue };
        for entry in entries.iter().filter(|entry| !columns.contains(&entry.key.value.as_str())) {
            errors.push(
                Diagnostic::error("E0752", format!("source `{id}` has no column `{}`", entry.key))
                    .at(entry.key.span.clone())
                    .with_help(suggestion(&entry.key, columns.iter().copied(), "declared columns")),
            );
        }
        let value = |name: &&str| ((*name).to_owned(), row.get(name).map_or(Json::Null, json));
        let line: Map<String, Json> = columns.iter().map(value).collect();
        serde_json::to_writer(&mut out, &line)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(errors.into_result(source))
}

/// Returns a source of a file with the columns and event times of `source`.
fn of_table(
    source: &Source,
    id: &Located<String>,
    kind: Located<String>,
    path: &Path,
) -> Result<(Located<String>, Value), Diagnostics> {
    if source.options.get("columns").is_none() {
        return Err(Diagnostic::error(
            "E0752",
            format!("source `{id}` (kind `{}`) declares no columns, so a test cannot give it rows", source.kind),
        )
        .at(id.span.clone())
        .with_help(
            "give it other files: `{kind: image_directory, options: {path: ...}}` here, or `options: {ID: {path: ...}}` \
             of the test",
        )
        .into());
    }
    let path = Node::Text(path.to_string_lossy().as_ref().into());
    let path = Entry { key: "path".into(), value: Value { node: path, span: id.span.clone() } };
    let kept = OF_ROWS.iter().filter_map(|name| source.options.entry(name).cloned());
    let node = Node::Map([path].into_iter().chain(kept).collect());
    Ok((kind, Value { node, span: source.options.span.clone() }))
}

/// The declared columns.
fn columns_of(options: &Value) -> Vec<&str> {
    match options.get("columns").map(|columns| &columns.node) {
        Some(Node::Map(entries)) => entries.iter().map(|entry| entry.key.value.as_str()).collect(),
        _ => Vec::new(),
    }
}

/// Refuses sources that do not end by themselves.
pub(super) fn check_ends(program: &Program, test: &WorkflowTest) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    for source in program.sources.values().filter(|source| source.is_stream()) {
        let what = source.stream.clone().unwrap_or_else(|| "something live".to_owned());
        errors.push(
            Diagnostic::error(
                "E0752",
                format!("source `{}` reads {what}, which a test cannot wait for", source.id),
            )
            .at(test.name.span.clone())
            .with_help(format!("give it an input: `sources: {{{}: ...}}`", source.id)),
        );
    }
    errors.into_result(())
}

/// Converts a value of a test, with its variables filled in.
pub(super) fn json(value: &Value) -> Json {
    match &value.node {
        Node::Null => Json::Null,
        Node::Bool(value) => Json::from(*value),
        Node::Integer(value) => Json::from(*value),
        Node::Float(value) => Json::from(*value),
        Node::Text(text) => Json::from(text.value.as_str()),
        Node::List(items) => items.iter().map(json).collect(),
        Node::Map(entries) => {
            let each = entries.iter().map(|entry| (entry.key.value.clone(), json(&entry.value)));
            Json::Object(each.collect())
        }
    }
}
