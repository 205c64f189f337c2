//! The connection of a peer: made when it is needed, and made again after it is lost, with pauses between attempts that fail.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::PeerLimits;
use crate::frame::Frame;
use crate::socket;
use crate::status::{Code, Status};

/// Cost of the small parts of answers that wait for their readers, in bytes: a slow reader of many small messages is no attack.
const SMALL_PARTS: usize = 1 << 30;

/// A connection that requests can be sent on.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) requests: SendRequest<Frame>,
    /// Whether a response has come: only then is there a gRPC server at the other end.
    pub(super) answered: Arc<AtomicBool>,
    number: u64,
}

/// Where a peer is, and the connection to it if there is one.
#[derive(Debug)]
pub(super) struct Connection {
    host: String,
    port: u16,
    state: Mutex<State>,
    /// Held while a connection is made, which only calls that need one wait for.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    line: Option<Line>,
    /// Number of connections made.
    made: u64,
    /// Attempts in a row that failed, until when there is no other, and why the last one failed.
    failed: u32,
    pause: Option<(Instant, Status)>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("State")
            .field("connected", &self.line.is_some())
            .field("failed", &self.failed)
            .finish()
    }
}

impl Connection {
    pub(super) fn new(host: String, port: u16) -> Connection {
        Connection { host, port, state: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// The connection there is, or a new one. Calls that need one at the same time wait for the same attempt.
    pub(super) async fn line(&self, limits: &PeerLimits) -> Result<Line, Status> {
        if let Some(known) = self.known() {
            return known;
        }
        let _connecting = self.connecting.lock().await;
        if let Some(known) = self.known() {
            return known;
        }
        let opened = timeout(limits.connecting, self.open(limits)).await;
        let mut state = self.state();
        match opened {
            Ok(Ok(requests)) => {
                state.made += 1;
                let line = Line { requests, answered: Arc::default(), number: state.made };
                state.line = Some(line.clone());
                Ok(line)
            }
            Ok(Err(why)) => Err(self.failed(&mut state, &why, limits)),
            Err(_) => Err(self.failed(&mut state, "no connection in time", limits)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection there is, or the error of the last attempt as long as there must be no other.
    fn known(&self) -> Option<Result<Line, Status>> {
        let state = self.state();
        match (&state.line, &state.pause) {
            (Some(line), _) => Some(Ok(line.clone())),
            (None, Some((until, why))) if Instant::now() < *until => Some(Err(why.clone())),
            _ => None,
        }
    }

    /// Forgets a connection that a call found lost, so that the next call makes another one.
    pub(super) fn lost(&self, line: &Line, limits: &PeerLimits) {
        let mut state = self.state();
        if state.line.as_ref().is_none_or(|current| current.number != line.number) {
            return;
        }
        state.line = None;
        if line.answered.load(Ordering::Relaxed) {
            state.failed = 0;
            state.pause = None;
        } else {
            self.failed(&mut state, "the connection ended before an answer", limits);
        }
    }

    /// Starts a pause, longer than the one before.
    fn failed(&self, state: &mut State, why: &str, limits: &PeerLimits) -> Status {
        let status = Status::new(Code::Unavailable, format!("{}:{}: {why}", self.host, self.port));
        let until = Instant::now().checked_add(pause(state.failed, chance(), limits));
        state.failed = state.failed.saturating_add(1);
        state.pause = until.map(|until| (until, status.clone()));
        status
    }

    async fn open(&self, limits: &PeerLimits) -> Result<SendRequest<Frame>, String> {
        let stream =
            TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| error.to_string())?;
        if let Err(error) = socket::prepare(&stream) {
            tracing::debug!(%error, "options of a gRPC connection");
        }
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(socket::STREAM_WINDOW)
            .initial_connection_window_size(socket::CLIENT_WINDOW)
            .max_frame_size(socket::FRAME)
            .max_header_list_size(limits.headers)
            .data_frame_budget(SMALL_PARTS)
            .enable_push(false)
            .handshake::<_, Frame>(stream)
            .await
            .map_err(|error| error.to_string())?;
        // It ends when it is lost, or when the peer and all of its calls are gone.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a gRPC connection was lost");
            }
        });
        Ok(requests)
    }
}

/// A number in 0..1000 that differs from host to host, so that not all come back at the same time.
fn chance() -> u32 {
    u32::try_from(RandomState::new().hash_one(0) % 1000).unwrap_or(0)
}

/// Length of the pause after some failed attempts in a row, and this one: between 0.8 and 1.2 of what it should be.
fn pause(failed: u32, chance: u32, limits: &PeerLimits) -> Duration {
    let mut pause = limits.first_pause;
    for _ in 0..failed.min(1000) {
        if pause >= limits.longest_pause {
            break;
        }
        pause = pause.saturating_mul(8) / 5;
    }
    pause.min(limits.longest_pause).saturating_mul(800 + chance * 400 / 1000) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let limits = PeerLimits::default();
        let pauses: Vec<u128> =
            [0, 1, 2, 9, 10, 1000].map(|failed| pause(failed, 500, &limits).as_millis()).to_vec();
        assert_eq!(pauses, [100, 160, 256, 6871, 10_000, 10_000]);
        assert_eq!(pause(0, 0, &limits).as_millis(), 80);
        assert!(pause(0, 999, &limits).as_millis() < 120);
        assert!(chance() < 1000);
    }
}
