//! Parses the bytes of a manifest, for tests with arbitrary bytes.
use crate::digest::Digest;
use crate::manifest::{FORMAT, Manifest, decode, encode, is_object_name};
use serde_json::value::RawValue;

/// Parses a manifest of a folder or a bucket, also with a fixed checksum; returns whether it is valid.
pub fn manifest(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let Ok(manifest) = decode("heard", bytes) else { return false };
        let again = encode(&manifest).expect("plain data");
        let again = decode("heard", &again).expect("what was written");
        assert_eq!(format!("{again:?}"), format!("{manifest:?}"));
        let _ = manifest.references().filter(|reference| is_object_name(&reference.name)).count();
        true
    };
    let inner = || -> Option<Vec<u8>> {
        let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
        let text = value.get("manifest")?.to_string();
        let checksum = Digest::of(text.as_bytes());
        let inner = RawValue::from_string(text).ok()?;
        serde_json::to_vec(&serde_json::json!({"format": FORMAT, "checksum": checksum, "manifest": inner}))
            .ok()
    };
    read(bytes) | inner().is_some_and(|sealed| read(&sealed))
}

/// Returns a manifest as written.
///
/// # Errors
/// Never: it is plain data.
pub fn sample(manifest: &Manifest) -> Result<Vec<u8>, serde_json::Error> {
    encode(manifest)
}
