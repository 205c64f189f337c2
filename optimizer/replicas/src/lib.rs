//! Plans replicas of experts (of a mixture-of-experts model) or of model variants (of a service): how many of each, on which nodes,
//! which tokens or requests go to which replica, and how nodes move from one plan to the next. Only arithmetic: no sockets, no clocks.
//!
//! The words: a *node* has a number of *slots*; each slot holds a replica of one *expert*. The *load* of an expert is its share of the
//! tokens or requests. An expert *survives* the loss of some nodes where a replica is on a node that is left; a plan survives where all
//! experts do. A model with several layers has a placement for each layer, on the same nodes.
//!
//! | module | holds |
//! |---|---|
//! | `allocation` | replicas by load, with a floor: [`allocate`] |
//! | `placement` | replicas on nodes: [`Placement`] |
//! | `mro`, `spread`, `compact`, `eplb` | planners of one layer: [`mro()`], [`spread()`], [`compact()`], [`eplb()`] |
//! | `survival` | the exact chance that all experts survive: [`survival()`] |
//! | `search` | better placements by swaps: [`Search`] |
//! | `planner` | all of it for the layers of a model: [`plan`] |
//! | `dispatch` | tokens to replicas: [`Dispatch`] |
//! | `migration` | nodes to the places of a new plan, and who sends what: [`migrate`] |
//! | `matching` | assignments of least cost: [`least_cost`] |
//!
//! Lazarus (Wu et al., 2024) is the source of the allocation, of maximum rank overlap, of the dispatch and of the migration. Its theorem
//! that maximum rank overlap is optimal holds only where the groups fit beside each other, so odds are counted here.
//!
//! Four experts on five nodes with four slots each; any two nodes are left:
//!
//! ```
//! use tidemill_replicas::{Placement, mro, survival};
//! let placement = mro(&[2, 3, 3, 12], 5, 4)?;
//! let odds = survival(&[placement], 3)?;
//! assert_eq!((odds[3].survived, odds[3].of), (7, 10));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod allocation;
mod compact;
mod dispatch;
mod eplb;
mod matching;
mod migration;
mod mro;
mod placement;
mod planner;
mod search;
mod spread;
mod survival;

pub use allocation::{allocate, load_ratio};
pub use compact::compact;
pub use dispatch::{Dispatch, DispatchError};
pub use eplb::eplb;
pub use matching::least_cost;
pub use migration::{Mapping, Migration, MigrationError, Transfer, migrate};
pub use mro::mro;
pub use placement::{MAX_NODES, Placement, PlacementError};
pub use planner::{Plan, PlanError, plan};
pub use search::Search;
pub use spread::spread;
pub use survival::{Odds, SurvivalError, survival, survival_one_by_one};
