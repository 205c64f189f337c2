//! The exact chance that all experts survive.
use crate::placement::Placement;
use serde::Serialize;
use std::collections::HashMap;

/// The most comparisons of sets in one count: some seconds of work.
const COMPARISONS: u64 = 50_000_000;
/// The most families of sets whose counts are kept for the next time that they appear: some 100 MB.
const KEPT: usize = 100_000;
/// The most sets that [`survival_one_by_one`] looks at.
const SETS: u128 = 20_000_000;

/// The sets of lost nodes of one size, all equally likely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Odds {
    /// The number of lost nodes.
    pub lost: usize,
    /// The sets after which each expert still has a replica.
    pub survived: u128,
    /// All sets.
    pub of: u128,
}

impl Odds {
    /// Returns the chance to survive, from 0 to 1.
    pub fn chance(self) -> f64 {
        self.survived as f64 / self.of as f64
    }
}

/// The reason why odds cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SurvivalError {
    /// There is no layer.
    #[error("there is no placement")]
    NoLayers,
    /// The layers differ in their nodes.
    #[error("layer {layer} has {nodes} nodes, and layer 0 has {first}")]
    Layers {
        /// The layer, from 0 on.
        layer: usize,
        /// Its nodes.
        nodes: usize,
        /// The nodes of the first one.
        first: usize,
    },
    /// More nodes would be lost than there are.
    #[error("{lost} lost nodes of {nodes}")]
    Lost {
        /// The number of lost nodes.
        lost: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// An exact answer would take too long.
    #[error("an exact count for {lost} lost nodes of {nodes} takes too long: ask for fewer lost nodes")]
    TooLarge {
        /// The number of lost nodes.
        lost: usize,
        /// The number of nodes.
        nodes: usize,
    },
}

/// Counts the sets of 0 to `most_lost` lost nodes that all experts of all layers survive; the layers use the same nodes.
///
/// The count is exact, and never assumes how a placement was made. A plan dies where the lost nodes contain all holders of an expert. So
/// only the sets of holders count that can be lost, without those that contain another one. Sets without common nodes are counted apart,
/// and multiplied; else the count has a branch where the node of most sets is lost, and one where it stays. The time depends on how many
/// different small sets there are, and hardly on the number of nodes.
///
/// # Errors
/// The layers have equally many nodes, at least as many as are lost; and the count must end in some seconds.
///
/// ```
/// use tidemill_replicas::{Placement, survival};
/// // Three experts with two replicas each, one pair of nodes for each: one loss is always survived.
/// let placement = Placement::new(vec![vec![0, 1], vec![0, 2], vec![1, 2]], 3, 2)?;
/// assert_eq!(survival(&[placement], 1)?[1].chance(), 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn survival(layers: &[Placement], most_lost: usize) -> Result<Vec<Odds>, SurvivalError> {
    let (nodes, sets) = holders(layers, most_lost)?;
    let survived = counted(sets, nodes, most_lost)?;
    let odds = |(lost, survived): (usize, u128)| Odds { lost, survived, of: choose(nodes, lost) };
    Ok(survived.into_iter().enumerate().map(odds).collect())
}

/// Counts the same for one number of lost nodes by a look at each set: slow, and as simple as the definition. Use it to check.
///
/// # Errors
/// As for [`survival`]; at most 20 million sets.
pub fn survival_one_by_one(layers: &[Placement], lost: usize) -> Result<Odds, SurvivalError> {
    let (nodes, sets) = holders(layers, lost)?;
    let of = choose(nodes, lost);
    if of > SETS {
        return Err(SurvivalError::TooLarge { lost, nodes });
    }
    let mut survived = 0;
    let mut members: Vec<usize> = (0..lost).collect();
    loop {
        let gone = members.iter().fold(0u128, |gone, node| gone | 1 << node);
        survived += u128::from(sets.iter().all(|holders| holders & !gone != 0));
        // The next set in lexicographic order: the last member that can move does, and the rest follow it.
        let Some(moved) = (0..lost).rev().find(|place| members[*place] < nodes - lost + place) else { break };
        members[moved] += 1;
        for place in moved + 1..lost {
            members[place] = members[place - 1] + 1;
        }
    }
    Ok(Odds { lost, survived, of })
}

