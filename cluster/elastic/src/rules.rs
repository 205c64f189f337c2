//! Limits of a group from its observed use: pure functions, no clock and no files.
//!
//! Both rules for processor time are Escra's. The printed one (section 2.3 of the dissertation): with throttles the quota
//! grows by `mean(throttled) * gain * unallocated`, with unused time it shrinks by `shrink * mean(unused)`. The one of the
//! published program grows by slices. As printed, a gain of 20 hands out the whole pool once a twentieth of the periods is
//! throttled; the division of the pool clips the wishes.
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Rule for processor time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Growth by slices, as in the published program.
    #[default]
    Slices,
    /// Growth by shares of the unassigned quota: the printed rule, clipped.
    Printed,
}

/// Constants of the rules for processor time. Times are fractions of a period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CpuRules {
    /// The rule.
    pub rule: Rule,
    /// Length of the history in periods; a change of the quota clears all but the use.
    pub window: usize,
    /// Growth factor for throttled periods.
    pub gain: f64,
    /// Size of a slice.
    pub slice: f64,
    /// Share of the quota that may be unused.
    pub unused: f64,
    /// Factor for a quota with more unused time (slices), or the share of the unused time that is taken (printed).
    pub shrink: f64,
    /// Unused time that is taken if it is below the allowed share of the quota.
    pub step: f64,
    /// Least quota, unless the even share of the cap is smaller.
    pub floor: f64,
    /// Unused time kept above the highest use, as a share of it: an increase within a period is not throttled at once.
    pub headroom: f64,
}

impl Default for CpuRules {
    fn default() -> Self {
        Self {
            rule: Rule::Slices,
            window: 10,
            gain: 20.0,
            slice: 0.3,
            unused: 0.2,
            shrink: 0.8,
            step: 0.05,
            floor: 0.1,
            headroom: 0.05,
        }
    }
}

/// Share of throttled periods from which a quota grows.
const PRESSED: f64 = 0.1;
/// Share of throttled periods from which it has a claim on its even share.
const STARVED: f64 = 0.5;

/// Observation of one period.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    /// Share of the periods in which it had to wait, 0 to 1.
    throttled: f64,
    /// Microseconds per period.
    unused: u64,
}

/// Recent observations of a group.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Samples under the present quota.
    samples: VecDeque<Sample>,
    /// Processor time used, under any quota.
    used: VecDeque<u64>,
}

impl Window {
    /// Adds an observation; drops the oldest.
    pub fn push(&mut self, throttled: f64, used: u64, quota: u64, rules: &CpuRules) {
        let throttled = if throttled.is_finite() { throttled.clamp(0.0, 1.0) } else { 0.0 };
        self.samples.push_back(Sample { throttled, unused: quota.saturating_sub(used) });
        self.used.push_back(used);
        let most = rules.window.max(1);
        self.samples.drain(..self.samples.len().saturating_sub(most));
        self.used.drain(..self.used.len().saturating_sub(most));
    }

    /// Clears the samples after a change of the quota: slack and throttling under the old one do not apply to the new one.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    fn mean(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        match self.samples.len() {
            0 => 0.0,
            count => self.samples.iter().map(of).sum::<f64>() / count as f64,
        }
    }

    /// Highest use in a period.
    fn most_used(&self) -> u64 {
        self.used.iter().copied().max().unwrap_or(0)
    }
}

/// Desired change of a group's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaChange {
    /// No change.
    Keep,
    /// This smaller quota.
    Less(u64),
    /// More, microseconds per period.
    More {
        /// Upper bound of the growth.
        wanted: u64,
        /// The part that others above their even share must give up.
        claimed: u64,
    },
}

