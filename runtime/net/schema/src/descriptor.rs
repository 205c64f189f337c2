//! Schemas, read from descriptors of protobuf.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::method_options::IdempotencyLevel;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};

use crate::canonical::{self, Hash};
use crate::flat::struct_size;
use crate::layout::{DENSE, Field, Kind, Layout, Method, Presence, Service};

/// Length in bytes up to which descriptors are read.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// Length in bytes of a full name.
const MAX_NAME: usize = 1 << 10;
/// Number of messages or of enums that a schema may have.
const MAX_TYPES: usize = 1 << 16;
/// Number of fields that a message may have.
const MAX_FIELDS: usize = 1 << 13;
/// Number of methods that a service may have.
const MAX_METHODS: usize = 1 << 13;
/// Highest number of a field.
const MAX_NUMBER: i32 = (1 << 29) - 1;

/// Reason why descriptors are no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The bytes are no `FileDescriptorSet`.
    #[error("the descriptors are no FileDescriptorSet: {0}")]
    Malformed(String),
    /// A limit on the size of schemas is passed.
    #[error("the schema is too large: more than {limit} {of}")]
    TooLarge {
        /// Number up to which schemas are read.
        limit: usize,
        /// Things that are counted.
        of: &'static str,
    },
    /// Two things have the same name or number.
    #[error("{within} has {what} twice")]
    Twice {
        /// Name of the message, or `the schema`.
        within: String,
        /// Name or number that is there twice.
        what: String,
    },
    /// A type is named that is not in the set.
    #[error("{by} uses {name}, which is not in the descriptors; compile them with their imports")]
    Unresolved {
        /// Name of the field or method.
        by: String,
        /// Name of the type.
        name: String,
    },
    /// A definition uses a feature of protobuf that is not supported.
    #[error("{by} uses {feature}, which is not supported")]
    Unsupported {
        /// Name of the field or file.
        by: String,
        /// Name of the feature.
        feature: String,
    },
    /// A definition lacks a part or contradicts itself.
    #[error("{by} is defined wrongly: {why}")]
    Wrong {
        /// Name of the definition.
        by: String,
        /// Description of the mistake.
        why: &'static str,
    },
}

/// Schema of services and messages. A clone is cheap.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    bytes: Bytes,
    hash: Hash,
    services: Vec<Service>,
    messages: Vec<Layout>,
    by_name: HashMap<String, usize>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema")
            .field("hash", &self.0.hash)
            .field("services", &self.0.services.len())
            .field("messages", &self.0.messages.len())
            .finish()
    }
}

impl Schema {
    /// Reads a `FileDescriptorSet`. It may come from a stranger: its size is bounded, and nothing in it panics.
    pub fn from_bytes(descriptor_set: &[u8]) -> Result<Self, SchemaError> {
        if descriptor_set.len() > MAX_DESCRIPTORS {
            return Err(SchemaError::TooLarge { limit: MAX_DESCRIPTORS, of: "bytes" });
        }
        let set = FileDescriptorSet::decode(descriptor_set)
            .map_err(|error| SchemaError::Malformed(error.to_string()))?;
        let names = Names::collect(&set)?;
        let mut messages = Vec::with_capacity(names.messages.len());
        for (name, proto3, message) in &names.messages {
            messages.push(names.layout(name, *proto3, message)?);
        }
        for layout in &messages {
            for field in &layout.fields {
                let Kind::Message(index) = field.kind else { continue };
                if messages.get(index).is_some_and(|entry| entry.map_entry) && !field.repeated {
                    let by = format!("{}.{}", layout.name, field.name);
                    return Err(SchemaError::Wrong { by, why: "an entry of a map is not repeated" });
                }
            }
        }
        let mut services = Vec::new();
        for file in &set.file {
            for service in &file.service {
                services.push(names.service(file.package(), service)?);
            }
        }
        services.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some([a, _]) = services.array_windows().find(|[a, b]| a.name == b.name) {
            return Err(SchemaError::Twice { within: "the schema".to_owned(), what: a.name.clone() });
        }
        let hash = canonical::hash(&services, &messages, &names.enums);
        let by_name = names.by_name;
        Ok(Self(Arc::new(Inner {
            bytes: Bytes::copy_from_slice(descriptor_set),
            hash,
            services,
            messages,
            by_name,
        })))
    }

