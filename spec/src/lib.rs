//! The files of users and programs: workflow, infrastructure, model, plan and profile.
//!
//! | file | type | errors |
//! |---|---|---|
//! | any | [`yaml`], [`value::Value`], [`units`], [`variables`] | `E01xx` |
//! | `workflow.yaml` | [`workflow::Workflow`] | `E02xx` |
//! | `infrastructure.yaml` | [`infrastructure::Infrastructure`] | `E03xx` |
//! | `plan.yaml` | [`plan::Plan`], [`plan::PlanFile`] | `E04xx` |
//! | model manifests | [`manifest::Manifest`] | `E05xx` |
//! | `profile.yaml` | [`profile::Profile`], [`profile::ProfileFile`] | `E08xx` |
//! | `NAME.test.yaml` | [`workflow_test::WorkflowTests`] | `E075x` |
//! | `job.yaml` | [`job::JobFile`] | `E0761` |
//!
//! `E06xx` is reserved for the types of connected ports, which the operators check. Every file takes these steps: text
//! with limits, a tree in which every node has its place ([`value::Value`]), variables filled in, converted to types,
//! checked. Each step reports all its findings as [`diagnostic::Diagnostics`].
//!
//! ```
//! use tidemill_spec::diagnostic::Diagnostic;
//! use tidemill_spec::workflow::Workflow;
//! let text = "
//! version: 1
//! name: copy
//! sources: [{id: rows, kind: csv, options: {path: in.csv}}]
//! sinks: [{id: lines, kind: jsonl, input: rows, options: {path: out.jsonl}}]
//! ";
//! let workflow = Workflow::parse(text, "workflow.yaml")?;
//! // Everything knows its place, so that later checks can point at it.
//! let finding = Diagnostic::error("E0601", "the columns do not fit")
//!     .at(workflow.sinks[0].input.span().clone())
//!     .with_help("...");
//! assert_eq!((finding.line(), finding.column()), (Some(5), Some(41)));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
pub mod backend;
pub mod batching;
pub mod bucket_address;
pub mod deserializer;
pub mod diagnostic;
pub mod digest;
mod document;
pub mod emission;
mod identifier;
pub mod infrastructure;
pub mod job;
pub mod kinds;
pub mod manifest;
pub mod overheads;
pub mod plan;
pub mod policies;
pub mod profile;
pub mod publication;
pub mod quota;
pub mod routing;
pub mod schema;
pub mod secret;
pub mod service_times;
pub mod span;
pub mod types;
pub mod units;
pub mod value;
pub mod variables;
pub mod workflow;
pub mod workflow_test;
pub mod yaml;
