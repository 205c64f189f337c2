//! Ctrl-C: the first ends the run in order, the second leaves at once.
use crate::exit::Exit;
use crate::leave;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_engine::Stopper;

/// Whether somebody wants the run to end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    wanted: Arc<AtomicBool>,
    run: Arc<Mutex<Option<Stopper>>>,
}

impl Interrupt {
    /// Starts to listen for signals.
    ///
    /// # Errors
    /// When the system does not allow that.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let listener = interrupt.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                listener.signalled();
            }
        })?;
        Ok(interrupt)
    }

    fn signalled(&self) {
        let first = !self.wanted.swap(true, Ordering::AcqRel);
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref() {
            Some(run) if first => run.abort(),
            // Nothing has begun, or somebody is in a hurry.
            _ => leave(Exit::Interrupted),
        }
    }

    /// From now on there is a run to end in order.
    pub(crate) fn ends(&self, run: Stopper) {
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
    }

    /// True after the first signal.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}
