//! Descriptors of a lane that stay the same when its carrier changes.
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_link::transport::Line;
use tidemill_link::wake::Event;

/// Two descriptors: one is readable when the lane may have something to read, or when a write that was blocked may go on;
/// the other one when the lane may take something.
pub(crate) struct Readiness {
    read: OwnedFd,
    space: OwnedFd,
    read_event: Event,
    space_event: Event,
    /// Whether each is raised: lowering one costs a system call.
    is_read_raised: AtomicBool,
    is_space_raised: AtomicBool,
}

const DATA: EventData = EventData::new_u64(0);

impl Readiness {
    pub(crate) fn new() -> io::Result<Self> {
        let (read, space) = (epoll::create(CreateFlags::CLOEXEC)?, epoll::create(CreateFlags::CLOEXEC)?);
        let (read_event, space_event) = (Event::new()?, Event::new()?);
        epoll::add(&read, &read_event, DATA, EventFlags::IN)?;
        epoll::add(&space, &space_event, DATA, EventFlags::IN)?;
        let (is_read_raised, is_space_raised) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { read, space, read_event, space_event, is_read_raised, is_space_raised })
    }

    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    pub(crate) fn writable(&self) -> BorrowedFd<'_> {
        self.space.as_fd()
    }

    /// Waits for this carrier from now on.
    pub(crate) fn over(&self, line: &dyn Line) -> io::Result<()> {
        epoll::add(&self.read, line.readable(), DATA, EventFlags::IN)?;
        epoll::add(&self.space, line.readable(), DATA, EventFlags::OUT)?;
        Ok(())
    }

    /// Waits for it no more.
    pub(crate) fn off(&self, line: &dyn Line) {
        // One that was not added is as good.
        let _ = epoll::delete(&self.read, line.readable());
        let _ = epoll::delete(&self.space, line.readable());
    }

    /// Whether those who wait to read wait for space, too: a write was blocked.
    pub(crate) fn wants_space(&self, line: &dyn Line, wants: bool) {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, wants);
        let _ = epoll::modify(&self.read, line.readable(), DATA, flags);
    }

    /// While the window is full, space comes from what is read; `reads`: whoever waits for space may read it.
    pub(crate) fn space_comes_from(&self, line: &dyn Line, is_full: bool, reads: bool) {
        let flags = match (is_full, reads) {
            (false, _) => EventFlags::OUT,
            (true, true) => EventFlags::IN,
            (true, false) => EventFlags::empty(),
        };
        let _ = epoll::modify(&self.space, line.readable(), DATA, flags);
    }

    /// Wakes those who wait for either.
    pub(crate) fn raise(&self) {
        self.is_read_raised.store(true, Ordering::Release);
        self.is_space_raised.store(true, Ordering::Release);
        self.read_event.raise();
        self.space_event.raise();
    }

    /// Wakes those who wait to read.
    pub(crate) fn raise_read(&self) {
        self.is_read_raised.store(true, Ordering::Release);
        self.read_event.raise();
    }

    /// Called before a read looks at what is there. Those who raise hold the lane, as those who lower do.
    pub(crate) fn lower(&self) {
        if self.is_read_raised.swap(false, Ordering::AcqRel) {
            self.read_event.lower();
        }
    }

    /// Called before a write looks for space.
    pub(crate) fn lower_space(&self) {
        if self.is_space_raised.swap(false, Ordering::AcqRel) {
            self.space_event.lower();
        }
    }
}
