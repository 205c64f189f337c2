//! Trains small models with the data of each step divided among the ranks of a group.
//!
//! A batch consists of *grains* of a few examples. Each rank computes the gradients of its grains, and the group adds all of them up. The
//! sums are whole numbers of 2^-32, so that their order does not matter: losses and parameters have the same bits for one, two or
//! four ranks, and after a checkpoint.
//!
//! | module | holds |
//! |---|---|
//! | [`data`] | examples from a seed |
//! | [`model`] | models and their gradients: a perceptron, a mixture of experts |
//! | [`exchange`] | the sum over all ranks |
//! | `trainer` | steps: [`Trainer`] |
//! | `checkpoint` | the state of a training in a file |
//!
//! ```
//! use tidemill_training::{Alone, Model, Options, Trainer, data::spirals};
//! let model = Model::Perceptron { sizes: vec![2, 16, 3] };
//! let mut trainer = Trainer::new(model, Options::default(), spirals(3, 300, 1))?;
//! let first = trainer.step(&mut Alone)?;
//! for _ in 0..100 {
//!     trainer.step(&mut Alone)?;
//! }
//! assert!(trainer.evaluate().loss < first);
//! # Ok::<(), tidemill_training::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod checkpoint;
pub mod data;
pub mod exchange;
mod layer;
pub mod model;
mod trainer;

pub use exchange::{Alone, Exchange, Ranks};
pub use model::Model;
pub use trainer::{Error, Evaluation, Options, Trainer};
