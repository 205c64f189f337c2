//! The process between an agent and a task of a job: it starts the command, and makes sure that the command ends.
//!
//! The command ends when it wants to, when the agent asks for it, when the agent is gone, and when the lease of the worker ends: the last two
//! also if the agent is killed, or stands still. Processes that the command started end with it, even those in sessions of their own: this
//! process adopts them. An agent that is started again waits for the lock of this process before it counts the task as ended.
use crate::clock::boot_nanoseconds;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, set_child_subreaper, waitid,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tidemill_spec::job::StopSignal;

/// Bytes of a line from the agent.
const LONGEST: u64 = 8 << 20;
/// Longest wait without a look at the clock: the clock of the machine continues while the machine is suspended, that of a wait does not.
const LOOK: Duration = Duration::from_millis(200);
/// Help for a command that is no program of the worker.
const NO_PROGRAM: &str =
    "; write a program that the worker has, or list it under `files` and write `./PROGRAM`";
/// Bytes on the disk for the end of a task.
const ROOM: usize = 4096;
/// Characters of the reason of an end: at six bytes each they fit.
const MOST_WORDS: usize = 600;
/// Rounds of ending what a command left.
const ROUNDS: u32 = 1_000;

/// Task of the process, as the first line of its standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessTask {
    /// Program and arguments.
    pub command: Vec<String>,
    /// More variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// The folder that it starts in.
    pub folder: PathBuf,
    /// The signal that asks it for a checkpoint and its end.
    pub signal: StopSignal,
    /// Time that it then has, milliseconds.
    pub checkpoint_within_milliseconds: u64,
    /// The file that is locked while anything of the task runs.
    pub lock: PathBuf,
    /// The file that says how it ended.
    pub end: PathBuf,
    /// End of the lease, by the clock of the machine since its start, nanoseconds.
    pub lease_until: u64,
}

/// A later line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The lease ends later, at this time.
    Lease(u64),
    /// The command is asked to end, and has this many milliseconds.
    Stop(u64),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Its exit code; none: a signal ended it, or it did not start.
    pub code: Option<i32>,
    /// Reason in words, if it is no success.
    pub why: String,
    /// It was asked to end before.
    pub was_asked: bool,
    /// It could not be started.
    pub is_not_started: bool,
}

impl ProcessEnd {
    /// Reads it; `None` if the process was killed before it could write it.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Takes the room on the disk that it will need: how a task ended must be known on a full disk, too.
    pub(crate) fn reserve(path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&[b' '; ROOM])
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut end = self.clone();
        end.why = end.why.chars().take(MOST_WORDS).collect();
        // In place, where room was taken. The spaces after it are no part of it.
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.write_all(&serde_json::to_vec(&end)?)
    }
}

fn signal_of(signal: StopSignal) -> Signal {
    match signal {
        StopSignal::Term => Signal::TERM,
        StopSignal::Int => Signal::INT,
        StopSignal::Hup => Signal::HUP,
        StopSignal::Usr1 => Signal::USR1,
        StopSignal::Usr2 => Signal::USR2,
    }
}

enum Happened {
    Said(Order),
    /// The agent is gone.
    Alone,
    /// The command has ended, and is not reaped.
    Ended,
}

/// Runs a task whose description and orders come as lines.
///
/// # Errors
/// The task is not readable, its lock is held, or the system refuses.
pub fn serve(mut input: impl BufRead + Send + 'static) -> io::Result<()> {
    let mut line = String::new();
    (&mut input).take(LONGEST).read_line(&mut line)?;
    let task: ProcessTask = serde_json::from_str(&line)?;
    let lock = File::create(&task.lock)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    set_child_subreaper(Some(getpid()))?;
    let end = match start(&task) {
        Ok(child) => {
            let (sender, happened) = channel();
            let ended = sender.clone();
            let pid = Pid::from_child(&child);
            std::thread::Builder::new()
                .name("tm-orders".into())
                .spawn(move || take_orders(input, &sender))?;
            std::thread::Builder::new().name("tm-wait".into()).spawn(move || {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == rustix::io::Errno::INTR) {
                }
                let _ = ended.send(Happened::Ended); // the other end lives longer
            })?;
            supervise(&task, child, pid, &happened)?
        }
        Err(error) => {
            let program = task.command.first().map_or("", String::as_str);
            // Another start would not find it either.
            let is_final = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
                || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
            let help = if is_final { NO_PROGRAM } else { "" };
            let why = format!("cannot start `{program}`: {error}{help}");
            ProcessEnd { code: None, why, was_asked: false, is_not_started: !is_final }
        }
    };
    end_children();
    let failed = |error: io::Error| {
        let text = format!("cannot write how the task ended to {}: {error}", task.end.display());
        io::Error::new(error.kind(), text)
    };
    end.write(&task.end).map_err(failed)
}

