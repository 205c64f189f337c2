//! The planners, a file each.
