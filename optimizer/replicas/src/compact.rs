//! Replicas side by side.
use crate::placement::{Placement, PlacementError, ascending};

/// Fills one node after another, the rarest expert first: a baseline with the fewest nodes for each expert, and the worst odds.
///
/// # Errors
/// Each expert has a replica, and all of them have slots.
///
/// ```
/// let placement = tidemill_replicas::compact(&[2, 2], 2, 2)?;
/// assert_eq!(placement.nodes(), [vec![0, 0], vec![1, 1]]);
/// # Ok::<(), tidemill_replicas::PlacementError>(())
/// ```
pub fn compact(replicas: &[usize], nodes: usize, slots: usize) -> Result<Placement, PlacementError> {
    let order = ascending(replicas, nodes, slots)?;
    let copies: Vec<usize> =
        order.iter().flat_map(|expert| std::iter::repeat_n(*expert, replicas[*expert])).collect();
    let mut held: Vec<Vec<usize>> = copies.chunks(slots).map(<[usize]>::to_vec).collect();
    held.resize(nodes, Vec::new());
    Placement::new(held, replicas.len(), slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{allocate, mro, spread, survival};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// LZ-6 beyond the table: the sum of all odds is never better here than with maximum rank overlap where its groups fit.
        #[test]
        fn overlap_is_better(loads in proptest::collection::vec(1u64..1_000, 2..13), slots in 2usize..7) {
            let nodes = 10;
            let Ok(replicas) = allocate(&loads, nodes, slots, 2) else { return Ok(()) };
            let mut order = replicas.clone();
            order.sort_unstable();
            prop_assume!(order.chunks(slots).map(|group| group[0]).sum::<usize>() <= nodes);
            let counts = |placement: Placement| survival(&[placement], nodes).unwrap();
            let best = counts(mro(&replicas, nodes, slots).unwrap());
            for other in [spread(&replicas, nodes, slots), compact(&replicas, nodes, slots)] {
                for (one, other) in best.iter().zip(counts(other.unwrap())) {
                    prop_assert!(one.survived >= other.survived);
                }
            }
        }
    }

    #[test]
    fn one_loss_is_fatal_where_a_node_has_all_replicas() {
        let plan = compact(&[2, 2, 2], 3, 2).unwrap();
        assert_eq!(survival(&[plan], 1).unwrap()[1].survived, 0);
    }
}
