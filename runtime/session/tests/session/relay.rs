//! A path that a test can break: it passes on what two sides send each other over TCP.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What a path does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Passes,
    /// Nothing arrives any more, and nobody is told.
    Drops,
    /// What the side that dialled sends does not arrive.
    DropsForth,
    /// What the side that listens sends does not arrive.
    DropsBack,
}

#[derive(Default)]
struct State {
    mode: Option<Mode>,
    streams: Vec<TcpStream>,
    /// Bytes passed on.
    passed: u64,
    is_over: bool,
}

/// A path through this process.
pub(crate) struct Relay {
    pub(crate) at: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Relay {
    /// A path to an address.
    pub(crate) fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let state = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let (shared, target) = (Arc::clone(&state), target.to_owned());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let mut state = shared.0.lock().unwrap();
                if state.is_over {
                    return;
                }
                let Ok(far) = TcpStream::connect(&target) else { continue };
                for (from, to, dropped) in [(&near, &far, Mode::DropsForth), (&far, &near, Mode::DropsBack)] {
                    state.streams.push(from.try_clone().unwrap());
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || pass(from, to, &shared, dropped));
                }
            }
        });
        Self { at, state }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.0.lock().unwrap().mode = Some(mode);
        self.state.1.notify_all();
    }

    /// Breaks the connections that there are.
    pub(crate) fn reset(&self) {
        let mut state = self.state.0.lock().unwrap();
        state.streams.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        self.state.1.notify_all();
    }

    pub(crate) fn passed(&self) -> u64 {
        self.state.0.lock().unwrap().passed
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.0.lock().unwrap().is_over = true;
        self.reset();
        // It accepts once more, and ends.
        let _ = TcpStream::connect(&self.at);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, shared: &(Mutex<State>, Condvar), dropped: Mode) {
    let mut bytes = vec![0; 16 << 10];
    // Bytes that a path dropped are gone with it: this connection passes nothing more.
    let mut is_dead = false;
    while let Ok(count) = from.read(&mut bytes) {
        let mut state = shared.0.lock().unwrap();
        let mode = state.mode.unwrap_or(Mode::Passes);
        is_dead |= mode == Mode::Drops || mode == dropped;
        while is_dead && count > 0 && !state.is_over {
            // As a sender whose packets are not acknowledged: it is taken from no more.
            state = shared.1.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
            if from.take_error().is_ok_and(|error| error.is_some()) || !state.streams_has(&from) {
                return;
            }
        }
        if state.is_over || count == 0 {
            break;
        }
        state.passed += count as u64;
        drop(state);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    if !is_dead {
        let _ = to.shutdown(Shutdown::Write);
    }
}

impl State {
    fn streams_has(&self, stream: &TcpStream) -> bool {
        let of = |stream: &TcpStream| stream.peer_addr().ok();
        self.streams.iter().any(|known| of(known).is_some() && of(known) == of(stream))
    }
}
