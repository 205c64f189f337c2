//! Which containers are there: looked for on a thread of its own, since an engine may take its time.
use crate::terminal::Terminal;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tidemill_app::listener::Listener;
use tidemill_elastic::cgroup::{Group, Hierarchy};
use tidemill_elastic::docker::{DockerError, Engine};

/// How often containers are looked for.
const LOOK: Duration = Duration::from_secs(2);
/// Looks until those that did not fit are given again.
const AGAIN: u64 = 5;

pub(super) type Groups = Vec<(String, Box<dyn Group>)>;

/// What is found from now on.
pub(super) struct Found {
    pub(super) groups: Receiver<Groups>,
    /// Takes the names of those that did not fit.
    pub(super) refused: Sender<String>,
}

/// Containers that run and were not there before.
pub(super) struct Finder {
    engine: Engine,
    hierarchy: Hierarchy,
    label: String,
    terminal: Terminal,
    /// By the id of a container, its first process, and by what name it was given: one that the engine starts again keeps its id and has a new
    /// control group.
    known: BTreeMap<String, (u32, String)>,
}

impl Finder {
    pub(super) fn new(engine: Engine, hierarchy: Hierarchy, label: &str, terminal: Terminal) -> Self {
        Self { engine, hierarchy, label: label.to_owned(), terminal, known: BTreeMap::new() }
    }

    /// Those that are new since the last time. One that ends while it is looked at is left out. Where the engine does not answer any more,
    /// those that were found until then are given, and the others the next time.
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
                // What was found is known from now on, and would not be found again.
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
                    // A container that is made again has the same name; its id is new.
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

    /// The next look gives it again, as long as it runs.
    fn forget(&mut self, name: &str) {
        self.known.retain(|_, (_, known)| known.as_str() != name);
    }

    /// From now on, on a thread. What is sent back did not fit: it is given again after a while, when others may use less.
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

    /// With an engine that gives so many answers and is gone then.
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
                // Whoever has the last answer finds nobody.
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

    /// One that did not fit is new again, the others are not.
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
        let told = finder(folder.path(), &[LISTED]).look().map(|found| found.len()).unwrap_err();
        assert!(matches!(told, DockerError::Silent { .. }), "{told}");
    }
}
