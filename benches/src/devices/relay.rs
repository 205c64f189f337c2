//! A link in this process: what one side sends arrives at the other later, at a rate, and in its order.
use super::now;
use anyhow::Context;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Time that a piece of a long message takes on the link: pieces that arrive are read before the next ones.
const PIECE: f64 = 0.5e-3;
/// Bytes of a piece, at least and at most.
const PIECES: (f64, f64) = (256.0, 65_536.0);

/// A link between a client and a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shape {
    /// From sending a byte until it arrives.
    pub(super) one_way: Duration,
    /// Bytes per second in each direction; infinite: not limited.
    pub(super) rate: f64,
}

impl Shape {
    /// Milliseconds of a round trip, and Mbit/s of what the connection carries, without the heads of packets.
    pub(super) fn new(round_trip_ms: f64, megabits: f64) -> Self {
        Self { one_way: Duration::from_secs_f64(round_trip_ms / 2e3), rate: megabits * 1e6 / 8.0 }
    }
}

/// Passes on one connection. Dropping it cuts the connection.
pub(super) struct Relay {
    address: SocketAddr,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    ends: Receiver<[TcpStream; 2]>,
}

impl Relay {
    /// Waits for a connection, and passes it on to this address.
    pub(super) fn start(to: SocketAddr, shape: Shape) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for a relay")?;
        let address = listener.local_addr()?;
        let (give, ends) = channel();
        let thread = spawn(move || pass(&listener, to, shape, &give));
        Ok(Self { address, thread: Some(thread), ends })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Without a connection it still waits.
        if let Ok(ends) = self.ends.try_recv().or_else(|_| {
            drop(TcpStream::connect(self.address));
            self.ends.recv()
        }) {
            // They may have ended already.
            ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        }
        if let Some(thread) = self.thread.take() {
            // Bytes on the path when it was cut have no reader.
            let _ = thread.join();
        }
    }
}

fn pass(
    listener: &TcpListener,
    to: SocketAddr,
    shape: Shape,
    ends: &Sender<[TcpStream; 2]>,
) -> anyhow::Result<()> {
    let near = listener.accept()?.0;
    let far = TcpStream::connect(to)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    ends.send([near.try_clone()?, far.try_clone()?]).context("the relay was dropped")?;
    let up = [(near.try_clone()?, far.try_clone()?), (far, near)];
    let threads = up.map(|(from, to)| {
        let (give, take) = channel();
        [spawn(move || receive(from, shape, &give)), spawn(move || deliver(&take, to))]
    });
    for thread in threads.into_iter().flatten() {
        thread.join().map_err(|_| anyhow::anyhow!("a thread of a relay panicked"))?;
    }
    Ok(())
}

/// Reads what is sent, and says when each piece has arrived.
fn receive(mut from: TcpStream, shape: Shape, give: &Sender<(Instant, Vec<u8>)>) {
    let size = (shape.rate * PIECE).clamp(PIECES.0, PIECES.1) as usize;
    let (mut piece, mut sent) = (vec![0; size], now());
    while let Ok(read @ 1..) = from.read(&mut piece) {
        sent = sent.max(now()) + Duration::from_secs_f64(read as f64 / shape.rate);
        if give.send((sent + shape.one_way, piece[..read].to_vec())).is_err() {
            break;
        }
    }
}

/// Writes each piece when it has arrived.
fn deliver(take: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    exact_timers();
    for (due, piece) in take {
        sleep(due.saturating_duration_since(now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // The end arrives after what was sent before it.
    let _ = to.shutdown(Shutdown::Write);
}

/// Lets this thread sleep to the microsecond, where the system would add up to 50. Without it results are less exact, not wrong.
pub(super) fn exact_timers() {
    let thread = std::fs::read_link("/proc/thread-self").ok();
    if let Some(number) = thread.as_deref().and_then(|path| path.file_name()) {
        let _ = std::fs::write(std::path::Path::new("/proc").join(number).join("timerslack_ns"), "1");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn bytes_arrive_in_their_order_and_not_before_their_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(listener.local_addr().unwrap(), Shape::new(20.0, 8.0)).unwrap();
        let mut near = TcpStream::connect(relay.address()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let bytes: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        let begin = now();
        near.write_all(&bytes).unwrap();
        let mut arrived = vec![0; bytes.len()];
        far.read_exact(&mut arrived).unwrap();
        // 10 ms of delay, and 10 kB at 1 MB/s.
        assert!(begin.elapsed() >= Duration::from_millis(20));
        assert_eq!(arrived, bytes);
        drop(relay);
        assert_eq!(far.read(&mut arrived).unwrap_or(0), 0, "it is cut");
    }

    #[test]
    fn an_unused_relay_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        drop(Relay::start(listener.local_addr().unwrap(), Shape::new(1.0, 1.0)).unwrap());
    }
}
