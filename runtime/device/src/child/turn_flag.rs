//! What the thread of the calls and the thread that listens to the daemon share.
use super::lines::{Lines, send};
use super::{ASKS, Figures, FromChild, ToChild};
use crate::device::Limits;
use crate::proxy::Ending;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for a run of a client that is gone. After it the process ends, and the kernel frees what the session held.
const GRACE: Duration = Duration::from_secs(1);
/// Waits of [`ASKS`] without a message of the daemon, after which the process ends: the daemon stands still and gives no turns, and the
/// client would wait without an end.
const MISSED: u32 = 3;

pub(super) struct Shared {
    pub(super) control: UnixStream,
    client: OwnedFd,
    folder: PathBuf,
    ending: Ending,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) admitted: Option<Result<Limits, String>>,
    /// One run is granted.
    pub(super) turn: bool,
    pub(super) turns: Turns,
    /// A run computes.
    pub(super) runs: bool,
    /// A run waits for its turn.
    pub(super) waits: bool,
    /// When the device has computed the runs of this session.
    pub(super) busy_until: Option<Instant>,
    /// Bytes that may be held.
    pub(super) granted: u64,
    /// The answer to a question for more.
    pub(super) room: Option<(u64, u64)>,
    pub(super) figures: Figures,
    client_is_gone: bool,
    /// Messages of the daemon.
    heard: u64,
    /// Waits since the last of them.
    missed: u32,
}

/// How runs get their turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Turns {
    /// Each one asks.
    #[default]
    Single,
    /// None asks.
    Standing,
    /// None asks until the one that computes now has ended.
    Recalled,
}

impl Shared {
    pub(super) fn new(control: UnixStream, client: OwnedFd, folder: PathBuf) -> Self {
        let (ending, state, changed) = (Ending::default(), Mutex::default(), Condvar::new());
        Self { control, client, folder, ending, state, changed }
    }

    pub(super) fn ending(&self) -> &Ending {
        &self.ending
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most until some time.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        let state = match until {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(now());
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if state.client_is_gone {
            let _ = send(&self.control, &FromChild::Figures(state.figures));
            self.leave();
        }
        state
    }

    /// Waits for a message of the daemon. A daemon that stands still ends this process.
    pub(super) fn wait_for_daemon<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (heard, until) = (state.heard, now() + ASKS);
        state = self.wait(state, Some(until));
        if state.heard != heard {
            state.missed = 0;
        } else if now() >= until {
            state.missed += 1;
        }
        if state.missed >= MISSED {
            tracing::error!("the daemon of the device does not answer: this session ends");
            self.leave();
        }
        state
    }

    /// Says something to the daemon. One that is gone ends this process.
    pub(super) fn say(&self, message: &FromChild) {
        if send(&self.control, message).is_err() {
            self.leave();
        }
    }

    /// Says that the session is over.
    pub(super) fn closed(&self, problem: Option<String>) {
        let state = self.state();
        // The daemon may be gone too.
        let _ = send(&self.control, &FromChild::Figures(state.figures));
        let _ = send(&self.control, &FromChild::Closed { problem });
    }

    /// Ends the process at once: a thread may compute in a library, which would take long or not end.
    fn leave(&self) -> ! {
        // What stays is removed by the next daemon of the folder.
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = kill_process(getpid(), Signal::KILL);
        std::process::abort()
    }

    fn hear(&self, message: ToChild) {
        let mut state = self.state();
        state.heard += 1;
        match message {
            // The session has begun.
            ToChild::Begin(_) => {}
            ToChild::Admitted(admitted) => state.admitted = Some(admitted),
            ToChild::Turn => state.turn = true,
            ToChild::Standing => state.turns = Turns::Standing,
            ToChild::Recall if state.turns != Turns::Standing => {}
            ToChild::Recall if state.runs => state.turns = Turns::Recalled,
            ToChild::Recall => self.return_turn(&mut state),
            ToChild::Room { granted, limit } => {
                state.granted = granted;
                state.room = Some((granted, limit));
            }
            ToChild::AskAgain => {
                state.granted = 0;
                self.say(&FromChild::Less { held: state.figures.memory });
            }
            ToChild::Report => self.say(&FromChild::Figures(state.figures)),
            ToChild::End(reason) => self.ending.end(&reason),
        }
        self.changed.notify_all();
    }

    /// Ends a standing turn.
    pub(super) fn return_turn(&self, state: &mut State) {
        // A run that waits asks again.
        (state.turns, state.waits) = (Turns::Single, false);
        self.say(&FromChild::Returned { busy: state.busy() });
        self.changed.notify_all();
    }
}

impl State {
    /// Nanoseconds for which the device is busy with runs of the session.
    pub(super) fn busy(&self) -> u64 {
        let left = self.busy_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now()));
        u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[expect(clippy::disallowed_methods, reason = "times of a device are real time; no record depends on them")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Listens to the daemon, and watches the client, on a thread of its own.
pub(super) fn follow(shared: Arc<Shared>, mut lines: Lines) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("tm-device-control".into());
    thread.spawn(move || {
        // The end of either side ends the process.
        let _ = listen(&shared, &mut lines);
        if let Ok(state) = shared.state.try_lock() {
            let _ = send(&shared.control, &FromChild::Figures(state.figures));
        }
        shared.leave();
    })?;
    Ok(())
}

fn listen(shared: &Shared, lines: &mut Lines) -> io::Result<()> {
    let mut leaves_at: Option<Instant> = None;
    loop {
        while let Some(message) = lines.ready()? {
            shared.hear(message);
        }
        let left = leaves_at.map(|at| at.saturating_duration_since(now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut descriptors = [
            PollFd::new(&shared.control, PollFlags::IN),
            PollFd::from_borrowed_fd(shared.client.as_fd(), PollFlags::RDHUP),
        ];
        // A client that is gone stays so: only its end is waited for then.
        let watched = if leaves_at.is_some() { 1 } else { 2 };
        match poll(&mut descriptors[..watched], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if leaves_at.is_none() && descriptors[1].revents().intersects(gone) {
            leaves_at = Some(now() + GRACE);
            shared.state().client_is_gone = true;
            shared.changed.notify_all();
        }
        if !descriptors[0].revents().is_empty() && !lines.fill()? {
            return Ok(());
        }
    }
}
