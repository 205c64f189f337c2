//! Journals of the sources that read streams, in the folder of the state.
mod keeping;

use crate::failure::{Failure, Kind};
use crate::preparation::Prepared;
use crate::state::place::StatePlace;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_engine::{EpochLog, Program};
use tidemill_operators::api::{BoundSource, JournalledReading, SourcePromise};
use tidemill_operators::journal::{Extent, Journal, JournalError, SEGMENT};
use tidemill_spec::units::Bytes;
use tidemill_state::{Digest, FORMER_JOURNALS, JOURNALS};

pub(crate) use keeping::{Keeper, Keeping};

/// Bytes of an epoch of a stream.
const EPOCH: u64 = 512 << 10;

/// Bytes that a journal needs: what the source may be ahead of a checkpoint, and what segments keep longer than it is needed.
fn needed(checkpoint_every: u64) -> u64 {
    checkpoint_every.saturating_mul(2).saturating_add(4).saturating_mul(EPOCH).saturating_add(4 * SEGMENT)
}

/// The folder of the journal of a source.
pub fn folder(state: &Path, source: &str) -> PathBuf {
    state.join(JOURNALS).join(source)
}

/// The sources that are read through a journal where the run keeps a state.
fn journalled(program: &Program) -> impl Iterator<Item = &BoundSource> {
    program.sources.values().filter(|source| source.promise() == SourcePromise::Journalled)
}

/// Has the sources that need a journal read through one; `is_here`: whether this process reads a source, and alone opens its journal.
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
pub(crate) struct JournalRequest {
    pub(crate) source: String,
    pub(crate) folder: PathBuf,
    pub(crate) reading: JournalledReading,
    /// Says what it is the journal of.
    owner: u64,
    size: u64,
}

impl JournalRequest {
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
) -> Result<Vec<JournalRequest>, Failure> {
    let mut found = Vec::new();
    let every = prepared.program.plan.checkpoint_every;
    let ids: Vec<String> = journalled(&prepared.program).map(|source| source.id.clone()).collect();
    for id in ids.into_iter().filter(|id| is_here(id)) {
        let written = prepared.workflow.sources.iter().find(|source| source.id.value == id);
        let Some(source) = prepared.program.sources.get(&id) else { continue };
        let (Some(options), Some(reading)) = (&source.journal, &source.journalled) else { continue };
        let size = options.size();
        let needed = Bytes(needed(every));
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
        found.push(JournalRequest { source: id, folder, reading, owner, size: size.0 });
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
                "source `{}` reads {stream} through a journal, which must be in a folder, but the state is in `{place}`",
                source.id
            );
            Err(Failure::new(Kind::Configuration, text).with_help(
                "keep the state in a folder (`--state state`), or write the stream to a file first and read that",
            ))
        }
        _ => Ok(()),
    }
}

/// The contents of a journal.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// All of it.
    pub extent: Extent,
    /// Place in the stream after its last whole line.
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

/// Returns the contents of the journals of a state, by source, also while a run has it.
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
        Failure::new(Kind::Unavailable, format!("cannot read `{}`: {error}", path.display()))
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
    delete(&state.join(JOURNALS))
}

/// Deletes all journals of a state that `remove` makes a new one: whatever a loss of power leaves, no journal is there without its manifest.
///
/// # Errors
/// They cannot be set aside or deleted, or what `remove` says; the journals are there then, if the manifest is.
pub(crate) fn forget_with(state: &Path, remove: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let (path, aside) = (state.join(JOURNALS), state.join(FORMER_JOURNALS));
    // A process was ended in the middle of this.
    delete(&aside)?;
    let failed = |error: std::io::Error| {
        let text = format!("cannot move the journals in `{}`: {error}", path.display());
        Failure::new(Kind::Unavailable, text)
    };
    match std::fs::rename(&path, &aside) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return remove(),
        renamed => renamed.map_err(failed)?,
    }
    let removed =
        File::open(state).and_then(|folder| folder.sync_all()).map_err(failed).and_then(|()| remove());
    if removed.is_err() {
        // The run may continue.
        if let Err(error) = std::fs::rename(&aside, &path) {
            tracing::warn!("the journals stay in `{}`: {error}", aside.display());
        }
        return removed;
    }
    delete(&aside)
}

fn delete(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let text = format!("cannot delete the journals in `{}`: {error}", path.display());
            Err(Failure::new(Kind::Unavailable, text).with_help("delete that folder by hand"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_go_with_the_manifest_or_stay_with_it() {
        let state = tempfile::tempdir().unwrap();
        let (path, aside) = (state.path().join(JOURNALS), state.path().join(FORMER_JOURNALS));
        std::fs::create_dir_all(path.join("s")).unwrap();
        std::fs::create_dir_all(aside.join("of a process that was ended")).unwrap();
        let failed = forget_with(state.path(), || {
            assert!(!path.exists() && aside.join("s").exists(), "no loss of power brings them back");
            Err(Failure::new(Kind::Unavailable, "the manifest stays"))
        });
        assert!(failed.is_err() && path.join("s").exists() && !aside.exists());
        forget_with(state.path(), || Ok(())).unwrap();
        assert!(!path.exists() && !aside.exists());
        forget_with(state.path(), || Ok(())).unwrap();
    }
}
