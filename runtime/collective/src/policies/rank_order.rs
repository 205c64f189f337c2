//! The baseline: one ring in the order of ranks, routed by the system.
//!
//! ```
//! use tidemill_collective::policies::{Cluster, rank_order};
//! assert!(rank_order::strategies(&Cluster::default()).is_empty(), "no groups");
//! ```
use super::{Cluster, members, one_ring};
use crate::strategy::Strategy;
use std::collections::BTreeMap;

/// Makes the strategy of each group.
pub fn strategies(cluster: &Cluster<'_>) -> BTreeMap<String, Strategy> {
    let network = &cluster.network;
    let of = |group| one_ring(network, group, members(group));
    cluster.groups.iter().map(|group| (group.name.clone(), of(group))).collect()
}
