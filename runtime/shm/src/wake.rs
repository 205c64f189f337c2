//! Wake-ups between processes: the reader of a ring spins shortly, then sleeps; who writes wakes it only if it sleeps.
//!
//! A bell is a pair of sockets and not an eventfd. Both sides of an eventfd share its flags, so a hostile one can take
//! `O_NONBLOCK` away and fill the counter, and the next write of the other side blocks for ever. Each end of a pair has
//! flags of its own, calls on it say themselves that they do not block, and the death of the other side ends the sleep.
use crate::descriptor::Descriptor;
use crate::region::{RegionError, Window};
use crate::ring::{Consumer, Producer, RingError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

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
    /// [`RegionError::NotSealed`] when it is no such socket.
    pub fn adopt(end: OwnedFd) -> Result<Self, RegionError> {
        let is_bell =
            socket_domain(&end) == Ok(AddressFamily::UNIX) && socket_type(&end) == Ok(SocketType::STREAM);
        if is_bell { Ok(Self(end)) } else { Err(RegionError::NotSealed) }
    }

    /// Wakes the other end. It never blocks: where nothing more fits, the other end has enough to wake up for, and where
    /// nobody is left there is nobody to wake.
    pub fn ring(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes what has rung, so that the next sleep is one; `false` when the other end is gone.
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
    /// Looks up to so many times.
    pub fn up_to(most: u32) -> Self {
        Self { looks: most, most, given_up: 0 }
    }

    /// Looks as is right for a machine with so many cores: not at all where there are fewer than 4.
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
    /// more than they have credit for, or wait for what comes back.
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
        // An open socket can be polled; what else may fail, such as a signal, ends the sleep early.
        let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], timeout.as_ref());
        self.woke()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
