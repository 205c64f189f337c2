//! Content of a journal after its files were cut, and after processes that ended at any moment.
use crate::format::{Origin, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SegmentHead};
use crate::segments::{self, Active, path_of};
use crate::stream::boot;
use crate::{Cursor, CutLine, Journal, JournalError, LEAST_SIZE, SEGMENT};
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

fn pipe() -> (File, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), writer)
}

fn open(folder: &Path) -> Arc<Journal> {
    Journal::open(folder, 1, LEAST_SIZE).unwrap()
}

/// All data of the journal from an offset on.
fn content(journal: &Journal, from: u64) -> Vec<u8> {
    let mut bytes = vec![0; (journal.extent().end - from) as usize];
    Cursor::at(from).read_exact(journal, &mut bytes).unwrap();
    bytes
}

/// Reads this many bytes, also from the stream.
fn read(journal: &Journal, cursor: &mut Cursor, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let mut part = vec![0; bytes - all.len()];
        let read = cursor.read(journal, &mut part).unwrap();
        assert!(read > 0, "the end after {} bytes", all.len());
        all.extend_from_slice(&part[..read]);
    }
    all
}

#[test]
fn what_one_process_read_the_next_reads_again_and_then_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er");
    let (reader, mut writer) = pipe();
    let journal = open(&path);
    journal.attach(|| reader.try_clone()).unwrap();
    assert!(!Journal::is_of(&path, &reader).unwrap(), "there is nothing of it yet");
    let mut cursor = Cursor::default();
    assert!(!cursor.is_ready(&journal));
    writer.write_all(b"one\ntwo\nthr").unwrap();
    assert!(cursor.is_ready(&journal));
    assert_eq!(read(&journal, &mut cursor, 11), b"one\ntwo\nthr");
    drop(journal);
    assert!(Journal::is_of(&path, &reader).unwrap());
    writer.write_all(b"ee\n").unwrap();
    let journal = open(&path);
    assert_eq!(journal.attach(|| Ok(reader)).unwrap(), None, "it is the same pipe");
    let mut cursor = Cursor::default();
    cursor.seek(&journal, 4).unwrap();
    assert_eq!(read(&journal, &mut cursor, 10), b"two\nthree\n");
    drop(writer);
    assert_eq!(cursor.read(&journal, &mut [0; 8]).unwrap(), 0);
    assert_eq!(cursor.read(&journal, &mut [0; 8]).unwrap(), 0, "the end stays the end");
    assert_eq!(journal.extent(), Journal::look(&path).unwrap().unwrap());
    assert!(matches!(Journal::open(&path, 2, LEAST_SIZE), Err(JournalError::OfAnother { .. })));
    assert!(matches!(cursor.seek(&journal, 15), Err(JournalError::NotThere { first: 0, end: 14, .. })));
}

#[test]
fn half_a_line_of_another_stream_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    for (sent, line) in [("a\nb\nhalf", "half"), ("a\nb\n", ""), ("part", "part")] {
        let path = folder.path().join(sent.replace('\n', "-"));
        let (reader, mut writer) = pipe();
        writer.write_all(sent.as_bytes()).unwrap();
        let journal = open(&path);
        journal.attach(|| Ok(reader)).unwrap();
        read(&journal, &mut Cursor::default(), sent.len());
        drop((journal, writer));
        let kept = sent.len() - line.len();
        let told = Journal::look(&path).unwrap().unwrap();
        assert_eq!(told.end, sent.len() as u64);
        assert_eq!(Journal::end_of_lines(&path, &told).unwrap(), kept as u64);
        let journal = open(&path);
        let (reader, mut writer) = pipe();
        assert!(!Journal::is_of(&path, &reader).unwrap());
        let cut = journal.attach(|| Ok(reader)).unwrap();
        let expected = CutLine { bytes: line.as_bytes().to_vec(), at: kept as u64 };
        assert_eq!(cut, (!line.is_empty()).then_some(expected));
        writer.write_all(b"c\n").unwrap();
        read(&journal, &mut Cursor::at(kept as u64), 2);
        let expected = [&sent.as_bytes()[..kept], b"c\n"].concat();
        assert_eq!(content(&journal, 0), expected);
        drop(journal);
        assert_eq!(content(&open(&path), 0), expected, "also for the next process");
    }
}

