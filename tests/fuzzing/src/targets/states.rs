//! Inputs of a continued run: manifests and journals.
use std::collections::BTreeMap;
use tidemill_state::{Content, Digest, Identity, Manifest, ObjectReference, SinkState, StageState, Token};

pub(super) const WORDS: &[&str] = &[
    "\"format\":1",
    "\"manifest\":",
    "\"checksum\":",
    "\"stages\":",
    "\"objects\":",
    "\"snapshot\":",
    "\"lease\":null",
    "\"state\":null",
    "\"epoch\":",
    "\"fence\":",
];

fn manifest() -> Manifest {
    let identity = Identity {
        workflow_name: "shop".to_owned(),
        operators: BTreeMap::from([("count".to_owned(), Digest::of(b"window: 60 s"))]),
        plan: Digest::of(b"one copy"),
    };
    let objects = vec![
        ObjectReference::new(1, "count/0", Content::Snapshot { epoch: 40 }, b"17 shoes"),
        ObjectReference::new(2, "count/0", Content::Calls { from: 40, to: 43 }, b"more"),
    ];
    let sink = SinkState { committed: 40, rows: 12, token: Some(Token(b"{\"bytes\": 300}".to_vec())) };
    Manifest {
        checkpoint: 2,
        epoch: 40,
        written_by: "0.1.0".to_owned(),
        written_at: "2026-11-23T08:30:00Z".to_owned(),
        stages: BTreeMap::from([("count/0".to_owned(), StageState { objects })]),
        sources: BTreeMap::from([("s".to_owned(), serde_json::json!({"row": 3}))]),
        sinks: BTreeMap::from([("out".to_owned(), sink)]),
        ..Manifest::new(identity)
    }
}

pub(super) fn manifests() -> Vec<Vec<u8>> {
    tidemill_state::fuzz_entry::sample(&manifest()).into_iter().collect()
}

pub(super) fn documents() -> Vec<Vec<u8>> {
    let state = manifests().pop().and_then(|bytes| String::from_utf8(bytes).ok()).expect("JSON");
    let lease = r#"{"holder":{"pid":17,"host":"hub","since":"2026-11-23T08:30:00Z","command":"tidemill run"},"process":{"boot":"b","namespace":"pid:[1]","number":17,"started":3}}"#;
    let with = |lease: &str, state: &str| {
        format!(
            r#"{{"format":1,"fence":3,"writer":"0123456789abcdef","write":2,"lease":{lease},"state":{state}}}"#
        )
    };
    vec![with(lease, state.trim()).into_bytes(), with("null", "null").into_bytes()]
}

pub(super) fn marks() -> Vec<Vec<u8>> {
    let marks = [(3, 40), (4, 41), (u64::MAX, 0)];
    vec![tidemill_journal::fuzz_entry::sample_marks(&marks), tidemill_journal::fuzz_entry::sample_marks(&[])]
}

pub(super) fn segments() -> Vec<Vec<u8>> {
    vec![
        tidemill_journal::fuzz_entry::sample(&[b"one\n", b"two\n", b"three and more\n"]),
        tidemill_journal::fuzz_entry::sample(&[]),
    ]
}
