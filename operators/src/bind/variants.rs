//! Operators of a workflow, each with its variants.
use super::choice::Choice;
use super::ends::unknown_kind;
use super::rest;
use crate::api::{BoundOperator, Computation, OperatorError};
use crate::kind::{InputPort, OperatorContext, Step};
use crate::registry::{Registry, Role};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::{Operator, Workflow};

/// Binds an operator with the chosen variant, and checks that all others send the same type.
pub(super) fn bind_variants(
    operator: &Operator,
    registry: &Registry,
    workflow: &Workflow,
    ports: &[InputPort],
    choice: &Choice,
    step: Step,
) -> Result<BoundOperator, Diagnostics> {
    let bound = bind_one(operator, registry, workflow, ports, choice, step)?;
    let mut errors = Diagnostics::new();
    // The chosen one may be named by the manifest's id, so all are bound: reading a manifest is cheap.
    for variant in operator.variants.iter().filter(|v| Some(&v.value) != choice.variant.as_ref()) {
        // The backend was chosen for the running variant; another one may not support it.
        let other = Choice { variant: Some(variant.value.clone()), backend: None };
        match bind_one(operator, registry, workflow, ports, &other, step) {
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

/// The error for variants that send different types.
pub(super) fn other_type(
    operator: &Operator,
    variant: &str,
    found: &StreamType,
    expected: &StreamType,
) -> Diagnostic {
    Diagnostic::error(
        "E0602",
        format!("variant `{variant}` of `{}` sends {found}, but another one sends {expected}", operator.id),
    )
    .at(operator.id.span.clone())
    .with_help(
        "all variants of one operator must have the same outputs, in the same order: change the manifest",
    )
}

/// Binds an operator with one variant.
pub(super) fn bind_one(
    operator: &Operator,
    registry: &Registry,
    workflow: &Workflow,
    ports: &[InputPort],
    choice: &Choice,
    step: Step,
) -> Result<BoundOperator, Diagnostics> {
    let Some(kind) = registry.operator(&operator.kind) else {
        return Err(unknown_kind("operator", &operator.kind, registry, Role::Operator));
    };
    let facts = kind.facts_of(&operator.options);
    let (inputs, computation) = (kind.inputs(), facts.computation);
    let runs_models = computation == Computation::Inference || facts.loads_models;
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
    if !runs_models {
        without_models(operator)?;
    }
    if !kind.accepts_revisions() {
        let others = || registry.takers_of_corrections();
        ports.iter().try_for_each(|port| port.only_adds(&operator.id, &operator.kind, others))?;
    }
    let context = OperatorContext {
        id: &operator.id,
        base: &workflow.directory.0,
        variants: &operator.variants,
        variant: choice.variant.as_deref(),
        backend: choice.backend.as_deref().or_else(|| operator.named_backend()),
        step,
    };
    let mut bound = rest::bind(&operator.options, |options| kind.bind(&context, ports, options))?;
    // Planners judge by the facts, so what runs has them too.
    (bound.computation, bound.spread) = (computation, kind.spread(&operator.options));
    if step == Step::Check && runs_models {
        let text = format!("`{}` was checked, but its model is not opened here", operator.id);
        bound.make = Arc::new(move || Err(OperatorError::new(text.clone())));
    }
    Ok(bound)
}

/// Refuses settings that affect only operators with models.
fn without_models(operator: &Operator) -> Result<(), Diagnostics> {
    let places = [
        ("variants", operator.variants.first().map(|variant| &variant.span)),
        ("backend", operator.backend.as_ref().map(|backend| &backend.span)),
        ("batching", operator.batching.as_ref().map(|batching| &batching.max_batch.span)),
    ];
    let mut errors = Diagnostics::new();
    for (key, place) in places.into_iter().filter_map(|(key, place)| Some((key, place?))) {
        // A `batching` without `max_batch` has no position of its own.
        let place = if place.source().is_some() { place } else { &operator.id.span };
        let message =
            format!("`{}` runs no model: `{key}` has no effect on kind `{}`", operator.id, operator.kind);
        errors.push(
            Diagnostic::error("E0613", message)
                .at(place.clone())
                .with_help(format!("remove `{key}`, or write `kind: ml`")),
        );
    }
    errors.into_result(())
}
