//! After a loss of power at any moment a journal has all data that readers were given, and nothing that the stream did
//! not have.
use crate::format::{RecordHead, SEGMENT_HEAD, SegmentHead, record_end};
use crate::{Cursor, Journal, LEAST_SIZE, marks, segments};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use tidemill_disk::Watch;

/// Outcomes to check per moment.
const MOST: usize = 24;

/// The required content.
#[derive(Debug, Clone)]
struct Thought {
    /// The stream's data, without lines that were cut off.
    sent: Vec<u8>,
    /// Bytes given to readers.
    given: usize,
    /// Start of the data still needed.
    wanted: usize,
}

fn pipe() -> (File, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), writer)
}

fn open(folder: &Path) -> Arc<Journal> {
    Journal::open(folder, 1, LEAST_SIZE).unwrap()
}

/// A life of a journal under observation.
struct Life<'a> {
    watch: &'a Watch,
    thoughts: Vec<Thought>,
    now: Thought,
}

impl Life<'_> {
    fn think(&mut self) {
        self.thoughts.push(self.now.clone());
        self.watch.think(self.thoughts.len() - 1);
    }

    /// Sends these bytes, then reads them.
    fn send(&mut self, journal: &Journal, writer: &mut PipeWriter, bytes: &[u8]) {
        // In the pipe already when the journal takes some of it.
        self.now.sent.extend_from_slice(bytes);
        self.think();
        writer.write_all(bytes).unwrap();
        let mut into = vec![0; bytes.len()];
        Cursor::at(self.now.given as u64).read_exact_from_stream(journal, &mut into);
        assert_eq!(into, bytes);
        self.now.given += bytes.len();
        self.think();
    }
}

/// Leaves a record like a process killed while it waits for the disk: complete, and in memory only.
fn append_unsynced(folder: &Path, bytes: &[u8]) {
    let last = segments::list(folder).unwrap().pop().unwrap();
    let (_, found) = segments::read(folder, last.first).unwrap();
    let head = RecordHead { length: bytes.len() as u32, sequence: found.sequence, offset: found.end };
    let record = [&head.bytes()[..], bytes, &record_end(bytes)].concat();
    append(&segments::path_of(folder, last.first), &record);
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

impl Cursor {
    fn read_exact_from_stream(&mut self, journal: &Journal, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let read = self.read(journal, &mut into[done..]).unwrap();
            assert!(read > 0);
            done += read;
        }
    }
}

/// Five processes, one after the other: one stream, then another one after half a line, then the rest of a process
/// killed while it waited for the disk, then released data.
fn life(folder: &Path, watch: &Watch) -> Vec<Thought> {
    let path = folder.join("deep/journal");
    let now = Thought { sent: Vec::new(), given: 0, wanted: 0 };
    let mut life = Life { watch, thoughts: vec![now.clone()], now };
    let (reader, mut writer) = pipe();
    let journal = open(&path);
    journal.attach(|| reader.try_clone()).unwrap();
    life.send(&journal, &mut writer, b"name\n");
    journal.keep_beginning(5).unwrap();
    life.send(&journal, &mut writer, b"one\ntwo\n");
    drop(journal);
    let journal = open(&path);
    journal.attach(|| Ok(reader)).unwrap();
    life.send(&journal, &mut writer, &[b'x'; 3000]);
    life.send(&journal, &mut writer, b"\nthree\nha");
    drop((journal, writer));
    // Another stream: the rest of the last line does not arrive.
    let (reader, mut writer) = pipe();
    let journal = open(&path);
    life.now.given -= 2;
    life.think();
    assert_eq!(journal.attach(|| reader.try_clone()).unwrap().unwrap().bytes, b"ha");
    life.now.sent.truncate(life.now.given);
    life.think();
    life.send(&journal, &mut writer, b"four\n");
    drop(journal);
    let journal = open(&path);
    journal.attach(|| reader.try_clone()).unwrap();
    life.send(&journal, &mut writer, b"five\n");
    drop(journal);
    life.now.sent.extend_from_slice(b"six\n");
    life.think();
    append_unsynced(&path, b"six\n");
    let journal = open(&path);
    let mut into = [0; 4];
    Cursor::at(life.now.given as u64).read_exact(&journal, &mut into).unwrap();
    assert_eq!(into, *b"six\n");
    life.now.given += into.len();
    life.think();
    journal.attach(|| Ok(reader)).unwrap();
    // In its own segment, which is on the disk.
    life.send(&journal, &mut writer, b"seven\n");
    life.now.wanted = life.now.given - b"five\nsix\nseven\n".len();
    life.think();
    journal.release(life.now.wanted as u64).unwrap();
    life.send(&journal, &mut writer, b"eight\n");
    life.thoughts
}