    /// Gives the descriptors as they were read.
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// Gives the hash over services and the messages that they reach; without services, over all messages. Comments,
    /// names of files and unused messages do not count.
    pub fn hash(&self) -> Hash {
        self.0.hash
    }

    /// Gives the services, sorted by name.
    pub fn services(&self) -> &[Service] {
        &self.0.services
    }

    /// Gives the service with this full name.
    pub fn service(&self, full_name: &str) -> Option<&Service> {
        self.0.services.iter().find(|service| service.name == full_name)
    }

    /// Gives all messages; those within others come after them.
    pub fn messages(&self) -> &[Layout] {
        &self.0.messages
    }

    /// Gives the message with this index.
    ///
    /// # Panics
    ///
    /// If the index is not from this schema.
    pub fn message(&self, index: usize) -> &Layout {
        &self.0.messages[index]
    }

    /// Gives the message with this full name.
    pub fn message_named(&self, full_name: &str) -> Option<&Layout> {
        self.index_of(full_name).map(|index| self.message(index))
    }

    /// Gives the index of the message with this full name.
    pub fn index_of(&self, full_name: &str) -> Option<usize> {
        self.0.by_name.get(full_name).copied()
    }

    /// Gives a message by an index out of this schema's own fields.
    #[inline]
    pub(crate) fn layout(&self, index: usize) -> Option<&Layout> {
        self.0.messages.get(index)
    }
}

/// Enums by their full names, each with the names and numbers of its values.
pub(crate) type Enums = HashMap<String, Vec<(String, i32)>>;

struct Names<'a> {
    messages: Vec<(String, bool, &'a DescriptorProto)>,
    by_name: HashMap<String, usize>,
    enums: Enums,
}

impl<'a> Names<'a> {
    /// Lists the messages and enums of all files.
    fn collect(set: &'a FileDescriptorSet) -> Result<Self, SchemaError> {
        let mut names = Self { messages: Vec::new(), by_name: HashMap::new(), enums: HashMap::new() };
        for file in &set.file {
            names.file(file)?;
        }
        Ok(names)
    }

    fn file(&mut self, file: &'a FileDescriptorProto) -> Result<(), SchemaError> {
        let proto3 = match file.syntax() {
            "proto3" => true,
            "" | "proto2" => false,
            other => {
                return Err(SchemaError::Unsupported {
                    by: file.name().to_owned(),
                    feature: format!("syntax {other}"),
                });
            }
        };
        check_name(file.package())?;
        for one in &file.enum_type {
            self.one_enum(file.package(), one)?;
        }
        let mut open: Vec<(String, &DescriptorProto)> = file
            .message_type
            .iter()
            .rev()
            .map(|message| (join_names(file.package(), message.name()), message))
            .collect();
        while let Some((name, message)) = open.pop() {
            check_name(&name)?;
            for one in &message.enum_type {
                self.one_enum(&name, one)?;
            }
            for nested in message.nested_type.iter().rev() {
                open.push((join_names(&name, nested.name()), nested));
            }
            if self.messages.len() == MAX_TYPES {
                return Err(SchemaError::TooLarge { limit: MAX_TYPES, of: "messages" });
            }
            if self.by_name.insert(name.clone(), self.messages.len()).is_some() {
                return Err(SchemaError::Twice { within: "the schema".to_owned(), what: name });
            }
            self.messages.push((name, proto3, message));
        }
        Ok(())
    }

    fn one_enum(&mut self, scope: &str, one: &prost_types::EnumDescriptorProto) -> Result<(), SchemaError> {
        if self.enums.len() == MAX_TYPES {
            return Err(SchemaError::TooLarge { limit: MAX_TYPES, of: "enums" });
        }
        let name = join_names(scope, one.name());
        check_name(&name)?;
        let values = one.value.iter().map(|value| (value.name().to_owned(), value.number())).collect();
        if self.enums.insert(name.clone(), values).is_some() {
            return Err(SchemaError::Twice { within: "the schema".to_owned(), what: name });
        }
        Ok(())
    }