#[test]
fn half_a_line_over_many_segments_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    let journal = open(&path);
    let (reader, mut writer) = pipe();
    journal.attach(|| Ok(reader)).unwrap();
    let length = 3 * SEGMENT as usize;
    let sender = std::thread::spawn(move || {
        writer.write_all(b"first\n").unwrap();
        writer.write_all(&vec![b'x'; length]).unwrap();
        writer
    });
    read(&journal, &mut Cursor::default(), 6 + length);
    drop(sender.join().unwrap());
    assert!(journal.extent().segments >= 3);
    assert_eq!(Journal::end_of_lines(&path, &journal.extent()).unwrap(), 6);
    drop(journal);
    let journal = open(&path);
    let cut = journal.attach(|| Ok(pipe().0)).unwrap().unwrap();
    assert_eq!((cut.bytes.len(), cut.at), (length, 6));
    assert_eq!(content(&journal, 0), b"first\n");
    drop(journal);
    assert_eq!(content(&open(&path), 0), b"first\n");
}

#[test]
fn a_line_that_the_end_of_the_stream_ended_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let journal = open(&path);
    let (reader, mut writer) = pipe();
    journal.attach(|| Ok(reader)).unwrap();
    writer.write_all(b"a\nlast").unwrap();
    drop(writer);
    let mut cursor = Cursor::default();
    assert_eq!(read(&journal, &mut cursor, 7), b"a\nlast\n");
    assert_eq!(cursor.read(&journal, &mut [0; 8]).unwrap(), 0);
    drop(journal);
    let journal = open(&path);
    assert_eq!(journal.attach(|| Ok(pipe().0)).unwrap(), None);
    assert_eq!(content(&journal, 0), b"a\nlast\n");
}

#[test]
fn what_is_released_is_deleted_and_the_beginning_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let journal = open(&path);
    let (reader, mut writer) = pipe();
    journal.attach(|| Ok(reader)).unwrap();
    let mut all = b"name\n".to_vec();
    while all.len() < 3 * SEGMENT as usize {
        all.extend(format!("{}\n", all.len()).bytes());
    }
    let sent = all.clone();
    let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut cursor = Cursor::default();
    assert_eq!(read(&journal, &mut cursor, 5), b"name\n");
    journal.keep_beginning(5).unwrap();
    assert!(read(&journal, &mut cursor, all.len() - 5) == all[5..]);
    sender.join().unwrap();
    let before = journal.extent();
    // In the second of three segments.
    let wanted = 3 * SEGMENT / 2;
    journal.release(wanted).unwrap();
    let after = journal.extent();
    assert!(after.first > 0 && after.first <= wanted && after.bytes < before.bytes, "{after:?}");
    assert_eq!(segments::list(&path).unwrap().len(), after.segments);
    drop(journal);
    let journal = open(&path);
    assert!(journal.has_beginning());
    assert!(content(&journal, wanted) == all[wanted as usize..]);
    assert_eq!(read(&journal, &mut Cursor::default(), 5), b"name\n");
    assert!(matches!(Cursor::default().seek(&journal, 5), Err(JournalError::NotThere { wanted: 5, .. })));
    assert!(Cursor::at(5).read(&journal, &mut [0; 5]).is_err(), "no gap is passed over");
    // By another process, unknown to this one: all but the last segment.
    let (before, mut cursor) = (journal.extent(), Cursor::default());
    Journal::release_in(&path, u64::MAX).unwrap();
    assert_eq!(segments::list(&path).unwrap().len(), 1);
    assert_eq!(journal.extent(), before);
    assert_eq!(read(&journal, &mut cursor, 5), b"name\n");
    let wanted = before.first + 1;
    let lost = Cursor::at(wanted).read(&journal, &mut [0; 5]);
    assert!(matches!(lost, Err(JournalError::NotThere { wanted: found, .. }) if found == wanted), "{lost:?}");
    assert_eq!(journal.extent().segments, 1);
}

