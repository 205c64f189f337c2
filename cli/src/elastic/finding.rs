//! Finds containers on a separate thread, since an engine may be slow.
use crate::terminal::Terminal;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tidemill_app::listener::Listener;
use tidemill_elastic::cgroup::{Group, Hierarchy};
use tidemill_elastic::docker::{DockerError, Engine};

/// Interval of searches.
const LOOK: Duration = Duration::from_secs(2);
/// Searches until rejected ones are returned again.
const AGAIN: u64 = 5;

pub(super) type Groups = Vec<(String, Box<dyn Group>)>;

/// Channel to the finder.
pub(super) struct Found {
    pub(super) groups: Receiver<Groups>,
    /// Receives the names of rejected ones.
    pub(super) refused: Sender<String>,
}

/// Finds new running containers.
pub(super) struct Finder {
    engine: Engine,
    hierarchy: Hierarchy,
    label: String,
    terminal: Terminal,
    /// By the id of a container, its first process, and its reported name: one that the engine restarts keeps its id and
    /// has a new control group.
    known: BTreeMap<String, (u32, String)>,
}

impl Finder {
    pub(super) fn new(engine: Engine, hierarchy: Hierarchy, label: &str, terminal: Terminal) -> Self {
        Self { engine, hierarchy, label: label.to_owned(), terminal, known: BTreeMap::new() }
    }

    /// Returns those that are new since the last call, except any that ends meanwhile. If the engine stops answering, it
    /// returns those found until then, and the others at the next call.
    ///
    /// # Errors
    /// The engine does not answer, and none was found.
    pub(super) fn look(&mut self) -> Result<Groups, DockerError> {
        let listed = self.engine.labelled(&self.label)?;
        self.known.retain(|known, _| listed.iter().any(|(id, _)| id == known));
        let mut found = Groups::new();
        for (id, name) in listed {
            let container = match self.engine.container(&id, &name) {
                Ok(Some(container)) => container,
                Ok(None) => {
                    self.known.remove(&id);
                    continue;
                }
                Err(error @ DockerError::Silent { .. }) if found.is_empty() => return Err(error),
                // Found ones are known from now on, and would not be found again.
                Err(error) => {
                    self.terminal.warning(&format!("{name}: {error}"));
                    match error {
                        DockerError::Silent { .. } => break,
                        _ => continue,
                    }
                }
            };
            if self.known.get(&id).is_some_and(|(process, _)| *process == container.process) {
                continue;
            }
            let paths = self.hierarchy.paths_of(container.process);
            let opened = paths.and_then(|[cpu, accounting, memory]| {
                Ok(self.hierarchy.open([&cpu, &accounting, &memory])?)
            });
            match opened {
                Ok(group) => {
                    // A recreated container keeps its name; its id is new.
                    let short: String = id.chars().take(6).collect();
                    let name = format!("{name} ({short})");
                    self.known.insert(id, (container.process, name.clone()));
                    found.push((name, group));
                }
                Err(error) => self.terminal.warning(&format!("{name}: {error}")),
            }
        }
        Ok(found)
    }

    /// Makes the next search return it again, if it still runs.
    fn forget(&mut self, name: &str) {
        self.known.retain(|_, (_, known)| known.as_str() != name);
    }

    /// Starts the thread. Rejected ones sent back are returned again after a while, when others may use less.
    pub(super) fn start(mut self) -> std::io::Result<Found> {
        let (sender, groups): (Sender<Groups>, _) = channel();
        let (refused, names): (Sender<String>, Receiver<String>) = channel();
        std::thread::Builder::new().name("containers".into()).spawn(move || {
            for round in 1_u64.. {
                std::thread::sleep(LOOK);
                if round.is_multiple_of(AGAIN) {
                    names.try_iter().for_each(|name| self.forget(&name));
                }
                let found = self.look().unwrap_or_else(|error| {
                    self.terminal.warning(&error.to_string());
                    Groups::new()
                });
                if !found.is_empty() && sender.send(found).is_err() {
                    return;
                }
            }
        })?;
        Ok(Found { groups, refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ColorChoice;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    const LISTED: &str = "HTTP/1.0 200 OK\r\n\r\n[{\"Id\":\"aaaaaa\"},{\"Id\":\"bbbbbb\"}]";

    /// A finder with an engine that gives these answers and then vanishes.
    fn finder(folder: &Path, answers: &'static [&'static str]) -> Finder {
        std::fs::write(folder.join("cgroup.controllers"), "cpu memory\n").unwrap();
        let socket = folder.join("docker.sock");
        let mut listener = Some(UnixListener::bind(&socket).unwrap());
        std::thread::spawn(move || {
            for (at, answer) in answers.iter().enumerate() {
                let (mut stream, _) = listener.as_ref().unwrap().accept().unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    asked.extend(byte);
                }
                // After the last answer the engine is gone.
                listener = listener.filter(|_| at + 1 < answers.len());
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let terminal = Terminal::new(ColorChoice::Never, true);
        Finder::new(Engine::at(&socket), Hierarchy::find(folder).unwrap(), "app=shop", terminal)
    }

    #[test]
    fn a_container_of_which_the_engine_says_nothing_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let answers = &[LISTED, "HTTP/1.0 500 No\r\n\r\nbroken", "HTTP/1.0 404 No\r\n\r\ngone"];
        assert!(finder(folder.path(), answers).look().unwrap().is_empty());
    }

    /// A rejected one is new again, the others are not.
    #[test]
    fn what_did_not_fit_is_looked_for_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut finder = finder(folder.path(), &[LISTED]);
        for (id, name) in [("aaaaaa", "shop (aaaaaa)"), ("bbbbbb", "shop (bbbbbb)")] {
            finder.known.insert(id.into(), (7, name.into()));
        }
        finder.forget("shop (aaaaaa)");
        assert_eq!(finder.known.keys().collect::<Vec<_>>(), ["bbbbbb"]);
    }

    #[test]
    fn an_engine_that_goes_away_meanwhile_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let message = finder(folder.path(), &[LISTED]).look().map(|found| found.len()).unwrap_err();
        assert!(matches!(message, DockerError::Silent { .. }), "{message}");
    }
}
