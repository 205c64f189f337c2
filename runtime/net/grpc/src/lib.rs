//! Unary and server-streaming gRPC over HTTP/2 without TLS, for messages that are bytes.
//!
//! | who asks | which part |
//! |---|---|
//! | a stock gRPC client, of the programs of this host | [`serve`] with what implements [`Calls`] |
//! | a program of this host, of a stock gRPC server | [`Peer`], which implements [`Calls`] |
//!
//! Messages are not looked into: who implements [`Calls`] knows the methods and their types. Each call has one message; its answer is a
//! stream of [`Item`]s, one message and an end for a unary method. A call that has a timeout ends with it even without an answer, and
//! one whose stream is dropped is cancelled at the other end. Compression is refused, as the protocol provides for.
//!
//! ```
//! use std::sync::Arc;
//! use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::{self, BoxStream}};
//! use tidemill_grpc::{Call, Calls, Item, Limits, Peer, Status, serve};
//!
//! /// Answers each call with its own message.
//! struct Echo;
//!
//! impl Calls for Echo {
//!     fn call(&self, call: Call) -> BoxFuture<'static, Result<BoxStream<'static, Item>, Status>> {
//!         let items = [Item::Message(call.message), Item::ok()];
//!         async move { Ok(stream::iter(items).boxed()) }.boxed()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let uri = format!("http://{}", listener.local_addr()?);
//! tokio::spawn(serve(listener, Arc::new(Echo), Limits::default(), std::future::pending()));
//!
//! let peer = Peer::connect(&uri)?;
//! let answer = peer.call(Call::new("/shop.Prices/Get", "a message")).await?;
//! let items: Vec<Item> = answer.collect().await;
//! assert_eq!(items, [Item::Leading(vec![]), Item::Message("a message".into()), Item::ok()]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod calls;
mod frame;
mod metadata;
mod peer;
mod server;
mod socket;
mod status;
mod timeout;

pub use calls::{Call, Calls, Item};
pub use metadata::Metadata;
pub use peer::{BadUri, Peer, PeerLimits};
pub use server::{Limits, serve};
pub use status::{Code, Status};

/// Largest message that is accepted if nothing else is said, in bytes: the same as with other implementations.
pub const MESSAGE_BYTES: usize = 4 << 20;
