//! Replicas dealt like cards.
use crate::placement::{Placement, PlacementError, ascending};

/// Places replicas in turn: the rarest expert's on the first nodes, the next one's on the nodes after those, round and round. Each expert
/// is on as many nodes as possible, and experts fail independently of each other: a baseline.
///
/// # Errors
/// Each expert has a replica, and all of them have slots.
///
/// ```
/// let placement = tidemill_replicas::spread(&[1, 2, 1], 2, 2)?;
/// assert_eq!(placement.nodes(), [vec![0, 1], vec![1, 2]]);
/// # Ok::<(), tidemill_replicas::PlacementError>(())
/// ```
pub fn spread(replicas: &[usize], nodes: usize, slots: usize) -> Result<Placement, PlacementError> {
    let order = ascending(replicas, nodes, slots)?;
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); nodes];
    let copies = order.iter().flat_map(|expert| std::iter::repeat_n(*expert, replicas[*expert]));
    // All nodes have equally many slots: in turn none is full before the last round.
    for (turn, expert) in copies.enumerate() {
        held[turn % nodes].push(expert);
    }
    Placement::new(held, replicas.len(), slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{allocate, survival};

    /// LZ-6: five pairs cover ten nodes; a set of k lost nodes has at most one of each: C(5, k) 2^k.
    #[test]
    fn five_pairs_have_closed_forms() {
        let loads: Vec<u64> = (1..=16).map(|rank| (1e6 / f64::from(rank).powf(1.5)).round() as u64).collect();
        let plan = spread(&allocate(&loads, 10, 6, 2).unwrap(), 10, 6).unwrap();
        let counts: Vec<u128> = survival(&[plan], 6).unwrap().iter().map(|odds| odds.survived).collect();
        assert_eq!(counts, [1, 10, 40, 80, 80, 32, 0]);
    }
}
