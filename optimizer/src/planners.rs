//! The planners, one file each.
pub mod accuracy_scaling;
mod assignment;
pub mod beam;
pub mod best_fit;
pub mod cloud_only;
mod devices;
pub mod edge_only;
pub mod exact;
pub mod exhaustive;
pub mod first_fit;
pub mod obstacle;
mod one_worker;
mod selection;
mod worker_search;
