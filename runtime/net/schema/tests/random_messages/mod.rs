//! Schemas of the tests and random messages of them.
#![allow(dead_code)] // each test file uses its part

use std::path::Path;

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use tidemill_schema::Schema;

/// Compiles a file of `tests/protos`.
pub(crate) fn compile(file: &str) -> (Schema, DescriptorPool) {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protos");
    let set = protox::compile([protos.join(file)], [protos]).unwrap();
    (
        Schema::from_bytes(&set.encode_to_vec()).unwrap(),
        DescriptorPool::from_file_descriptor_set(set).unwrap(),
    )
}

/// Names of messages to test, by their files.
pub(crate) const MESSAGES: &[(&str, &[&str])] = &[
    ("all.proto", &["Empty", "Scalars", "Optionals", "Lists", "Maps", "Choice", "Tree", "Wide"]),
    ("old_style.proto", &["Record"]),
];

/// Small random numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Gives numbers near the ends more often than others.
    fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => self.next() % 200,
            2 => (self.next() % 200).wrapping_neg(),
            3 => u64::from(self.next() as u32),
            4 => i64::from(self.next() as i32) as u64,
            _ => self.next(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.below(40) {
            0 => 4000 + self.below(400),
            1..10 => 0,
            _ => self.below(30),
        };
        (0..length).map(|_| self.next() as u8).collect()
    }

    fn text(&mut self) -> String {
        self.bytes().iter().map(|byte| if byte % 7 == 0 { 'ä' } else { char::from(byte % 90 + 33) }).collect()
    }
}

fn value(kind: &Kind, random: &mut Random, depth: usize) -> Value {
    match kind {
        Kind::Double => Value::F64(f64::from(random.number() as i32) / 3.0 + 0.25),
        Kind::Float => Value::F32(random.number() as i16 as f32 / 3.0 + 0.25),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(random.number() as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(random.number() as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(random.number() as u32),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(random.number()),
        Kind::Bool => Value::Bool(random.below(2) == 1),
        Kind::String => Value::String(random.text()),
        Kind::Bytes => Value::Bytes(Bytes::from(random.bytes())),
        Kind::Enum(_) => Value::EnumNumber([0, 1, 2, -3, 77][random.below(5)]),
        Kind::Message(message) => Value::Message(message_of(message, random, depth)),
    }
}

fn key(kind: &Kind, random: &mut Random) -> MapKey {
    match value(kind, random, 0) {
        Value::Bool(value) => MapKey::Bool(value),
        Value::I32(value) => MapKey::I32(value),
        Value::I64(value) => MapKey::I64(value),
        Value::U32(value) => MapKey::U32(value),
        Value::U64(value) => MapKey::U64(value),
        Value::String(value) => MapKey::String(value),
        other => panic!("{other:?} is no key"),
    }
}

fn field_value(field: &FieldDescriptor, random: &mut Random, depth: usize) -> Value {
    let count = random.below(4);
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else { panic!("a map has entries") };
        let (keys, values) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
        return Value::Map((0..count).map(|_| (key(&keys, random), value(&values, random, depth))).collect());
    }
    if field.is_list() {
        return Value::List((0..count).map(|_| value(&field.kind(), random, depth)).collect());
    }
    value(&field.kind(), random, depth)
}

/// Makes a random message.
pub(crate) fn message_of(
    descriptor: &MessageDescriptor,
    random: &mut Random,
    depth: usize,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let is_message = matches!(field.kind(), Kind::Message(_));
        if random.below(3) == 0 || is_message && depth == 0 && !field.is_map() {
            continue;
        }
        if is_message && random.below(2) == 0 {
            continue;
        }
        let value = field_value(&field, random, depth.saturating_sub(1));
        message.set_field(&field, value);
    }
    message
}

/// Makes a random message of one of the schemas, with the index in [`MESSAGES`] of its file and its full name.
pub(crate) fn any_message(
    pools: &[(Schema, DescriptorPool)],
    random: &mut Random,
) -> (usize, String, DynamicMessage) {
    let file = usize::from(random.below(9) == 0);
    let names = MESSAGES[file].1;
    let package = if file == 0 { "test" } else { "old" };
    let name = format!("{package}.{}", names[random.below(names.len())]);
    let descriptor = pools[file].1.get_message_by_name(&name).unwrap();
    let message = message_of(&descriptor, random, 3);
    (file, name, message)
}

/// Compiles the schemas of [`MESSAGES`].
pub(crate) fn pools() -> Vec<(Schema, DescriptorPool)> {
    MESSAGES.iter().map(|(file, _)| compile(file)).collect()
}

/// Decodes by the oracle. Defaults that are on the wire count as absent, as in the flat form.
pub(crate) fn oracle(like: &DynamicMessage, proto: &[u8]) -> DynamicMessage {
    let message = DynamicMessage::decode(like.descriptor(), proto).unwrap();
    DynamicMessage::decode(like.descriptor(), &*message.encode_to_vec()).unwrap()
}
