//! What this side makes of the bytes of a bucket's manifest, for tests that write any.
use crate::document::Document;
use crate::lease::Lease;
use serde_json::value::RawValue;

/// What stands in `manifest.json`; says whether it is that.
pub fn document(bytes: &[u8]) -> bool {
    let Some(document) = Document::decode(bytes) else { return false };
    let again = document.encode().expect("plain data");
    let again = Document::decode(&again).expect("what was written");
    assert_eq!((again.fence, &again.writer, again.write), (document.fence, &document.writer, document.write));
    assert!(again.lease == document.lease);
    if let Some(lease) = &document.lease {
        // A number of a process may be anybody's: it is looked up and nothing else.
        let _ = lease.is_alive();
    }
    if let Some(state) = &document.state {
        tidemill_state::heard::manifest(state.get().as_bytes());
    }
    true
}

/// A document with this state, as it is written; it has this process as its holder.
///
/// # Errors
/// The state is no JSON.
pub fn sample(state: String) -> Result<Vec<u8>, serde_json::Error> {
    let state = Some(RawValue::from_string(state)?);
    Document { state, ..Document::new() }.taken("0123456789abcdef", Lease::of_this_process()).encode()
}
