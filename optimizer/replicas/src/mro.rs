//! Maximum rank overlap.
use crate::placement::{Placement, PlacementError, ascending};

/// Places replicas with maximum rank overlap (Lazarus, Wu et al. 2024, section 4.1): experts by ascending number of replicas, in groups as
/// large as the slots of a node. Each group has nodes of its own, as many as its rarest expert has replicas, and all experts of the group
/// are on each of them. The remaining replicas fill the vacant slots, the rarest first, on nodes that lack them where possible.
///
/// The plan survives as long as each group has a node. It is the best plan where the groups fit beside each other; else the last groups get
/// too few nodes or none, and [`Search`](crate::Search) does better.
///
/// # Errors
/// Each expert has a replica, and all of them have slots.
///
/// ```
/// let placement = tidemill_replicas::mro(&[2, 2, 2], 3, 2)?;
/// assert_eq!(placement.nodes(), [vec![0, 1], vec![0, 1], vec![2, 2]]);
/// # Ok::<(), tidemill_replicas::PlacementError>(())
/// ```
pub fn mro(replicas: &[usize], nodes: usize, slots: usize) -> Result<Placement, PlacementError> {
    let order = ascending(replicas, nodes, slots)?;
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); nodes];
    let mut left = replicas.to_vec();
    let mut first = 0;
    for group in order.chunks(slots) {
        let end = nodes.min(first + replicas[group[0]]);
        for node in &mut held[first..end] {
            for expert in group {
                node.push(*expert);
                left[*expert] -= 1;
            }
        }
        first = end;
    }
    fill(&mut held, &order, &left, slots);
    Placement::new(held, replicas.len(), slots)
}

/// Places what is left, expert after expert: each replica goes to the emptiest node that lacks the expert, else to the emptiest one.
pub(crate) fn fill(held: &mut [Vec<usize>], order: &[usize], left: &[usize], slots: usize) {
    for expert in order {
        for _ in 0..left[*expert] {
            let vacant = (0..held.len()).filter(|node| held[*node].len() < slots);
            if let Some(node) = vacant.min_by_key(|node| (held[*node].contains(expert), held[*node].len())) {
                held[node].push(*expert);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{allocate, survival};

    /// LZ-1, both plans of the published figure.
    #[test]
    fn the_published_example_survives_seven_times_in_ten() {
        let plan = mro(&[2, 3, 3, 12], 5, 4).unwrap();
        let odds = survival(&[plan], 3).unwrap()[3];
        assert_eq!((odds.survived, odds.of), (7, 10));
        let (a, b, c, d) = (0, 1, 2, 3);
        let nodes =
            vec![vec![a, b, d, d], vec![a, d, c, d], vec![d, d, c, d], vec![d, b, c, d], vec![d, b, d, d]];
        let other = Placement::new(nodes, 4, 4).unwrap();
        assert_eq!(other.replicas(), [2, 3, 3, 12]);
        let odds = survival(&[other], 3).unwrap()[3];
        assert_eq!((odds.survived, odds.of), (5, 10));
    }

    /// LZ-6: three groups of two nodes; a set of k lost nodes must contain no pair.
    #[test]
    fn three_pairs_have_closed_forms() {
        let loads: Vec<u64> = (1..=16).map(|rank| (1e6 / f64::from(rank).powf(1.5)).round() as u64).collect();
        let plan = mro(&allocate(&loads, 10, 6, 2).unwrap(), 10, 6).unwrap();
        let counts: Vec<(u128, u128)> =
            survival(&[plan], 6).unwrap().iter().map(|odds| (odds.survived, odds.of)).collect();
        assert_eq!(counts, [(1, 1), (10, 10), (42, 45), (96, 120), (129, 210), (102, 252), (44, 210)]);
    }
}
