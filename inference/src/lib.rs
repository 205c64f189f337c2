//! Models behind manifests: what to do before a model (decode, resize, spectra, characters), how to run it
//! (backends), and what to do with what it gives (labels, text, vectors).
//!
//! The library of a model is decided at run time, so one program serves machines with and without it.
pub mod backend;
pub mod facts;
pub mod preprocess;
pub mod tensor;
