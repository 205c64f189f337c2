//! Frames of a channel: data and progress in one direction, control in the other.
use arrow_array::RecordBatch;

/// Engine time in nanoseconds.
pub type Nanoseconds = i64;

/// Progress time: the number of a source tick.
pub type Epoch = u64;

/// "Everything": the frontier of a stream that is closed, the durable epoch of one that is finished.
pub const CLOSED: Epoch = Epoch::MAX;

/// The header of every frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The incarnation of the sending slot; the receiver drops frames of older ones.
    pub incarnation: u32,
    /// Counts the frames of one link from 0 without gaps, so that a receiver notices loss and repetition.
    pub sequence: u64,
    /// When it was sent (engine clock).
    pub sent_at: Nanoseconds,
    /// Credit that the frame costs, bytes; the receiver gives back exactly this.
    pub cost: u64,
}

/// The watermark that holds once all epochs before `epoch` are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatermarkStep {
    /// All epochs before this one.
    pub epoch: Epoch,
    /// Event-time watermark, microseconds.
    pub watermark: i64,
}

/// The content of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Records of one epoch.
    Data {
        /// Their epoch.
        epoch: Epoch,
        /// The records, metadata columns first.
        batch: RecordBatch,
    },
    /// The sender's absolute frontier: no data of an earlier epoch follows. Idempotent, never a difference.
    Frontier {
        /// The first epoch that may still come; [`CLOSED`] when nothing follows. Only this ends a stream: a
        /// link that ends without it was lost.
        epoch: Epoch,
        /// Records sent on this link since the frontier before, or since the link began: as many must have come.
        rows: u64,
        /// Watermarks of the epochs passed since the previous frontier, oldest first.
        steps: Vec<WatermarkStep>,
    },
    /// Records of these epochs do not come, or not all of them: another stage answers them, not the receiver. Sent
    /// before the frontier passes them, so that a later question about them finds that they did not take this path.
    Elsewhere {
        /// The first of them.
        from: Epoch,
        /// The first that is none of them any more; [`CLOSED`] where none follows.
        until: Epoch,
    },
}

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Facts in front.
    pub header: Header,
    /// Content.
    pub content: Content,
}

/// Messages from the receiver to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// First word of a receiver: requests all epochs from this one on.
    Resume(Epoch),
    /// The number of further bytes that may be sent.
    Credit(u64),
    /// All epochs before this one are durable downstream of the receiver; the sender may forget them.
    Durable(Epoch),
    /// An edge downstream of the receiver is cut, and its data is kept: the sender may be ahead, and its host may
    /// keep up to this number of bytes. 0: no more is kept than usual.
    Ahead(u64),
    /// An edge downstream of the receiver was cut and delivers its kept data; until that is done, as above.
    Delivers(u64),
}
