//! Linear layers with rectifiers between them.
use crate::data::Examples;
use crate::layer::{cross_entropy, linear, linear_backward, rectified, rectified_backward};

pub(super) fn layers(sizes: &[usize]) -> Vec<(usize, usize)> {
    sizes.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Returns the input of each layer, and the scores.
fn forward(sizes: &[usize], parameters: &[f64], input: &[f64]) -> Vec<Vec<f64>> {
    let mut values = vec![input.to_vec()];
    let mut rest = parameters;
    for (index, (inputs, outputs)) in layers(sizes).into_iter().enumerate() {
        let (own, after) = rest.split_at(outputs * (inputs + 1));
        let output = linear(own, &values[index], outputs);
        values.push(if index + 2 < sizes.len() { rectified(output) } else { output });
        rest = after;
    }
    values
}

pub(super) fn scores(sizes: &[usize], parameters: &[f64], input: &[f64]) -> Vec<f64> {
    forward(sizes, parameters, input).pop().unwrap_or_default()
}

pub(super) fn learn(
    sizes: &[usize],
    parameters: &[f64],
    examples: &Examples,
    chosen: &[usize],
    gradient: &mut [f64],
) -> f64 {
    let layers = layers(sizes);
    let mut loss = 0.0;
    for index in chosen {
        let (input, label) = examples.get(*index);
        let values = forward(sizes, parameters, input);
        let (own, mut of_output) = cross_entropy(&values[layers.len()], label);
        loss += own;
        let mut end = parameters.len();
        for (layer, (inputs, outputs)) in layers.iter().enumerate().rev() {
            let begin = end - outputs * (inputs + 1);
            if layer + 1 < layers.len() {
                rectified_backward(&values[layer + 1], &mut of_output);
            }
            let (own, of_own) = (&parameters[begin..end], &mut gradient[begin..end]);
            of_output = linear_backward(own, &values[layer], &of_output, of_own);
            end = begin;
        }
    }
    loss
}
