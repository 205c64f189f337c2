//! Binds a workflow to operators that can run: looks up every kind, checks every option, compares the types of all
//! connected ports. All errors are found in one pass; parts downstream of a broken operator get none.
//!
//! There are two steps. [`check`] uses the workflow's own files, including the manifests of its models: it determines all
//! types, the guarantees of sources and sinks, and the facts that only opening can show. [`Checked::open`] reads the files
//! that are opened on this host: data, models, programs. [`bind_workflow`] does both at once, for all parts, on the one
//! machine that has everything.
//!
//! | code | meaning |
//! |---|---|
//! | `E0601` | the type of an output does not fit the input it is connected to |
//! | `E0602` | the variants of one operator send different types |
//! | `E0603` | an operator has too few or too many inputs |
//! | `E0604` | unknown kind, or one that this build lacks |
//! | `E0605` | a column that the input does not have |
//! | `E0606` | an option has an impossible value |
//! | `E0607` | an expression does not parse or has the wrong type |
//! | `E0608` | inputs without a source or in a cycle |
//! | `E0609` | a file or folder that is missing, empty or cannot be read |
//! | `E0610` | ground truth that cannot be read |
//! | `E0611` | a file that is written twice, or written and read |
//! | `E0612` | both inputs of a join send a column of one name |
//! | `E0613` | `variants`, `backend` or `batching` on an operator that runs no model; `journal` on a source that cannot have one |
//! | `E0614` | a source that can be read only once, but would be read again |
//! | `E0616` | opening found something else than was checked |
//! | `E0617` | a step of the user that cannot start, or whose columns are not known |
//! | `E0620` | retractable rows, at an operator or sink that only adds |
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
mod answers;
mod choice;
mod ends;
pub mod files;
mod rest;
mod streams;
mod truth;
mod unopened;
mod variants;

pub use choice::Choice;
pub use unopened::Unopened;

use crate::api::{BoundOperator, BoundSink, BoundSource};
use crate::kind::{InputPort, Step};
use crate::registry::Registry;
use choice::port;
use ends::{bind_sink, bind_source};
use files::Files;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::{Operator, Sink, Source, Workflow};
use unopened::Findings;
use variants::{bind_one, bind_variants, other_type};

