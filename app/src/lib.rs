//! Turns files into a running, judged workflow, without a terminal: a command, a controller, an agent or a test calls it.
//!
//! | question | module |
//! |---|---|
//! | which model does an operator run? | [`choice`], [`default_plan`] |
//! | what does the engine run? | [`preparation`], [`sent`], [`run_options`], [`open_files`], [`letters`], [`state`], [`tally`], [`epoch_file`], [`recording`], [`output_file`] |
//! | how do its workers run in processes of their own, and read streams? | [`processes`], [`streams`] |
//! | which service levels count, are they kept, and why not? | [`judgement`], [`levels`], [`slo`], [`slo_watch`], [`measured`], [`delivery`], [`publication`] |
//! | what is there to plan, and what is a plan expected to do? | [`planning`], [`planned`], [`service_level`], [`highs`], [`expectation`], [`waits`], [`relaxation`], [`weak_figures`], `on_devices` |
//! | over which links may its models be remote? | [`requirements`] |
//! | how is a plan emulated on this machine, and how near was the prediction? | [`emulation`] |
//! | what does a run do now, and what does a monitoring system see? | [`run_figures`], [`metrics`], [`otlp`] |
//! | what do records at the sinks look like? | [`samples`] |
//! | does a workflow give the rows that its tests expect? | [`workflow_tests`] |
//! | what is this machine? | [`machine`] |
//!
//! Errors are a [`failure::Failure`] with its kind, or the findings of the files; a [`listener::Listener`] receives the rest.
//!
//! ```no_run
//! use std::path::Path;
//! use tidemill_app::judgement::{Judgement, Levels};
//! use tidemill_app::listener::Silent;
//! use tidemill_app::preparation::{PlanFrom, prepare_here};
//! use tidemill_app::run_options::run_options;
//! use tidemill_app::slo_watch::SloWatch;
//! use tidemill_app::{levels, open_files};
//! use tidemill_engine::Run;
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut prepared = prepare_here(Path::new("workflow.yaml"), PlanFrom::Settings(&[]), &Silent)?;
//! let (slo, rate_of) = levels::settle(&mut prepared, None, &Silent);
//! let watch = SloWatch::new(&slo, &prepared.program);
//! open_files::reserve(&prepared.program, &Silent)?;
//! let run = Run::start(prepared.program.clone(), run_options(&prepared, None, None)?)?;
//! let observer = run.observer();
//! let report = run.wait()?;
//! let levels = Levels { slo, rate_of };
//! let judgement =
//!     Judgement::of(&report, &observer, &prepared, &levels, &watch.violations(), None, None);
//! for verdict in &judgement.verdicts {
//!     println!("{}: {}", verdict.slo, verdict.word());
//! }
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod by_levels;
mod call_objects;
pub mod caller;
pub mod choice;
pub mod default_plan;
pub mod delivery;
pub mod device_choice;
pub mod emulation;
pub mod engine_failure;
pub mod epoch_file;
pub mod expectation;
pub mod failure;
pub mod figures;
pub mod highs;
mod inputs;
pub mod journals;
pub mod judgement;
pub mod letters;
pub mod levels;
pub mod listener;
pub mod machine;
pub mod measured;
pub mod metrics;
mod models_of_state;
pub mod net_process;
mod on_devices;
pub mod open_files;
pub mod otlp;
pub mod output_file;
pub mod planned;
pub mod planning;
pub mod preparation;
pub mod processes;
pub mod publication;
pub mod recording;
pub mod relaxation;
pub mod requirements;
pub mod resumption;
pub mod run_control;
pub mod run_figures;
pub mod run_options;
pub mod samples;
pub mod sent;
pub mod served_by;
pub mod service_level;
pub mod skeleton;
pub mod slo;
pub mod slo_watch;
mod stand_ins;
pub mod state;
pub mod streams;
pub mod tally;
pub mod waits;
mod warm_start;
pub mod weak_figures;
mod worker_journals;
pub mod workflow_tests;
