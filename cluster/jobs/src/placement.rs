//! Placement of a gang on machines: packed onto the fewest, or spread over fragments.
use crate::{Job, PackLimit, Resources};

/// Where tasks of a gang go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Onto the fewest machines.
    Pack,
    /// Into the smallest gaps first, so that whole machines stay free.
    Spread,
}

impl Packing {
    /// Chooses by the skew of the job's tensors (Gu, 2021, section 3.3.3.3): one huge tensor makes a job wait for the network if it is
    /// spread. A job whose skew is not known is packed. Neither waits for better machines: a gang that fits starts.
    pub fn of(job: &Job, limit: PackLimit) -> Self {
        match job.skew {
            Some(skew) if skew <= limit.value() => Self::Spread,
            _ => Self::Pack,
        }
    }
}

/// Chooses machines for all tasks, by index and number of tasks, in the order of the indices; none: they do not all fit.
///
/// ```
/// use tidemill_jobs::{Packing, Resources, place};
/// let free = [1, 4, 2, 3].map(Resources::of_slots);
/// let task = Resources::of_slots(1);
/// assert_eq!(place(&free, &task, 3, Packing::Pack), Some(vec![(3, 3)])); // the tightest of those that hold all
/// assert_eq!(place(&free, &task, 3, Packing::Spread), Some(vec![(0, 1), (2, 2)]));
/// assert_eq!(place(&free, &task, 11, Packing::Pack), None);
/// ```
pub fn place(
    free: &[Resources],
    demand: &Resources,
    tasks: u32,
    packing: Packing,
) -> Option<Vec<(usize, u32)>> {
    let mut fits: Vec<(u64, usize)> =
        free.iter().enumerate().map(|(index, has)| (has.tasks(demand), index)).collect();
    fits.retain(|(fit, _)| *fit > 0);
    let wanted = u64::from(tasks);
    if fits.iter().fold(0u64, |sum, (fit, _)| sum.saturating_add(*fit)) < wanted {
        return None;
    }
    fits.sort_unstable();
    let mut chosen = Vec::new();
    let mut left = wanted;
    while left > 0 {
        let next = match packing {
            Packing::Spread => 0,
            // The tightest machine that holds the rest, else the emptiest.
            Packing::Pack => {
                fits.iter().position(|(fit, _)| *fit >= left).unwrap_or(fits.len().saturating_sub(1))
            }
        };
        if next >= fits.len() {
            return None;
        }
        let (fit, index) = fits.remove(next);
        let taken = fit.min(left);
        chosen.push((index, taken as u32));
        left -= taken;
    }
    chosen.sort_unstable();
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;

    #[test]
    fn a_packed_gang_uses_the_fewest_machines() {
        let free = [2, 4, 3, 4].map(Resources::of_slots);
        let task = Resources::of_slots(1);
        assert_eq!(place(&free, &task, 10, Packing::Pack), Some(vec![(0, 2), (1, 4), (3, 4)]));
        assert_eq!(place(&free, &task, 10, Packing::Spread), Some(vec![(0, 2), (1, 4), (2, 3), (3, 1)]));
        assert_eq!(
            place(&free, &Resources::of_slots(3), 3, Packing::Spread),
            Some(vec![(1, 1), (2, 1), (3, 1)])
        );
        assert_eq!(place(&[], &Resources::default(), 1, Packing::Pack), None);
    }

    #[test]
    fn skew_decides() {
        let job = |skew| Job { skew, ..Job::new("a", 2, Resources::of_slots(1), Time::ZERO) };
        let packing = |skew| Packing::of(&job(skew), PackLimit::Auto);
        assert_eq!(packing(None), Packing::Pack);
        assert_eq!(packing(Some(0.715)), Packing::Pack);
        assert_eq!(packing(Some(0.039)), Packing::Spread);
        assert_eq!(Packing::of(&job(Some(0.715)), PackLimit::Fixed(1.0)), Packing::Spread);
    }
}
