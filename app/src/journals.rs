//! Journals of the sources that read streams, in the folder of the state.
use crate::failure::{Failure, Kind};
use crate::preparation::Prepared;
use crate::state_place::StatePlace;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_engine::clock::Nanoseconds;
use tidemill_engine::{EpochLog, JournalOrder, Program};
use tidemill_operators::api::{BoundSource, JournalledReading, SourcePosition, SourcePromise};
use tidemill_operators::journal::{Extent, Journal, JournalError, SEGMENT};
use tidemill_spec::units::Bytes;
use tidemill_state::{Digest, JOURNALS};

/// Bytes of an epoch of a stream.
const EPOCH: u64 = 512 << 10;

/// The folder of the journal of a source.
pub fn folder(state: &Path, source: &str) -> PathBuf {
    state.join(JOURNALS).join(source)
}

/// The sources that are read through a journal where the run keeps a state.
fn journalled(program: &Program) -> impl Iterator<Item = &BoundSource> {
    program.sources.values().filter(|source| source.promise() == SourcePromise::Journalled)
}

/// Has the sources that want one read through a journal; `is_here`: whether a source is read by this process, which nobody
/// else then opens its journal beside.
///
/// # Errors
/// A journal cannot be used, is of another source, or would be too small for the plan.
pub fn read_through(
    state: &Path,
    prepared: &mut Prepared,
    is_here: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Arc<Journal>>, Failure> {
    let mut opened = BTreeMap::new();
    for wanted in wanted(state, prepared, is_here)? {
        let journal = wanted.open()?;
        if let Some(source) = prepared.program.sources.get_mut(&wanted.source) {
            source.make = (wanted.reading.make)(Arc::clone(&journal));
        }
        opened.insert(wanted.source, journal);
    }
    Ok(opened)
}

/// A journal that a source is to be read through.
pub(crate) struct Wanted {
    pub(crate) source: String,
    pub(crate) folder: PathBuf,
    pub(crate) reading: JournalledReading,
    /// Says what it is the journal of.
    owner: u64,
    size: u64,
}

impl Wanted {
    pub(crate) fn open(&self) -> Result<Arc<Journal>, Failure> {
        Journal::open(&self.folder, self.owner, self.size).map_err(|error| failure(&self.source, &error))
    }
}

/// The journals of the sources that this process reads; nothing is opened yet.
///
/// # Errors
/// One would be too small for the plan.
pub(crate) fn wanted(
    state: &Path,
    prepared: &Prepared,
    is_here: impl Fn(&str) -> bool,
) -> Result<Vec<Wanted>, Failure> {
    let mut found = Vec::new();
    let every = prepared.program.plan.checkpoint_every;
    let ids: Vec<String> = journalled(&prepared.program).map(|source| source.id.clone()).collect();
    for id in ids.into_iter().filter(|id| is_here(id)) {
        let written = prepared.workflow.sources.iter().find(|source| source.id.value == id);
        let Some(source) = prepared.program.sources.get(&id) else { continue };
        let (Some(options), Some(reading)) = (&source.journal, &source.journalled) else { continue };
        let size = options.size();
        // What the source may be ahead of a checkpoint, and what a segment keeps longer than it is needed.
        let needed = Bytes((2 * every + 4).saturating_mul(EPOCH).saturating_add(4 * SEGMENT));
        if size < needed {
            return Err(Failure::new(
                Kind::Configuration,
                format!("a journal of {size} is too small for source `{id}`: with `checkpoint_every: {every}` it needs {needed}"),
            )
            .with_help(format!("write `journal: {{size: {needed}}}` or more, or a smaller `checkpoint_every`")));
        }
        // How long and how much is kept does not change what is read.
        let identity = written.map(|source| {
            let source = tidemill_spec::workflow::Source { journal: None, ..source.clone() };
            Digest::of(&serde_json::to_vec(&source).expect("a source is JSON"))
        });
        let owner = identity.map_or(0, |Digest(digest)| digest as u64);
        let (folder, reading) = (folder(state, &id), reading.clone());
        found.push(Wanted { source: id, folder, reading, owner, size: size.0 });
    }
    Ok(found)
}

fn failure(source: &str, error: &JournalError) -> Failure {
    let kind = match error {
        JournalError::OfAnother { .. } => Kind::Configuration,
        JournalError::Damaged { .. } | JournalError::NotThere { .. } => Kind::Data,
        _ => Kind::Unavailable,
    };
    Failure::new(kind, format!("source `{source}`: {error}"))
}

/// The sources whose streams had come to their end when a checkpoint with these logs was written: nothing more is read of them.
pub(crate) fn ended(program: &Program, logs: &BTreeMap<String, EpochLog>) -> Vec<String> {
    let has_ended = |source: &&BoundSource| {
        let mut stages = program.plan.stages.iter().filter(|stage| stage.operator == source.id);
        stages.any(|stage| logs.get(&stage.id).and_then(|log| log.end).is_some_and(|end| !end.limit))
    };
    journalled(program).filter(has_ended).map(|source| source.id.clone()).collect()
}

/// A journal can only be in a folder.
///
/// # Errors
/// The state is in a bucket and a source wants a journal.
pub fn check_place(place: &StatePlace, program: &Program) -> Result<(), Failure> {
    match (place, journalled(program).next()) {
        (StatePlace::Bucket(_) | StatePlace::Service(_), Some(source)) => {
            let stream = source.stream.as_deref().unwrap_or_default();
            let text = format!(
                "source `{}` reads {stream} through a journal, which is a folder, and the state is in `{place}`",
                source.id
            );
            Err(Failure::new(Kind::Configuration, text).with_help(
                "keep the state in a folder (`--state state`), or write the stream to a file first and read that",
            ))
        }
        _ => Ok(()),
    }
}

/// What a journal has.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// All of it.
    pub extent: Extent,
    /// Place in the stream behind its last whole line.
    pub end_of_lines: u64,
}

