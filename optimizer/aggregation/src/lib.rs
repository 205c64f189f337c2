//! Plans a service that aggregates the gradients of many training jobs on few servers: which *aggregator* holds which tensor of which job,
//! and when aggregators are added and released. Only arithmetic: no sockets, no clocks.
//!
//! In each iteration a job sends the gradients of each tensor to an aggregator, which adds them up and updates the tensor. An aggregator
//! works in *cycles* ([`cycle`]): its cycle is the longest iteration of its jobs, and shorter jobs have several slots in it. A job whose
//! iteration does not divide the cycle waits, which is its *loss* of speed. AutoPS (Gu, 2021, chapter 4; arXiv 2204.03211) is the source
//! of the model and of the rules.
//!
//! | module | holds |
//! |---|---|
//! | [`cycle`] | cycles, slots, loss and work of an aggregator |
//! | `service` | jobs that come and go: [`Service`] |
//! | [`late`] | requests that miss their slots |
//! | [`comparison`] | how long an iteration's exchange takes, beside an all-reduce |
//! | [`simulation`] | a service over hours of arrivals |
//! | [`workload`] | jobs shaped like published models, and random arrivals |
//!
//! Two jobs share an aggregator; a third one would lose 17 % of its speed beside them, and gets one of its own:
//!
//! ```
//! use std::time::Duration;
//! use tidemill_aggregation::{Job, JobId, Service};
//! let seconds = Duration::from_secs;
//! let mut service = Service::default();
//! service.admit(JobId(1), Job::new(seconds(6), vec![seconds(2)]))?;
//! service.admit(JobId(2), Job::new(seconds(12), vec![seconds(3)]))?;
//! service.admit(JobId(3), Job::new(seconds(5), vec![seconds(1)]))?;
//! let loads = service.loads();
//! assert_eq!((loads[0].cycle, loads[0].work), (seconds(12), seconds(7)));
//! assert_eq!(loads.len(), 2);
//! # Ok::<(), tidemill_aggregation::ServiceError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod comparison;
pub mod cycle;
pub mod late;
mod service;
pub mod simulation;
pub mod workload;

pub use service::{
    AggregatorId, Feedback, Job, JobId, LOSS_LIMIT, Load, MONITORED_ITERATIONS, Move, Service, ServiceError,
};
