//! Models that compute elsewhere: in a device proxy of this host or another one.
//!
//! - [`backends`]: the back ends of this program as a device, for proxies.
//! - [`client`]: a device as a back end, whose models load and run in a proxy.
//! - [`executor`]: the executors of stages whose plan names a device.
//! - [`open_inference`]: a server of the Open Inference Protocol as a back end.
//! - [`reach`]: how a device is reached: a process that starts here, or an address, with the [`certificate`] of this process.
//!   [`own_proxy`]: the program of such a process;
//!   [`own_program`]: that of a back end which the command does not have in it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking"))]

pub mod backends;
pub mod certificate;
pub mod client;
pub mod executor;
mod held;
pub mod open_inference;
pub mod own_program;
pub mod own_proxy;
pub mod reach;
mod rows;
pub mod tensors;
