//! Facts in the folder of a single controller: the document, rewritten from time to time, and a log of changes since, each synced before it
//! counts.
//!
//! `cluster.json` is the document as of a change. `cluster.log` has a line for each later change: its checksum (crc32c, hexadecimal), and
//! JSON. The cost of a change thus does not grow with the cluster. After a power failure the last line may be incomplete; it never counted.
use super::keeper::{Changed, KINDS, Keeper};
use super::{Document, FactsError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FILE: &str = "cluster.json";
const NEXT: &str = "cluster.json.next";
const LOG: &str = "cluster.log";
/// Version of the document.
const VERSION: u32 = 2;
/// Version with a single file, replaced with every change.
const WITHOUT_LOG: u32 = 1;
/// Least size of the log before the document is rewritten.
const LEAST: u64 = 1 << 20;

/// A line of the log.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    change: u64,
    #[serde(borrow)]
    parts: Vec<Part<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Part<'a> {
    kind: &'a str,
    name: String,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// See the module.
pub(super) struct InFolder {
    folder: PathBuf,
    log: File,
    /// Valid bytes of the log.
    length: u64,
    /// Bytes of the document.
    written: u64,
    /// Number of the last change.
    change: u64,
}

fn system(path: &Path) -> impl Fn(io::Error) -> FactsError + '_ {
    move |source| FactsError::System { path: path.to_owned(), source }
}

impl InFolder {
    /// Opens or creates the files, and returns the document.
    pub(super) fn open(folder: &Path) -> Result<(Self, Document), FactsError> {
        let (path, of_log) = (folder.join(FILE), folder.join(LOG));
        let damaged = |path: &Path, reason: String| FactsError::Damaged { path: path.to_owned(), reason };
        let (mut document, mut written, mut is_old) =
            (Document { version: VERSION, ..Document::default() }, 0, false);
        match fs::read(&path) {
            Ok(bytes) => {
                written = bytes.len() as u64;
                let wrong = |error: serde_json::Error| damaged(&path, error.to_string());
                let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(wrong)?;
                let found = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or_default();
                is_old = found == u64::from(WITHOUT_LOG);
                if !is_old && found != u64::from(VERSION) {
                    let found = u32::try_from(found).unwrap_or(u32::MAX);
                    return Err(FactsError::Version { path, found, known: VERSION });
                }
                document = serde_json::from_value(value).map_err(wrong)?;
                document.version = VERSION;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(FactsError::System { path, source }),
        }
        // Both files contain the secrets of runs, which admit a peer to its run where there is no TLS.
        let log =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&of_log);
        let log = log.map_err(system(&of_log))?;
        let bytes = fs::read(&of_log).map_err(system(&of_log))?;
        let (length, change) = replay(&mut document, &bytes).map_err(|reason| damaged(&of_log, reason))?;
        let mut kept = Self { folder: folder.to_owned(), log, length, written, change };
        if length < bytes.len() as u64 {
            kept.log.set_len(length).map_err(system(&of_log))?;
        }
        // Makes the name of the log durable first, and lets older programs reject a document that they would read in part.
        if is_old || bytes.is_empty() {
            kept.write_whole(&document)?;
        }
        Ok((kept, document))
    }

    /// Writes the document, and empties the log.
    fn write_whole(&mut self, document: &Document) -> Result<(), FactsError> {
        let (path, next, of_log) = (self.folder.join(FILE), self.folder.join(NEXT), self.folder.join(LOG));
        let document = Document { change: self.change, ..document.clone() };
        let bytes = serde_json::to_vec_pretty(&document)
            .map_err(|error| FactsError::Damaged { path: path.clone(), reason: error.to_string() })?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&next).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&next, &path))
            .and_then(|()| File::open(&self.folder)?.sync_all())
            .map_err(system(&path))?;
        self.written = bytes.len() as u64;
        // Lines left in the log belong to changes that the document has.
        self.log.set_len(0).map_err(system(&of_log))?;
        self.length = 0;
        Ok(())
    }
}

impl Keeper for InFolder {
    fn keep(&mut self, changes: &[Changed], document: &Document) -> Result<(), FactsError> {
        let of_log = self.folder.join(LOG);
        let wrong = |error: serde_json::Error| FactsError::Damaged {
            path: of_log.clone(),
            reason: error.to_string(),
        };
        let parts = changes.iter().map(part).collect::<Result<_, _>>().map_err(wrong)?;
        let line = Line { change: self.change + 1, parts };
        let json = serde_json::to_string(&line).map_err(wrong)?;
        let text = format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()));
        let written = self.log.write_all_at(text.as_bytes(), self.length).and_then(|()| self.log.sync_data());
        if let Err(source) = written {
            // Part of it may be written: the next one overwrites it, and opening the log ignores it.
            let _ = self.log.set_len(self.length);
            return Err(FactsError::System { path: of_log, source });
        }
        self.length += text.len() as u64;
        self.change += 1;
        if self.length >= LEAST.max(self.written)
            && let Err(error) = self.write_whole(document)
        {
            // The change is stored; the next one tries again.
            tracing::warn!("{error}");
        }
        Ok(())
    }
}

/// A change in its form within a line.
fn part(changed: &Changed) -> Result<Part<'_>, serde_json::Error> {
    let value = changed.value.as_deref().map(serde_json::from_str::<&RawValue>).transpose()?;
    Ok(Part { kind: changed.kind, name: changed.name.clone(), value })
}

