//! Starts, inspects, changes and removes the containers of a deployment, on this machine and, by ssh, on others.
//!
//! The folder that `tidemill deploy` wrote describes the deployment ([`Site::load`]). The Compose program of each machine
//! runs the containers; problems are reported as [`Cause`]s, each with advice.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod cause;
mod checks;
mod clock;
mod compose;
mod connection;
mod control;
mod diagnosis;
mod down;
mod engine;
mod equipment;
mod images;
mod joining;
mod leftovers;
mod listeners;
mod logs;
mod machine;
mod process;
mod ps;
mod readiness;
mod sending;
mod site;
mod up;
mod upgrade;

pub use cause::{Cause, OperateError};
pub use connection::{Connection, connect};
pub use control::Control;
pub use down::{Down, down};
pub use logs::{LogOptions, logs};
pub use ps::{ContainerState, ServiceView, View, ps};
pub use readiness::Patience;
pub use site::Site;
pub use up::{Up, submitted, up};
pub use upgrade::{Upgraded, upgrade};