    fn layout(&self, name: &str, proto3: bool, message: &DescriptorProto) -> Result<Layout, SchemaError> {
        if message.field.len() > MAX_FIELDS {
            return Err(SchemaError::TooLarge { limit: MAX_FIELDS, of: "fields of a message" });
        }
        let mut fields = Vec::with_capacity(message.field.len());
        for field in &message.field {
            fields.push(self.field(name, proto3, message, field)?);
        }
        fields.sort_by_key(|field| field.number);
        if let Some([a, _]) = fields.array_windows().find(|[a, b]| a.number == b.number) {
            return Err(SchemaError::Twice {
                within: name.to_owned(),
                what: format!("field number {}", a.number),
            });
        }
        let mut seen: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        seen.sort_unstable();
        if let Some([a, _]) = seen.array_windows().find(|[a, b]| a == b) {
            return Err(SchemaError::Twice { within: name.to_owned(), what: format!("field {a}") });
        }
        let map_entry = message.options.as_ref().is_some_and(|options| options.map_entry());
        if map_entry && !matches!(fields.as_slice(), [key, value] if is_entry(key, value)) {
            return Err(SchemaError::Wrong {
                by: name.to_owned(),
                why: "an entry of a map has one key and one value",
            });
        }
        let highest = fields.iter().map(|field| field.number as usize).max().map_or(0, |number| number + 1);
        let mut dense = vec![u16::MAX; highest.min(DENSE)];
        let mut oneofs = vec![Vec::new(); message.oneof_decl.len()];
        for (index, field) in fields.iter().enumerate() {
            if let Some(place) = dense.get_mut(field.number as usize) {
                *place = u16::try_from(index).unwrap_or(u16::MAX);
            }
            if let Some(members) = field.oneof.and_then(|oneof| oneofs.get_mut(oneof)) {
                members.push(index);
            }
        }
        // So no check takes longer for oneofs than for fields.
        let mut used = vec![false; message.oneof_decl.len()];
        for index in message.field.iter().filter_map(|field| usize::try_from(field.oneof_index?).ok()) {
            if let Some(used) = used.get_mut(index) {
                *used = true;
            }
        }
        if used.contains(&false) {
            return Err(SchemaError::Wrong { by: name.to_owned(), why: "a oneof has no fields" });
        }
        let words = fields.len().div_ceil(64);
        let size = struct_size(fields.len());
        Ok(Layout { name: name.to_owned(), fields, words, size, map_entry, oneofs, dense })
    }

