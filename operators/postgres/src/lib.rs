//! Rows into a table of PostgreSQL, exactly once: the sink [`postgres`](kind).
#![forbid(unsafe_code)]
pub mod kind;
mod rows;
mod sink;
mod table;
mod writing;

use tidemill_operators::registry::Registry;

/// Adds the kind of this crate.
pub fn register(registry: &mut Registry) {
    registry.register_sink(kind::Postgres);
}
