//! Data that a channel keeps for its receiver: in memory, and beyond the memory limit on disk while an edge of the host is
//! cut.
//!
//! The file has no name: it vanishes with the process, whose slots then restart from the last checkpoint. So it is never
//! synced.
use super::Cuts;
use crate::frame::Epoch;
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

enum Held {
    Memory(RecordBatch),
    Disk { offset: u64, length: usize },
}

struct Item {
    epoch: Epoch,
    bytes: usize,
    since: i64,
    held: Held,
}

impl Item {
    /// Bytes that its host keeps for it, and those of them in memory. Small batches take several times as much on disk,
    /// with their schema, as in memory.
    fn kept(&self) -> (i64, i64) {
        match &self.held {
            Held::Memory(_) => (self.bytes as i64, self.bytes as i64),
            Held::Disk { length, .. } => (*length as i64, 0),
        }
    }
}

/// A batch to send.
pub(crate) struct Next {
    pub(crate) epoch: Epoch,
    pub(crate) batch: RecordBatch,
    pub(crate) bytes: usize,
    /// Time of its arrival at the channel.
    pub(crate) since: i64,
}

/// Batches that were sent or are to be sent, until they are no longer requested.
pub(crate) struct KeptRecords {
    items: VecDeque<Item>,
    /// Next to send; the number of `items` when all are sent.
    cursor: usize,
    /// Batches by epoch from the next to send on.
    unsent: BTreeMap<Epoch, usize>,
    bytes: usize,
    /// Nothing of an earlier epoch is kept.
    forgotten: Epoch,
    cuts: Option<Arc<Cuts>>,
    file: Option<Spilled>,
}

impl KeptRecords {
    /// `cuts`: of a host that keeps more while an edge is cut.
    pub(crate) fn new(cuts: Option<Arc<Cuts>>) -> Self {
        Self {
            items: VecDeque::new(),
            cursor: 0,
            unsent: BTreeMap::new(),
            bytes: 0,
            forgotten: 0,
            cuts,
            file: None,
        }
    }

    /// Number of bytes kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a batch for sending in order.
    pub(crate) fn push(&mut self, epoch: Epoch, batch: RecordBatch, bytes: usize, since: i64) {
        let held = self.spill(&batch, bytes).unwrap_or(Held::Memory(batch));
        let item = Item { epoch, bytes, since, held };
        self.account(&item, 1);
        *self.unsent.entry(epoch).or_default() += 1;
        self.items.push_back(item);
    }

    fn account(&mut self, item: &Item, sign: i64) {
        match sign {
            1 => self.bytes += item.bytes,
            _ => self.bytes -= item.bytes,
        }
        if let Some(cuts) = &self.cuts {
            let (bytes, in_memory) = item.kept();
            cuts.keep(sign * bytes, sign * in_memory);
        }
    }

    /// Writes a batch to disk, if it belongs there and the write succeeds.
    fn spill(&mut self, batch: &RecordBatch, bytes: usize) -> Option<Held> {
        let cuts = self.cuts.as_ref().filter(|cuts| cuts.spills(bytes))?;
        let written = match &mut self.file {
            Some(file) => file.write(batch),
            None => Spilled::create(&cuts.folder).and_then(|file| self.file.insert(file).write(batch)),
        };
        let written = written.inspect_err(|error| cuts.disk_failed(error)).ok();
        // An empty file is dropped, with the space used by the failed write.
        self.file.take_if(|file| file.left == 0);
        written
    }

    /// Epoch of the next batch to send, if any.
    pub(crate) fn next_epoch(&self) -> Option<Epoch> {
        self.items.get(self.cursor).map(|item| item.epoch)
    }

    /// The lowest epoch to send.
    pub(crate) fn first_unsent(&self) -> Option<Epoch> {
        self.unsent.keys().next().copied()
    }