/// Decides for a group. `fair` is its even share of the cap, `unallocated` the unassigned quota; all in microseconds per
/// period, which has `period` of them.
pub fn wish(
    rules: &CpuRules,
    period: u64,
    quota: u64,
    fair: u64,
    unallocated: u64,
    seen: &Window,
) -> QuotaChange {
    let part = |of: f64| (of * period as f64).round() as u64;
    let Some(last) = seen.samples.back() else { return QuotaChange::Keep };
    let throttled = seen.mean(|sample| sample.throttled);
    let unused = seen.mean(|sample| sample.unused as f64);
    let (grows, wanted) = match rules.rule {
        Rule::Slices => (throttled >= PRESSED, throttled * rules.gain * rules.slice * period as f64),
        Rule::Printed => (last.throttled > 0.0, throttled * rules.gain * unallocated as f64),
    };
    if grows {
        let deficit = fair.saturating_sub(quota) as f64;
        let claimed = if throttled > STARVED { (deficit * throttled).ceil() as u64 } else { 0 };
        return QuotaChange::More { wanted: (wanted.ceil() as u64).max(claimed), claimed };
    }
    let least = part(rules.floor).min(fair).max(crate::cgroup::LEAST_QUOTA);
    let used = seen.most_used();
    let least = least.max(used.saturating_add((used as f64 * rules.headroom) as u64));
    let shrunk = match rules.rule {
        _ if unused <= rules.unused * quota as f64 => {
            let step = part(rules.step);
            if rules.rule == Rule::Slices && unused > step as f64 {
                quota.saturating_sub(step)
            } else {
                quota
            }
        }
        Rule::Slices => (rules.shrink * quota as f64) as u64,
        Rule::Printed => quota.saturating_sub((rules.shrink * unused) as u64),
    };
    match shrunk.max(least) {
        less if less < quota => QuotaChange::Less(less),
        _ => QuotaChange::Keep,
    }
}

/// Divides a pool by the wishes: all of them if the pool suffices, else in proportion, never more than the pool.
pub fn divide(pool: u64, wanted: &[u64]) -> Vec<u64> {
    let sum: u128 = wanted.iter().map(|one| u128::from(*one)).sum();
    if sum <= u128::from(pool) {
        return wanted.to_vec();
    }
    let part = |one: &u64| u64::try_from(u128::from(*one) * u128::from(pool) / sum).unwrap_or(0);
    wanted.iter().map(part).collect()
}

/// Constants of the rules for memory, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRules {
    /// A limit is lowered to this much above the use, and to an eighth of it if another group would otherwise be killed.
    pub margin: u64,
    /// Grant for a group that runs out: 5000 pages in the published program.
    pub grant: u64,
    /// Remaining memory at which a group gets a grant in advance; 0: only when it runs out.
    pub ahead: u64,
    /// Percentage of the cap assigned at the start; the rest is for groups that run out.
    pub handed_out: u64,
}

impl Default for MemoryRules {
    fn default() -> Self {
        Self::with_margin(50 << 20)
    }
}

impl MemoryRules {
    /// The rules for a margin: grants and advances are fractions of it, 20 MiB and 8 MiB for one of 50 MiB. Grants larger
    /// than the margin would be reclaimed repeatedly.
    pub fn with_margin(margin: u64) -> Self {
        let margin = margin.max(1 << 20);
        Self { margin, grant: margin / 5 * 2, ahead: margin / 6, handed_out: 70 }
    }

    /// Returns the reduced limit of a group with this use, if it is below the present one.
    pub fn reclaimed(&self, limit: u64, used: u64) -> Option<u64> {
        let wanted = used.saturating_add(self.margin);
        (limit > wanted).then_some(wanted)
    }

    /// Returns the reduced limit when a group has run out and nothing is left.
    pub fn squeezed(&self, limit: u64, used: u64) -> Option<u64> {
        let wanted = used.saturating_add(self.margin / 8);
        (limit > wanted).then_some(wanted)
    }