/// Returns n over k. With at most 128 nodes it is below 2^125.
pub(crate) fn choose(n: usize, k: usize) -> u128 {
    if k > n {
        return 0;
    }
    // Each step is a binomial coefficient itself, and the division comes first where it can, so that nothing overflows.
    (1..=k.min(n - k)).fold(1, |result, step| {
        let (factor, divisor) = ((n - k.min(n - k) + step) as u128, step as u128);
        result / divisor * factor + result % divisor * factor / divisor
    })
}

fn holders(layers: &[Placement], lost: usize) -> Result<(usize, Vec<u128>), SurvivalError> {
    let first = layers.first().ok_or(SurvivalError::NoLayers)?.nodes().len();
    for (layer, placement) in layers.iter().enumerate() {
        let nodes = placement.nodes().len();
        if nodes != first {
            return Err(SurvivalError::Layers { layer, nodes, first });
        }
    }
    if lost > first {
        return Err(SurvivalError::Lost { lost, nodes: first });
    }
    Ok((first, layers.iter().flat_map(Placement::holders).collect()))
}

/// Counts the sets of 0 to `most_lost` of the nodes that contain none of `sets`.
pub(crate) fn counted(sets: Vec<u128>, nodes: usize, most_lost: usize) -> Result<Vec<u128>, SurvivalError> {
    // An expert on no node is lost from the beginning.
    if sets.contains(&0) {
        return Ok(vec![0; most_lost + 1]);
    }
    let sets = smallest(sets, most_lost);
    let free = nodes - union(&sets).count_ones() as usize;
    let survived = Count::default().safe(&sets, most_lost);
    let mut survived =
        times(&survived.ok_or(SurvivalError::TooLarge { lost: most_lost, nodes })?, free, most_lost);
    survived.resize(most_lost + 1, 0);
    Ok(survived)
}

fn union(sets: &[u128]) -> u128 {
    sets.iter().fold(0, |union, set| union | set)
}

/// Multiplies counts by number of lost nodes.
fn product(one: &[u128], other: &[u128], most_lost: usize) -> Vec<u128> {
    let mut product = vec![0; (one.len() + other.len() - 1).min(most_lost + 1)];
    for (lost, count) in one.iter().enumerate() {
        for (more, other) in other.iter().enumerate().take((most_lost + 1).saturating_sub(lost)) {
            product[lost + more] += count * other;
        }
    }
    product
}

/// Counts with `free` more nodes, each of which may be lost.
fn times(counts: &[u128], free: usize, most_lost: usize) -> Vec<u128> {
    let binomial: Vec<u128> = (0..=free.min(most_lost)).map(|lost| choose(free, lost)).collect();
    product(counts, &binomial, most_lost)
}

/// Keeps the sets that can be lost, in ascending size, without those that contain another one.
fn smallest(mut sets: Vec<u128>, most_lost: usize) -> Vec<u128> {
    sets.retain(|set| set.count_ones() as usize <= most_lost);
    sets.sort_unstable_by_key(|set| (set.count_ones(), *set));
    sets.dedup();
    let mut kept: Vec<u128> = Vec::with_capacity(sets.len());
    for set in sets {
        if kept.iter().all(|smaller| smaller & set != *smaller) {
            kept.push(set);
        }
    }
    kept
}

#[derive(Default)]
struct Count {
    comparisons: u64,
    known: HashMap<(Vec<u128>, usize), Vec<u128>>,
}

