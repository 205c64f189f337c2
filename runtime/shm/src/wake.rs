//! Wake-ups between processes: the reader of a ring spins shortly, then sleeps; who writes wakes it only if it sleeps.
//!
//! A bell is a pair of sockets and not an eventfd. Both sides of an eventfd share its flags, so a hostile one can take
//! `O_NONBLOCK` away and fill the counter, and the next write of the other side blocks for ever. Each end of a pair has
//! flags of its own, calls on it say themselves that they do not block, and the death of the other side ends the sleep.
use crate::descriptor::Descriptor;
use crate::region::Window;
use crate::ring::{Consumer, Producer, RingError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A descriptor of a peer that is no end of a bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the descriptor is no bell")]
pub struct NoBell;

/// One end of a bell: it wakes the other end and is woken by it. The side that trusts the other less makes the pair.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Makes a pair: the own end, and the descriptor for the other side.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self(own), other))
    }

    /// Takes the end that a peer passed.
    ///
    /// # Errors
    /// [`NoBell`] when it is no such socket.
    pub fn adopt(end: OwnedFd) -> Result<Self, NoBell> {
        let is_bell =
            socket_domain(&end) == Ok(AddressFamily::UNIX) && socket_type(&end) == Ok(SocketType::STREAM);
        if is_bell { Ok(Self(end)) } else { Err(NoBell) }
    }

    /// Wakes the other end. It never blocks: where nothing more fits, the other end has enough to wake up for, and where
    /// the other end is gone there is no sleeper.
    pub fn ring(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the rings that came, so that the next sleep is one; `false` when the other end is gone.
    fn take(&self) -> bool {
        match recv(&self.0, &mut [0; 256], RecvFlags::DONTWAIT) {
            Ok((read, _)) => read > 0,
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Decides how long a reader looks again and again before it sleeps: longer while that finds something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spin {
    /// Looks before the next sleep, and the most.
    looks: u32,
    most: u32,
    /// Sleeps since looking was given up.
    given_up: u32,
}

/// Most looks on a machine with enough cores: some microseconds.
const LOOKS: u32 = 1024;
/// Fewer cores than this are needed for work.
const CORES: usize = 4;
/// Looks after looking was given up and is tried again.
const FEW: u32 = 16;
/// Sleeps until it is tried again.
const PATIENCE: u32 = 64;

impl Spin {
    /// Looks up to this number of times.
    pub fn up_to(most: u32) -> Self {
        Self { looks: most, most, given_up: 0 }
    }

    /// Looks as is right for a machine with this number of cores: not at all where there are fewer than 4.
    pub fn for_cores(cores: usize) -> Self {
        Self::up_to(if cores < CORES { 0 } else { LOOKS })
    }

    /// Looks until there is something or it was often enough; returns whether there is.
    fn run(&mut self, mut is_ready: impl FnMut() -> Result<bool, RingError>) -> Result<bool, RingError> {
        for _ in 0..self.looks {
            if is_ready()? {
                self.looks = self.looks.saturating_mul(2).min(self.most);
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        self.looks /= 2;
        if self.looks == 0 {
            self.given_up += 1;
            if self.given_up >= PATIENCE {
                (self.given_up, self.looks) = (0, FEW.min(self.most));
            }
        }
        is_ready()
    }
}

impl Default for Spin {
    /// Looks as is right for this machine.
    fn default() -> Self {
        Self::for_cores(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// The end of a ring that writes and wakes.
#[derive(Debug)]
pub struct Sender {
    ring: Producer<Window>,
    bell: Arc<Bell>,
}

impl Sender {
    /// Writes to this ring and wakes its reader by this bell.
    pub fn new(ring: Producer<Window>, bell: Arc<Bell>) -> Self {
        Self { ring, bell }
    }

    /// Sends a descriptor; `false` when there is no place for it now. No wake-up comes when there is one: senders send no
    /// more than they have credit for, or wait for answers.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn send(&mut self, descriptor: &Descriptor) -> Result<bool, RingError> {
        let is_sent = self.ring.push(descriptor)?;
        if is_sent && self.ring.must_wake() {
            self.bell.ring();
        }
        Ok(is_sent)
    }
}

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// There is a descriptor to read.
    Ready,
    /// There is none: the time is over, or something else woke it.
    Idle,
    /// There is none and none will come: the other side is gone.
    Gone,
}

/// The end of a ring that reads and sleeps. It is the only one that waits for its end of the bell.
#[derive(Debug)]
pub struct Receiver {
    ring: Consumer<Window>,
    bell: Arc<Bell>,
    spin: Spin,
}

impl Receiver {
    /// Reads from this ring and sleeps by this bell.
    pub fn new(ring: Consumer<Window>, bell: Arc<Bell>, spin: Spin) -> Self {
        Self { ring, bell, spin }
    }

    /// Takes the next descriptor; none: there is none now.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn receive(&mut self) -> Result<Option<Descriptor>, RingError> {
        self.ring.pop()
    }

    /// Announces a sleep to a caller that waits for [`Receiver::as_fd`] together with others; `false` when there is
    /// something to read first. After the sleep comes [`Receiver::woke`].
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn may_sleep(&mut self) -> Result<bool, RingError> {
        let may = self.ring.may_sleep()?;
        if !may {
            self.ring.woke();
        }
        Ok(may)
    }

    /// Ends a sleep and says why it ended.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn woke(&mut self) -> Result<Woken, RingError> {
        self.ring.woke();
        let is_there = self.bell.take();
        Ok(match self.ring.is_ready()? {
            true => Woken::Ready,
            false if is_there => Woken::Idle,
            false => Woken::Gone,
        })
    }

    /// Waits until there is something to read, shortly awake and then asleep; none: no timeout. A signal may end it
    /// earlier.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Woken, RingError> {
        if self.spin.run(|| self.ring.is_ready())? || !self.may_sleep()? {
            return Ok(Woken::Ready);
        }
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // An open socket can be polled; any failure, such as a signal, ends the sleep early.
        let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], timeout.as_ref());
        self.woke()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::region::{GRANULE, SharedRegion};
    use crate::ring::words;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    const PLACES: u32 = 16;

    fn pair() -> (Sender, Receiver) {
        let region = Arc::new(SharedRegion::create(GRANULE).unwrap());
        let window = region.window(0, words(PLACES)).unwrap();
        let (bell, other) = Bell::pair().unwrap();
        let sender = Sender::new(Producer::new(window.clone(), PLACES).unwrap(), Arc::new(bell));
        let ring = Consumer::new(window, PLACES).unwrap();
        (sender, Receiver::new(ring, Arc::new(Bell::adopt(other).unwrap()), Spin::up_to(0)))
    }

    fn is_readable(end: &impl AsFd) -> bool {
        poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let (mut sender, mut receiver) = pair();
        assert!(sender.send(&Descriptor::default()).unwrap());
        assert!(!is_readable(&receiver), "nobody sleeps");
        assert_eq!(receiver.wait(None), Ok(Woken::Ready));
        assert!(!receiver.may_sleep().unwrap(), "there is something to read");
        receiver.receive().unwrap().unwrap();
        assert!(receiver.may_sleep().unwrap());
        for _ in 0..3 {
            assert!(sender.send(&Descriptor::default()).unwrap());
        }
        assert!(is_readable(&receiver));
        assert_eq!(recv(&receiver.bell.0, &mut [0; 8], RecvFlags::PEEK).unwrap().0, 1, "one call woke it");
        assert_eq!(receiver.woke(), Ok(Woken::Ready));
        assert!(!is_readable(&receiver), "the next sleep is one");
        while receiver.receive().unwrap().is_some() {}
        assert_eq!(receiver.wait(Some(Duration::ZERO)), Ok(Woken::Idle));
    }

    #[test]
    fn what_was_sent_before_the_end_is_read_before_it() {
        let (mut sender, mut receiver) = pair();
        assert!(sender.send(&Descriptor::default()).unwrap());
        drop(sender);
        assert_eq!(receiver.wait(None), Ok(Woken::Ready));
        assert!(receiver.receive().unwrap().is_some());
        assert_eq!(receiver.wait(None), Ok(Woken::Gone));
    }

    #[test]
    fn a_full_ring_takes_more_when_it_was_read() {
        let (mut sender, mut receiver) = pair();
        let sent = (0..100).take_while(|_| sender.send(&Descriptor::default()).unwrap()).count();
        assert_eq!(sent, PLACES as usize);
        receiver.receive().unwrap().unwrap();
        assert!(sender.send(&Descriptor::default()).unwrap());
        drop(receiver);
        assert!(!sender.send(&Descriptor::default()).unwrap(), "nothing breaks where nobody reads");
    }

    #[test]
    fn descriptors_of_two_threads_arrive_whichever_way_they_wait() {
        for spin in [Spin::up_to(0), Spin::up_to(64), Spin::default()] {
            let (mut sender, mut receiver) = pair();
            receiver.spin = spin;
            let writer = std::thread::spawn(move || {
                let mut sequence = 0;
                while sequence < 5000 {
                    match sender.send(&Descriptor { sequence, ..Descriptor::default() }).unwrap() {
                        true => sequence += 1,
                        false => std::thread::yield_now(),
                    }
                }
            });
            let mut expected = 0;
            while receiver.wait(None).unwrap() != Woken::Gone {
                while let Some(descriptor) = receiver.receive().unwrap() {
                    assert_eq!(descriptor.sequence, expected);
                    expected += 1;
                }
            }
            assert_eq!(expected, 5000);
            writer.join().unwrap();
        }
    }

    /// A peer that lets all calls block and reads nothing.
    #[test]
    fn a_bell_never_blocks() {
        let (own, other) = Bell::pair().unwrap();
        fcntl_setfl(&other, fcntl_getfl(&other).unwrap() - OFlags::NONBLOCK).unwrap();
        // More than the buffer of a socket takes.
        for _ in 0..10_000 {
            own.ring();
        }
        assert!(own.take(), "the other end is there and silent");
        let other = Bell::adopt(other).unwrap();
        for _ in 0..10_000 {
            other.ring();
        }
        assert!(is_readable(&own));
        drop(other);
        let takes = (0..10_000).take_while(|_| own.take()).count();
        assert!((1..1000).contains(&takes), "many rings are taken at once: {takes}");
        own.ring();
    }

    #[test]
    fn only_sockets_are_bells() {
        let datagrams =
            socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap().0;
        for other in [datagrams, std::fs::File::open("/dev/null").unwrap().into()] {
            assert!(Bell::adopt(other).is_err());
        }
    }

    #[test]
    fn a_reader_looks_as_long_as_that_helps() {
        assert_eq!(Spin::for_cores(2), Spin::up_to(0));
        let mut spin = Spin::for_cores(4);
        let looks = |spin: &mut Spin, found: bool| {
            let mut looks = 0;
            let mut look = || {
                looks += 1;
                Ok(found && looks == 2)
            };
            assert_eq!(spin.run(&mut look), Ok(found));
            looks
        };
        assert_eq!(looks(&mut spin, false), LOOKS + 1);
        assert_eq!(looks(&mut spin, false), LOOKS / 2 + 1);
        assert_eq!(looks(&mut spin, true), 2);
        assert_eq!(looks(&mut spin, false), LOOKS / 2 + 1, "twice as long after it helped");
        while looks(&mut spin, false) > 1 {}
        let quiet = (0..200).take_while(|_| looks(&mut spin, false) == 1).count();
        assert!(quiet + 2 >= PATIENCE as usize && quiet < 200, "it is tried again: {quiet}");
        let mut never = Spin::up_to(0);
        assert!((0..200).all(|_| looks(&mut never, false) == 1));
    }
}