    /// Returns the memory that a group with this limit gets for this use.
    pub fn wanted(&self, limit: u64, used: u64) -> u64 {
        used.saturating_add(self.grant).saturating_sub(limit).max(self.grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100_000;

    fn window(rules: &CpuRules, samples: &[(f64, u64)], quota: u64) -> Window {
        let mut window = Window::default();
        for (throttled, used) in samples {
            window.push(*throttled, *used, quota, rules);
        }
        window
    }

    #[test]
    fn slices_grow_with_throttles_and_shrink_with_unused_time() {
        let rules = CpuRules::default();
        let ask = |quota, samples: &[(f64, u64)]| {
            wish(&rules, PERIOD, quota, 40_000, 30_000, &window(&rules, samples, quota))
        };
        assert_eq!(ask(50_000, &[]), QuotaChange::Keep);
        // One of ten periods: 0.1 * 20 * 30 ms.
        let mut seen = vec![(0.0, 50_000); 9];
        seen.push((1.0, 50_000));
        assert_eq!(ask(50_000, &seen), QuotaChange::More { wanted: 60_000, claimed: 0 });
        // Below its even share and always throttled: the whole deficit is claimed.
        assert_eq!(ask(10_000, &[(1.0, 10_000)]), QuotaChange::More { wanted: 600_000, claimed: 30_000 });
        // More than a fifth unused.
        assert_eq!(ask(50_000, &[(0.0, 20_000)]), QuotaChange::Less(40_000));
        // Less than a fifth, more than a twentieth of a period.
        assert_eq!(ask(50_000, &[(0.0, 43_000)]), QuotaChange::Less(45_150));
        assert_eq!(ask(50_000, &[(0.0, 46_000)]), QuotaChange::Keep);
        // Never below what was used, nor below the floor.
        assert_eq!(ask(50_000, &[(0.0, 41_000), (0.0, 0)]), QuotaChange::Less(43_050));
        assert_eq!(ask(11_000, &[(0.0, 0)]), QuotaChange::Less(10_000));
        assert_eq!(ask(10_000, &[(0.0, 0)]), QuotaChange::Keep);
    }

    #[test]
    fn the_printed_rule_is_as_printed() {
        let rules = CpuRules { rule: Rule::Printed, headroom: 0.0, ..CpuRules::default() };
        let ask = |quota, samples: &[(f64, u64)]| {
            wish(&rules, PERIOD, quota, 40_000, 30_000, &window(&rules, samples, quota))
        };
        // mean(throttled) * 20 * 30 ms, which is the whole pool many times over.
        assert_eq!(
            ask(50_000, &[(0.0, 0), (1.0, 50_000)]),
            QuotaChange::More { wanted: 300_000, claimed: 0 }
        );
        assert_eq!(ask(50_000, &[(0.0, 20_000)]), QuotaChange::Less(26_000));
        assert_eq!(ask(50_000, &[(0.0, 45_000)]), QuotaChange::Keep);
    }

    #[test]
    fn pools_are_divided_and_never_overrun() {
        assert_eq!(divide(100, &[30, 40]), [30, 40]);
        assert_eq!(divide(100, &[300, 100]), [75, 25]);
        assert_eq!(divide(10, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]).iter().sum::<u64>(), 0);
        assert_eq!(divide(0, &[u64::MAX, u64::MAX]), [0, 0]);
        assert!(divide(u64::MAX, &[u64::MAX, u64::MAX]).iter().all(|one| *one == u64::MAX / 2));
    }

    #[test]
    fn memory_is_taken_down_to_a_margin_and_given_by_grants() {
        let rules = MemoryRules { margin: 50, grant: 20, ahead: 0, handed_out: 70 };
        assert_eq!((rules.reclaimed(200, 100), rules.reclaimed(150, 100)), (Some(150), None));
        assert_eq!((rules.squeezed(150, 100), rules.squeezed(106, 100)), (Some(106), None));
        let (usual, small) = (MemoryRules::default(), MemoryRules::with_margin(10 << 20));
        assert_eq!((usual.grant >> 20, usual.ahead >> 20, small.grant >> 20), (20, 8, 4));
        assert_eq!((rules.wanted(100, 100), rules.wanted(100, 60), rules.wanted(100, 150)), (20, 20, 70));
    }
}
