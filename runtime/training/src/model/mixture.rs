//! A mixture of experts with a gate that chooses one.
use crate::data::Examples;
use crate::layer::{
    cross_entropy, largest, linear, linear_backward, rectified, rectified_backward, softmax, softmax_backward,
};

pub(super) fn layers(inputs: usize, hidden: usize, experts: usize, classes: usize) -> Vec<(usize, usize)> {
    let of_expert = [(inputs, hidden), (hidden, classes)];
    std::iter::once((inputs, experts)).chain(std::iter::repeat_n(of_expert, experts).flatten()).collect()
}

pub(super) fn expert(parameters: &[f64], input: &[f64], experts: usize) -> usize {
    largest(&linear(&parameters[..experts * (input.len() + 1)], input, experts))
}

/// The sizes of a mixture. Its parameters are those of the gate, then those of each expert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) experts: usize,
    pub(crate) balance: f64,
}

/// An example after the gate and its expert.
#[derive(Debug, Clone)]
pub(crate) struct Routed {
    /// The probability of each expert.
    pub(crate) gate: Vec<f64>,
    /// The expert that computes it.
    pub(crate) expert: usize,
    /// The scores of the expert, before they are multiplied by the gate's probability.
    pub(crate) raw: Vec<f64>,
}

impl Routed {
    fn scores(&self) -> Vec<f64> {
        self.raw.iter().map(|score| score * self.gate[self.expert]).collect()
    }
}

impl Shape {
    /// The parameters of the gate.
    pub(crate) fn of_gate(&self, inputs: usize) -> usize {
        self.experts * (inputs + 1)
    }

    /// The parameters of an expert.
    pub(crate) fn of_expert(&self, inputs: usize, classes: usize) -> usize {
        self.hidden * (inputs + 1) + classes * (self.hidden + 1)
    }

    /// Where the parameters of an expert begin.
    pub(crate) fn begin(&self, expert: usize, inputs: usize, classes: usize) -> usize {
        self.of_gate(inputs) + expert * self.of_expert(inputs, classes)
    }

    /// Sends an example through the gate; the scores are empty.
    pub(crate) fn route(&self, gate: &[f64], input: &[f64]) -> Routed {
        let gate = softmax(&linear(gate, input, self.experts));
        let expert = largest(&gate);
        Routed { gate, expert, raw: Vec::new() }
    }

    /// Sends an input through an expert: the values of its hidden layer, and its scores.
    pub(crate) fn forward(&self, own: &[f64], input: &[f64], classes: usize) -> (Vec<f64>, Vec<f64>) {
        let (first, second) = own.split_at(self.hidden * (input.len() + 1));
        let hidden = rectified(linear(first, input, self.hidden));
        let raw = linear(second, &hidden, classes);
        (hidden, raw)
    }

    /// Adds the gradient of an expert for an input, from that of its scores.
    pub(crate) fn backward(
        &self,
        own: &[f64],
        input: &[f64],
        hidden: &[f64],
        of_raw: &[f64],
        gradient: &mut [f64],
    ) {
        let middle = self.hidden * (input.len() + 1);
        let (of_first, of_second) = gradient.split_at_mut(middle);
        let mut of_hidden = linear_backward(&own[middle..], hidden, of_raw, of_second);
        rectified_backward(hidden, &mut of_hidden);
        linear_backward(&own[..middle], input, &of_hidden, of_first);
    }

    /// Adds the gradient of the gate, and returns the loss and the gradient of the scores of each example.
    pub(crate) fn judge(
        &self,
        gate: &[f64],
        examples: &Examples,
        chosen: &[usize],
        routed: &[Routed],
        gradient: &mut [f64],
    ) -> (f64, Vec<Vec<f64>>) {
        let count = chosen.len().max(1) as f64;
        // The share of the examples that each expert has; it is a number without a gradient.
        let mut shares = vec![0.0; self.experts];
        routed.iter().for_each(|routed| shares[routed.expert] += 1.0 / count);
        let weight = self.balance * self.experts as f64;
        let (mut loss, mut of_raws) = (0.0, Vec::with_capacity(chosen.len()));
        for (index, routed) in chosen.iter().zip(routed) {
            let (input, label) = examples.get(*index);
            let (own, of_scores) = cross_entropy(&routed.scores(), label);
            let balance: f64 = shares.iter().zip(&routed.gate).map(|(share, gate)| share * gate).sum();
            loss += own + weight * balance;
            let probability = routed.gate[routed.expert];
            let mut of_gate: Vec<f64> = shares.iter().map(|share| weight * share).collect();
            of_gate[routed.expert] +=
                of_scores.iter().zip(&routed.raw).map(|(of, raw)| of * raw).sum::<f64>();
            of_raws.push(of_scores.iter().map(|of| of * probability).collect());
            let of_gate = softmax_backward(&routed.gate, &of_gate);
            linear_backward(gate, input, &of_gate, gradient);
        }
        (loss, of_raws)
    }

    fn computed(&self, parameters: &[f64], input: &[f64], classes: usize) -> (Routed, Vec<f64>) {
        let mut routed = self.route(&parameters[..self.of_gate(input.len())], input);
        let begin = self.begin(routed.expert, input.len(), classes);
        let own = &parameters[begin..begin + self.of_expert(input.len(), classes)];
        let (hidden, raw) = self.forward(own, input, classes);
        routed.raw = raw;
        (routed, hidden)
    }

    pub(super) fn scores(&self, parameters: &[f64], input: &[f64], classes: usize) -> Vec<f64> {
        self.computed(parameters, input, classes).0.scores()
    }

    pub(super) fn learn(
        &self,
        parameters: &[f64],
        examples: &Examples,
        chosen: &[usize],
        gradient: &mut [f64],
    ) -> f64 {
        let (inputs, classes) = (examples.inputs, examples.classes);
        let (routed, hidden): (Vec<Routed>, Vec<Vec<f64>>) =
            chosen.iter().map(|index| self.computed(parameters, examples.get(*index).0, classes)).unzip();
        let (of_gate, size) = (self.of_gate(inputs), self.of_expert(inputs, classes));
        let (loss, of_raws) =
            self.judge(&parameters[..of_gate], examples, chosen, &routed, &mut gradient[..of_gate]);
        for ((index, routed), (hidden, of_raw)) in chosen.iter().zip(&routed).zip(hidden.iter().zip(&of_raws))
        {
            let begin = self.begin(routed.expert, inputs, classes);
            let own = &parameters[begin..begin + size];
            self.backward(own, examples.get(*index).0, hidden, of_raw, &mut gradient[begin..begin + size]);
        }
        loss
    }
}
