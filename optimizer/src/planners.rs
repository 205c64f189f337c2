//! The planners, a file each.
pub mod exact;
