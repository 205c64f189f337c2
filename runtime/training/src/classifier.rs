//! A perceptron with the columns that it reads and the names of its classes: what a model file and its manifest describe together.
use crate::collected::{Collected, Column, Encoding};
use crate::data::Examples;
use crate::layer::largest;
use crate::model::Model;
use crate::trainer::{Error, Options, Trainer};
use serde::Serialize;

/// The least scale of a value, in parts of its largest one: what hardly changes is not made large.
const LEAST_SCALE: f64 = 1e-3;

/// A perceptron over named columns.
///
/// ```
/// use tidemill_training::classifier::Classifier;
/// use tidemill_training::collected::{Column, Encoding, Collected};
/// use tidemill_training::{Alone, Options, data::spirals};
/// let columns = ["x", "y"].map(|name| Column { name: name.into(), encoding: Encoding::Number });
/// let names = ["red", "blue"].map(String::from);
/// let collected = Collected { examples: spirals(2, 200, 1), names: names.into(), columns: columns.into() };
/// let mut classifier = Classifier::fresh(&collected, &[16], 1);
/// let before = classifier.quality(&collected.examples);
/// let mut trainer = classifier.trainer(&collected.examples, Options::default())?;
/// for _ in 0..300 {
///     trainer.step(&mut Alone)?;
/// }
/// classifier.parameters = trainer.parameters().to_vec();
/// assert!(classifier.quality(&collected.examples).right > before.right);
/// # Ok::<(), tidemill_training::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Classifier {
    /// Columns whose values are the inputs, in order.
    pub columns: Vec<Column>,
    /// Name of each class.
    pub names: Vec<String>,
    /// Subtracted from each input.
    pub mean: Vec<f64>,
    /// Divides each input after that.
    pub scale: Vec<f64>,
    /// Values of all layers, from the inputs to the classes.
    pub sizes: Vec<usize>,
    /// Parameters of the layers: of each the rows of its weights, then the bias.
    pub parameters: Vec<f64>,
}

/// How many examples a classifier names right.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quality {
    /// Examples whose class is right.
    pub right: u64,
    /// All examples.
    pub samples: u64,
}

impl Quality {
    /// Returns the share of right ones, from 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.samples.max(1) as f64
    }

    /// Returns the 95 % interval of the share: that of Wilson (1927).
    pub fn interval(&self) -> (f64, f64) {
        const Z: f64 = 1.959_963_984_540_054;
        let (share, samples) = (self.accuracy(), self.samples.max(1) as f64);
        let width = 1.0 + Z * Z / samples;
        let middle = (share + Z * Z / (2.0 * samples)) / width;
        let half = Z / width * (share * (1.0 - share) / samples + Z * Z / (4.0 * samples * samples)).sqrt();
        ((middle - half).clamp(0.0, share), (middle + half).clamp(share, 1.0))
    }
}

impl Classifier {
    /// Creates a classifier of the columns and classes of examples, with these hidden layers and drawn parameters. Numbers and tensors are
    /// scaled by the mean and the standard deviation that they have in the examples.
    pub fn fresh(collected: &Collected, hidden: &[usize], seed: u64) -> Self {
        let (mean, scale) = scaling(&collected.columns, &collected.examples);
        let mut sizes = vec![collected.examples.inputs];
        sizes.extend_from_slice(hidden);
        sizes.push(collected.names.len());
        let parameters = Model::Perceptron { sizes: sizes.clone() }.initial(seed);
        let (columns, names) = (collected.columns.clone(), collected.names.clone());
        Self { columns, names, mean, scale, sizes, parameters }
    }

    /// Leaves all inputs as they are.
    #[must_use]
    pub fn unscaled(mut self) -> Self {
        self.mean.fill(0.0);
        self.scale.fill(1.0);
        self
    }

    /// Returns the model without its parameters.
    pub fn model(&self) -> Model {
        Model::Perceptron { sizes: self.sizes.clone() }
    }

    /// Adds classes after the known ones, each with weights of 0 and the lowest bias of the known ones. The scores of those stay.
    pub fn add_classes(&mut self, names: &[String]) {
        let new: Vec<&String> = names.iter().filter(|name| !self.names.contains(name)).collect();
        let [.., inputs, outputs] = self.sizes[..] else { return };
        let begin = self.parameters.len().saturating_sub(outputs * (inputs + 1));
        let bias = self.parameters.split_off(begin + outputs * inputs);
        self.parameters.resize(begin + (outputs + new.len()) * inputs, 0.0);
        let least = bias.iter().copied().fold(0.0, f64::min);
        self.parameters.extend(bias);
        self.parameters.extend(std::iter::repeat_n(least, new.len()));
        self.names.extend(new.into_iter().cloned());
        if let Some(classes) = self.sizes.last_mut() {
            *classes = self.names.len();
        }
    }

    /// Returns the examples as the first layer gets them.
    pub fn scaled(&self, examples: &Examples) -> Examples {
        let mut scaled = examples.clone();
        scaled.classes = self.names.len();
        for values in scaled.values.chunks_exact_mut(self.mean.len().max(1)) {
            self.scale_row(values);
        }
        scaled
    }

    fn scale_row(&self, values: &mut [f64]) {
        let scaling = self.mean.iter().zip(&self.scale);
        values.iter_mut().zip(scaling).for_each(|(value, (mean, scale))| *value = (*value - mean) / scale);
    }

