//! Finds the backends on which models can run here.
//!
//! The search loads libraries and may take seconds, so it runs on its own thread; heartbeats report its last result.
use crate::clock::instant;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_app::machine;

/// Pause before the next search for a missing backend.
const PAUSE: Duration = Duration::from_secs(60);

/// All that there are, each with whether it can be used here.
type Found = Vec<(&'static str, bool)>;

pub(super) struct Backends {
    /// Folder where the search for libraries starts: the processes of runs, whose files lie beneath, look here, too.
    folder: PathBuf,
    /// None: the first search is running.
    found: Arc<Mutex<Option<Found>>>,
    /// The last search, which may still run.
    look: Option<JoinHandle<()>>,
    /// When that began.
    looked: Instant,
}

impl Backends {
    pub(super) fn new(folder: &Path) -> Self {
        let mut backends =
            Self { folder: folder.to_owned(), found: Arc::default(), look: None, looked: instant() };
        backends.begin();
        backends
    }

    /// Waits until the look is over, but not longer than this.
    pub(super) fn wait(&self, most: Duration) {
        let begun = instant();
        while self.is_looking() && begun.elapsed() < most {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the names of the usable backends; none: not known yet. Backends that are installed later count without a restart of the
    /// agent.
    pub(super) fn look(&mut self) -> Option<Vec<String>> {
        self.look_after(PAUSE)
    }

    fn look_after(&mut self, pause: Duration) -> Option<Vec<String>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lacks_one = found.as_ref().is_none_or(|found| found.iter().any(|(_, is_usable)| !is_usable));
        if lacks_one && !self.is_looking() && self.looked.elapsed() >= pause {
            self.begin();
        }
        let usable = found?.into_iter().filter(|(_, is_usable)| *is_usable);
        Some(usable.map(|(name, _)| name.to_owned()).collect())
    }

    fn is_looking(&self) -> bool {
        self.look.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    fn begin(&mut self) {
        self.looked = instant();
        let (folder, found) = (self.folder.clone(), Arc::clone(&self.found));
        let work = move || {
            let all = machine::backends(&folder);
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        };
        match std::thread::Builder::new().name("tm-backends".into()).spawn(work) {
            Ok(thread) => self.look = Some(thread),
            Err(error) => tracing::error!("cannot start the thread that looks for backends: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_was_not_there_is_looked_for_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut backends = Backends::new(folder.path());
        let end_look = |backends: &mut Backends| backends.look.take().unwrap().join().unwrap();
        end_look(&mut backends);
        let there = backends.look();
        assert!(there.iter().flatten().any(|name| name == "rten"), "{there:?}");
        // The state before they were installed.
        let without = |(name, _): &(&'static str, bool)| (*name, false);
        let none: Found = backends.found.lock().unwrap().iter().flatten().map(without).collect();
        *backends.found.lock().unwrap() = Some(none);
        assert_eq!(backends.look(), Some(Vec::new()));
        assert!(backends.look.is_none(), "it is not yet time");
        assert_eq!(backends.look_after(Duration::ZERO), Some(Vec::new()), "nobody waits for the look");
        end_look(&mut backends);
        assert_eq!(backends.look(), there);
        // Not known, and none too soon again.
        *backends.found.lock().unwrap() = None;
        assert_eq!(backends.look(), None);
        assert!(backends.look.is_none());
    }
}