#[test]
fn a_full_journal_takes_nothing_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let journal = open(&path);
    let (reader, mut writer) = pipe();
    journal.attach(|| Ok(reader)).unwrap();
    let length = 2 * LEAST_SIZE as usize;
    let sender = std::thread::spawn(move || writer.write_all(&vec![b'\n'; length]).unwrap());
    let mut cursor = Cursor::default();
    let mut buffer = vec![0; 1 << 20];
    while journal.extent().bytes + (2 << 20) <= LEAST_SIZE {
        cursor.read(&journal, &mut buffer).unwrap();
    }
    let end = journal.extent().end;
    cursor.seek(&journal, end).unwrap();
    assert!(!cursor.is_ready(&journal), "the pipe has more, the journal no space");
    assert!(Journal::look(&path).unwrap().unwrap().bytes <= LEAST_SIZE);
    // Another process makes space.
    Journal::release_in(&path, end).unwrap();
    assert!(cursor.read(&journal, &mut buffer).unwrap() > 0);
    while cursor.offset() < length as u64 {
        journal.release(cursor.offset()).unwrap();
        assert!(journal.extent().bytes <= LEAST_SIZE);
        assert!(cursor.read(&journal, &mut buffer).unwrap() > 0);
    }
    sender.join().unwrap();
}

#[test]
fn a_journal_that_is_held_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(&folder.path().join("j"));
    let (reader, mut writer) = pipe();
    journal.attach(|| Ok(reader)).unwrap();
    writer.write_all(b"a\n").unwrap();
    journal.hold(true);
    let mut cursor = Cursor::default();
    assert!(!cursor.is_ready(&journal));
    journal.hold(false);
    assert!(cursor.is_ready(&journal));
    assert_eq!(read(&journal, &mut cursor, 2), b"a\n");
}

/// As left by a process killed while bytes are moved into the file.
#[test]
fn bytes_of_a_killed_process_are_not_lost_and_those_of_a_stopped_machine_are_not_believed() {
    for is_same_boot in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let boot = if is_same_boot { boot() } else { boot() ^ 1 };
        let origin = Origin { boot, device: 1, inode: 2 };
        let head = SegmentHead { owner: 1, first: 0, sequence: 0, origin };
        let mut active = Active::create(path, head, &[]).unwrap();
        active.append(0, 0, b"one\n").unwrap();
        let torn = RecordHead { length: 100, sequence: 1, offset: 4 };
        active.file.write_all_at(&torn.bytes(), active.length).unwrap();
        active.file.write_all_at(b"two\nthr", active.length + 32).unwrap();
        drop(active);
        let expected: &[u8] = if is_same_boot { b"one\ntwo\nthr" } else { b"one\n" };
        for _ in 0..2 {
            assert_eq!(content(&open(path), 0), expected);
        }
    }
}

/// A segment left by a process killed while bytes were moved into it.
fn torn(path: &Path, whole: &[u8], bytes: &[u8]) {
    let origin = Origin { boot: boot(), device: 1, inode: 2 };
    let head = SegmentHead { owner: 1, first: 0, sequence: 0, origin };
    let active = Active::create(path, head, whole).unwrap();
    let head = RecordHead { length: 100, sequence: u64::from(!whole.is_empty()), offset: whole.len() as u64 };
    active.file.write_all_at(&head.bytes(), active.length).unwrap();
    active.file.write_all_at(bytes, active.length + RECORD_HEAD as u64).unwrap();
}

