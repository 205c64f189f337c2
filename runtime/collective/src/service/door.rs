//! The socket that programs and people of this host connect to.
use super::Event;
use super::locked;
use crate::peers::Key;
use crate::protocol::{Answer, MOST_NAME, MOST_RANKS, ToProgram, ToService, VERSION, is_name, socket_of};
use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tidemill_link::wake::Waker;
use tidemill_rpc::packets;

/// Time for the first packet of a program, and for a person to read an answer.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Characters of a part of an answer.
const PART: usize = 16 << 10;
/// Pause when the process has no descriptors for a program.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Programs of one user that have connected and said nothing yet.
const MOST_SILENT: usize = 256;

/// The socket, with the thread that accepts. It ends when this is dropped.
pub(super) struct Door {
    path: PathBuf,
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    pub(super) fn open(service: &Path, events: Sender<Event>) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = socket_of(service);
        // One of a service that is gone; that of the service itself is taken before.
        let _ = std::fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let door = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&door, &SocketAddrUnix::new(&path)?)?;
        // All users may connect: what each of them may do depends on who it is.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        listen(&door, 128)?;
        let stop = Arc::new(Waker::new()?);
        let stopped = Arc::clone(&stop);
        let accept = move || accept(&door, &stopped, &events);
        let thread = Builder::new().name("tm-group-door".into()).spawn(accept)?;
        Ok(Self { path, stop, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Programs that have said nothing yet, by their users.
type Silent = Arc<Mutex<BTreeMap<u32, usize>>>;

fn accept(door: &OwnedFd, stop: &Waker, events: &Sender<Event>) {
    let silent = Silent::default();
    loop {
        let mut waits = [PollFd::new(door, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let _ = poll(&mut waits, None);
        if !waits[1].revents().is_empty() {
            return;
        }
        match accept_with(door, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let Ok(of) = rustix::net::sockopt::socket_peercred(&socket) else {
                    refuse(&socket, "the system does not say which user this process is of".to_owned());
                    continue;
                };
                let user = of.uid.as_raw();
                if count(&silent, user, |silent| *silent += 1) > MOST_SILENT {
                    refuse(
                        &socket,
                        format!("{MOST_SILENT} programs of this user say nothing: try again later"),
                    );
                    count(&silent, user, |silent| *silent -= 1);
                    continue;
                }
                let (events, heard) = (events.clone(), Arc::clone(&silent));
                let greet = move || {
                    greet(socket, user, &events);
                    count(&heard, user, |silent| *silent -= 1);
                };
                // Without a thread the program is turned away.
                if Builder::new().name("tm-group-greet".into()).spawn(greet).is_err() {
                    count(&silent, user, |silent| *silent -= 1);
                }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // Out of descriptors or memory.
            Err(_) => drop(poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE))),
        }
    }
}

/// Changes how many programs of a user say nothing, and returns it.
fn count(silent: &Silent, user: u32, change: impl FnOnce(&mut usize)) -> usize {
    let mut all = locked(silent);
    let mine = all.entry(user).or_default();
    change(mine);
    let left = *mine;
    if left == 0 {
        all.remove(&user);
    }
    left
}

fn refuse(socket: &OwnedFd, reason: String) {
    let _ = packets::send(socket, &ToProgram::Refused { reason }, &[]);
}

/// Reads the first packet.
fn greet(socket: OwnedFd, user: u32, events: &Sender<Event>) {
    let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&PATIENCE));
    let Ok(Some((packet, _))) = packets::receive::<ToService>(&socket) else { return };
    let refuse = |reason: String| refuse(&socket, reason);
    match packet {
        ToService::Join { version, .. } | ToService::Ask { version, .. } if version != VERSION => {
            refuse(format!("the program speaks version {version}, this service version {VERSION}"));
        }
        ToService::Join { group, rank, size, deadline_ms, priority, .. } => {
            if !is_name(&group) {
                return refuse(format!(
                    "{group:?} is no name of a group: letters, digits, `-`, `_` and `.`, at most {MOST_NAME}"
                ));
            }
            if size == 0 || size > MOST_RANKS || rank >= size {
                return refuse(format!(
                    "rank {rank} of {size}: a group has 1 to {MOST_RANKS} ranks, the first is 0"
                ));
            }
            let (key, deadline) = (Key { user, name: group }, Duration::from_millis(deadline_ms));
            let _ = events.send(Event::Join { key, rank, size, priority, deadline, socket });
        }
        ToService::Ask { question, .. } => {
            let is_trusted = user == 0 || user == rustix::process::geteuid().as_raw();
            let user = (!is_trusted).then_some(user);
            let _ = events.send(Event::Ask { user, question, socket });
        }
        _ => refuse("the program has not joined a group".to_owned()),
    }
}

/// Answers a person, in parts: an answer may be longer than a packet.
pub(super) fn answer(socket: OwnedFd, answer: Answer) {
    let write = move || {
        let text = serde_json::to_string(&answer).unwrap_or_default();
        let mut rest = text.as_str();
        loop {
            let end = (0..=rest.len().min(PART)).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(0);
            let (part, left) = rest.split_at(end);
            let packet = ToProgram::Part { text: part.to_owned(), more: !left.is_empty() };
            match packets::send(&socket, &packet, &[]) {
                Ok(()) if left.is_empty() => return,
                Ok(()) => rest = left,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waited = poll(&mut [PollFd::new(&socket.as_fd(), PollFlags::OUT)], Some(&PATIENCE));
                    if !waited.is_ok_and(|count| count > 0) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    };
    let _ = Builder::new().name("tm-group-answer".into()).spawn(write);
}