impl Look {
    /// Bytes of the line at its end that is not whole.
    pub fn half_a_line(&self) -> u64 {
        self.extent.end - self.end_of_lines
    }
}

/// Whether the stream of a source is still the one that its journal was read from, so that the rest of half a line comes; none: that shows
/// when it is opened.
pub fn is_same_stream(place: &StatePlace, source: &BoundSource) -> Option<bool> {
    let StatePlace::Folder(state) = place else { return None };
    if source.stream.as_deref() != Some("standard input") {
        return None;
    }
    let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    Journal::is_of(&folder(state, &source.id), &stdin).ok()
}

/// What the journals of a state have, by source, also while a run has it.
///
/// # Errors
/// One cannot be read.
pub fn look(place: &StatePlace) -> Result<BTreeMap<String, Look>, Failure> {
    let StatePlace::Folder(state) = place else { return Ok(BTreeMap::new()) };
    let path = state.join(JOURNALS);
    let entries = match std::fs::read_dir(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.and_then(|entries| entries.collect::<Result<Vec<_>, _>>()),
    };
    let entries = entries.map_err(|error| {
        Failure::new(Kind::Unavailable, format!("`{}` cannot be read: {error}", path.display()))
    })?;
    let mut looks = BTreeMap::new();
    for source in entries.iter().filter_map(|entry| entry.file_name().into_string().ok()) {
        let folder = folder(state, &source);
        let look = Journal::look(&folder).and_then(|extent| {
            let look = |extent| {
                let end_of_lines = Journal::end_of_lines(&folder, &extent)?;
                Ok(Look { extent, end_of_lines })
            };
            extent.map(look).transpose()
        });
        let look = look.map_err(|error| failure(&source, &error))?;
        looks.extend(look.map(|look| (source, look)));
    }
    Ok(looks)
}

/// Deletes all journals of a state.
///
/// # Errors
/// They cannot be deleted.
pub fn forget(state: &Path) -> Result<(), Failure> {
    let path = state.join(JOURNALS);
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let text = format!("the journals in `{}` cannot be deleted: {error}", path.display());
            Err(Failure::new(Kind::Unavailable, text).with_help("delete that folder by hand"))
        }
        _ => Ok(()),
    }
}

