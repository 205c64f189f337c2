//! The process that serves one session, or several of one tenant, for `tidemill device serve`: its contract, and [`main`], which keeps it.
//!
//! A program that computes by another back end implements [`Opener`], calls [`main`], and is given to the daemon as
//! `--proxy-program PATH`.
//!
//! # Contract
//! - Standard input is a Unix stream socket to the daemon, the *control socket*. Messages are lines of JSON: [`ToChild`] and
//!   [`FromChild`]. Standard output goes to the standard error of the daemon.
//! - The process is started before there is a client, so that a session begins fast. [`ToChild::Begin`] comes with one descriptor
//!   (`SCM_RIGHTS`): a connected stream socket, by which the client makes its calls.
//! - The daemon decides who runs when: a process runs after [`ToChild::Turn`] once, and after [`ToChild::Standing`] until
//!   [`ToChild::Recall`]. While one session is active, it has a standing turn, and a run costs no message.
//! - It decides how much memory a session may hold: a process that needs more than it was granted asks.
//! - The daemon asks for figures each [`ASKS`]. A process that gives none several times is ended, and one that waits for a daemon
//!   which does not ask ends.
//! - After [`ToChild::Share`] instead, the process serves several sessions of one tenant ([`crate::batching`]). Each comes with
//!   [`ToChild::Join`] and one descriptor: the control socket of this session alone, on which the process says
//!   [`FromChild::Ready`], and [`ToChild::Begin`] is next. Turns, and the memory of models, are those of the process, by its own control
//!   socket.
//! - The process ends at the end of its session, and at once when the control socket ends, whatever it computes.
mod admission;
mod lines;
mod sharing;
mod turn_flag;

pub(crate) use lines::send_with;
pub use lines::{Lines, send};

use crate::batching::Batching;
use crate::call::Hello;
use crate::carrier::Carrier;
use crate::daemon::folders;
use crate::device::{Device, DeviceError, Limits, Opener, Snapshot};
use crate::proxy::{Admission, serve_until};
use crate::store::Store;
use admission::ByDaemon;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use turn_flag::Shared;

/// Interval in which the daemon asks each process for figures.
pub const ASKS: Duration = Duration::from_secs(2);

/// From the daemon to the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToChild {
    /// Serve the client whose socket comes with this.
    Begin(Begin),
    /// Serve several sessions, and compute their runs together.
    Share(Batching),
    /// Serve one more session. Its control socket comes with this.
    Join,
    /// Answers [`FromChild::Admit`].
    Admitted(Result<Limits, String>),
    /// Run once. Answered by [`FromChild::Ran`].
    Turn,
    /// Run as often as you like.
    Standing,
    /// Ends a standing turn, after the run that computes now. Answered by [`FromChild::Returned`].
    Recall,
    /// Answers [`FromChild::More`]: less than it asked for is a refusal.
    Room {
        /// Bytes that the session may hold from now on.
        granted: u64,
        /// Limit of the session now, for the message of a refusal.
        limit: u64,
    },
    /// What was granted holds no more: ask before the session holds more than now.
    AskAgain,
    /// Report [`FromChild::Figures`].
    Report,
    /// End the session at the next run, or when there is nothing to do, and tell the client this reason.
    End(String),
    /// As [`ToChild::End`]: the whole device is drained.
    Drained(String),
}

/// The session of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// Its number.
    pub session: u64,
    /// Folder for the files of its models. The process makes, locks and removes it.
    pub folder: PathBuf,
    /// Folder of the files of all models, by content.
    pub cache: PathBuf,
    /// Bytes that those may have together.
    pub cache_limit: u64,
    /// Name of the device for snapshots.
    pub name: String,
    /// Kind of the device for snapshots; none: that of the back end.
    pub kind: Option<String>,
}

