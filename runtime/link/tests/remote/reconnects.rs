//! Connections that are cut at any byte: with the resume protocol of the engine's channels, everything arrives once and in
//! order.
use crate::parts::*;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidemill_link::frame::{CLOSED, Content, Control};
use tidemill_link::link::{LinkReceiver, LinkSender};
use tidemill_link::remote::*;

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Reads the next bytes and their descriptors; nothing at the end.
fn take(from: &OwnedFd, bytes: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    (read.map_or(0, |read| read.bytes), descriptors.collect())
}

/// Whether all of it could be passed on.
fn give(to: &OwnedFd, mut bytes: &[u8], descriptors: &[OwnedFd]) -> bool {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut left = descriptors.as_slice();
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !left.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(left));
        }
        match sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(written) => (bytes, left) = (&bytes[written..], &[]),
            Err(_) => return false,
        }
    }
    true
}

/// Passes bytes and descriptors on until `left` bytes have passed, then cuts both connections; without a number for
/// ever. Returns the number of descriptors.
fn pass(from: &OwnedFd, to: &OwnedFd, mut left: Option<u64>) -> u64 {
    let (mut bytes, mut passed) = ([0; 4096], 0);
    loop {
        let most = left.map_or(bytes.len() as u64, |left| left.min(bytes.len() as u64)) as usize;
        if most == 0 {
            break;
        }
        let (n @ 1.., descriptors) = take(from, &mut bytes[..most]) else { break };
        if !give(to, &bytes[..n], &descriptors) {
            break;
        }
        passed += descriptors.len() as u64;
        left = left.map(|left| left - n as u64);
    }
    // Either side may be gone already.
    let _ = (shutdown(from, Shutdown::Both), shutdown(to, Shutdown::Both));
    passed
}

/// Stands between two sides and cuts the first `cuts` connections somewhere, in one direction or the other.
struct Proxy {
    address: Address,
    /// Connections that were cut.
    cut: Arc<AtomicU64>,
    /// Descriptors that were passed.
    descriptors: Arc<AtomicU64>,
}

type Accept = Box<dyn Fn() -> Option<OwnedFd> + Send>;

/// Listens at an address of the same kind.
fn listen_beside(target: &Address) -> (Address, Accept) {
    if target.scheme() == "tcp" {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = Address::tcp(listener.local_addr().expect("bound").to_string());
        return (address, Box::new(move || Some(listener.accept().ok()?.0.into())));
    }
    let beside = unix().address;
    let path = std::path::Path::new(beside.place());
    let (address, listener) = if target.place().starts_with('@') {
        let name = format!("tidemill-proxy-{}", path.file_name().expect("a name").display());
        let at = SocketAddr::from_abstract_name(&name).expect("a name");
        (Address::unix(format!("@{name}")), UnixListener::bind_addr(&at))
    } else {
        (Address::unix(path), UnixListener::bind(path))
    };
    let listener = listener.expect("binds");
    (address, Box::new(move || Some(listener.accept().ok()?.0.into())))
}

fn connect_plainly(target: &Address) -> Option<OwnedFd> {
    match (target.scheme(), target.place().strip_prefix('@')) {
        ("tcp", _) => TcpStream::connect(target.place()).map(OwnedFd::from),
        (_, None) => UnixStream::connect(target.place()).map(OwnedFd::from),
        (_, Some(name)) => {
            let at = SocketAddr::from_abstract_name(name).expect("a name");
            UnixStream::connect_addr(&at).map(OwnedFd::from)
        }
    }
    .ok()
}

