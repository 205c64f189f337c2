//! Digests that identify files, models and workflows.
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Returns the SHA-256 of some bytes in hexadecimal, as `sha256sum` prints it.
///
/// ```
/// assert!(tidemill_spec::digest::sha256(b"").starts_with("e3b0c44298fc1c149afbf4c8996fb924"));
/// ```
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
