//! The program in Python that started this one: it feeds sources, takes the rows of sinks, and this program ends with it.
use crate::failure::{Failure, Kind};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tidemill_engine::Program;
use tidemill_python::Attached;

/// Time for an orderly end once the other program is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the other program has attached to.
#[derive(Debug)]
pub struct Caller {
    attached: Attached,
}

impl Caller {
    /// Attaches to the other program, which says in JSON what it wants.
    ///
    /// # Errors
    /// It names no socket.
    pub fn attach(text: &str) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(Kind::Usage, format!("`--caller` is for the package in Python: {error}"))
        };
        let attached: Attached = serde_json::from_str(text).map_err(|error| wrong(&error))?;
        let life = tidemill_python::attach(&attached).map_err(|error| wrong(&error))?;
        std::thread::Builder::new()
            .name("caller".to_owned())
            .spawn(move || end_with(&life))
            .map_err(|error| wrong(&error))?;
        Ok(Self { attached })
    }

    /// Checks that it attached to sources and sinks of the workflow.
    ///
    /// # Errors
    /// The first one that is not there.
    pub fn check(&self, program: &Program) -> Result<(), Failure> {
        let sources: Vec<&str> = program.sources.keys().map(String::as_str).collect();
        let sinks: Vec<&str> = program.sinks.keys().map(String::as_str).collect();
        let inputs = self.attached.inputs.iter().map(|id| ("source", id, &sources));
        let outputs = self.attached.outputs.iter().flatten().map(|id| ("sink", id, &sinks));
        let unknown = inputs.chain(outputs).find(|(_, id, known)| !known.contains(&id.as_str()));
        let Some((role, id, known)) = unknown else { return Ok(()) };
        let help = tidemill_spec::diagnostic::suggestion(
            id,
            known.iter().copied(),
            &format!("{role}s of the workflow"),
        );
        Err(Failure::new(Kind::Usage, format!("the workflow has no {role} `{id}`")).with_help(help))
    }
}

/// Ends this program in order when the socket is closed, and at once if that takes long.
fn end_with(life: &OwnedFd) {
    while matches!(rustix::io::read(life, &mut [0; 8]), Err(Errno::INTR) | Ok(1..)) {}
    for _ in 0..2 {
        let _ = kill_process(getpid(), Signal::TERM);
        std::thread::sleep(PATIENCE);
    }
}
