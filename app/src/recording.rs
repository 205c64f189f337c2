//! Recordings: a folder with what the sources that cannot be read again gave a run, and the epochs of that run. A
//! [replay](replaying) runs the workflow from it, without the cameras, brokers and connections.
//!
//! | file | content |
//! |---|---|
//! | `recording.json` | the sources, and whether the run came to an end; never an address |
//! | `epochs.jsonl` | the [epoch log](crate::epoch_file) |
//! | `journals/SOURCE/` | the journal through which the run read the source; nothing of it is released |
//! | `rows/SOURCE.rows` | instead, for sources without a form for journals: what each read gave |
//! | `arrivals/SOURCE.jsonl` | when its records were read, for a replay at their pace |
mod arrivals;
pub mod replaying;
mod rows;

use crate::failure::{Failure, Kind};
use crate::preparation::Prepared;
use arrivals::Arrivals;
use rows::RowsFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_engine::clock::WallClock;
use tidemill_operators::api::{BoundSource, MakeSource, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::journal::{Journal, LEAST_SIZE};
use tidemill_operators::sinks::whole_file::WholeFile;
use tidemill_spec::units::Bytes;
use tidemill_state::Digest;

const DESCRIPTION: &str = "recording.json";
const EPOCHS: &str = "epochs.jsonl";
const JOURNALS: &str = "journals";
const ARRIVALS: &str = "arrivals";
const ROWS: &str = "rows";
/// Version of the folder's form.
const VERSION: u32 = 1;
/// Room that a recording leaves below its limit, per source: what may come between two looks.
const ROOM: u64 = 4 << 20;

/// The least limit of a recording.
pub const LEAST: Bytes = Bytes(64 << 20);

/// Content of `recording.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    /// Version of the form.
    recording: u32,
    /// Name of the workflow.
    workflow: String,
    /// The recorded sources with their kinds.
    sources: BTreeMap<String, String>,
    /// Whether the run came to an end; else it was killed.
    ended: bool,
}

impl Description {
    fn write(&self, folder: &Path) -> Result<(), Failure> {
        use std::io::Write;
        let path = folder.join(DESCRIPTION);
        let failed = |error: OperatorError| Failure::new(Kind::Unavailable, error.to_string());
        let file = WholeFile::create(&path, true).map_err(failed)?;
        let written = file.content().and_then(|mut content| {
            let text = serde_json::to_vec_pretty(self)?;
            content.write_all(&text)?;
            content.write_all(b"\n")
        });
        written.map_err(|error| cannot("written", &path, &error))?;
        file.finish().map_err(failed)
    }
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Kind::Unavailable, format!("`{}` cannot be {what}: {error}", path.display()))
}

/// Path of the epoch log of a recording.
pub fn epochs_of(folder: &Path) -> PathBuf {
    folder.join(EPOCHS)
}

fn journal_of(folder: &Path, source: &str) -> PathBuf {
    folder.join(JOURNALS).join(source)
}

fn arrivals_of(folder: &Path, source: &str) -> PathBuf {
    folder.join(ARRIVALS).join(format!("{source}.jsonl"))
}

fn rows_of(folder: &Path, source: &str) -> PathBuf {
    folder.join(ROWS).join(format!("{source}.rows"))
}

/// Says what a journal is of: the same source may have another address in a replay.
fn owner(source: &BoundSource) -> u64 {
    let parts = (&source.id, &source.kind, &source.output);
    let Digest(digest) = Digest::of(&serde_json::to_vec(&parts).expect("texts and types are JSON"));
    digest as u64
}

/// Whether a source is recorded: it cannot be read again, or nobody knows.
fn is_recorded(source: &BoundSource) -> bool {
    source.is_stream() || source.input.is_none()
}

/// The sources that are recorded.
fn recorded(prepared: &Prepared) -> impl Iterator<Item = &BoundSource> {
    prepared.program.sources.values().filter(|source| is_recorded(source))
}

