//! A rank's part of a training: the layers that all ranks have, and the experts that this one holds.
use crate::checkpoint::Whole;
use crate::data::Examples;
use crate::model::Model;
use crate::parts::{Parts, bits, numbers};
use crate::routing::Routing;
use crate::trainer::{Error, Options, add};
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_replicas::Placement;

/// Parameters and their last changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) parameters: Vec<f64>,
    pub(crate) velocity: Vec<f64>,
}

impl State {
    pub(crate) fn to_bits(&self) -> Vec<i64> {
        bits(&self.parameters).chain(bits(&self.velocity)).collect()
    }

    pub(crate) fn from_bits(bits: &[i64]) -> Self {
        let (parameters, velocity) = bits.split_at(bits.len() / 2);
        Self { parameters: numbers(parameters), velocity: numbers(velocity) }
    }
}

/// Limits for the places of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// Experts that a rank holds, at most.
    pub slots: usize,
    /// Lost ranks after which each expert still has a replica, while there are slots enough.
    pub survive: usize,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stepped {
    /// The mean loss of the batch, before the step.
    pub loss: f64,
    /// A rank has wished that the training ends after this step.
    pub ends: bool,
}

/// A rank of a training. All ranks have the layers that each example needs; of a mixture, each has the experts in its slots. After any step
/// the parameters have the bits of a [`Trainer`](crate::Trainer) alone, whatever ranks came and went.
///
/// ```
/// use tidemill_training::{Alone, Member, Model, Options, Replicas, data::spirals};
/// let model = Model::Mixture { inputs: 2, hidden: 8, experts: 4, classes: 3, balance: 0.05 };
/// let replicas = Replicas { slots: 4, survive: 0 };
/// let mut member = Member::new(model, Options::default(), replicas, spirals(3, 300, 1))?;
/// member.regroup(&mut Alone, None)?;
/// let first = member.step(&mut Alone, false)?.loss;
/// for _ in 0..200 {
///     member.step(&mut Alone, false)?;
/// }
/// assert!(member.step(&mut Alone, false)?.loss < first);
/// # Ok::<(), tidemill_training::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Member {
    pub(crate) model: Model,
    pub(crate) options: Options,
    pub(crate) replicas: Replicas,
    pub(crate) examples: Examples,
    pub(crate) initial: Vec<f64>,
    pub(crate) step: u64,
    /// Whether the state is that of a training that has begun.
    pub(crate) is_there: bool,
    pub(crate) shared: State,
    pub(crate) experts: BTreeMap<usize, State>,
    /// The state before the last step: a rank may be one step ahead of the others when one is lost.
    before: Option<(State, BTreeMap<usize, State>)>,
    /// The experts of each rank, by position; none: the model has no experts, or no ranks are agreed.
    pub(crate) placement: Option<Placement>,
    /// Examples of each expert, of which older ones count less.
    pub(crate) loads: Vec<u64>,
    order: Option<(u64, Vec<usize>)>,
}

impl Member {
    /// Creates a rank. It has no state before the first [`Member::regroup`].
    ///
    /// # Errors
    /// The model fits the examples, and the options are in their ranges.
    pub fn new(
        model: Model,
        options: Options,
        replicas: Replicas,
        examples: Examples,
    ) -> Result<Self, Error> {
        if let Some(fault) = options.fault(&model, &examples) {
            return Err(Error::Options(fault));
        }
        let experts = model.shape().map_or(0, |shape| shape.experts);
        Ok(Self {
            initial: model.initial(options.seed),
            model,
            options,
            replicas,
            examples,
            step: 0,
            is_there: false,
            shared: State::default(),
            experts: BTreeMap::new(),
            before: None,
            placement: None,
            loads: vec![0; experts],
            order: None,
        })
    }

    /// Begins with these parameters instead of random ones.
    ///
    /// # Errors
    /// There are as many as the model has.
    pub fn starting_from(mut self, parameters: Vec<f64>) -> Result<Self, Error> {
        if parameters.len() != self.initial.len() {
            let (found, own) = (parameters.len(), self.initial.len());
            return Err(Error::Options(format!("{found} parameters for a model with {own}")));
        }
        self.initial = parameters;
        Ok(self)
    }

    /// Returns the steps that have been carried out.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the experts that this rank holds.
    pub fn held(&self) -> Vec<usize> {
        self.experts.keys().copied().collect()
    }

    /// Parameters of the layers that all ranks have.
    pub(crate) fn of_shared(&self) -> usize {
        self.model.shape().map_or(self.model.parameters(), |shape| shape.of_gate(self.examples.inputs))
    }

    /// Parameters of an expert.
    pub(crate) fn of_expert(&self) -> usize {
        let (inputs, classes) = (self.examples.inputs, self.examples.classes);
        self.model.shape().map_or(0, |shape| shape.of_expert(inputs, classes))
    }