/// The next process is killed, too, while it writes the next segment, or has no space for it.
#[test]
fn bytes_of_a_killed_process_stay_until_a_segment_with_all_of_them_is_there() {
    for whole in [&b"one\n"[..], b""] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        torn(path, whole, b"two\nthr");
        let expected = [whole, b"two\nthr"].concat();
        // The next segment, once it exists.
        let found = segments::recover(path, 1).unwrap();
        assert_eq!(found.torn, b"two\nthr");
        let elsewhere = tempfile::tempdir().unwrap();
        let origin = found.origin;
        let head = SegmentHead { owner: 1, first: found.end, sequence: found.sequence, origin };
        Active::create(elsewhere.path(), head, &found.torn).unwrap();
        let next = std::fs::read(path_of(elsewhere.path(), found.end)).unwrap();
        for written in 0..=next.len() {
            let place = path_of(path, found.end);
            let full = segments::place(path, &place, segments::NEW, |file| {
                file.write_all_at(&next[..written], 0)?;
                Err(std::io::ErrorKind::StorageFull.into())
            });
            assert!(full.is_err() && !path.join(segments::NEW).exists());
            assert_eq!(
                segments::recover(path, 1).unwrap().torn,
                b"two\nthr",
                "no space after {written} bytes"
            );
            std::fs::write(path.join(segments::NEW), &next[..written]).unwrap();
            segments::tidy(path).unwrap();
            assert_eq!(segments::recover(path, 1).unwrap().torn, b"two\nthr", "killed after {written} bytes");
        }
        std::fs::rename(path_of(elsewhere.path(), found.end), path_of(path, found.end)).unwrap();
        for _ in 0..2 {
            let journal = open(path);
            assert_eq!(content(&journal, 0), expected);
            assert_eq!(journal.extent().records, 1 + u64::from(!whole.is_empty()));
        }
    }
}

#[test]
fn a_journal_goes_on_behind_bytes_of_a_killed_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    torn(path, b"one\n", b"two\n");
    let journal = open(path);
    assert_eq!(journal.extent(), Journal::look(path).unwrap().unwrap());
    assert_eq!(journal.extent().records, 2);
    let (reader, mut writer) = pipe();
    journal.attach(|| Ok(reader)).unwrap();
    writer.write_all(b"three\n").unwrap();
    assert_eq!(read(&journal, &mut Cursor::at(4), 10), b"two\nthree\n");
    drop(journal);
    let journal = open(path);
    assert_eq!(content(&journal, 0), b"one\ntwo\nthree\n");
    assert_eq!(journal.extent().records, 3);
}

/// Bytes of another stream are not attributed to the previous one: the next process would take that for another stream.
#[test]
fn a_segment_with_bytes_of_a_killed_process_takes_none_of_another_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    torn(path, b"one\n", b"two\n");
    let (reader, mut writer) = pipe();
    let journal = open(path);
    assert_eq!(journal.attach(|| reader.try_clone()).unwrap(), None);
    writer.write_all(b"thr").unwrap();
    assert_eq!(read(&journal, &mut Cursor::at(8), 3), b"thr");
    drop(journal);
    assert!(Journal::is_of(path, &reader).unwrap());
    writer.write_all(b"ee\n").unwrap();
    let journal = open(path);
    assert_eq!(journal.attach(|| Ok(reader)).unwrap(), None, "it is the same stream");
    assert_eq!(read(&journal, &mut Cursor::at(8), 6), b"three\n");
}

/// The next process reads it from memory, where the disk may have none of it.
#[test]
fn a_record_that_could_not_be_synced_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let origin = Origin { boot: boot(), device: 1, inode: 2 };
    let head = SegmentHead { owner: 1, first: 0, sequence: 0, origin };
    let mut active = Active::create(path, head, &[]).unwrap();
    active.append(0, 0, b"one\n").unwrap();
    let length = active.length;
    active.append(1, 4, b"two\n").unwrap();
    active.length = length;
    active.disown(4);
    drop(active);
    let journal = open(path);
    assert_eq!(content(&journal, 0), b"one\ntwo\n");
    assert_eq!((journal.extent().segments, journal.extent().records), (2, 2));
}

#[test]
fn segments_that_a_loss_of_power_brought_back_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let head = |first, sequence| SegmentHead { owner: 1, first, sequence, origin: Origin::default() };
    for (first, sequence) in [(0, 0), (4, 1), (8, 2)] {
        Active::create(path, head(first, sequence), b"abc\n").unwrap();
    }
    std::fs::remove_file(path_of(path, 4)).unwrap();
    let journal = open(path);
    assert_eq!((journal.extent().first, journal.extent().end), (8, 12));
    assert!(!path_of(path, 0).exists());
    assert!(!journal.has_beginning());
}

#[test]
fn damage_before_the_end_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let head = SegmentHead { owner: 1, first: 0, sequence: 0, origin: Origin::default() };
    let mut active = Active::create(path, head, &[]).unwrap();
    active.append(0, 0, b"one\n").unwrap();
    active.append(1, 4, b"two\n").unwrap();
    active.file.write_all_at(b"O", SEGMENT_HEAD as u64 + 32).unwrap();
    let error = Journal::open(path, 1, LEAST_SIZE).err().unwrap().to_string();
    assert!(error.contains("is damaged") && error.contains("tidemill state reset"), "{error}");
}

