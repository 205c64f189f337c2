//! Steps whose parameters a service updates, not each rank for itself.
use crate::exchange::ExchangeError;
use crate::member::Member;
use crate::trainer::{Error, Trainer};

/// The end of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Updated {
    /// The parameters are new.
    Done {
        /// The mean loss of the batch, before the step.
        loss: f64,
    },
    /// The gradient of a rank was no number or too large: nothing has changed.
    Diverged,
}

/// Adds up the gradients of all ranks, and updates the parameters.
pub trait Aggregation {
    /// Returns the position of this rank among those that take part, and their number.
    fn share(&self) -> (usize, usize);

    /// Adds the gradient and the loss of this rank, in parts of 1, to those of the others, and sets the new parameters.
    ///
    /// # Errors
    /// The service is lost, or a rank.
    fn update(
        &mut self,
        gradient: &[i64],
        loss: i64,
        is_usable: bool,
        parameters: &mut [f64],
    ) -> Result<Updated, ExchangeError>;
}

impl Trainer {
    /// Carries out a step with all ranks through a service, and returns the mean loss of its batch, before the step. The bits are those of
    /// [`Trainer::step`]; velocities stay with the service.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn step_through(&mut self, service: &mut impl Aggregation) -> Result<f64, Error> {
        let (own, ranks) = service.share();
        let sums = self.gradient(own, ranks);
        let (gradient, rest) = sums.split_at(self.parameters.len());
        let (loss, unusable) = (rest.first().copied().unwrap_or(0), rest.last().copied().unwrap_or(0));
        match service.update(gradient, loss, unusable == 0, &mut self.parameters)? {
            Updated::Done { loss } => {
                self.step += 1;
                Ok(loss)
            }
            Updated::Diverged => Err(Error::Diverged { step: self.step, rate: self.options.rate }),
        }
    }

    /// Takes the parameters of another copy of this training, at that step; velocities too if they are given.
    pub fn adopt(&mut self, step: u64, parameters: Vec<f64>, velocity: Option<Vec<f64>>) {
        debug_assert_eq!(parameters.len(), self.parameters.len());
        (self.step, self.parameters) = (step, parameters);
        if let Some(velocity) = velocity {
            self.velocity = velocity;
        }
    }

    /// Returns the last change of each parameter.
    pub fn velocity(&self) -> &[f64] {
        &self.velocity
    }
}

impl Member {
    /// Creates a trainer with the state of this rank, for steps through a service; without a state, at the beginning.
    ///
    /// # Errors
    /// Experts are on other ranks.
    pub fn trainer(&self) -> Result<Trainer, Error> {
        if self.model.shape().is_some() {
            return Err(Error::Options("a service adds up the gradients of a perceptron only".to_owned()));
        }
        let mut trainer = Trainer::new(self.model.clone(), self.options, self.examples.clone())?;
        if self.is_there {
            trainer.adopt(self.step, self.shared.parameters.clone(), Some(self.shared.velocity.clone()));
        } else {
            trainer.adopt(0, self.initial.clone(), None);
        }
        Ok(trainer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::spirals;
    use crate::{Alone, Model, Options, Replicas};

    /// A service in this process, with one rank.
    struct Here {
        velocity: Vec<f64>,
        options: Options,
    }

    impl Aggregation for Here {
        fn share(&self) -> (usize, usize) {
            (0, 1)
        }
        fn update(
            &mut self,
            gradient: &[i64],
            loss: i64,
            is_usable: bool,
            parameters: &mut [f64],
        ) -> Result<Updated, ExchangeError> {
            let mean = |sum: i64| sum as f64 / 4_294_967_296.0 / self.options.batch as f64;
            for ((parameter, velocity), sum) in parameters.iter_mut().zip(&mut self.velocity).zip(gradient) {
                *velocity = self.options.momentum * *velocity - self.options.rate * mean(*sum);
                *parameter += *velocity;
            }
            Ok(if is_usable { Updated::Done { loss: mean(loss) } } else { Updated::Diverged })
        }
    }

    #[test]
    fn steps_through_a_service_have_the_same_bits() {
        let (model, options) = (Model::Perceptron { sizes: vec![2, 6, 3] }, Options::default());
        let mut one = Trainer::new(model, options, spirals(3, 90, 1)).unwrap();
        let mut other = one.clone();
        let mut service = Here { velocity: vec![0.0; one.parameters().len()], options };
        for _ in 0..30 {
            let (loss, expected) = (other.step_through(&mut service).unwrap(), one.step(&mut Alone).unwrap());
            assert_eq!(loss.to_bits(), expected.to_bits());
        }
        assert_eq!((one.parameters(), one.steps()), (other.parameters(), other.steps()));
        other.adopt(30, one.parameters().to_vec(), Some(service.velocity));
        assert_eq!(one.velocity(), other.velocity());
    }
    #[test]
    fn a_trainer_continues_from_the_state_of_a_rank() {
        let replicas = Replicas { slots: 1, survive: 0 };
        let new = |model| Member::new(model, Options::default(), replicas, spirals(3, 90, 1)).unwrap();
        let mut member = new(Model::Perceptron { sizes: vec![2, 6, 3] });
        let first = vec![0.25; member.initial.len()];
        let fresh = member.clone().starting_from(first.clone()).unwrap().trainer().unwrap();
        assert_eq!((fresh.steps(), fresh.parameters()), (0, &first[..]));
        member.regroup(&mut Alone, None).unwrap();
        for _ in 0..10 {
            member.step(&mut Alone, false).unwrap();
        }
        let mut trainer = member.trainer().unwrap();
        let losses = (member.step(&mut Alone, false).unwrap().loss, trainer.step(&mut Alone).unwrap());
        assert_eq!(losses.0.to_bits(), losses.1.to_bits());
        assert_eq!(trainer.parameters(), member.parameters(&mut Alone).unwrap());
        let mixture = Model::Mixture { inputs: 2, hidden: 4, experts: 2, classes: 3, balance: 0.05 };
        assert!(matches!(new(mixture).trainer(), Err(Error::Options(_))));
    }
}
