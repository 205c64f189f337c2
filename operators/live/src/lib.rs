//! Live sources: cameras that stream over the network, connected again whenever they are cut.
//!
//! | part | |
//! |---|---|
//! | [`rtsp`] | the source kind: options, binding |
//! | [`address`] | addresses of cameras, and what may be shown of them |
//! | [`supervision`] | when to connect, when to give up: a state machine without a clock |
//! | [`ledger`] | accounts for all frames of a camera; keeps the newest |
//! | [`board`] | what cameras, reader and run share |
//! | [`decoder`] | the interface of decoders, and the times of their pictures |
//! | [`ffmpeg`] | a decoder: a child process of ffmpeg |
//! | [`event_time`] | the clock of this machine, or that of the camera |
//!
//! All cameras of a source share one thread for their connections. Each camera that sends has a thread that feeds its
//! decoder and one that reads the pictures. All end with the reader of the source.
//!
//! ```
//! use tidemill_operators::registry::Registry;
//! let mut registry = Registry::builtin();
//! tidemill_live::register(&mut registry);
//! assert!(registry.source("rtsp").is_some());
//! ```
pub mod address;
pub mod board;
mod camera;
pub mod decoder;
mod decoding;
pub mod event_time;
pub mod ffmpeg;
mod hub;
pub mod ledger;
mod reader;
pub mod rtsp;
mod session;
pub mod supervision;

use tidemill_operators::registry::Registry;

/// Adds the kinds of this crate.
pub fn register(registry: &mut Registry) {
    registry.register_source(rtsp::Rtsp);
}