/// The journal of one source.
struct Kept {
    source: String,
    folder: PathBuf,
    /// Its stages.
    stages: Vec<String>,
    place: fn(&SourcePosition) -> Option<u64>,
    /// Longest time without a checkpoint in which the stream is read on.
    keep: Nanoseconds,
    /// Bytes that the journal may have.
    size: u64,
    /// None: another process reads it.
    journal: Option<Arc<Journal>>,
}

/// What checkpoints mean for the journals: what nobody reads again is released, and while none can be written for too long,
/// nothing more is taken from the streams.
pub(crate) struct Keeper {
    state: PathBuf,
    kept: Vec<Kept>,
    /// Where the checkpoints that are kept begin, oldest first; by source, nothing is 0.
    begins: VecDeque<BTreeMap<String, u64>>,
    /// Where the one begins that is kept however many follow it.
    pinned: Option<BTreeMap<String, u64>>,
    /// Checkpoints that are kept.
    most: usize,
    /// Engine time of the first failure since the last checkpoint.
    failing_since: Option<Nanoseconds>,
    /// Where the journals are on other machines: what these are to be told.
    orders: Option<BTreeMap<String, JournalOrder>>,
}

impl Keeper {
    /// `opened`: the journals that this process reads; `known`: checkpoints that are there already.
    pub(crate) fn new(
        state: &Path,
        program: &Program,
        mut opened: BTreeMap<String, Arc<Journal>>,
        (most, known): (usize, usize),
    ) -> Self {
        let kept = journalled(program).filter_map(|source| {
            let stages = program.plan.stages.iter().filter(|stage| stage.operator == source.id);
            let options = source.journal.as_ref()?;
            let keep = options.keep().0;
            Some(Kept {
                source: source.id.clone(),
                folder: folder(state, &source.id),
                stages: stages.map(|stage| stage.id.clone()).collect(),
                place: source.journalled.as_ref()?.place,
                keep: Nanoseconds::try_from(keep).unwrap_or(Nanoseconds::MAX),
                size: options.size().0,
                journal: opened.remove(&source.id),
            })
        });
        let begins = std::iter::repeat_n(BTreeMap::new(), known).collect();
        Self {
            state: state.to_owned(),
            kept: kept.collect(),
            begins,
            pinned: None,
            most,
            failing_since: None,
            orders: None,
        }
    }

    /// For journals that are on other machines: nothing is done here, and what they are to be told is gathered.
    pub(crate) fn elsewhere(mut self) -> Self {
        self.orders = Some(BTreeMap::new());
        self
    }

