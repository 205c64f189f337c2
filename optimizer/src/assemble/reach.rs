//! Finds operators that records cannot reach over any link.
use super::{Inputs, listed};
use crate::problem::{Problem, Producer};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};

/// Reports the first operators without a route from their records.
pub(super) fn check(inputs: &Inputs<'_>, problem: &Problem, found: &mut Diagnostics) {
    let everywhere: Vec<usize> = (0..problem.locations.len()).collect();
    let mut at: Vec<Vec<usize>> = Vec::new();
    for (index, operator) in problem.operators.iter().enumerate() {
        let runs = |location: &usize| {
            operator.weightless
                || operator.variants.iter().any(|variant| {
                    let classes = variant.modes.iter().zip(&problem.worker_classes);
                    classes.into_iter().any(|(modes, class)| class.location == *location && !modes.is_empty())
                })
        };
        let able: Vec<usize> = everywhere.iter().copied().filter(runs).collect();
        let mut reached = able.clone();
        for edge in problem.inputs_of(index) {
            let from: Vec<usize> = match problem.edges[edge].from {
                Producer::Source(source) => {
                    problem.sources[source].locations.iter().map(|(at, _)| *at).collect()
                }
                Producer::Operator(producer) => at[producer].clone(),
            };
            reached.retain(|&to| from.iter().any(|&from| problem.route(from, to).is_some()));
            if reached.is_empty() {
                let names = |places: &[usize]| {
                    listed(places.iter().map(|&place| problem.locations[place].name.as_str()))
                };
                let message = format!(
                    "`{}` can run only in {}, but no link leads there from {}, where its records are",
                    operator.id,
                    names(&able),
                    names(&from)
                );
                let span = inputs.workflow.operators.iter().find(|other| other.id.value == operator.id);
                let span = span.map(|operator| operator.id.span.clone()).unwrap_or_default();
                let example = from.first().zip(able.first()).map(|(&from, &to)| {
                    let tier =
                        |place: usize| problem.locations[place].name.split('/').next().unwrap_or_default();
                    format!("`- {{from: {}, to: {}, price: 0.1 $/GiB}}`", tier(from), tier(to))
                });
                let help = format!(
                    "add the link to `links` of {}: {}; or profile `{}` on a worker where its records are",
                    inputs.infrastructure.name.span.source().map_or("the infrastructure", |file| file.name()),
                    example.unwrap_or_default(),
                    operator.id
                );
                found.push(Diagnostic::error("E0905", message).at(span).with_help(help));
                // Findings about later operators would only repeat this one.
                return;
            }
        }
        at.push(reached);
    }
}
