//! Threads that listen to the processes of sessions and groups until they end.
use super::{Inner, State, folders, processes};
use crate::child::{FromChild, Lines};
use std::io;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

/// How long a process that was killed keeps its turn, if it does not end.
const REAPING: Duration = Duration::from_secs(5);

/// Subject of a thread that watches until it ends: a session, or a group.
pub(super) struct Watched {
    pub(super) session: u64,
    pub(super) lines: Lines,
    /// Its process; none: that of its group.
    pub(super) child: Option<Child>,
    pub(super) folder: Option<PathBuf>,
}

impl Inner {
    /// Watches a session or a group on a thread of its own. Without one, it ends at once.
    pub(super) fn follow(self: &Arc<Self>, state: &mut State, mut watched: Watched) -> io::Result<()> {
        let (inner, (to, comes)) = (Arc::clone(self), channel());
        let watcher = Builder::new().name("tm-device-session".into());
        let watcher = watcher.spawn(move || comes.into_iter().for_each(|watched| inner.watch(watched)));
        state.watchers.retain(|watcher| !watcher.is_finished());
        match watcher {
            Ok(watcher) => {
                state.watchers.push(watcher);
                to.send(watched).map_err(io::Error::other)
            }
            Err(error) => {
                let _ = watched.child.as_mut().map(processes::end);
                state.controls.remove(&watched.session);
                state.ledger.gone(watched.session, self.now());
                self.after(state);
                Err(error)
            }
        }
    }

    /// Listens to the process of a session or a group until it ends.
    fn watch(&self, mut watched: Watched) {
        let session = watched.session;
        let name = self.state().ledger.name_of(session);
        loop {
            match watched.lines.receive() {
                Ok(Some(FromChild::Closed { problem })) => {
                    if let Some(problem) = problem {
                        tracing::warn!("{name}: {problem}");
                    }
                    break;
                }
                Ok(Some(message)) => {
                    let mut state = self.state();
                    state.ledger.hear(session, message, self.now());
                    self.after(&mut state);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("{name}: its process says what cannot be read: {error}");
                    break;
                }
            }
        }
        if let Some(child) = &mut watched.child {
            match self.end(session, child) {
                Ok(Some(status)) => tracing::debug!("{name}: its process has ended: {status}"),
                // The daemon ends before it.
                Ok(None) => return,
                Err(error) => tracing::error!("{name}: its process cannot be ended: {error}"),
            }
        }
        let process = watched.child.as_ref().map(Child::id);
        folders::clean(watched.folder.as_deref(), &folders::of_models(&self.options.cache), process);
        let mut state = self.state();
        state.controls.remove(&session);
        state.ledger.gone(session, self.now());
        self.after(&mut state);
    }

    /// Ends the process of a session or a group. None: it does not end, and the daemon is over.
    fn end(&self, session: u64, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        // It may have ended by itself, and keeps its status then.
        let _ = child.kill();
        let mut looks = 0;
        loop {
            if let Some(status) = processes::ended_within(child, REAPING)? {
                return Ok(Some(status));
            }
            let mut state = self.state();
            if state.is_over {
                return Ok(None);
            }
            looks += 1;
            if looks == 1 {
                let name = state.ledger.name_of(session);
                let process = child.id();
                tracing::error!(
                    "{name}: its process {process} was killed and does not end; others have its turn"
                );
                state.ledger.is_stuck(session, self.now());
                self.after(&mut state);
            }
        }
    }
}
