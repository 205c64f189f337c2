//! Links between processes and hosts: over TCP, over TCP with TLS, over Unix sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authority;
mod conformance;
mod greetings;
mod half_open;
mod hostile;
mod messages;
mod parts;
mod reconnects;
mod renewals;
mod restarts;
mod security;
