//! Variants that answer in place of others while an edge is cut: checks that they exist, and places them in a plan.
use crate::choice::Candidates;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::plan::Plan;
use tidemill_spec::span::Span;
use tidemill_spec::workflow::{CutDegrade, WhenCut, Workflow};

/// Returns operators with `when_cut: degrade` at their input, with its position.
fn degrades(workflow: &Workflow) -> impl Iterator<Item = (&str, &CutDegrade, &Span)> {
    workflow.operators.iter().flat_map(|operator| {
        operator.inputs.iter().filter_map(|input| {
            let when_cut = input.when_cut.as_ref()?;
            match &when_cut.value {
                WhenCut::Degrade(degrade) => Some((operator.id.value.as_str(), degrade, &when_cut.span)),
                _ => None,
            }
        })
    })
}

/// Checks that the variants are those of their operators.
///
/// # Errors
/// All that are not.
pub(crate) fn check(workflow: &Workflow, candidates: &Candidates) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    for (operator, degrade, span) in degrades(workflow) {
        let Some(list) = candidates.get(operator) else { continue };
        let wanted = &degrade.variant;
        if list.iter().any(|one| one.manifest.id == *wanted.value || one.written == wanted.value) {
            continue;
        }
        let ids = list.iter().map(|candidate| candidate.manifest.id.value.as_str());
        let span = if wanted.span.source().is_some() { &wanted.span } else { span };
        errors.push(
            Diagnostic::error("E0215", format!("`{operator}` has no variant `{wanted}`"))
                .at(span.clone())
                .with_help(suggestion(wanted, ids, "variants")),
        );
    }
    errors.into_result(())
}

/// Adds the stages that answer in place of others to a plan.
///
/// # Errors
/// A variant does not exist, or the placement of the plan's stages allows none to answer.
pub(crate) fn place(
    plan: &mut Plan,
    workflow: &Workflow,
    candidates: &Candidates,
) -> Result<(), Diagnostics> {
    check(workflow, candidates)?;
    plan.place_stand_ins(&workflow.when_cut()).map_err(|error| {
        let place = degrades(workflow).find(|(operator, ..)| *operator == error.operator);
        let mut diagnostic = Diagnostic::error("E0418", error.message).with_help(error.help);
        if let Some((_, _, span)) = place {
            diagnostic = diagnostic.at(span.clone());
        }
        diagnostic.into()
    })
}