    /// Returns the next to send, which stays kept.
    ///
    /// # Errors
    /// It was on disk and cannot be read.
    pub(crate) fn take_next(&mut self) -> Result<Option<Next>, String> {
        let Some(item) = self.items.get(self.cursor) else { return Ok(None) };
        let batch = match &item.held {
            Held::Memory(batch) => batch.clone(),
            Held::Disk { offset, length } => match &self.file {
                Some(file) => file.read(*offset, *length)?,
                None => return Err("what was kept on the disk is gone".to_owned()),
            },
        };
        let next = Next { epoch: item.epoch, batch, bytes: item.bytes, since: item.since };
        self.passed();
        Ok(Some(next))
    }

    /// Skips the next to send: its receiver has it.
    pub(crate) fn passed(&mut self) {
        let Some(item) = self.items.get(self.cursor) else { return };
        let epoch = item.epoch;
        self.cursor += 1;
        self.is_sent(epoch);
    }

    fn is_sent(&mut self, epoch: Epoch) {
        if let Some(count) = self.unsent.get_mut(&epoch) {
            *count -= 1;
            if *count == 0 {
                self.unsent.remove(&epoch);
            }
        }
    }

    /// Marks everything as to be sent again.
    pub(crate) fn rewind(&mut self) {
        for item in self.items.range(..self.cursor) {
            *self.unsent.entry(item.epoch).or_default() += 1;
        }
        self.cursor = 0;
    }

    /// Drops the data of these epochs, which is not to be sent, now or again.
    pub(crate) fn leave_out(&mut self, is_left_out: impl Fn(Epoch) -> bool) {
        let (mut stays, mut cursor) = (VecDeque::with_capacity(self.items.len()), 0);
        for (position, item) in std::mem::take(&mut self.items).into_iter().enumerate() {
            let is_sent = position < self.cursor;
            if !is_left_out(item.epoch) {
                cursor += usize::from(is_sent);
                stays.push_back(item);
                continue;
            }
            if !is_sent {
                self.is_sent(item.epoch);
            }
            self.drop_item(&item);
        }
        (self.items, self.cursor) = (stays, cursor);
    }

    /// Drops earlier epochs, which are no longer requested.
    pub(crate) fn forget_before(&mut self, epoch: Epoch) {
        if epoch <= self.forgotten {
            return;
        }
        self.forgotten = epoch;
        self.leave_out(|of| of < epoch);
        let first = self.items.iter().find_map(|item| match &item.held {
            Held::Disk { offset, .. } => Some(*offset),
            Held::Memory(_) => None,
        });
        if let (Some(first), Some(file)) = (first, &mut self.file) {
            file.give_back(first);
        }
    }

    fn drop_item(&mut self, item: &Item) {
        self.account(item, -1);
        if let (Held::Disk { .. }, Some(file)) = (&item.held, &mut self.file) {
            file.left -= 1;
            if file.left == 0 {
                self.file = None;
                if let Some(cuts) = &self.cuts {
                    cuts.disk_is_free();
                }
            }
        }
    }
}

impl Drop for KeptRecords {
    fn drop(&mut self) {
        for item in std::mem::take(&mut self.items) {
            self.drop_item(&item);
        }
    }
}

/// Numbers the files of this process: their names exist only for a moment.
static FILES: AtomicU64 = AtomicU64::new(0);

/// Unneeded bytes of a file that are freed at once.
const GIVE_BACK: u64 = 1 << 20;

/// Batches on disk.
struct Spilled {
    file: File,
    end: u64,
    /// Everything before it was freed.
    given_back: u64,
    /// Number of needed batches.
    left: usize,
}

impl Spilled {
    fn create(folder: &Path) -> io::Result<Self> {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".kept-while-cut-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self { file, end: 0, given_back: 0, left: 0 })
    }

    fn write(&mut self, batch: &RecordBatch) -> io::Result<Held> {
        let bytes = encoded(batch).map_err(io::Error::other)?;
        if let Err(error) = self.file.write_all_at(&bytes, self.end) {
            let _ = self.file.set_len(self.end); // what was written of it is of no use
            return Err(error);
        }
        let held = Held::Disk { offset: self.end, length: bytes.len() };
        self.end += bytes.len() as u64;
        self.left += 1;
        Ok(held)
    }

