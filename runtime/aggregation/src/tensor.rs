//! One tensor: the gradients of a step, the update, and the state.
use crate::number::{Numbers, PARTS, Real, bytes_of, from_halves, halves, numbers_of};
use crate::rule::Rule;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_rpc::Bytes;

/// The most numbers of a tensor: its state with two moments is one message. Larger arrays are divided.
pub const MOST_NUMBERS: usize = 1 << 19;

/// A tensor of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Its name for people.
    pub name: String,
    /// The number of values.
    pub count: usize,
    /// The form of the numbers.
    pub numbers: Numbers,
    /// The update.
    pub rule: Rule,
    /// The sum of the gradients is divided by this.
    pub divisor: f64,
}

/// A gradient or a state that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The length is another one.
    #[error("{name}: {found} bytes came, and {expected} are expected")]
    Length {
        /// The tensor.
        name: String,
        /// The bytes that came.
        found: usize,
        /// The bytes of such a message.
        expected: usize,
    },
    /// The spec makes no sense.
    #[error("{name}: {reason}")]
    Spec {
        /// The tensor.
        name: String,
        /// Why.
        reason: String,
    },
    /// A worker that the job does not have.
    #[error("{name}: there is no worker {worker}; they are numbered from 0 to {last}")]
    Worker {
        /// The tensor.
        name: String,
        /// The worker.
        worker: u32,
        /// The last one.
        last: u32,
    },
    /// The gradient of a worker was no number.
    #[error("{name}, step {version}: the gradient of worker {worker} is not a number or too large")]
    Diverged {
        /// The tensor.
        name: String,
        /// The step, from 0 on.
        version: u64,
        /// The worker.
        worker: u32,
    },
}

impl Spec {
    /// Creates a tensor whose gradients are added, not averaged.
    pub fn new(name: impl Into<String>, count: usize, numbers: Numbers, rule: Rule) -> Self {
        Self { name: name.into(), count, numbers, rule, divisor: 1.0 }
    }

    /// Sets the divisor of the sum.
    #[must_use]
    pub fn divided_by(mut self, divisor: f64) -> Self {
        self.divisor = divisor;
        self
    }

    /// Returns pieces of at most `most` numbers each (and at most [`MOST_NUMBERS`]), which are tensors of their own.
    ///
    /// ```
    /// use tidemill_aggregation_service::{number::Numbers, rule::Rule, tensor::Spec};
    /// let pieces = Spec::new("w", 5, Numbers::F32, Rule::Sum).pieces(2);
    /// let names: Vec<(&str, usize)> = pieces.iter().map(|piece| (piece.name.as_str(), piece.count)).collect();
    /// assert_eq!(names, [("w[0]", 2), ("w[1]", 2), ("w[2]", 1)]);
    /// ```
    pub fn pieces(&self, most: usize) -> Vec<Self> {
        let most = most.clamp(1, MOST_NUMBERS);
        if self.count <= most {
            return vec![self.clone()];
        }
        let piece = |index: usize| Self {
            name: format!("{}[{index}]", self.name),
            count: most.min(self.count - index * most),
            ..self.clone()
        };
        (0..self.count.div_ceil(most)).map(piece).collect()
    }

    /// Checks it.
    ///
    /// # Errors
    /// It has no numbers or too many, or the rule makes no sense.
    pub fn check(&self) -> Result<(), TensorError> {
        let wrong = |reason: String| Err(TensorError::Spec { name: self.name.clone(), reason });
        if self.count == 0 || self.count > MOST_NUMBERS {
            return wrong(format!("a tensor has 1 to {MOST_NUMBERS} numbers: divide larger ones"));
        }
        if !(self.divisor > 0.0 && self.divisor.is_finite()) {
            return wrong("the divisor is above 0".to_owned());
        }
        self.rule.fault().map_or(Ok(()), |fault| wrong(fault.to_owned()))
    }

    /// Returns the memory that an aggregator needs for it: values and moments, two copies to send, sums, and gradients that came before those
    /// of workers with lower numbers.
    pub fn memory(&self, workers: u32) -> u64 {
        let of_state = self.numbers.of_state();
        let waiting = match self.numbers {
            Numbers::Fixed => 0,
            Numbers::F32 | Numbers::F16 => of_state * (workers.max(1) as usize - 1),
        };
        let each = of_state * (1 + self.rule.moments()) + 3 * self.numbers.of_gradient().max(4) + waiting;
        (each * self.count) as u64
    }

    /// Returns the bytes of the state.
    pub fn of_state(&self) -> usize {
        self.numbers.of_state() * self.count * (1 + self.rule.moments())
    }

