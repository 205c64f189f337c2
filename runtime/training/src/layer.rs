//! Layers, forward and backward, one example at a time.

/// Returns weights * input + bias. The parameters are the rows of the weights, then the bias.
pub(crate) fn linear(parameters: &[f64], input: &[f64], outputs: usize) -> Vec<f64> {
    let (weights, bias) = parameters.split_at(outputs * input.len());
    let product = |row: &[f64]| row.iter().zip(input).map(|(weight, value)| weight * value).sum::<f64>();
    weights.chunks_exact(input.len()).zip(bias).map(|(row, bias)| product(row) + bias).collect()
}

/// Adds the gradient of the parameters of [`linear`], and returns that of its input.
pub(crate) fn linear_backward(
    parameters: &[f64],
    input: &[f64],
    of_output: &[f64],
    gradient: &mut [f64],
) -> Vec<f64> {
    let count = of_output.len() * input.len();
    let (of_weights, of_bias) = gradient.split_at_mut(count);
    let mut of_input = vec![0.0; input.len()];
    let rows = parameters[..count].chunks_exact(input.len()).zip(of_weights.chunks_exact_mut(input.len()));
    for ((row, of_row), (of_output, of_bias)) in rows.zip(of_output.iter().zip(of_bias)) {
        *of_bias += of_output;
        let both = of_row.iter_mut().zip(&mut of_input);
        for ((of_weight, of_value), (value, weight)) in both.zip(input.iter().zip(row)) {
            *of_weight += of_output * value;
            *of_value += of_output * weight;
        }
    }
    of_input
}

/// Replaces negative values by 0.
pub(crate) fn rectified(mut values: Vec<f64>) -> Vec<f64> {
    values.iter_mut().for_each(|value| *value = value.max(0.0));
    values
}

/// Keeps the gradient where the output of [`rectified`] is above 0.
pub(crate) fn rectified_backward(output: &[f64], gradient: &mut [f64]) {
    gradient.iter_mut().zip(output).filter(|(_, output)| **output <= 0.0).for_each(|(value, _)| *value = 0.0);
}

/// Returns probabilities in proportion to the exponentials.
pub(crate) fn softmax(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = values.iter().map(|value| (value - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|value| value / sum).collect()
}

/// Returns the gradient of the input of [`softmax`], from its output and the gradient of that.
pub(crate) fn softmax_backward(output: &[f64], gradient: &[f64]) -> Vec<f64> {
    let mean: f64 = output.iter().zip(gradient).map(|(value, gradient)| value * gradient).sum();
    output.iter().zip(gradient).map(|(value, gradient)| value * (gradient - mean)).collect()
}

/// Returns the cross entropy of scores with a class, and the gradient of the scores.
pub(crate) fn cross_entropy(scores: &[f64], label: usize) -> (f64, Vec<f64>) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let logarithm = scores.iter().map(|score| (score - largest).exp()).sum::<f64>().ln() + largest;
    let mut gradient = softmax(scores);
    gradient[label] -= 1.0;
    (logarithm - scores[label], gradient)
}

/// Returns the place of the largest value: the first one of equals.
pub(crate) fn largest(values: &[f64]) -> usize {
    (0..values.len()).fold(0, |best, place| if values[place] > values[best] { place } else { best })
}