    /// Carries out a step with all ranks; `wish`: this rank wishes that the training ends after it.
    ///
    /// # Errors
    /// A rank is lost, or the gradients of a rank are no numbers: then nothing has changed at this rank.
    pub fn step(&mut self, ranks: &mut impl Parts, wish: bool) -> Result<Stepped, Error> {
        let batch = self.batch();
        let (own, count) = ranks.share();
        let grains: Vec<&[usize]> = batch.chunks(self.options.grain).skip(own).step_by(count).collect();
        let loss = self.shared.parameters.len();
        let mut sums = vec![0i64; loss + 3];
        let (mut of_experts, mut examples) = (BTreeMap::new(), Vec::new());
        match (self.model.shape(), &self.placement) {
            (Some(shape), Some(placement)) => {
                let routing = Routing {
                    shape,
                    examples: &self.examples,
                    gate: &self.shared.parameters,
                    experts: &self.experts,
                    placement,
                    grain: self.options.grain,
                };
                let outcome = routing.compute(ranks, &grains, &mut sums)?;
                sums[loss + 1] += outcome.unusable;
                (of_experts, examples) = (outcome.sums, outcome.examples);
            }
            _ => {
                for grain in grains {
                    let mut gradient = vec![0.0; loss];
                    let own = self.model.learn(&self.shared.parameters, &self.examples, grain, &mut gradient);
                    gradient.push(own);
                    sums[loss + 1] += i64::from(!add(&mut sums, &gradient));
                }
            }
        }
        sums[loss + 2] = i64::from(wish);
        ranks.sum(&mut sums)?;
        if sums[loss + 1] > 0 {
            return Err(Error::Diverged { step: self.step, rate: self.options.rate });
        }
        self.before = Some((self.shared.clone(), self.experts.clone()));
        let options = self.options;
        options.descend(&mut self.shared.parameters, &mut self.shared.velocity, &sums);
        for (expert, state) in &mut self.experts {
            if let Some(sums) = of_experts.get(expert) {
                options.descend(&mut state.parameters, &mut state.velocity, sums);
            }
        }
        self.loads.iter_mut().zip(examples).for_each(|(load, more)| *load += more);
        self.step += 1;
        Ok(Stepped { loss: options.mean(sums[loss]), ends: sums[loss + 2] > 0 })
    }

    /// The examples of the next step.
    fn batch(&mut self) -> Vec<usize> {
        let (count, batch) = (self.examples.len(), self.options.batch);
        let (epoch, position) = self.options.place(self.step, count);
        let order = match self.order.take().filter(|(of, _)| *of == epoch) {
            Some((_, order)) => order,
            None => self.options.order(epoch, count),
        };
        let chosen = order[position * batch..(position + 1) * batch].to_vec();
        self.order = Some((epoch, order));
        chosen
    }

    /// Takes the last step back. Returns whether it could.
    pub(crate) fn back(&mut self) -> bool {
        let Some((shared, experts)) = self.before.take() else { return false };
        (self.shared, self.experts, self.step) = (shared, experts, self.step - 1);
        true
    }

    /// From now on, no step can be taken back.
    pub(crate) fn settle(&mut self) {
        self.before = None;
    }

    /// Gets the state of the whole model from all ranks. Each rank has all of it in memory for that time.
    pub(crate) fn whole(&self, ranks: &mut impl Parts) -> Result<Whole, Error> {
        let mut parameters = self.shared.parameters.clone();
        let mut velocity = self.shared.velocity.clone();
        for expert in 0..self.loads.len() {
            let holder = self.placement.as_ref().and_then(|placement| {
                (0..placement.nodes().len()).find(|position| placement.has(*position, expert))
            });
            let holder = holder.ok_or_else(|| Error::Placement(format!("no rank has expert {expert}")))?;
            let mut bits = vec![0i64; 2 * self.of_expert()];
            if let Some(own) = self.experts.get(&expert) {
                bits = own.to_bits();
            }
            ranks.spread(holder, &mut bits)?;
            let state = State::from_bits(&bits);
            parameters.extend(state.parameters);
            velocity.extend(state.velocity);
        }
        Ok(Whole { step: self.step, parameters, velocity })
    }

    /// Writes a checkpoint of the whole model with all ranks. Each rank writes the same file.
    ///
    /// # Errors
    /// A rank is lost, or the file cannot be written.
    pub fn save(&self, ranks: &mut impl Parts, path: &Path) -> Result<(), Error> {
        self.whole(ranks)?.save(path, &self.model, self.options)
    }

    /// Gets the parameters of the whole model from all ranks.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn parameters(&self, ranks: &mut impl Parts) -> Result<Vec<f64>, Error> {
        Ok(self.whole(ranks)?.parameters)
    }
}
