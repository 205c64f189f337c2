//! Plans for all layers of a model.
use crate::placement::{Placement, PlacementError};
use crate::search::Search;
use crate::survival::{Odds, SurvivalError, survival};
use crate::{allocate, mro, spread};
use serde::Serialize;

/// The placements of all layers on the same nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The placement of each layer.
    pub layers: Vec<Placement>,
    /// The odds that all layers survive, from 0 lost nodes on.
    pub odds: Vec<Odds>,
}

/// The reason why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The replicas cannot be placed.
    #[error("layer {layer}: {error}")]
    Placement {
        /// The layer, from 0 on.
        layer: usize,
        /// The reason.
        error: PlacementError,
    },
    /// The odds cannot be counted.
    #[error(transparent)]
    Survival(#[from] SurvivalError),
}

/// Plans the replicas of all layers, whose loads are given by expert: [`allocate`], then [`mro`] as a seed for a [`Search`] over all layers.
///
/// Fewer than `floor` lost nodes are always survived. For any number of lost nodes up to `search.most_lost` the odds are at least those of
/// maximum rank overlap, unless that breaks this promise and no swaps keep it: then the search begins with [`spread`] instead.
///
/// # Errors
/// As for [`allocate`] and [`survival`].
///
/// ```
/// use tidemill_replicas::{Search, plan};
/// let plan = plan(&[vec![600, 100, 100], vec![100, 100, 100]], 4, 2, 2, Search::of(2))?;
/// assert_eq!(plan.odds[1].chance(), 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(
    loads: &[Vec<u64>],
    nodes: usize,
    slots: usize,
    floor: usize,
    search: Search,
) -> Result<Plan, PlanError> {
    let seeds = |place: fn(&[usize], usize, usize) -> Result<Placement, PlacementError>| {
        let placed = loads.iter().enumerate().map(|(layer, loads)| {
            let placement =
                allocate(loads, nodes, slots, floor).and_then(|replicas| place(&replicas, nodes, slots));
            placement.map_err(|error| PlanError::Placement { layer, error })
        });
        placed.collect::<Result<Vec<Placement>, PlanError>>()
    };
    // The promise is searched for even where the caller asks for fewer losses.
    let search = Search { most_lost: search.most_lost.max(floor.saturating_sub(1)), ..search };
    let mut layers = search.improve(&seeds(mro)?)?;
    let keeps = |layers: &[Placement]| {
        layers.iter().all(|layer| layer.holders().iter().all(|nodes| nodes.count_ones() as usize >= floor))
    };
    if !keeps(&layers) {
        layers = search.improve(&seeds(spread)?)?;
    }
    let odds = survival(&layers, search.most_lost)?;
    Ok(Plan { layers, odds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(layers: &[Placement], most_lost: usize) -> Vec<u128> {
        survival(layers, most_lost).unwrap().iter().map(|odds| odds.survived).collect()
    }

    #[test]
    fn a_layer_that_cannot_be_placed_is_named() {
        let error = plan(&[vec![1], vec![1; 9]], 2, 2, 1, Search::of(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "layer 1: 9 replicas need as many slots, and there are 4: add nodes or \
            slots, or lower the floor"
        );
    }

    /// Twelve skewed layers: with one order of the nodes, all layers survive about as often as the worst one does; with an order for each
    /// layer they hardly ever do.
    #[test]
    fn layers_share_the_order_of_nodes() {
        let mut random = tidemill_random::Random::of_seed(4);
        let loads: Vec<Vec<u64>> = (0..12)
            .map(|_| {
                let mut loads: Vec<u64> =
                    (1..=16).map(|rank| (1e6 / f64::from(rank).powf(1.5)).round() as u64).collect();
                let shift = random.below(16);
                loads.rotate_left(shift);
                loads
            })
            .collect();
        let search = Search { evaluations: 500, ..Search::of(4) };
        let together = plan(&loads, 10, 6, 2, search).unwrap();
        let worst = together.layers.iter().map(|layer| counts(std::slice::from_ref(layer), 4)[4]).min();
        assert_eq!(Some(together.odds[4].survived), worst);
        assert_eq!(together.odds[4].survived, 129);
        let mut apart = together.layers.clone();
        for layer in &mut apart {
            for node in (1..10).rev() {
                layer.exchange(node, random.below(node + 1));
            }
        }
        assert!(counts(&apart, 4)[4] < 13, "{:?}", counts(&apart, 4));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(80))]
        #[test]
        fn fewer_losses_than_the_floor_are_survived(
            loads in proptest::collection::vec(proptest::collection::vec(0u64..500, 6), 1..3),
            nodes in 2usize..9,
            slots in 2usize..5,
            floor in 1usize..4,
            seed in 0u64..50,
        ) {
            let search = Search { most_lost: floor, evaluations: 200, seed };
            let Ok(plan) = plan(&loads, nodes, slots, floor, Search { most_lost: floor.min(nodes), ..search })
                else { return Ok(()) };
            for odds in &plan.odds[..floor] {
                prop_assert_eq!(odds.survived, odds.of);
            }
            let seeds: Vec<Placement> = loads.iter()
                .map(|loads| mro(&allocate(loads, nodes, slots, floor).unwrap(), nodes, slots).unwrap())
                .collect();
            let floors = counts(&seeds, floor.min(nodes));
            let keeps = floors[..floor].iter().zip(&plan.odds).all(|(count, odds)| *count == odds.of);
            if keeps {
                for (count, odds) in floors.iter().zip(&plan.odds) {
                    prop_assert!(odds.survived >= *count);
                }
            }
        }
    }
}
