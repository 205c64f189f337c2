//! On which backends models can run here.
use super::hosts::instant;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidemill_app::machine;

/// How long it is until a backend is looked for again that was not there.
const PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Backends {
    /// Where the search for libraries starts: the processes of runs, whose files lie beneath, look here, too.
    folder: PathBuf,
    /// All that there are, each with whether it can be used here.
    found: Vec<(&'static str, bool)>,
    looked: Instant,
}

impl Backends {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), found: machine::backends(folder), looked: instant() }
    }

    /// Names of those that can be used. What somebody installs meanwhile counts without a new start of the agent.
    pub(super) fn look(&mut self) -> Vec<String> {
        self.look_after(PAUSE)
    }

    fn look_after(&mut self, pause: Duration) -> Vec<String> {
        let lacks_one = self.found.iter().any(|(_, is_usable)| !is_usable);
        if lacks_one && self.looked.elapsed() >= pause {
            *self = Self::new(&self.folder);
        }
        let usable = self.found.iter().filter(|(_, is_usable)| *is_usable);
        usable.map(|(name, _)| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_was_not_there_is_looked_for_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut backends = Backends::new(folder.path());
        let there = backends.look();
        assert!(there.iter().any(|name| name == "rten"), "{there:?}");
        // As it was before somebody installed them.
        backends.found.iter_mut().for_each(|(_, is_usable)| *is_usable = false);
        assert_eq!(backends.look(), Vec::<String>::new(), "it is not yet time");
        assert_eq!(backends.look_after(Duration::ZERO), there);
    }
}
