//! Tests of cameras with a real server, see `rtsp_server.py`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
mod cameras;
mod changes;
mod logins;
mod server;
