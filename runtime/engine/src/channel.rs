//! Facts of channels that all their ends know.

/// Number of a channel.
pub(crate) type ChannelId = usize;

/// Bytes that a channel may send before the receiver grants more.
pub(crate) const CREDIT_WINDOW: u64 = 4 << 20;

/// Relation of a channel to a stand-in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    #[default]
    None,
    /// It carries the records that are to be answered on the other side.
    Asks,
    /// It carries the answers back.
    Answers,
}
