//! One HTTP client and one HTTP server for everything in this workspace that speaks HTTP, both on hyper.
//!
//! | who asks | which part |
//! |---|---|
//! | a worker, a person, a tool that reads metrics or asks a container engine | [`Caller`] with a [`Place`]: TLS, TCP or a Unix socket |
//! | the controller, a worker that gives files to others, a port with metrics | [`server::serve`] |
//!
//! The client is a facade for threads that may wait; one thread of the process drives all of its connections. Bodies are streamed in
//! both directions, and a `Range` header continues one after a cut. TLS trusts what the given configuration trusts: who that is, and
//! which certificate is shown, is up to `tidemill-identity`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod call;
mod caller;
mod channel;
mod line;
pub mod range;
mod reply;
pub mod server;

pub use call::{Answer, Call, CallError};
pub use caller::{Caller, Payload, Repeat};
pub use hyper::header::{HeaderName, HeaderValue};
pub use line::Place;
pub use reply::{ANSWER_BYTES, Reply};
