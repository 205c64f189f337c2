//! Examples from a seed.
use tidemill_random::Random;

/// Makes the seed of held-out examples another one than that of a training.
const HELD_OUT: u64 = 0x6865_6c64;

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

impl Examples {
    /// Takes a share of the examples out, chosen by the seed. Returns the rest and these.
    ///
    /// ```
    /// let all = tidemill_training::data::spirals(3, 90, 1);
    /// let (rest, held_out) = all.divided(0.2, 7);
    /// assert_eq!((rest.len(), held_out.len()), (72, 18));
    /// ```
    pub fn divided(&self, share: f64, seed: u64) -> (Self, Self) {
        let mut random = Random::of_seed(tidemill_random::mixed(seed ^ HELD_OUT));
        let mut order: Vec<usize> = (0..self.len()).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, random.below(place + 1));
        }
        let count = (self.len() as f64 * share.clamp(0.0, 1.0)).round() as usize;
        let (held_out, rest) = order.split_at_mut(count.min(self.len()));
        held_out.sort_unstable();
        rest.sort_unstable();
        (self.chosen(rest), self.chosen(held_out))
    }

    fn chosen(&self, places: &[usize]) -> Self {
        let values = places.iter().flat_map(|place| self.get(*place).0).copied().collect();
        let labels = places.iter().map(|place| self.labels[*place]).collect();
        Self { inputs: self.inputs, classes: self.classes, values, labels }
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
