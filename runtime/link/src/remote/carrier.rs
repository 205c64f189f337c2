//! A socket that never blocks, plain or with TLS on it.
use super::credentials::Revoked;
use super::security::explain;
use crate::link::LinkError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg, sockopt,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so long without a sign of life of its host, a TCP peer is lost.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(9);
/// First probe on a silent connection after so long, then every so often.
const PROBE_EVERY: Duration = Duration::from_secs(3);
/// What the send buffer of the kernel shall hold: the credit window of a channel.
const SEND_BUFFER: usize = 4 << 20;
/// Plain text that goes into TLS at once: its records are up to 16 KiB.
const TLS_AT_ONCE: usize = 64 << 10;

/// TLS, and whether the other side is still believed.
pub(super) struct Secured {
    tls: rustls::Connection,
    revoked: Revoked,
    /// How often the set had changed when its certificate was looked for last.
    looked: Option<u64>,
}

impl Secured {
    pub(super) fn new(tls: rustls::Connection, revoked: Revoked) -> Self {
        Self { tls, revoked, looked: None }
    }

    /// Whether the certificate of the other side still counts: it may have been revoked since both found out who they are.
    fn check(&mut self) -> io::Result<()> {
        let changes = self.revoked.changes();
        if self.looked == Some(changes) {
            return Ok(());
        }
        let Some(certificate) = self.tls.peer_certificates().and_then(<[_]>::first) else { return Ok(()) };
        if let Err(error) = self.revoked.check(certificate) {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, explain(&error)));
        }
        self.looked = Some(changes);
        Ok(())
    }
}

/// A socket that never blocks.
pub(super) struct Carrier {
    socket: Arc<OwnedFd>,
    tls: Option<Box<Secured>>,
    /// The other side is a process of this host, and what it is told may be seen by this host.
    local: bool,
    /// Whether a descriptor may come, and the one that came.
    expecting: bool,
    descriptor: Option<OwnedFd>,
}

/// Sets what all TCP connections have.
pub(super) fn configure_tcp(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, PEER_TIMEOUT.as_millis() as u32)?;
    // A size that is set ends the kernel's own sizing, so one that it would cut down is worse than none.
    let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max").ok();
    if limit.and_then(|limit| limit.trim().parse::<usize>().ok()).is_some_and(|limit| limit >= SEND_BUFFER) {
        sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER)?;
    }
    Ok(())
}

/// `Read` and `Write` of the socket, for rustls.
struct Raw<'a>(&'a OwnedFd);