impl Count {
    /// Counts, by size up to `most_lost`, the subsets of the nodes in these sets that contain none of them. Nothing if that takes too long.
    fn safe(&mut self, sets: &[u128], most_lost: usize) -> Option<Vec<u128>> {
        self.comparisons += 1 + (sets.len() * sets.len()) as u64;
        if self.comparisons > COMPARISONS {
            return None;
        }
        let Some(first) = sets.first() else { return Some(vec![1]) };
        let mut connected = *first;
        while let Some(more) = sets.iter().find(|set| **set & connected != 0 && **set & !connected != 0) {
            connected |= more;
        }
        let (own, others): (Vec<u128>, Vec<u128>) = sets.iter().partition(|set| **set & connected != 0);
        if !others.is_empty() {
            return Some(product(&self.safe(&own, most_lost)?, &self.safe(&others, most_lost)?, most_lost));
        }
        let key = (own, most_lost);
        if let Some(known) = self.known.get(&key) {
            return Some(known.clone());
        }
        let uses = |node: &u32| sets.iter().filter(|set| **set >> node & 1 == 1).count();
        let node = (0..u128::BITS).rev().max_by_key(uses).unwrap_or(0);
        let nodes = connected.count_ones() as usize - 1;
        let freed = |sets: &[u128]| nodes - union(sets).count_ones() as usize;
        let without: Vec<u128> = sets.iter().copied().filter(|set| set >> node & 1 == 0).collect();
        let mut counts = times(&self.safe(&without, most_lost)?, freed(&without), most_lost);
        let rest: Vec<u128> = sets.iter().map(|set| set & !(1 << node)).collect();
        if most_lost > 0 && !rest.contains(&0) {
            let rest = smallest(rest, most_lost - 1);
            let lost = times(&self.safe(&rest, most_lost - 1)?, freed(&rest), most_lost - 1);
            counts.resize(counts.len().max(lost.len() + 1), 0);
            for (count, more) in counts[1..].iter_mut().zip(lost) {
                *count += more;
            }
        }
        if self.known.len() < KEPT {
            self.known.insert(key, counts.clone());
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn binomial_coefficients() {
        assert_eq!((choose(10, 4), choose(4, 5), choose(7, 0)), (210, 0, 1));
        assert_eq!(choose(128, 64), 23_951_146_041_928_082_866_135_587_776_380_551_750);
    }

    #[test]
    fn an_expert_without_replica_never_survives() {
        let placement = Placement::new(vec![vec![0], vec![0]], 2, 1).unwrap();
        assert!(survival(&[placement], 2).unwrap().iter().all(|odds| odds.survived == 0));
    }

    #[test]
    fn wrong_questions_are_refused() {
        let of = |nodes: usize| Placement::new(vec![vec![0]; nodes], 1, 1).unwrap();
        assert_eq!(survival(&[], 1), Err(SurvivalError::NoLayers));
        assert_eq!(survival(&[of(2)], 3), Err(SurvivalError::Lost { lost: 3, nodes: 2 }));
        let layers = SurvivalError::Layers { layer: 1, nodes: 3, first: 2 };
        assert_eq!(survival(&[of(2), of(3)], 1), Err(layers));
    }

    /// 128 nodes, each expert on two neighbours. The sets without neighbours on a circle of n have a closed form:
    /// n / (n - k) * C(n - k, k).
    #[test]
    fn many_nodes_are_counted_exactly() {
        let nodes = (0..128).map(|node| vec![node, (node + 1) % 128]).collect();
        let placement = Placement::new(nodes, 128, 2).unwrap();
        let odds = survival(&[placement], 4).unwrap();
        for (lost, odds) in odds.iter().enumerate() {
            assert_eq!(odds.survived, choose(128 - lost, lost) * 128 / (128 - lost as u128));
        }
    }

    /// A count that takes too long is refused, and not estimated.
    #[test]
    fn hopeless_counts_are_refused() {
        // Each expert is on eight of 128 nodes, without any order.
        let mut random = tidemill_random::Random::of_seed(1);
        let nodes = (0..128).map(|_| (0..16).map(|_| random.below(256)).collect()).collect();
        let placement = Placement::new(nodes, 256, 16).unwrap();
        let refused = SurvivalError::TooLarge { lost: 60, nodes: 128 };
        assert_eq!(survival(&[placement], 60), Err(refused));
    }

    fn placements() -> impl Strategy<Value = Vec<Placement>> {
        (2usize..10, 1usize..5, 1usize..9, 1usize..4).prop_flat_map(|(nodes, slots, experts, layers)| {
            let node = proptest::collection::vec(0..experts, slots);
            let layer = proptest::collection::vec(node, nodes)
                .prop_map(move |nodes| Placement::new(nodes, experts, slots).unwrap());
            proptest::collection::vec(layer, layers)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn both_counts_agree(layers in placements()) {
            let nodes = layers[0].nodes().len();
            for odds in survival(&layers, nodes).unwrap() {
                prop_assert_eq!(odds, survival_one_by_one(&layers, odds.lost).unwrap());
            }
        }
    }
}
