//! Messages go from protobuf to the flat form and back as prost-reflect reads them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random_messages;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{DynamicMessage, ReflectMessage, Value as Oracle};
use random_messages::{Random, any_message, compile, oracle, pools};
use tidemill_schema::{Invalid, MAX_DEPTH, MessageRef, OWN_SEGMENT, Schema, Value, join, starts};

/// Compares what the dynamic reader says with the oracle.
fn compare(flat: MessageRef<'_>, message: &DynamicMessage) {
    for (index, field) in flat.layout().fields().iter().enumerate() {
        let descriptor = message.descriptor().get_field(field.number).unwrap();
        let found = flat.get(index);
        assert_eq!(
            found.is_some(),
            message.has_field(&descriptor),
            "{}.{}",
            flat.layout().name(),
            field.name
        );
        let Some(found) = found else { continue };
        match (found, message.get_field(&descriptor).as_ref()) {
            (Value::List(list), Oracle::List(values)) => {
                assert_eq!(list.len(), values.len());
                assert!(list.get(list.len()).is_none());
                list.iter().zip(values).for_each(|(a, b)| compare_one(a, b));
            }
            // A key that came twice is there twice; the last one counts.
            (Value::List(list), Oracle::Map(values)) => assert!(list.len() >= values.len()),
            (a, b) => compare_one(a, b),
        }
    }
}

fn compare_one(found: Value<'_>, expected: &Oracle) {
    match (found, expected) {
        (Value::I64(a), Oracle::I32(b) | Oracle::EnumNumber(b)) => assert_eq!(a, i64::from(*b)),
        (Value::I64(a), Oracle::I64(b)) => assert_eq!(a, *b),
        (Value::U64(a), Oracle::U32(b)) => assert_eq!(a, u64::from(*b)),
        (Value::U64(a), Oracle::U64(b)) => assert_eq!(a, *b),
        (Value::F32(a), Oracle::F32(b)) => assert_eq!(a, *b),
        (Value::F64(a), Oracle::F64(b)) => assert_eq!(a, *b),
        (Value::Bool(a), Oracle::Bool(b)) => assert_eq!(a, *b),
        (Value::Str(a), Oracle::String(b)) => assert_eq!(a, b),
        (Value::Bytes(a), Oracle::Bytes(b)) => assert_eq!(a, b.as_ref()),
        (Value::Message(a), Oracle::Message(b)) => compare(a, b),
        (a, b) => panic!("{a:?} is not {b:?}"),
    }
}

/// Checks that the segments lie as the flat form wants it.
fn check_segments(segments: &[Bytes]) {
    assert!(segments[0].len().is_multiple_of(8));
    assert!(starts(segments).all(|start| start.is_multiple_of(8)));
    assert!(segments[1..].iter().all(|segment| segment.len() >= OWN_SEGMENT));
}

proptest! {
    #[test]
    fn protobuf_to_flat_and_back_is_the_same_message(seed: u64) {
        thread_local!(static POOLS: Vec<(Schema, prost_reflect::DescriptorPool)> = pools());
        POOLS.with(|pools| {
            let mut random = Random(seed);
            for _ in 0..8 {
                let (file, name, message) = any_message(pools, &mut random);
                let schema = &pools[file].0;
                let layout = schema.message_named(&name).unwrap();
                // Messages one after the other are merged, as protobuf merges them.
                let mut proto = message.encode_to_vec();
                for _ in 0..random.below(4) {
                    let other = random_messages::message_of(&message.descriptor(), &mut random, 2);
                    proto.extend(other.encode_to_vec());
                }
                let expected = oracle(&message, &proto);
                let segments = layout.decode(schema, &Bytes::from(proto)).unwrap();
                check_segments(&segments);
                let flat = join(&segments);
                assert_eq!(layout.check(schema, &flat), Ok(()), "{name}");
                compare(layout.view(schema, &flat), &expected);
                let mut back = b"before".to_vec();
                layout.encode(schema, &flat, &mut back).unwrap();
                assert_eq!(back.len() - 6, layout.encoded_len(schema, &flat).unwrap());
                assert!(oracle(&message, &back[6..]) == expected, "{name}");
            }
        });
    }

    #[test]
    fn any_protobuf_bytes_give_an_error_or_a_message(bytes: Vec<u8>, seed: u64) {
        thread_local!(static POOLS: Vec<(Schema, prost_reflect::DescriptorPool)> = pools());
        POOLS.with(|pools| {
            let mut random = Random(seed);
            let (file, name, message) = any_message(pools, &mut random);
            let schema = &pools[file].0;
            let layout = schema.message_named(&name).unwrap();
            let mut proto = message.encode_to_vec();
            for byte in bytes.iter().take(5) {
                if !proto.is_empty() {
                    let at = random.below(proto.len());
                    proto[at] = *byte;
                }
            }
            for proto in [Bytes::from(proto), Bytes::from(bytes)] {
                if let Ok(segments) = layout.decode(schema, &proto) {
                    assert_eq!(layout.check(schema, &join(&segments)), Ok(()));
                }
            }
        });
    }
}