/// Writes lines in records in segments, as several processes leave them.
fn written(path: &Path, segments: &[Vec<Vec<u8>>], boot: u128) -> Vec<u8> {
    let (mut all, mut sequence) = (Vec::new(), 0);
    for records in segments {
        let origin = Origin { boot, device: 1, inode: 2 };
        let head = SegmentHead { owner: 1, first: all.len() as u64, sequence, origin };
        let mut active = Active::create(path, head, &[]).unwrap();
        for record in records {
            active.append(sequence, all.len() as u64, record).unwrap();
            all.extend_from_slice(record);
            sequence += 1;
        }
    }
    all
}

fn segments() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let record = prop::collection::vec(any::<u8>(), 1..40);
    prop::collection::vec(prop::collection::vec(record, 1..6), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The last segment, cut anywhere, gives a prefix, at least all complete records, and nothing else.
    #[test]
    fn any_cut_gives_a_prefix(
        segments in segments(),
        share in 0.0f64..1.0,
        is_same_boot: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let boot = if is_same_boot { boot() } else { boot() ^ 1 };
        let all = written(path, &segments, boot);
        let last = segments::list(path).unwrap().pop().unwrap();
        let cut = SEGMENT_HEAD as u64 + ((last.bytes - SEGMENT_HEAD as u64) as f64 * share) as u64;
        OpenOptions::new().write(true).open(path_of(path, last.first)).unwrap().set_len(cut).unwrap();
        let journal = open(path);
        let found = content(&journal, 0);
        prop_assert!(all.starts_with(&found), "{found:?} of {all:?}");
        prop_assert!(found.len() as u64 >= last.first);
        // Complete records before the cut are there.
        let mut whole = (SEGMENT_HEAD as u64, last.first);
        for record in segments.last().unwrap() {
            let end = whole.0 + 40 + record.len() as u64;
            if end > cut {
                break;
            }
            whole = (end, whole.1 + record.len() as u64);
        }
        prop_assert!(found.len() as u64 >= whole.1);
        if !is_same_boot {
            prop_assert_eq!(found.len() as u64, whole.1, "what is not whole is not believed");
        }
        // It continues from there.
        let (reader, mut writer) = pipe();
        let cut = journal.attach(|| Ok(reader)).unwrap();
        let kept = cut.map_or(found.len(), |cut| cut.at as usize);
        writer.write_all(b"more\n").unwrap();
        let more = read(&journal, &mut Cursor::at(kept as u64), 5);
        prop_assert_eq!(&more, b"more\n");
        drop(journal);
        prop_assert_eq!(content(&open(path), 0), [&found[..kept], b"more\n"].concat());
    }

    /// Any file with a changed byte is rejected, also in its last record. Four bytes have no meaning.
    #[test]
    fn a_changed_byte_gives_no_garbage(segments in segments(), which: prop::sample::Index, at: prop::sample::Index, bit in 0u8..8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let all = written(path, &segments, boot());
        let segment = *which.get(&segments::list(path).unwrap());
        let file = OpenOptions::new().read(true).write(true).open(path_of(path, segment.first)).unwrap();
        let at = at.index(segment.bytes as usize) as u64;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
        if let Ok(journal) = Journal::open(path, 1, LEAST_SIZE) {
            prop_assert!((68..72).contains(&at), "byte {at} of segment {} is not seen", segment.first);
            prop_assert_eq!(content(&journal, 0), all);
        }
    }

    /// For any writes and any ends of processes, each byte is read once.
    #[test]
    fn nothing_is_lost_or_doubled_between_processes(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..300), any::<bool>(), 1usize..200), 1..30),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let (reader, mut writer) = pipe();
        let mut journal = open(&path);
        journal.attach(|| reader.try_clone()).unwrap();
        let (mut sent, mut given, mut cursor) = (Vec::new(), Vec::new(), Cursor::default());
        for (part, is_killed, size) in parts {
            writer.write_all(&part).unwrap();
            sent.extend_from_slice(&part);
            if is_killed {
                drop(journal);
                journal = open(&path);
                journal.attach(|| reader.try_clone()).unwrap();
                cursor = Cursor::default();
                cursor.seek(&journal, given.len() as u64).unwrap();
            }
            let mut buffer = vec![0; size];
            let read = cursor.read(&journal, &mut buffer).unwrap();
            given.extend_from_slice(&buffer[..read]);
        }
        let rest = read(&journal, &mut cursor, sent.len() - given.len());
        given.extend(rest);
        prop_assert_eq!(given, sent);
    }
}

