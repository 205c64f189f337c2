//! Examples from a seed.
use tidemill_random::Random;

/// Inputs and the class of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples {
    /// Values of an input.
    pub inputs: usize,
    /// Classes, from 0 on.
    pub classes: usize,
    /// The inputs, one after another.
    pub values: Vec<f64>,
    /// The class of each.
    pub labels: Vec<usize>,
}

impl Examples {
    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns an input and its class.
    pub fn get(&self, index: usize) -> (&[f64], usize) {
        (&self.values[index * self.inputs..(index + 1) * self.inputs], self.labels[index])
    }
}

/// Draws points of the plane on as many spiral arms as there are classes: no line divides them.
pub fn spirals(classes: usize, count: usize, seed: u64) -> Examples {
    let mut random = Random::of_seed(seed);
    let (mut values, mut labels) = (Vec::with_capacity(2 * count), Vec::with_capacity(count));
    for index in 0..count {
        let class = index % classes.max(1);
        let radius = 0.1 + 0.9 * random.unit();
        let turn = class as f64 / classes as f64 * std::f64::consts::TAU;
        let angle = turn + 3.0 * radius + random.uniform(-0.25, 0.25);
        values.extend([radius * angle.cos(), radius * angle.sin()]);
        labels.push(class);
    }
    Examples { inputs: 2, classes, values, labels }
}