/// Applies the changes of a log. Returns the number of valid bytes and of the last change.
fn replay(document: &mut Document, log: &[u8]) -> Result<(u64, u64), String> {
    let (mut length, mut change) = (0, document.change);
    for (number, line) in (1..).zip(log.split_inclusive(|byte| *byte == b'\n')) {
        let Some(json) = checked(line) else {
            // Lines after it were written later, so it counted.
            let rest = &log[length as usize + line.len()..];
            if rest.split(|byte| *byte == b'\n').any(|line| checked(&[line, b"\n"].concat()).is_some()) {
                return Err(format!("line {number} differs from what was written"));
            }
            break;
        };
        let wrong = |reason: String| format!("line {number}: {reason}");
        let line_of_log: Line<'_> = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
        if line_of_log.change > change {
            if line_of_log.change != change + 1 {
                return Err(wrong(format!("change {} follows change {change}", line_of_log.change)));
            }
            for Part { kind, name, value } in line_of_log.parts {
                if !KINDS.contains(&kind) {
                    return Err(wrong(format!("`{kind}` is not a kind of fact")));
                }
                document.take(kind, &name, value.map(|value| value.get().as_bytes())).map_err(wrong)?;
            }
            change += 1;
        }
        length += line.len() as u64;
    }
    Ok((length, change))
}

/// Whether a log has a change.
pub(crate) fn has_change(log: &[u8]) -> bool {
    replay(&mut Document::default(), log).is_ok_and(|(length, _)| length > 0)
}

/// A line of a log, with its checksum.
pub(crate) fn line_of(json: &str) -> String {
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}

/// The JSON of a whole line whose checksum is right.
fn checked(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (checksum, json) = text.split_once(' ')?;
    (checksum == format!("{:08x}", crc32c::crc32c(json.as_bytes()))).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::super::{Facts, WorkerFacts};
    use super::*;

    fn join(facts: &Facts, name: &str) {
        facts.change(|document| document.workers.insert(name.into(), WorkerFacts::default())).unwrap();
    }

    fn names(facts: &Facts) -> Vec<String> {
        facts.look(|document| document.workers.keys().cloned().collect())
    }

    #[test]
    fn what_is_changed_is_there_for_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts::open(folder.path()).unwrap();
        join(&facts, "edge");
        join(&facts, "hub");
        facts.change(|document| document.workers.remove("edge")).unwrap();
        drop(facts);
        let facts = Facts::open(folder.path()).unwrap();
        assert_eq!(names(&facts), ["hub"]);
        join(&facts, "cloud");
        drop(facts);
        assert_eq!(names(&Facts::open(folder.path()).unwrap()), ["cloud", "hub"]);
        assert!(!folder.path().join(NEXT).exists());
    }

    #[test]
    fn what_others_wrote_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let tell = |text: &str| {
            fs::write(folder.path().join(FILE), text).unwrap();
            Facts::open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(tell("{").contains("is damaged"));
        assert!(tell(r#"{"version": 9}"#).contains("has version 9"));
    }

    #[test]
    fn a_document_without_a_log_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"version": 1, "runs": {}, "workers": {"edge": {"is_drained": true, "location": null, "tier": null}}, "events": [], "event_number": 7}"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        let facts = Facts::open(folder.path()).unwrap();
        assert!(facts.look(|document| document.workers["edge"].is_drained && document.event_number == 7));
        let now = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(now.contains("\"version\": 2"), "{now}");
    }

    /// Truncates the last line everywhere: earlier changes count, and the next change follows.
    #[test]
    fn a_line_that_was_being_written_never_counted() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts::open(folder.path()).unwrap();
        join(&facts, "edge");
        let before = fs::metadata(folder.path().join(LOG)).unwrap().len() as usize;
        join(&facts, "hub");
        drop(facts);
        let whole = fs::read(folder.path().join(LOG)).unwrap();
        for length in before..whole.len() {
            fs::write(folder.path().join(LOG), &whole[..length]).unwrap();
            let facts = Facts::open(folder.path()).unwrap();
            assert_eq!(names(&facts), ["edge"], "{length} bytes");
            join(&facts, "cloud");
            drop(facts);
            assert_eq!(names(&Facts::open(folder.path()).unwrap()), ["cloud", "edge"], "{length} bytes");
        }
        // Damage before a line that counted is an error.
        let mut damaged = whole.clone();
        damaged[before / 2] ^= 1;
        fs::write(folder.path().join(LOG), &damaged).unwrap();
        let error = Facts::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("line 1 differs from what was written"), "{error}");
    }

    #[test]
    fn the_log_stays_short_and_a_death_between_document_and_log_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts::open(folder.path()).unwrap();
        let long = WorkerFacts { location: Some("x".repeat(50_000)), ..WorkerFacts::default() };
        let mut before = Vec::new();
        for n in 0..60 {
            let log = fs::read(folder.path().join(LOG)).unwrap();
            facts.change(|document| document.workers.insert(format!("{:02}", n % 20), long.clone())).unwrap();
            if fs::metadata(folder.path().join(LOG)).unwrap().len() < log.len() as u64 {
                before = log;
            }
        }
        assert!(fs::metadata(folder.path().join(LOG)).unwrap().len() < 3 * LEAST && !before.is_empty());
        drop(facts);
        // The document was written, but the log was not emptied.
        let (now, log) =
            (names(&Facts::open(folder.path()).unwrap()), fs::read(folder.path().join(LOG)).unwrap());
        fs::write(folder.path().join(LOG), [before, log].concat()).unwrap();
        assert_eq!(names(&Facts::open(folder.path()).unwrap()), now);
    }
}
