//! Identifiers that distinguish successive runs of the same name.
use crate::blobs;

/// Digits of an id.
const LENGTH: usize = 16;

/// The id of the run that has this secret number, which it does not give away.
pub(crate) fn run_id(secret: &str) -> String {
    let mut id = blobs::digest(secret.as_bytes());
    id.truncate(LENGTH);
    id
}