    /// What other machines are to be told since the last call.
    pub(crate) fn orders(&mut self) -> BTreeMap<String, JournalOrder> {
        self.orders.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// With what is known of the last checkpoint, and of the one that is kept however many follow it.
    pub(crate) fn known(
        mut self,
        last: Option<&BTreeMap<String, EpochLog>>,
        pinned: Option<&BTreeMap<String, EpochLog>>,
    ) -> Self {
        if let (Some(last), Some(place)) = (last.map(|logs| self.begins(logs)), self.begins.back_mut()) {
            *place = last;
        }
        self.pinned = pinned.map(|logs| self.begins(logs));
        self
    }

    /// The last checkpoint is kept however many follow it.
    pub(crate) fn pin(&mut self) {
        if self.pinned.is_none() {
            self.pinned = Some(self.begins.back().cloned().unwrap_or_default());
        }
    }

    /// Whether what the pinned checkpoint needs takes more than half of a journal, so that a stream would come to wait for it; then
    /// it is given up.
    pub(crate) fn gives_up_pinned(&mut self, now: &BTreeMap<String, u64>) -> bool {
        let Some(pinned) = &self.pinned else { return false };
        let is_far = self.kept.iter().any(|kept| {
            let place = |begins: &BTreeMap<String, u64>| begins.get(&kept.source).copied().unwrap_or(0);
            place(now).saturating_sub(place(pinned)) > kept.size / 2
        });
        if is_far {
            self.pinned = None;
        }
        is_far
    }

    /// Where the sources are read again from a checkpoint with these logs.
    pub(crate) fn begins(&self, logs: &BTreeMap<String, EpochLog>) -> BTreeMap<String, u64> {
        let place = |kept: &Kept, stage: &String| {
            let (_, cut) = logs.get(stage)?.cuts.first_key_value()?;
            (kept.place)(&cut.position)
        };
        let of = |kept: &Kept| {
            let places = kept.stages.iter().map(|stage| place(kept, stage).unwrap_or(0));
            (kept.source.clone(), places.min().unwrap_or(0))
        };
        self.kept.iter().map(of).collect()
    }

    /// A checkpoint is written.
    pub(crate) fn written(&mut self, begins: BTreeMap<String, u64>, is_complete: bool) {
        self.failing_since = None;
        self.begins.push_back(begins);
        while self.begins.len() > self.most {
            self.begins.pop_front();
        }
        // By hand a run of this machine can be gone back with to an older checkpoint, and one of a cluster cannot.
        let is_last = self.begins.len() == 1 || self.orders.is_some();
        let nobody_goes_back = is_complete && is_last && self.pinned.is_none();
        for kept in &self.kept {
            let begins = self.begins.iter().chain(&self.pinned);
            let places = begins.map(|begins| begins.get(&kept.source).copied().unwrap_or(0));
            let before = places.min().unwrap_or(0);
            if let Some(orders) = &mut self.orders {
                let order =
                    if nobody_goes_back { JournalOrder::Forget } else { JournalOrder::Release(before) };
                orders.insert(kept.source.clone(), order);
                continue;
            }
            let released = match &kept.journal {
                Some(journal) => {
                    journal.hold(false);
                    journal.release(before)
                }
                None => Journal::release_in(&kept.folder, before),
            };
            if let Err(error) = released {
                tracing::warn!("source `{}`: {error}", kept.source);
            }
        }
        if nobody_goes_back
            && self.orders.is_none()
            && !self.kept.is_empty()
            && let Err(error) = forget(&self.state)
        {
            tracing::warn!("{error}");
        }
    }

    /// A checkpoint could not be written.
    pub(crate) fn failed(&mut self, now: Nanoseconds) {
        let since = *self.failing_since.get_or_insert(now);
        for kept in self.kept.iter().filter(|kept| now - since >= kept.keep) {
            if let Some(journal) = &kept.journal {
                journal.hold(true);
            } else if let Some(orders) = &mut self.orders {
                orders.insert(kept.source.clone(), JournalOrder::Hold);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::journal::LEAST_SIZE;

    /// A journal with three segments of lines that are read from a pipe.
    fn journal(state: &Path) -> Arc<Journal> {
        let journal = Journal::open(&folder(state, "s"), 1, 4 * LEAST_SIZE).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        journal.attach(|| Ok(std::os::fd::OwnedFd::from(reader).into())).unwrap();
        let sender = std::thread::spawn(move || {
            std::io::Write::write_all(&mut writer, &vec![b'\n'; 3 * SEGMENT as usize]).unwrap();
        });
        let (mut cursor, mut buffer) = (tidemill_operators::journal::Cursor::at(0), vec![0; 1 << 20]);
        while cursor.read(&journal, &mut buffer).unwrap() > 0 {}
        sender.join().unwrap();
        journal
    }

    fn keeper(state: &Path, journal: Option<&Arc<Journal>>, most: usize, known: usize) -> Keeper {
        let kept = Kept {
            source: "s".into(),
            folder: folder(state, "s"),
            stages: vec!["s".into()],
            place: |position| position.0.parse().ok(),
            keep: 1000,
            size: 4 * LEAST_SIZE,
            journal: journal.cloned(),
        };
        let begins = std::iter::repeat_n(BTreeMap::new(), known).collect();
        Keeper {
            state: state.to_owned(),
            kept: vec![kept],
            begins,
            pinned: None,
            most,
            failing_since: None,
            orders: None,
        }
    }

    fn logs(place: u64) -> BTreeMap<String, EpochLog> {
        let cut = tidemill_engine::Cut {
            position: SourcePosition(place.to_string()),
            skip: 3,
            sequence: 0,
            newest: 0,
            watermark: 0,
        };
        let mut log = EpochLog::default();
        log.cuts.insert(5, cut);
        BTreeMap::from([("s".to_owned(), log)])
    }

    #[test]
    fn what_no_kept_checkpoint_needs_is_released() {
        for (is_here, most, known) in [(true, 1, 0), (false, 1, 1), (true, 2, 0), (true, 2, 2)] {
            let state = tempfile::tempdir().unwrap();
            let journal = journal(state.path());
            let mut keeper = keeper(state.path(), is_here.then_some(&journal), most, known);
            let first = || Journal::look(&folder(state.path(), "s")).unwrap().unwrap().first;
            let begins = keeper.begins(&logs(2 * SEGMENT));
            assert_eq!(begins["s"], 2 * SEGMENT);
            keeper.written(keeper.begins(&BTreeMap::new()), false);
            for _ in 0..most {
                assert_eq!(first(), 0, "an older checkpoint needs it");
                keeper.written(begins.clone(), false);
            }
            assert!(first() > 0);
            keeper.written(begins.clone(), true);
            assert_eq!(state.path().join(JOURNALS).exists(), most > 1);
        }
    }

    #[test]
    fn journals_of_other_machines_are_told_of_and_left_alone() {
        let state = tempfile::tempdir().unwrap();
        let mut keeper = keeper(state.path(), None, 2, 0).elsewhere();
        let told = |order| BTreeMap::from([("s".to_owned(), order)]);
        keeper.written(BTreeMap::from([("s".to_owned(), 7)]), false);
        keeper.written(BTreeMap::from([("s".to_owned(), 9)]), false);
        assert_eq!(keeper.orders(), told(JournalOrder::Release(7)), "the older one is kept too");
        assert!(keeper.orders().is_empty());
        keeper.failed(0);
        assert!(keeper.orders().is_empty(), "not for long yet");
        keeper.failed(2000);
        assert_eq!(keeper.orders(), told(JournalOrder::Hold));
        keeper.written(BTreeMap::from([("s".to_owned(), 11)]), false);
        assert_eq!(keeper.orders(), told(JournalOrder::Release(9)));
        keeper.written(BTreeMap::from([("s".to_owned(), 12)]), true);
        assert_eq!(keeper.orders(), told(JournalOrder::Forget));
        assert!(!state.path().join(JOURNALS).exists());
    }

    #[test]
    fn what_a_pinned_checkpoint_needs_is_kept_until_the_stream_would_wait_for_it() {
        let state = tempfile::tempdir().unwrap();
        let journal = journal(state.path());
        let mut keeper = keeper(state.path(), Some(&journal), 1, 0);
        let first = || Journal::look(&folder(state.path(), "s")).unwrap().unwrap().first;
        keeper.written(keeper.begins(&logs(0)), false);
        keeper.pin();
        for is_complete in [false, true] {
            let begins = keeper.begins(&logs(2 * SEGMENT));
            assert!(!keeper.gives_up_pinned(&begins));
            keeper.written(begins, is_complete);
            assert_eq!(first(), 0, "whoever goes back reads it again");
        }
        let begins = keeper.begins(&logs(2 * LEAST_SIZE + 1));
        assert!(keeper.gives_up_pinned(&begins) && !keeper.gives_up_pinned(&begins));
        keeper.written(keeper.begins(&logs(2 * SEGMENT)), false);
        assert!(first() > 0);
    }

    #[test]
    fn streams_are_held_when_no_checkpoint_comes_for_too_long() {
        let state = tempfile::tempdir().unwrap();
        let journal = journal(state.path());
        let mut keeper = keeper(state.path(), Some(&journal), 1, 0);
        let cursor = tidemill_operators::journal::Cursor::at(journal.extent().end);
        for (now, is_held) in [(5000, false), (5999, false), (6000, true)] {
            keeper.failed(now);
            assert_eq!(keeper.kept[0].journal.as_ref().unwrap().is_held(), is_held, "at {now}");
        }
        keeper.written(BTreeMap::new(), false);
        assert!(!journal.is_held());
        keeper.failed(7000);
        assert!(!journal.is_held(), "it counts anew");
        assert!(cursor.is_ready(&journal), "the end is known");
    }
}
