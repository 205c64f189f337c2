//! The behaviour of every transport, as tests: bytes in both directions, whole and in order, and ends that are noticed.
//! They are here for the tests of transports in other crates.
//!
//! ```
//! use tidemill_link::transport::{Address, conformance};
//!
//! let address: Address = "memory://".parse()?;
//! for (name, test) in conformance::TESTS {
//!     println!("{name}");
//!     test(address.transport()?, address.place());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{Acceptor, Address, Line, Stream, Transport};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Long enough that only what hangs for ever takes it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A test of a transport at a place of its own; it panics where the transport behaves otherwise.
pub type Test = fn(&dyn Transport, &str);

/// All tests with their names.
pub const TESTS: [(&str, Test); 10] = [
    ("addresses_name_their_transport", addresses_name_their_transport),
    ("bytes_go_both_ways_in_order", bytes_go_both_ways_in_order),
    (
        "large_amounts_arrive_whole_in_both_directions_at_once",
        large_amounts_arrive_whole_in_both_directions_at_once,
    ),
    ("a_side_that_reads_nothing_stops_the_other_one", a_side_that_reads_nothing_stops_the_other_one),
    (
        "space_is_an_edge_of_the_descriptor_that_links_wait_for",
        space_is_an_edge_of_the_descriptor_that_links_wait_for,
    ),
    ("what_a_side_wrote_before_it_ended_can_be_read", what_a_side_wrote_before_it_ended_can_be_read),
    (
        "a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes",
        a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes,
    ),
    (
        "any_thread_can_hang_up_and_what_was_written_can_still_be_read",
        any_thread_can_hang_up_and_what_was_written_can_still_be_read,
    ),
    (
        "a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards",
        a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards,
    ),
    ("many_sides_dial_while_others_are_accepted", many_sides_dial_while_others_are_accepted),
];

fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags) {
    let timeout = PATIENCE.try_into().unwrap();
    assert!(
        poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], Some(&timeout)).unwrap() > 0,
        "nothing came"
    );
}

fn wait_to_write(line: &dyn Line) {
    match line.writable() {
        Some(writable) => wait(writable, PollFlags::IN),
        None => wait(line.readable(), PollFlags::OUT),
    }
}

