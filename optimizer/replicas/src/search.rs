//! Better placements by swaps.
use crate::placement::Placement;
use crate::survival::{SurvivalError, choose, counted, survival};
use tidemill_random::Random;

/// Swaps without progress after which a search begins again from the best placement.
const PATIENCE: usize = 400;

/// A search for placements that survive more losses: it swaps replicas of two nodes, or all of two nodes in one layer, as long as more sets of
/// one lost node are survived, then of two, and so on: fewer losses are more likely, and weigh more. The number of replicas of each
/// expert stays.
///
/// The result is never worse than its seed for any number of lost nodes up to `most_lost`. It depends on the seed number alone.
///
/// ```
/// use tidemill_replicas::{Search, mro, survival};
/// // Two groups of two nodes do not fit on three nodes: maximum rank overlap puts both replicas of expert 2 on one node.
/// let seed = vec![mro(&[2, 2, 2], 3, 2)?];
/// assert_eq!(survival(&seed, 1)?[1].survived, 2);
/// let found = Search::of(1).improve(&seed)?;
/// assert_eq!(survival(&found, 1)?[1].survived, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// The most lost nodes that count.
    pub most_lost: usize,
    /// The number of placements to evaluate at most: the effort.
    pub evaluations: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Search {
    /// Creates a search for up to `most_lost` lost nodes, with 20,000 evaluations.
    pub fn of(most_lost: usize) -> Self {
        Self { most_lost, evaluations: 20_000, seed: 1 }
    }

    /// Improves the placements of all layers, which use the same nodes, together.
    ///
    /// # Errors
    /// As for [`survival`].
    pub fn improve(self, seed: &[Placement]) -> Result<Vec<Placement>, SurvivalError> {
        let floor: Vec<u128> = survival(seed, self.most_lost)?.iter().map(|odds| odds.survived).collect();
        let nodes = seed[0].nodes().len();
        let bound = bound(seed, nodes, self.most_lost);
        let mut best = (floor.clone(), seed.to_vec());
        let mut current = best.clone();
        let mut random = Random::of_seed(self.seed);
        let mut idle = 0;
        for _ in 0..self.evaluations {
            if best.0 == bound {
                break;
            }
            if idle >= PATIENCE {
                idle = 0;
                current = best.clone();
                for _ in 0..1 + random.below(4) {
                    change(&mut current.1, &mut random);
                }
                current.0 = self.count(&current.1, nodes)?;
            }
            let mut changed = current.1.clone();
            if !change(&mut changed, &mut random) {
                break; // There is nothing to swap.
            }
            let counts = self.count(&changed, nodes)?;
            idle += 1;
            // Equally good placements are walked through: improvements lie beyond them.
            if counts >= current.0 {
                if counts > current.0 {
                    idle = 0;
                }
                current = (counts, changed);
                let no_worse = current.0.iter().zip(&floor).all(|(count, floor)| count >= floor);
                if no_worse && current.0 > best.0 {
                    best = current.clone();
                }
            }
        }
        Ok(best.1)
    }

    fn count(self, layers: &[Placement], nodes: usize) -> Result<Vec<u128>, SurvivalError> {
        counted(layers.iter().flat_map(Placement::holders).collect(), nodes, self.most_lost)
    }
}

/// The sets that no placement survives more of: the rarest expert is on as many nodes as it has replicas, and lost with all of them.
fn bound(layers: &[Placement], nodes: usize, most_lost: usize) -> Vec<u128> {
    let rarest = layers.iter().flat_map(Placement::replicas).min().unwrap_or(0).min(nodes);
    let fatal = |lost: usize| lost.checked_sub(rarest).map_or(0, |more| choose(nodes - rarest, more));
    (0..=most_lost).map(|lost| choose(nodes, lost) - fatal(lost)).collect()
}

