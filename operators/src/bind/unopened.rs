//! Facts that a check cannot know, because only opening shows them.
use super::choice::Choice;
use crate::api::{BoundSource, Computation};
use crate::kind::Step;
use crate::registry::Registry;
use serde::Serialize;
use std::collections::BTreeSet;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::workflow::{Input, Operator, Sink, Source, Workflow};

/// A fact that only opening shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unopened {
    /// Id of its source, operator or sink.
    pub id: String,
    /// The unknown fact, and where it is checked.
    pub text: String,
    /// Whether the downstream types are unknown too, so that those parts were not checked.
    pub hides_types: bool,
    /// Position of the unopened file in the workflow.
    #[serde(skip)]
    pub place: Span,
}

/// Collects the unopened parts.
pub(super) struct Findings<'a> {
    workflow: &'a Workflow,
    registry: &'a Registry,
    all: Vec<Unopened>,
    /// Parts with unknown output.
    hidden: BTreeSet<String>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(workflow: &'a Workflow, registry: &'a Registry) -> Self {
        Self { workflow, registry, all: Vec::new(), hidden: BTreeSet::new() }
    }

    pub(super) fn into_all(self) -> Vec<Unopened> {
        self.all
    }

    fn add(&mut self, id: &str, place: &Span, hides_types: bool, text: String) {
        self.all.push(Unopened { id: id.to_owned(), text, hides_types, place: place.clone() });
    }

    /// Records a source that was only checked.
    pub(super) fn source(&mut self, source: &Source, bound: &BoundSource) {
        // A stream is not read in advance.
        let Some(path) = source.options.get("path").filter(|_| bound.stream.is_none()) else { return };
        let shown = self.registry.source(&source.kind).map_or("is there", |kind| kind.shown_by_opening());
        let text = format!(
            "source `{}`: `{}` was not checked; the machine that reads it checks whether it {shown}",
            source.id,
            path.as_str().unwrap_or_default()
        );
        self.add(&source.id, &path.span, false, text);
    }

    /// Records an operator whose file was not read.
    pub(super) fn operator(&mut self, operator: &Operator) {
        let Some(path) = operator.options.get("path") else { return };
        let text = format!(
            "operator `{}`: `{}` was not checked; the machine that runs it checks whether it is there and right",
            operator.id,
            path.as_str().unwrap_or_default()
        );
        self.add(&operator.id, &path.span, false, text);
    }

    /// Removes variants without manifests here; false if none is left, so that the operator's output is unknown.
    pub(super) fn manifests(&mut self, operator: &mut Operator, choice: &mut Choice) -> bool {
        // Steps of the user are called like models and have no manifest: their options say the types.
        if operator.variants.is_empty() {
            return true;
        }
        if self
            .registry
            .operator(&operator.kind)
            .is_none_or(|kind| kind.facts_of(&operator.options).computation != Computation::Inference)
        {
            return true;
        }
        let variants = std::mem::take(&mut operator.variants);
        let is_here = |written: &Located<String>| self.workflow.resolve(&written.value).is_file();
        let (here, missing): (Vec<_>, Vec<_>) = variants.iter().cloned().partition(is_here);
        let is_known = |choice: &str| {
            here.iter().any(|written| written.value == choice)
                || here.iter().any(|written| {
                    Manifest::load(self.workflow.resolve(&written.value))
                        .is_ok_and(|manifest| manifest.id == *choice)
                })
        };
        if !missing.is_empty() && choice.variant.as_deref().is_some_and(|choice| !is_known(choice)) {
            *choice = Choice::default();
        }
        let hides_types = here.is_empty();
        for written in missing {
            let what = match hides_types {
                true => "its output is not known",
                false => "the machine that runs it checks whether its output equals that of the others",
            };
            let text = format!(
                "operator `{}`: the manifest `{written}` is not on this machine; {what}",
                operator.id
            );
            self.add(&operator.id, &written.span, hides_types, text);
        }
        for written in &here {
            let text = format!(
                "operator `{}`: the model of `{written}` was not checked; the machine that runs it checks \
                 whether it matches the manifest",
                operator.id
            );
            self.add(&operator.id, &written.span, false, text);
        }
        if hides_types {
            self.hidden.insert(operator.id.value.clone());
            operator.variants = variants;
        } else {
            operator.variants = here;
        }
        !hides_types
    }

    /// Records a part with an input of unknown type.
    pub(super) fn behind<'b>(&mut self, id: &Located<String>, inputs: impl IntoIterator<Item = &'b Input>) {
        let from = inputs.into_iter().find(|input| self.hidden.contains(&input.from.value));
        // Others are downstream of an error, which is reported.
        let Some(from) = from else { return };
        let text = format!("`{id}` was not checked: the output of `{}` is not known", from.from);
        self.add(id, &from.from.span, true, text);
        self.hidden.insert(id.value.clone());
    }

    /// Records a sink that was bound at these steps, its ground truth at the second.
    pub(super) fn sink(&mut self, sink: &Sink, (step, step_of_truth): (Step, Step)) {
        if let (Step::Check, Some(over)) = (step, sink.options.get("over")) {
            let text = format!(
                "sink `{}`: `{}` was not checked; the machine that writes checks whether it has videos",
                sink.id,
                over.as_str().unwrap_or_default()
            );
            self.add(&sink.id, &over.span, false, text);
        }
        if let (Step::Check, Some(truth)) = (step_of_truth, &sink.ground_truth) {
            let text = format!(
                "ground truth of `{}`: `{}` was not checked; the machine of the sink checks whether it has \
                 the compared columns",
                sink.id, truth.path
            );
            self.add(&sink.id, &truth.path.span, false, text);
        }
    }
}
