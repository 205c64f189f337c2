//! Checks whether the sources' inputs are unchanged since a checkpoint.
//!
//! A run continues at a position in a file. If the file was replaced, rows are lost or doubled, and the results do not show
//! it. So a checkpoint has of each file its length and digests of its first and last 64 KiB, and of each folder a digest of
//! the names and lengths of its files. The middle of a file is not read again, which would cost more than the checkpoint. A
//! checkpoint reads the time of the last write, and 128 KiB if that has changed.
//!
//! A file that only grew at its end still has all its positions; so has a folder whose new files are last by name.
use crate::failure::{Failure, Kind};
use crate::figures::{bytes, grouped};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use tidemill_engine::{EpochLog, Program};
use tidemill_operators::api::SourceInput;
use tidemill_state::{Digest, InputState};

/// Difference of an input from an earlier state.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// No observable difference.
    None,
    /// It was written, but is equal as far as checked.
    Touched,
    /// Data was added at its end.
    Grown(String),
    /// It was replaced; described in words.
    Other(String),
}

/// An input of a source, and its last state.
struct WatchedInput {
    input: SourceInput,
    state: InputState,
    /// Whether later additions are not read by this process.
    is_settled: bool,
    is_told: bool,
}

/// The inputs of a run, checked at each of its checkpoints.
pub(crate) struct Inputs {
    watched: BTreeMap<String, WatchedInput>,
    /// Stages by source.
    stages: BTreeMap<String, Vec<String>>,
}

/// Messages about inputs with which a run can continue.
pub(crate) type Notes = Vec<String>;

impl Inputs {
    /// Reads the present state of the inputs; those in `before` must allow to continue.
    ///
    /// # Errors
    /// One was replaced, or cannot be read any more.
    pub(crate) fn check(
        program: &Program,
        before: &BTreeMap<String, InputState>,
        ended: impl Fn(&str) -> bool,
        advice: &str,
    ) -> Result<(Self, Notes), Failure> {
        let (mut watched, mut notes) = (BTreeMap::new(), Vec::new());
        for (id, source) in &program.sources {
            let Some(input) = &source.input else { continue };
            let refused = |text: String| {
                Failure::new(Kind::Data, format!("source `{id}` cannot continue: {text}"))
                    .with_help(format!("restore it, or start from the beginning: {advice}"))
            };
            let Some(before) = before.get(id) else {
                // An unreadable input fails where it is read.
                if let Ok(state) = look(input) {
                    watched.insert(id.clone(), WatchedInput::new(input, state));
                }
                continue;
            };
            let path = shown(before.path());
            let (state, change) = compare(input, before)
                .map_err(|error| refused(format!("cannot read {path} any more: {error}")))?;
            match change {
                Change::None => {}
                Change::Touched => notes.push(format!(
                    "{path} was written since the checkpoint: its length and its first and last 64 KiB are \
                     unchanged, and the rest is not checked"
                )),
                Change::Grown(by) if !may_grow(input) => {
                    return Err(refused(format!(
                        "{path} has grown by {by}, but the source reads it repeatedly"
                    )));
                }
                Change::Grown(by) if ended(id) => {
                    return Err(refused(format!(
                        "it had reached the end of {path}, which has grown by {by} since then, and would not read the new part"
                    )));
                }
                Change::Grown(by) => {
                    notes.push(format!(
                        "{path} has grown by {by} since the checkpoint: source `{id}` reads on to its end"
                    ));
                }
                Change::Other(text) => return Err(refused(format!("{path} {text}"))),
            }
            watched.insert(id.clone(), WatchedInput::new(input, state));
        }
        let stages = watched.keys().map(|id| {
            let of_source = program.plan.stages.iter().filter(|stage| stage.operator == *id);
            (id.clone(), of_source.map(|stage| stage.id.clone()).collect())
        });
        Ok((Self { stages: stages.collect(), watched }, notes))
    }

    /// Describes the differences from the inputs of a complete run.
    pub(crate) fn changes(program: &Program, before: &BTreeMap<String, InputState>) -> Notes {
        let mut notes = Vec::new();
        for (id, before) in before {
            let Some(input) = program.sources.get(id).and_then(|source| source.input.as_ref()) else {
                continue;
            };
            let path = shown(before.path());
            match compare(input, before) {
                Ok((_, Change::None | Change::Touched)) => {}
                Ok((_, Change::Grown(by))) => {
                    notes.push(format!(
                        "{path} has grown by {by} since the run reached its end: the new part is not read"
                    ));
                }
                Ok((_, Change::Other(text))) => notes.push(format!("{path} {text}: the change is not read")),
                Err(error) => notes.push(format!("cannot read {path} any more: {error}")),
            }
        }
        notes
    }

