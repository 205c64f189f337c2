//! Checks of a workflow's policies: the edges that they name exist.
use super::Workflow;
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, suggestion};
use crate::policies::{EdgePattern, Home, edge};
use crate::span::Span;
use edge::End;
use std::collections::{HashMap, HashSet};

const CODE: &str = "E0217";

/// Part of a workflow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Source,
    Operator,
    Sink,
}

/// Parts and edges of a workflow by id.
struct Graph<'a> {
    parts: HashMap<&'a str, Part>,
    edges: HashSet<(&'a str, &'a str)>,
}

impl<'a> Graph<'a> {
    fn new(workflow: &'a Workflow) -> Self {
        let sources = workflow.sources.iter().map(|source| (source.id.as_str(), Part::Source));
        let operators = workflow.operators.iter().map(|operator| (operator.id.as_str(), Part::Operator));
        let sinks = workflow.sinks.iter().map(|sink| (sink.id.as_str(), Part::Sink));
        Self {
            parts: sources.chain(operators).chain(sinks).collect(),
            edges: workflow.edges().map(|(reader, input)| (input.from.as_str(), reader.as_str())).collect(),
        }
    }
}

impl Workflow {
    pub(super) fn check_policies(&self, found: &mut Diagnostics) {
        if self.policies.is_empty() {
            return;
        }
        crate::policies::check(self.policies.iter(), Home::Workflow, found);
        let graph = Graph::new(self);
        for policy in &self.policies {
            if found.len() >= ENOUGH {
                return;
            }
            self.check_edge(&policy.edge.value, &policy.edge.span, &graph, found);
        }
    }

    fn check_edge(&self, edge: &EdgePattern, span: &Span, graph: &Graph<'_>, found: &mut Diagnostics) {
        let ends = [(End::From, edge.from.as_deref()), (End::To, edge.to.as_deref())];
        let named = || ends.into_iter().filter_map(|(end, id)| Some((end, id?)));
        let mut refuse = |place: Span, message: String, help: String| {
            found.push(Diagnostic::error(CODE, message).at(place).with_help(help));
        };
        let mut is_known = true;
        for (end, id) in named().filter(|(_, id)| !graph.parts.contains_key(id)) {
            is_known = false;
            let (message, help) = match end {
                End::From => {
                    let all = self.producers().map(|id| id.as_str());
                    ("source or operator", suggestion(id, all, "sources and operators"))
                }
                End::To => {
                    let operators = self.operators.iter().map(|operator| operator.id.as_str());
                    let all = operators.chain(self.sinks.iter().map(|sink| sink.id.as_str()));
                    ("operator or sink", suggestion(id, all, "operators and sinks"))
                }
            };
            refuse(edge::place(span, end, id), format!("there is no {message} `{id}`"), help);
        }
        let pair = edge.from.as_deref().zip(edge.to.as_deref());
        if !is_known || pair.is_some_and(|pair| graph.edges.contains(&pair)) {
            return;
        }
        if let Some((from, to)) = pair.filter(|(from, to)| graph.edges.contains(&(*to, *from))) {
            let message = format!("no edge leads from `{from}` to `{to}`");
            return refuse(
                span.clone(),
                message,
                format!("records go the other way: write `{to} -> {from}`"),
            );
        }
        for (end, id) in named() {
            let (message, help) = match (end, graph.parts.get(id)) {
                (End::From, Some(Part::Sink)) => {
                    (format!("`{id}` is a sink and has no output"), format!("write `* -> {id}`"))
                }
                (End::To, Some(Part::Source)) => {
                    (format!("`{id}` is a source and has no input"), format!("write `{id} -> *`"))
                }
                _ => continue,
            };
            return refuse(edge::place(span, end, id), message, help);
        }
        if let Some((from, to)) = pair {
            let inputs = self.edges().filter(|(reader, _)| reader.value == to);
            let inputs: Vec<String> =
                inputs.take(20).map(|(_, input)| format!("`{} -> {to}`", input.from)).collect();
            let help = format!("edges to `{to}`: {}", inputs.join(", "));
            refuse(span.clone(), format!("no edge leads from `{from}` to `{to}`"), help);
        }
    }
}
