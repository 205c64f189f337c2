//! Aggregators: servers that add up the gradients of the workers of training jobs, and update the parameters.
//!
//! A *job* has workers, which step together, and tensors. Each tensor is on one aggregator: every worker pushes its gradient there, and gets
//! the new values when all gradients have come. A *master* assigns tensors to aggregators by the rules of `tidemill-aggregation`, and moves
//! them while jobs run. All of them talk through the transport service of the machine ([`tidemill_rpc`]), so that its policies and figures
//! apply.
//!
//! Each tensor has a *keeper*: a worker whose replies have the whole state, moments too. If an aggregator dies, its keepers give the states to
//! another one, and workers that are one step ahead push their last gradient again. The numbers are the same bits as without the loss.
//!
//! | module | holds |
//! |---|---|
//! | [`number`] | forms of numbers, and their bytes |
//! | [`rule`] | updates: sums, momentum, Adam |
//! | [`tensor`] | one tensor: gradients, steps, its state |
//! | [`aggregator`] | the server of tensors |
//! | [`master`] | the map, and the processes |
//! | [`client`] | the part of a worker |
//! | [`trained`] | steps of [`tidemill_training::Trainer`] through it |
//! | [`bench`] | jobs without data, for measurements |
//! | [`fault`] | places at which tests end a process |
//!
//! Workers in one process, without a service:
//!
//! ```
//! use tidemill_aggregation_service::{number::Numbers, rule::Rule, tensor::{Spec, Tensor}};
//! let spec = Spec::new("weights", 2, Numbers::F32, Rule::Momentum { rate: 0.5, momentum: 0.0 });
//! let mut tensor = Tensor::new(spec, 2);
//! tensor.put(0, &tensor.spec().state_of(&[1.0, 2.0]))?;
//! let gradient = |values: [f32; 2]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
//! assert!(!tensor.add(1, Some(&gradient([1.0, 0.0])))?);
//! assert!(tensor.add(0, Some(&gradient([1.0, 2.0])))?);
//! assert_eq!(tensor.version(), 1);
//! assert_eq!(tensor.spec().values_of_state(&tensor.state())?, [0.0, 1.0]);
//! # Ok::<(), tidemill_aggregation_service::tensor::TensorError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod aggregator;
pub mod bench;
pub mod client;
pub mod fault;
pub mod master;
mod naming;
pub mod number;
pub mod rule;
pub mod tensor;
pub mod trained;

pub use tidemill_rpc::{Code, Status};

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "made code")]
mod wire {
    tidemill_rpc::include_stubs!("aggregation");
}
