//! Messages of one version become messages of another as protobuf would read them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random_messages;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use random_messages::{Random, compile, message_of, oracle};
use tidemill_schema::{Conversion, Invalid, Mismatch, join, service_fits};

/// Compares field by field, so that a difference has a name.
fn compare(found: &DynamicMessage, expected: &DynamicMessage) {
    for field in expected.descriptor().fields() {
        assert_eq!(found.has_field(&field), expected.has_field(&field), "presence of {}", field.full_name());
        match (found.get_field(&field).as_ref(), expected.get_field(&field).as_ref()) {
            (Value::Message(found), Value::Message(expected)) if expected.fields().count() > 0 => {
                compare(found, expected);
            }
            (found, expected) => assert!(found == expected, "{}", field.full_name()),
        }
    }
}

/// Compares the conversion between two versions with what the oracle reads out of the protobuf bytes.
fn converts_as_protobuf(from_file: &str, to_file: &str, seed: u64) {
    let (from, from_pool) = compile(from_file);
    let (to, to_pool) = compile(to_file);
    let indices = (from.index_of("shop.Item").unwrap(), to.index_of("shop.Item").unwrap());
    let conversion = Conversion::between((&from, indices.0), (&to, indices.1)).unwrap();
    assert!(!conversion.is_identity());
    let mut random = Random(seed);
    for _ in 0..16 {
        let message = message_of(&from_pool.get_message_by_name("shop.Item").unwrap(), &mut random, 3);
        let proto = Bytes::from(message.encode_to_vec());
        let flat = join(&from.message(indices.0).decode(&from, &proto).unwrap());
        // Bytes that become text may be no text: then the oracle refuses, too.
        let mut sorted = Vec::new();
        from.message(indices.0).encode(&from, &flat, &mut sorted).unwrap();
        let descriptor = to_pool.get_message_by_name("shop.Item").unwrap();
        let Ok(expected) = DynamicMessage::decode(descriptor, sorted.as_slice()) else {
            assert_eq!(conversion.convert(&flat), Err(Invalid::Text));
            continue;
        };
        let converted = conversion.convert(&flat).unwrap();
        let layout = to.message(indices.1);
        layout.check(&to, &converted).unwrap();
        let mut back = Vec::new();
        layout.encode(&to, &converted, &mut back).unwrap();
        let (found, expected) = (oracle(&expected, &back), oracle(&expected, &expected.encode_to_vec()));
        compare(&found, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_newer_receiver_reads_as_protobuf(seed: u64) {
        converts_as_protobuf("v1.proto", "v2.proto", seed);
    }

    #[test]
    fn an_older_receiver_reads_as_protobuf(seed: u64) {
        converts_as_protobuf("v2.proto", "v1.proto", seed);
    }
}

#[test]
fn the_same_schema_needs_no_conversion() {
    for name in ["test.Tree", "test.Wide", "test.Choice", "test.Empty"] {
        let (schema, _) = compile("all.proto");
        let index = schema.index_of(name).unwrap();
        let conversion = Conversion::between((&schema, index), (&schema, index)).unwrap();
        assert!(conversion.is_identity());
        let flat = vec![0; schema.message(index).size()];
        assert_eq!(conversion.convert(&flat).unwrap(), flat);
    }
}

#[test]
fn services_fit_by_the_names_of_methods() {
    let (old, _) = compile("v1.proto");
    let (new, _) = compile("v2.proto");
    let fits = service_fits((&old, "shop.Store"), (&new, "shop.Store")).unwrap();
    let methods: Vec<_> = fits.iter().map(|fit| fit.server_method).collect();
    assert_eq!(methods, [Some(1), Some(0), None]);
    assert!(!fits[0].request.is_identity());
    assert!(fits[2].request.is_identity());
    let same = service_fits((&old, "shop.Store"), (&old, "shop.Store")).unwrap();
    assert!(same.iter().all(|fit| fit.request.is_identity() && fit.reply.is_identity()));
}

#[test]
fn what_does_not_fit_is_named() {
    let (old, _) = compile("v1.proto");
    let (wrong, _) = compile("wrong.proto");
    let streaming = service_fits((&old, "shop.Store"), (&wrong, "shop.Store")).unwrap_err();
    assert_eq!(
        streaming.to_string(),
        "method shop.Store.Get: the client has it without streams, the server has it with a stream of replies; give the \
         changed method another name"
    );
    let missing = service_fits((&old, "shop.Other"), (&wrong, "shop.Store")).unwrap_err();
    assert!(missing.to_string().contains("the client has no service shop.Other"));
    let indices = (old.index_of("shop.Reply").unwrap(), wrong.index_of("shop.Reply").unwrap());
    let mismatch = Conversion::between((&old, indices.0), (&wrong, indices.1)).unwrap_err();
    assert!(matches!(mismatch, Mismatch::Field { number: 1, .. }));
    assert_eq!(
        mismatch.to_string(),
        "field 1 of message shop.Item: the sender has `id` as int32, the receiver has `id` as string; give the new field a \
         number that was never used, or bring both sides to one version"
    );
}
