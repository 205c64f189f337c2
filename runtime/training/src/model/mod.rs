//! Models and their gradients.
use crate::data::Examples;
use crate::layer::largest;
use serde::{Deserialize, Serialize};
use tidemill_random::Random;

pub(crate) mod mixture;
mod perceptron;

/// A classifier. Its parameters are one list of numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// Linear layers with rectifiers between them.
    Perceptron {
        /// The number of inputs, of the values of each hidden layer, and of classes.
        sizes: Vec<usize>,
    },
    /// A gate that gives each example to one of several small perceptrons (Switch Transformer, Fedus et al. 2022, section 2.1).
    Mixture {
        /// Inputs.
        inputs: usize,
        /// Values of the hidden layer of an expert.
        hidden: usize,
        /// Experts.
        experts: usize,
        /// Classes.
        classes: usize,
        /// The weight of the loss that balances the experts (section 2.2 there).
        balance: f64,
    },
}

impl Model {
    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.layers().into_iter().map(|(inputs, outputs)| outputs * (inputs + 1)).sum()
    }

    /// Returns the sizes of inputs and outputs of all linear layers, in the order of the parameters.
    fn layers(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Perceptron { sizes } => perceptron::layers(sizes),
            Self::Mixture { inputs, hidden, experts, classes, .. } => {
                mixture::layers(*inputs, *hidden, *experts, *classes)
            }
        }
    }

    /// Returns what is wrong with the sizes, if anything.
    pub(crate) fn fault(&self, inputs: usize, classes: usize) -> Option<String> {
        let layers = self.layers();
        let (own, scores) = match (layers.first(), layers.last()) {
            (Some(first), Some(last)) => (first.0, last.1),
            _ => return Some("a model has at least one layer".to_owned()),
        };
        if layers.iter().any(|(inputs, outputs)| *inputs == 0 || *outputs == 0) {
            return Some("each size is at least 1".to_owned());
        }
        (own != inputs || scores != classes).then(|| {
            format!(
                "the model has {own} inputs and {scores} classes, and the examples {inputs} and {classes}"
            )
        })
    }

    /// Returns the sizes of a mixture; none for a perceptron.
    pub(crate) fn shape(&self) -> Option<mixture::Shape> {
        match self {
            Self::Perceptron { .. } => None,
            Self::Mixture { hidden, experts, balance, .. } => {
                Some(mixture::Shape { hidden: *hidden, experts: *experts, balance: *balance })
            }
        }
    }

    /// Draws parameters: weights as He et al. (2015, section 2.2) for rectifiers, biases 0.
    pub fn initial(&self, seed: u64) -> Vec<f64> {
        let mut random = Random::of_seed(seed);
        let mut parameters = Vec::with_capacity(self.parameters());
        for (inputs, outputs) in self.layers() {
            let deviation = (2.0 / inputs as f64).sqrt();
            // The sum of twelve uniform numbers is near a normal one, without functions that differ between systems.
            let normal = |random: &mut Random| (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            parameters.extend((0..inputs * outputs).map(|_| deviation * normal(&mut random)));
            parameters.extend(std::iter::repeat_n(0.0, outputs));
        }
        parameters
    }

    /// Adds the gradient of the loss of some examples to `gradient`, and returns their loss: sums over the examples.
    pub fn learn(
        &self,
        parameters: &[f64],
        examples: &Examples,
        chosen: &[usize],
        gradient: &mut [f64],
    ) -> f64 {
        match self {
            Self::Perceptron { sizes } => perceptron::learn(sizes, parameters, examples, chosen, gradient),
            Self::Mixture { hidden, experts, balance, .. } => {
                let shape = mixture::Shape { hidden: *hidden, experts: *experts, balance: *balance };
                shape.learn(parameters, examples, chosen, gradient)
            }
        }
    }

    /// Returns the scores of the classes.
    pub fn scores(&self, parameters: &[f64], input: &[f64], classes: usize) -> Vec<f64> {
        match self {
            Self::Perceptron { sizes } => perceptron::scores(sizes, parameters, input),
            Self::Mixture { hidden, experts, balance, .. } => {
                let shape = mixture::Shape { hidden: *hidden, experts: *experts, balance: *balance };
                shape.scores(parameters, input, classes)
            }
        }
    }

    /// Returns the class with the highest score.
    pub fn class(&self, parameters: &[f64], input: &[f64], classes: usize) -> usize {
        largest(&self.scores(parameters, input, classes))
    }

    /// Returns the number of experts; a perceptron is one.
    pub fn experts(&self) -> usize {
        match self {
            Self::Perceptron { .. } => 1,
            Self::Mixture { experts, .. } => *experts,
        }
    }

    /// Returns the expert that computes an example; a perceptron has only one.
    pub fn expert(&self, parameters: &[f64], input: &[f64]) -> usize {
        match self {
            Self::Perceptron { .. } => 0,
            Self::Mixture { experts, .. } => mixture::expert(parameters, input, *experts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::spirals;

    /// Compares each part of the gradient with the change of the loss.
    fn check(model: &Model) {
        let examples = spirals(3, 24, 5);
        let chosen: Vec<usize> = (0..24).collect();
        let parameters = model.initial(3);
        let mut gradient = vec![0.0; parameters.len()];
        model.learn(&parameters, &examples, &chosen, &mut gradient);
        assert!(gradient.iter().filter(|value| **value != 0.0).count() * 2 > gradient.len());
        let loss = |place: usize, step: f64| {
            let mut moved = parameters.clone();
            moved[place] += step;
            model.learn(&moved, &examples, &chosen, &mut vec![0.0; parameters.len()])
        };
        for (place, found) in gradient.iter().enumerate() {
            let slope = (loss(place, 1e-6) - loss(place, -1e-6)) / 2e-6;
            assert!((slope - found).abs() < 1e-5 * (1.0 + slope.abs()), "{place}: {slope} {found}");
        }
    }

    #[test]
    fn gradients_of_a_perceptron() {
        check(&Model::Perceptron { sizes: vec![2, 7, 5, 3] });
    }

    #[test]
    fn gradients_of_a_mixture() {
        for balance in [0.0, 0.3] {
            check(&Model::Mixture { inputs: 2, hidden: 5, experts: 3, classes: 3, balance });
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let model = Model::Perceptron { sizes: vec![2, 4, 3] };
        assert_eq!(model.fault(2, 3), None);
        assert!(model.fault(4, 3).unwrap().contains("2 inputs"));
        assert!(Model::Perceptron { sizes: vec![2, 0, 3] }.fault(2, 3).unwrap().contains("at least 1"));
        assert!(Model::Perceptron { sizes: vec![2] }.fault(2, 3).unwrap().contains("one layer"));
    }
}