/// Has a source be read as through a journal of the run: its records come in order, none of them twice, and all of them
/// are processed.
fn read_as(source: &mut BoundSource, make: MakeSource) {
    // Its rate is what planners count on; the records come when they come.
    source.rate_per_second = source.rate_per_second.filter(|_| !source.live);
    source.live = false;
    source.make = make;
}

/// A recording being made.
pub struct Recording {
    folder: PathBuf,
    description: Description,
    journals: BTreeMap<String, Arc<Journal>>,
    limit: u64,
    /// Records of each source, as they are read.
    arrivals: Vec<Arc<Mutex<Arrivals>>>,
    /// Whether the folder stays.
    has_begun: bool,
}

impl Recording {
    /// Makes the folder, if the workflow can be recorded.
    ///
    /// # Errors
    /// A source cannot be recorded, none needs it, or the folder has something in it or cannot be made.
    pub fn create(folder: &Path, limit: Bytes, prepared: &Prepared) -> Result<Self, Failure> {
        check(prepared)?;
        let mut entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            entries => Some(entries.map_err(|error| cannot("read", folder, &error))?),
        };
        if entries.as_mut().is_some_and(|entries| entries.next().is_some()) {
            let text =
                format!("`{}` is not empty: a recording begins in a folder of its own", folder.display());
            return Err(Failure::new(Kind::Usage, text).with_help("name a new folder, or delete that one"));
        }
        for path in [folder.to_owned(), folder.join(ARRIVALS), folder.join(ROWS)] {
            std::fs::create_dir_all(&path).map_err(|error| cannot("made", &path, &error))?;
        }
        let sources = recorded(prepared).map(|source| (source.id.clone(), source.kind.clone()));
        let description = Description {
            recording: VERSION,
            workflow: prepared.workflow.name.value.clone(),
            sources: sources.collect(),
            ended: false,
        };
        let recording = Self {
            folder: folder.to_owned(),
            description,
            journals: BTreeMap::new(),
            limit: limit.0.max(LEAST.0),
            arrivals: Vec::new(),
            has_begun: false,
        };
        recording.description.write(folder)?;
        Ok(recording)
    }

    /// Has the run read its sources through the recording.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn take_part(&mut self, prepared: &mut Prepared) -> Result<(), Failure> {
        let clock = Arc::new(WallClock::new());
        for source in prepared.program.sources.values_mut().filter(|source| is_recorded(source)) {
            let path = arrivals_of(&self.folder, &source.id);
            let arrivals = Arrivals::create(&path, Arc::clone(&clock))
                .map_err(|error| cannot("written", &path, &error))?;
            let arrivals = Arc::new(Mutex::new(arrivals));
            self.arrivals.push(Arc::clone(&arrivals));
            let (make, rows) = match &source.journalled {
                Some(reading) => {
                    let journal = self.journal(source)?;
                    self.journals.insert(source.id.clone(), Arc::clone(&journal));
                    ((reading.make)(journal), None)
                }
                None => {
                    let path = rows_of(&self.folder, &source.id);
                    let file = RowsFile::create(&path).map_err(|error| cannot("written", &path, &error))?;
                    (Arc::clone(&source.make), Some(Arc::new(Mutex::new(file))))
                }
            };
            let is_first = AtomicBool::new(true);
            let make: MakeSource = Arc::new(move || {
                let is_first = is_first.swap(false, Ordering::AcqRel);
                if !is_first && rows.is_some() {
                    return Err(OperatorError::new("a recorded source of this kind is read only once"));
                }
                let arrivals = is_first.then(|| Arc::clone(&arrivals));
                Ok(Box::new(Recorded { inner: make()?, arrivals, rows: rows.clone() }))
            });
            read_as(source, make);
        }
        Ok(())
    }

    fn journal(&self, source: &BoundSource) -> Result<Arc<Journal>, Failure> {
        let folder = journal_of(&self.folder, &source.id);
        Journal::open(&folder, owner(source), self.limit.max(LEAST_SIZE))
            .map_err(|error| Failure::new(Kind::Unavailable, format!("source `{}`: {error}", source.id)))
    }

    /// Keeps the folder, whatever follows: the run has begun.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Bytes of its files so far.
    pub fn bytes(&self) -> u64 {
        let length = |path: PathBuf| path.metadata().map_or(0, |found| found.len());
        let sources = self.description.sources.keys();
        let files =
            sources.flat_map(|source| [arrivals_of(&self.folder, source), rows_of(&self.folder, source)]);
        let logs: u64 = files.chain([epochs_of(&self.folder)]).map(length).sum();
        logs + self.journals.values().map(|journal| journal.extent().bytes).sum::<u64>()
    }

    /// Returns the limit if the recording is about to reach it.
    pub fn is_full(&self) -> Option<Bytes> {
        let room = ROOM * self.description.sources.len() as u64;
        (self.bytes() + room >= self.limit).then_some(Bytes(self.limit))
    }

    /// Completes it after the end of the run; returns records and bytes.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn finish(mut self) -> Result<(u64, u64), Failure> {
        let mut records = 0;
        for arrivals in &self.arrivals {
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            records += arrivals.records();
            arrivals.failure().map_or(Ok(()), Err)?;
        }
        self.description.ended = true;
        self.description.write(&self.folder)?;
        Ok((records, self.bytes()))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.has_begun
            && let Err(error) = std::fs::remove_dir_all(&self.folder)
        {
            tracing::warn!("`{}` stays: {error}", self.folder.display());
        }
    }
}

