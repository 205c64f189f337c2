//! Conversion of a record's values to a model's input: one file for each kind of step. Most computations on each value of a
//! picture or a sound are in the crate `tidemill-media`.
pub mod characters;
pub mod ends;
pub mod features;
pub mod picture;
pub mod sound;
pub mod tokens;
pub use tidemill_media::{Rejected, filter, image, mel, resample, signal, wav};