    /// Returns a training that begins with the parameters of this classifier. The classes of the examples are numbered as `names`.
    ///
    /// # Errors
    /// See [`Trainer::new`].
    pub fn trainer(&self, examples: &Examples, options: Options) -> Result<Trainer, Error> {
        let mut trainer = Trainer::new(self.model(), options, self.scaled(examples))?;
        trainer.start_from(&self.parameters)?;
        Ok(trainer)
    }

    /// Returns the scores of all classes.
    pub fn scores(&self, input: &[f64]) -> Vec<f64> {
        let mut values = input.to_vec();
        self.scale_row(&mut values);
        self.model().scores(&self.parameters, &values, self.names.len())
    }

    /// Counts the examples that it names right.
    pub fn quality(&self, examples: &Examples) -> Quality {
        let is_right = |index: &usize| {
            let (input, label) = examples.get(*index);
            largest(&self.scores(input)) == label
        };
        let right = (0..examples.len()).filter(is_right).count() as u64;
        Quality { right, samples: examples.len() as u64 }
    }
}

/// Returns what is subtracted from each value, and what divides it after that.
fn scaling(columns: &[Column], examples: &Examples) -> (Vec<f64>, Vec<f64>) {
    let (mut mean, mut scale) = (vec![0.0; examples.inputs], vec![1.0; examples.inputs]);
    let mut begin = 0;
    for column in columns {
        let places = begin..begin + column.width();
        begin = places.end;
        if matches!(column.encoding, Encoding::Characters(_)) {
            continue;
        }
        for place in places {
            let values = || examples.values.iter().skip(place).step_by(examples.inputs);
            let count = examples.len().max(1) as f64;
            mean[place] = values().sum::<f64>() / count;
            let variance = values().map(|value| (value - mean[place]).powi(2)).sum::<f64>() / count;
            let largest = values().fold(0.0, |largest: f64, value| largest.max(value.abs()));
            let least = LEAST_SCALE * largest;
            scale[place] = if largest == 0.0 { 1.0 } else { variance.sqrt().max(least) };
        }
    }
    (mean, scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::spirals;
    use crate::exchange::Alone;

    fn collected() -> Collected {
        let mut examples = spirals(3, 300, 1);
        // One column is large and far from 0, as measured values are.
        examples.values.iter_mut().step_by(2).for_each(|value| *value = 5000.0 + 300.0 * *value);
        let columns = ["x", "y"].map(|name| Column { name: name.into(), encoding: Encoding::Number });
        Collected { examples, names: ["a", "b", "c"].map(String::from).into(), columns: columns.into() }
    }

    fn learn(classifier: &mut Classifier, examples: &Examples, steps: usize) {
        let mut trainer = classifier.trainer(examples, Options::default()).unwrap();
        for _ in 0..steps {
            trainer.step(&mut Alone).unwrap();
        }
        classifier.parameters = trainer.parameters().to_vec();
    }

    #[test]
    fn large_values_are_learnt() {
        let collected = collected();
        let mut classifier = Classifier::fresh(&collected, &[32, 32], 3);
        learn(&mut classifier, &collected.examples, 600);
        let quality = classifier.quality(&collected.examples);
        assert!(quality.accuracy() > 0.85, "{quality:?}");
        let (low, high) = quality.interval();
        assert!(low < quality.accuracy() && quality.accuracy() <= high && high <= 1.0);
    }

    #[test]
    fn a_training_begins_where_the_classifier_is() {
        let collected = collected();
        let mut classifier = Classifier::fresh(&collected, &[32, 32], 3);
        learn(&mut classifier, &collected.examples, 600);
        let trainer = classifier.trainer(&collected.examples, Options::default()).unwrap();
        assert_eq!(trainer.parameters(), classifier.parameters);
        let own = classifier.quality(&collected.examples).accuracy();
        assert!((trainer.evaluate().accuracy - own).abs() < 1e-12);
    }

    /// New classes change no score of the known ones, and can be learnt.
    #[test]
    fn classes_are_added() {
        let all = collected();
        let of = |classes: &[usize]| {
            let mut some = Examples { values: Vec::new(), labels: Vec::new(), ..all.examples.clone() };
            for index in 0..all.examples.len() {
                let (values, label) = all.examples.get(index);
                if classes.contains(&label) {
                    some.values.extend_from_slice(values);
                    some.labels.push(label);
                }
            }
            some
        };
        let two = Examples { classes: 2, ..of(&[0, 1]) };
        let known =
            Collected { examples: two.clone(), names: all.names[..2].to_vec(), columns: all.columns.clone() };
        let mut classifier = Classifier::fresh(&known, &[32, 32], 3);
        learn(&mut classifier, &two, 400);
        let before = classifier.scores(two.get(0).0);
        classifier.add_classes(&all.names);
        assert_eq!(classifier.names, all.names);
        assert_eq!(classifier.parameters.len(), classifier.model().parameters());
        assert_eq!(classifier.scores(two.get(0).0)[..2], before);
        learn(&mut classifier, &all.examples, 600);
        assert!(classifier.quality(&all.examples).accuracy() > 0.8);
    }

    #[test]
    fn intervals_are_those_of_wilson() {
        let quality = Quality { right: 9154, samples: 10_000 };
        let (low, high) = quality.interval();
        assert!((low - 0.9098).abs() < 1e-4 && (high - 0.9207).abs() < 1e-4, "{low} {high}");
        assert_eq!(Quality { right: 5, samples: 5 }.interval().1, 1.0);
        assert_eq!(Quality { right: 0, samples: 5 }.interval().0, 0.0);
    }
}
