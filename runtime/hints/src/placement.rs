//! Where tasks of an exchange run, so that its most loaded link carries least.
//!
//! Tasks are placed one by one, those that receive most first. Then two of them change places, or one moves, as long as that helps.
//!
//! ```
//! use tidemill_hints::placement::{Exchange, Transfer, place};
//! use tidemill_hints::tree::Tree;
//! let tree = Tree::of(&["one", "one", "two"]);
//! // Task 0 is on machine 0 and sends to task 1, which has the choice of machines 1 and 2.
//! let exchange = Exchange {
//!     fixed: vec![Some(0), None],
//!     slots: vec![1, 1, 1],
//!     transfers: vec![Transfer { from: 0, to: 1, bytes: 1e6 }],
//! };
//! let found = place(&tree, &vec![1.0; tree.links()], &exchange)?;
//! assert_eq!(found.machines, [0, 1], "not out of the rack");
//! # Ok::<(), tidemill_hints::placement::PlacementError>(())
//! ```
use crate::tree::{Direction, Link, Tree, time};
use std::cmp::Ordering;

/// Bytes that one task sends to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Its size.
    pub bytes: f64,
}

/// An exchange between tasks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exchange {
    /// The machine of each task that cannot move; none: it is placed.
    pub fixed: Vec<Option<usize>>,
    /// How many tasks each machine has room for, those that cannot move included.
    pub slots: Vec<usize>,
    /// Their transfers.
    pub transfers: Vec<Transfer>,
}

/// Where the tasks run.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The machine of each task.
    pub machines: Vec<usize>,
    /// Time of the exchange, by the most loaded link.
    pub time: f64,
    /// Bytes that leave a rack.
    pub across: f64,
}

/// A reason why tasks cannot be placed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// There is not enough room.
    #[error("{tasks} tasks do not fit into {slots} slots")]
    Room {
        /// Tasks to place.
        tasks: usize,
        /// Slots that are free.
        slots: usize,
    },
    /// A number names no task, no machine or no link.
    #[error("the exchange does not fit the tree: {0}")]
    Mismatch(String),
}

/// Exchanges of places are tried this often for all tasks.
const ROUNDS: usize = 8;

/// Places the tasks. `rates` are by the numbers of links.
pub fn place(tree: &Tree, rates: &[f64], exchange: &Exchange) -> Result<Placement, PlacementError> {
    let mut free = checked(tree, rates, exchange)?;
    let mut at = exchange.fixed.clone();
    let mut received = vec![0.0; at.len()];
    exchange.transfers.iter().for_each(|transfer| received[transfer.to] += transfer.bytes);
    let mut open: Vec<usize> = (0..at.len()).filter(|task| at[*task].is_none()).collect();
    open.sort_by(|one, other| received[*other].total_cmp(&received[*one]).then(one.cmp(other)));
    let cost = |at: &[Option<usize>]| cost(tree, rates, exchange, at);
    for task in &open {
        let mut best: Option<(usize, Cost)> = None;
        for machine in (0..free.len()).filter(|machine| free[*machine] > 0) {
            at[*task] = Some(machine);
            let here = cost(&at);
            if best.as_ref().is_none_or(|(_, known)| here.is_less(known)) {
                best = Some((machine, here));
            }
        }
        at[*task] = best.map(|(machine, _)| machine);
        best.iter().for_each(|(machine, _)| free[*machine] -= 1);
    }
    let mut known = cost(&at);
    for _ in 0..ROUNDS {
        if !improved(&open, &mut at, &mut free, &mut known, &cost) {
            break;
        }
    }
    Ok(Placement { machines: at.into_iter().flatten().collect(), time: known.time, across: known.across })
}

/// Moves each task, or lets it change places with another one, where that helps. Returns whether anything changed.
fn improved(
    open: &[usize],
    at: &mut [Option<usize>],
    free: &mut [usize],
    known: &mut Cost,
    cost: &impl Fn(&[Option<usize>]) -> Cost,
) -> bool {
    let mut changed = false;
    for (index, task) in open.iter().enumerate() {
        for other in &open[index + 1..] {
            if at[*task] == at[*other] {
                continue;
            }
            at.swap(*task, *other);
            let here = cost(at);
            if here.is_less(known) {
                (*known, changed) = (here, true);
            } else {
                at.swap(*task, *other);
            }
        }
        for machine in 0..free.len() {
            let (Some(before), true) = (at[*task], free[machine] > 0) else { continue };
            at[*task] = Some(machine);
            let here = cost(at);
            if here.is_less(known) {
                (*known, changed) = (here, true);
                free[machine] -= 1;
                free[before] += 1;
            } else {
                at[*task] = Some(before);
            }
        }
    }
    changed
}

