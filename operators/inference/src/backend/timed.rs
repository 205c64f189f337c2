//! A session that adds up the time of its runs.
use super::placement::Placed;
use super::resident::Resident;
use super::{BackendError, Feedback, Session};
use crate::tensor::Tensor;
use std::time::{Duration, Instant};

/// A session with the time that its runs took.
pub(crate) struct Timed {
    session: Box<dyn Session>,
    ran: Duration,
}

impl Timed {
    pub(crate) fn new(session: Box<dyn Session>) -> Self {
        Self { session, ran: Duration::ZERO }
    }

    /// The time of all runs so far, without the preparation of inputs and outputs.
    pub(crate) fn ran(&self) -> Duration {
        self.ran
    }

    fn timed<T>(&mut self, run: impl FnOnce(&mut dyn Session) -> T) -> T {
        let began = now();
        let result = run(self.session.as_mut());
        self.ran += began.elapsed();
        result
    }
}

impl Session for Timed {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        self.timed(|session| session.run(inputs, outputs))
    }

    fn step(
        &mut self,
        inputs: &mut [Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
        is_first: bool,
    ) -> Result<Vec<Tensor>, BackendError> {
        self.timed(|session| session.step(inputs, outputs, feedback, is_first))
    }

    fn upload(&mut self, tensor: Tensor) -> Result<Resident, BackendError> {
        self.session.upload(tensor)
    }

    fn keeps_values(&self) -> bool {
        self.session.keeps_values()
    }

    fn run_resident(
        &mut self,
        inputs: &[Resident],
        outputs: &[usize],
    ) -> Result<Vec<Resident>, BackendError> {
        self.timed(|session| session.run_resident(inputs, outputs))
    }

    fn placement(&self) -> &[Placed] {
        self.session.placement()
    }

    fn processor_time_elsewhere(&self) -> Duration {
        self.session.processor_time_elsewhere()
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of a run is real time; no record depends on it")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorData;
    use std::hint::black_box;

    /// Computes until the clock has advanced by a millisecond.
    struct Slow;

    impl Session for Slow {
        fn run(&mut self, inputs: &[Tensor], _outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
            let began = now();
            while began.elapsed() < Duration::from_millis(1) {
                black_box(inputs);
            }
            Ok(inputs.to_vec())
        }
    }

    #[test]
    fn runs_and_steps_are_added_up_and_the_time_between_them_is_not() {
        let mut timed = Timed::new(Box::new(Slow));
        assert_eq!(timed.ran(), Duration::ZERO);
        let mut inputs = [Tensor::new(vec![1], TensorData::Float32(vec![2.0])).unwrap()];
        let began = now();
        assert_eq!(timed.run(&inputs, &[0]).unwrap(), inputs);
        let (once, outside) = (timed.ran(), began.elapsed());
        assert!(once >= Duration::from_millis(1) && once <= outside, "{once:?} of {outside:?}");
        Slow.run(&inputs, &[0]).unwrap();
        assert_eq!(timed.ran(), once, "another session");
        timed.step(&mut inputs, &[0], &[], true).unwrap();
        assert!(timed.ran() >= once + Duration::from_millis(1));
    }
}