impl Read for Raw<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        again(|| recv(self.0, &mut *into, RecvFlags::empty()).map(|(_, n)| n))
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // Not `writev`: a peer that is gone must not be a signal, whatever the process does with those.
        again(|| sendmsg(self.0, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tries again when a signal came between.
fn again<T>(mut act: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

impl Carrier {
    /// Of a connected socket.
    pub(super) fn new(socket: OwnedFd, tls: Option<Secured>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let tls = tls.map(Box::new);
        Ok(Self { socket: Arc::new(socket), tls, local: false, expecting: false, descriptor: None })
    }

    /// Of a Unix socket: memory may be shared over it. What TLS protects stays in TLS.
    pub(super) fn local(mut self) -> Self {
        self.local = self.tls.is_none();
        self
    }

    /// Whether memory may be shared over it.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    /// From now on a descriptor may come with what is read.
    pub(super) fn expect_descriptor(&mut self) {
        self.expecting = true;
    }

    /// The descriptor that came. No other is taken from now on.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.expecting = false;
        self.descriptor.take()
    }

    /// Writes bytes and passes a descriptor with the first of them.
    pub(super) fn pass(&mut self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let descriptors = [descriptor];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let parts = [IoSlice::new(bytes)];
        again(|| sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL))
    }

    fn read_with_descriptor(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(into)];
        let read = again(|| recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                // More than one is not asked for; the others are closed here.
                self.descriptor = descriptors.last();
            }
        }
        Ok(read.bytes)
    }

    /// The socket, to wait for it.
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Whether TLS is on it.
    pub(super) fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// The certificate that the other side has shown and that is believed, as DER; none without TLS.
    pub(super) fn peer_certificate(&self) -> Option<&[u8]> {
        let chain = self.tls.as_ref()?.tls.peer_certificates()?;
        chain.first().map(AsRef::as_ref)
    }

    /// Whether it is not known yet who the other side is.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(|secured| secured.tls.is_handshaking())
    }

    /// Reads what the other side says while both find out who they are; 0 at the end, `WouldBlock` when nothing is there.
    pub(super) fn shake_hands(&mut self) -> io::Result<usize> {
        let Some(Secured { tls, .. }) = self.tls.as_deref_mut() else { return Ok(0) };
        let read = tls.read_tls(&mut Raw(&self.socket))?;
        let processed = tls.process_new_packets();
        // An alert, where it is not who it should be.
        match flush_tls(tls, &self.socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock && processed.is_ok() => return Err(error),
            _ => {}
        }
        processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, explain(&error)))?;
        Ok(read)
    }

    /// Writes what can be written now; `WouldBlock` when that is nothing.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(secured) = &mut self.tls else { return Raw(&self.socket).write_vectored(parts) };
        secured.check()?;
        let tls = &mut secured.tls;
        flush_tls(tls, &self.socket)?;
        let mut taken = 0;
        for part in parts {
            let rest = &part[..part.len().min(TLS_AT_ONCE - taken)];
            let n = tls.writer().write(rest)?;
            taken += n;
            if n < part.len() || taken == TLS_AT_ONCE {
                break;
            }
        }
        match flush_tls(tls, &self.socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Writes what TLS holds back; `WouldBlock` when something stays.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |secured| flush_tls(&mut secured.tls, &self.socket))
    }

    /// Reads into the slice; 0 at the end, `WouldBlock` when nothing is there.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.expecting {
            return self.read_with_descriptor(into);
        }
        let Some(secured) = &mut self.tls else { return Raw(&self.socket).read(into) };
        secured.check()?;
        let tls = &mut secured.tls;
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            let end = tls.read_tls(&mut Raw(&self.socket))? == 0;
            let processed = tls.process_new_packets();
            // Answers of the handshake, and alerts.
            match flush_tls(tls, &self.socket) {
                Err(error) if error.kind() != ErrorKind::WouldBlock && processed.is_ok() => {
                    return Err(error);
                }
                _ => {}
            }
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, explain(&error)))?;
            if end && tls.is_handshaking() {
                return Ok(0);
            }
        }
    }

    /// Says good-bye and what is held back, as far as that goes without waiting.
    pub(super) fn close(&mut self) {
        if let Some(Secured { tls, .. }) = self.tls.as_deref_mut() {
            tls.send_close_notify();
            // The peer learns it from the socket, too.
            let _ = flush_tls(tls, &self.socket);
        }
    }
}

fn flush_tls(tls: &mut rustls::Connection, socket: &OwnedFd) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut Raw(socket))?;
    }
    Ok(())
}

/// What the failure of a socket is for a link: whatever happened to it, the peer cannot be reached over it.
pub(super) fn lost(error: &io::Error) -> LinkError {
    match error.kind() {
        ErrorKind::InvalidData => LinkError::Damaged(error.to_string()),
        _ => LinkError::Lost,
    }
}

/// When something must be done.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub(super) fn after(timeout: Duration) -> Self {
        Self(now() + timeout)
    }

    /// So long is left.
    pub(super) fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "patience with a peer is real time, whatever the clock of the run is"
)]
fn now() -> Instant {
    Instant::now()
}

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// The descriptor is ready, or a signal came.
    Ready,
    /// It took too long.
    TimedOut,
    /// The other descriptor became readable.
    Stopped,
}

/// Waits for a descriptor; without a deadline as long as it takes.
pub(super) fn wait(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    deadline: Option<Deadline>,
    stop: Option<BorrowedFd<'_>>,
) -> Waited {
    let left = deadline.map(Deadline::left);
    if left.is_some_and(|left| left.is_zero()) {
        return Waited::TimedOut;
    }
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let mut descriptors = vec![PollFd::from_borrowed_fd(descriptor, flags)];
    descriptors.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
    // What may fail on open descriptors, such as a signal, ends the wait early; callers try and come back.
    let _ = poll(&mut descriptors, timeout.as_ref());
    match descriptors.get(1) {
        Some(stop) if !stop.revents().is_empty() => Waited::Stopped,
        _ => Waited::Ready,
    }
}

impl AsFd for Carrier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
