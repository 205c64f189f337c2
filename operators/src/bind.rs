//! From a workflow to operators that can run: every kind is looked up, every option checked, the types of all
//! connected ports compared. All errors are found in one go; what stands behind a broken operator is not blamed.
//!
//! | code | meaning |
//! |---|---|
//! | `E0601` | the type of an output does not fit the input it is connected to |
//! | `E0602` | the variants of one operator send different types |
//! | `E0603` | an operator has too few or too many inputs |
//! | `E0604` | unknown kind |
//! | `E0605` | a column that the input does not have |
//! | `E0606` | an option has a value that cannot be meant |
//! | `E0607` | an expression does not parse or has the wrong type |
//! | `E0608` | inputs that lead nowhere or in a circle |
//! | `E0609` | a file or folder that is missing, empty or cannot be read |
//! | `E0610` | ground truth that cannot be read |
//! | `E0611` | a file that is written twice, or written and read |
//! | `E0612` | both inputs of a join send a column of the same name |
//! | `E0613` | `variants`, `backend` or `batching` on an operator that runs no model |
//! | `E0614` | a source that can be read only once, where it would be read again |
//!
//! ```
//! use tidemill_operators::{bind::{Choice, bind_workflow}, registry::Registry};
//! use tidemill_spec::{span::SourceFile, yaml};
//! # let folder = tempfile::tempdir().unwrap();
//! # std::fs::write(folder.path().join("readings.csv"), "v\n1.5\n").unwrap();
//! let text = "
//! version: 1
//! name: warm
//! sources: [{id: readings, kind: csv, options: {path: readings.csv, columns: {v: float64}}}]
//! operators: [{id: high, kind: filter, input: readings, options: {where: v > 1}}]
//! sinks: [{id: out, kind: stdout, input: high}]
//! ";
//! let parsed = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
//! let mut workflow: tidemill_spec::workflow::Workflow = parsed.deserialize_into().unwrap();
//! # workflow.directory.0 = folder.path().into();
//! let bound = bind_workflow(&workflow, &Registry::builtin(), |_| Choice::default()).unwrap();
//! assert_eq!(bound.operators["high"].output.to_string(), "{v: float64}");
//! assert_eq!(bound.inputs["out"], ["high"]);
//! ```
pub mod files;
mod rest;
mod streams;

use crate::api::{BoundOperator, BoundSink, BoundSource, GroundTruth};
use crate::ground_truth;
use crate::kind::{EndContext, InputPort, OperatorContext};
use crate::registry::Registry;
use crate::sources::repeat::repeated;
use files::Files;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, StreamType};
use tidemill_spec::workflow::{Input, Operator, Sink, Source, Workflow};

/// Which model and backend an operator is bound with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Path of the manifest as written in the workflow, or the manifest's id; `None`: the first one.
    pub variant: Option<String>,
    /// Backend; `None`: the workflow's, else the kind decides.
    pub backend: Option<String>,
}

/// A workflow whose kinds, options and types fit.
#[derive(Clone)]
pub struct BoundWorkflow {
    /// The workflow.
    pub workflow: Workflow,
    /// Sources by id.
    pub sources: BTreeMap<String, BoundSource>,
    /// Operators by id, each with the variant that was chosen.
    pub operators: BTreeMap<String, BoundOperator>,
    /// Sinks by id.
    pub sinks: BTreeMap<String, BoundSink>,
    /// Operator ids, every one after those it receives from; in the order of the workflow where that is free.
    pub order: Vec<String>,
    /// For every operator and sink, the ids it receives from, in the order of its ports.
    pub inputs: BTreeMap<String, Vec<String>>,
    registry: Registry,
}

impl BoundWorkflow {
    /// Type of what a source or operator sends.
    pub fn output(&self, id: &str) -> Option<&StreamType> {
        self.sources.get(id).map(|s| &s.output).or_else(|| self.operators.get(id).map(|o| &o.output))
    }

