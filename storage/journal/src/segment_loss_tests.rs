//! Errors of a journal whose segments were deleted.
use crate::format::{Origin, SegmentHead};
use crate::segments::{self, Active, path_of};
use crate::{Cursor, Journal, JournalError, LEAST_SIZE};
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

fn pipe() -> (File, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), writer)
}

fn open(folder: &Path) -> Arc<Journal> {
    Journal::open(folder, 1, LEAST_SIZE).unwrap()
}

/// All data of the journal.
fn content(journal: &Journal) -> Vec<u8> {
    let mut bytes = vec![0; journal.extent().end as usize];
    Cursor::at(0).read_exact(journal, &mut bytes).unwrap();
    bytes
}

/// For any segment: a released one is never the last one.
#[test]
fn a_segment_that_was_deleted_is_told() {
    for which in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut first = Vec::new();
        for line in [&b"one\n"[..], b"two\n", b"three\n"] {
            let (reader, mut writer) = pipe();
            let journal = open(&path);
            journal.attach(|| Ok(reader)).unwrap();
            let end = journal.extent().end;
            first.push(end);
            writer.write_all(line).unwrap();
            let mut found = vec![0; line.len()];
            assert_eq!(Cursor::at(end).read(&journal, &mut found).unwrap(), line.len());
            assert_eq!(found, line);
        }
        assert_eq!(segments::list(&path).unwrap().len(), 3);
        std::fs::remove_file(path_of(&path, first[which])).unwrap();
        let told = match Journal::open(&path, 1, LEAST_SIZE) {
            Ok(journal) => Cursor::default().seek(&journal, 0).err(),
            Err(error) => Some(error),
        };
        let told = told.unwrap().to_string();
        assert!(told.contains("tidemill state reset"), "{told}");
    }
}

/// The note of the last segment is correct before the segments after a cut line are deleted.
#[test]
fn a_process_that_ends_while_a_line_is_cut_off_leaves_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let head = |first, sequence| SegmentHead { owner: 1, first, sequence, origin: Origin::default() };
    Active::create(path, head(0, 0), b"one\nha").unwrap();
    Active::create(path, head(6, 1), b"lf").unwrap();
    segments::write_last(path, 6).unwrap();
    assert_eq!(content(&open(path)), b"one\nhalf");
    segments::write_last(path, 0).unwrap();
    std::fs::remove_file(path_of(path, 6)).unwrap();
    assert_eq!(content(&open(path)), b"one\nha");
}

#[test]
fn a_note_that_was_changed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    segments::write_last(folder.path(), 7).unwrap();
    let note = folder.path().join("last");
    let whole = std::fs::read(&note).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        std::fs::write(&note, bytes).unwrap();
        let told = Journal::open(folder.path(), 1, LEAST_SIZE).err().unwrap();
        assert!(matches!(told, JournalError::Damaged { .. }), "byte {at}: {told}");
    }
}

/// One reader takes from the stream while others keep its beginning: none overwrites another's data.
#[test]
fn readers_that_write_at_once_leave_a_journal() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| journal.keep_beginning(0).unwrap());
            }
            // The first reader of a stream starts a segment.
            let (reader, mut writer) = pipe();
            journal.attach(|| Ok(reader)).unwrap();
            writer.write_all(b"one\n").unwrap();
            assert_eq!(Cursor::default().read(&journal, &mut [0; 9]).unwrap(), 4);
        });
        drop(journal);
        let journal = open(folder.path());
        assert!(journal.has_kept_beginning());
        assert_eq!(content(&journal), b"one\n");
    }
}
