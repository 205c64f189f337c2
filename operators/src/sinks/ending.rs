//! The last bytes of a file, which identify it later.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes kept.
const KEPT: usize = 4 << 10;

/// The last 4 KiB of a file, or all of a shorter one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ending(Vec<u8>);

impl Ending {
    /// Reads the ending of the first `length` bytes of a file.
    pub(super) fn of(file: &File, length: u64) -> io::Result<Self> {
        let kept = length.min(KEPT as u64);
        let mut bytes = vec![0; kept as usize];
        file.read_exact_at(&mut bytes, length - kept)?;
        Ok(Self(bytes))
    }

    /// Records appended bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        let forgotten = (self.0.len() + bytes.len()).saturating_sub(KEPT);
        self.0.drain(..forgotten);
        self.0.extend_from_slice(bytes);
    }

    /// Returns a hexadecimal digest.
    pub(super) fn digest(&self) -> String {
        format!("{:016x}", xxh3_64(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_was_appended_is_what_the_file_ends_with(parts in prop::collection::vec(0..3 * KEPT, 0..6)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let (mut ending, mut all) = (Ending::default(), Vec::new());
            for (number, length) in parts.into_iter().enumerate() {
                let part = vec![number as u8; length];
                ending.append(&part);
                all.extend(part);
            }
            prop_assert_eq!(&ending.0, &all[all.len().saturating_sub(KEPT)..]);
            std::fs::write(&path, &all).unwrap();
            let found = Ending::of(&File::open(&path).unwrap(), all.len() as u64).unwrap();
            prop_assert_eq!(found.digest(), ending.digest());
            prop_assert_eq!(found, ending);
        }
    }
}