fn cutting_proxy(target: Address, cuts: u64, seed: u64) -> Proxy {
    let (address, accept) = listen_beside(&target);
    let (cut, descriptors) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, passed) = (Arc::clone(&cut), Arc::clone(&descriptors));
    std::thread::spawn(move || {
        let mut numbers = Numbers(seed);
        while let Some(near) = accept() {
            // The other side stops listening when the test is over.
            let Some(far) = connect_plainly(&target) else { return };
            let cut = counted.load(Ordering::Relaxed) < cuts;
            let towards = numbers.next(4) != 0;
            // Mostly within the first frames, where most that can go wrong goes wrong.
            let place = if numbers.next(3) == 0 { numbers.next(100_000) } else { numbers.next(3_000) };
            let limits = match (cut, towards) {
                (false, _) => (None, None),
                (true, true) => (Some(place), None),
                (true, false) => (None, Some(place % 600)),
            };
            let (near, far) = (Arc::new(near), Arc::new(far));
            let (near_too, far_too, passed) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(&passed));
            std::thread::spawn(move || passed.fetch_add(pass(&near, &far, limits.0), Ordering::Relaxed));
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                pass(&far_too, &near_too, limits.1);
                counted.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    Proxy { address, cut, descriptors }
}

/// Returns the number and size of the records of an epoch, by which a test recognises it.
fn record(epoch: u64) -> (usize, usize) {
    let width = match epoch % 10 {
        0 => 70_000,
        1 => 3_000,
        _ => epoch as usize % 50,
    };
    (1 + epoch as usize % 3, width)
}

/// The sending side of a channel, as in the engine: sends from the requested epoch on, for ever until all is durable.
fn send_all(link: &mut dyn LinkSender, epochs: u64) -> bool {
    let mut next = None;
    let (mut sequence, mut credit) = (0, 0);
    loop {
        loop {
            match link.receive_control() {
                Ok(Some(Control::Resume(epoch))) => (next, credit) = (Some(epoch), 200_000i64),
                Ok(Some(Control::Credit(bytes))) => credit += bytes as i64,
                Ok(Some(Control::Durable(CLOSED))) => return true,
                Ok(Some(Control::Durable(_) | Control::Ahead(_) | Control::Delivers(_))) => {}
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        while let Some(epoch) = next.filter(|epoch| *epoch <= epochs && credit > 0) {
            let content = if epoch == epochs {
                Content::Frontier { epoch: CLOSED, rows: 0, steps: Vec::new() }
            } else {
                let (rows, width) = record(epoch);
                Content::Data { epoch, batch: batch(rows, width) }
            };
            let mut frame = frame(sequence, content);
            frame.header.cost = 100 + record(epoch).1 as u64;
            credit -= frame.header.cost as i64;
            if link.send(frame).is_err() {
                return false;
            }
            (sequence, next) = (sequence + 1, Some(epoch + 1));
        }
        sleep(link.descriptor());
        link.clear();
    }
}

/// The receiving side: takes frames, and reports when everything has come.
fn receive_all(link: &mut dyn LinkReceiver, taken: &mut Vec<u64>) -> bool {
    let mut sequence = 0;
    if link.send_control(Control::Resume(taken.len() as u64)).is_err() {
        return false;
    }
    loop {
        match link.receive() {
            Ok(Some(frame)) => {
                assert_eq!(frame.header.sequence, sequence, "a frame is missing");
                sequence += 1;
                match frame.content {
                    Content::Frontier { epoch, .. } => {
                        assert_eq!(epoch, CLOSED);
                        // The sender must receive it, whatever happens to the link meanwhile.
                        return link.send_control(Control::Durable(CLOSED)).is_ok();
                    }
                    Content::Data { epoch, batch: records } => {
                        let (rows, width) = record(epoch);
                        assert!(records == batch(rows, width), "epoch {epoch} differs");
                        taken.push(epoch);
                        if link.send_control(Control::Credit(frame.header.cost)).is_err() {
                            return false;
                        }
                    }
                    Content::Elsewhere { .. } => panic!("nobody sent this"),
                }
            }
            Ok(None) => {
                sleep(link.descriptor());
                link.clear();
            }
            Err(error) => {
                assert!(matches!(error, tidemill_link::link::LinkError::Lost), "{error}");
                return false;
            }
        }
    }
}

/// Returns the number of descriptors that were passed.
fn everything_arrives_once(kind: &Kind, cuts: u64, seed: u64) -> u64 {
    let (serving, incoming) = serve(kind);
    let Proxy { address, cut: done, descriptors } = cutting_proxy(serving.address().clone(), cuts, seed);
    let (counted, security) = (Arc::clone(&done), kind.security.clone());
    // The sender continues until nothing is cut any more: its data grows with the cuts.
    let epochs = 20 * cuts;
    let finished = Arc::new(Mutex::new(false));
    let over = Arc::clone(&finished);
    let sending = std::thread::spawn(move || {
        let mut connections = 0u64;
        loop {
            if *over.lock().expect("nobody panics") {
                return connections;
            }
            connections += 1;
            let Ok(connection) = dial(&address, &security, &greeting(Role::Sender), PATIENCE) else {
                continue;
            };
            // It may be cut before the first word of the link, which is that of the ring.
            let Ok(mut link) = connection.into_sender(schema()) else { continue };
            if send_all(link.as_mut(), epochs) {
                return connections;
            }
        }
    });
    let mut taken = Vec::new();
    let mut links = 0u64;
    loop {
        let incoming = incoming.recv_timeout(PATIENCE).expect("the sender dials again");
        let Ok(connection) = incoming.accept(&greeting(Role::Receiver)) else { continue };
        links += 1;
        let mut link = connection.into_receiver(schema()).expect("a link");
        if receive_all(link.as_mut(), &mut taken) {
            *finished.lock().expect("nobody panics") = true;
            break;
        }
    }
    drop((serving, incoming));
    let connections = sending.join().expect("does not panic");
    assert!(taken.iter().copied().eq(0..epochs), "{} of {epochs}", taken.len());
    let cut = counted.load(Ordering::Relaxed);
    eprintln!(
        "{cut} of {connections} connections were cut, {links} became links, {epochs} epochs arrived once"
    );
    assert!(cut >= cuts, "only {cut} connections were cut");
    descriptors.load(Ordering::Relaxed)
}

#[test]
fn everything_arrives_once_over_connections_that_are_cut() {
    everything_arrives_once(&tcp(), 300, 0x5eed);
}

#[test]
fn everything_arrives_once_over_secured_connections_that_are_cut() {
    everything_arrives_once(&secured(tcp()), 300, 0xcafe);
}

/// Large payloads take the ring, whose descriptor is lost with some of the connections.
#[test]
#[ignore = "long: make test-long"]
fn everything_arrives_once_over_connections_of_one_host_that_are_cut() {
    let descriptors = everything_arrives_once(&unix(), 300, 0xfeed);
    assert!(descriptors > 100, "{descriptors} rings for 300 connections");
}

#[test]
#[ignore = "long: make test-long"]
fn everything_arrives_once_over_connections_by_name_that_are_cut() {
    let descriptors = everything_arrives_once(&named(), 300, 0xbead);
    assert!(descriptors > 100, "{descriptors} rings for 300 connections");
}

#[test]
#[ignore = "long: make test-long"]
fn everything_arrives_once_over_secured_connections_of_one_host_that_are_cut() {
    assert_eq!(everything_arrives_once(&secured(unix()), 300, 0xface), 0, "what TLS protects stays in it");
}