fn accept(acceptor: &dyn Acceptor) -> Box<dyn Stream> {
    loop {
        match acceptor.accept() {
            Ok(stream) => return stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(acceptor.readable(), PollFlags::IN),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Both sides of a connection, the one that dialled first.
fn connect(transport: &dyn Transport, place: &str) -> (Box<dyn Stream>, Box<dyn Stream>) {
    let acceptor = transport.listen(place).unwrap();
    let dialled = transport.dial(&acceptor.place(), PATIENCE).unwrap();
    (dialled, accept(&*acceptor))
}

fn write_all(stream: &mut dyn Stream, mut bytes: &[u8]) {
    let line = stream.line();
    while !bytes.is_empty() {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        match stream.write(&[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_to_write(&*line),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads `count` bytes, or fewer where the stream ends.
fn read_exactly(stream: &mut dyn Stream, count: usize) -> Vec<u8> {
    let (line, mut bytes, mut done) = (stream.line(), vec![0; count], 0);
    while done < count {
        match stream.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(line.readable(), PollFlags::IN),
            Err(error) => panic!("{error}"),
        }
    }
    bytes.truncate(done);
    bytes
}

/// Reads until the end or an error, both of which say that the other side is gone.
fn is_gone(stream: &mut dyn Stream) -> bool {
    let line = stream.line();
    loop {
        match stream.read(&mut [0; 16]) {
            Ok(0) => return true,
            Ok(_) => return false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(line.readable(), PollFlags::IN),
            Err(_) => return true,
        }
    }
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n % 251) as u8).collect()
}

fn addresses_name_their_transport(transport: &dyn Transport, place: &str) {
    let address = Address::new(transport.scheme(), place);
    let read: Address = address.to_string().parse().unwrap();
    assert_eq!((read.scheme(), read.place()), (transport.scheme(), place));
    assert_eq!(read.transport().unwrap().scheme(), transport.scheme());
    let beside = read.beside().to_string().parse::<Address>().unwrap();
    assert!(beside.transport().unwrap().listen(beside.place()).is_ok());
}

fn bytes_go_both_ways_in_order(transport: &dyn Transport, place: &str) {
    let (mut one, mut other) = connect(transport, place);
    for n in 0..200u8 {
        write_all(&mut *one, &[n; 3]);
        write_all(&mut *other, &[n, 1, n, 1]);
    }
    let expected: Vec<u8> = (0..200).flat_map(|n| [n; 3]).collect();
    assert_eq!(read_exactly(&mut *other, 600), expected);
    let expected: Vec<u8> = (0..200).flat_map(|n| [n, 1, n, 1]).collect();
    assert_eq!(read_exactly(&mut *one, 800), expected);
    for stream in [&mut one, &mut other] {
        assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

/// Far more than a transport keeps in transit, in both directions at once.
fn large_amounts_arrive_whole_in_both_directions_at_once(transport: &dyn Transport, place: &str) {
    const BYTES: usize = 12 << 20;
    let scheme = transport.scheme();
    let (one, other) = connect(transport, place);
    std::thread::scope(|scope| {
        for (mut stream, name) in [(one, "one"), (other, "other")] {
            scope.spawn(move || {
                let (line, sent) = (stream.line(), pattern(BYTES));
                let (mut written, mut read) = (0, Vec::new());
                let mut chunk = vec![0; 100_000];
                while written < BYTES || read.len() < BYTES {
                    let wrote = stream.write(&[IoSlice::new(&sent[written..])]);
                    written += *wrote.as_ref().unwrap_or(&0);
                    if written == BYTES && read.len() == BYTES {
                        // The other side has everything, and may have ended.
                        break;
                    }
                    match stream.read(&mut chunk) {
                        Ok(0) => panic!(
                            "{scheme}: {name} finds an end, after {} bytes, {written} written",
                            read.len()
                        ),
                        Ok(n) => read.extend_from_slice(&chunk[..n]),
                        Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                        Err(_) if read.len() < BYTES => wait(line.readable(), PollFlags::IN),
                        Err(_) if written < BYTES => wait_to_write(&*line),
                        Err(_) => {}
                    }
                }
                assert!(read == sent, "{name} reads something else");
            });
        }
    });
}

fn a_side_that_reads_nothing_stops_the_other_one(transport: &dyn Transport, place: &str) {
    let (mut one, mut other) = connect(transport, place);
    let (chunk, mut written) = (pattern(64 << 10), 0);
    loop {
        match one.write(&[IoSlice::new(&chunk)]) {
            Ok(n) => written += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
        assert!(written < 1 << 30, "nothing stops it");
    }
    assert_eq!(read_exactly(&mut *other, written).len(), written);
    wait_to_write(&*one.line());
    write_all(&mut *one, b"on");
    assert_eq!(read_exactly(&mut *other, 2), b"on");
}

/// Who waits for both at once with one descriptor, by edges, sees that there is space again.
fn space_is_an_edge_of_the_descriptor_that_links_wait_for(transport: &dyn Transport, place: &str) {
    use rustix::event::epoll;
    let (mut one, mut other) = connect(transport, place);
    let (chunk, mut written) = (pattern(64 << 10), 0);
    while let Ok(n) = one.write(&[IoSlice::new(&chunk)]) {
        written += n;
    }
    let line = one.line();
    let both = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    flags.set(epoll::EventFlags::OUT, line.writable().is_none());
    epoll::add(&both, line.readable(), epoll::EventData::new_u64(0), flags).unwrap();
    let events = |timeout: Duration| {
        let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 4];
        epoll::wait(&both, &mut events, Some(&timeout.try_into().unwrap())).unwrap().0.len()
    };
    events(Duration::ZERO);
    read_exactly(&mut *other, written);
    assert_eq!(events(PATIENCE), 1);
    assert!(one.write(&[IoSlice::new(b"on")]).is_ok());
}

/// The half of a connection that has come outlives the side that sent it.
fn what_a_side_wrote_before_it_ended_can_be_read(transport: &dyn Transport, place: &str) {
    let (mut one, mut other) = connect(transport, place);
    write_all(&mut *one, &pattern(10_000));
    drop(one);
    assert_eq!(read_exactly(&mut *other, 20_000), pattern(10_000));
    assert!(is_gone(&mut *other));
}

fn a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes(transport: &dyn Transport, place: &str) {
    let (one, mut other) = connect(transport, place);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| is_gone(&mut *other));
        drop(one);
        assert!(reads.join().unwrap());
    });
    let (mut one, other) = connect(transport, place);
    drop(other);
    let line = one.line();
    let error = loop {
        match one.write(&[IoSlice::new(&[0; 100])]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_to_write(&*line),
            Err(error) => break error,
        }
    };
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()), "{error}");
}

fn any_thread_can_hang_up_and_what_was_written_can_still_be_read(transport: &dyn Transport, place: &str) {
    let (mut one, mut other) = connect(transport, place);
    write_all(&mut *other, b"last words");
    wait(one.line().readable(), PollFlags::IN);
    let line = one.line();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| is_gone(&mut *other));
        line.hang_up();
        assert!(reads.join().unwrap());
    });
    assert_eq!(read_exactly(&mut *one, 100), b"last words");
    assert!(is_gone(&mut *one));
    assert!(one.write(&[IoSlice::new(b"more")]).is_err());
}

