//! Rust values go into the flat form and back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random_messages;
mod typed;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use random_messages::{Random, compile, message_of, oracle};
use tidemill_schema::{Invalid, Message, from_flat, join, to_segments};
use typed::{Lists, Maps, Optionals, Scalars, Tree};

/// Takes a random message through the Rust type and compares it with the oracle.
fn round_trip<M: Message + PartialEq + std::fmt::Debug>(seed: u64) {
    let (schema, pool) = compile("all.proto");
    let layout = schema.message_named(M::NAME).unwrap();
    assert_eq!(layout.fields().len(), M::FIELDS);
    let mut random = Random(seed);
    for _ in 0..8 {
        let message = message_of(&pool.get_message_by_name(M::NAME).unwrap(), &mut random, 2);
        let decoded = join(&layout.decode(&schema, &Bytes::from(message.encode_to_vec())).unwrap());
        let value: M = from_flat(&decoded).unwrap();
        let flat = join(&to_segments(&value));
        layout.check(&schema, &flat).unwrap();
        let mut proto = Vec::new();
        layout.encode(&schema, &flat, &mut proto).unwrap();
        assert!(oracle(&message, &proto) == oracle(&message, &message.encode_to_vec()), "{}", M::NAME);
        assert_eq!(from_flat::<M>(&flat).unwrap(), value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn values_are_those_of_protobuf(seed: u64) {
        round_trip::<Scalars>(seed);
        round_trip::<Maps>(seed);
        round_trip::<Optionals>(seed);
        round_trip::<Lists>(seed);
    }
}

#[test]
fn recursive_values_come_back() {
    let leaf = Tree { name: "leaf".to_owned(), ..Tree::default() };
    let tree = Tree {
        left: Some(Box::new(leaf.clone())),
        more: vec![leaf.clone(), Tree::default()],
        named: [("a".to_owned(), leaf), (String::new(), Tree::default())].into(),
        ..Tree::default()
    };
    assert_eq!(from_flat::<Tree>(&join(&to_segments(&tree))), Ok(tree));
}

#[test]
fn long_bytes_are_not_copied() {
    let long = Bytes::from(vec![1; 4097]);
    let short = Bytes::from(vec![2; 4095]);
    let lists = Lists { o: vec![long.clone(), short, long.clone()], ..Lists::default() };
    let segments = to_segments(&lists);
    assert_eq!(segments.len(), 3);
    assert_eq!(segments[1].as_ptr(), long.as_ptr());
    let flat = join(&segments);
    let back: Lists = from_flat(&flat).unwrap();
    assert_eq!(back, lists);
    assert!(back.o.iter().all(|bytes| flat.as_ptr_range().contains(&bytes.as_ptr())));
}

#[test]
fn a_value_that_is_too_deep_is_refused() {
    let (schema, _) = compile("all.proto");
    let mut tree = Tree::default();
    for depth in 1..100 {
        let flat = join(&to_segments(&tree));
        let checked = schema.message_named("test.Tree").unwrap().check(&schema, &flat);
        assert_eq!(checked, if depth <= 64 { Ok(()) } else { Err(Invalid::TooDeep) });
        assert_eq!(from_flat::<Tree>(&flat).is_ok(), depth <= 64);
        tree = Tree { left: Some(Box::new(tree)), ..Tree::default() };
    }
}
