//! Models that run on devices: modes with a [`Remote`], and the time that the way to the device takes.
use super::{Problem, Remote, ServiceMode};
use crate::solution::{Hosting, Solution};
use std::borrow::Cow;

/// Seconds of a batch between a stage and its device, without the wait for the device and its computation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Way {
    /// Delay there and back.
    pub round_trip: f64,
    /// Bytes over bandwidth, there and back.
    pub transfer: f64,
}

impl Problem {
    /// The mode of a hosting in a solution; none for a weightless operator.
    pub fn mode_of(&self, solution: &Solution, hosting: &Hosting) -> Option<&ServiceMode> {
        let class = solution.workers.get(hosting.worker?)?.class;
        let variant = *solution.variants.get(hosting.operator)?;
        self.operators.get(hosting.operator)?.variants.get(variant)?.modes.get(class)?.get(hosting.mode)
    }

    /// The run on a device of a hosting in a solution; none: its worker runs the model.
    pub fn remote_of(&self, solution: &Solution, hosting: &Hosting) -> Option<&Remote> {
        self.mode_of(solution, hosting)?.remote.as_ref()
    }

    /// The same run with the other form of its records, where the problem has it: tensors for rows, and rows for tensors.
    pub fn other_form(&self, solution: &Solution, hosting: &Hosting) -> Option<&Remote> {
        let chosen = self.remote_of(solution, hosting)?;
        let class = solution.workers.get(hosting.worker?)?.class;
        let variant = *solution.variants.get(hosting.operator)?;
        let modes = &self.operators.get(hosting.operator)?.variants.get(variant)?.modes.get(class)?;
        let others = modes.iter().filter_map(|mode| mode.remote.as_ref()).filter(|other| {
            (other.class, other.run.batch) == (chosen.class, chosen.run.batch) && other.sends != chosen.sends
        });
        // The same back end first.
        others.min_by_key(|other| other.run.backend != chosen.run.backend)
    }

    /// The way of a batch from a location to a device and back; none where no route leads there and back.
    pub fn way(&self, from: usize, remote: &Remote) -> Option<Way> {
        let at = self.worker_classes[remote.class].location;
        let (there, back) = (self.route(from, at)?, self.route(at, from)?);
        let records = f64::from(remote.run.batch);
        let seconds = |bytes: f64, bandwidth: Option<f64>| {
            bandwidth.filter(|_| bytes > 0.0).map_or(0.0, |bandwidth| records * bytes / bandwidth)
        };
        Some(Way {
            round_trip: there.delay + back.delay,
            transfer: seconds(remote.sent_bytes, there.bandwidth)
                + seconds(remote.received_bytes, back.bandwidth),
        })
    }

    /// Whether some model can run on a device.
    pub fn has_remotes(&self) -> bool {
        let modes = self.operators.iter().flat_map(|operator| &operator.variants);
        modes.flat_map(|variant| variant.modes.iter().flatten()).any(|mode| mode.remote.is_some())
    }

    /// The problem with only those modes of an operator that may stay.
    #[must_use]
    pub fn with_modes(&self, operator: usize, may_stay: impl Fn(&ServiceMode) -> bool) -> Self {
        let mut problem = self.clone();
        let variants = problem.operators[operator].variants.iter_mut();
        variants.flat_map(|variant| &mut variant.modes).for_each(|modes| modes.retain(&may_stay));
        problem
    }

    /// The problem without runs on devices, for planners that do not consider them. Modes that stay keep their positions.
    pub fn without_remotes(&self) -> Cow<'_, Self> {
        if !self.has_remotes() {
            return Cow::Borrowed(self);
        }
        let plain = (0..self.operators.len())
            .filter(|operator| !self.operators[*operator].weightless)
            .fold(self.clone(), |problem, operator| {
                problem.with_modes(operator, |mode| mode.remote.is_none())
            });
        Cow::Owned(plain)
    }
}
