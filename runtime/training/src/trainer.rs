//! Steps of a training.
use crate::data::Examples;
use crate::exchange::{Exchange, ExchangeError};
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use tidemill_random::{Random, mixed};

/// Parts of 1 in which gradients are added up.
const PARTS: f64 = 4_294_967_296.0;
/// The largest sum of a grain, and the most grains: no sum of all of them overflows.
const LARGEST: f64 = 1e6;
const MOST_GRAINS: usize = 2_000;

/// How a model is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Examples of a step.
    pub batch: usize,
    /// Examples whose gradient one rank adds up; the grains of a batch are dealt to the ranks in turn.
    pub grain: usize,
    /// The rate of learning.
    pub rate: f64,
    /// The part of the last change that is added to a change, from 0 on and below 1.
    pub momentum: f64,
    /// The seed of the parameters and of the order of examples.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { batch: 32, grain: 4, rate: 0.05, momentum: 0.9, seed: 1 }
    }
}

impl Options {
    /// Returns what is wrong with the options for a model and its examples, if anything.
    pub(crate) fn fault(&self, model: &Model, examples: &Examples) -> Option<String> {
        let faults = [
            (self.batch == 0 || self.grain == 0, "a batch and a grain have at least one example"),
            (self.batch > self.grain.saturating_mul(MOST_GRAINS), "a batch has at most 2,000 grains"),
            (examples.len() < self.batch, "there are fewer examples than a batch has"),
            (!(self.rate > 0.0 && self.rate.is_finite()), "the rate is above 0"),
            (!(0.0..1.0).contains(&self.momentum), "the momentum is from 0 on and below 1"),
        ];
        let fault = faults.iter().find(|(is_so, _)| *is_so).map(|(_, text)| (*text).to_owned());
        fault.or_else(|| model.fault(examples.inputs, examples.classes))
    }

    /// Returns the epoch of a step, and its position there.
    pub(crate) fn place(&self, step: u64, examples: usize) -> (u64, usize) {
        let of_epoch = self.steps_of_epoch(examples);
        (step / of_epoch, (step % of_epoch) as usize)
    }

    /// Returns the steps in which all examples come once, without a last batch that would be smaller.
    pub fn steps_of_epoch(&self, examples: usize) -> u64 {
        (examples / self.batch.max(1)).max(1) as u64
    }

    /// Returns the order of the examples in an epoch.
    pub(crate) fn order(&self, epoch: u64, examples: usize) -> Vec<usize> {
        let mut random = Random::of_seed(mixed(self.seed) ^ epoch);
        let mut order: Vec<usize> = (0..examples).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, random.below(place + 1));
        }
        order
    }

    /// Returns the mean over a batch of a sum in parts of 1.
    pub(crate) fn mean(&self, sum: i64) -> f64 {
        sum as f64 / PARTS / self.batch as f64
    }

    /// Changes parameters by the sums of their gradients.
    pub(crate) fn descend(&self, parameters: &mut [f64], velocity: &mut [f64], sums: &[i64]) {
        for ((parameter, velocity), sum) in parameters.iter_mut().zip(velocity).zip(sums) {
            *velocity = self.momentum * *velocity - self.rate * self.mean(*sum);
            *parameter += *velocity;
        }
    }
}

/// Adds a gradient in parts of 1. Returns false, and adds nothing, where it is no number or too large.
pub(crate) fn add(sums: &mut [i64], gradient: &[f64]) -> bool {
    let is_usable = gradient.iter().all(|value| value.abs() <= LARGEST);
    if is_usable {
        sums.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += (value * PARTS).round() as i64);
    }
    is_usable
}

/// Why a training cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model or the options do not fit.
    #[error("{0}")]
    Options(String),
    /// The gradient is no number or too large.
    #[error(
        "step {step}: the gradient of a grain is not a number or above {LARGEST:e}; use a lower rate than {rate}"
    )]
    Diverged {
        /// The step, from 0 on.
        step: u64,
        /// The rate of learning.
        rate: f64,
    },
    /// The ranks cannot add up.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A checkpoint cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The replicas of experts cannot be placed.
    #[error("the experts cannot be placed: {0}")]
    Placement(String),
    /// A file is no checkpoint of this training.
    #[error("{}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// How good a model is on all examples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// The mean loss, without that of balance.
    pub loss: f64,
    /// The part of the examples whose class is right.
    pub accuracy: f64,
    /// The part of the examples that each expert computes; one for a perceptron.
    pub experts: Vec<f64>,
}

