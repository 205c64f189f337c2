//! Calls as they arrive: credits are counted before there is memory for a payload.
use super::{Arrived, Event, now};
use crate::call::{HEAD, Head, Op};
use crate::carrier::{Fate, Messages};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

/// Bytes beyond the window: a client that waits asks for a receipt.
const SLACK: u64 = 4 << 10;
/// Longest call that carries no tensor, where the window is smaller: a piece of a file and its head.
const PIECE: u64 = 2 << 20;
/// Longest greeting.
pub(super) const GREETING: u32 = 64 << 10;

/// Reads calls and hands them to the thread that makes them.
pub(super) struct Intake<'a> {
    pub(super) messages: Messages,
    /// Bytes that may be on their way.
    pub(super) window: u64,
    /// Bytes of calls that have arrived and are not handled.
    pub(super) queued: &'a AtomicU64,
    pub(super) to: &'a Sender<Event>,
    /// Answers to [`Event::Large`].
    pub(super) answers: Receiver<Fate>,
}

impl Intake<'_> {
    /// Reads until the connection ends.
    ///
    /// # Errors
    /// The connection breaks, or the client exceeds its credit.
    pub(super) fn run(mut self) -> io::Result<()> {
        // Bytes of the last call that had the window for itself: it may be larger.
        let mut alone = 0;
        loop {
            let (window, queued, to, answers) = (self.window, self.queued, self.to, &self.answers);
            let mut decide = |head: &Head| {
                let bytes = HEAD as u64 + u64::from(head.payload);
                let before = queued.load(Ordering::Acquire);
                check(before, bytes, window, alone)?;
                if bytes <= window.max(PIECE) {
                    return Ok(Fate::Read);
                }
                if Op::of(head.kind) != Some(Op::Upload) {
                    return Err(invalid(format!("a call of {bytes} bytes that uploads no tensor")));
                }
                // Without the other thread there is no use for the payload.
                let _ = to.send(Event::Large(u64::from(head.payload)));
                Ok(answers.recv().unwrap_or(Fate::Dropped))
            };
            let Some(message) = self.messages.next_by(&mut decide)? else { return Ok(()) };
            let bytes = message.bytes();
            let before = queued.fetch_add(bytes, Ordering::AcqRel);
            // With values in shared memory it may be longer than its head said.
            check(before, bytes, window, alone)?;
            if before <= SLACK {
                alone = bytes;
            }
            if to.send(Event::Call(Arrived { message, at: now() })).is_err() {
                return Ok(());
            }
        }
    }
}

/// Checks the credit of a call of so many bytes, with others before it.
fn check(before: u64, bytes: u64, window: u64, alone: u64) -> io::Result<()> {
    if before <= SLACK || before + bytes <= window.max(alone) + SLACK {
        return Ok(());
    }
    let under_way = before + bytes;
    Err(invalid(format!("the client has {under_way} bytes on their way, at most {window} are allowed")))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_larger_than_the_window_goes_alone() {
        assert!(check(SLACK, 1000, 100, 0).is_ok());
        assert!(check(SLACK + 1, 1000, 100, 0).is_err());
        // While it is handled, the window is as large as it is.
        assert!(check(5000, 1000, 100, 5000).is_ok());
        assert!(check(5000, 100, 6000, 0).is_ok() && check(5000, 100 + SLACK, 5000, 0).is_err());
    }
}
