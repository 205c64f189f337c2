//! Remote procedure calls through the transport service of the host.
//!
//! A program hands over the schema of a service and values in shared memory. The transport service marshals, applies the policies
//! that operators attached, and brings the values to the other program, on this host or on another one. The program has no code for
//! either, so that both can be changed and upgraded while it runs.
//!
//! ```no_run
//! # mod shop {
//! #     pub struct PricesClient;
//! #     #[derive(Default)] pub struct GetRequest { pub item: String }
//! #     pub struct GetReply { pub cents: i64 }
//! #     impl PricesClient {
//! #         pub async fn connect(_: &tidemill_rpc::Net) -> Result<Self, tidemill_rpc::Status> { Ok(Self) }
//! #         pub async fn get(&self, _: GetRequest) -> Result<tidemill_rpc::Response<GetReply>, tidemill_rpc::Status> {
//! #             Ok(GetReply { cents: 1 }.into())
//! #         }
//! #     }
//! # }
//! // Made by `tidemill net stub prices.proto`, or in `build.rs` by `tidemill_stub::build`:
//! // mod shop { tidemill_rpc::include_stubs!("shop"); }
//! # async fn run() -> Result<(), tidemill_rpc::Status> {
//! let net = tidemill_rpc::Net::connect().await?;
//! let prices = shop::PricesClient::connect(&net).await?;
//! let reply = prices.get(shop::GetRequest { item: "apple".into() }).await?;
//! println!("{} cents", reply.message.cents);
//! # Ok(())
//! # }
//! ```
//!
//! It needs a runtime of tokio with time and I/O. On a runtime with one thread, calls are quickest.
mod channel;
mod endpoint;
mod message;
mod net;
pub mod packets;
mod place;
pub mod protocol;
mod server;
mod status;

pub use bytes::Bytes;
pub use channel::{Channel, FlatStreaming, Streaming};
pub use endpoint::Room;
pub use message::{MOST_METADATA, Metadata, Request, Response};
pub use net::{Net, Serving};
pub use place::{SOCKET_VARIABLE, usual_socket};
pub use server::{Incoming, Replies, Service};
pub use status::{Code, Status};
pub use tidemill_schema::{self as schema, FlatReader, FlatValue, FlatWriter, Invalid, Message};

/// A future on the heap.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Includes the stubs of a package that `build.rs` made.
#[macro_export]
macro_rules! include_stubs {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