fn start(task: &ProcessTask) -> io::Result<std::process::Child> {
    let [program, arguments @ ..] = task.command.as_slice() else {
        return Err(io::Error::other("there is no command"));
    };
    // A program with `/` is a file of the job.
    let program = if program.contains('/') { task.folder.join(program) } else { PathBuf::from(program) };
    let mut command = Command::new(program);
    command.args(arguments).envs(&task.environment).current_dir(&task.folder);
    command.stdin(Stdio::null()).process_group(0);
    tidemill_machine::children::start(command, Vec::new())
}

fn take_orders(mut input: impl BufRead, to: &Sender<Happened>) {
    loop {
        let mut line = String::new();
        let order = match (&mut input).take(LONGEST).read_line(&mut line) {
            Ok(0) | Err(_) => Happened::Alone,
            Ok(_) => match serde_json::from_str(&line) {
                Ok(order) => Happened::Said(order),
                Err(_) => continue, // of a newer agent
            },
        };
        let is_last = matches!(order, Happened::Alone);
        if to.send(order).is_err() || is_last {
            return;
        }
    }
}

/// Waits until the command has ended, and ends it where it must.
fn supervise(
    task: &ProcessTask,
    mut child: std::process::Child,
    pid: Pid,
    happened: &Receiver<Happened>,
) -> io::Result<ProcessEnd> {
    let mut lease = task.lease_until;
    // When it is killed.
    let mut deadline: Option<u64> = None;
    loop {
        let now = boot_nanoseconds();
        if deadline.is_some_and(|deadline| now >= deadline) {
            let _ = kill_process_group(pid, Signal::KILL); // it may just have ended
        }
        if deadline.is_none() && now >= lease {
            deadline = Some(ask(task, pid, task.checkpoint_within_milliseconds));
        }
        match happened.recv_timeout(LOOK) {
            Ok(Happened::Said(Order::Lease(until))) => lease = lease.max(until),
            Ok(Happened::Said(Order::Stop(within))) => {
                let by = match deadline {
                    None => ask(task, pid, within),
                    Some(before) => before.min(now.saturating_add(within.saturating_mul(1_000_000))),
                };
                deadline = Some(by);
            }
            Ok(Happened::Alone) | Err(RecvTimeoutError::Disconnected) => {
                let _ = kill_process_group(pid, Signal::KILL);
                deadline = Some(0);
            }
            Ok(Happened::Ended) => {
                // Its number is not used again before it is reaped.
                let _ = kill_process_group(pid, Signal::KILL);
                let status = child.wait()?;
                let why = match (status.code(), status.signal()) {
                    (Some(0), _) => String::new(),
                    (Some(code), _) => format!("its exit code is {code}"),
                    (None, Some(signal)) => format!("signal {signal} ended it"),
                    (None, None) => "it ended".to_owned(),
                };
                let was_asked = deadline.is_some();
                return Ok(ProcessEnd { code: status.code(), why, was_asked, is_not_started: false });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Asks the command to end; when it is killed otherwise.
fn ask(task: &ProcessTask, pid: Pid, within_milliseconds: u64) -> u64 {
    let signal = if within_milliseconds == 0 { Signal::KILL } else { signal_of(task.signal) };
    let _ = kill_process_group(pid, signal); // it may just have ended
    boot_nanoseconds().saturating_add(within_milliseconds.saturating_mul(1_000_000))
}

/// Ends what the command left behind: its orphans are children of this process.
fn end_children() {
    for _ in 0..ROUNDS {
        for pid in children() {
            let _ = kill_process(pid, Signal::KILL);
        }
        match waitid(WaitId::All, WaitIdOptions::EXITED) {
            Err(error) if error != rustix::io::Errno::INTR => return, // there are none
            _ => {}
        }
    }
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>());
    pids.filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_fits_into_the_room_that_was_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("end.json");
        ProcessEnd::reserve(&path).unwrap();
        assert_eq!(ProcessEnd::read(&path), None, "it has not ended");
        let why = "\u{1}".repeat(5_000);
        let end = ProcessEnd { code: Some(3), why, was_asked: true, is_not_started: false };
        end.write(&path).unwrap();
        let found = ProcessEnd::read(&path).unwrap();
        assert_eq!((found.code, found.was_asked, found.why.len()), (Some(3), true, MOST_WORDS));
        assert_eq!(fs::metadata(&path).unwrap().len(), ROOM as u64);
    }
}
