//! Journals of the streams that a worker's process of a cluster reads, on the worker's own disk; the coordinator sends the positions that
//! its checkpoints need.
//!
//! A journal is opened when its source is first read, not when the process starts: the process of the plan before may still have it, while
//! this one loads its models.
use crate::failure::{Failure, Kind};
use crate::journals::{JournalRequest, wanted};
use crate::preparation::Prepared;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_engine::{FollowJournals, JournalOrder};
use tidemill_operators::api::{MakeSource, OperatorError};
use tidemill_operators::journal::Journal;

/// Time limit for the end of the process before.
const WAITING: Duration = Duration::from_secs(60);
/// Interval of looks at it.
const LOOK: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct WorkerJournals(BTreeMap<String, Lazy>);

/// A journal that is opened when it is first wanted.
struct Lazy {
    wanted: JournalRequest,
    /// Locked while a process has the journal open.
    lock: PathBuf,
    opened: Mutex<Option<Opened>>,
}

struct Opened {
    journal: Arc<Journal>,
    /// Held as long as this process lives.
    _lock: File,
}

impl WorkerJournals {
    /// Has the sources of this process that need a journal read through one in this folder; returns their receiver of orders. None: there
    /// is none.
    ///
    /// # Errors
    /// A journal would be too small for the plan.
    pub(crate) fn read_through(
        folder: &Path,
        prepared: &mut Prepared,
        is_here: impl Fn(&str) -> bool,
    ) -> Result<Option<FollowJournals>, Failure> {
        let wanted = wanted(folder, prepared, is_here)?;
        let lazy = wanted.into_iter().map(|wanted| {
            let lock = folder.join(format!("{}.lock", wanted.source));
            (wanted.source.clone(), Lazy { wanted, lock, opened: Mutex::default() })
        });
        let journals = Arc::new(Self(lazy.collect()));
        for id in journals.0.keys() {
            let (of_source, id) = (Arc::clone(&journals), id.clone());
            let Some(source) = prepared.program.sources.get_mut(&id) else { continue };
            let make: MakeSource = Arc::new(move || {
                let Some(lazy) = of_source.0.get(&id) else {
                    return Err(OperatorError::new(format!("source `{id}` has no journal")));
                };
                let journal = lazy.open().map_err(|error| OperatorError::new(error.to_string()))?;
                (lazy.wanted.reading.make)(journal)()
            });
            source.make = make;
        }
        if journals.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(move |orders| journals.follow(orders))))
    }

    fn follow(&self, orders: &BTreeMap<String, JournalOrder>) {
        for (id, order) in orders {
            // Most are of sources that other workers read.
            let Some(lazy) = self.0.get(id) else { continue };
            if let Err(error) = lazy.follow(*order) {
                tracing::warn!("source `{id}`: {error}");
            }
        }
    }
}

impl Lazy {
    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<Arc<Journal>, Failure> {
        let mut opened = self.opened();
        if let Some(opened) = &*opened {
            return Ok(Arc::clone(&opened.journal));
        }
        let unavailable = |error: std::io::Error| {
            Failure::new(Kind::Unavailable, format!("{}: {error}", self.lock.display()))
        };
        std::fs::create_dir_all(self.lock.parent().unwrap_or(Path::new("."))).map_err(unavailable)?;
        let file = File::create(&self.lock).map_err(unavailable)?;
        let mut looks = WAITING.as_millis() / LOOK.as_millis();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if looks > 0 => {
                    looks -= 1;
                    std::thread::sleep(LOOK);
                }
                Err(Errno::WOULDBLOCK) => {
                    let text = format!(
                        "another process still reads source `{}` through its journal",
                        self.wanted.source
                    );
                    return Err(Failure::new(Kind::Unavailable, text));
                }
                Err(error) => return Err(unavailable(error.into())),
            }
        }
        let journal = self.wanted.open()?;
        let extent = journal.extent();
        tracing::info!(
            "source `{}` reads its journal, which has bytes {} to {} of the stream",
            self.wanted.source,
            extent.first,
            extent.end
        );
        *opened = Some(Opened { journal: Arc::clone(&journal), _lock: file });
        Ok(journal)
    }

    /// An unopened journal has nothing to release: the order comes again with the next checkpoint.
    fn follow(&self, order: JournalOrder) -> Result<(), String> {
        let opened = self.opened();
        let Some(Opened { journal, .. }) = &*opened else { return Ok(()) };
        match order {
            JournalOrder::Release(before) => {
                journal.hold(false);
                journal.release(before).map_err(|error| error.to_string())
            }
            JournalOrder::Hold => {
                if !journal.is_held() {
                    tracing::warn!(
                        "no checkpoint of the run for longer than `keep` of its journal: source `{}` stops reading",
                        self.wanted.source
                    );
                }
                journal.hold(true);
                Ok(())
            }
            JournalOrder::Forget => match std::fs::remove_dir_all(&self.wanted.folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!(
                    "cannot delete its journal `{}`, which is removed with the run: {error}",
                    self.wanted.folder.display()
                )),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preparation::{PlanFrom, prepare_here};
    use std::io::Write;

    const WORKFLOW: &str = "version: 1
name: lines
sources:
  - {id: events, kind: jsonl, journal: {}, options: {path: events.pipe, stream: until_end, columns: {n: int64}}}
sinks:
  - {id: out, kind: jsonl, input: events, options: {path: out.jsonl}}
";

    fn prepared(folder: &Path) -> Prepared {
        let workflow = folder.join("workflow.yaml");
        std::fs::write(&workflow, WORKFLOW).unwrap();
        prepare_here(&workflow, PlanFrom::Settings(&[]), &crate::listener::Silent).unwrap()
    }

    #[test]
    fn a_journal_is_opened_late_and_follows_what_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        let mut prepared = prepared(folder.path());
        let follow = WorkerJournals::read_through(&kept, &mut prepared, |_| true).unwrap().unwrap();
        assert!(!kept.exists(), "somebody else may have it still");
        let order =
            |order| BTreeMap::from([("events".to_owned(), order), ("others".to_owned(), JournalOrder::Hold)]);
        follow(&order(JournalOrder::Hold));
        let pipe = folder.path().join("events.pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let sender = std::thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
            pipe.write_all(b"{\"n\": 1}\n{\"n\": 2}\n").unwrap();
        });
        let make = Arc::clone(&prepared.program.sources["events"].make);
        let mut reader = make().unwrap();
        let read = reader.read(10, 1000).unwrap();
        sender.join().unwrap();
        assert!(
            matches!(&read, tidemill_operators::api::SourceRead::Rows { payload, .. } if payload.num_rows() >= 1),
            "{read:?}"
        );
        assert!(kept.join("journals/events").exists());
        follow(&order(JournalOrder::Hold));
        follow(&order(JournalOrder::Release(10)));
        follow(&order(JournalOrder::Forget));
        assert!(!kept.join("journals/events").exists());
    }

    #[test]
    fn sources_of_other_workers_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut prepared = prepared(folder.path());
        assert!(WorkerJournals::read_through(folder.path(), &mut prepared, |_| false).unwrap().is_none());
    }
}
