//! A model to draft a manifest for: its facts, and the ports that no family has described yet.
use super::beside::Beside;
use super::exporter::Exporter;
use super::ports::{self, Side};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_inference::facts::{ModelFacts, Port};
use tidemill_spec::manifest::BLANK_COLUMN;
use tidemill_spec::types::ElementType;

/// A run on zeros.
#[derive(Debug, Clone, Default)]
pub(super) struct Tried {
    /// Shapes of the outputs, by name.
    pub(super) shapes: BTreeMap<String, Vec<usize>>,
    /// Outputs whose vectors are probabilities: from 0 to 1, and 1 together.
    pub(super) probabilities: BTreeSet<String>,
}

/// Runs the model on zeros of these types and shapes, one for each input of the file.
pub(super) type Trial<'a> = dyn Fn(&[(ElementType, Vec<usize>)]) -> Option<Tried> + 'a;

/// The model.
#[derive(Clone)]
pub(super) struct Subject<'a> {
    pub(super) facts: &'a ModelFacts,
    /// Inputs to describe.
    pub(super) inputs: Vec<&'a Port>,
    /// Outputs to describe.
    pub(super) outputs: Vec<&'a Port>,
    pub(super) beside: &'a Beside,
    pub(super) exporter: &'a Exporter,
    /// Shapes for one record of inputs that are described already.
    fed: BTreeMap<String, Vec<usize>>,
    trial: &'a Trial<'a>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(
        facts: &'a ModelFacts,
        beside: &'a Beside,
        exporter: &'a Exporter,
        trial: &'a Trial<'a>,
    ) -> Self {
        Self {
            facts,
            inputs: facts.inputs.iter().collect(),
            outputs: facts.outputs.iter().collect(),
            beside,
            exporter,
            fed: BTreeMap::new(),
            trial,
        }
    }

    /// Returns the model without ports that are described: inputs with their shapes for one record, and outputs.
    pub(super) fn without(&self, inputs: &[(String, Vec<usize>)], outputs: &[String]) -> Self {
        let mut rest = self.clone();
        rest.inputs.retain(|port| inputs.iter().all(|(name, _)| *name != port.name));
        rest.outputs.retain(|port| !outputs.contains(&port.name));
        rest.fed.extend(inputs.iter().cloned());
        rest
    }

    /// Whether ports were described already.
    pub(super) fn is_rest(&self) -> bool {
        !self.fed.is_empty()
    }

    /// Name of the dimension that counts records.
    pub(super) fn batch(&self) -> &str {
        ports::batch_name(&self.facts.inputs)
    }

    /// Runs the model with inputs of these shapes; others get those of one record.
    pub(super) fn tried(&self, shapes: &[(&str, Vec<usize>)]) -> Option<Tried> {
        let mut inputs = Vec::new();
        for port in &self.facts.inputs {
            let given = shapes.iter().find(|(name, _)| *name == port.name).map(|(_, shape)| shape.clone());
            let shape = given
                .or_else(|| self.fed.get(&port.name).cloned())
                .or_else(|| ports::of_one(port, self.batch()))?;
            inputs.push((ports::element(port)?, shape));
        }
        (self.trial)(&inputs)
    }

    /// The shape of an input as far as the file shows it.
    pub(super) fn input_sides(&self, port: &Port) -> Vec<Side> {
        ports::sides(port.shape.as_deref().unwrap_or_default(), self.batch())
    }

    /// The shape of an output.
    pub(super) fn output_sides(&self, port: &Port, tried: Option<&Tried>) -> Vec<Side> {
        ports::output_sides(port, self.batch(), tried)
    }

    /// The operator that gives an output, without its domain.
    pub(super) fn maker(&self, port: &Port) -> &str {
        let maker = self.facts.makers.get(&port.name).map(String::as_str).unwrap_or_default();
        maker.rsplit('.').next().unwrap_or_default()
    }

    /// The placeholder for the column of an input; each of several has its own.
    pub(super) fn input_column(&self, port: &Port) -> String {
        column(port, self.inputs.len())
    }

    /// The placeholder for the column of an output; each of several has its own, because names of columns are unique.
    pub(super) fn output_column(&self, port: &Port) -> String {
        column(port, self.outputs.len())
    }
}

fn column(port: &Port, all: usize) -> String {
    if all == 1 {
        BLANK_COLUMN.to_owned()
    } else {
        format!("{BLANK_COLUMN}-{}", super::yaml::identifier(&port.name))
    }
}
