//! Processes that serve sessions: one is started before it is needed.
use crate::child::{FromChild, Lines};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time in which a process begins: it may load a library.
pub(super) const STARTING: Duration = Duration::from_secs(30);

/// A process that has no session yet, or serves one.
pub(super) struct Process {
    pub(super) child: Child,
    pub(super) control: UnixStream,
    pub(super) lines: Lines,
    /// It has said that it can begin.
    pub(super) is_ready: bool,
}

impl Process {
    fn start(command: &[String]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (control, theirs) = UnixStream::pair()?;
        let errors: OwnedFd = io::stderr().as_fd().try_clone_to_owned()?;
        let child = Command::new(program)
            .args(arguments)
            // Code of back ends runs there: it is given no access token of a person.
            .env_remove("TIDEMILL_TOKEN")
            .stdin(OwnedFd::from(theirs))
            // What libraries print is no output of the daemon.
            .stdout(errors)
            .stderr(Stdio::inherit())
            .spawn()?;
        let lines = Lines::new(control.try_clone()?);
        Ok(Self { child, control, lines, is_ready: false })
    }

    /// Waits until it can begin.
    pub(super) fn wait_until_ready(&mut self) -> io::Result<()> {
        self.is_ready = is_ready(&self.control, &mut self.lines)?;
        if self.is_ready {
            return Ok(());
        }
        let status = self.child.wait()?;
        Err(io::Error::other(format!("it ended before it was ready: {status}")))
    }

    /// Ends it.
    pub(super) fn end(mut self) -> io::Result<ExitStatus> {
        end(&mut self.child)
    }
}

/// Waits until the other end of a control socket can begin; false: it has ended.
pub(super) fn is_ready(control: &UnixStream, lines: &mut Lines) -> io::Result<bool> {
    let limit = Timespec::try_from(STARTING).ok();
    let mut descriptors = [PollFd::new(control, PollFlags::IN)];
    if poll(&mut descriptors, limit.as_ref())? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "it is not ready"));
    }
    Ok(matches!(lines.receive()?, Some(FromChild::Ready)))
}

/// Waits for the end of a process, at most for some time. None: it has not ended.
pub(super) fn ended_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    // One that was waited for has no descriptor.
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return child.wait().map(Some);
    };
    let limit = Timespec::try_from(limit).ok();
    // A signal ends it early: the caller looks again.
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref());
    child.try_wait()
}

/// Ends a process that has ended or has nothing to do any more.
pub(super) fn end(child: &mut Child) -> io::Result<ExitStatus> {
    // It may have ended by itself, and keeps its status then.
    let _ = child.kill();
    child.wait()
}

/// Keeps one process ready.
pub(super) struct Pool {
    command: Vec<String>,
    ready: Mutex<Ready>,
}

#[derive(Default)]
struct Ready {
    process: Option<Process>,
    is_over: bool,
}

impl Pool {
    pub(super) fn new(command: Vec<String>) -> Self {
        Self { command, ready: Mutex::default() }
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process that is kept ready, if there is none.
    pub(super) fn fill(&self) -> io::Result<()> {
        if self.ready().process.is_some() {
            return Ok(());
        }
        let process = Process::start(&self.command)?;
        let mut ready = self.ready();
        let superfluous = if ready.is_over || ready.process.is_some() {
            Some(process)
        } else {
            ready.process = Some(process);
            None
        };
        drop(ready);
        superfluous.map_or(Ok(()), |process| process.end().map(drop))
    }

    /// Waits until the process that is kept ready can begin.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.ready().process.as_mut() {
            Some(process) => process.wait_until_ready(),
            None => Ok(()),
        }
    }

    /// A process for a session.
    pub(super) fn take(&self) -> io::Result<Process> {
        let ready = self.ready().process.take();
        if let Some(mut process) = ready
            && process.child.try_wait()?.is_none()
        {
            return Ok(process);
        }
        Process::start(&self.command)
    }

    /// Ends the process that is kept ready, and keeps none any more.
    pub(super) fn close(&self) {
        let mut ready = self.ready();
        ready.is_over = true;
        if let Some(process) = ready.process.take() {
            // It has no session.
            let _ = process.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_end_is_not_waited_for_without_an_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert_eq!(ended_within(&mut child, Duration::from_millis(1)).unwrap(), None);
        child.kill().unwrap();
        while ended_within(&mut child, Duration::from_secs(30)).unwrap().is_none() {}
    }
}
