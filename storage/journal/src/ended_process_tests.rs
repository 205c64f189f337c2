//! A process killed at any moment of writing leaves no damage, and its traces are not mistaken for anything else.
use crate::format::{Origin, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SegmentHead, record_end, scan};
use crate::segments::{self, path_of};
use crate::stream::{Stream, boot};
use crate::{Cursor, Extent, Journal, LEAST_SIZE};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

const BEFORE: &[u8] = b"one\n";

/// A step of a process with the file of a segment, in order.
enum Step {
    /// Bytes appended to the file.
    Append(Vec<u8>),
    /// It is truncated to this length.
    Cut(usize),
}

fn head() -> SegmentHead {
    SegmentHead { owner: 1, first: 0, sequence: 0, origin: Origin { boot: boot(), device: 1, inode: 2 } }
}

fn record_head(length: usize) -> Vec<u8> {
    RecordHead { length: length as u32, sequence: 1, offset: BEFORE.len() as u64 }.bytes().to_vec()
}

/// A segment with a complete record.
fn before() -> Vec<u8> {
    let record = RecordHead { length: BEFORE.len() as u32, sequence: 0, offset: 0 };
    [&head().bytes()[..], &record.bytes(), BEFORE, &record_end(BEFORE)].concat()
}

/// All sequences of writing a record; see `Journal::move_record`, `Active::append` and `Active::disown`.
fn ways(content: &[u8]) -> Vec<Vec<Step>> {
    let at = before().len();
    let (length, begin) = (content.len(), at + RECORD_HEAD);
    let append = |bytes: &[u8]| Step::Append(bytes.to_vec());
    let moved = || [append(&record_head(length)), append(content), append(&record_end(content))];
    let written = || append(&[&record_head(length)[..], content, &record_end(content)].concat());
    vec![
        moved().into(),
        // It could not be synced.
        moved().into_iter().chain([Step::Cut(begin + length)]).collect(),
        // Moving is not supported, so it is read and written.
        vec![append(&record_head(length + 7)), Step::Cut(at), written()],
        vec![written(), Step::Cut(begin + length)],
        // Another process has read the rest.
        vec![append(&record_head(length + 7)), append(content)],
    ]
}

/// The file after each byte of each step, and the number of stream bytes after the first record.
fn left(steps: &[Step]) -> Vec<(Vec<u8>, usize)> {
    let (mut file, mut all) = (before(), Vec::new());
    let begin = file.len() + RECORD_HEAD;
    for step in steps {
        match step {
            Step::Append(bytes) => {
                for byte in bytes {
                    all.push(file.clone());
                    file.push(*byte);
                }
            }
            Step::Cut(length) => {
                all.push(file.clone());
                file.truncate(*length);
            }
        }
    }
    all.push(file);
    all.into_iter().map(|file| (file.len().saturating_sub(begin), file)).map(|(n, file)| (file, n)).collect()
}

#[test]
fn no_moment_leaves_damage_and_all_bytes_are_found() {
    let long: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8).collect();
    for content in [&b"two\n"[..], &[0; 9], &[0; 1100], &long] {
        for (way, steps) in ways(content).iter().enumerate() {
            for (file, behind) in left(steps) {
                let bytes = file.len();
                let found = scan(&file, true).unwrap();
                assert!(!found.is_damaged, "way {way}, {bytes} bytes: {found:?}");
                let all: Vec<u8> = if found.whole == bytes && bytes > before().len() {
                    content.to_vec()
                } else {
                    file[found.torn.clone()].to_vec()
                };
                assert_eq!(all, content[..behind.min(content.len())], "way {way}, {bytes} bytes");
                // The machine has stopped since, and the disk has everything: incomplete data was never delivered.
                let found = scan(&file, false).unwrap();
                assert!(!found.is_damaged && found.torn.is_empty(), "way {way}, {bytes} bytes: {found:?}");
            }
        }
    }
}

#[test]
fn each_bit_of_the_last_record_counts() {
    let content = b"two\nthree and more\n";
    let whole = [&before()[..], &record_head(content.len()), content, &record_end(content)].concat();
    assert_eq!(scan(&whole, true).unwrap().whole, whole.len());
    for at in before().len()..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            for is_same_boot in [true, false] {
                let found = scan(&bytes, is_same_boot).unwrap();
                assert!(found.is_damaged, "byte {at}, bit {bit}: {found:?}");
            }
        }
    }
}

