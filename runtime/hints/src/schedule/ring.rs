//! One ring of all machines that crosses each rack once.
//!
//! In a ring each machine sends to the next one, so all such rings load all links alike while all of them are used. A broadcast leaves
//! one out: the machine before the root sends nothing, and neither does its rack. So the ring is laid so that the links that are worst
//! for their load come last, and that decides its direction too.
//!
//! ```
//! use tidemill_hints::schedule::ring;
//! use tidemill_hints::tree::{Direction, Link, Tree};
//! let tree = Tree::of(&["one", "one", "two", "two"]);
//! let mut rates = vec![1.0; tree.links()];
//! rates[tree.id(Link::Machine(3, Direction::Up))] = 0.75; // it sends slowly, so it comes last
//! let ring = ring(&tree, &rates, 0)?;
//! assert_eq!(ring.order, [0, 1, 2, 3]);
//! assert_eq!(ring.broadcast, 1.0);
//! # Ok::<(), tidemill_hints::schedule::ScheduleError>(())
//! ```
use super::{ScheduleError, scaled};
use crate::tree::{Tree, time};

/// A ring, and what it costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Ring {
    /// The machines. Each sends to the next one, the last one to the first, which is the root of broadcasts.
    pub order: Vec<usize>,
    /// Time of a broadcast of a buffer of one unit from the root.
    pub broadcast: f64,
    /// Time of an all-reduce of a buffer of one unit: each machine sends 2 (n - 1) / n of it.
    pub all_reduce: f64,
}

/// Returns the ring from `root` that crosses each rack once and whose broadcasts are quickest. For topology without loads `rates` are
/// the totals.
pub fn ring(tree: &Tree, rates: &[f64], root: usize) -> Result<Ring, ScheduleError> {
    if root >= tree.machines() {
        return Err(ScheduleError::Root { root, machines: tree.machines() });
    }
    scaled(tree, rates)?;
    let home = tree.rack_of(root);
    let can_be_last = |machine: &usize| {
        (*machine != root || tree.machines() == 1)
            && (tree.racks().len() == 1 || tree.rack_of(*machine) != home)
    };
    let rings = (0..tree.machines()).filter(can_be_last).map(|last| laid(tree, rates, root, last));
    let best = rings.min_by(|one, other| one.broadcast.total_cmp(&other.broadcast));
    best.ok_or(ScheduleError::Root { root, machines: tree.machines() })
}

/// The ring from `root` to `last`.
fn laid(tree: &Tree, rates: &[f64], root: usize, last: usize) -> Ring {
    let (home, end) = (tree.rack_of(root), tree.rack_of(last));
    let mut order: Vec<usize> = (0..tree.machines()).collect();
    let place = |machine: &usize| {
        let rack = tree.rack_of(*machine);
        // Rank: the rack of the root, others, that of the last; then the same within the rack.
        let rank = if rack == home { 0 } else { 1 + usize::from(rack == end) };
        (rank, rack, *machine != root, *machine == last, *machine)
    };
    order.sort_by_key(place);
    let chain = order.windows(2).map(|pair| (pair[0], pair[1], 1.0));
    let broadcast = time(&tree.loads(chain.clone()), rates);
    let back = (order.len() > 1).then_some((last, root, 1.0));
    let share = 2.0 * (order.len() - 1) as f64 / order.len() as f64;
    let all_reduce = share * time(&tree.loads(chain.chain(back)), rates);
    Ring { order, broadcast, all_reduce }
}