/// Checks that a replay has a meaning.
fn check(prepared: &Prepared) -> Result<(), Failure> {
    let refused = |text: String, help: &str| Err(Failure::new(Kind::Usage, text).with_help(help));
    let mut sinks = prepared.program.sinks.values();
    if let Some((sink, source)) = sinks.find_map(|sink| Some((&sink.id, sink.answers.as_ref()?))) {
        return refused(
            format!(
                "sink `{sink}` answers the requests of `{source}`: in a replay nobody would wait for answers"
            ),
            "test a service with files of requests: `tidemill test`",
        );
    }
    if recorded(prepared).next().is_none() {
        return refused(
            "all sources read files, which can be read again: there is nothing to record".to_owned(),
            "`--epoch-log FILE` keeps the epochs of such a run, and `--replay FILE` repeats them",
        );
    }
    Ok(())
}

/// A source that is being recorded.
struct Recorded {
    inner: Box<dyn Source>,
    /// Written by the first reader, as long as it reads on.
    arrivals: Option<Arc<Mutex<Arrivals>>>,
    /// What it reads, if that is not in a journal.
    rows: Option<Arc<Mutex<RowsFile>>>,
}

/// Number of records of a read, as sequence numbers count them.
fn records_of(read: &SourceRead) -> u64 {
    match read {
        SourceRead::Rows { payload, dead_letters, .. } => (payload.num_rows() + dead_letters.len()) as u64,
        // Silence that states nothing has no number.
        SourceRead::Idle { watermark: i64::MIN } => 0,
        SourceRead::Idle { .. } => 1,
        SourceRead::End => 0,
    }
}

impl Source for Recorded {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let read = self.inner.read(rows, bytes)?;
        if records_of(&read) == 0 && !matches!(read, SourceRead::End) {
            return Ok(read); // nothing to read again
        }
        if let Some(rows) = &self.rows {
            rows.lock().unwrap_or_else(PoisonError::into_inner).add(&read)?;
        }
        if let Some(arrivals) = &self.arrivals {
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).add(records_of(&read));
        }
        Ok(read)
    }

    fn position(&self) -> SourcePosition {
        self.inner.position()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.arrivals = None;
        self.inner.seek(position)
    }

    fn sizes(&self) -> Option<&[u32]> {
        self.inner.sizes()
    }

    fn has_caught_up(&self) -> bool {
        self.inner.has_caught_up()
    }

    // No journal: the ends of epochs are in the epoch log, and no other process continues the run.
}
