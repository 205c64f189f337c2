//! An estimate of how long a network stays as it is, from the hints themselves.
//!
//! A link changes where its residual moves by more than a tenth of its total from where it was after its last change. The mean time
//! between changes is a moving average of the gaps between those of the same link. A gap counts by how far the residual was from the
//! usual one of the link: a link at its usual load tells a plan nothing new, however long it stays there. A burst is two changes: many
//! of them make hints worthless, and one among few changes hardly counts.
//!
//! ```
//! use std::time::Duration;
//! use tidemill_hints::{changes::Changes, estimate::Load};
//! let mut changes = Changes::default();
//! for tick in 0..600_u32 {
//!     // Looked at each 100 ms; the load of the link changes each 2 s.
//!     let residual = if tick / 20 % 2 == 0 { 90.0 } else { 40.0 };
//!     changes.observe(&[Load { total: 100.0, residual, sharers: 1.0 }], tick * Duration::from_millis(100));
//! }
//! let between = changes.between().unwrap_or_default().as_secs_f64();
//! assert!((between - 2.0).abs() < 1e-6);
//! ```
use crate::estimate::Load;
use std::time::Duration;

/// The part of the total by which a residual must move.
pub const MOVE: f64 = 0.1;
/// Weight of a new gap in the moving averages.
const NEW: f64 = 1.0 / 64.0;
/// Weight of a new residual in the usual one of its link.
const USUAL: f64 = 1.0 / 128.0;

/// Changes of the links of a tenant.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    links: Vec<Observed>,
    looks: u32,
    /// Moving averages of gaps by their weights, in seconds, and of the weights; and how many gaps there were.
    weighted: f64,
    weights: f64,
    gaps: u32,
    begun: Duration,
    now: Duration,
    /// The last change of any link.
    last: Option<Duration>,
}

#[derive(Debug, Clone)]
struct Observed {
    /// The residual after the last change.
    level: f64,
    /// Moving average of residuals.
    usual: f64,
    /// When the last change was; none before the first one.
    changed: Option<Duration>,
}

impl Changes {
    /// Notes the loads of all links at a time. Another number of links begins anew.
    pub fn observe(&mut self, loads: &[Load], now: Duration) {
        if self.links.len() != loads.len() {
            let link = |load: &Load| Observed { level: load.residual, usual: load.residual, changed: None };
            *self = Self { links: loads.iter().map(link).collect(), begun: now, ..Self::default() };
        }
        self.now = now;
        self.looks = self.looks.saturating_add(1);
        for (link, load) in self.links.iter_mut().zip(loads) {
            link.usual += (load.residual - link.usual) * USUAL.max(1.0 / f64::from(self.looks));
            if (load.residual - link.level).abs() <= MOVE * load.total {
                continue;
            }
            if let Some(before) = link.changed.replace(now) {
                let weight = ((link.level - link.usual) / load.total).abs();
                let gap = now.saturating_sub(before).as_secs_f64();
                self.gaps = self.gaps.saturating_add(1);
                let new = NEW.max(1.0 / f64::from(self.gaps));
                self.weighted += (gap * weight - self.weighted) * new;
                self.weights += (weight - self.weights) * new;
            }
            self.last = Some(now);
            link.level = load.residual;
        }
    }

    /// Returns the mean time between changes of a link. While none changes, it is at least as long as that has lasted. None before the
    /// first look.
    pub fn between(&self) -> Option<Duration> {
        if self.links.is_empty() {
            return None;
        }
        let quiet = self.now.saturating_sub(self.last.unwrap_or(self.begun));
        let mean = if self.weights > 0.0 { self.weighted / self.weights } else { 0.0 };
        Some(Duration::from_secs_f64(mean).max(quiet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn link(residual: f64) -> [Load; 1] {
        [Load { total: 100.0, residual, sharers: 1.0 }]
    }

    fn near(found: Option<Duration>, expected: Duration) {
        let found = found.unwrap_or_default();
        assert!(found.abs_diff(expected) < expected / 20, "{found:?} instead of {expected:?}");
    }

    #[test]
    fn small_moves_are_no_changes() {
        let mut changes = Changes::default();
        assert_eq!(changes.between(), None);
        for tick in 0..100 {
            changes.observe(&link(80.0 + (tick % 3) as f64 * 4.9), ms(100 * tick));
        }
        assert_eq!(changes.last, None);
        assert_eq!(changes.between(), Some(ms(9_900)), "as long as it was looked at");
    }

    #[test]
    fn few_bursts_do_not_matter_and_many_do() {
        let mut changes = Changes::default();
        for tick in 0..3_000_u32 {
            // It changes each 3 s, and a burst comes each 10 s.
            let level = if tick / 30 % 2 == 0 { 90.0 } else { 30.0 };
            changes.observe(&link(if tick % 100 == 7 { 60.0 } else { level }), tick * ms(100));
        }
        assert!(changes.between() > Some(ms(1_500)), "{:?}", changes.between());
        let mut changes = Changes::default();
        for tick in 0..3_000_u32 {
            changes.observe(&link(if tick % 2 == 0 { 90.0 } else { 30.0 }), tick * ms(100));
        }
        near(changes.between(), ms(100));
    }

    #[test]
    fn the_average_follows_a_network_that_calms_down() {
        let mut changes = Changes::default();
        let (mut now, mut residual) = (Duration::ZERO, 80.0);
        let mut pass = |changes: &mut Changes, ticks: u32| {
            residual = 120.0 - residual;
            for _ in 0..ticks {
                changes.observe(&link(residual), now);
                now += ms(100);
            }
        };
        (0..20).for_each(|_| pass(&mut changes, 4));
        near(changes.between(), ms(400));
        (0..400).for_each(|_| pass(&mut changes, 30));
        near(changes.between(), ms(3_000));
        pass(&mut changes, 600);
        assert!(changes.between() > Some(ms(59_000)), "quiet for 1min");
    }

    #[test]
    fn a_link_counts_by_what_it_tells() {
        // It is at its usual load for 4.5 s, then busy for 500 ms.
        let mut changes = Changes::default();
        for tick in 0..4_000_u32 {
            let busy = if tick % 50 >= 45 { 10.0 } else { 90.0 };
            changes.observe(&[link(busy)[0], link(50.0)[0], link(50.0)[0]], tick * ms(100));
        }
        let between = changes.between().unwrap_or_default();
        assert!(between > ms(500) && between < ms(1_200), "{between:?}");
    }
}