impl Evaluation {
    /// Evaluates a model on examples.
    pub fn of(model: &Model, parameters: &[f64], examples: &Examples) -> Self {
        let (mut loss, mut right, mut experts) = (0.0, 0, vec![0.0; model.experts()]);
        let count = examples.len().max(1) as f64;
        for index in 0..examples.len() {
            let (input, label) = examples.get(index);
            let scores = model.scores(parameters, input, examples.classes);
            loss += crate::layer::cross_entropy(&scores, label).0;
            right += usize::from(crate::layer::largest(&scores) == label);
            experts[model.expert(parameters, input)] += 1.0 / count;
        }
        Self { loss: loss / count, accuracy: right as f64 / count, experts }
    }
}

/// Returns the CRC-32C of the bits of parameters, in hexadecimal: equal models have equal ones.
pub fn digest(parameters: &[f64]) -> String {
    let bits: Vec<u8> = parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
    format!("{:08x}", crc32c::crc32c(&bits))
}

/// A model in training. All ranks have the same one, and step together.
#[derive(Debug, Clone)]
pub struct Trainer {
    pub(crate) model: Model,
    pub(crate) options: Options,
    pub(crate) parameters: Vec<f64>,
    pub(crate) velocity: Vec<f64>,
    pub(crate) step: u64,
    examples: Examples,
}

impl Trainer {
    /// Creates a training.
    ///
    /// # Errors
    /// The model fits the examples, and the options are in their ranges.
    pub fn new(model: Model, options: Options, examples: Examples) -> Result<Self, Error> {
        if let Some(fault) = options.fault(&model, &examples) {
            return Err(Error::Options(fault));
        }
        let parameters = model.initial(options.seed);
        let velocity = vec![0.0; parameters.len()];
        Ok(Self { model, options, parameters, velocity, step: 0, examples })
    }

    /// Carries out a step with all ranks, and returns the mean loss of its batch, before the step.
    ///
    /// # Errors
    /// The ranks cannot add up, or the gradients of a rank are no numbers: then all ranks say so, and nothing has changed.
    pub fn step(&mut self, exchange: &mut impl Exchange) -> Result<f64, Error> {
        let (own, ranks) = exchange.share();
        let mut sums = self.gradient(own, ranks);
        exchange.sum(&mut sums)?;
        self.apply(&sums)
    }

    /// Returns what rank `own` of `ranks` adds to the next step: the gradient and the loss in parts of 1, and how many grains have no usable one.
    pub fn gradient(&self, own: usize, ranks: usize) -> Vec<i64> {
        let batch = self.batch();
        let mut sums = vec![0i64; self.parameters.len() + 2];
        let last = sums.len() - 1;
        for grain in batch.chunks(self.options.grain).skip(own).step_by(ranks) {
            let mut gradient = vec![0.0; self.parameters.len()];
            let loss = self.model.learn(&self.parameters, &self.examples, grain, &mut gradient);
            gradient.push(loss);
            if !add(&mut sums, &gradient) {
                sums[last] += 1;
            }
        }
        sums
    }

    /// Changes the parameters by the sum of the gradients of all ranks, and returns the mean loss of the batch, before the step.
    ///
    /// # Errors
    /// A gradient is no number or too large; then nothing has changed.
    pub fn apply(&mut self, sums: &[i64]) -> Result<f64, Error> {
        let last = sums.len() - 1;
        if sums[last] > 0 {
            return Err(Error::Diverged { step: self.step, rate: self.options.rate });
        }
        self.options.descend(&mut self.parameters, &mut self.velocity, sums);
        self.step += 1;
        Ok(self.options.mean(sums[last - 1]))
    }

