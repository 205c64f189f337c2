//! Connections that are cut at any byte: with the resume protocol of the engine's channels, everything arrives once and in
//! order.
use crate::parts::*;
use std::net::{Shutdown, TcpListener, TcpStream};
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

/// Passes bytes on until so many have passed, then cuts both connections; without a number for ever.
fn pass(mut from: TcpStream, mut to: TcpStream, mut left: Option<u64>) {
    use std::io::{Read, Write};
    let mut bytes = [0; 4096];
    loop {
        let most = left.map_or(bytes.len() as u64, |left| left.min(bytes.len() as u64)) as usize;
        if most == 0 {
            break;
        }
        let Ok(n @ 1..) = from.read(&mut bytes[..most]) else { break };
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
        left = left.map(|left| left - n as u64);
    }
    // Either side may be gone already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Stands between two sides and cuts the first `cuts` connections somewhere, in one direction or the other.
fn cutting_proxy(target: String, cuts: u64, seed: u64) -> (Address, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = Address::Tcp(listener.local_addr().expect("bound").to_string());
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    std::thread::spawn(move || {
        let mut numbers = Numbers(seed);
        for stream in listener.incoming() {
            let Ok(near) = stream else { return };
            // The other side stops listening when the test is over.
            let Ok(far) = TcpStream::connect(&target) else { return };
            let cut = counted.load(Ordering::Relaxed) < cuts;
            let towards = numbers.next(4) != 0;
            // Mostly within the first frames, where most that can go wrong goes wrong.
            let place = if numbers.next(3) == 0 { numbers.next(100_000) } else { numbers.next(3_000) };
            let limits = match (cut, towards) {
                (false, _) => (None, None),
                (true, true) => (Some(place), None),
                (true, false) => (None, Some(place % 600)),
            };
            let (near_too, far_too) = (near.try_clone().expect("clones"), far.try_clone().expect("clones"));
            std::thread::spawn(move || pass(near, far, limits.0));
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                pass(far_too, near_too, limits.1);
                counted.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    (address, done)
}

/// Records of an epoch: of any size, and such that each tells which one it is.
fn record(epoch: u64) -> (usize, usize) {
    let width = match epoch % 10 {
        0 => 70_000,
        1 => 3_000,
        _ => epoch as usize % 50,
    };
    (1 + epoch as usize % 3, width)
}

/// The sending side of a channel, as the engine has it: sends from where it is told to, for ever until all is durable.
fn send_all(link: &mut dyn LinkSender, epochs: u64) -> bool {
    let mut next = None;
    let (mut sequence, mut credit) = (0, 0);
    loop {
        loop {
            match link.receive_control() {
                Ok(Some(Control::Resume(epoch))) => (next, credit) = (Some(epoch), 200_000i64),
                Ok(Some(Control::Credit(bytes))) => credit += bytes as i64,
                Ok(Some(Control::Durable(CLOSED))) => return true,
                Ok(Some(Control::Durable(_))) => {}
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        while let Some(epoch) = next.filter(|epoch| *epoch <= epochs && credit > 0) {
            let content = if epoch == epochs {
                Content::Frontier { epoch: CLOSED, steps: Vec::new() }
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

/// The receiving side: takes what comes, and tells when everything has come.
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
                        // The sender must hear it, whatever happens to the link meanwhile.
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

fn everything_arrives_once(security: &Security, cuts: u64, seed: u64) {
    let kind = Kind { security: security.clone(), ..tcp() };
    let (serving, incoming) = serve(&kind);
    let Address::Tcp(target) = serving.address().clone() else { panic!("TCP") };
    let (address, done) = cutting_proxy(target, cuts, seed);
    let (counted, security) = (Arc::clone(&done), security.clone());
    // The sender goes on until nothing is cut any more: what it has to send grows with the cuts.
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
            let mut link = connection.into_sender(schema()).expect("a link");
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
}

#[test]
fn everything_arrives_once_over_connections_that_are_cut() {
    everything_arrives_once(&Security::none(), 1000, 0x5eed);
}

#[test]
fn everything_arrives_once_over_secured_connections_that_are_cut() {
    let security = Security::mutual(&crate::security::Authority::new().host()).expect("they belong together");
    everything_arrives_once(&security, 300, 0xcafe);
}
