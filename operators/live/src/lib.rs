//! Live sources: cameras that stream over the network, cameras and microphones of this machine, connected again whenever
//! they are cut.
//!
//! | part | |
//! |---|---|
//! | [`rtsp`] | the source kind of cameras in the network |
//! | [`v4l2`] | the source kind of cameras of this machine |
//! | [`microphone`] | the source kind of microphones of this machine |
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
mod capture;
pub mod decoder;
mod decoding;
mod devices;
pub mod event_time;
pub mod ffmpeg;
mod hub;
mod journalled;
pub mod ledger;
mod limits;
pub mod microphone;
mod reader;
pub mod rtsp;
mod session;
mod streams;
pub mod supervision;
pub mod v4l2;

use tidemill_operators::registry::Registry;

/// Adds the kinds of this crate.
pub fn register(registry: &mut Registry) {
    registry.register_source(rtsp::Rtsp);
    registry.register_source(v4l2::V4l2);
    registry.register_source(microphone::Microphone);
}
