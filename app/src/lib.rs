//! What turns files into a running, judged workflow, without a terminal: a command, a controller, an agent or a test calls it.
//!
//! | question | module |
//! |---|---|
//! | which model does an operator run? | [`choice`], [`default_plan`] |
//! | what does the engine run? | [`preparation`], [`open_files`], [`letters`], [`epoch_file`], [`output_file`] |
//! | which service levels count, are they kept, and why not? | [`levels`], [`slo`], [`slo_watch`], [`delivery`], [`publication`] |
//! | what is there to plan, and what is a plan expected to do? | [`planning`], [`highs`], [`expectation`], [`weak_figures`] |
//! | how is a plan emulated on this machine, and how near was the prediction? | [`emulation`] |
//! | what does a monitoring system see? | [`metrics`] |
//! | what is this machine? | [`machine`] |
//!
//! Errors are a [`failure::Failure`] with its kind, or the findings of the files; what is no error is told to a
//! [`listener::Listener`].
//!
//! ```no_run
//! use std::path::Path;
//! use tidemill_app::listener::Silent;
//! use tidemill_app::{levels, preparation, slo};
//! use tidemill_engine::{Run, RunOptions};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut prepared = preparation::prepare(Path::new("workflow.yaml"), None, &[], &Silent)?;
//! let (levels, _) = levels::settle(&mut prepared, None, &Silent);
//! let run = Run::start(prepared.program.clone(), RunOptions::default())?;
//! let observer = run.observer();
//! let report = run.wait()?;
//! for verdict in slo::verdicts(&levels, &report, &prepared.program, &observer) {
//!     println!("{}: {}", verdict.slo, verdict.word());
//! }
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod choice;
pub mod default_plan;
pub mod delivery;
pub mod emulation;
pub mod epoch_file;
pub mod expectation;
pub mod failure;
pub mod figures;
pub mod highs;
pub mod letters;
pub mod levels;
pub mod listener;
pub mod machine;
pub mod metrics;
pub mod open_files;
pub mod output_file;
pub mod planning;
pub mod preparation;
pub mod publication;
pub mod skeleton;
pub mod slo;
pub mod slo_watch;
pub mod weak_figures;
