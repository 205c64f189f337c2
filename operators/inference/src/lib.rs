//! Models described by manifests: preparation of inputs (decode, resize, spectra, characters), execution on backends, and
//! conversion of outputs (labels, text, vectors).
//!
//! The library of a backend is found at run time, so one program serves machines with and without it.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail by panicking"))]

pub mod alphabet;
pub mod backend;
pub mod blueprint;
pub mod cell;
pub mod choice;
mod decode_loop;
pub mod error;
pub mod exact;
pub mod external;
pub mod facts;
pub mod frame;
pub mod label_list;
pub mod location;
mod ml;
pub mod model;
pub mod origin;
mod ort_format;
mod output_column;
mod output_steps;
pub mod payload;
pub mod postprocess;
pub mod prepared;
pub mod preprocess;
pub mod sequence;
pub mod steps;
pub mod tensor;
pub mod verify;
mod wire;
mod zip_map;

pub use blueprint::load_manifest;
pub use facts::{ModelFacts, inspect};
pub use ml::{CellReader, MlKind, Rows, files_of};
pub use verify::verify;

/// The page of the book about backends; its code is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/backend.md")]
mod book {}
