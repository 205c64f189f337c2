//! Ctrl-C, SIGTERM and a closed terminal: the first ends the run in order, the second exits at once.
use crate::exit::Exit;
use crate::leave;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_engine::Stopper;

/// Whether the run should end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    wanted: Arc<AtomicBool>,
    run: Arc<Mutex<Option<Stopper>>>,
    patient: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts to listen for signals.
    ///
    /// # Errors
    /// When the system does not allow that.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let mut wanted = vec![SIGINT, SIGTERM];
        // The terminal was closed; `nohup` ignores this.
        if !is_ignored(SIGHUP) {
            wanted.push(SIGHUP);
        }
        let mut signals = Signals::new(wanted)?;
        let listener = interrupt.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                listener.signalled();
            }
        })?;
        Ok(interrupt)
    }

    /// Handles a signal.
    pub(crate) fn signalled(&self) {
        let first = !self.wanted.swap(true, Ordering::AcqRel);
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref() {
            Some(run) if first => run.abort(),
            None if first && self.patient.load(Ordering::Acquire) => {}
            // Nothing has started, or this is the second signal.
            _ => leave(Exit::Interrupted),
        }
    }

    /// Sets a run to end in order.
    pub(crate) fn ends(&self, run: Stopper) {
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
    }

    /// Marks the end of the run: a signal exits at once, even during the final output.
    pub(crate) fn is_over(&self) {
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.patient.store(false, Ordering::Release);
    }

    /// Marks that [`Interrupt::is_wanted`] is polled from now on, with an orderly end.
    pub(crate) fn is_watched(&self) {
        self.patient.store(true, Ordering::Release);
    }

    /// True after the first signal.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}

/// Whether the parent process made this one ignore a signal, as far as the system reports it.
fn is_ignored(signal: i32) -> bool {
    let ignored = tidemill_machine::Process::this().status().ignored_signals();
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
