//! Parses the bytes of a bucket's manifest, for tests with arbitrary bytes.
use crate::document::Document;
use crate::lease::Lease;
use serde_json::value::RawValue;

/// Parses `manifest.json`; returns whether it is valid.
pub fn document(bytes: &[u8]) -> bool {
    let Some(document) = Document::decode(bytes) else { return false };
    let again = document.encode().expect("plain data");
    let again = Document::decode(&again).expect("what was written");
    assert_eq!((again.fence, &again.writer, again.write), (document.fence, &document.writer, document.write));
    assert!(again.lease == document.lease);
    if let Some(lease) = &document.lease {
        // The number of the process may be any: it is only looked up.
        let _ = lease.is_alive();
    }
    if let Some(state) = &document.state {
        tidemill_state::fuzz_entry::manifest(state.get().as_bytes());
    }
    true
}

/// Returns a written document with this state and this process as its holder.
///
/// # Errors
/// The state is no JSON.
pub fn sample(state: String) -> Result<Vec<u8>, serde_json::Error> {
    let state = Some(RawValue::from_string(state)?);
    Document { state, ..Document::new() }.taken("0123456789abcdef", Lease::of_this_process()).encode()
}