    /// Returns a state with these values, and moments of 0.
    pub fn state_of(&self, values: &[f64]) -> Vec<u8> {
        let mut bytes = match self.numbers {
            Numbers::Fixed => bytes_of(values),
            Numbers::F32 | Numbers::F16 => {
                bytes_of(&values.iter().map(|value| *value as f32).collect::<Vec<f32>>())
            }
        };
        bytes.resize(self.of_state(), 0);
        bytes
    }

    /// Returns the values in a state.
    ///
    /// # Errors
    /// It has another length.
    pub fn values_of_state(&self, state: &[u8]) -> Result<Vec<f64>, TensorError> {
        self.is_long(state.len(), self.of_state())?;
        let values = &state[..self.numbers.of_state() * self.count];
        Ok(match self.numbers {
            Numbers::Fixed => numbers_of::<f64>(values).into_owned(),
            Numbers::F32 => numbers_of::<f32>(values).iter().map(|value| f64::from(*value)).collect(),
            // As the other workers get them.
            Numbers::F16 => {
                let rounded = from_halves(&halves(&numbers_of::<f32>(values)));
                rounded.into_iter().map(f64::from).collect()
            }
        })
    }

    /// Returns the values as they travel to workers that keep no state.
    ///
    /// # Errors
    /// They have another length.
    pub fn values_of(&self, wire: &[u8]) -> Result<Vec<f64>, TensorError> {
        self.is_long(wire.len(), self.numbers.of_gradient() * self.count)?;
        Ok(match self.numbers {
            Numbers::Fixed => numbers_of::<f64>(wire).into_owned(),
            Numbers::F32 => numbers_of::<f32>(wire).iter().map(|value| f64::from(*value)).collect(),
            Numbers::F16 => from_halves(wire).into_iter().map(f64::from).collect(),
        })
    }

    /// Returns whether all numbers of a gradient can be added up.
    pub fn is_finite(&self, gradient: &[u8]) -> bool {
        match self.numbers {
            Numbers::Fixed => true,
            Numbers::F32 => numbers_of::<f32>(gradient).iter().all(|value| value.is_finite()),
            Numbers::F16 => from_halves(gradient).iter().all(|value| value.is_finite()),
        }
    }

    fn is_long(&self, found: usize, expected: usize) -> Result<(), TensorError> {
        if found == expected {
            return Ok(());
        }
        Err(TensorError::Length { name: self.name.clone(), found, expected })
    }
}

/// Values and moments.
#[derive(Debug, Default)]
struct Store<T> {
    values: Vec<T>,
    moments: Vec<Vec<T>>,
}

impl<T: Real> Store<T> {
    fn read(bytes: &[u8], count: usize) -> Self {
        let numbers = numbers_of::<T>(bytes);
        let mut parts = numbers.chunks_exact(count.max(1)).map(<[T]>::to_vec);
        Self { values: parts.next().unwrap_or_default(), moments: parts.collect() }
    }

    fn write(&self) -> Vec<u8> {
        let parts = || std::iter::once(&self.values).chain(&self.moments);
        let mut bytes = Vec::with_capacity(parts().map(|part| size_of_val(part.as_slice())).sum());
        parts().for_each(|part| bytes.extend_from_slice(bytemuck::cast_slice(part)));
        bytes
    }
}

#[derive(Debug)]
enum Data {
    /// Sums in any order have the same bits.
    Whole { store: Store<f64>, sums: Vec<i64> },
    /// Gradients are added in the order of the workers; those that come early are held.
    Ordered { store: Store<f32>, sums: Vec<f32>, held: BTreeMap<u32, Vec<f32>>, next: u32 },
}

/// A tensor with the gradients of its current step.
#[derive(Debug)]
pub struct Tensor {
    spec: Spec,
    workers: u32,
    version: u64,
    data: Data,
    came: BTreeSet<u32>,
    unusable: Option<u32>,
    wire: Bytes,
    before: Bytes,
}

impl Tensor {
    /// Creates a tensor whose values are 0.
    pub fn new(spec: Spec, workers: u32) -> Self {
        let data = match spec.numbers {
            Numbers::Fixed => Data::Whole { store: Store::default(), sums: Vec::new() },
            Numbers::F32 | Numbers::F16 => {
                Data::Ordered { store: Store::default(), sums: Vec::new(), held: BTreeMap::new(), next: 0 }
            }
        };
        let mut tensor = Self {
            workers: workers.max(1),
            version: 0,
            data,
            came: BTreeSet::new(),
            unusable: None,
            wire: Bytes::new(),
            before: Bytes::new(),
            spec,
        };
        let zero = vec![0; tensor.spec.of_state()];
        tensor.replace(0, &zero);
        tensor
    }