/// The cost of a placement: time first, then bytes that leave a rack.
#[derive(Debug, Clone, Copy)]
struct Cost {
    time: f64,
    across: f64,
}

impl Cost {
    fn is_less(&self, other: &Self) -> bool {
        // Beyond rounding, so that exchanges of places end.
        let compared = |one: f64, other: f64| {
            if one == other || (one - other).abs() <= 1e-9 * one.abs().max(other.abs()) {
                Ordering::Equal
            } else {
                one.total_cmp(&other)
            }
        };
        compared(self.time, other.time).then(compared(self.across, other.across)) == Ordering::Less
    }
}

/// The cost of what is between tasks that are placed.
fn cost(tree: &Tree, rates: &[f64], exchange: &Exchange, at: &[Option<usize>]) -> Cost {
    let placed = exchange
        .transfers
        .iter()
        .filter_map(|transfer| Some((at[transfer.from]?, at[transfer.to]?, transfer.bytes)));
    let loads = tree.loads(placed);
    let racks = 0..tree.racks().len();
    let across = racks.map(|rack| loads[tree.id(Link::Rack(rack, Direction::Up))]).sum();
    Cost { time: time(&loads, rates), across }
}

/// Checks that all numbers fit, and returns the room that is left on each machine.
fn checked(tree: &Tree, rates: &[f64], exchange: &Exchange) -> Result<Vec<usize>, PlacementError> {
    let tasks = exchange.fixed.len();
    let mismatch = |text: String| Err(PlacementError::Mismatch(text));
    if rates.len() != tree.links() || exchange.slots.len() != tree.machines() {
        return mismatch(format!(
            "{} rates and {} machines with slots, for {} links and {} machines",
            rates.len(),
            exchange.slots.len(),
            tree.links(),
            tree.machines(),
        ));
    }
    if let Some(transfer) = exchange.transfers.iter().find(|transfer| transfer.from.max(transfer.to) >= tasks)
    {
        return mismatch(format!(
            "a transfer from task {} to task {} of {tasks}",
            transfer.from, transfer.to
        ));
    }
    let mut free = exchange.slots.clone();
    for (task, machine) in exchange.fixed.iter().enumerate() {
        match machine.map(|machine| free.get_mut(machine)) {
            Some(None) => return mismatch(format!("task {task} is on a machine that does not exist")),
            Some(Some(0)) => return mismatch(format!("the machine of task {task} has no room for it")),
            Some(Some(room)) => *room -= 1,
            None => {}
        }
    }
    let (open, slots) =
        (exchange.fixed.iter().filter(|machine| machine.is_none()).count(), free.iter().sum());
    if open > slots { Err(PlacementError::Room { tasks: open, slots }) } else { Ok(free) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_random::Random;

    /// Two mappers and two reducers on two racks of two, where the last machine sends at three quarters of the rate.
    fn shuffle() -> (Tree, Vec<f64>, Vec<Transfer>) {
        let tree = Tree::of(&[1, 1, 2, 2]);
        let mut rates = vec![1.0; tree.links()];
        rates[tree.id(Link::Machine(3, Direction::Up))] = 0.75;
        let transfers =
            [(0, 2), (0, 3), (1, 2), (1, 3)].map(|(from, to)| Transfer { from, to, bytes: 1.0 }).to_vec();
        (tree, rates, transfers)
    }

    #[test]
    fn a_shuffle_takes_two_units_instead_of_four() {
        let (tree, rates, transfers) = shuffle();
        let fixed = |at: [usize; 4]| {
            let exchange =
                Exchange { fixed: at.map(Some).to_vec(), slots: vec![1; 4], transfers: transfers.clone() };
            place(&tree, &rates, &exchange).map(|found| found.time)
        };
        assert_eq!(fixed([0, 1, 2, 3]), Ok(4.0), "mappers in one rack, reducers in the other one");
        assert_eq!(fixed([0, 3, 1, 2]), Ok(2.0 / 0.75), "a mapper where sending is slow");
        let exchange = Exchange { fixed: vec![None; 4], slots: vec![1; 4], transfers };
        let found = place(&tree, &rates, &exchange).expect("there is room");
        assert!((found.time - 2.0).abs() < 1e-9, "{found:?}");
        assert_ne!(found.machines[0], 3);
        assert_ne!(found.machines[1], 3);
    }

    #[test]
    fn what_does_not_fit_is_rejected() {
        let (tree, rates, transfers) = shuffle();
        let exchange =
            Exchange { fixed: vec![None; 4], slots: vec![1, 1, 1, 0], transfers: transfers.clone() };
        let found = place(&tree, &rates, &exchange);
        assert_eq!(found, Err(PlacementError::Room { tasks: 4, slots: 3 }));
        for (fixed, slots) in
            [(vec![Some(4)], vec![1; 4]), (vec![Some(0); 2], vec![1; 4]), (vec![None], vec![1; 3])]
        {
            let exchange = Exchange { fixed, slots, transfers: Vec::new() };
            let found = place(&tree, &rates, &exchange);
            assert!(matches!(found, Err(PlacementError::Mismatch(_))), "{found:?}");
        }
        let exchange = Exchange { fixed: vec![None], slots: vec![1; 4], transfers };
        assert!(matches!(place(&tree, &rates, &exchange), Err(PlacementError::Mismatch(_))));
    }

    fn every_placement(tasks: usize, machines: usize) -> Vec<Vec<usize>> {
        (0..tasks).fold(vec![Vec::new()], |found, _| {
            let longer = found.iter().flat_map(|one| {
                let unused = (0..machines).filter(|machine| !one.contains(machine));
                unused.map(|machine| [one.clone(), vec![machine]].concat())
            });
            longer.collect()
        })
    }

    /// Receivers of a keyed exchange: senders are where their data is. Small enough to try all placements.
    fn keyed(random: &mut Random) -> (Tree, Vec<f64>, Exchange) {
        let racks: Vec<usize> = (0..5).map(|_| random.below(2)).collect();
        let tree = Tree::of(&racks);
        let rates = (0..tree.links()).map(|_| random.uniform(0.2, 1.0)).collect();
        let transfer =
            |pair: usize| Transfer { from: pair % 2, to: 2 + pair / 2, bytes: random.uniform(0.1, 4.0) };
        let exchange = Exchange {
            fixed: vec![Some(0), Some(1), None, None, None],
            slots: vec![2, 2, 1, 1, 1],
            transfers: (0..6).map(transfer).collect(),
        };
        (tree, rates, exchange)
    }

    #[test]
    fn receivers_are_mostly_placed_as_well_as_can_be() {
        let mut random = Random::of_seed(5);
        let mut ratios: Vec<f64> = (0..300)
            .map(|_| {
                let (tree, rates, exchange) = keyed(&mut random);
                let found = place(&tree, &rates, &exchange).expect("there is room");
                let times = every_placement(3, 5).into_iter().map(|one| {
                    let at: Vec<Option<usize>> = [0, 1].into_iter().chain(one).map(Some).collect();
                    cost(&tree, &rates, &exchange, &at).time
                });
                found.time / times.fold(f64::INFINITY, f64::min)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let mean = ratios.iter().sum::<f64>() / 300.0;
        assert!(ratios[0] >= 1.0 - 1e-9, "better than the best: {}", ratios[0]);
        assert!(
            mean < 1.05 && ratios[269] < 1.2,
            "mean {mean}, nine of ten below {}, all below {}",
            ratios[269],
            ratios[299]
        );
    }

    proptest! {
        #[test]
        fn no_change_of_places_would_help(seed in any::<u64>()) {
            let (tree, rates, exchange) = keyed(&mut Random::of_seed(seed));
            let found = place(&tree, &rates, &exchange).expect("there is room");
            let (one, other) = (found.machines.clone(), [2, 3, 4]);
            let changed = other.iter().flat_map(|task| {
                let swaps = other.map(|other| { let mut at = one.clone(); at.swap(*task, other); at });
                let unused = (0..5).filter(|machine| !one[2..].contains(machine));
                let moves = unused.map(|machine| { let mut at = one.clone(); at[*task] = machine; at });
                swaps.into_iter().chain(moves).collect::<Vec<_>>()
            });
            for at in changed {
                let at: Vec<Option<usize>> = at.into_iter().map(Some).collect();
                let time = cost(&tree, &rates, &exchange, &at).time;
                prop_assert!(time >= found.time * (1.0 - 1e-8), "{time} instead of {}", found.time);
            }
        }
    }
}
