//! The calls that a server hands over and a peer accepts.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::metadata::Metadata;
use crate::status::Status;

/// One call of a method with one request message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Service and method as in `/shop.Prices/Get`.
    pub path: String,
    /// Metadata of the caller, without what the protocol itself uses.
    pub metadata: Metadata,
    /// Time that is left to the call; none is without an end.
    pub timeout: Option<Duration>,
    /// The request message, encoded by protobuf.
    pub message: Bytes,
}

impl Call {
    /// Makes a call without metadata and without a timeout.
    pub fn new(path: impl Into<String>, message: impl Into<Bytes>) -> Call {
        Call { path: path.into(), metadata: Metadata::new(), timeout: None, message: message.into() }
    }
}

/// A part of the answer to a call, in this order: at most one `Leading`, any number of messages, one `End`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Metadata that comes before the first message.
    Leading(Metadata),
    /// A response message, encoded by protobuf.
    Message(Bytes),
    /// The end of the call; nothing comes after it.
    End {
        /// The result of the call.
        status: Status,
        /// Metadata that comes after the last message.
        trailing: Metadata,
    },
}

impl Item {
    /// Ends a call well, without metadata.
    pub fn ok() -> Item {
        Item::End { status: Status::ok(), trailing: Metadata::new() }
    }
}

/// Something that answers calls: the programs of a host, or a server elsewhere.
pub trait Calls: Send + Sync + 'static {
    /// Starts a call. Dropping the future or the stream cancels it.
    ///
    /// # Errors
    ///
    /// The status of a call that fails before it has an answer; it says the same as a stream that has only an end.
    fn call(&self, call: Call) -> BoxFuture<'static, Result<BoxStream<'static, Item>, Status>>;

    /// Says whether a service, as in `shop.Prices`, is healthy, for `grpc.health.v1.Health/Check`; `None` is a service that does not
    /// exist. The empty name, which is the whole server, is always healthy.
    fn healthy(&self, _service: &str) -> Option<bool> {
        Some(true)
    }
}