    /// Returns the spec.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the number of updates.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether the gradient of a worker has come for the current step.
    pub fn has(&self, worker: u32) -> bool {
        self.came.contains(&worker)
    }

    /// Returns whether no gradient has come for the current step.
    pub fn is_between_steps(&self) -> bool {
        self.came.is_empty()
    }

    /// Returns the number of gradients that the step waits for.
    pub fn missing(&self) -> u32 {
        self.workers - u32::try_from(self.came.len()).unwrap_or(self.workers)
    }

    /// Returns the values as they travel.
    pub fn values(&self) -> Bytes {
        self.wire.clone()
    }

    /// Returns the values of the version before; none where this aggregator has not made the last step.
    pub fn values_before(&self) -> Option<Bytes> {
        (!self.before.is_empty()).then(|| self.before.clone())
    }

    /// Returns values and moments.
    pub fn state(&self) -> Vec<u8> {
        match &self.data {
            Data::Whole { store, .. } => store.write(),
            Data::Ordered { store, .. } => store.write(),
        }
    }

    /// Replaces the state; gradients that have come are dropped.
    ///
    /// # Errors
    /// It has another length.
    pub fn put(&mut self, version: u64, state: &[u8]) -> Result<(), TensorError> {
        self.spec.is_long(state.len(), self.spec.of_state())?;
        self.replace(version, state);
        Ok(())
    }

    fn replace(&mut self, version: u64, state: &[u8]) {
        self.version = version;
        match &mut self.data {
            Data::Whole { store, .. } => *store = Store::read(state, self.spec.count),
            Data::Ordered { store, .. } => *store = Store::read(state, self.spec.count),
        }
        self.drop_gradients();
        self.before = Bytes::new();
        self.wire = self.encoded();
    }

    /// Forgets the gradients of the current step.
    pub fn drop_gradients(&mut self) {
        self.came.clear();
        self.unusable = None;
        if let Data::Ordered { held, next, .. } = &mut self.data {
            held.clear();
            *next = 0;
        }
    }

    fn encoded(&self) -> Bytes {
        match &self.data {
            Data::Whole { store, .. } => bytes_of(&store.values).into(),
            Data::Ordered { store, .. } if self.spec.numbers == Numbers::F16 => halves(&store.values).into(),
            Data::Ordered { store, .. } => bytes_of(&store.values).into(),
        }
    }

    /// Adds the gradient of a worker; none: it is no number. Returns whether it was the last one of the step, which then has happened. A gradient
    /// that has come already is not added again.
    ///
    /// # Errors
    /// The length is another one, there is no such worker, or a gradient of the step was no number: then the values stay, and every further call
    /// says so.
    pub fn add(&mut self, worker: u32, gradient: Option<&[u8]>) -> Result<bool, TensorError> {
        if worker >= self.workers {
            let (name, last) = (self.spec.name.clone(), self.workers - 1);
            return Err(TensorError::Worker { name, worker, last });
        }
        if let Some(gradient) = gradient {
            self.spec.is_long(gradient.len(), self.spec.numbers.of_gradient() * self.spec.count)?;
        }
        if self.came.contains(&worker) {
            return Ok(false);
        }
        match gradient {
            Some(gradient) => self.sum(worker, gradient),
            None => self.unusable = self.unusable.or(Some(worker)),
        }
        self.came.insert(worker);
        if self.missing() > 0 {
            return Ok(false);
        }
        if let Some(worker) = self.unusable {
            return Err(TensorError::Diverged {
                name: self.spec.name.clone(),
                version: self.version,
                worker,
            });
        }
        self.step();
        Ok(true)
    }

    /// Returns the reason why the current step cannot happen, once all gradients have come.
    pub fn divergence(&self) -> Option<TensorError> {
        let worker = self.unusable.filter(|_| self.missing() == 0)?;
        Some(TensorError::Diverged { name: self.spec.name.clone(), version: self.version, worker })
    }

    fn sum(&mut self, worker: u32, gradient: &[u8]) {
        match &mut self.data {
            Data::Whole { sums, .. } => {
                let gradient = numbers_of::<i64>(gradient);
                if self.came.is_empty() {
                    sums.clear();
                    sums.extend_from_slice(&gradient);
                } else {
                    sums.iter_mut().zip(&*gradient).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
                }
            }
            Data::Ordered { sums, held, next, .. } => {
                let gradient = match self.spec.numbers {
                    Numbers::F16 => from_halves(gradient).into(),
                    Numbers::Fixed | Numbers::F32 => numbers_of::<f32>(gradient),
                };
                if worker != *next {
                    held.insert(worker, gradient.into_owned());
                    return;
                }
                let mut add = |gradient: &[f32]| {
                    if *next == 0 {
                        sums.clear();
                        sums.extend_from_slice(gradient);
                    } else {
                        sums.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
                    }
                    *next += 1;
                    *next
                };
                let mut next = add(&gradient);
                while let Some(gradient) = held.remove(&next) {
                    next = add(&gradient);
                }
            }
        }
    }

