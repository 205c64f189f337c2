//! Children that end with this program, also if it is killed. They are started on one thread that lives as long as the program: the system ends a child with the *thread* that started
//! it, and slots and executors come and go.
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

/// A process to start, and where the child goes.
type Request = (Command, Sender<io::Result<Child>>);

static SPAWNER: LazyLock<Option<Sender<Request>>> = LazyLock::new(|| {
    let (requests, taken) = channel::<Request>();
    let thread = std::thread::Builder::new().name("tm-children".to_owned()).spawn(move || {
        for (mut command, answer) in taken {
            // Who asked may be gone; then its child ends by the closed socket.
            let _ = answer.send(command.spawn());
        }
    });
    thread.ok().map(|_| requests)
});

/// Starts a process that inherits these files under their numbers, and that the system ends with this program, also if that
/// is killed.
///
/// # Errors
/// Those of starting it.
pub fn start(mut command: Command, inherited: Vec<OwnedFd>) -> io::Result<Child> {
    prepare(&mut command, inherited);
    let gone = || io::Error::other("no thread starts processes");
    let (answer, child) = channel();
    SPAWNER.as_ref().ok_or_else(gone)?.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

#[expect(unsafe_code, reason = "code between fork and exec")]
fn prepare(command: &mut Command, inherited: Vec<OwnedFd>) {
    let parent = getpid();
    let belong = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        for file in &inherited {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::Error::from(Errno::SRCH)),
        }
    };
    // SAFETY: the closure only makes system calls and allocates nothing, so it may run after `fork`.
    unsafe { command.pre_exec(belong) };
}