/// Checks the contents after a loss of power.
fn check(folder: &Path, thought: &Thought) -> Result<(), String> {
    let path = folder.join("deep/journal");
    let failed = |error: crate::JournalError| error.to_string();
    let journal = Journal::open(&path, 1, LEAST_SIZE).map_err(failed)?;
    let (first, end) = (journal.extent().first as usize, journal.extent().end as usize);
    if first > thought.wanted || end < thought.given || end > thought.sent.len() {
        return Err(format!("it has {first} to {end}"));
    }
    let mut bytes = vec![0; end - first];
    Cursor::at(first as u64).read_exact(&journal, &mut bytes).map_err(failed)?;
    if bytes != thought.sent[first..end] {
        return Err("it has other bytes than the stream".to_owned());
    }
    // It continues with another stream, after the last complete line, and so does the next process.
    let (reader, mut writer) = pipe();
    let cut = journal.attach(|| Ok(reader)).map_err(failed)?;
    bytes.truncate(cut.map_or(bytes.len(), |cut| cut.at as usize - first));
    bytes.extend_from_slice(b"z\n");
    let from = journal.extent().end;
    writer.write_all(b"z\n").map_err(|error| error.to_string())?;
    Cursor::at(from).read_exact_from_stream(&journal, &mut [0; 2]);
    drop(journal);
    let journal = Journal::open(&path, 1, LEAST_SIZE).map_err(failed)?;
    let mut found = vec![0; journal.extent().end as usize - first];
    Cursor::at(first as u64).read_exact(&journal, &mut found).map_err(failed)?;
    match found == bytes {
        true => Ok(()),
        false => Err(format!("the next process has {} bytes instead of {}", found.len(), bytes.len())),
    }
}

/// Checks all possible losses of power; returns their number.
fn check_all(watch: &Watch, thoughts: &[Thought], most: usize) -> Result<usize, String> {
    let mut losses = watch.losses(most);
    for loss in &mut losses {
        // The machine has rebooted.
        loss.image.change(|_, bytes| {
            if let Some(mut head) = SegmentHead::of(bytes) {
                head.origin.boot ^= 1;
                bytes[..SEGMENT_HEAD].copy_from_slice(&head.bytes());
            }
        });
        let place = tempfile::tempdir().unwrap();
        loss.image.write_to(place.path()).unwrap();
        let thought = &thoughts[loss.thought];
        check(place.path(), thought).map_err(|error| {
            let Thought { given, wanted, sent } = thought;
            let sent = sent.len();
            format!(
                "before operation {}: {error}; of {sent} bytes {given} were given, from {wanted} on they are wanted: {:?}",
                loss.operation,
                loss.image.listing()
            )
        })?;
    }
    Ok(losses.len())
}

#[test]
fn what_anybody_was_given_survives_a_loss_of_power() {
    let folder = tempfile::tempdir().unwrap();
    let watch = Watch::begin(folder.path()).unwrap();
    let thoughts = life(folder.path(), &watch);
    let looked_at = check_all(&watch, &thoughts, MOST).unwrap();
    println!("{looked_at} losses of power");
    assert!(looked_at > 150, "{looked_at}");
}

#[test]
fn a_forgotten_sync_of_a_journal_would_be_noticed() {
    for forget in [Watch::forget_files, Watch::forget_folders] {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::begin(folder.path()).unwrap();
        forget(&watch);
        let thoughts = life(folder.path(), &watch);
        println!("{}", check_all(&watch, &thoughts, MOST).expect_err("nobody waited for the disk"));
    }
}

/// A process is killed while it waits for a mark, and the next one finds it.
#[test]
fn a_mark_that_was_told_survives_a_loss_of_power() {
    let folder = tempfile::tempdir().unwrap();
    let watch = Watch::begin(folder.path()).unwrap();
    let path = folder.path().join("journal");
    open(&path).mark("s", 1, 5, 0).unwrap();
    let whole = marks::written(&[(1, 5)].into());
    append(&path.join("marks-s"), &marks::written(&[(1, 5), (2, 9)].into())[whole.len()..]);
    let expected = BTreeMap::from([(1, 5), (2, 9)]);
    assert_eq!(open(&path).marks("s").unwrap(), expected);
    watch.think(1);
    let losses = watch.losses(MOST);
    let mut looked_at = 0;
    for loss in losses.iter().filter(|loss| loss.thought == 1) {
        let place = tempfile::tempdir().unwrap();
        loss.image.write_to(place.path()).unwrap();
        assert_eq!(open(&place.path().join("journal")).marks("s").unwrap(), expected);
        looked_at += 1;
    }
    assert!(looked_at > 0);
}
