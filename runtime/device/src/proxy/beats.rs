//! Signs of life: the client waits only while they come, so that it notices a device that stands still.
use super::now;
use crate::call::{BEAT, Head, LATE};
use crate::carrier::{Moved, Outgoing};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of signs of life while calls arrive or are handled.
pub(super) const BEAT_EACH: Duration = Duration::from_secs(1);

/// The computation of a session, for the thread that watches it.
#[derive(Debug, Default)]
pub(super) struct Computation(Mutex<Option<Present>>);

#[derive(Debug, Clone, Copy)]
struct Present {
    since: Instant,
    may_take: Duration,
}

impl Computation {
    fn present(&self) -> MutexGuard<'_, Option<Present>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a computation, which may take so long.
    pub(super) fn begin(&self, may_take: Duration) {
        *self.present() = Some(Present { since: now(), may_take });
    }

    pub(super) fn end(&self) {
        *self.present() = None;
    }

    /// Returns why the session is to end, if the present computation takes too long.
    fn late(&self, now: Instant) -> Option<String> {
        let Present { since, may_take } = (*self.present())?;
        let takes = now.saturating_duration_since(since);
        (takes > may_take).then(|| {
            let (takes, may_take) = (takes.as_secs_f64(), may_take.as_secs_f64());
            format!("it computes for {takes:.1} s, at most {may_take} s are allowed; `tidemill device serve --longest-run` allows more")
        })
    }
}

/// Sends signs of life.
pub(super) struct Beats<'a> {
    pub(super) outgoing: &'a Mutex<Box<dyn Outgoing>>,
    /// Bytes of calls that have arrived and are not handled.
    pub(super) queued: &'a AtomicU64,
    /// Bytes that came.
    pub(super) moved: Moved,
    pub(super) computation: &'a Computation,
}

impl Beats<'_> {
    /// Sends them until the other end of `until` is dropped, the connection ends, or a computation takes too long.
    pub(super) fn run(&self, until: &Receiver<()>, each: Duration) {
        let mut moved = self.moved.load(Ordering::Relaxed);
        while matches!(until.recv_timeout(each), Err(RecvTimeoutError::Timeout)) {
            let before = std::mem::replace(&mut moved, self.moved.load(Ordering::Relaxed));
            // A device without calls is silent.
            if before == moved && self.queued.load(Ordering::Acquire) == 0 {
                continue;
            }
            let late = self.computation.late(now());
            let text = late.clone().unwrap_or_default();
            let kind = if late.is_some() { LATE } else { BEAT };
            if self.say(kind, text.as_bytes()).is_err() || late.is_some() {
                return;
            }
        }
    }

    fn say(&self, kind: u8, text: &[u8]) -> io::Result<()> {
        let head = Head { kind, payload: text.len() as u32, ..Head::default() }.to_bytes();
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        outgoing.send(&mut [IoSlice::new(&head), IoSlice::new(text)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_computation_is_late_after_its_time() {
        let computation = Computation::default();
        let at = |seconds| now() + Duration::from_secs(seconds);
        assert_eq!(computation.late(at(1000)), None, "it has nothing to do");
        computation.begin(Duration::from_secs(60));
        assert_eq!(computation.late(at(59)), None);
        let reason = computation.late(at(61)).unwrap();
        assert!(reason.contains("at most 60 s") && reason.contains("--longest-run"), "{reason}");
        computation.end();
        assert_eq!(computation.late(at(1000)), None);
    }

    struct Kinds(std::sync::mpsc::Sender<u8>);

    impl Outgoing for Kinds {
        fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            if parts[0].len() == crate::call::HEAD {
                let _ = self.0.send(parts[0][2]);
            }
            Ok(parts.iter().map(|part| part.len()).sum())
        }
    }

    #[test]
    fn signs_of_life_come_while_there_are_calls_or_bytes_of_one() {
        let (to, kinds) = channel();
        let outgoing: Mutex<Box<dyn Outgoing>> = Mutex::new(Box::new(Kinds(to)));
        let (queued, moved, computation) = (AtomicU64::new(0), Moved::default(), Computation::default());
        let beats = Beats {
            outgoing: &outgoing,
            queued: &queued,
            moved: Moved::clone(&moved),
            computation: &computation,
        };
        let (ends, until) = channel();
        std::thread::scope(|scope| {
            let beats = &beats;
            scope.spawn(move || beats.run(&until, Duration::from_millis(1)));
            // Until the first look it has seen nothing move.
            while kinds.try_recv().is_err() {
                moved.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
            queued.store(1, Ordering::Release);
            for _ in 0..3 {
                assert_eq!(kinds.recv(), Ok(BEAT));
            }
            computation.begin(Duration::ZERO);
            while kinds.recv().unwrap() != LATE {}
            drop(ends);
        });
        assert!(kinds.try_recv().is_err(), "it was the last one");
    }
}