    fn step(&mut self) {
        let (rule, version, divisor) = (self.spec.rule, self.version, self.spec.divisor);
        match &mut self.data {
            Data::Whole { store, sums } => {
                let mean = sums.iter().map(|sum| *sum as f64 / PARTS / divisor);
                rule.update(version, &mut store.values, &mut store.moments, mean);
            }
            Data::Ordered { store, sums, .. } => {
                let mean = sums.iter().map(|sum| *sum / divisor as f32);
                rule.update(version, &mut store.values, &mut store.moments, mean);
            }
        }
        self.version += 1;
        self.drop_gradients();
        self.before = std::mem::take(&mut self.wire);
        self.wire = self.encoded();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        bytes_of(values)
    }

    #[test]
    fn a_step_needs_every_worker_once() {
        let spec = Spec::new("w", 1, Numbers::Fixed, Rule::Sum).divided_by(2.0);
        let mut tensor = Tensor::new(spec, 2);
        let one = bytes_of(&[PARTS as i64]);
        assert!(!tensor.add(1, Some(&one)).unwrap());
        assert!(!tensor.add(1, Some(&one)).unwrap());
        assert_eq!((tensor.version(), tensor.missing(), tensor.has(1), tensor.has(0)), (0, 1, true, false));
        assert!(tensor.add(0, Some(&one)).unwrap());
        assert_eq!(tensor.spec().values_of(&tensor.values()).unwrap(), [1.0]);
        assert_eq!(tensor.spec().values_of(&tensor.values_before().unwrap()).unwrap(), [0.0]);
        assert!(matches!(tensor.add(2, Some(&one)), Err(TensorError::Worker { last: 1, .. })));
        assert!(matches!(tensor.add(0, Some(&one[1..])), Err(TensorError::Length { .. })));
    }

    #[test]
    fn a_gradient_that_is_no_number_stops_all_workers_and_changes_nothing() {
        let mut tensor = Tensor::new(Spec::new("w", 1, Numbers::F32, Rule::Sum), 2);
        assert!(!tensor.add(0, None).unwrap());
        assert_eq!(tensor.divergence(), None);
        let error = tensor.add(1, Some(&floats(&[1.0]))).unwrap_err();
        assert!(matches!(error, TensorError::Diverged { worker: 0, version: 0, .. }), "{error}");
        assert_eq!(tensor.divergence(), Some(error));
        assert_eq!((tensor.version(), tensor.values()), (0, floats(&[0.0]).into()));
    }

    proptest! {
        /// Floats of any order of arrival have the same bits, and a state that moves continues with the same bits.
        #[test]
        fn bits_do_not_depend_on_arrival_or_moves(
            gradients in proptest::collection::vec(proptest::collection::vec(-1e3f32..1e3, 3), 4),
            order in Just([0u32, 1, 2, 3]).prop_shuffle(),
            numbers in prop_oneof![Just(Numbers::F32), Just(Numbers::F16)],
        ) {
            let spec = Spec::new("w", 3, numbers, Rule::adam(0.1)).divided_by(4.0);
            let encoded = |worker: u32| {
                let gradient = &gradients[worker as usize];
                if numbers == Numbers::F16 { halves(gradient) } else { floats(gradient) }
            };
            let (mut one, mut other) = (Tensor::new(spec.clone(), 4), Tensor::new(spec.clone(), 4));
            for _ in 0..3 {
                for worker in 0..4 {
                    one.add(worker, Some(&encoded(worker))).unwrap();
                }
                for worker in order {
                    other.add(worker, Some(&encoded(worker))).unwrap();
                }
                prop_assert_eq!(one.state(), other.state());
                let mut moved = Tensor::new(spec.clone(), 4);
                moved.put(other.version(), &other.state()).unwrap();
                other = moved;
            }
            prop_assert_eq!(spec.values_of_state(&one.state()).unwrap(), spec.values_of(&one.values()).unwrap());
        }
    }

    #[test]
    fn memory_covers_what_is_allocated() {
        let spec = Spec::new("w", 1000, Numbers::F32, Rule::adam(0.1));
        assert_eq!(spec.memory(3), 1000 * (12 + 12 + 8));
        assert!(spec.check().is_ok());
        assert!(Spec { count: MOST_NUMBERS + 1, ..spec.clone() }.check().is_err());
        assert!(Spec { divisor: 0.0, ..spec }.check().is_err());
    }
}
