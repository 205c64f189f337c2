//! Operators on sounds: `slices`.
pub mod slices;
mod slices_state;
