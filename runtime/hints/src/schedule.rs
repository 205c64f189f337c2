//! How a group broadcasts or reduces, so that its most loaded link carries least.
//!
//! A buffer is cut into parts, and each part goes by its own tree. All trees cross each rack once: one link of it takes the
//! part in, and the machines of the rack pass it on among themselves. Which trees, and how much of the buffer each carries,
//! comes from a linear program. It has one variable for each machine and rack, not one for each tree, because what a tree costs
//! depends only on how many others each machine and each rack passes data to: the module `weights` explains it.
//!
//! ```
//! use tidemill_hints::schedule::{Goal, schedule};
//! use tidemill_hints::tree::{Direction, Link, Tree};
//! // Two racks of two. The last machine sends at three quarters of the rate of the others.
//! let tree = Tree::of(&["one", "one", "two", "two"]);
//! let mut rates = vec![1.0; tree.links()];
//! rates[tree.id(Link::Machine(3, Direction::Up))] = 0.75;
//! let best = schedule(&tree, &rates, Goal::Broadcast { root: 0 })?;
//! assert!((best.time - 1.0).abs() < 1e-6, "as quick as the root can send once");
//! # Ok::<(), tidemill_hints::schedule::ScheduleError>(())
//! ```
mod pieces;
mod ring;
mod weights;

pub use ring::{Ring, ring};

use crate::tree::{Tree, time};

/// The operation of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Each machine gets the buffer of one.
    Broadcast {
        /// That machine.
        root: usize,
    },
    /// Each machine gets the combination of all buffers: up a tree, combined on the way, and down again.
    AllReduce,
}

/// A tree that a part of the buffer goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The part of the buffer, of 1.
    pub weight: f64,
    /// The machine that it begins at. That of an all-reduce combines all.
    pub root: usize,
    /// Its edges, each from the machine that is nearer to the root, and nearer ones first.
    pub edges: Vec<(usize, usize)>,
}

/// How a group carries out one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The parts. Their weights add up to 1.
    pub parts: Vec<Part>,
    /// Time of a buffer of one unit, by the most loaded link.
    pub time: f64,
}

/// A reason why there is no schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// The root is not in the group.
    #[error("machine {root} cannot broadcast: the group has {machines}")]
    Root {
        /// The root.
        root: usize,
        /// Machines of the group.
        machines: usize,
    },
    /// There are rates for another number of links.
    #[error("{rates} rates do not fit a tree of {links} links")]
    Rates {
        /// Rates.
        rates: usize,
        /// Links.
        links: usize,
    },
    /// A rate is not a number, or none is more than 0.
    #[error("rates must be numbers from 0, at least one of them more")]
    NoRate,
    /// The linear program was not solved.
    #[error("the weights of trees were not found: {0}")]
    Solver(String),
}

impl Goal {
    /// Returns what goes from a machine to another one, for one unit of a buffer that goes by these edges.
    pub fn transfers(self, edges: &[(usize, usize)]) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        let both = self == Self::AllReduce;
        edges.iter().flat_map(move |&(from, to)| {
            std::iter::once((from, to, 1.0)).chain(both.then_some((to, from, 1.0)))
        })
    }
}

impl Schedule {
    /// Returns what each link carries, by its number, for one unit of a buffer.
    pub fn loads(&self, tree: &Tree, goal: Goal) -> Vec<f64> {
        let transfers = self.parts.iter().flat_map(|part| {
            goal.transfers(&part.edges).map(|(from, to, volume)| (from, to, volume * part.weight))
        });
        tree.loads(transfers)
    }
}

/// Returns the trees that cross each rack once and their weights, so that the most loaded link carries least for its rate. No
/// mix of other trees that cross each rack once is quicker by more than a ten-thousandth. `rates` are by the numbers of links;
/// one of less than a millionth of the highest counts as that.
pub fn schedule(tree: &Tree, rates: &[f64], goal: Goal) -> Result<Schedule, ScheduleError> {
    if let Goal::Broadcast { root } = goal
        && root >= tree.machines()
    {
        return Err(ScheduleError::Root { root, machines: tree.machines() });
    }
    let scaled = scaled(tree, rates)?;
    if tree.machines() < 2 {
        return Ok(Schedule { parts: vec![Part { weight: 1.0, root: 0, edges: Vec::new() }], time: 0.0 });
    }
    let shares = weights::shares(tree, &scaled, goal)?;
    let mut found = Schedule { parts: pieces::parts(tree, &shares, goal), time: 0.0 };
    found.time = time(&found.loads(tree, goal), rates);
    Ok(found)
}

/// Rates as parts of the highest one, as the solver needs them.
fn scaled(tree: &Tree, rates: &[f64]) -> Result<Vec<f64>, ScheduleError> {
    if rates.len() != tree.links() {
        return Err(ScheduleError::Rates { rates: rates.len(), links: tree.links() });
    }
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let are_numbers = rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0);
    if !are_numbers || (highest <= 0.0 && !rates.is_empty()) {
        return Err(ScheduleError::NoRate);
    }
    Ok(rates.iter().map(|rate| (rate / highest).max(1e-6)).collect())
}

#[cfg(test)]
mod tests;
