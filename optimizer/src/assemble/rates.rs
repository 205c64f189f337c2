//! Records per second of every stream, by the models chosen. From the sources on, the profile states how many records
//! each operator emits per input record with these models.
use super::streams::{Head, Models, input_rate, topological};
use super::{Inputs, listed};
use crate::problem::{RateCase, Rates, Source};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::workflow::Operator;

/// Most joint variants whose rates are computed.
const MOST_ASKED: usize = 65_536;
/// Most rates that a planner distinguishes; further ones are merged into the larger ones.
const MOST_CASES: usize = 64;

/// Models by operator.
pub(super) type Choice = BTreeMap<String, String>;

/// The rates of a workflow.
pub(super) struct Flow<'a> {
    inputs: &'a Inputs<'a>,
    /// Operators in topological order.
    order: Vec<&'a Operator>,
    /// Records per second of each source.
    sources: BTreeMap<&'a str, f64>,
}

impl<'a> Flow<'a> {
    pub(super) fn new(inputs: &'a Inputs<'a>, sources: BTreeMap<&'a str, f64>) -> Self {
        Self { inputs, order: topological(inputs.workflow), sources }
    }

    /// Records per second that leave every source and operator with a choice of models.
    pub(super) fn outputs(&self, choice: &Choice) -> BTreeMap<&'a str, f64> {
        let mut rates = self.sources.clone();
        for operator in &self.order {
            let id = operator.id.value.as_str();
            let ratio = self.inputs.profile.output_per_input(id, choice);
            rates.insert(id, input_rate(self.inputs, operator, &rates) * ratio);
        }
        rates
    }

    /// Rates of the operators of the problem and of its edges (by sender) with the first model of each, and all rates
    /// where they depend on models.
    pub(super) fn rates(
        &self,
        heads: &[Head],
        models: &[Models],
        senders: &[&str],
        notes: &mut Vec<String>,
    ) -> (RateCase, Option<Rates>) {
        let counts: Vec<usize> =
            models.iter().map(|(_, models)| models.as_ref().map_or(1, Vec::len)).collect();
        let named: BTreeSet<String> =
            self.inputs.profile.ratios.iter().flat_map(|ratio| ratio.holds_for().into_keys()).collect();
        let mut matter: Vec<usize> =
            (0..heads.len()).filter(|head| counts[*head] > 1 && named.contains(&heads[*head].id)).collect();
        let mut fixed: BTreeMap<usize, usize> = BTreeMap::new();
        let choice = |variants: &[usize], fixed: &BTreeMap<usize, usize>| -> Choice {
            let chosen = models.iter().enumerate().filter_map(|(at, (head, models))| {
                let variant = *fixed.get(&at).unwrap_or(&variants[at]);
                Some((head.clone(), models.as_ref()?.get(variant)?.clone()))
            });
            chosen.collect()
        };
        let case = |variants: &[usize], fixed: &BTreeMap<usize, usize>| {
            let outputs = self.outputs(&choice(variants, fixed));
            let rate = |head: &Head| {
                let operator = self.order.iter().find(|operator| operator.id.value == head.id);
                operator.map_or(0.0, |operator| input_rate(self.inputs, operator, &outputs))
            };
            RateCase {
                operators: heads.iter().map(rate).collect(),
                edges: senders.iter().map(|sender| outputs.get(sender).copied().unwrap_or(0.0)).collect(),
            }
        };
        let asked = |matter: &[usize]| {
            matter.iter().fold(1usize, |product, head| product.saturating_mul(counts[*head]))
        };
        // Too many to compute all: the last ones are fixed to the model that emits most.
        while asked(&matter) > MOST_ASKED {
            let Some(last) = matter.pop() else { break };
            let total = |variant: usize| -> f64 {
                let mut joint = vec![0; heads.len()];
                joint[last] = variant;
                case(&joint, &fixed).edges.iter().sum()
            };
            let most = (0..counts[last]).max_by(|a, b| total(*a).total_cmp(&total(*b)));
            fixed.insert(last, most.unwrap_or(0));
        }
        let first = case(&vec![0; heads.len()], &fixed);
        let rates = Rates::of(&counts, &matter, |variants| case(variants, &fixed));
        let told = rates.as_ref().map_or(1, |rates| rates.cases.len());
        let fewer = rates.map(|rates| rates.at_most(MOST_CASES));
        if !fixed.is_empty() || told > MOST_CASES {
            let ids = matter.iter().chain(fixed.keys()).map(|head| heads[*head].id.as_str());
            notes.push(format!(
                "{}: their models emit too many different numbers of records; some are counted with the numbers of models that emit more",
                listed(ids)
            ));
        }
        (first, fewer)
    }
}

/// Records per second that leave each source and operator of the workflow, with a choice of models by operator.
pub(crate) fn outputs_of(
    inputs: &Inputs<'_>,
    sources: &[Source],
    choice: &BTreeMap<String, String>,
) -> BTreeMap<String, f64> {
    let rates = sources.iter().map(|source| (source.id.as_str(), source.rate)).collect();
    let flow = Flow { inputs, order: topological(inputs.workflow), sources: rates };
    flow.outputs(choice).into_iter().map(|(id, rate)| (id.to_owned(), rate)).collect()
}
