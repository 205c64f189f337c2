//! Trees that somebody wrote down, as `tree:0-1,0-2`.
//!
//! All-reduces and broadcasts go by them, with the same part of the buffer by each; the first rank of each tree combines its part of an
//! all-reduce. Other operations go by the ring of [`locality`].
//!
//! ```
//! use tidemill_collective::policies::Policy;
//! let trees = vec![vec![(0, 1), (0, 2)], vec![(2, 1), (1, 0)]];
//! assert_eq!("tree:0-1,0-2/2-1,1-0".parse(), Ok(Policy::Tree(trees)));
//! ```
use super::{Cluster, PolicyError, locality, one_ring, sized};
use crate::strategy::{Strategy, Tree, Trees};
use std::collections::BTreeMap;

type Edges = Vec<(u32, u32)>;

/// Reads trees.
pub(super) fn parse(text: &str) -> Result<Vec<Edges>, PolicyError> {
    let edge = |text: &str| {
        let ends = text
            .split_once('-')
            .and_then(|(one, other)| Some((one.trim().parse().ok()?, other.trim().parse().ok()?)));
        ends.ok_or_else(|| PolicyError::Edge(text.to_owned()))
    };
    text.split('/').map(|tree| tree.split(',').map(edge).collect()).collect()
}

/// Writes trees as they are read.
pub(super) fn written(trees: &[Edges]) -> String {
    let edge = |(one, other): &(u32, u32)| format!("{one}-{other}");
    let tree = |edges: &Edges| edges.iter().map(edge).collect::<Vec<_>>().join(",");
    trees.iter().map(tree).collect::<Vec<_>>().join("/")
}

/// Makes the strategy of each group.
///
/// # Errors
/// A tree does not connect the members of a group.
pub fn strategies(cluster: &Cluster<'_>, trees: &[Edges]) -> Result<BTreeMap<String, Strategy>, PolicyError> {
    let trees = trees.iter().map(|edges| Tree { edges: edges.clone(), weight: 1 }).collect();
    let trees = Trees { trees, most: None };
    let of = |group| {
        let network = &cluster.network;
        let ring = one_ring(network, group, locality::ring(network, group));
        let (all_reduce, broadcast) = (Some(trees.clone()), Some(trees.clone()));
        let strategy = Strategy { all_reduce, broadcast, ..ring };
        strategy.check().map_err(|reason| {
            let (group, members) = (group.name.clone(), strategy.members.clone());
            PolicyError::Trees { group, members, reason }
        })?;
        Ok((group.name.clone(), sized(network, group, strategy)))
    };
    cluster.groups.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use crate::policies::tests::Lab;
    use crate::policies::{Policy, PolicyError};

    #[test]
    fn trees_are_followed_and_wrong_ones_refused() {
        let lab = Lab::racks(1, 2).group("one", 3);
        let made = "tree:2-0, 0-1".parse::<Policy>().unwrap().strategies(&lab.cluster()).unwrap();
        let of = |trees: &Option<super::Trees>| trees.as_ref().unwrap().trees[0].edges.clone();
        assert_eq!(of(&made["one"].all_reduce), [(2, 0), (0, 1)]);
        assert_eq!(of(&made["one"].broadcast), [(2, 0), (0, 1)]);
        for wrong in ["tree:0-1", "tree:0-1,0-2,0-3", "tree:0-1,0-2/0-1,1-0"] {
            let error = wrong.parse::<Policy>().unwrap().strategies(&lab.cluster()).unwrap_err();
            assert!(matches!(error, PolicyError::Trees { .. }), "{error}");
        }
    }
}
