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
//! | [`parts`] | parts that ranks give each other |
//! | `trainer` | steps of a rank that has the whole model: [`Trainer`] |
//! | [`aggregated`] | steps whose parameters a service updates |
//! | `member`, `routing` | steps of ranks that hold experts: [`Member`] |
//! | `regrouping` | ranks agree after a start, a loss or a new plan: [`Member::regroup`] |
//! | [`course`] | a training from its first step to its last, whatever ranks are lost |
//! | `checkpoint` | the state of a training in a file |
//! | [`collected`], [`characters`] | examples from a folder of labelled records |
//! | [`classifier`] | a perceptron with the columns that it reads and the names of its classes |
//! | [`onnx`], [`model_file`] | a classifier as a model of workflows |
//! | [`dataset`], [`csv`] | examples from files |
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
pub mod aggregated;
pub mod characters;
mod checkpoint;
pub mod classifier;
pub mod collected;
pub mod course;
pub mod csv;
pub mod data;
pub mod dataset;
pub mod exchange;
mod layer;
mod member;
pub mod model;
pub mod model_file;
pub mod onnx;
pub mod parts;
mod regrouping;
mod routing;
mod trainer;

pub use exchange::{Alone, Exchange, Ranks};
pub use member::{Member, Replicas, Stepped};
pub use model::Model;
pub use parts::Parts;
pub use regrouping::{Origin, Regrouped};
pub use trainer::{Error, Evaluation, Options, Trainer, digest};