    /// The same operator with another variant or backend; several may run at once.
    ///
    /// # Errors
    /// `E0608` for an unknown operator, `E0602` if this variant sends another type than the one bound first, and
    /// whatever is wrong with the variant itself.
    pub fn bind_operator(&self, id: &str, choice: &Choice) -> Result<BoundOperator, Diagnostics> {
        let Some(operator) = self.workflow.operators.iter().find(|o| o.id.value == id) else {
            let names = self.workflow.operators.iter().map(|o| o.id.value.as_str());
            return Err(Diagnostic::error("E0608", format!("there is no operator `{id}`"))
                .with_help(suggestion(id, names, "operators"))
                .into());
        };
        let ports = operator
            .inputs
            .iter()
            .filter_map(|input| Some(port(input, self.output(&input.from)?.clone())))
            .collect::<Vec<_>>();
        let bound = bind_one(operator, &self.registry, &self.workflow, &ports, choice)?;
        match self.operators.get(id) {
            Some(first) if first.output != bound.output => {
                let name = choice.variant.as_deref().unwrap_or("its first variant");
                Err(other_type(operator, name, &bound.output, &first.output).into())
            }
            _ => Ok(bound),
        }
    }
}

/// Binds every source, operator and sink of a workflow. `choose` says which variant and backend an operator (by id)
/// gets; all other variants are bound too, for a check that they send the same type.
///
/// # Errors
/// Everything that is wrong with the kinds, options, connected types and input files, each at its place.
pub fn bind_workflow(
    workflow: &Workflow,
    registry: &Registry,
    choose: impl Fn(&str) -> Choice,
) -> Result<BoundWorkflow, Diagnostics> {
    let mut errors = Diagnostics::new();
    let mut bound = BoundWorkflow {
        workflow: workflow.clone(),
        sources: BTreeMap::new(),
        operators: BTreeMap::new(),
        sinks: BTreeMap::new(),
        order: Vec::new(),
        inputs: BTreeMap::new(),
        registry: registry.clone(),
    };
    for source in &workflow.sources {
        match bind_source(source, registry, workflow) {
            Ok(source) => drop(bound.sources.insert(source.id.clone(), source)),
            Err(found) => errors.append(found),
        }
    }
    streams::check(workflow, &bound.sources, &mut errors);
    check_references(workflow, &mut errors);
    for operator in in_order(workflow, &mut errors) {
        bound.order.push(operator.id.value.clone());
        let names = operator.inputs.iter().map(|input| input.from.value.clone()).collect();
        bound.inputs.insert(operator.id.value.clone(), names);
        let ports: Option<Vec<InputPort>> = operator
            .inputs
            .iter()
            .map(|input| Some(port(input, bound.output(&input.from)?.clone())))
            .collect();
        // Without the type of an input nothing can be said; its own error is reported already.
        let Some(ports) = ports else { continue };
        match bind_variants(operator, registry, workflow, &ports, &choose(&operator.id)) {
            Ok(operator) => drop(bound.operators.insert(operator.id.clone(), operator)),
            Err(found) => errors.append(found),
        }
    }
    let mut files = Files::of(workflow);
    for sink in &workflow.sinks {
        bound.inputs.insert(sink.id.value.clone(), vec![sink.input.from.value.clone()]);
        let Some(stream) = bound.output(&sink.input.from).cloned() else { continue };
        match bind_sink(sink, registry, workflow, stream) {
            Ok(sink_bound) => {
                for file in &sink_bound.files {
                    files.write(file, &format!("sink `{}`", sink.id), &sink.id.span, &mut errors);
                }
                bound.sinks.insert(sink_bound.id.clone(), sink_bound);
            }
            Err(found) => errors.append(found),
        }
    }
    if let Some(path) = &workflow.run.dead_letters {
        files.write(&workflow.resolve(&path.value), "`dead_letters`", &path.span, &mut errors);
    }
    errors.sort();
    errors.into_result(bound)
}

fn port(input: &Input, stream: StreamType) -> InputPort {
    InputPort { from: input.from.value.clone(), stream, span: input.from.span.clone() }
}

fn unknown_kind<'a>(
    what: &str,
    kind: &Located<String>,
    registry: &'a Registry,
    role: crate::registry::Role,
) -> Diagnostics {
    let kinds: Vec<&'a str> = registry.kinds().iter().filter(|k| k.role == role).map(|k| k.kind).collect();
    Diagnostic::error("E0604", format!("there is no {what} kind `{kind}`"))
        .at(kind.span.clone())
        .with_help(suggestion(kind, kinds, &format!("{what} kinds")))
        .into()
}

