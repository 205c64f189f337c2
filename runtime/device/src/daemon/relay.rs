//! Connections that have no socket of their own, such as those with TLS: a thread for each direction moves their bytes to and from a
//! socket that a process can be given. Nothing is kept but the bytes that are on their way.
use crate::carrier::{Carrier, HangUp};
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::Builder;
use tidemill_link::remote::ByteStream;

/// Bytes that are moved at once.
const AT_ONCE: usize = 256 << 10;

/// Returns a socket by which another process uses the connection.
///
/// # Errors
/// If the system has no descriptor or thread left.
pub(super) fn socket_of(stream: ByteStream) -> io::Result<OwnedFd> {
    let stream = match stream.into_socket() {
        Ok(socket) => return socket,
        Err(stream) => stream,
    };
    let Carrier { mut outgoing, mut arriving, hang_up, .. } = Carrier::of_stream(stream);
    let (theirs, mut to) = UnixStream::pair()?;
    let mut from = to.try_clone()?;
    let hang_up: Arc<HangUp> = Arc::new(hang_up);
    let lost = Arc::clone(&hang_up);
    Builder::new().name("tm-device-in".into()).spawn(move || {
        let mut bytes = vec![0; AT_ONCE];
        loop {
            match arriving.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(read) if to.write_all(&bytes[..read]).is_ok() => {}
                Ok(_) => {
                    lost();
                    break;
                }
            }
        }
        // The other direction may have something left.
        let _ = to.shutdown(Shutdown::Write);
    })?;
    Builder::new().name("tm-device-out".into()).spawn(move || {
        let mut bytes = vec![0; AT_ONCE];
        while let Ok(read @ 1..) = Read::read(&mut from, &mut bytes) {
            if outgoing.send(&mut [IoSlice::new(&bytes[..read])]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        hang_up();
    })?;
    Ok(theirs.into())
}
