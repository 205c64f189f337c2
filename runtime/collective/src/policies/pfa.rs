//! Assignment by priority: some paths are only for groups of high priority.
//!
//! The other groups get theirs first, as of [`ffa`](super::ffa), from the paths that are not reserved. Groups of high priority
//! then get the best of all paths: as many rings, up to two for each path, as give them most if each link is divided evenly among its
//! rings. So most of their rings are on the reserved paths, and one may share another path. Without such a group, or where a rack
//! has no other path, nothing is reserved.
//!
//! ```
//! use tidemill_collective::cost::Network;
//! use tidemill_collective::policies::{Cluster, pfa};
//! use tidemill_collective::topology::{Group, Host, Path, Priority};
//! let spine = |name: &str| Path { name: name.into(), rate: 6.25e9, ..Path::default() };
//! let hosts = [("a", "left"), ("b", "right")].map(|(name, rack)| {
//!     Host { name: name.into(), rack: rack.into(), paths: vec![spine("spine0"), spine("spine1")], ..Host::default() }
//! });
//! let group = |name: &str, priority| Group { name: name.into(), ranks: vec![(0, "a".into()), (1, "b".into())], priority };
//! let groups = [group("a", Priority::Normal), group("b", Priority::Normal), group("urgent", Priority::High)];
//! let cluster = Cluster { network: Network { hosts: &hosts, ..Network::default() }, groups: &groups, ..Cluster::default() };
//! let strategies = pfa::strategies(&cluster, &[]);
//! let path = |group: &str| strategies[group].channels[0].paths[0].clone().unwrap();
//! assert_eq!([path("a"), path("b"), path("urgent")], ["spine1", "spine1", "spine0"]);
//! ```
use super::ffa::Assignment;
use super::{Cluster, in_turn};
use crate::strategy::Strategy;
use crate::topology::{Group, Priority};
use std::collections::BTreeMap;

/// Makes the strategy of each group. Reserves these paths; none: the preferred path of the first host that has several.
pub fn strategies(cluster: &Cluster<'_>, reserved: &[String]) -> BTreeMap<String, Strategy> {
    let preferred = cluster
        .network
        .hosts
        .iter()
        .find(|host| host.paths.len() > 1)
        .map(|host| host.paths[0].name.as_str());
    let reserved: Vec<&str> = match reserved {
        [] => preferred.into_iter().collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    let (high, others): (Vec<&Group>, Vec<&Group>) =
        in_turn(cluster.groups).into_iter().partition(|group| group.priority == Priority::High);
    let mut assignment = Assignment::new(cluster.network);
    assignment.assign(&others, &|path| high.is_empty() || !reserved.contains(&path.name.as_str()));
    assignment.assign_most(&high);
    assignment.strategies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::tests::{Lab, check, rates};
    use crate::policies::{Policy, ffa};
    use proptest::prelude::*;

    /// A of high priority beside B and C, on two racks with two spines.
    fn lab() -> Lab {
        let mut lab = Lab::racks(2, 2).spines(2).group("A", 8).group("B", 4).group("C", 4);
        lab.groups[0].priority = Priority::High;
        lab
    }

    #[test]
    fn a_group_of_high_priority_has_a_path_of_its_own() {
        let lab = lab();
        let made = strategies(&lab.cluster(), &[]);
        let used = |group: &str| {
            made[group]
                .channels
                .iter()
                .flat_map(|one| one.paths.iter().flatten().cloned())
                .collect::<std::collections::BTreeSet<_>>()
        };
        let on = |spine: &str| {
            made["A"]
                .channels
                .iter()
                .filter(|one| one.paths.iter().flatten().any(|path| path == spine))
                .count()
        };
        assert_eq!((on("spine0"), on("spine1")), (3, 1), "four parts, of which each gets a third of a spine");
        assert_eq!(used("B"), ["spine1".to_owned()].into());
        assert_eq!(used("C"), ["spine1".to_owned()].into());
        let (with, without) = (rates(&lab, &made), rates(&lab, &ffa::strategies(&lab.cluster())));
        assert!(with["A"] >= 1.10 * without["A"], "{with:?}, without priorities {without:?}");
        assert!(with["B"] < without["B"] && with["C"] < without["C"], "somebody pays for it");

        // Alone on one spine it had two rings of half a spine each.
        assert!(with["A"] > 1.3 * 6.25e9, "{with:?}");

        let named = strategies(&lab.cluster(), &["spine1".to_owned()]);
        assert_eq!(named["A"].channels[0].paths.iter().flatten().next().unwrap(), "spine1");
        assert!(
            named["B"]
                .channels
                .iter()
                .flat_map(|one| one.paths.iter().flatten())
                .all(|path| path == "spine0")
        );
    }

    #[test]
    fn nothing_is_reserved_for_nobody() {
        let mut lab = lab();
        lab.groups[0].priority = Priority::Normal;
        assert_eq!(strategies(&lab.cluster(), &[]), ffa::strategies(&lab.cluster()));
    }

    #[test]
    fn a_rack_with_one_path_shares_it() {
        let mut lab = lab();
        lab.hosts.iter_mut().for_each(|host| host.paths.truncate(1));
        let made = strategies(&lab.cluster(), &["spine0".to_owned()]);
        assert!(made.values().all(|one| one.channels[0].paths.iter().flatten().all(|path| path == "spine0")));
    }

    proptest! {
        #[test]
        fn strategies_are_valid(lab in Lab::any()) {
            check(&lab, &strategies(&lab.cluster(), &[]))?;
            let policy: Policy = "pfa:spine1".parse().unwrap();
            check(&lab, &policy.strategies(&lab.cluster()).unwrap())?;
        }
    }
}