fn bind_source(
    source: &Source,
    registry: &Registry,
    workflow: &Workflow,
) -> Result<BoundSource, Diagnostics> {
    let Some(kind) = registry.source(&source.kind) else {
        return Err(unknown_kind("source", &source.kind, registry, crate::registry::Role::Source));
    };
    let context = EndContext { id: &source.id, base: &workflow.directory.0 };
    let mut bound = rest::bind(&source.options, |options| kind.bind(&context, options))?;
    if let Some(key) = &source.key {
        check_key(&source.id, key, &bound.output)?;
        bound.key = Some(key.value.clone());
    }
    bound.rate_per_second = source.rate.as_ref().map(|rate| rate.0);
    bound.journal.clone_from(&source.journal);
    if source.repeat {
        bound.make = repeated(Arc::clone(&bound.make));
        bound.has_event_times = false; // they begin again with each lap
    }
    Ok(bound)
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
        .with_help("leave `key` out, then the records are spread by their number")),
        None => Err(Diagnostic::error("E0605", format!("source `{source}` has no column `{key}`"))
            .at(key.span.clone())
            .with_help(suggestion(key, names, "columns of the source"))),
    }
}

fn bind_variants(
    operator: &Operator,
    registry: &Registry,
    workflow: &Workflow,
    ports: &[InputPort],
    choice: &Choice,
) -> Result<BoundOperator, Diagnostics> {
    let bound = bind_one(operator, registry, workflow, ports, choice)?;
    let mut errors = Diagnostics::new();
    // The chosen one may be named by the manifest's id, so all are bound: reading a manifest is cheap.
    for variant in operator.variants.iter().filter(|v| Some(&v.value) != choice.variant.as_ref()) {
        // The backend was chosen for the one that runs; another variant may not have it.
        let other = Choice { variant: Some(variant.value.clone()), backend: None };
        match bind_one(operator, registry, workflow, ports, &other) {
            Ok(other) if other.output != bound.output => {
                errors.push(
                    other_type(operator, variant, &other.output, &bound.output).at(variant.span.clone()),
                );
            }
            Ok(_) => {}
            Err(found) => errors.append(found),
        }
    }
    errors.into_result(bound)
}

fn other_type(operator: &Operator, variant: &str, found: &StreamType, expected: &StreamType) -> Diagnostic {
    Diagnostic::error(
        "E0602",
        format!("variant `{variant}` of `{}` sends {found}, another one sends {expected}", operator.id),
    )
    .at(operator.id.span.clone())
    .with_help(
        "all variants of one operator must have the same outputs, in the same order: change the manifest",
    )
}

fn bind_one(
    operator: &Operator,
    registry: &Registry,
    workflow: &Workflow,
    ports: &[InputPort],
    choice: &Choice,
) -> Result<BoundOperator, Diagnostics> {
    let Some(kind) = registry.operator(&operator.kind) else {
        return Err(unknown_kind("operator", &operator.kind, registry, crate::registry::Role::Operator));
    };
    let inputs = kind.inputs();
    if !inputs.contains(&ports.len()) {
        let expected = match (inputs.start(), inputs.end()) {
            (low, high) if low == high => format!("{low}"),
            (low, high) => format!("{low} to {high}"),
        };
        return Err(Diagnostic::error(
            "E0603",
            format!(
                "`{}` has {} input{}, kind `{}` needs {expected}",
                operator.id,
                ports.len(),
                if ports.len() == 1 { "" } else { "s" },
                operator.kind
            ),
        )
        .at(operator.id.span.clone())
        .with_help("list them as `inputs: [first, second]`")
        .into());
    }
    if !kind.runs_models() {
        without_models(operator)?;
    }
    let context = OperatorContext {
        id: &operator.id,
        base: &workflow.directory.0,
        variants: &operator.variants,
        variant: choice.variant.as_deref(),
        backend: choice.backend.as_deref().or_else(|| operator.named_backend()),
    };
    rest::bind(&operator.options, |options| kind.bind(&context, ports, options))
}

/// Refuses what only an operator with models makes use of: it would be without any effect.
fn without_models(operator: &Operator) -> Result<(), Diagnostics> {
    let places = [
        ("variants", operator.variants.first().map(|variant| &variant.span)),
        ("backend", operator.backend.as_ref().map(|backend| &backend.span)),
        ("batching", operator.batching.as_ref().map(|batching| &batching.max_batch.span)),
    ];
    let mut errors = Diagnostics::new();
    for (key, place) in places.into_iter().filter_map(|(key, place)| Some((key, place?))) {
        // A `batching` without `max_batch` has no place of its own.
        let place = if place.source().is_some() { place } else { &operator.id.span };
        let message =
            format!("`{}` runs no model: `{key}` has no effect on kind `{}`", operator.id, operator.kind);
        errors.push(
            Diagnostic::error("E0613", message)
                .at(place.clone())
                .with_help(format!("take `{key}` out, or write `kind: ml`")),
        );
    }
    errors.into_result(())
}

