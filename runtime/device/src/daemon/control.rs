//! The control socket of a daemon: another program of the same user asks and orders.
//!
//! It is an abstract Unix socket, `tidemill/device/NAME`: it has no file, so nothing is left when the daemon is killed, two devices
//! of one name cannot serve on one host, and the kernel names the user at the other end. A question and its answer are a line of
//! JSON each.
use super::views::Listing;
use crate::child::{Lines, send};
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Beginning of the names of the sockets.
const PREFIX: &str = "tidemill/device/";
/// Time for a question or an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest name of a device.
const MOST: usize = 64;

/// A question to a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Question {
    /// Its sessions and tenants.
    List,
    /// Other limits of a tenant; none: as before.
    Limits {
        /// The tenant.
        tenant: String,
        /// Its share.
        share: Option<f64>,
        /// Its memory; zero: not limited.
        memory: Option<u64>,
        /// It is listed by this; otherwise it must be listed already.
        new: bool,
    },
    /// The end of a session, or of all of them and the daemon, at the next run of each.
    Drain {
        /// The session; none: all.
        session: Option<u64>,
    },
}

/// What a daemon answers: the state after the question, or why it refuses.
pub type Answer = Result<Listing, String>;

/// Checks the name of a device: letters, digits, `-`, `_` and `.`.
///
/// # Errors
/// What is wrong.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if !name.is_empty() && name.len() <= MOST && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(format!("`{name}` is no name of a device: at most {MOST} letters, digits, `-`, `_` and `.`"))
}

/// Listens for questions. The name is free again when this is dropped.
pub(super) fn listen(device: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{PREFIX}{device}"))?)
}

/// Connects to the daemon of a device.
pub(super) fn connect(device: &str) -> io::Result<UnixStream> {
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(format!("{PREFIX}{device}"))?)?;
    if !is_trusted(&socket)? {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    limited(&socket)?;
    Ok(socket)
}

/// Whether the other end belongs to this user, or to root.
pub(super) fn is_trusted(socket: &UnixStream) -> io::Result<bool> {
    let peer = socket_peercred(socket)?.uid;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

pub(super) fn limited(socket: &UnixStream) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))
}

/// Returns the names of the devices that this host serves, of all users.
///
/// # Errors
/// The system does not list sockets.
pub fn devices() -> io::Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let marked = format!("@{PREFIX}");
    let found = table.lines().filter_map(|line| Some(line.rsplit_once(&marked)?.1.to_owned()));
    let mut found: Vec<String> = found.filter(|name| check_name(name).is_ok()).collect();
    // A listening socket and its connections have one name.
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Asks the daemon of a device.
///
/// # Errors
/// It does not answer. The inner error: it refuses.
pub fn ask(device: &str, question: &Question) -> io::Result<Answer> {
    let socket = connect(device)?;
    send(&socket, question)?;
    Lines::new(socket).receive()?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
}