#[test]
fn long_bytes_are_slices_of_the_protobuf_bytes() {
    let (schema, _) = compile("all.proto");
    let layout = schema.message_named("test.Lists").unwrap();
    let long = vec![7; 5001];
    let mut proto = Vec::new();
    for _ in 0..2 {
        prost::encoding::bytes::encode(15, &long, &mut proto);
    }
    let proto = Bytes::from(proto);
    let segments = layout.decode(&schema, &proto).unwrap();
    assert_eq!(segments.len(), 3);
    for segment in &segments[1..] {
        assert!(proto.as_ptr_range().contains(&segment.as_ptr()));
        assert_eq!(segment.len(), 5001);
    }
    let flat = join(&segments);
    layout.check(&schema, &flat).unwrap();
    let Some(Value::List(list)) = layout.get(&schema, &flat, layout.field_named("o").unwrap()) else {
        panic!()
    };
    assert!(list.iter().all(|value| matches!(value, Value::Bytes(bytes) if bytes == long)));
    let single = join(&segments[..1]);
    assert_eq!(single.as_ptr(), segments[0].as_ptr(), "one segment is not copied");
}

fn tree(depth: u32) -> Bytes {
    let mut proto = Vec::new();
    for _ in 1..depth {
        let mut outer = vec![2 << 3 | 2];
        prost::encoding::encode_varint(proto.len() as u64, &mut outer);
        outer.extend(proto);
        proto = outer;
    }
    Bytes::from(proto)
}

#[test]
fn depth_is_bounded_in_the_same_way_everywhere() {
    let (schema, _) = compile("all.proto");
    let layout = schema.message_named("test.Tree").unwrap();
    let flat = join(&layout.decode(&schema, &tree(MAX_DEPTH)).unwrap());
    layout.check(&schema, &flat).unwrap();
    let mut back = Vec::new();
    layout.encode(&schema, &flat, &mut back).unwrap();
    assert_eq!(back, tree(MAX_DEPTH));
    assert_eq!(layout.decode(&schema, &tree(MAX_DEPTH + 1)), Err(Invalid::TooDeep));
    assert_eq!(layout.decode(&schema, &tree(100_000)), Err(Invalid::TooDeep));
}

#[test]
fn groups_are_refused_and_unknown_fields_left_out() {
    let (schema, _) = compile("all.proto");
    let layout = schema.message_named("test.Scalars").unwrap();
    assert_eq!(layout.decode(&schema, &Bytes::from_static(&[99 << 1 | 1, 99])), Err(Invalid::Wire));
    assert_eq!(layout.decode(&schema, &Bytes::from_static(&[0x0b, 0x0c])), Err(Invalid::Group));
    // Field 100 is unknown, and field 3 comes as 4 bytes.
    let proto = Bytes::from_static(&[0xa0, 0x06, 5, 3 << 3 | 5, 1, 2, 3, 4, 4 << 3, 9]);
    let flat = join(&layout.decode(&schema, &proto).unwrap());
    let mut back = Vec::new();
    layout.encode(&schema, &flat, &mut back).unwrap();
    assert_eq!(back, [4 << 3, 9]);
}

#[test]
fn a_small_message_that_would_become_a_large_one_is_refused() {
    let (schema, _) = compile("all.proto");
    let layout = schema.message_named("test.Tree").unwrap();
    // Each empty tree takes two bytes in protobuf and 64 in the flat form.
    let proto = Bytes::from([4 << 3 | 2, 0].repeat(1 << 20));
    assert_eq!(layout.decode(&schema, &proto), Err(Invalid::TooLarge));
}

#[test]
fn the_empty_message_has_no_bytes() {
    let (schema, _) = compile("all.proto");
    let layout = schema.message_named("test.Empty").unwrap();
    let segments = layout.decode(&schema, &Bytes::new()).unwrap();
    assert_eq!(segments, [Bytes::new()]);
    layout.check(&schema, &[]).unwrap();
    let mut back = Vec::new();
    layout.encode(&schema, &[], &mut back).unwrap();
    assert!(back.is_empty());
}
