//! The operator kind `python`: a step that a user writes in Python.
//!
//! ```yaml
//! - id: blur
//!   kind: python
//!   input: cameras
//!   options:
//!     module: ops.py            # relative to the workflow file; the name of a module works too
//!     function: blur            # or `class: Tracker`, which keeps a state
//!     output: {camera: text, score: float64}
//! ```
//! Each instance has a process of its own (no interpreter is embedded), which is started and imports the module before the
//! run begins. Control messages go through a socket, columns through files in memory that both sides see, in Arrow's layout:
//! the step reads them without a copy. `docs/python.md` is the page for users, `docs/python-protocol.md` describes the
//! protocol, in which a step in another language can be written too.
//!
//! A function is an [`Inference`](tidemill_operators::api::Inference): the engine forms batches and calls it on executor
//! threads. An object is a [`Stateful`](tidemill_operators::api::Stateful): it gets the records of complete epochs in a
//! fixed order, and checkpoints have its state. A source yields records, a sink gets rows; both can be the program that started
//! this one ([`attach`]). What goes wrong with a record makes a dead letter of it, also if the process
//! dies or hangs.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod caller;
mod callers;
mod columns;
mod function;
mod interpreter;
mod kind;
mod launch;
mod log;
mod memory;
mod object;
mod options;
mod package;
mod process;
mod protocol;
mod reader;
mod sink;
mod source;
mod started;
mod times;
mod writer;

pub use callers::{Attached, attach, wrap};
pub use kind::PythonKind;
pub use sink::PythonSink;
pub use source::PythonSource;

/// Registers the operator, source and sink of kind `python`.
pub fn register(registry: &mut tidemill_operators::registry::Registry) {
    registry.register_operator(PythonKind::default());
    registry.register_source(PythonSource::default());
    registry.register_sink(PythonSink::default());
}
