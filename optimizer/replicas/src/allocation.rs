//! Replicas by load, with a floor.
use crate::placement::{MAX_NODES, PlacementError};

/// Divides the slots of all nodes among experts in proportion to their loads, with at least `floor` replicas for each. The result has
/// the order of `loads`, and its sum is `nodes * slots`.
///
/// From the least loaded expert on, each gets the whole part of its share of the slots that are left, or the floor (Lazarus,
/// Wu et al. 2024, section 4.1). The whole part is essential: with another rounding a busier expert may get fewer replicas.
///
/// Where the planner puts the replicas of an expert on different nodes, fewer than `floor` losses lose no expert.
///
/// # Errors
/// The floor is between 1 and the number of nodes, and the slots must suffice for it.
///
/// ```
/// use tidemill_replicas::allocate;
/// assert_eq!(allocate(&[700, 100, 200], 5, 4, 2)?, [14, 2, 4]);
/// # Ok::<(), tidemill_replicas::PlacementError>(())
/// ```
pub fn allocate(
    loads: &[u64],
    nodes: usize,
    slots: usize,
    floor: usize,
) -> Result<Vec<usize>, PlacementError> {
    let room = room(nodes, slots)?;
    if floor == 0 || floor > nodes {
        return Err(PlacementError::Floor { floor, nodes });
    }
    if loads.is_empty() {
        return Err(PlacementError::NoExperts);
    }
    let needed = loads.len().saturating_mul(floor);
    if needed > room {
        return Err(PlacementError::TooFewSlots { needed, room });
    }
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(|expert| (loads[*expert], *expert));
    let mut replicas = vec![0; loads.len()];
    let mut free = room as u128;
    let mut load: u128 = loads.iter().map(|load| u128::from(*load)).sum();
    for (position, expert) in order.iter().enumerate() {
        let own = u128::from(loads[*expert]);
        // Without any load all experts are alike.
        let share = match (own * free).checked_div(load) {
            Some(share) => share,
            None => free / (order.len() - position) as u128,
        };
        let count = share.max(floor as u128);
        replicas[*expert] = usize::try_from(count).unwrap_or(room);
        free -= count;
        load -= own;
    }
    Ok(replicas)
}

/// Returns the load of the busiest replica, relative to the mean over all replicas: 1 is perfect balance, 2 means that a step takes
/// twice as long as it could.
pub fn load_ratio(loads: &[u64], replicas: &[usize]) -> f64 {
    let total: f64 = loads.iter().map(|load| *load as f64).sum();
    let count: usize = replicas.iter().sum();
    if total == 0.0 || count == 0 {
        return 1.0;
    }
    let busiest = loads
        .iter()
        .zip(replicas)
        .filter(|(load, _)| **load > 0)
        .map(|(load, count)| *load as f64 / *count as f64);
    busiest.fold(0.0, f64::max) * count as f64 / total
}

/// Returns the number of slots of all nodes.
pub(crate) fn room(nodes: usize, slots: usize) -> Result<usize, PlacementError> {
    if nodes == 0 || nodes > MAX_NODES {
        return Err(PlacementError::Nodes { nodes });
    }
    nodes.checked_mul(slots).filter(|room| *room > 0).ok_or(PlacementError::Slots { slots })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_shares_of_two_distributions() {
        let zipf = |exponent: f64| -> Vec<u64> {
            (1..=16).map(|rank| (1e6 / f64::from(rank).powf(exponent)).round() as u64).collect()
        };
        let twos = |head: &[usize]| [head, &vec![2; 16 - head.len()]].concat();
        assert_eq!(allocate(&zipf(1.0), 10, 6, 2).unwrap(), twos(&[18, 8, 5, 4, 3]));
        assert_eq!(allocate(&zipf(1.5), 10, 6, 2).unwrap(), twos(&[23, 7, 4]));
    }

    #[test]
    fn impossible_requests_say_why() {
        assert_eq!(allocate(&[1, 1], 3, 1, 0), Err(PlacementError::Floor { floor: 0, nodes: 3 }));
        assert_eq!(allocate(&[1, 1], 3, 9, 4), Err(PlacementError::Floor { floor: 4, nodes: 3 }));
        assert_eq!(allocate(&[1, 1], 3, 1, 2), Err(PlacementError::TooFewSlots { needed: 4, room: 3 }));
        assert_eq!(allocate(&[], 3, 1, 2), Err(PlacementError::NoExperts));
        assert_eq!(allocate(&[1], 129, 1, 1), Err(PlacementError::Nodes { nodes: 129 }));
        assert_eq!(allocate(&[1], 1, 0, 1), Err(PlacementError::Slots { slots: 0 }));
    }

    #[test]
    fn loads_of_nothing_divide_evenly() {
        assert_eq!(allocate(&[0, 0, 0], 4, 2, 1).unwrap(), [2, 3, 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        /// LZ-2: all slots are used, the floor holds, and a busier expert never has fewer replicas.
        #[test]
        fn invariants(
            loads in proptest::collection::vec(prop_oneof![0u64..4, 0u64..2_000, 0..=u64::MAX], 1..40),
            nodes in 1usize..24,
            slots in 1usize..12,
            floor in 1usize..4,
        ) {
            match allocate(&loads, nodes, slots, floor) {
                Err(_) => prop_assert!(floor > nodes || loads.len() * floor > nodes * slots),
                Ok(replicas) => {
                    prop_assert_eq!(replicas.iter().sum::<usize>(), nodes * slots);
                    prop_assert!(replicas.iter().all(|count| *count >= floor));
                    for (one, own) in loads.iter().zip(&replicas) {
                        for (other, count) in loads.iter().zip(&replicas) {
                            prop_assert!(one >= other || own <= count);
                        }
                    }
                }
            }
        }
    }
}