    /// Frees the disk space before `first`: while a link goes up and down, the file is never empty and would grow for ever.
    fn give_back(&mut self, first: u64) {
        let to = first - first % GIVE_BACK;
        if to <= self.given_back {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Without support of the file system, it stays until all is delivered.
        let _ = fallocate(&self.file, flags, self.given_back, to - self.given_back);
        self.given_back = to;
    }

    fn read(&self, offset: u64, length: usize) -> Result<RecordBatch, String> {
        let failed =
            |error: &dyn std::fmt::Display| format!("what was kept on the disk cannot be read: {error}");
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| failed(&error))?;
        let mut reader = StreamReader::try_new(bytes.as_slice(), None).map_err(|error| failed(&error))?;
        match reader.next() {
            Some(batch) => batch.map_err(|error| failed(&error)),
            None => Err(failed(&"there is no batch")),
        }
    }
}

fn encoded(batch: &RecordBatch) -> Result<Vec<u8>, arrow_schema::ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    writer.finish()?;
    writer.into_inner()
}

#[cfg(test)]
mod tests {
    use super::super::Hold;
    use super::*;
    use arrow_array::UInt64Array;
    use arrow_schema::{DataType, Field, Schema};

    fn batch(number: u64) -> RecordBatch {
        let schema = Schema::new(vec![Field::new("n", DataType::UInt64, false)]);
        let column = Arc::new(UInt64Array::from(vec![number; 3]));
        RecordBatch::try_new(Arc::new(schema), vec![column]).expect("one column")
    }

    fn number(next: &Next) -> u64 {
        let column = next.batch.column(0).as_any().downcast_ref::<UInt64Array>().expect("whole numbers");
        assert_eq!(next.batch.num_rows(), 3);
        column.value(2)
    }

    fn all(kept: &mut KeptRecords) -> Vec<u64> {
        let next = std::iter::from_fn(|| kept.take_next().expect("can be read"));
        next.map(|next| number(&next)).collect()
    }

    const LARGE: usize = 6 << 20;
    const ALL: Hold = Hold::Cut(1 << 40);

