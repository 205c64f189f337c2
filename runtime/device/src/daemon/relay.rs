//! Connections that have no socket of their own, such as those with TLS: a thread for each direction moves their bytes to and from a
//! socket that a process can be given. Nothing is kept but the bytes that are on their way.
//!
//! A process may end while its client still writes. Its last words go out before the connection ends.
use super::now;
use crate::carrier::Carrier;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;
use tidemill_link::remote::ByteStream;

/// Bytes that are moved at once.
const AT_ONCE: usize = 256 << 10;
/// How long a client may read nothing of the last words of a process that has ended.
const PATIENCE: Duration = Duration::from_secs(5);

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
    outgoing.limit(PATIENCE)?;
    // The process reads no more.
    let ended = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&ended);
    Builder::new().name("tm-device-in".into()).spawn(move || {
        let mut bytes = vec![0; AT_ONCE];
        loop {
            match arriving.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(_) if ended.load(Ordering::Relaxed) => {}
                // The other direction ends the connection. What the client writes until then is dropped.
                Ok(read) => ended.store(to.write_all(&bytes[..read]).is_err(), Ordering::Relaxed),
            }
        }
        // The other direction may have something left.
        let _ = to.shutdown(Shutdown::Write);
    })?;
    Builder::new().name("tm-device-out".into()).spawn(move || {
        let mut bytes = vec![0; AT_ONCE];
        while let Ok(read @ 1..) = Read::read(&mut from, &mut bytes) {
            // Without room the look comes back now and then, also before the limit.
            let mut full_since = None;
            let mut watch = |written| {
                if written > 0 || !has_ended.load(Ordering::Relaxed) {
                    full_since = None;
                } else if now().duration_since(*full_since.get_or_insert_with(now)) >= PATIENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Ok(())
            };
            if outgoing.send_watched(&mut [IoSlice::new(&bytes[..read])], &mut watch).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        hang_up();
    })?;
    Ok(theirs.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use tidemill_link::remote::{Address, Greeting, Listener, Purpose, Security, dial};

    fn greeting() -> Greeting {
        let purpose = Purpose::Device { client: "tests".to_owned(), tenant: None };
        Greeting { run: 0, plan_version: 0, purpose }
    }

    /// Both ends of a connection that has no socket of its own: that of a client, and that of a process.
    fn relayed() -> (Carrier, UnixStream, tidemill_link::remote::Serving) {
        tidemill_session::install().unwrap();
        let address: Address = tidemill_session::address("127.0.0.1:0");
        let (to, process) = channel();
        let listener = Listener::bind(&address, &Security::none()).unwrap();
        let serving = listener.serve(move |incoming| {
            let connection = incoming.accept(&greeting()).unwrap();
            to.send(socket_of(connection.into_bytes()).unwrap()).unwrap();
        });
        let serving = serving.unwrap();
        let client =
            dial(serving.address(), &Security::none(), &greeting(), Duration::from_secs(30)).unwrap();
        let client = Carrier::of_stream(client.into_bytes());
        (client, process.recv().unwrap().into(), serving)
    }

    #[test]
    fn the_last_words_of_a_process_arrive_though_its_client_still_writes() {
        let (mut client, mut process, _serving) = relayed();
        // More than is on its way at once: the relay has most of it when the client writes.
        let words = 32 << 20;
        let speaks = std::thread::spawn(move || {
            process.shutdown(Shutdown::Read).unwrap();
            process.write_all(&vec![7; words]).unwrap();
        });
        client.outgoing.send(&mut [IoSlice::new(&[1; 1000])]).unwrap();
        let (mut heard, mut bytes) = (0, vec![0; 1 << 20]);
        loop {
            match client.arriving.read(&mut bytes).unwrap() {
                0 => break,
                read => heard += read,
            }
            // The process reads nothing of it.
            let _ = client.outgoing.send(&mut [IoSlice::new(&[1; 1000])]);
        }
        assert_eq!(heard, words);
        speaks.join().unwrap();
    }
}
