//! The parent's end of [`crate::worker`]: controls a measuring process.
use crate::error::ProfileError;
use crate::limits::Restraint;
use crate::worker::{Reply, Request};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// The signal of Ctrl-C.
const SIGINT: i32 = 2;

/// The command of a process that calls [`crate::worker::serve`].
#[derive(Debug, Clone)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// A measuring process; dropping it kills it and waits for its end.
pub struct Measuring {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    what: String,
}

impl Measuring {
    /// Starts the process, restrained from its first request on.
    ///
    /// # Errors
    /// When the process cannot be started or restrained.
    pub fn start(program: &Program, what: String, restraint: &Restraint) -> Result<Self, ProfileError> {
        let failed =
            |error: std::io::Error| ProfileError::Process { what: what.clone(), error: error.to_string() };
        let mut process = restraint
            .command(&program.path)
            .args(&program.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            let _ = process.kill();
            return Err(failed(std::io::Error::other("it has no pipes")));
        };
        let id = process.id();
        let measuring = Self { process, input, output: BufReader::new(output), what: what.clone() };
        if let Restraint::Group(group) = restraint {
            group.add(id).map_err(failed)?;
        }
        Ok(measuring)
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The process's error, or its early end: [`ProfileError::Interrupted`] if Ctrl-C ended it.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ProfileError> {
        let reply = self.exchange(request).map_err(|error| self.failed(error.to_string()))?;
        match reply {
            Some(Reply::Failed(error)) => Err(self.failed(error)),
            Some(reply) => Ok(reply),
            None => match self.process.wait() {
                // Ctrl-C in a terminal reaches this process too, perhaps before the parent has noticed it.
                Ok(status) if status.signal() == Some(SIGINT) => Err(ProfileError::Interrupted),
                Ok(status) => Err(self.failed(format!("it ended ({status})"))),
                Err(error) => Err(self.failed(format!("it ended ({error})"))),
            },
        }
    }

    fn exchange(&mut self, request: &Request) -> std::io::Result<Option<Reply>> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        if self.input.write_all(line.as_bytes()).and_then(|()| self.input.flush()).is_err() {
            return Ok(None);
        }
        let mut answer = String::new();
        match self.output.read_line(&mut answer)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_str(&answer)?)),
        }
    }

    fn failed(&self, error: String) -> ProfileError {
        ProfileError::Process { what: self.what.clone(), error }
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        // It has nothing to lose; a control group can be removed only after its end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
