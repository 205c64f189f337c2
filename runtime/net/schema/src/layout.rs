//! Layouts of messages, and methods of services.

/// Field numbers below this are looked up in a table.
pub(crate) const DENSE: usize = 256;

/// Type of a field, or of the elements of a repeated field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Float of 64 bits.
    Double,
    /// Float of 32 bits.
    Float,
    /// Signed number of 32 bits.
    Int32,
    /// Signed number of 64 bits.
    Int64,
    /// Unsigned number of 32 bits.
    Uint32,
    /// Unsigned number of 64 bits.
    Uint64,
    /// Signed number of 32 bits, in protobuf in zigzag.
    Sint32,
    /// Signed number of 64 bits, in protobuf in zigzag.
    Sint64,
    /// Unsigned number of 32 bits, in protobuf always 4 bytes.
    Fixed32,
    /// Unsigned number of 64 bits, in protobuf always 8 bytes.
    Fixed64,
    /// Signed number of 32 bits, in protobuf always 4 bytes.
    Sfixed32,
    /// Signed number of 64 bits, in protobuf always 8 bytes.
    Sfixed64,
    /// True or false.
    Bool,
    /// Text in UTF-8.
    String,
    /// Bytes of any values.
    Bytes,
    /// Number of 32 bits with names for some values; others are kept.
    Enum,
    /// Message, with its index in the schema.
    Message(usize),
}

impl Kind {
    /// Says whether the value lies elsewhere and the slot points at it.
    pub const fn is_pointer(self) -> bool {
        matches!(self, Self::String | Self::Bytes | Self::Message(_))
    }

    /// Gives the name that .proto files have for it; messages and enums are `message` and `enum`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Float => "float",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Sint32 => "sint32",
            Self::Sint64 => "sint64",
            Self::Fixed32 => "fixed32",
            Self::Fixed64 => "fixed64",
            Self::Sfixed32 => "sfixed32",
            Self::Sfixed64 => "sfixed64",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Enum => "enum",
            Self::Message(_) => "message",
        }
    }
}

/// Rule by which a field counts as present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Present if it is not the default.
    Implicit,
    /// Present if it was set.
    Explicit,
    /// Present if it is not empty: repeated fields and maps.
    Repeated,
}

/// Field of a message.
#[derive(Clone, Debug)]
pub struct Field {
    /// Number in protobuf.
    pub number: u32,
    /// Name as in the .proto file.
    pub name: String,
    /// Name in JSON.
    pub json_name: String,
    /// Type, or the type of its elements.
    pub kind: Kind,
    /// Whether it is a list or a map.
    pub repeated: bool,
    /// Rule of its presence.
    pub presence: Presence,
    /// Whether its elements are packed in protobuf.
    pub packed: bool,
    /// Index of the oneof that it is a member of.
    pub oneof: Option<usize>,
    /// Full name of its message or enum, else empty.
    pub type_name: String,
}

/// Layout of a message in its flat form: the program by which it is checked, read and marshalled.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) name: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) words: usize,
    pub(crate) size: usize,
    pub(crate) map_entry: bool,
    /// Indices of the members of each oneof that is not synthetic.
    pub(crate) oneofs: Vec<Vec<usize>>,
    /// Index of the field by its number, for low numbers; `u16::MAX` if there is none.
    pub(crate) dense: Vec<u16>,
}

impl Layout {
    /// Gives the full name of the message, without a dot before it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the fields in the order of their numbers, which is that of their slots.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Gives the size of its struct in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Says whether it is an entry of a map, with the key as field 1 and the value as field 2.
    pub fn is_map_entry(&self) -> bool {
        self.map_entry
    }

    /// Gives the index of the field with this number.
    pub fn field_numbered(&self, number: u32) -> Option<usize> {
        if let Some(index) = self.dense.get(number as usize) {
            return (*index != u16::MAX).then_some(usize::from(*index));
        }
        self.fields.binary_search_by_key(&number, |field| field.number).ok()
    }

    /// Gives the index of the field with this name.
    pub fn field_named(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}

/// Method of a service.
#[derive(Clone, Debug)]
pub struct Method {
    /// Name without that of the service.
    pub name: String,
    /// Index of the message that goes in.
    pub input: usize,
    /// Index of the message that comes back.
    pub output: usize,
    /// Whether the client sends a stream of messages.
    pub client_streaming: bool,
    /// Whether the server sends a stream of messages.
    pub server_streaming: bool,
    /// Whether a second call changes nothing: `NO_SIDE_EFFECTS` or `IDEMPOTENT` in the .proto file.
    pub is_idempotent: bool,
}

/// Service with its methods in the order of the .proto file.
#[derive(Clone, Debug)]
pub struct Service {
    /// Full name, without a dot before it.
    pub name: String,
    /// Methods; a call names its method by the index.
    pub methods: Vec<Method>,
}
