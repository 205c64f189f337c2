//! Flat bytes of strangers give errors, never a panic, and never much work.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random_messages;
mod typed;

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::ReflectMessage;
use random_messages::{Random, any_message, compile, pools};
use tidemill_schema::{Conversion, Invalid, Message, MessageRef, Value, from_flat, join};

/// Reads all that a reader can reach, to a small depth.
fn read_all(message: MessageRef<'_>, depth: usize) {
    for field in 0..=message.layout().fields().len() {
        match message.get(field) {
            Some(Value::Message(inner)) if depth > 0 => read_all(inner, depth - 1),
            Some(Value::List(list)) => {
                for value in list.iter().take(4) {
                    if let (Value::Message(inner), true) = (value, depth > 0) {
                        read_all(inner, depth - 1);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Reads a value if this is its message; says whether it could.
fn read<M: Message>(name: &str, flat: &Bytes) -> Option<bool> {
    (name == M::NAME).then(|| from_flat::<M>(flat).is_ok())
}

#[test]
fn mutated_flat_bytes_never_panic() {
    let pools = pools();
    let mut random = Random(11);
    let count =
        std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    let (mut valid, mut tried, mut conversions) = (0, 0, Vec::new());
    for (schema, _) in &pools {
        for index in 0..schema.messages().len() {
            conversions.push(Conversion::between((schema, index), (schema, index)).unwrap());
        }
    }
    while tried < count {
        let (file, name, message) = any_message(&pools, &mut random);
        let schema = &pools[file].0;
        let layout = schema.message_named(&name).unwrap();
        let proto = Bytes::from(message.encode_to_vec());
        let good = join(&layout.decode(schema, &proto).unwrap());
        if good.is_empty() {
            continue;
        }
        for _ in 0..50 {
            tried += 1;
            let mut flat = good.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(flat.len());
                match random.below(4) {
                    0 => flat[at] = random.next() as u8,
                    1 => flat[at] ^= 1 << random.below(8),
                    // An offset of something else that is there.
                    2 if flat.len() >= 16 => {
                        let from = random.below(flat.len() / 8) * 8;
                        let to = random.below(flat.len() / 8) * 8;
                        flat.copy_within(from..from + 8, to);
                    }
                    _ => flat[at / 8 * 8] = (random.below(flat.len()) & !7) as u8,
                }
            }
            if random.below(8) == 0 {
                flat.truncate(random.below(flat.len()));
            }
            let flat = Bytes::from(flat);
            let checked = layout.check(schema, &flat);
            read_all(layout.view(schema, &flat), 3);
            let mut proto = Vec::new();
            assert_eq!(layout.encode(schema, &flat, &mut proto), checked);
            let converted = conversions[schema.index_of(&name).unwrap() + file * pools[0].0.messages().len()]
                .convert(&flat);
            assert_eq!(converted.is_ok(), checked.is_ok());
            let read = read::<typed::Scalars>(&name, &flat)
                .or_else(|| read::<typed::Maps>(&name, &flat))
                .or_else(|| read::<typed::Optionals>(&name, &flat))
                .or_else(|| read::<typed::Lists>(&name, &flat))
                .or_else(|| read::<typed::Tree>(&name, &flat));
            if checked.is_ok() {
                valid += 1;
                assert_ne!(read, Some(false), "{name}");
                let again = layout.decode(schema, &Bytes::from(proto)).unwrap();
                assert_eq!(layout.check(schema, &join(&again)), Ok(()));
                prost_reflect::DynamicMessage::decode(message.descriptor(), &*{
                    let mut proto = Vec::new();
                    layout.encode(schema, &flat, &mut proto).unwrap();
                    proto
                })
                .unwrap();
            }
        }
    }
    assert!(valid > count / 100, "{valid} of {count} are valid, so what follows a check is tested, too");
}

#[test]
fn mutated_flat_bytes_never_panic_in_a_conversion() {
    let (old, pool) = compile("v1.proto");
    let (new, _) = compile("v2.proto");
    let indices = (old.index_of("shop.Item").unwrap(), new.index_of("shop.Item").unwrap());
    let conversion = Conversion::between((&old, indices.0), (&new, indices.1)).unwrap();
    let mut random = Random(3);
    for _ in 0..500 {
        let message =
            random_messages::message_of(&pool.get_message_by_name("shop.Item").unwrap(), &mut random, 2);
        let proto = Bytes::from(message.encode_to_vec());
        let good = join(&old.message(indices.0).decode(&old, &proto).unwrap());
        for _ in 0..20 {
            let mut flat = good.to_vec();
            let at = random.below(flat.len());
            flat[at] ^= 1 << random.below(8);
            match conversion.convert(&flat) {
                Ok(converted) => new.message(indices.1).check(&new, &converted).unwrap(),
                Err(error) => assert!(
                    error == Invalid::Text || old.message(indices.0).check(&old, &flat) == Err(error),
                    "{error}"
                ),
            }
        }
    }
}

/// Makes trees in which each level points twice at the next, so that there are 2^depth paths through them.
fn bomb(depth: usize) -> Vec<u8> {
    let size = 8 + 6 * 8;
    let mut flat = Vec::new();
    for level in 0..depth {
        let next = ((level + 1) * size) as u64 | (size as u64) << 32;
        let last = level + 1 == depth;
        let slots = if last { [0; 7] } else { [0b110, 0, next, next, 0, 0, 0] };
        slots.iter().for_each(|slot: &u64| flat.extend_from_slice(&slot.to_le_bytes()));
    }
    flat
}

#[test]
fn a_message_that_points_many_times_at_the_same_place_is_refused() {
    let (schema, _) = compile("all.proto");
    let layout = schema.message_named("test.Tree").unwrap();
    layout.check(&schema, &bomb(3)).unwrap();
    let flat = bomb(60);
    assert_eq!(layout.check(&schema, &flat), Err(Invalid::Repetitive));
    assert_eq!(layout.encode(&schema, &flat, &mut Vec::new()), Err(Invalid::Repetitive));
    assert_eq!(from_flat::<typed::Tree>(&Bytes::from(flat)).unwrap_err(), Invalid::Repetitive);
}

#[test]
fn checks_name_what_is_wrong() {
    let (schema, _) = compile("all.proto");
    let scalars = schema.message_named("test.Scalars").unwrap();
    let with = |slot: usize, present: bool, value: u64| {
        let mut flat = vec![0; scalars.size()];
        flat[..8].copy_from_slice(&(u64::from(present) << slot).to_le_bytes());
        flat[8 + 8 * slot..16 + 8 * slot].copy_from_slice(&value.to_le_bytes());
        scalars.check(&schema, &flat)
    };
    assert_eq!(with(2, true, 1), Ok(()));
    assert_eq!(with(2, true, u64::MAX), Ok(()));
    assert_eq!(with(2, true, u64::from(u32::MAX)), Err(Invalid::Value));
    assert_eq!(with(2, true, 0), Err(Invalid::Presence));
    assert_eq!(with(2, false, 1), Err(Invalid::Presence));
    assert_eq!(with(4, true, 1 << 32), Err(Invalid::Value));
    assert_eq!(with(12, true, 2), Err(Invalid::Value));
    assert_eq!(with(15, true, 12345), Ok(()));
    assert_eq!(with(13, true, 1 | 1 << 32), Err(Invalid::Unaligned));
    assert_eq!(with(13, true, 136 | 1 << 32), Err(Invalid::Outside));
    assert_eq!(with(13, true, 1 << 32), Err(Invalid::Text).or(Ok::<(), Invalid>(())));
    assert_eq!(scalars.check(&schema, &[0; 64]), Err(Invalid::Outside));
    let choice = schema.message_named("test.Choice").unwrap();
    let mut flat = vec![0; choice.size()];
    flat[0] = 1 | 1 << choice.field_named("color").unwrap();
    assert_eq!(choice.check(&schema, &flat), Err(Invalid::Oneof));
}
