//! Looks for changes of the table of a `lookup`, on a thread of its own.
use super::lookup_table::{Place, Stamp, Table, TableError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Result of the last looks.
#[derive(Debug)]
struct Found {
    table: Mutex<Arc<Table>>,
    is_outdated: AtomicBool,
}

/// A table that follows its file. The thread ends when it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    found: Arc<Found>,
    _end: Sender<()>,
}

impl Watch {
    /// Begins with a table that was read before; `operator` is the id in messages.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        operator: &str,
        place: Arc<Place>,
        (table, stamp): (Arc<Table>, Stamp),
        every: Duration,
    ) -> std::io::Result<Self> {
        let found = Arc::new(Found { table: Mutex::new(table), is_outdated: AtomicBool::new(false) });
        let (end, ended) = channel();
        let mut watcher = Watcher {
            operator: operator.to_owned(),
            place,
            found: Arc::clone(&found),
            used: Some(stamp),
            seen: None,
            told: None,
        };
        let work = move || watcher.run(&ended, every);
        std::thread::Builder::new().name("tm-lookup".into()).spawn(work)?;
        Ok(Self { found, _end: end })
    }

    /// The last table that was right.
    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.found.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the file has changed since and cannot be used as it is.
    pub(super) fn is_outdated(&self) -> bool {
        self.found.is_outdated.load(Ordering::Relaxed)
    }
}

struct Watcher {
    operator: String,
    place: Arc<Place>,
    found: Arc<Found>,
    /// Stamp of the file with the present table.
    used: Option<Stamp>,
    /// Stamp at the last look, if it was another one.
    seen: Option<Option<Stamp>>,
    /// The last message about a file that is not right.
    told: Option<String>,
}

impl Watcher {
    fn run(&mut self, ended: &Receiver<()>, every: Duration) {
        while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
    }

    /// Reads a file that has changed, once it is as it was at the last look: before it may still be written.
    fn look(&mut self) {
        let stamp = Stamp::of(&self.place.path);
        if stamp.is_some() && stamp == self.used {
            self.seen = None;
            self.settle();
        } else if self.seen.replace(stamp) == Some(stamp) {
            match self.place.read() {
                Ok((table, stamp)) => self.take(table, stamp),
                Err(TableError::Changed { .. }) => {}
                Err(error) => self.refuse(&error),
            }
        }
    }

    fn take(&mut self, table: Table, stamp: Stamp) {
        let rows = table.rows.num_rows();
        *self.found.table.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        (self.used, self.seen) = (Some(stamp), None);
        self.settle();
        tracing::info!("`{}`: `{}` has changed and has {rows} rows now", self.operator, self.place.written);
    }

    fn settle(&mut self) {
        self.told = None;
        self.found.is_outdated.store(false, Ordering::Relaxed);
    }

    /// Keeps the present table. A file that is not right is read at each look, since what is wrong need not be in it.
    fn refuse(&mut self, error: &TableError) {
        self.found.is_outdated.store(true, Ordering::Relaxed);
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            tracing::warn!(
                "`{}`: the table has changed and cannot be used, so the one before stays: {text}; {}",
                self.operator,
                error.help()
            );
            self.told = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::int64;
    use crate::sources::table::Form;
    use std::path::Path;
    use tidemill_spec::types::{Column, ColumnType};
    use tidemill_spec::units::Bytes;

    fn watcher(folder: &Path) -> Watcher {
        let place = Place {
            written: "t.csv".into(),
            path: folder.join("t.csv"),
            form: Form::Csv,
            columns: vec![Column::new("site", ColumnType::Text), Column::new("n", ColumnType::Int64)],
            keys: 1,
            most: Bytes(1 << 20),
        };
        let (table, stamp) = place.read().unwrap();
        let found =
            Arc::new(Found { table: Mutex::new(Arc::new(table)), is_outdated: AtomicBool::new(false) });
        let place = Arc::new(place);
        Watcher { operator: "op".into(), place, found, used: Some(stamp), seen: None, told: None }
    }

    /// The number in the only row, and whether it is outdated.
    fn found(watcher: &Watcher) -> (i64, bool) {
        let table = watcher.found.table.lock().unwrap();
        (int64(table.rows.column(1)).unwrap().value(0), watcher.found.is_outdated.load(Ordering::Relaxed))
    }

    #[test]
    fn a_change_counts_once_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let write = |content: &str| std::fs::write(folder.path().join("t.csv"), content).unwrap();
        write("site,n\na,1\n");
        let mut watcher = watcher(folder.path());
        watcher.look();
        assert_eq!(found(&watcher), (1, false));
        // In place and half written, in several steps: each look finds another file.
        for half in ["", "site,n\n", "site,n\na,2"] {
            write(half);
            watcher.look();
            assert_eq!(found(&watcher), (1, false), "{half}");
        }
        write("site,n\na,20\n");
        watcher.look();
        assert_eq!(found(&watcher), (1, false));
        watcher.look();
        assert_eq!(found(&watcher), (20, false));
        // By a rename.
        std::fs::write(folder.path().join("new"), "site,n\na,30\n").unwrap();
        std::fs::rename(folder.path().join("new"), folder.path().join("t.csv")).unwrap();
        watcher.look();
        watcher.look();
        assert_eq!(found(&watcher), (30, false));
    }

    #[test]
    fn a_table_that_is_not_right_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, "site,n\na,1\n").unwrap();
        let mut watcher = watcher(folder.path());
        for bad in [Some("site,n\na,x\n"), Some(""), Some("site,n\na,1\na,2\n"), None] {
            match bad {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            (0..3).for_each(|_| watcher.look());
            assert_eq!(found(&watcher), (1, true), "{bad:?}");
            assert!(watcher.told.is_some());
        }
        std::fs::write(&path, "site,n\na,2\n").unwrap();
        (0..2).for_each(|_| watcher.look());
        assert_eq!(found(&watcher), (2, false));
    }

    #[test]
    fn its_thread_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "site,n\na,1\n").unwrap();
        let Watcher { place, .. } = watcher(folder.path());
        let (table, stamp) = place.read().unwrap();
        let of_thread = Arc::downgrade(&place);
        let watch = Watch::start("op", place, (Arc::new(table), stamp), Duration::from_secs(3600)).unwrap();
        assert!(of_thread.strong_count() > 0);
        drop(watch);
        while of_thread.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