    /// Returns the present state of the inputs, for a checkpoint with these logs. One that was replaced while it is read
    /// keeps its old state, so that a continued run notices it.
    pub(crate) fn look(&mut self, logs: &BTreeMap<String, EpochLog>) -> BTreeMap<String, InputState> {
        for (id, watched) in &mut self.watched {
            let has_ended = |stage: &String| logs.get(stage).is_some_and(|log| log.end.is_some());
            let has_ended = self.stages.get(id).is_some_and(|stages| stages.iter().all(has_ended));
            let change = watched.look(has_ended);
            // Nothing is read after the end that was found.
            watched.is_settled |= has_ended;
            if let Some(text) = change.filter(|_| !watched.is_told) {
                watched.is_told = true;
                tracing::warn!(
                    "source `{id}`: {} {text} during the run: a run cannot continue from this state",
                    shown(watched.state.path())
                );
            }
        }
        self.watched.iter().map(|(id, watched)| (id.clone(), watched.state.clone())).collect()
    }
}

impl WatchedInput {
    fn new(input: &SourceInput, state: InputState) -> Self {
        // A folder is listed once, when its reader is made.
        let is_settled = matches!(input, SourceInput::Folder { .. });
        Self { input: input.clone(), state, is_settled, is_told: false }
    }

    /// Updates the state of an input that is still read; returns the difference if it was replaced.
    ///
    /// Growth since the last look does not count as read once the end was found: it may be on either side of the end, and a
    /// message is better than a loss.
    fn look(&mut self, has_ended: bool) -> Option<String> {
        if self.is_settled || self.is_unwritten() {
            return None;
        }
        match compare(&self.input, &self.state) {
            Ok((_, Change::Other(text))) => Some(text),
            Ok((_, Change::Grown(_))) if has_ended => None,
            Ok((state, _)) => {
                self.state = state;
                None
            }
            // It fails where it is read, if that is still to come.
            Err(_) => None,
        }
    }

    /// Whether a file has the length and the time of the last check.
    fn is_unwritten(&self) -> bool {
        let (SourceInput::File { path, .. }, InputState::File { bytes, modified, .. }) =
            (&self.input, &self.state)
        else {
            return false;
        };
        std::fs::metadata(path).is_ok_and(|found| found.len() == *bytes && written(&found) == *modified)
    }
}

fn may_grow(input: &SourceInput) -> bool {
    let (SourceInput::File { may_grow, .. } | SourceInput::Folder { may_grow, .. }) = input;
    *may_grow
}

/// The form of a path in messages.
fn shown(path: &str) -> String {
    match path {
        "/dev/stdin" => "the file on standard input".to_owned(),
        path => format!("`{path}`"),
    }
}

fn look(input: &SourceInput) -> io::Result<InputState> {
    match input {
        SourceInput::File { path, .. } => {
            let file = File::open(path)?;
            let found = file.metadata()?;
            file_state(path, &file, &found)
        }
        SourceInput::Folder { path, names, .. } => Ok(Listing::of(path, names()?)?.state(path, usize::MAX)),
    }
}

/// Compares the present state with an earlier one.
fn compare(input: &SourceInput, before: &InputState) -> io::Result<(InputState, Change)> {
    match (input, before) {
        (SourceInput::File { path, .. }, InputState::File { bytes, first, last, modified, .. }) => {
            let file = File::open(path)?;
            let found = file.metadata()?;
            let state = file_state(path, &file, &found)?;
            let change = if found.len() < *bytes {
                Change::Other(format!("had {} and has {} now", exact(*bytes), exact(found.len())))
            } else if ends(&file, *bytes)? != (*first, *last) {
                let same = if found.len() == *bytes { "as many bytes as" } else { "more bytes than" };
                Change::Other(format!(
                    "has {same} at the checkpoint, but with other content: it was replaced or edited"
                ))
            } else if found.len() > *bytes {
                Change::Grown(self::bytes(found.len() - bytes))
            } else if written(&found) != *modified {
                Change::Touched
            } else {
                Change::None
            };
            Ok((state, change))
        }
        (
            SourceInput::Folder { path, names, .. },
            InputState::Folder { files, bytes, listing, modified, .. },
        ) => {
            let found = Listing::of(path, names()?)?;
            let known = usize::try_from(*files).unwrap_or(usize::MAX);
            let state = found.state(path, usize::MAX);
            let InputState::Folder { listing: begins_with, modified: newest, .. } = found.state(path, known)
            else {
                return Ok((state, Change::None));
            };
            let (now, now_bytes) = (found.files.len(), found.bytes());
            let change = if begins_with != *listing || now < known {
                Change::Other(format!(
                    "had {} with {} and has {} with {} now, with other names or lengths",
                    counted(*files),
                    exact(*bytes),
                    counted(now as u64),
                    exact(now_bytes)
                ))
            } else if now > known {
                Change::Grown(counted((now - known) as u64))
            } else if newest != *modified {
                Change::Touched
            } else {
                Change::None
            };
            Ok((state, change))
        }
        _ => Ok((look(input)?, Change::Other("has changed its kind".to_owned()))),
    }
}

