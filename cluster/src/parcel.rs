//! Many small files in one request: one after the other, each as the 32 bytes of its digest, its length in 4 bytes (the most
//! significant first), and its bytes.
use std::fmt::Write as _;

/// Bytes of a file that is packed with others; larger ones go alone.
pub const SMALL: u64 = 256 << 10;
/// Bytes of a parcel, unless a single file is more.
pub const PARCEL: usize = 4 << 20;
/// Bytes of a digest.
const DIGEST: usize = 32;

/// The reason why a parcel cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParcelError {
    /// It ends within a file.
    #[error("the parcel ends within its file {0}, counted from 1: it is incomplete")]
    Cut(usize),
}

/// Adds a file; false: the text is no digest, or the file is too large.
pub fn pack(parcel: &mut Vec<u8>, digest: &str, bytes: &[u8]) -> bool {
    let Some(digest) = binary(digest) else { return false };
    let Ok(length) = u32::try_from(bytes.len()) else { return false };
    parcel.extend_from_slice(&digest);
    parcel.extend_from_slice(&length.to_be_bytes());
    parcel.extend_from_slice(bytes);
    true
}

/// The files of a parcel by their digests, which are not verified.
///
/// # Errors
/// It is cut.
pub fn unpack(mut parcel: &[u8]) -> Result<Vec<(String, &[u8])>, ParcelError> {
    let mut files = Vec::new();
    while !parcel.is_empty() {
        let cut = || ParcelError::Cut(files.len() + 1);
        let (digest, rest) = parcel.split_first_chunk::<DIGEST>().ok_or_else(cut)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (bytes, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        files.push((hexadecimal(digest), bytes));
        parcel = rest;
    }
    Ok(files)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}

fn binary(digest: &str) -> Option<[u8; DIGEST]> {
    if digest.len() != 2 * DIGEST || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; DIGEST];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::digest;
    use proptest::prelude::*;

    #[test]
    fn a_parcel_that_is_cut_is_refused() {
        let mut parcel = Vec::new();
        assert!(pack(&mut parcel, &digest(b"one"), b"one") && pack(&mut parcel, &digest(b""), b""));
        assert!(!pack(&mut parcel, "nonsense", b"one"));
        assert!(!pack(&mut parcel, &"ä".repeat(32), b"one"));
        let whole = parcel.len();
        let ends = [0, 3 + 36, whole];
        for length in 0..=whole {
            assert_eq!(unpack(&parcel[..length]).is_ok(), ends.contains(&length), "{length} bytes");
        }
        let mut lies = parcel.clone();
        lies[32..36].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(unpack(&lies), Err(ParcelError::Cut(1)));
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out(files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
            let mut parcel = Vec::new();
            for file in &files {
                prop_assert!(pack(&mut parcel, &digest(file), file));
            }
            let found = unpack(&parcel).unwrap();
            prop_assert_eq!(found.len(), files.len());
            for ((name, bytes), file) in found.iter().zip(&files) {
                prop_assert_eq!(*bytes, &file[..]);
                prop_assert_eq!(name, &digest(file));
            }
        }
    }
}
