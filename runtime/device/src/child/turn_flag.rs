//! What the thread of the calls and the thread that listens to the daemon share.
use super::lines::{Lines, send};
use super::{ASKS, Figures, FromChild, ToChild};
use crate::device::{LOADING, Limits};
use crate::proxy::Ending;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for a run of a client that is gone. After it the process ends, and the kernel frees what the session held.
const GRACE: Duration = Duration::from_secs(1);
/// Waits of [`ASKS`] without a message of the daemon, after which the process ends: the daemon stands still and gives no turns, and the
/// client would wait without an end.
const MISSED: u32 = 3;

pub(super) struct Shared {
    pub(super) control: UnixStream,
    /// None: this is of all sessions of a process.
    client: Option<OwnedFd>,
    folder: Option<PathBuf>,
    /// The process ends with this.
    ends_process: bool,
    /// The session is to end, and waits for nothing any more.
    is_over: AtomicBool,
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
    /// Longest run of the session, as it was admitted.
    longest_run: Duration,
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
    /// Of a session. `is_alone`: its process serves no other one.
    pub(super) fn of_session(control: UnixStream, client: OwnedFd, folder: PathBuf, is_alone: bool) -> Self {
        let this = Self::of_process(control);
        Self { client: Some(client), folder: Some(folder), ends_process: is_alone, ..this }
    }

    /// Of all sessions of a process together.
    pub(super) fn of_process(control: UnixStream) -> Self {
        Self {
            control,
            client: None,
            folder: None,
            ends_process: true,
            is_over: AtomicBool::new(false),
            ending: Ending::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
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
        if state.client_is_gone && self.ends_process {
            let _ = send(&self.control, &FromChild::Figures(state.figures));
            self.leave();
        }
        state
    }

    /// Waits for a message of the daemon. A daemon that stands still ends this process, or the session.
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

    /// Says something to the daemon. One that is gone ends this process, or the session.
    pub(super) fn say(&self, message: &FromChild) {
        if send(&self.control, message).is_err() {
            self.leave();
        }
    }

    /// Says that the session is over, or all of the process.
    pub(super) fn closed(&self, problem: Option<String>) {
        let state = self.state();
        // The daemon may be gone too.
        let _ = send(&self.control, &FromChild::Figures(state.figures));
        let _ = send(&self.control, &FromChild::Closed { problem });
    }

    /// Ends the process at once: a thread may compute in a library, which would take long or not end. Where others are in the process, the
    /// session alone ends, after its run.
    pub(super) fn leave(&self) {
        if self.ends_process {
            self.end_process();
        }
        self.is_over.store(true, Ordering::Release);
        // Its proxy ends where nothing comes any more. The client may have ended it already.
        let _ = self.client.as_ref().map(|client| shutdown(client, Shutdown::Both));
        self.changed.notify_all();
    }

    /// Ends the process with all of its sessions.
    fn end_process(&self) -> ! {
        // What stays is removed by the next daemon of the folder.
        let _ = self.folder.as_ref().map(std::fs::remove_dir_all);
        let _ = kill_process(getpid(), Signal::KILL);
        std::process::abort()
    }

    pub(super) fn hear(&self, message: ToChild) {
        let mut state = self.state();
        state.heard += 1;
        match message {
            // The sessions have begun, or are begun elsewhere.
            ToChild::Begin(_) | ToChild::Share(_) | ToChild::Join => {}
            ToChild::Admitted(admitted) => {
                state.longest_run = admitted.as_ref().map_or(Duration::ZERO, |limits| limits.longest_run);
                state.admitted = Some(admitted);
            }
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
            ToChild::Drained(reason) => self.ending.drain(&reason),
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
        if !shared.ends_process {
            // A thread that looked before this and waits after it would wait without an end.
            let _state = shared.state();
            return shared.leave();
        }
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
            if !shared.ends_process {
                tracing::error!(
                    "a run does not end, and its client is gone: the process of all its sessions ends"
                );
                shared.end_process();
            }
            return Ok(());
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let client = shared.client.as_ref().map_or(shared.control.as_fd(), AsFd::as_fd);
        let mut descriptors =
            [PollFd::new(&shared.control, PollFlags::IN), PollFd::from_borrowed_fd(client, PollFlags::RDHUP)];
        // A client that is gone stays so: only its end is waited for then.
        let watched = if leaves_at.is_some() { 1 } else { 2 };
        match poll(&mut descriptors[..watched], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if leaves_at.is_none() && descriptors[1].revents().intersects(gone) {
            let mut state = shared.state();
            if shared.ends_process {
                leaves_at = Some(now() + GRACE);
                state.client_is_gone = true;
                shared.changed.notify_all();
            } else {
                // Its proxy ends after the run, and this thread after it: until then the daemon hears that the process lives. A run that
                // does not end would keep all sessions waiting.
                leaves_at = Some(now() + state.longest_run.saturating_mul(LOADING).max(GRACE));
                shared.leave();
            }
        }
        if !descriptors[0].revents().is_empty() && !lines.fill()? {
            return Ok(());
        }
    }
}
