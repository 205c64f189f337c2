//! Views over collections whose rows come and go, kept up to date by their changes.
//!
//! A collection is rows with counts; a change is a row with a number to add to its count: +1 when it comes, -1 when it
//! goes, both when it is corrected. A [`View`](view::View) takes changes of one collection and says which changes of
//! another one follow. What that other collection is does not depend on the order in which rows came, nor on rows that
//! came and went: it is what would be computed from the rows that are left.
//!
//! | module | what it has |
//! |---|---|
//! | [`view`] | a view, and the thread that keeps it |
//! | [`chains`] | items of several groups, linked one after another by time and likeness |
//!
//! [`View::new`](view::View::new) makes any view that can be said with the operators of collections: `tests/own_view.rs` joins two
//! collections and groups what comes of it, in twenty lines. Inside is Differential Dataflow, which whoever uses a view need not know.
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
