//! The global policy of DeepSeek's expert parallelism load balancer.
use crate::allocation::room;
use crate::placement::{Placement, PlacementError};

/// Places replicas for balance alone, as the global policy of DeepSeek's expert parallelism load balancer describes it (EPLB, 2025; also in
/// vLLM): each further replica goes to the expert whose replicas have the most load, and replicas, the busiest first, go to the node with
/// the least load that has a slot. No expert has a floor, so a rare one has a single replica: a baseline for survival.
///
/// # Errors
/// There is a slot for each expert.
///
/// ```
/// let placement = tidemill_replicas::eplb(&[90, 30, 20], 2, 2)?;
/// assert_eq!(placement.nodes(), [vec![0, 1], vec![0, 2]]);
/// # Ok::<(), tidemill_replicas::PlacementError>(())
/// ```
pub fn eplb(loads: &[u64], nodes: usize, slots: usize) -> Result<Placement, PlacementError> {
    let room = room(nodes, slots)?;
    if loads.is_empty() {
        return Err(PlacementError::NoExperts);
    }
    if loads.len() > room {
        return Err(PlacementError::TooFewSlots { needed: loads.len(), room });
    }
    let mut replicas = vec![1u64; loads.len()];
    let mut copies: Vec<usize> = (0..loads.len()).collect();
    while copies.len() < room {
        // The first one of equals: fractions are compared exactly, crosswise.
        let busier = |one: usize, other: usize| {
            u128::from(loads[other]) * u128::from(replicas[one])
                > u128::from(loads[one]) * u128::from(replicas[other])
        };
        let expert =
            (1..loads.len()).fold(0, |best, expert| if busier(best, expert) { expert } else { best });
        replicas[expert] += 1;
        copies.push(expert);
    }
    let load = |expert: usize| loads[expert] as f64 / replicas[expert] as f64;
    copies.sort_by(|one, other| load(*other).total_cmp(&load(*one)));
    let mut held: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); nodes];
    for expert in copies {
        let vacant = held.iter_mut().filter(|(_, experts)| experts.len() < slots);
        if let Some(node) = vacant.min_by(|one, other| one.0.total_cmp(&other.0)) {
            node.0 += load(expert);
            node.1.push(expert);
        }
    }
    Placement::new(held.into_iter().map(|(_, experts)| experts).collect(), loads.len(), slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{allocate, load_ratio, survival};

    fn zipf(exponent: f64) -> Vec<u64> {
        (1..=16).map(|rank| (1e6 / f64::from(rank).powf(exponent)).round() as u64).collect()
    }

    fn chances(placement: Placement) -> Vec<f64> {
        let odds = survival(&[placement], 4).unwrap();
        odds[1..].iter().map(|odds| (odds.chance() * 100.0).round() / 100.0).collect()
    }

    /// Ten nodes of six slots, sixteen experts: a rare expert is lost with its only node.
    #[test]
    fn balance_without_a_floor_loses_experts() {
        assert_eq!(chances(eplb(&zipf(1.0), 10, 6).unwrap()), [0.8, 0.53, 0.28, 0.1]);
        assert_eq!(chances(eplb(&zipf(1.5), 10, 6).unwrap()), [0.4, 0.09, 0.0, 0.0]);
        let floor = |exponent| crate::mro(&allocate(&zipf(exponent), 10, 6, 2).unwrap(), 10, 6).unwrap();
        assert_eq!(chances(floor(1.0)), [1.0, 0.96, 0.87, 0.73]);
        assert_eq!(chances(floor(1.5)), [1.0, 0.93, 0.8, 0.61]);
    }

    /// The floor costs balance: the busiest replica has more.
    #[test]
    fn balance_is_better_than_with_a_floor() {
        let ratio = |replicas: &[usize]| load_ratio(&zipf(1.5), replicas);
        let free = ratio(&eplb(&zipf(1.5), 10, 6).unwrap().replicas());
        let floor = ratio(&allocate(&zipf(1.5), 10, 6, 2).unwrap());
        assert!(free < 1.14 && floor > 1.7 && floor < 1.8, "{free} {floor}");
    }

    #[test]
    fn every_slot_is_used() {
        let placement = eplb(&[5, 0, 3], 3, 3).unwrap();
        assert!(placement.nodes().iter().all(|node| node.len() == 3));
        assert!(placement.replicas().iter().all(|count| *count > 0));
        assert!(matches!(eplb(&[1; 5], 2, 2), Err(PlacementError::TooFewSlots { needed: 5, room: 4 })));
    }
}
