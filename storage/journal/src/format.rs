//! Binary format of a journal's segment. All numbers are little endian.
//!
//! | bytes of a segment | |
//! |---|---|
//! | 4 | `TMJS` |
//! | 4 | version of the format, 1 |
//! | 8 | its source, as a number |
//! | 8 | offset in the stream of its first byte |
//! | 8 | number of its first record |
//! | 16, 8, 8 | origin of the bytes: the boot of the machine, device and number of the stream |
//! | 4, 4 | crc32c of these 64 bytes, zeros |
//!
//! Records follow, each with the result of one read of the stream:
//!
//! | bytes of a record | |
//! |---|---|
//! | 4 | `TMJR` |
//! | 4 | bytes of the stream in it |
//! | 8 | its number |
//! | 8 | offset in the stream of its first byte |
//! | 4, 4 | zeros, crc32c of these 28 bytes |
//! | | the bytes |
//! | 4, 4 | crc32c of the bytes, `TMJE` |
//!
//! The checksum follows the bytes because the system moves those into the file without passing them through this
//! process.
use std::ops::Range;

/// Bytes before the first record.
pub(crate) const SEGMENT_HEAD: usize = 72;
/// Bytes before the content of a record.
pub(crate) const RECORD_HEAD: usize = 32;
/// Bytes after the content of a record.
pub(crate) const RECORD_END: usize = 8;
/// Most bytes of the stream in one record.
pub(crate) const RECORD_LIMIT: usize = 1 << 20;

const SEGMENT: &[u8; 4] = b"TMJS";
const VERSION: u32 = 1;
const RECORD: &[u8; 4] = b"TMJR";
const END: &[u8; 4] = b"TMJE";

/// Origin of bytes, as far as the system identifies it: two streams that differ here are different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Identifies the boot of the machine; 0: not known.
    pub(crate) boot: u128,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) owner: u64,
    pub(crate) first: u64,
    pub(crate) sequence: u64,
    pub(crate) origin: Origin,
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) length: u32,
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl SegmentHead {
    pub(crate) fn bytes(&self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[..4].copy_from_slice(SEGMENT);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.owner.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.origin.boot.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.origin.device.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.origin.inode.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..64]);
        bytes[64..68].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses a head. None: it is invalid.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEAD)?;
        let is_whole = bytes.starts_with(SEGMENT) && u32_at(bytes, 64) == crc32c::crc32c(&bytes[..64]);
        (is_whole && u32_at(bytes, 4) == VERSION).then(|| Self {
            owner: u64_at(bytes, 8),
            first: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            origin: Origin {
                boot: u128::from(u64_at(bytes, 32)) | u128::from(u64_at(bytes, 40)) << 64,
                device: u64_at(bytes, 48),
                inode: u64_at(bytes, 56),
            },
        })
    }
}

impl RecordHead {
    pub(crate) fn bytes(&self) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[..4].copy_from_slice(RECORD);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses a head. None: it is invalid.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEAD)?;
        let is_whole = bytes.starts_with(RECORD) && u32_at(bytes, 28) == crc32c::crc32c(&bytes[..28]);
        let head = Self { length: u32_at(bytes, 4), sequence: u64_at(bytes, 8), offset: u64_at(bytes, 16) };
        (is_whole && (1..=RECORD_LIMIT).contains(&(head.length as usize))).then_some(head)
    }
}

/// The end of a record with these bytes.
pub(crate) fn record_end(bytes: &[u8]) -> [u8; RECORD_END] {
    let mut end = [0; RECORD_END];
    end[..4].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    end[4..].copy_from_slice(END);
    end
}

/// Fixes the checksums of a segment, as far as it is one; numbers and lengths stay.
pub(crate) fn sealed_anew(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let Some(head) = sealed.get_mut(..SEGMENT_HEAD) else { return sealed };
    head[..4].copy_from_slice(SEGMENT);
    let checksum = crc32c::crc32c(&head[..64]);
    head[64..68].copy_from_slice(&checksum.to_le_bytes());
    let mut at = SEGMENT_HEAD;
    while let Some(head) = sealed.get_mut(at..at + RECORD_HEAD) {
        head[..4].copy_from_slice(RECORD);
        let checksum = crc32c::crc32c(&head[..28]);
        head[28..].copy_from_slice(&checksum.to_le_bytes());
        let begin = at + RECORD_HEAD;
        let end = begin + u32_at(head, 4) as usize;
        let Some(end_of_record) = sealed.get(begin..end).map(record_end) else { break };
        let Some(told) = sealed.get_mut(end..end + RECORD_END) else { break };
        told.copy_from_slice(&end_of_record);
        at = end + RECORD_END;
    }
    sealed
}

