//! A workflow as an HTTP service, and as a client of servers of others.
//!
//! | part | |
//! |---|---|
//! | [`source`] | the source kind `http`: requests are records |
//! | [`sink`] | the sink kind `http`: results are answers |
//! | [`desk`] | what source, run and sink share: the requests that wait |
//! | [`server`] | the port: checks requests, waits for their answers |
//! | [`webhook`] | the sink kind `webhook`: rows are requests to others |
//! | [`websocket`] | the source kind `websocket`: messages of others are records |
//!
//! ```
//! use tidemill_operators::registry::Registry;
//! let mut registry = Registry::builtin();
//! tidemill_web::register(&mut registry);
//! assert!(registry.source("http").is_some() && registry.sink("http").is_some());
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod content;
mod delivery;
pub mod desk;
mod endpoint;
mod hidden;
mod reader;
pub mod server;
pub mod sink;
pub mod source;
mod subscription;
pub mod webhook;
pub mod websocket;

use tidemill_operators::registry::Registry;

/// Adds the kinds of this crate.
pub fn register(registry: &mut Registry) {
    registry.register_source(source::Http);
    registry.register_source(websocket::Websocket);
    registry.register_sink(sink::Http);
    registry.register_sink(webhook::Webhook);
}
