//! The server and the client against stock peers: tonic, the gRPC of Python, and bytes that no stock peer sends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod odd;
mod peers;
mod python;
mod served;
mod shop;
mod stock;
mod wire;