    fn field(
        &self,
        message: &str,
        proto3: bool,
        parent: &DescriptorProto,
        field: &FieldDescriptorProto,
    ) -> Result<Field, SchemaError> {
        let by = || format!("{message}.{}", field.name());
        let wrong = |why| SchemaError::Wrong { by: by(), why };
        let number = match field.number() {
            number @ 1..=MAX_NUMBER => number.unsigned_abs(),
            _ => return Err(wrong("its number is out of range")),
        };
        if field.extendee.is_some() || field.name().is_empty() {
            return Err(wrong("it has no name, or is an extension"));
        }
        // Without a type, a name alone decides.
        let proto_type = match field.r#type {
            Some(number) => Type::try_from(number).map_err(|_| wrong("its type is unknown"))?,
            None => Type::Message,
        };
        let kind = self.kind(proto_type, field, &by)?;
        let repeated = field.label() == Label::Repeated;
        let oneof = match field.oneof_index {
            None => None,
            Some(_) if field.proto3_optional() => None,
            Some(index) => match usize::try_from(index) {
                Ok(index) if index < parent.oneof_decl.len() && !repeated => Some(index),
                _ => return Err(wrong("its oneof is not there, or it is repeated")),
            },
        };
        let presence = if repeated {
            Presence::Repeated
        } else if !proto3 || field.proto3_optional() || oneof.is_some() || matches!(kind, Kind::Message(_)) {
            Presence::Explicit
        } else {
            Presence::Implicit
        };
        let packed = field.options.as_ref().and_then(|options| options.packed).unwrap_or(proto3);
        let type_name = if matches!(kind, Kind::Message(_) | Kind::Enum) {
            field.type_name().trim_start_matches('.').to_owned()
        } else {
            String::new()
        };
        Ok(Field {
            number,
            name: field.name().to_owned(),
            json_name: field.json_name.clone().unwrap_or_else(|| camel(field.name())),
            kind,
            repeated,
            presence,
            packed: repeated && packed && !kind.is_pointer(),
            oneof,
            type_name,
        })
    }

    fn kind(
        &self,
        proto_type: Type,
        field: &FieldDescriptorProto,
        by: &dyn Fn() -> String,
    ) -> Result<Kind, SchemaError> {
        let unresolved = || SchemaError::Unresolved { by: by(), name: field.type_name().to_owned() };
        let name = field.type_name().strip_prefix('.');
        Ok(match proto_type {
            Type::Double => Kind::Double,
            Type::Float => Kind::Float,
            Type::Int64 => Kind::Int64,
            Type::Uint64 => Kind::Uint64,
            Type::Int32 => Kind::Int32,
            Type::Fixed64 => Kind::Fixed64,
            Type::Fixed32 => Kind::Fixed32,
            Type::Bool => Kind::Bool,
            Type::String => Kind::String,
            Type::Bytes => Kind::Bytes,
            Type::Uint32 => Kind::Uint32,
            Type::Sfixed32 => Kind::Sfixed32,
            Type::Sfixed64 => Kind::Sfixed64,
            Type::Sint32 => Kind::Sint32,
            Type::Sint64 => Kind::Sint64,
            Type::Group => {
                return Err(SchemaError::Unsupported { by: by(), feature: "a group".to_owned() });
            }
            Type::Enum => {
                name.filter(|name| self.enums.contains_key(*name)).ok_or_else(unresolved)?;
                Kind::Enum
            }
            Type::Message => {
                let index = name.and_then(|name| self.by_name.get(name)).ok_or_else(unresolved)?;
                Kind::Message(*index)
            }
        })
    }

    fn service(&self, package: &str, service: &ServiceDescriptorProto) -> Result<Service, SchemaError> {
        let name = join_names(package, service.name());
        check_name(&name)?;
        if service.method.len() > MAX_METHODS {
            return Err(SchemaError::TooLarge { limit: MAX_METHODS, of: "methods of a service" });
        }
        let mut methods: Vec<Method> = Vec::with_capacity(service.method.len());
        let mut seen = std::collections::HashSet::new();
        for method in &service.method {
            let find = |message: &str| {
                message.strip_prefix('.').and_then(|message| self.by_name.get(message)).copied().ok_or_else(
                    || SchemaError::Unresolved {
                        by: format!("{name}.{}", method.name()),
                        name: message.to_owned(),
                    },
                )
            };
            if !seen.insert(method.name()) {
                return Err(SchemaError::Twice { within: name, what: format!("method {}", method.name()) });
            }
            let level = method.options.as_ref().map(|options| options.idempotency_level());
            methods.push(Method {
                name: method.name().to_owned(),
                input: find(method.input_type())?,
                output: find(method.output_type())?,
                client_streaming: method.client_streaming(),
                server_streaming: method.server_streaming(),
                is_idempotent: matches!(
                    level,
                    Some(IdempotencyLevel::NoSideEffects | IdempotencyLevel::Idempotent)
                ),
            });
        }
        Ok(Service { name, methods })
    }
}

/// Says whether these two fields are those of a map's entry.
fn is_entry(key: &Field, value: &Field) -> bool {
    let keys = !matches!(key.kind, Kind::Double | Kind::Float | Kind::Bytes | Kind::Enum | Kind::Message(_));
    (key.number, value.number) == (1, 2) && keys && !key.repeated && !value.repeated
}

/// Refuses long names, because joining them would take much memory.
fn check_name(name: &str) -> Result<(), SchemaError> {
    if name.len() > MAX_NAME {
        return Err(SchemaError::TooLarge { limit: MAX_NAME, of: "bytes of a name" });
    }
    Ok(())
}

/// Puts a name into its scope.
fn join_names(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// Makes the name in JSON as protoc does.
fn camel(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for letter in name.chars() {
        if letter == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            out.push(letter.to_ascii_uppercase());
        } else {
            out.push(letter);
        }
    }
    out
}