/// Writes numbered lines on its own thread, more than a pipe holds.
fn numbered(mut writer: PipeWriter, from: usize, to: usize) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let lines: String = (from..to).map(|n| format!("{n:0100}\n")).collect();
        // A stream that starts again is not read further.
        let _ = writer.write_all(lines.as_bytes());
    })
}

#[test]
fn a_stream_that_begins_again_is_refused_and_nothing_of_it_is_taken() {
    for is_released in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let (reader, writer) = pipe();
        let journal = open(&path);
        journal.attach(|| Ok(reader)).unwrap();
        let producer = numbered(writer, 0, 100_000);
        read(&journal, &mut Cursor::default(), 100_000 * 101);
        producer.join().unwrap();
        let end = journal.extent().end;
        if is_released {
            Journal::release_in(&path, 9_000_000).unwrap();
            assert!(!path_of(&path, 0).exists());
        }
        drop(journal);
        let (reader, writer) = pipe();
        let kept = reader.try_clone().unwrap();
        let producer = numbered(writer, 0, 100);
        producer.join().unwrap();
        let journal = open(&path);
        journal.attach(|| Ok(reader)).unwrap();
        for _ in 0..2 {
            let error = Cursor::at(end).read(&journal, &mut [0; 100]).unwrap_err().to_string();
            assert!(error.contains("begins with") && error.contains(&format!("after byte {end}")), "{error}");
            assert!(crate::is_of_again(&error));
        }
        assert_eq!(journal.extent().end, end);
        // It is all still in the pipe.
        let mut left = String::new();
        std::io::Read::read_to_string(&mut &kept, &mut left).unwrap();
        assert_eq!(left.len(), 100 * 101);
        drop(journal);
        // One that continues is taken.
        let (reader, writer) = pipe();
        let producer = numbered(writer, 100_000, 100_100);
        let journal = open(&path);
        journal.attach(|| Ok(reader)).unwrap();
        let found = read(&journal, &mut Cursor::at(end), 101);
        assert_eq!(found, format!("{:0100}\n", 100_000).as_bytes());
        drop(journal);
        producer.join().unwrap();
    }
}

#[test]
fn a_journal_without_a_stream_is_read_to_its_end_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    let (reader, mut writer) = pipe();
    let journal = open(&path);
    journal.attach(|| Ok(reader)).unwrap();
    writer.write_all(b"one\ntwo\n").unwrap();
    read(&journal, &mut Cursor::default(), 8);
    drop(journal);
    let files = || {
        let mut all: Vec<_> = std::fs::read_dir(&path).unwrap().map(|file| file.unwrap().path()).collect();
        all.sort();
        all.into_iter().map(|file| (std::fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = files();
    for _ in 0..2 {
        let journal = Journal::open_ended(&path, 1).unwrap();
        let never = || Err(std::io::Error::other("no stream is opened"));
        assert_eq!(journal.attach_any(never).unwrap(), None);
        let mut cursor = Cursor::default();
        assert_eq!(read(&journal, &mut cursor, 8), b"one\ntwo\n");
        assert!(cursor.is_ready(&journal));
        assert_eq!(cursor.read(&journal, &mut [0; 9]).unwrap(), 0, "it has ended");
    }
    assert!(matches!(Journal::open_ended(&path, 2), Err(JournalError::OfAnother { .. })));
    assert_eq!(before, files());
    std::fs::rename(path_of(&path, 0), path_of(&path, 8)).unwrap();
    assert!(Journal::open_ended(&path, 1).is_err(), "its beginning is missing");
}
