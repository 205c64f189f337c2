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

pub(super) type Groups = Vec<(String, Box<dyn Group>)>;

/// Containers that run and were not there before.
pub(super) struct Finder {
    engine: Engine,
    hierarchy: Hierarchy,
    label: String,
    terminal: Terminal,
    /// By the id of a container, its first process: one that the engine starts again keeps its id and has a new control group.
    known: BTreeMap<String, u32>,
}

impl Finder {
    pub(super) fn new(engine: Engine, hierarchy: Hierarchy, label: &str, terminal: Terminal) -> Self {
        Self { engine, hierarchy, label: label.to_owned(), terminal, known: BTreeMap::new() }
    }

    /// Those that are new since the last time. One that ends while it is looked at is left out.
    ///
    /// # Errors
    /// The engine does not answer.
    pub(super) fn look(&mut self) -> Result<Groups, DockerError> {
        let listed = self.engine.labelled(&self.label)?;
        self.known.retain(|known, _| listed.iter().any(|(id, _)| id == known));
        let mut found = Groups::new();
        for (id, name) in listed {
            let Some(container) = self.engine.container(&id, &name)? else {
                self.known.remove(&id);
                continue;
            };
            if self.known.get(&id) == Some(&container.process) {
                continue;
            }
            let paths = self.hierarchy.paths_of(container.process);
            let opened = paths.and_then(|[cpu, accounting, memory]| {
                Ok(self.hierarchy.open([&cpu, &accounting, &memory])?)
            });
            match opened {
                Ok(group) => {
                    self.known.insert(id.clone(), container.process);
                    // A container that is made again has the same name; its id is new.
                    let short: String = id.chars().take(6).collect();
                    found.push((format!("{name} ({short})"), group));
                }
                Err(error) => self.terminal.warning(&format!("{name}: {error}")),
            }
        }
        Ok(found)
    }

    /// From now on, on a thread.
    pub(super) fn start(mut self) -> std::io::Result<Receiver<Groups>> {
        let (sender, found): (Sender<Groups>, _) = channel();
        std::thread::Builder::new().name("containers".into()).spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                let found = self.look().unwrap_or_else(|error| {
                    self.terminal.warning(&error.to_string());
                    Groups::new()
                });
                if !found.is_empty() && sender.send(found).is_err() {
                    return;
                }
            }
        })?;
        Ok(found)
    }
}
