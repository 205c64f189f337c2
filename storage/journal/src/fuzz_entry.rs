//! Parses the bytes of a segment and of marks, for tests with arbitrary bytes.
use crate::format::{self, Origin, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SegmentHead, record_end, scan};
use crate::marks;

/// Parses a segment of a journal, also with fixed checksums; returns whether it is valid.
pub fn segment(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let [torn, whole] = [true, false].map(|is_same_boot| scan(bytes, is_same_boot));
        let Some(found) = &torn else {
            assert!(whole.is_none());
            return false;
        };
        assert!(found.whole <= bytes.len() && bytes.get(found.torn.clone()).is_some(), "{found:?}");
        assert!(whole.is_some_and(|whole| whole.whole == found.whole && whole.torn.is_empty()));
        true
    };
    read(&format::sealed_anew(bytes));
    read(bytes)
}

/// Parses a file of marks; returns whether it is valid.
pub fn marks(bytes: &[u8]) -> bool {
    let Ok(found) = marks::read(bytes) else { return false };
    assert_eq!(marks::read(&marks::written(&found)), Ok(found));
    true
}

/// Returns a file with these marks: numbers and offsets.
pub fn sample_marks(of: &[(u64, u64)]) -> Vec<u8> {
    marks::written(&of.iter().copied().collect())
}

/// Returns a segment with these records.
pub fn sample(records: &[&[u8]]) -> Vec<u8> {
    let head = SegmentHead {
        owner: 7,
        first: 100,
        sequence: 3,
        origin: Origin { boot: 1 << 100 | 5, device: 8, inode: 9 },
    };
    let mut bytes = head.bytes().to_vec();
    let (mut offset, mut sequence) = (head.first, head.sequence);
    for record in records {
        let head = RecordHead { length: record.len() as u32, sequence, offset };
        bytes.extend(head.bytes());
        bytes.extend_from_slice(record);
        bytes.extend(record_end(record));
        (offset, sequence) = (offset + record.len() as u64, sequence + 1);
    }
    debug_assert!(bytes.len() >= SEGMENT_HEAD + records.len() * RECORD_HEAD);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_taken_and_sealing_it_changes_nothing() {
        let bytes = sample(&[b"one\n", b"two\n"]);
        assert!(segment(&bytes));
        assert_eq!(format::sealed_anew(&bytes), bytes);
        assert!(!segment(&bytes[..40]));
    }
}
