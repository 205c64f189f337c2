//! Reasons why bytes are no message.

/// Reason why bytes are not a message of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The message is longer than [`MAX_MESSAGE`](crate::MAX_MESSAGE), as it is or as it would become.
    #[error("the message is longer than 64 MiB")]
    TooLarge,
    /// Messages lie within messages more than [`MAX_DEPTH`](crate::MAX_DEPTH) deep.
    #[error("messages are nested more than 64 deep")]
    TooDeep,
    /// An offset, a length or a count leads out of the message.
    #[error("a part of the message lies outside of it")]
    Outside,
    /// An offset is no multiple of 8.
    #[error("a part of the message is not at a multiple of 8")]
    Unaligned,
    /// Too many places point at the same bytes: reading them all would take too long.
    #[error("parts of the message are pointed at too often")]
    Repetitive,
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    Text,
    /// The presence bit of a field does not go with its slot.
    #[error("the presence of a field does not go with its value")]
    Presence,
    /// More than one member of a oneof is there.
    #[error("more than one field of a oneof is there")]
    Oneof,
    /// A value does not fit the type of its field.
    #[error("a value does not fit the type of its field")]
    Value,
    /// A struct does not have the size that the schema gives it.
    #[error("a struct does not have the size of its message")]
    Size,
    /// Protobuf bytes end early or are malformed.
    #[error("the protobuf bytes are malformed")]
    Wire,
    /// Protobuf bytes contain a group.
    #[error("the protobuf bytes contain a group, which is not supported")]
    Group,
}