/// Also for a record's head alone.
#[test]
fn each_bit_of_the_head_of_a_torn_record_counts() {
    let whole = [&before()[..], &record_head(9), b"two\nth"].concat();
    for at in before().len()..before().len() + RECORD_HEAD {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            assert!(scan(&bytes, true).unwrap().is_damaged, "byte {at}, bit {bit}");
        }
    }
}

/// The end of a journal for the next process.
fn end(path: &Path) -> usize {
    let recovered = segments::recover(path, 1).unwrap();
    recovered.end as usize + recovered.torn.len()
}

/// With a real journal: moved bytes are found without the end of their record, and each truncation of the file is
/// readable.
#[test]
fn what_a_journal_writes_can_be_cut_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let journal = Journal::open(path, 1, LEAST_SIZE).unwrap();
    journal.attach(|| Ok(OwnedFd::from(reader).into())).unwrap();
    let text = b"one\ntwo\n\0\0\0\0\nthree\n";
    let mut cursor = Cursor::default();
    for part in text.chunks(7) {
        writer.write_all(part).unwrap();
        assert_eq!(cursor.read(&journal, &mut [0; 7]).unwrap(), part.len());
    }
    drop(journal);
    let segment = path_of(path, 0);
    let whole = std::fs::read(&segment).unwrap();
    let mut ends = Vec::new();
    for bytes in SEGMENT_HEAD..=whole.len() {
        std::fs::write(&segment, &whole[..bytes]).unwrap();
        ends.push(end(path));
    }
    ends.dedup();
    assert_eq!(ends, (0..=text.len()).collect::<Vec<_>>(), "each byte counts once it is there");
}

/// Another process reads the same pipe: the file has fewer bytes than its head says, and no other head overwrites it.
#[test]
fn fewer_bytes_than_waited_are_in_a_segment_of_their_own() {
    for before in [&b""[..], b"one\n"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = File::from(OwnedFd::from(reader));
        let journal = Journal::open(path, 1, LEAST_SIZE).unwrap();
        journal.attach(|| reader.try_clone()).unwrap();
        if !before.is_empty() {
            writer.write_all(before).unwrap();
            assert_eq!(Cursor::default().read(&journal, &mut [0; 9]).unwrap(), before.len());
        }
        writer.write_all(b"two\n").unwrap();
        drop(writer);
        let stream = Stream::new(reader.try_clone().unwrap()).unwrap();
        if stream.movable().unwrap().is_none() {
            return;
        }
        journal.move_record_of(&stream, 4 + 9).unwrap();
        let expected = [before, b"two\n"].concat();
        let mut found = vec![0; expected.len()];
        Cursor::default().read_exact(&journal, &mut found).unwrap();
        assert_eq!(found, expected);
        // Nothing more arrives, and no trace of the attempt is left.
        let active = segments::list(path).unwrap().pop().unwrap();
        assert_eq!(journal.move_record_of(&stream, 5).unwrap(), 0);
        assert_eq!(segments::list(path).unwrap().pop().unwrap(), active);
        let extent = journal.extent();
        drop(journal);
        let journal = Journal::open(path, 1, LEAST_SIZE).unwrap();
        // The file also has bytes that do not count.
        assert_eq!(Extent { bytes: extent.bytes, ..journal.extent() }, extent);
        let mut found = vec![0; expected.len()];
        Cursor::default().read_exact(&journal, &mut found).unwrap();
        assert_eq!(found, expected);
    }
}

/// A segment is noted as the last one a moment after its creation: until then the noted one stays.
#[test]
fn the_segment_that_is_noted_as_the_last_one_is_not_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let create = |first, sequence, bytes: &[u8]| {
        let head = SegmentHead { first, sequence, ..head() };
        segments::Active::create(path, head, bytes).unwrap();
    };
    create(0, 0, b"one\n");
    create(4, 1, b"two\n");
    segments::write_last(path, 4).unwrap();
    create(8, 2, b"");
    Journal::release_in(path, 8).unwrap();
    let left: Vec<u64> = segments::list(path).unwrap().iter().map(|segment| segment.first).collect();
    assert_eq!(left, [4, 8]);
    assert_eq!(Journal::open(path, 1, LEAST_SIZE).unwrap().extent().end, 8);
}
