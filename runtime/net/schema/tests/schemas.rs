//! Schemas are read from descriptors, also from those of strangers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random_messages;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use random_messages::{Random, compile};
use tidemill_schema::{Kind, Presence, Schema, SchemaError};

fn set(file: &str) -> FileDescriptorSet {
    FileDescriptorSet::decode(compile(file).0.bytes().clone()).unwrap()
}

fn read(set: &FileDescriptorSet) -> Result<Schema, SchemaError> {
    Schema::from_bytes(&set.encode_to_vec())
}

#[test]
fn services_and_messages_are_found_by_name() {
    let (schema, _) = compile("all.proto");
    let service = schema.service("test.Everything").unwrap();
    let methods: Vec<_> = service
        .methods
        .iter()
        .map(|m| (m.name.as_str(), m.client_streaming, m.server_streaming, m.is_idempotent))
        .collect();
    assert_eq!(
        methods,
        [
            ("Get", false, false, true),
            ("Put", false, false, true),
            ("Watch", false, true, false),
            ("Talk", true, true, false)
        ]
    );
    assert_eq!(schema.message(service.methods[0].output).name(), "test.Tree");
    assert!(schema.service("Everything").is_none());
    let optionals = schema.message_named("test.Optionals").unwrap();
    assert_eq!(optionals.size(), 8 + 8 * 8);
    assert_eq!(optionals.field_numbered(1000), optionals.field_named("h"));
    assert_eq!(optionals.field_numbered(2), None);
    assert_eq!(optionals.fields()[0].presence, Presence::Explicit);
    let wide = schema.message_named("test.Wide").unwrap();
    assert_eq!(wide.size(), 16 + 70 * 8);
    let maps = schema.message_named("test.Maps").unwrap();
    let Kind::Message(entry) = maps.fields()[0].kind else { panic!() };
    assert!(schema.message(entry).is_map_entry());
    assert_eq!(
        compile("old_style.proto").0.message_named("old.Record").unwrap().fields()[6].json_name,
        "counts"
    );
}

#[test]
fn the_hash_is_over_what_services_reach() {
    let first = set("all.proto");
    let hash = read(&first).unwrap().hash();
    assert_eq!(hash.to_string().len(), 64);
    let mut other = first.clone();
    other.file[0].name = Some("elsewhere.proto".to_owned());
    // No service reaches it.
    other.file[0].message_type.retain(|message| message.name() != "Optionals");
    other.file[0].message_type.reverse();
    assert_eq!(read(&other).unwrap().hash(), hash);
    let mut changed = first.clone();
    changed.file[0].message_type[1].field[0].name = Some("renamed".to_owned());
    assert_ne!(read(&changed).unwrap().hash(), hash);
    let mut changed = first;
    changed.file[0].service[0].method.swap(0, 1);
    assert_ne!(read(&changed).unwrap().hash(), hash);
}

#[test]
fn mistakes_in_descriptors_are_named() {
    let good = set("v1.proto");
    let mut bad = good.clone();
    bad.file[0].message_type[0].field[1].number = Some(1);
    assert!(matches!(read(&bad), Err(SchemaError::Twice { .. })));
    let mut bad = good.clone();
    bad.file[0].message_type[1].field[0].type_name = Some(".shop.Nothing".to_owned());
    assert!(matches!(read(&bad), Err(SchemaError::Unresolved { .. })));
    let mut bad = good.clone();
    bad.file[0].message_type[0].field[1].r#type = Some(10);
    let text = read(&bad).unwrap_err().to_string();
    assert_eq!(text, "shop.Item.amount uses a group, which is not supported");
    let mut bad = good.clone();
    bad.file[0].syntax = Some("editions".to_owned());
    assert!(matches!(read(&bad), Err(SchemaError::Unsupported { .. })));
    let mut bad = good.clone();
    bad.file[0].service[0].method[0].input_type = Some(".shop.Kind".to_owned());
    assert!(matches!(read(&bad), Err(SchemaError::Unresolved { .. })));
    let mut bad = good.clone();
    bad.file[0].message_type[0].field[3].number = Some(0);
    assert!(matches!(read(&bad), Err(SchemaError::Wrong { .. })));
    let mut bad = good;
    bad.file[0].package = Some("x".repeat(5000));
    assert!(matches!(read(&bad), Err(SchemaError::TooLarge { .. })));
    assert!(matches!(Schema::from_bytes(&vec![0; 2 << 20]), Err(SchemaError::TooLarge { .. })));
    assert!(matches!(Schema::from_bytes(&[0xff; 40]), Err(SchemaError::Malformed(_))));
}

#[test]
fn mutated_descriptors_never_panic() {
    let good = compile("all.proto").0.bytes().to_vec();
    let mut random = Random(5);
    let count = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(5000);
    for _ in 0..count {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(good.len() - random.below(2) * random.below(40));
        if let Ok(schema) = Schema::from_bytes(&bytes) {
            for layout in schema.messages() {
                let _ = layout.check(&schema, &[0; 64]);
            }
        }
    }
}