/// From the process to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromChild {
    /// It can begin.
    Ready,
    /// A client greets.
    Admit(Hello),
    /// It wants to run.
    Want,
    /// A single turn is over. The device is busy for so many nanoseconds from now, with the run that it was for.
    Ran {
        /// Nanoseconds.
        busy: u64,
    },
    /// A standing turn is over. The device is busy for so many nanoseconds from now, with runs of the session.
    Returned {
        /// Nanoseconds.
        busy: u64,
    },
    /// The session holds so many bytes and needs more.
    More {
        /// Bytes that it holds.
        held: u64,
        /// Bytes beside them.
        wanted: u64,
    },
    /// The session needs no more than this of what it was granted.
    Less {
        /// Bytes.
        held: u64,
    },
    /// Answers [`ToChild::Report`].
    Figures(Figures),
    /// The session has ended.
    Closed {
        /// Why, if neither the client nor the daemon ended it.
        problem: Option<String>,
    },
}

/// What a session did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Models that are loaded.
    pub models: u64,
    /// Bytes of models and tensors that it holds.
    pub memory: u64,
    /// Runs that ended or are in the queue of the device.
    pub runs: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Microseconds that the device computed.
    pub computed_us: u64,
    /// Microseconds that runs waited for their turns.
    pub waited_us: u64,
    /// A run waits or is computed; only of a session whose process serves several.
    pub is_waiting: bool,
    /// Models whose runs are computed one by one, because they failed together; only of a process that serves several sessions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub apart: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Serves one session for the daemon that started this process, and returns when it is over. Where the daemon wants several sessions in
/// the process, it does not return: the daemon ends it.
///
/// # Errors
/// If standard input is no socket of a daemon, or the connection to the client breaks.
pub fn main(opener: &dyn Opener) -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut lines = Lines::new(control.try_clone()?);
    send(&control, &FromChild::Ready)?;
    let begin = loop {
        match lines.receive()? {
            Some(ToChild::Begin(begin)) => break begin,
            Some(ToChild::Share(batching)) => return sharing::serve(opener, control, lines, batching),
            Some(_) => {}
            None => return Ok(()),
        }
    };
    let session = Session::begin(begin, control, lines, true)?;
    let mut admission = ByDaemon::new(Arc::clone(&session.shared));
    session.serve(opener, &mut admission)
}

/// A session that has begun.
struct Session {
    begin: Begin,
    client: OwnedFd,
    shared: Arc<Shared>,
    /// Its folder.
    locked: OwnedFd,
}

impl Session {
    /// `is_alone`: the process serves no other one.
    fn begin(begin: Begin, control: UnixStream, mut lines: Lines, is_alone: bool) -> io::Result<Self> {
        let client = lines.descriptor().ok_or_else(|| io::Error::other("the daemon passed no client"))?;
        let shared = Shared::of_session(control, client.try_clone()?, begin.folder.clone(), is_alone);
        let shared = Arc::new(shared);
        let locked = folders::locked(&begin.folder)?;
        turn_flag::follow(Arc::clone(&shared), lines)?;
        Ok(Self { begin, client, shared, locked })
    }

    fn serve(self, opener: &dyn Opener, admission: &mut dyn Admission) -> io::Result<()> {
        let Self { begin, client, shared, locked } = self;
        let served = Carrier::of_descriptor(client).and_then(|carrier| {
            let mut store = Store::open(&begin.cache, begin.cache_limit).map_err(io::Error::other)?;
            let named = Named { opener, begin: &begin };
            serve_until(carrier, &named, admission, &mut store, &begin.folder, shared.ending())
        });
        drop(locked);
        // The daemon removes it if this process cannot.
        let _ = std::fs::remove_dir_all(&begin.folder);
        shared.closed(served.as_ref().err().map(ToString::to_string));
        served
    }
}

/// A device with the name and the kind that its daemon gave it.
struct Named<'a> {
    opener: &'a dyn Opener,
    begin: &'a Begin,
}

impl Opener for Named<'_> {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        let snapshot = self.opener.snapshot(limits);
        let kind = self.begin.kind.clone().unwrap_or(snapshot.kind);
        Snapshot { name: self.begin.name.clone(), kind, ..snapshot }
    }

    fn open(&self, limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        self.opener.open(limits)
    }
}
