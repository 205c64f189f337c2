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

pub(super) struct Shape {
    pub(super) hidden: usize,
    pub(super) experts: usize,
    pub(super) balance: f64,
}

/// The values that an example has between the layers.
pub(super) struct Computed {
    pub(super) scores: Vec<f64>,
    gate: Vec<f64>,
    expert: usize,
    hidden: Vec<f64>,
    /// The scores before they are multiplied by the gate's probability.
    raw: Vec<f64>,
}

impl Shape {
    /// Where the two layers of an expert begin and end.
    fn place(&self, expert: usize, inputs: usize, classes: usize) -> (usize, usize, usize) {
        let (first, second) = (self.hidden * (inputs + 1), classes * (self.hidden + 1));
        let begin = self.experts * (inputs + 1) + expert * (first + second);
        (begin, begin + first, begin + first + second)
    }

    pub(super) fn scores(&self, parameters: &[f64], input: &[f64], classes: usize) -> Computed {
        let gate = softmax(&linear(&parameters[..self.experts * (input.len() + 1)], input, self.experts));
        let expert = largest(&gate);
        let (begin, middle, end) = self.place(expert, input.len(), classes);
        let hidden = rectified(linear(&parameters[begin..middle], input, self.hidden));
        let raw = linear(&parameters[middle..end], &hidden, classes);
        let scores = raw.iter().map(|score| gate[expert] * score).collect();
        Computed { scores, gate, expert, hidden, raw }
    }

    pub(super) fn learn(
        &self,
        parameters: &[f64],
        examples: &Examples,
        chosen: &[usize],
        gradient: &mut [f64],
    ) -> f64 {
        let count = chosen.len().max(1) as f64;
        let computed: Vec<Computed> = chosen
            .iter()
            .map(|index| self.scores(parameters, examples.get(*index).0, examples.classes))
            .collect();
        // The share of the examples that each expert has; it is a number without a gradient.
        let mut shares = vec![0.0; self.experts];
        computed.iter().for_each(|computed| shares[computed.expert] += 1.0 / count);
        let weight = self.balance * self.experts as f64;
        let mut loss = 0.0;
        for (index, computed) in chosen.iter().zip(&computed) {
            let (input, label) = examples.get(*index);
            let (own, of_scores) = cross_entropy(&computed.scores, label);
            let balance: f64 = shares.iter().zip(&computed.gate).map(|(share, gate)| share * gate).sum();
            loss += own + weight * balance;
            let probability = computed.gate[computed.expert];
            let mut of_gate: Vec<f64> = shares.iter().map(|share| weight * share).collect();
            of_gate[computed.expert] +=
                of_scores.iter().zip(&computed.raw).map(|(of, raw)| of * raw).sum::<f64>();
            let of_raw: Vec<f64> = of_scores.iter().map(|of| of * probability).collect();
            let (begin, middle, end) = self.place(computed.expert, input.len(), examples.classes);
            let mut of_hidden = linear_backward(
                &parameters[middle..end],
                &computed.hidden,
                &of_raw,
                &mut gradient[middle..end],
            );
            rectified_backward(&computed.hidden, &mut of_hidden);
            linear_backward(&parameters[begin..middle], input, &of_hidden, &mut gradient[begin..middle]);
            let of_gate = softmax_backward(&computed.gate, &of_gate);
            let gate = self.experts * (input.len() + 1);
            linear_backward(&parameters[..gate], input, &of_gate, &mut gradient[..gate]);
        }
        loss
    }
}