/// Content of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    pub(crate) head: SegmentHead,
    /// Offset in the stream after its last complete record.
    pub(crate) end: u64,
    /// Number of the next record.
    pub(crate) sequence: u64,
    /// After it, as a range of the file: bytes of a record that is incomplete because its process was killed. They were
    /// taken from the stream, so they exist nowhere else.
    pub(crate) torn: Range<usize>,
    /// Bytes of the file up to the last complete record.
    pub(crate) whole: usize,
    /// Some data is not what was written, and a killed process cannot have caused that.
    pub(crate) is_damaged: bool,
}

impl Scanned {
    /// Offset in the stream after the last line break of these bytes of the segment; none: there is none before
    /// `limit`.
    pub(crate) fn end_of_lines(&self, bytes: &[u8], limit: u64) -> Option<u64> {
        let (mut at, mut found) = (SEGMENT_HEAD, None);
        let mut look = |place: u64, content: &[u8]| {
            let counts =
                usize::try_from(limit.saturating_sub(place)).unwrap_or(usize::MAX).min(content.len());
            let end = content[..counts].iter().rposition(|byte| *byte == b'\n');
            found = end.map(|end| place + end as u64 + 1).or(found);
        };
        while at < self.whole {
            let head = RecordHead::of(bytes.get(at..)?)?;
            let begin = at + RECORD_HEAD;
            let end = begin + head.length as usize;
            look(head.offset, bytes.get(begin..end)?);
            at = end + RECORD_END;
        }
        look(self.end, &bytes[self.torn.clone()]);
        found
    }
}

/// Unit of writes of a disk.
const SECTOR: usize = 512;

/// Whether the rest from `from`, the start of a record, has parts that were not written when the machine stopped, which
/// file systems return as zeros: a whole sector, or the mark at its start or end.
fn has_unwritten(bytes: &[u8], from: usize) -> bool {
    let rest = &bytes[from..];
    let (head, sectors) = rest.split_at(rest.len().min(SECTOR - from % SECTOR));
    let marks = [&rest[..rest.len().min(RECORD.len())], &rest[rest.len().saturating_sub(END.len())..]];
    let mut places = marks.into_iter().chain([head]).chain(sectors.chunks(SECTOR));
    places.any(|place| place.iter().all(|byte| *byte == 0))
}

