//! Views over collections of changing rows, maintained by their changes.
//!
//! A collection is rows with counts; a change is a row with a number to add to its count: +1 for an addition, -1 for a
//! removal, both for a correction. A [`View`](view::View) takes changes of one collection and returns the resulting
//! changes of another. The result does not depend on the order of the rows, nor on rows added and removed: it equals a
//! computation from the remaining rows.
//!
//! | module | contents |
//! |---|---|
//! | [`view`] | a view and its thread |
//! | [`chains`] | items of several groups, linked one after another by time and similarity |
//!
//! [`View::new`](view::View::new) makes any view that the operators of collections can express: `tests/own_view.rs`
//! joins two collections and groups the result in twenty lines. The implementation uses Differential Dataflow, which
//! users of a view need not know.
//!
//! ```
//! use tidemill_incremental::chains::{self, Item, Rules};
//! let rules = Rules { least_likeness: 0.8, shortest_gap: 0, longest_gap: 60, transitions: Vec::new() };
//! let mut view = chains::view(rules)?;
//! let item = |key: &str, group: &str, start, end| Item::new(key, group, start, end, &[1.0, 0.0]);
//! let first = view.update([(item("a", "north", 0, 10), 1), (item("b", "south", 30, 40), 1)])?;
//! assert_eq!(first.len(), 2); // a and b are in the chain of a
//! // It was not seen at 30 but at 130: nothing links it with `a` any more.
//! let changes = view.update([(item("b", "south", 30, 40), -1), (item("b", "south", 130, 140), 1)])?;
//! let text: Vec<String> = changes.iter().map(|(m, n)| format!("{} in {} {n:+}", m.key, m.chain)).collect();
//! assert_eq!(text, ["b in a -1", "b in b +1"]);
//! # Ok::<(), tidemill_incremental::view::ViewError>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail by panicking"))]

pub mod chains;
pub mod view;