fn a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards(
    transport: &dyn Transport,
    place: &str,
) {
    let acceptor = transport.listen(place).unwrap();
    let at = acceptor.place();
    assert!(transport.is_place(&at));
    let (mut dialled, mut accepted) = (transport.dial(&at, PATIENCE).unwrap(), accept(&*acceptor));
    assert_eq!(transport.listen(&at).err().unwrap().kind(), ErrorKind::AddrInUse);
    let mut waits = transport.dial(&at, PATIENCE).unwrap();
    drop(acceptor);
    assert!(is_gone(&mut *waits), "a connection that is never accepted ends");
    let refused = transport.dial(&at, PATIENCE).err().unwrap().kind();
    assert!([ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&refused), "{refused}");
    // Existing connections stay, and nothing of the place is left.
    write_all(&mut *dialled, b"still");
    assert_eq!(read_exactly(&mut *accepted, 5), b"still");
    assert!(!std::path::Path::new(&at).exists());
    drop((dialled, accepted, waits));
    assert_eq!(transport.listen(&at).unwrap().place(), at);
}

fn many_sides_dial_while_others_are_accepted(transport: &dyn Transport, place: &str) {
    const DIALLING: u8 = 8;
    const EACH: u8 = 25;
    let acceptor = transport.listen(place).unwrap();
    let at = acceptor.place();
    std::thread::scope(|scope| {
        for thread in 0..DIALLING {
            let at = &at;
            scope.spawn(move || {
                for n in 0..EACH {
                    let mut dialled = transport.dial(at, PATIENCE).unwrap();
                    write_all(&mut *dialled, &[thread, n]);
                    assert_eq!(read_exactly(&mut *dialled, 2), [n, thread]);
                }
            });
        }
        let mut seen = BTreeSet::new();
        for _ in 0..u32::from(DIALLING) * u32::from(EACH) {
            let mut accepted = accept(&*acceptor);
            let read = read_exactly(&mut *accepted, 2);
            write_all(&mut *accepted, &[read[1], read[0]]);
            assert!(seen.insert(read));
        }
    });
    assert_eq!(acceptor.accept().err().unwrap().kind(), ErrorKind::WouldBlock);
}