/// A part of a workflow, which is opened on its host.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// The input of a source.
    Source(&'a Source),
    /// The models of an operator, all of its variants.
    Operator(&'a Operator),
    /// The other inputs of a sink.
    Sink(&'a Sink),
    /// The ground truth of a sink.
    GroundTruth(&'a Sink),
}

/// A workflow with matching kinds, options and types.
#[derive(Clone)]
pub struct BoundWorkflow {
    /// The workflow.
    pub workflow: Workflow,
    /// Sources by id.
    pub sources: BTreeMap<String, BoundSource>,
    /// Operators by id, each with the chosen variant.
    pub operators: BTreeMap<String, BoundOperator>,
    /// Sinks by id.
    pub sinks: BTreeMap<String, BoundSink>,
    /// Operator ids, every one after those it receives from; otherwise in the order of the workflow.
    pub order: Vec<String>,
    /// For every operator and sink, the ids it receives from, in the order of its ports.
    pub inputs: BTreeMap<String, Vec<String>>,
    registry: Registry,
}

impl BoundWorkflow {
    fn of(workflow: &Workflow, registry: &Registry) -> Self {
        Self {
            workflow: workflow.clone(),
            sources: BTreeMap::new(),
            operators: BTreeMap::new(),
            sinks: BTreeMap::new(),
            order: Vec::new(),
            inputs: BTreeMap::new(),
            registry: registry.clone(),
        }
    }

    /// Returns the output type of a source or operator.
    pub fn output(&self, id: &str) -> Option<&StreamType> {
        self.sources.get(id).map(|s| &s.output).or_else(|| self.operators.get(id).map(|o| &o.output))
    }

    /// Binds an operator with another variant or backend, opened or only checked; several may run at once.
    ///
    /// # Errors
    /// `E0608` for an unknown operator, `E0602` if this variant sends another type than the one bound first, and errors of
    /// the variant itself.
    pub fn bind_operator(&self, id: &str, choice: &Choice, step: Step) -> Result<BoundOperator, Diagnostics> {
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
        let bound = bind_one(operator, &self.registry, &self.workflow, &ports, choice, step)?;
        match self.operators.get(id) {
            Some(first) if first.output != bound.output => {
                let name = choice.variant.as_deref().unwrap_or("its first variant");
                Err(other_type(operator, name, &bound.output, &first.output).into())
            }
            _ => Ok(bound),
        }
    }
}

/// A workflow that is correct by its own files.
#[derive(Clone)]
pub struct Checked {
    bound: BoundWorkflow,
    choices: BTreeMap<String, Choice>,
    unopened: Vec<Unopened>,
}

impl Checked {
    /// Its types and guarantees. Operators without manifests here, and parts downstream of them, are left out.
    pub fn bound(&self) -> &BoundWorkflow {
        &self.bound
    }

    /// Facts that only opening can show.
    pub fn unopened(&self) -> &[Unopened] {
        &self.unopened
    }

    /// Opens the parts of this host.
    ///
    /// # Errors
    /// All errors found.
    pub fn open(&self, is_here: impl Fn(Part<'_>) -> bool) -> Result<BoundWorkflow, Diagnostics> {
        let bound = &self.bound;
        let choose = |id: &str| self.choices.get(id).cloned().unwrap_or_default();
        bind(&bound.workflow, &bound.registry, choose, is_here).map(|(bound, _)| bound)
    }

    /// Compares opened sources with the checked ones, whose guarantees another host may have published without the files.
    ///
    /// # Errors
    /// `E0616` for each source that differs.
    pub fn compare(&self, opened: &BoundWorkflow) -> Result<(), Diagnostics> {
        let mut errors = Diagnostics::new();
        for source in &self.bound.workflow.sources {
            let both = self.bound.sources.get(&source.id.value).zip(opened.sources.get(&source.id.value));
            let Some((checked, opened)) = both else { continue };
            let place = source.options.get("path").map_or(&source.id.span, |path| &path.span);
            if checked.output != opened.output {
                let (found, expected) = (&opened.output, &checked.output);
                let text = format!("source `{}` sends {found}, but was checked as {expected}", source.id);
                let help = "give all machines the same version of this program and the same workflow";
                errors.push(Diagnostic::error("E0616", text).at(place.clone()).with_help(help));
            } else if checked.promise() != opened.promise() {
                let found = opened.stream.as_deref().unwrap_or("a file");
                let text = format!(
                    "source `{}` was checked as a file that can be read again, but reads {found}",
                    source.id
                );
                let help = "write `stream: until_end` (or `forever`) beside its path and `journal: {}` beside its options, or \
                            write the path of a file";
                errors.push(Diagnostic::error("E0616", text).at(place.clone()).with_help(help));
            }
        }
        errors.into_result(())
    }
}

/// Checks every source, operator and sink of a workflow by its own files, as [`bind_workflow`] without files of data,
/// models and programs.
///
/// # Errors
/// All errors in kinds, options, connected types and manifests, each at its position.
pub fn check(
    workflow: &Workflow,
    registry: &Registry,
    choose: impl Fn(&str) -> Choice,
) -> Result<Checked, Diagnostics> {
    let ids = workflow.operators.iter().map(|operator| operator.id.value.clone());
    let choices: BTreeMap<String, Choice> = ids.map(|id| (id.clone(), choose(&id))).collect();
    let chosen = |id: &str| choices.get(id).cloned().unwrap_or_default();
    let (bound, unopened) = bind(workflow, registry, chosen, |_| false)?;
    Ok(Checked { bound, choices, unopened })
}

/// Binds every source, operator and sink of a workflow. `choose` returns the variant and backend of an operator (by id);
/// all other variants are bound too, to check that they send one type.
///
/// # Errors
/// All errors in kinds, options, connected types and input files, each at its position.
pub fn bind_workflow(
    workflow: &Workflow,
    registry: &Registry,
    choose: impl Fn(&str) -> Choice,
) -> Result<BoundWorkflow, Diagnostics> {
    bind(workflow, registry, choose, |_| true).map(|(bound, _)| bound)
}

/// Binds all parts, and opens those for which `is_here` holds; with what only opening the others shows.
///
/// # Errors
/// As [`bind_workflow`], as far as it is known without opening the others.
pub fn bind(
    workflow: &Workflow,
    registry: &Registry,
    choose: impl Fn(&str) -> Choice,
    is_here: impl Fn(Part<'_>) -> bool,
) -> Result<(BoundWorkflow, Vec<Unopened>), Diagnostics> {
    let step = |part: Part<'_>| if is_here(part) { Step::Open } else { Step::Check };
    let mut errors = Diagnostics::new();
    let mut bound = BoundWorkflow::of(workflow, registry);
    let mut findings = Findings::new(workflow, registry);
    for source in &workflow.sources {
        let step = step(Part::Source(source));
        match bind_source(source, registry, workflow, step) {
            Ok(bound_source) => {
                if step == Step::Check {
                    findings.source(source, &bound_source);
                }
                bound.sources.insert(bound_source.id.clone(), bound_source);
            }
            Err(found) => {
                errors.append(found);
                // A missing program or file must not hide mistakes downstream.
                if let Ok(checked) = bind_source(source, registry, workflow, Step::Check) {
                    bound.sources.insert(checked.id.clone(), checked);
                }
            }
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
        // Without the type of an input there is nothing to check; its own error is reported already.
        let Some(ports) = ports else {
            findings.behind(&operator.id, operator.inputs.iter());
            continue;
        };
        let step = step(Part::Operator(operator));
        let (mut operator, mut choice) = (operator.clone(), choose(&operator.id));
        if step == Step::Check && !findings.manifests(&mut operator, &mut choice) {
            continue;
        }
        match bind_variants(&operator, registry, workflow, &ports, &choice, step) {
            Ok(made) => {
                if step == Step::Check {
                    findings.operator(&operator);
                }
                bound.operators.insert(made.id.clone(), made);
            }
            Err(found) => errors.append(found),
        }
    }
    let mut files = Files::of(workflow);
    for sink in &workflow.sinks {
        bound.inputs.insert(sink.id.value.clone(), vec![sink.input.from.value.clone()]);
        let Some(stream) = bound.output(&sink.input.from).cloned() else {
            findings.behind(&sink.id, [&sink.input]);
            continue;
        };
        let steps = (step(Part::Sink(sink)), step(Part::GroundTruth(sink)));
        match bind_sink(sink, registry, workflow, stream, steps) {
            Ok(sink_bound) => {
                findings.sink(sink, steps);
                for file in &sink_bound.files {
                    files.write(file, &format!("sink `{}`", sink.id), &sink.id.span, &mut errors);
                }
                bound.sinks.insert(sink_bound.id.clone(), sink_bound);
            }
            Err(found) => errors.append(found),
        }
    }
    answers::check(&bound.sources, &bound.sinks, &bound.inputs, &mut errors);
    if let Some(path) = &workflow.run.dead_letters {
        files.write(&workflow.resolve(&path.value), "`dead_letters`", &path.span, &mut errors);
    }
    errors.sort();
    errors.into_result((bound, findings.into_all()))
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
                    format!("input `{}` of `{receiver}` is not a source or operator", input.from),
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

/// Returns the operators, every one after those it receives from. Operators in a cycle are left out and reported.
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
                        format!("operators receive from each other in a cycle: {}", names.join(", ")),
                    )
                    .at(first.id.span.clone())
                    .with_help("a workflow has no cycles: remove one of these inputs"),
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
