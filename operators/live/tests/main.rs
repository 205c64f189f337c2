//! Tests of cameras with a real server, see `rtsp_server.py`.
//!
//! Where the packages of the server are missing they say so and pass, unless TIDEMILL_TEST_SERVERS=required.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "limits of waits, far above what they take")]
mod cameras;
mod changes;
mod devices;
mod logins;
mod server;
mod watched;