    #[test]
    fn what_memory_does_not_hold_goes_to_the_disk_while_an_edge_is_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let cuts = Arc::new(Cuts::new(folder.path().into(), true));
        let mut kept = KeptRecords::new(Some(Arc::clone(&cuts)));
        (0..3).for_each(|n| kept.push(n, batch(n), LARGE, 0));
        assert!(kept.file.is_none(), "nothing is cut");
        cuts.change(Hold::None, ALL);
        (3..8).for_each(|n| kept.push(n, batch(n), LARGE, 0));
        assert_eq!(kept.file.as_ref().map(|file| file.left), Some(5));
        assert_eq!(std::fs::read_dir(folder.path()).expect("is there").count(), 0, "the file has no name");
        let on_disk = kept.file.as_ref().map_or(0, |file| file.end) as i64;
        assert_eq!(cuts.kept.load(Ordering::Relaxed), 3 * LARGE as i64 + on_disk);
        assert_eq!(cuts.in_memory.load(Ordering::Relaxed), 3 * LARGE as i64);
        assert_eq!((kept.next_epoch(), kept.first_unsent()), (Some(0), Some(0)));
        assert_eq!(all(&mut kept), (0..8).collect::<Vec<_>>());
        assert_eq!((kept.next_epoch(), kept.first_unsent()), (None, None));
        kept.forget_before(2);
        kept.rewind();
        kept.passed();
        assert_eq!(kept.first_unsent(), Some(3));
        assert_eq!(all(&mut kept), (3..8).collect::<Vec<_>>());
        kept.forget_before(8);
        assert!(kept.file.is_none() && kept.bytes() == 0);
        assert_eq!((cuts.kept.load(Ordering::Relaxed), cuts.in_memory.load(Ordering::Relaxed)), (0, 0));
        drop(kept);
    }

    #[test]
    fn what_is_left_out_is_not_sent_again() {
        let mut kept = KeptRecords::new(None);
        (0..8).for_each(|n| kept.push(n, batch(n), LARGE, 0));
        (0..3).for_each(|_| kept.passed());
        kept.leave_out(|epoch| epoch == 1 || (4..7).contains(&epoch));
        assert_eq!((kept.next_epoch(), kept.first_unsent(), kept.bytes()), (Some(3), Some(3), 4 * LARGE));
        assert_eq!(all(&mut kept), [3, 7]);
        kept.rewind();
        assert_eq!(all(&mut kept), [0, 2, 3, 7]);
    }

    #[test]
    fn sources_go_on_while_there_is_room() {
        let cuts = Arc::new(Cuts::new(std::env::temp_dir(), true));
        let (cut, delivers) = (Hold::Cut(2 * LARGE as u64), Hold::Delivers(2 * LARGE as u64));
        let mut kept = KeptRecords::new(Some(Arc::clone(&cuts)));
        kept.push(0, batch(0), LARGE, 0);
        assert!(!cuts.goes_on(Hold::None, false), "nothing is cut");
        assert!(cuts.goes_on(cut, true) && cuts.goes_on(delivers, false));
        assert!(!cuts.goes_on(delivers, true), "a file can wait");
        kept.push(1, batch(1), LARGE, 0);
        assert!(!cuts.goes_on(cut, false), "full");
        drop(kept);
        assert!(cuts.goes_on(cut, false), "with its slot it keeps nothing");
    }

    /// A link that goes up and down always has undelivered data.
    #[test]
    fn what_was_delivered_takes_no_place_on_the_disk() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let cuts = Arc::new(Cuts::new(folder.path().into(), true));
        cuts.change(Hold::None, ALL);
        let mut kept = KeptRecords::new(Some(Arc::clone(&cuts)));
        (0..3).for_each(|n| kept.push(n, batch(n), LARGE, 0)); // memory holds no more
        let rows = 200_000;
        let schema = batch(0).schema();
        let mut most = 0;
        for n in 3..40 {
            let column = Arc::new(UInt64Array::from(vec![n; rows]));
            let large = RecordBatch::try_new(Arc::clone(&schema), vec![column]).expect("one column");
            kept.push(n, large, LARGE, 0);
            if n > 6 {
                kept.forget_before(n - 3);
            }
            // Memory is freed step by step, and filled again.
            let file = kept.file.as_ref().expect("is spilled");
            most = most.max(file.file.metadata().expect("is open").blocks() * 512);
        }
        let written = kept.file.as_ref().expect("is spilled").end;
        assert!(written > 20 << 20 && most < written / 2, "{most} of {written} bytes");
    }

    /// A full disk is tried again at the next cut.
    #[test]
    fn a_disk_that_was_full_is_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("later");
        let cuts = Arc::new(Cuts::new(place.clone(), true));
        cuts.change(Hold::None, ALL);
        let mut kept = KeptRecords::new(Some(Arc::clone(&cuts)));
        (0..4).for_each(|n| kept.push(n, batch(n), LARGE, 0));
        assert!(!cuts.goes_on(ALL, false) && kept.file.is_none());
        std::fs::create_dir(&place).expect("a folder");
        cuts.change(ALL, Hold::None);
        cuts.change(Hold::None, ALL);
        assert!(cuts.goes_on(ALL, false));
        kept.push(4, batch(4), LARGE, 0);
        assert_eq!(kept.file.as_ref().map(|file| file.left), Some(1));
        assert_eq!(all(&mut kept), [0, 1, 2, 3, 4]);
    }

    /// A disk that accepts nothing: data is kept in memory, and sources wait.
    #[test]
    fn a_disk_that_is_full_loses_nothing() {
        let cuts = Arc::new(Cuts::new("/dev/null/none".into(), true));
        cuts.change(Hold::None, ALL);
        let mut kept = KeptRecords::new(Some(Arc::clone(&cuts)));
        (0..2).for_each(|n| kept.push(n, batch(n), LARGE, 0));
        assert!(cuts.goes_on(ALL, false));
        (2..4).for_each(|n| kept.push(n, batch(n), LARGE, 0));
        assert!(!cuts.goes_on(ALL, false) && kept.file.is_none());
        assert_eq!(all(&mut kept), [0, 1, 2, 3]);
    }
}
