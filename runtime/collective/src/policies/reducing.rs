//! The tree of all-reduces that are too large for doubling and too small for a ring.
//!
//! Doubling takes the fewest steps and sends the whole buffer in each; a ring of n ranks sends least, in 2 (n - 1) steps. A tree is
//! between them: up to its root and down again, each link carries the buffer once each way. It is the tree of
//! [`broadcast`](super::broadcast), and the same [model](crate::cost) says for which sizes it is the quickest.
use super::broadcast::{SIZES, TYPICAL, WORTH, candidates};
use crate::cost::{ALL_REDUCE, Network, doubled, time};
use crate::strategy::{Strategy, Trees};
use crate::topology::Group;

/// Returns the strategy with a tree for the sizes for which it is quicker than both the rings and doubling.
pub(super) fn with_tree(network: &Network<'_>, group: &Group, strategy: Strategy) -> Strategy {
    let Some(trees) = candidates(network, group, &strategy) else { return strategy };
    let seconds = |strategy: &Strategy, bytes| time(network, group, strategy, ALL_REDUCE, bytes, &[]).seconds;
    let with =
        |tree| Strategy { all_reduce: Some(Trees { trees: vec![tree], most: None }), ..strategy.clone() };
    let [first, last] = trees.map(with);
    let best = if seconds(&last, TYPICAL) < seconds(&first, TYPICAL) { last } else { first };
    let sizes: Vec<u64> = SIZES.map(|size| 1 << size).collect();
    let (few, many) = sizes.split_at(sizes.partition_point(|bytes| *bytes <= strategy.small));
    // More bytes are in favour of the rings, and less of doubling.
    let beats_rings = |bytes: &u64| seconds(&best, *bytes as f64) < WORTH * seconds(&strategy, *bytes as f64);
    let beats_doubling = |bytes: &u64| {
        seconds(&best, *bytes as f64) < WORTH * doubled(network, group, &strategy, *bytes as f64)
    };
    let most = many[..many.partition_point(beats_rings)].last().copied();
    let least = few[few.partition_point(|bytes| !beats_doubling(bytes))..].first().copied();
    if most.is_none() && least.is_none() {
        return strategy;
    }
    let most = most.unwrap_or(strategy.small);
    let all_reduce =
        best.all_reduce.map(|trees| Trees { most: (most < 1 << SIZES.end()).then_some(most), ..trees });
    let small = least.map_or(strategy.small, |bytes| bytes / 2);
    Strategy { all_reduce, small, ..strategy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Facts;
    use crate::policies::ffa;
    use crate::policies::tests::Lab;

    #[test]
    fn middle_sizes_of_many_hosts_go_by_a_tree_and_others_do_not() {
        let mut lab = Lab::racks(2, 10).group("one", 20);
        // A distant network: each step takes a while.
        lab.facts = Facts { step: 1e-3, ..Facts::default() };
        let strategy = ffa::strategies(&lab.cluster())["one"].clone();
        assert_eq!(strategy.check(), Ok(()));
        let trees = strategy.all_reduce.as_ref().expect("a ring of 20 takes 38 steps");
        let most = trees.most.expect("of large ones bytes count");
        assert!(strategy.small < most, "{strategy:?}");
        let (network, group) = (lab.network(), &lab.groups[0]);
        let seconds = |strategy: &Strategy, bytes: u64| {
            time(&network, group, strategy, ALL_REDUCE, bytes as f64, &[]).seconds
        };
        let ring = Strategy { all_reduce: None, ..strategy.clone() };
        let always = Trees { most: None, ..trees.clone() };
        let tree = Strategy { all_reduce: Some(always), ..strategy.clone() };
        for bytes in SIZES.map(|size| 1_u64 << size) {
            let doubling = doubled(&network, group, &strategy, bytes as f64);
            if bytes > most {
                assert!(seconds(&tree, bytes) > 0.9 * seconds(&ring, bytes), "{bytes}");
            } else if bytes > strategy.small {
                assert!(seconds(&tree, bytes) < seconds(&ring, bytes), "{bytes}");
            } else {
                assert!(seconds(&tree, bytes) > 0.9 * doubling, "{bytes}");
            }
        }
    }

    #[test]
    fn two_hosts_and_paths_have_none() {
        for lab in [Lab::racks(2, 1).group("one", 2), Lab::racks(2, 10).spines(2).group("one", 20)] {
            assert_eq!(ffa::strategies(&lab.cluster())["one"].all_reduce, None);
        }
    }
}