fn bind_sink(
    sink: &Sink,
    registry: &Registry,
    workflow: &Workflow,
    stream: StreamType,
) -> Result<BoundSink, Diagnostics> {
    let Some(kind) = registry.sink(&sink.kind) else {
        return Err(unknown_kind("sink", &sink.kind, registry, crate::registry::Role::Sink));
    };
    let context = EndContext { id: &sink.id, base: &workflow.directory.0 };
    let port = port(&sink.input, stream);
    let mut bound = rest::bind(&sink.options, |options| kind.bind(&context, &port, options))?;
    if let Some(truth) = &sink.ground_truth {
        let mut errors = Diagnostics::new();
        let scored = |t: &ColumnType| matches!(t, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool);
        for column in [&truth.key, &truth.prediction] {
            if let Err(error) = port.column(&sink.id, 0, column, "text, int64 or bool", scored) {
                errors.push(error);
            }
        }
        let path = context.path(&truth.path);
        match ground_truth::load(&path, &truth.key, &truth.truth) {
            Ok(answers) => {
                bound.ground_truth = Some(GroundTruth {
                    key: truth.key.value.clone(),
                    prediction: truth.prediction.value.clone(),
                    answers: Arc::new(answers),
                    once: repeats(workflow, &sink.input.from),
                });
            }
            Err(error) => errors.push(
                Diagnostic::error("E0610", format!("ground truth of `{}`: {error}", sink.id))
                    .at(truth.path.span.clone())
                    .with_help(error.help()),
            ),
        }
        errors.into_result(())?;
    }
    Ok(bound)
}

/// Whether a source that starts again at its end sends to `id`, itself or through operators.
fn repeats(workflow: &Workflow, id: &str) -> bool {
    let mut waiting = vec![id];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        if workflow.sources.iter().any(|source| source.id.value == id && source.repeat) {
            return true;
        }
        let operators = workflow.operators.iter().filter(|operator| operator.id.value == id);
        waiting.extend(operators.flat_map(|o| o.inputs.iter().map(|input| input.from.value.as_str())));
    }
    false
}

/// Reports inputs that are no source or operator.
fn check_references(workflow: &Workflow, errors: &mut Diagnostics) {
    let names: Vec<&str> = workflow
        .sources
        .iter()
        .map(|s| s.id.value.as_str())
        .chain(workflow.operators.iter().map(|o| o.id.value.as_str()))
        .collect();
    let inputs = workflow
        .operators
        .iter()
        .flat_map(|o| o.inputs.iter().map(move |input| (&o.id, input)))
        .chain(workflow.sinks.iter().map(|s| (&s.id, &s.input)));
    for (receiver, input) in inputs {
        if !names.contains(&input.from.value.as_str()) {
            errors.push(
                Diagnostic::error(
                    "E0608",
                    format!("input `{}` of `{receiver}` is no source or operator", input.from),
                )
                .at(input.from.span.clone())
                .with_help(suggestion(
                    &input.from,
                    names.iter().copied(),
                    "sources and operators",
                )),
            );
        }
    }
}

/// The operators, every one after those it receives from. Operators in a circle are left out and reported.
fn in_order<'a>(workflow: &'a Workflow, errors: &mut Diagnostics) -> Vec<&'a Operator> {
    let mut waiting: Vec<&Operator> = workflow.operators.iter().collect();
    let mut order = Vec::new();
    loop {
        let blocked: BTreeSet<&str> = waiting.iter().map(|o| o.id.value.as_str()).collect();
        let (later, ready): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|o| o.inputs.iter().any(|input| blocked.contains(input.from.value.as_str())));
        if ready.is_empty() {
            if let Some(first) = later.first() {
                let names: Vec<String> = later.iter().map(|o| format!("`{}`", o.id)).collect();
                errors.push(
                    Diagnostic::error(
                        "E0608",
                        format!("operators receive from each other in a circle: {}", names.join(", ")),
                    )
                    .at(first.id.span.clone())
                    .with_help("a workflow has no circles: take one of these inputs out"),
                );
            }
            return order;
        }
        order.extend(ready);
        waiting = later;
    }
}

#[cfg(test)]
mod tests;