/// Reads a segment up to the first incomplete record. `is_same_boot`: the bytes of such a record are reliable, because
/// the machine has not stopped since.
pub(crate) fn scan(bytes: &[u8], is_same_boot: bool) -> Option<Scanned> {
    let head = SegmentHead::of(bytes)?;
    let end = head.first;
    let mut found =
        Scanned { head, end, sequence: head.sequence, torn: 0..0, whole: SEGMENT_HEAD, is_damaged: false };
    // A killed process leaves a file that is too short. A stopped machine may leave unwritten parts in it.
    let is_torn = |from: usize| !is_same_boot && has_unwritten(bytes, from);
    while found.whole + RECORD_HEAD <= bytes.len() {
        let record = RecordHead::of(&bytes[found.whole..]);
        let Some(record) =
            record.filter(|record| (record.offset, record.sequence) == (found.end, found.sequence))
        else {
            found.is_damaged = !is_torn(found.whole);
            break;
        };
        let begin = found.whole + RECORD_HEAD;
        let end = begin + record.length as usize;
        match bytes.get(end..end + RECORD_END) {
            Some(told) if *told == record_end(&bytes[begin..end]) => {
                // No stream is this long: the record was forged with valid checksums.
                let behind = (found.end.checked_add(u64::from(record.length)), found.sequence.checked_add(1));
                let (Some(place), Some(sequence)) = behind else {
                    found.is_damaged = true;
                    break;
                };
                (found.end, found.sequence) = (place, sequence);
                found.whole = end + RECORD_END;
            }
            // Data after it was written later, so it was complete once.
            Some(_) => {
                found.is_damaged = bytes.len() > end + RECORD_END || !is_torn(found.whole);
                break;
            }
            None => {
                if is_same_boot {
                    found.torn = begin..end.min(bytes.len());
                }
                break;
            }
        }
    }
    // More than one record follows the complete ones: all but the last were synced.
    found.is_damaged |= bytes.len() - found.whole > RECORD_HEAD + RECORD_LIMIT + RECORD_END;
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: SegmentHead = SegmentHead {
        owner: 7,
        first: 100,
        sequence: 3,
        origin: Origin { boot: 1 << 100 | 5, device: 8, inode: 9 },
    };

    use crate::fuzz_entry::sample as segment;

    #[test]
    fn heads_come_back_and_changed_ones_do_not() {
        let bytes = HEAD.bytes();
        assert_eq!(SegmentHead::of(&bytes), Some(HEAD));
        let record = RecordHead { length: 9, sequence: 8, offset: 7 };
        assert_eq!(RecordHead::of(&record.bytes()), Some(record));
        for at in 0..68 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(SegmentHead::of(&other), None, "byte {at}");
        }
        for at in 0..RECORD_HEAD {
            let mut other = record.bytes();
            other[at] ^= 1;
            assert_eq!(RecordHead::of(&other), None, "byte {at}");
        }
    }

    #[test]
    fn a_record_that_is_not_whole_is_believed_only_if_the_machine_has_not_stopped() {
        let bytes = segment(&[b"one\n", b"two\n"]);
        let whole = scan(&bytes, false).unwrap();
        assert_eq!((whole.end, whole.sequence, whole.whole), (108, 5, bytes.len()));
        let cut = &bytes[..bytes.len() - RECORD_END - 1];
        for (is_same_boot, torn) in [(true, &b"two"[..]), (false, b"")] {
            let found = scan(cut, is_same_boot).unwrap();
            assert_eq!((found.end, &cut[found.torn]), (104, torn));
        }
    }

    #[test]
    fn places_beyond_all_streams_are_damage() {
        for (first, sequence) in [(u64::MAX - 1, 3), (100, u64::MAX)] {
            let head = SegmentHead { first, sequence, ..HEAD };
            let record = RecordHead { length: 4, sequence, offset: first };
            let bytes = [&head.bytes()[..], &record.bytes(), b"one\n", &record_end(b"one\n")].concat();
            let found = scan(&bytes, false).unwrap();
            assert!(found.is_damaged && (found.end, found.whole) == (first, SEGMENT_HEAD), "{found:?}");
        }
    }

    #[test]
    fn nothing_behind_a_changed_byte_is_believed() {
        let whole = segment(&[b"one\n", b"two\n", b"three\n"]);
        for at in SEGMENT_HEAD..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let found = scan(&bytes, true).unwrap();
            assert!(found.end < 114 && found.torn.is_empty(), "byte {at}: {found:?}");
            // Also in the last record, whether the machine has stopped since or not.
            for is_same_boot in [true, false] {
                assert!(scan(&bytes, is_same_boot).unwrap().is_damaged, "byte {at}");
            }
        }
    }

    #[test]
    fn what_a_stopped_machine_did_not_write_is_no_damage() {
        let long = [b'x'; 5000];
        let whole = segment(&[b"one\n", &long]);
        let begin = SEGMENT_HEAD + RECORD_HEAD + 4 + RECORD_END;
        for from in [begin, 512, 4096] {
            for to in [from + 512, 4608, whole.len()] {
                let mut bytes = whole.clone();
                let (from, to) = (from.next_multiple_of(512).max(begin), to.next_multiple_of(512));
                let to = to.min(bytes.len());
                if from >= to {
                    continue;
                }
                bytes[from..to].fill(0);
                let found = scan(&bytes, false).unwrap();
                assert!(
                    !found.is_damaged && (found.end, found.sequence) == (104, 4),
                    "{from} to {to}: {found:?}"
                );
                assert!(scan(&bytes, true).unwrap().is_damaged, "no process leaves that");
            }
        }
    }
}