fn counted(files: u64) -> String {
    match files {
        1 => "1 file".to_owned(),
        many => format!("{} files", grouped(many)),
    }
}

fn exact(bytes: u64) -> String {
    format!("{} bytes", grouped(bytes))
}

/// Time of a file's last write, nanoseconds since 1970.
fn written(file: &Metadata) -> i64 {
    file.mtime().saturating_mul(1_000_000_000).saturating_add(file.mtime_nsec())
}

fn file_state(path: &Path, file: &File, found: &Metadata) -> io::Result<InputState> {
    let (first, last) = ends(file, found.len())?;
    Ok(InputState::File {
        path: path.display().to_string(),
        bytes: found.len(),
        first,
        last,
        modified: written(found),
    })
}

/// Digests of the start and the end of the first `length` bytes of a file.
fn ends(file: &File, length: u64) -> io::Result<(Digest, Digest)> {
    let window = length.min(InputState::WINDOW);
    let mut bytes = vec![0; usize::try_from(window).unwrap_or(0)];
    let mut of = |at: u64| {
        file.read_exact_at(&mut bytes, at)?;
        Ok::<_, io::Error>(Digest::of(&bytes))
    };
    Ok((of(0)?, of(length - window)?))
}

/// The files of a folder.
struct Listing {
    /// Name, length, time of the last write.
    files: Vec<(OsString, u64, i64)>,
}

