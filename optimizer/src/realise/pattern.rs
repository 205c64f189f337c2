//! Shares of the keys by location, joined from distributions over parts of the graph.
use super::{Lane, SMALL_SHARE};
use std::collections::BTreeMap;

/// A share of the keys with a location for every source and operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    /// Share of the keys.
    pub share: f64,
    /// Location of each source's records.
    pub sources: Vec<usize>,
    /// Location of each operator.
    pub operators: Vec<usize>,
    /// The lane of each operator's keys, none for a weightless one. Empty: any worker at the location, which makes no
    /// difference without latency limits.
    pub lanes: Vec<Option<Lane>>,
}

/// A distribution over the locations of some nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Factor {
    /// The nodes.
    pub nodes: Vec<usize>,
    /// The nodes that earlier factors had too.
    pub separator: Vec<usize>,
    /// Locations of the nodes, with their share.
    pub table: Vec<(Vec<usize>, f64)>,
}

/// A location for each node, where it has one, with its share.
pub type Joined = Vec<(Vec<Option<usize>>, f64)>;

/// Returns a distribution over all nodes whose parts are the given ones; nodes that no factor names have no location.
///
/// The factors are in the order of a junction tree (see [`crate::junction`]), so that such a distribution exists if
/// they agree on their separators; small disagreements are rounded. Pairing the lists of both sides like the north-west
/// corner rule of the transportation problem keeps the result short: each factor adds at most the length of its table.
pub fn join(nodes: usize, factors: &[Factor]) -> Joined {
    let mut joined: Joined = vec![(vec![None; nodes], 1.0)];
    for factor in factors {
        let places: Vec<usize> = factor
            .separator
            .iter()
            .filter_map(|node| factor.nodes.iter().position(|other| other == node))
            .collect();
        let mut offers: BTreeMap<Vec<usize>, Vec<(&Vec<usize>, f64)>> = BTreeMap::new();
        for (tuple, share) in factor.table.iter().filter(|(_, share)| *share > SMALL_SHARE) {
            let key: Vec<usize> = places.iter().map(|&place| tuple[place]).collect();
            offers.entry(key).or_default().push((tuple, *share));
        }
        let mut wanted: BTreeMap<Vec<usize>, Joined> = BTreeMap::new();
        for (pattern, share) in joined {
            let key: Vec<usize> = factor.separator.iter().filter_map(|&node| pattern[node]).collect();
            wanted.entry(key).or_default().push((pattern, share));
        }
        joined = Vec::new();
        for (key, patterns) in wanted {
            let Some(offer) = offers.get(&key) else { continue };
            let scale = patterns.iter().map(|(_, share)| share).sum::<f64>()
                / offer.iter().map(|(_, share)| share).sum::<f64>();
            let mut offer = offer.iter().map(|(tuple, share)| (*tuple, share * scale)).peekable();
            for (pattern, mut share) in patterns {
                while share > SMALL_SHARE {
                    let Some((tuple, left)) = offer.peek_mut() else { break };
                    let taken = share.min(*left);
                    if taken > SMALL_SHARE {
                        let mut longer = pattern.clone();
                        for (node, location) in factor.nodes.iter().zip(tuple.iter()) {
                            longer[*node] = Some(*location);
                        }
                        joined.push((longer, taken));
                    }
                    share -= taken;
                    *left -= taken;
                    if *left <= SMALL_SHARE {
                        offer.next();
                    }
                }
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_has_the_factors_as_its_parts() {
        let factors = [
            Factor {
                nodes: vec![0, 2],
                separator: vec![],
                table: vec![(vec![0, 0], 0.4), (vec![0, 1], 0.3), (vec![1, 1], 0.3)],
            },
            Factor {
                nodes: vec![1, 2],
                separator: vec![2],
                table: vec![(vec![0, 0], 0.4), (vec![1, 1], 0.6)],
            },
            Factor { nodes: vec![3], separator: vec![], table: vec![(vec![5], 0.5), (vec![6], 0.5)] },
        ];
        let joined = join(4, &factors);
        let share = |test: &dyn Fn(&[Option<usize>]) -> bool| -> f64 {
            joined.iter().filter(|(pattern, _)| test(pattern)).map(|(_, share)| share).sum()
        };
        assert!((share(&|_| true) - 1.0).abs() < 1e-12);
        for factor in &factors {
            for (tuple, expected) in &factor.table {
                let is = |pattern: &[Option<usize>]| {
                    factor.nodes.iter().zip(tuple).all(|(&node, &at)| pattern[node] == Some(at))
                };
                assert!((share(&is) - expected).abs() < 1e-9, "{tuple:?}");
            }
        }
        assert!(joined.len() <= 6, "{joined:?}");
    }
}
