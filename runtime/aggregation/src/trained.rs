//! Steps of [`Trainer`] through aggregators.
use crate::client::{Beginning, Client, ClientError, Joining};
use crate::number::{Numbers, bytes_of};
use crate::rule::Rule;
use crate::tensor::Spec;
use tidemill_rpc::Bytes;
use tidemill_training::aggregated::{Aggregation, Updated};
use tidemill_training::exchange::ExchangeError;
use tidemill_training::{Options, Trainer};

/// Numbers of a tensor, where nothing else is said.
pub const NUMBERS_OF_TENSOR: usize = 1 << 16;

/// Returns the tensors of a training: pieces of its parameters, and the loss with the wishes for an early end.
pub fn specs(parameters: usize, options: &Options, most: usize) -> Vec<Spec> {
    let rule = Rule::Momentum { rate: options.rate, momentum: options.momentum };
    let whole = Spec::new("parameters", parameters, Numbers::Fixed, rule).divided_by(options.batch as f64);
    let mut specs = whole.pieces(most);
    specs.push(Spec::new("loss", 2, Numbers::Fixed, Rule::Sum).divided_by(options.batch as f64));
    specs
}

/// A worker of a job whose parameters are those of a [`Trainer`].
#[derive(Debug)]
pub struct Trained {
    client: Client,
    /// This worker wishes that the training ends after the next step.
    wishes: bool,
    /// A worker has wished it in the last step.
    ends: bool,
}

impl Trained {
    /// Takes part in a job, and brings the trainer to its step: a new job begins with the parameters of the trainer. `joining.specs` is replaced by
    /// [`specs`], with tensors of at most `most` numbers.
    ///
    /// # Errors
    /// As [`Client::join`].
    pub fn join(
        trainer: &mut Trainer,
        options: &Options,
        joining: Joining,
        most: usize,
    ) -> Result<Self, ClientError> {
        let specs = specs(trainer.parameters().len(), options, most);
        let (mut states, mut begin) = (Vec::new(), 0);
        for spec in &specs {
            let end = (begin + spec.count).min(trainer.parameters().len());
            let mut state = spec.state_of(&trainer.parameters()[begin..end]);
            if spec.rule.moments() > 0 {
                state.truncate(spec.numbers.of_state() * spec.count);
                state.extend(bytes_of(&trainer.velocity()[begin..end]));
            }
            state.resize(spec.of_state(), 0);
            states.push(Bytes::from(state));
            begin = end;
        }
        let beginning = Beginning { version: trainer.steps(), states };
        let client = Client::join(Joining { specs, ..joining }, beginning)?;
        let own = Self { client, wishes: false, ends: false };
        let mut parameters = trainer.parameters().to_vec();
        own.read(&mut parameters)?;
        trainer.adopt(own.client.version(), parameters, None);
        Ok(own)
    }

    /// Brings also the velocities to the trainer, for [`Trainer::save`].
    ///
    /// # Errors
    /// An aggregator is not reached.
    pub fn settle(&mut self, trainer: &mut Trainer) -> Result<(), ClientError> {
        let states = self.client.states()?;
        let (mut parameters, mut velocity) = (Vec::new(), Vec::new());
        let specs = self.client.places().map(|(spec, _)| spec);
        for (spec, state) in specs.zip(&states.states).filter(|(spec, _)| spec.rule.moments() > 0) {
            let numbers = crate::number::numbers_of::<f64>(state);
            parameters.extend_from_slice(&numbers[..spec.count]);
            velocity.extend_from_slice(&numbers[spec.count..]);
        }
        trainer.adopt(states.version, parameters, Some(velocity));
        Ok(())
    }

    /// Wishes that the training ends after the next step. All workers learn it in that step.
    pub fn wish(&mut self) {
        self.wishes = true;
    }

    /// Whether a worker has wished that the training ends after the last step.
    pub fn ends(&self) -> bool {
        self.ends
    }

    /// Returns the worker.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Ends the part of this worker.
    ///
    /// # Errors
    /// As [`Client::leave`].
    pub fn leave(self) -> Result<(), ClientError> {
        self.client.leave()
    }

    fn read(&self, parameters: &mut [f64]) -> Result<(), ClientError> {
        let mut rest = parameters;
        let count = self.client.places().count();
        for tensor in 0..count.saturating_sub(1) {
            let values = self.client.values(tensor)?;
            let (own, others) = rest.split_at_mut(values.len().min(rest.len()));
            own.copy_from_slice(&values[..own.len()]);
            rest = others;
        }
        Ok(())
    }
}

impl Aggregation for Trained {
    fn share(&self) -> (usize, usize) {
        self.client.share()
    }

    fn update(
        &mut self,
        gradient: &[i64],
        loss: i64,
        is_usable: bool,
        parameters: &mut [f64],
    ) -> Result<Updated, ExchangeError> {
        let other = |error: ClientError| ExchangeError::Other(std::io::Error::other(error));
        let (mut rest, last) = (gradient, [loss, i64::from(self.wishes) << 32]);
        let mut gradients = Vec::new();
        for (spec, _) in self.client.places() {
            let own = if spec.rule == Rule::Sum { &last[..] } else { &rest[..spec.count] };
            gradients.push(is_usable.then(|| Bytes::from(bytes_of(own))));
            rest = rest.get(spec.count..).unwrap_or_default();
        }
        match self.client.step(gradients) {
            Ok(()) => {}
            Err(ClientError::Diverged(_)) => return Ok(Updated::Diverged),
            Err(error) => return Err(other(error)),
        }
        self.read(parameters).map_err(other)?;
        let last = self.client.places().count() - 1;
        let sums = self.client.values(last).map_err(other)?;
        self.ends = sums.get(1).is_some_and(|wishes| *wishes > 0.0);
        Ok(Updated::Done { loss: sums.first().copied().unwrap_or(f64::NAN) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_parameters() {
        let specs = specs(1000, &Options::default(), 300);
        let counts: Vec<usize> = specs.iter().map(|spec| spec.count).collect();
        assert_eq!(counts, [300, 300, 300, 100, 2]);
        assert!(specs.iter().all(|spec| spec.check().is_ok() && spec.divisor == 32.0));
    }
}