impl Listing {
    fn of(path: &Path, names: Vec<OsString>) -> io::Result<Self> {
        let files = names.into_iter().map(|name| {
            let found = std::fs::metadata(path.join(&name))?;
            Ok((name, found.len(), written(&found)))
        });
        Ok(Self { files: files.collect::<io::Result<_>>()? })
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// State of the first files, at most `most`.
    fn state(&self, path: &Path, most: usize) -> InputState {
        let files = &self.files[..self.files.len().min(most)];
        let mut text = Vec::new();
        for (name, bytes, _) in files {
            text.extend_from_slice(name.as_bytes());
            text.push(0);
            text.extend_from_slice(&bytes.to_le_bytes());
        }
        InputState::Folder {
            path: path.display().to_string(),
            files: files.len() as u64,
            bytes: files.iter().map(|(_, bytes, _)| bytes).sum(),
            listing: Digest::of(&text),
            modified: files.iter().map(|(.., written)| *written).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    fn file(path: PathBuf) -> SourceInput {
        SourceInput::File { path, may_grow: true }
    }

    /// Writes it with a distinct time, so that two writes within a tick of the clock are distinguished.
    fn write(path: &Path, bytes: &[u8], second: u64) {
        std::fs::write(path, bytes).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    }

    fn change(input: &SourceInput, before: &InputState) -> Change {
        compare(input, before).unwrap().1
    }

    #[test]
    fn a_file_is_the_same_grown_or_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        for length in [0usize, 10, 65_536, 65_537, 500_000] {
            let content: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            write(&path, &content, 1);
            let (input, before) = (file(path.clone()), look(&file(path.clone())).unwrap());
            assert_eq!(change(&input, &before), Change::None);
            write(&path, &content, 2);
            assert_eq!(change(&input, &before), Change::Touched, "{length}");
            write(&path, &[content.as_slice(), b"more"].concat(), 3);
            assert!(matches!(change(&input, &before), Change::Grown(by) if by == "4 B"), "{length}");
            if length == 0 {
                continue;
            }
            write(&path, &content[..length - 1], 4);
            assert!(matches!(change(&input, &before), Change::Other(text) if text.contains("bytes and has")));
            for at in [0, length - 1] {
                let mut edited = content.clone();
                edited[at] ^= 1;
                write(&path, &edited, 5);
                let found = change(&input, &before);
                assert!(
                    matches!(&found, Change::Other(text) if text.contains("replaced or edited")),
                    "{found:?}"
                );
                // It grew, but was replaced.
                edited.extend([7; 100]);
                write(&path, &edited, 6);
                assert!(matches!(change(&input, &before), Change::Other(_)), "{length} at {at}");
            }
            // A line at the front moves everything after it.
            write(&path, &[b"x\n", content.as_slice()].concat(), 7);
            assert!(matches!(change(&input, &before), Change::Other(_)));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(look(&file(path)).is_err());
    }

    #[test]
    fn a_folder_may_get_more_files_behind_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        for name in ["a.png", "b.png"] {
            write(&path.join(name), b"123", 1);
        }
        let listed = path.clone();
        let names = move || {
            let names = std::fs::read_dir(&listed)?.map(|entry| Ok(entry?.file_name()));
            let mut names = names.collect::<io::Result<Vec<_>>>()?;
            names.sort();
            Ok(names)
        };
        let input = SourceInput::Folder { path: path.clone(), names: Arc::new(names), may_grow: true };
        let before = look(&input).unwrap();
        assert_eq!(change(&input, &before), Change::None);
        write(&path.join("c.png"), b"1", 1);
        assert_eq!(change(&input, &before), Change::Grown("1 file".to_owned()));
        write(&path.join("b.png"), b"1", 1);
        assert!(matches!(change(&input, &before), Change::Other(_)), "another length");
        write(&path.join("b.png"), b"321", 2);
        std::fs::remove_file(path.join("c.png")).unwrap();
        assert_eq!(change(&input, &before), Change::Touched, "contents are not looked at");
        std::fs::rename(path.join("a.png"), path.join("aa.png")).unwrap();
        assert!(matches!(change(&input, &before), Change::Other(_)), "another name");
        std::fs::remove_file(path.join("aa.png")).unwrap();
        assert!(matches!(change(&input, &before), Change::Other(text) if text.contains("has 1 file with")));
    }

    /// The run still reads the file that was opened.
    #[test]
    fn a_file_that_is_replaced_while_it_is_read_stays_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        write(&path, b"one\ntwo\n", 1);
        let before = look(&file(path.clone())).unwrap();
        let watched = WatchedInput::new(&file(path.clone()), before.clone());
        let stages = BTreeMap::from([("s".to_owned(), vec!["s".to_owned()])]);
        let mut inputs = Inputs { watched: BTreeMap::from([("s".to_owned(), watched)]), stages };
        write(&path, b"one\ntwo\nthree\n", 2);
        let grown = inputs.look(&BTreeMap::new());
        assert_ne!(grown["s"], before);
        write(&path, b"1\n2\n", 3);
        assert_eq!(inputs.look(&BTreeMap::new()), grown);
        assert!(inputs.watched["s"].is_told);
        // Nothing is read after the end that was found.
        write(&path, b"one\ntwo\nthree\n", 4);
        let end = tidemill_engine::End { sequence: 3, epoch: 1, limit: false };
        let ended = BTreeMap::from([("s".to_owned(), EpochLog { end: Some(end), ..EpochLog::default() })]);
        let at_the_end = inputs.look(&ended);
        write(&path, b"one\ntwo\nthree\nfour\n", 5);
        assert_eq!(inputs.look(&ended), at_the_end);
    }

    /// It may be on either side of the end; a continued run reports it.
    #[test]
    fn what_a_file_grows_by_when_its_end_is_found_is_not_taken_for_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        write(&path, b"one\ntwo\n", 1);
        let before = look(&file(path.clone())).unwrap();
        let watched = WatchedInput::new(&file(path.clone()), before.clone());
        let stages = BTreeMap::from([("s".to_owned(), vec!["s".to_owned()])]);
        let mut inputs = Inputs { watched: BTreeMap::from([("s".to_owned(), watched)]), stages };
        write(&path, b"one\ntwo\nthree\n", 2);
        let end = tidemill_engine::End { sequence: 2, epoch: 1, limit: false };
        let ended = BTreeMap::from([("s".to_owned(), EpochLog { end: Some(end), ..EpochLog::default() })]);
        assert_eq!(inputs.look(&ended)["s"], before);
        assert!(matches!(change(&file(path), &before), Change::Grown(_)));
    }
}
