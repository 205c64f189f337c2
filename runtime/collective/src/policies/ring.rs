//! A ring that somebody wrote down, as `ring:0,2,1,3`.
//!
//! ```
//! use tidemill_collective::policies::Policy;
//! assert_eq!("ring:0,2,1,3".parse(), Ok(Policy::Ring(vec![0, 2, 1, 3])));
//! ```
use super::{Cluster, PolicyError, members, one_ring};
use crate::strategy::Strategy;
use std::collections::BTreeMap;

/// Makes the strategy of each group.
///
/// # Errors
/// The ring does not have each member once.
pub fn strategies(cluster: &Cluster<'_>, ring: &[u32]) -> Result<BTreeMap<String, Strategy>, PolicyError> {
    let mut sorted = ring.to_vec();
    sorted.sort_unstable();
    let of = |group| {
        let members = members(group);
        if sorted != members {
            return Err(PolicyError::Ring { group: group.name.clone(), ring: ring.to_vec(), members });
        }
        Ok((group.name.clone(), one_ring(&cluster.network, group, ring.to_vec())))
    };
    cluster.groups.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Policy;
    use crate::policies::tests::Lab;

    #[test]
    fn a_ring_has_each_member_once() {
        let lab = Lab::racks(1, 2).group("one", 4);
        let made = "ring:0, 2,1,3".parse::<Policy>().unwrap().strategies(&lab.cluster()).unwrap();
        assert_eq!(made["one"].channels[0].ring, [0, 2, 1, 3]);
        for wrong in ["ring:0,1,2", "ring:0,1,2,2", "ring:0,1,2,3,4"] {
            let error = wrong.parse::<Policy>().unwrap().strategies(&lab.cluster()).unwrap_err();
            assert!(
                matches!(&error, PolicyError::Ring { members, .. } if *members == [0, 1, 2, 3]),
                "{error}"
            );
        }
    }
}