    /// The examples of the next step: each epoch is a new order of all examples, without a last batch that would be smaller.
    fn batch(&self) -> Vec<usize> {
        let (epoch, position) = self.options.place(self.step, self.examples.len());
        let order = self.options.order(epoch, self.examples.len());
        order[position * self.options.batch..(position + 1) * self.options.batch].to_vec()
    }

    /// Returns how good the model is on all examples.
    pub fn evaluate(&self) -> Evaluation {
        Evaluation::of(&self.model, &self.parameters, &self.examples)
    }

    /// Returns the steps that have been carried out.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Replaces the parameters before the first step, to train a model further.
    ///
    /// # Errors
    /// They are not those of the model, or steps have been carried out.
    pub fn start_from(&mut self, parameters: &[f64]) -> Result<(), Error> {
        if parameters.len() != self.parameters.len() {
            let (found, wanted) = (parameters.len(), self.parameters.len());
            return Err(Error::Options(format!("the model has {wanted} parameters, and {found} were given")));
        }
        if self.step > 0 {
            return Err(Error::Options(format!("{} steps have been carried out", self.step)));
        }
        self.parameters.copy_from_slice(parameters);
        Ok(())
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &[f64] {
        &self.parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::spirals;
    use crate::exchange::Alone;

    /// Ranks in one thread: each adds the sums that the others have already computed.
    struct Position(usize, usize);

    impl Exchange for Position {
        fn share(&self) -> (usize, usize) {
            (self.0, self.1)
        }
        fn sum(&mut self, _numbers: &mut [i64]) -> Result<(), ExchangeError> {
            Ok(())
        }
    }

    #[test]
    fn each_grain_has_one_rank() {
        let options = Options { batch: 30, grain: 4, ..Options::default() };
        let model = Model::Perceptron { sizes: vec![2, 4, 3] };
        let trainer = Trainer::new(model, options, spirals(3, 90, 1)).unwrap();
        let whole = trainer.clone().step(&mut Alone).unwrap();
        let parts: f64 = (0..3).map(|rank| trainer.clone().step(&mut Position(rank, 3)).unwrap()).sum();
        assert!((whole - parts).abs() < 1e-12, "{whole} {parts}");
    }

    #[test]
    fn an_epoch_has_each_example_once() {
        let options = Options { batch: 30, ..Options::default() };
        let model = Model::Perceptron { sizes: vec![2, 4, 3] };
        let mut trainer = Trainer::new(model, options, spirals(3, 90, 1)).unwrap();
        let mut seen = Vec::new();
        for step in 0..3 {
            trainer.step = step;
            seen.extend(trainer.batch());
        }
        let first = seen.clone();
        seen.sort_unstable();
        assert_eq!(seen, (0..90).collect::<Vec<_>>());
        trainer.step = 3;
        assert_ne!(trainer.batch(), first[..30]);
    }

    #[test]
    fn both_models_learn() {
        let mixture = Model::Mixture { inputs: 2, hidden: 12, experts: 4, classes: 3, balance: 0.05 };
        for model in [Model::Perceptron { sizes: vec![2, 32, 32, 3] }, mixture] {
            let mut trainer = Trainer::new(model, Options::default(), spirals(3, 300, 1)).unwrap();
            let before = trainer.evaluate();
            for _ in 0..600 {
                trainer.step(&mut Alone).unwrap();
            }
            let after = trainer.evaluate();
            assert!(after.loss < 0.5 * before.loss && after.accuracy > 0.85, "{before:?} {after:?}");
            assert!((after.experts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_rate_that_is_too_high_is_named() {
        let options = Options { rate: 1e9, ..Options::default() };
        let model = Model::Perceptron { sizes: vec![2, 8, 3] };
        let mut trainer = Trainer::new(model, options, spirals(3, 90, 1)).unwrap();
        let error = (0..20).find_map(|_| trainer.step(&mut Alone).err()).unwrap();
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
        assert!(Trainer::new(Model::Perceptron { sizes: vec![3, 3] }, options, spirals(3, 90, 1)).is_err());
    }
}
