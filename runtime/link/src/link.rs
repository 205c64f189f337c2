//! Links carry frames between two slots. The engine does not know which kind it runs on; one conformance
//! suite (`tests/engine/conformance.rs`) holds all kinds to the same behaviour.
//!
//! A link never blocks and never limits by itself: channels limit what they send by credits
//! (`crate::node::egress`). Ends may move to other threads, but each end is used by one thread at a time.
mod around;
mod as_bytes;
pub(crate) mod codec;
mod in_process;
mod pipe;

pub use around::AroundReceiver;
pub use as_bytes::AsBytes;
pub use codec::FrameBytes;
pub use in_process::InProcess;

use crate::frame::{Control, Frame, Nanoseconds};
use arrow_schema::SchemaRef;
use std::os::fd::BorrowedFd;

/// Why a link cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is gone.
    #[error("the peer is gone")]
    Lost,
    /// The data that arrived differs from the data that was sent.
    #[error("damaged frame: {0}")]
    Damaged(String),
    /// More bytes in one frame than another host takes.
    #[error(
        "a frame has {0} bytes, and 1 GiB is the most that goes to another host at once: make batches or records smaller"
    )]
    TooLarge(u64),
    /// The operating system refused.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The end that sends data.
pub trait LinkSender: Send {
    /// Sends one frame, in order. Returns the bytes that it takes on the carrier, headers included; 0 where frames
    /// pass as they are.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the receiver is gone.
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError>;
    /// Returns the next control word, if one has come.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the receiver is gone and all its words were taken.
    fn receive_control(&mut self) -> Result<Option<Control>, LinkError>;
    /// Becomes readable when control words came or the peer was lost.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Returns whether the owner is to be woken when the descriptor becomes writable, too: a socket that would block keeps what it was
    /// given until then.
    fn wants_writable(&self) -> bool {
        false
    }
    /// Call before looking, after the descriptor became readable. Returns whether there is something to look at.
    fn clear(&self) -> bool;
}

/// The end that receives data.
pub trait LinkReceiver: Send {
    /// The next frame, if one has come.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the sender is gone and all it sent was taken.
    fn receive(&mut self) -> Result<Option<Frame>, LinkError>;
    /// Bytes that the last frame took on the carrier, headers included; 0 where frames pass as they are.
    fn received_bytes(&self) -> u64 {
        0
    }
    /// Called when the descriptor was readable, also by an owner that takes no frames now.
    fn look(&mut self) {}
    /// Returns when the next frame may be taken, if one has come that is held back until then; its owner comes back
    /// by itself.
    fn held_until(&self) -> Option<Nanoseconds> {
        None
    }
    /// Sends a control word.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the sender is gone.
    fn send_control(&mut self, control: Control) -> Result<(), LinkError>;
    /// Becomes readable when frames came or the peer was lost.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// As with [`LinkSender::wants_writable`].
    fn wants_writable(&self) -> bool {
        false
    }
    /// Call before looking, after the descriptor became readable. Returns whether there is something to look at.
    fn clear(&self) -> bool;
}

/// The two ends of one link.
pub type LinkEnds = (Box<dyn LinkSender>, Box<dyn LinkReceiver>);

/// A connection between two slots.
pub trait Link: Send + Sync {
    /// Connects; `schema` is that of all data frames.
    ///
    /// # Errors
    /// When the operating system refuses descriptors or memory.
    fn connect(&self, schema: SchemaRef) -> Result<LinkEnds, LinkError>;
}