/// Swaps replicas of different experts on two nodes of a layer, or all replicas of these nodes. False where no two differ.
fn change(layers: &mut [Placement], random: &mut Random) -> bool {
    let exchanges = layers.len() > 1 && random.chance(0.125);
    // Most pairs differ: some draws suffice, unless there is nothing to swap.
    for _ in 0..256 {
        let layer = random.below(layers.len());
        let placement = &mut layers[layer];
        let (one, other) = (random.below(placement.nodes().len()), random.below(placement.nodes().len()));
        let (held, others) = (&placement.nodes()[one], &placement.nodes()[other]);
        if one == other || held.is_empty() || others.is_empty() {
            continue;
        }
        if exchanges && held != others {
            placement.exchange(one, other);
            return true;
        }
        let (own, foreign) = (held[random.below(held.len())], others[random.below(others.len())]);
        if own != foreign {
            placement.swap((one, own), (other, foreign));
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{allocate, mro};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn counts(layers: &[Placement], most_lost: usize) -> Vec<u128> {
        survival(layers, most_lost).unwrap().iter().map(|odds| odds.survived).collect()
    }

    /// Every placement, as the holders of the experts: for each expert the sets of nodes that it can be on. Calls `look` with each.
    fn every(replicas: &[usize], nodes: usize, slots: usize, look: &mut dyn FnMut(&[u128])) {
        fn place(
            replicas: &[usize],
            vacant: &mut [usize],
            node: usize,
            left: usize,
            holders: &mut Vec<u128>,
            look: &mut dyn FnMut(&[u128]),
        ) {
            let expert = holders.len() - 1;
            if node == vacant.len() {
                if left > 0 {
                } else if expert + 1 == replicas.len() {
                    look(holders);
                } else {
                    holders.push(0);
                    place(replicas, vacant, 0, replicas[expert + 1], holders, look);
                    holders.pop();
                }
                return;
            }
            for count in 0..=left.min(vacant[node]) {
                vacant[node] -= count;
                holders[expert] |= u128::from(count > 0) << node;
                place(replicas, vacant, node + 1, left - count, holders, look);
                holders[expert] &= !(1 << node);
                vacant[node] += count;
            }
        }
        place(replicas, &mut vec![slots; nodes], 0, replicas[0], &mut vec![0], look);
    }

    /// The best counts of all placements that are nowhere worse than the seed.
    fn brute_force(replicas: &[usize], nodes: usize, slots: usize, most_lost: usize) -> Vec<u128> {
        let floor = counts(&[mro(replicas, nodes, slots).unwrap()], most_lost);
        let mut best = floor.clone();
        let mut seen = BTreeSet::new();
        every(replicas, nodes, slots, &mut |holders| {
            let mut sorted = holders.to_vec();
            sorted.sort_unstable();
            if seen.insert(sorted) {
                let counts = counted(holders.to_vec(), nodes, most_lost).unwrap();
                if counts > best && counts.iter().zip(&floor).all(|(count, floor)| count >= floor) {
                    best = counts;
                }
            }
        });
        best
    }

    /// The theorem of Lazarus does not hold here: three groups of representatives do not fit beside each other.
    #[test]
    fn both_counterexamples_are_found() {
        for (replicas, nodes, slots, of_mro, best) in
            [(vec![2, 2, 2], 3, 2, (2, 3), (3, 3)), (vec![3, 3, 3, 3], 4, 3, (3, 6), (6, 6))]
        {
            let lost = nodes - 2;
            let seed = [mro(&replicas, nodes, slots).unwrap()];
            let odds = survival(&seed, lost).unwrap()[lost];
            assert_eq!((odds.survived, odds.of), of_mro);
            let found = Search::of(lost).improve(&seed).unwrap();
            let odds = survival(&found, lost).unwrap()[lost];
            assert_eq!((odds.survived, odds.of), best);
            assert_eq!(found[0].replicas(), replicas);
        }
    }

    #[test]
    fn small_cases_equal_brute_force() {
        let mut cases = 0;
        for (nodes, slots, experts) in [(3, 2, 3), (3, 3, 4), (4, 2, 3), (4, 2, 4), (4, 3, 4)] {
            for busy in 1..=4u64 {
                let loads: Vec<u64> = (0..experts).map(|expert| 1 + expert * expert * (busy - 1)).collect();
                for floor in 1..=2 {
                    let Ok(replicas) = allocate(&loads, nodes, slots, floor) else { continue };
                    let best = brute_force(&replicas, nodes, slots, nodes - 1);
                    let seed = [mro(&replicas, nodes, slots).unwrap()];
                    let search = Search { evaluations: 5_000, ..Search::of(nodes - 1) };
                    let found = counts(&search.improve(&seed).unwrap(), nodes - 1);
                    assert_eq!(found, best, "{replicas:?} on {nodes} nodes of {slots}");
                    cases += 1;
                }
            }
        }
        assert!(cases > 25, "{cases}");
    }

    #[test]
    fn one_node_has_nothing_to_swap() {
        let seed = [mro(&[1, 1], 1, 2).unwrap()];
        assert_eq!(Search::of(1).improve(&seed).unwrap(), seed);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// LZ-3: nowhere worse than its seed, for one layer and for several, and no replica appears or disappears.
        #[test]
        fn never_worse_than_its_seed(
            loads in proptest::collection::vec(proptest::collection::vec(0u64..500, 5), 1..4),
            nodes in 2usize..9,
            slots in 2usize..5,
            seed in 0u64..100,
        ) {
            let mut layers = Vec::new();
            for loads in &loads {
                let Ok(replicas) = allocate(loads, nodes, slots, 1) else { return Ok(()) };
                layers.push(mro(&replicas, nodes, slots).unwrap());
            }
            let most_lost = nodes - 1;
            let found = Search { most_lost, evaluations: 300, seed }.improve(&layers).unwrap();
            for (count, floor) in counts(&found, most_lost).iter().zip(counts(&layers, most_lost)) {
                prop_assert!(*count >= floor);
            }
            for (one, other) in found.iter().zip(&layers) {
                prop_assert_eq!(one.replicas(), other.replicas());
            }
        }
    }
}
