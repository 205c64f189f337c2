//! A stream, plain or with TLS on it.
use super::secured::{Secured, explain};
use crate::link::LinkError;
use crate::transport::{Class, Descriptors, Line, Stream};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

/// Plain text that goes into TLS at once: its records are up to 16 KiB.
const TLS_AT_ONCE: usize = 64 << 10;

/// A stream, plain or with TLS on it.
pub(super) struct Carrier {
    stream: Box<dyn Stream>,
    tls: Option<Box<Secured>>,
}

/// `Read` and `Write` of the stream, for rustls.
struct Raw<'a>(&'a mut dyn Stream);

impl Read for Raw<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Carrier {
    /// Of a connection.
    pub(super) fn new(stream: Box<dyn Stream>, tls: Option<Secured>) -> Self {
        Self { stream, tls: tls.map(Box::new) }
    }

    /// Hands over descriptors, where memory may be shared: the other side is a process of this host, and nothing of what it is sent is
    /// protected from this host. What TLS protects stays in TLS.
    pub(super) fn descriptors(&mut self) -> Option<&mut dyn Descriptors> {
        if self.tls.is_some() { None } else { self.stream.descriptors() }
    }

    /// Returns the user whose process the other side is, where the system knows it.
    pub(super) fn peer_user(&self) -> Option<u32> {
        self.stream.peer_user()
    }

    /// Says what the stream carries.
    pub(super) fn classify(&mut self, class: Class) {
        self.stream.classify(class);
    }

    /// The part of the stream that other threads use.
    pub(super) fn line(&self) -> Arc<dyn Line> {
        self.stream.line()
    }

    /// Returns whether TLS is on it.
    pub(super) fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the verified certificate of the other side as DER; none without TLS.
    pub(super) fn peer_certificate(&self) -> Option<&[u8]> {
        let chain = self.tls.as_ref()?.tls.peer_certificates()?;
        chain.first().map(AsRef::as_ref)
    }

    /// Returns whether it is not known yet who the other side is.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(|secured| secured.tls.is_handshaking())
    }

    /// Reads the other side's part of the TLS handshake; 0 at the end, `WouldBlock` when nothing is there.
    pub(super) fn shake_hands(&mut self) -> io::Result<usize> {
        let Some(Secured { tls, .. }) = self.tls.as_deref_mut() else { return Ok(0) };
        let read = tls.read_tls(&mut Raw(&mut *self.stream))?;
        let processed = tls.process_new_packets();
        // An alert, where it is not who it should be.
        match flush_tls(tls, &mut *self.stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock && processed.is_ok() => return Err(error),
            _ => {}
        }
        processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, explain(&error)))?;
        Ok(read)
    }

    /// Writes what can be written now; `WouldBlock` when that is nothing.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(secured) = &mut self.tls else { return self.stream.write(parts) };
        secured.check()?;
        let tls = &mut secured.tls;
        flush_tls(tls, &mut *self.stream)?;
        let mut taken = 0;
        for part in parts {
            let rest = &part[..part.len().min(TLS_AT_ONCE - taken)];
            let n = tls.writer().write(rest)?;
            taken += n;
            if n < part.len() || taken == TLS_AT_ONCE {
                break;
            }
        }
        match flush_tls(tls, &mut *self.stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Writes what TLS holds back; `WouldBlock` when something stays.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |secured| flush_tls(&mut secured.tls, &mut *self.stream))
    }

    /// Reads into the slice; 0 at the end, `WouldBlock` when nothing is there.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(secured) = &mut self.tls else { return self.stream.read(into) };
        secured.check()?;
        let tls = &mut secured.tls;
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            let end = tls.read_tls(&mut Raw(&mut *self.stream))? == 0;
            let processed = tls.process_new_packets();
            // Answers of the handshake, and alerts.
            match flush_tls(tls, &mut *self.stream) {
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

    /// Sends the end of TLS and the bytes that are held back, if that takes no waiting.
    pub(super) fn close(&mut self) {
        if let Some(Secured { tls, .. }) = self.tls.as_deref_mut() {
            tls.send_close_notify();
            // The peer learns it from the stream, too.
            let _ = flush_tls(tls, &mut *self.stream);
        }
    }
}

fn flush_tls(tls: &mut rustls::Connection, stream: &mut dyn Stream) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut Raw(&mut *stream))?;
    }
    Ok(())
}

/// Maps the failure of a stream to an error of a link: for any reason, the peer cannot be reached over it.
pub(super) fn lost(error: &io::Error) -> LinkError {
    match error.kind() {
        ErrorKind::InvalidData => LinkError::Damaged(error.to_string()),
        _ => LinkError::Lost,
    }
}
