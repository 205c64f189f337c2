//! Estimates of the bandwidth that own objects would get on a link.
//!
//! ```
//! use tidemill_hints::estimate::{Guarantee, Load, bandwidth};
//! // Seven flows fill a link of 100 Gbit/s. Three more get three tenths of it.
//! let link = Load { total: 100e9, residual: 0.0, sharers: 7.0 };
//! assert_eq!(bandwidth(link, 3.0, Guarantee::None), 30e9);
//! ```
use serde::{Deserialize, Serialize};

/// Load of a link in one direction. Rates have one unit everywhere, such as bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Its rate.
    pub total: f64,
    /// The part of it that nobody uses.
    pub residual: f64,
    /// Objects that share it, an average: flows, pairs of machines or tenants, by the [`Fairness`] of the network.
    pub sharers: f64,
}

/// The objects among which the network divides a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fairness {
    /// Each flow gets the same, as with TCP.
    #[default]
    PerFlow,
    /// Each pair of machines gets the same.
    PerPair,
    /// Each tenant gets the same.
    PerTenant,
}

/// A flow, as far as fairness depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The tenant that it belongs to.
    pub tenant: u64,
    /// The machine that sends.
    pub from: u64,
    /// The machine that receives.
    pub to: u64,
}

impl Fairness {
    /// Counts the objects that these flows are.
    pub fn objects(self, flows: &[Flow]) -> usize {
        let distinct = |key: fn(&Flow) -> (u64, u64)| {
            flows.iter().map(key).collect::<std::collections::BTreeSet<_>>().len()
        };
        match self {
            Self::PerFlow => flows.len(),
            Self::PerPair => distinct(|flow| (flow.from, flow.to)),
            Self::PerTenant => distinct(|flow| (flow.tenant, 0)),
        }
    }
}

/// The rate that a machine is promised on its own link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Nothing, as on links between racks.
    #[default]
    None,
    /// It never gets more than this rate.
    Partition(f64),
    /// It never gets less than this rate, and more where others leave it.
    AtLeast(f64),
}

impl Load {
    /// Returns a link that nobody uses.
    pub fn idle(total: f64) -> Self {
        Self { total, residual: total, sharers: 0.0 }
    }

    /// Returns the link without what the caller itself does there: hints include it, and a plan is about to replace it.
    #[must_use]
    pub fn without(self, objects: f64, rate: f64) -> Self {
        Self {
            residual: (self.residual + rate.max(0.0)).min(self.total),
            sharers: (self.sharers - objects).max(0.0),
            ..self
        }
    }
}

/// Returns what `own` more objects would get together. On a busy link that is their fair share, on another one all that is left.
/// Others may want less than their share, so it can be more.
pub fn bandwidth(link: Load, own: f64, guarantee: Guarantee) -> f64 {
    let objects = link.sharers + own;
    let share = if objects > 0.0 { own / objects * link.total } else { 0.0 };
    let open = share.max(link.residual);
    match guarantee {
        Guarantee::None => open,
        Guarantee::Partition(rate) => open.min(rate),
        Guarantee::AtLeast(rate) => open.max(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn busy(sharers: f64, residual: f64) -> Load {
        Load { total: 100e9, residual, sharers }
    }

    /// Three connections beside seven of three other tenants, on 100 Gbit/s.
    #[test]
    fn a_share_depends_on_what_is_counted() {
        let flow = |tenant, from, to| Flow { tenant, from, to };
        let others: Vec<Flow> = (0..7).map(|number| flow(number % 3, number % 2, 10 + number % 2)).collect();
        let own = [flow(9, 4, 14), flow(9, 4, 14), flow(9, 4, 15)];
        let share = |fairness: Fairness| {
            let link = busy(fairness.objects(&others) as f64, 0.0);
            bandwidth(link, fairness.objects(&own) as f64, Guarantee::None)
        };
        assert_eq!(share(Fairness::PerFlow), 30e9);
        assert_eq!(share(Fairness::PerTenant), 25e9);
        assert_eq!(share(Fairness::PerPair), 50e9, "two pairs beside two");
    }

    #[test]
    fn what_is_left_counts_where_it_is_more_than_the_share() {
        // One flow uses 2 of 10 Gbit/s: another one gets the other 8, not 5.
        let link = Load { total: 10e9, residual: 8e9, sharers: 1.0 };
        assert_eq!(bandwidth(link, 1.0, Guarantee::None), 8e9);
        assert_eq!(bandwidth(busy(7.0, 40e9), 3.0, Guarantee::None), 40e9);
        assert_eq!(bandwidth(Load::idle(10e9), 0.0, Guarantee::None), 10e9);
    }

    #[test]
    fn guarantees_limit_or_lift_it() {
        let congested = busy(9.0, 0.0); // a tenth
        assert_eq!(bandwidth(congested, 1.0, Guarantee::Partition(5e9)), 5e9);
        assert_eq!(bandwidth(congested, 1.0, Guarantee::Partition(25e9)), 10e9);
        assert_eq!(bandwidth(congested, 1.0, Guarantee::AtLeast(25e9)), 25e9);
        assert_eq!(bandwidth(busy(9.0, 60e9), 1.0, Guarantee::AtLeast(25e9)), 60e9);
    }

    #[test]
    fn own_traffic_is_taken_out() {
        let link = busy(10.0, 10e9).without(3.0, 30e9);
        assert_eq!((link.sharers, link.residual), (7.0, 40e9));
        let all = busy(1.0, 90e9).without(4.0, 50e9);
        assert_eq!((all.sharers, all.residual), (0.0, 100e9));
    }

    proptest! {
        #[test]
        fn more_objects_never_get_less(
            sharers in 0.0..50.0_f64, residual in 0.0..1.0_f64, own in 0.0..20.0_f64, more in 0.0..5.0_f64,
        ) {
            let link = Load { total: 1.0, residual, sharers };
            let (few, many) = (bandwidth(link, own, Guarantee::None), bandwidth(link, own + more, Guarantee::None));
            prop_assert!(few <= many + 1e-12);
            prop_assert!((residual..=1.0).contains(&many));
        }
    }
}
