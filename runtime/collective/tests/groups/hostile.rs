//! Programs that do what they must not.
use crate::place::{PATIENCE, Place, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, sockopt,
};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::operation::Operation;
use tidemill_collective::protocol::{Call, FailureKind, ToProgram, ToService, VERSION, socket_of};
use tidemill_collective::service::Options;
use tidemill_collective::type_name::TypeName;
use tidemill_link::remote::{Address, Greeting, GroupLane, Listener, Purpose, Security, dial_over};
use tidemill_link::wake::Event;
use tidemill_rpc::packets;

/// A program that speaks for itself.
struct Raw(OwnedFd);

impl Raw {
    fn new(place: &Place) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(socket_of(&place.socket())).unwrap()).unwrap();
        Self(socket)
    }

    fn joined(place: &Place, group: &str, rank: u32, size: u32) -> Self {
        let raw = Self::new(place);
        raw.say(&ToService::Join {
            version: VERSION,
            group: group.to_owned(),
            rank,
            size,
            deadline_ms: 60_000,
            priority: tidemill_collective::topology::Priority::Normal,
        });
        raw
    }

    fn say(&self, packet: &ToService) {
        self.say_with(packet, &[]);
    }

    fn say_with(&self, packet: &ToService, descriptors: &[BorrowedFd<'_>]) {
        while let Err(error) = packets::send(&self.0, packet, descriptors) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None).unwrap();
        }
    }

    /// The next packet; none: the service has hung up.
    fn hear(&self) -> Option<ToProgram> {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        assert!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)).unwrap() > 0);
        packets::receive(&self.0).ok().flatten().map(|(packet, _)| packet)
    }

    fn call(&self, number: u64, buffer: u64, offset: u64, length: u64) {
        self.say(&ToService::Call(all_reduce(number, buffer, offset, length)));
    }
}

fn all_reduce(number: u64, buffer: u64, offset: u64, length: u64) -> Call {
    Call {
        number,
        operation: Operation::AllReduce { reduction: Reduction::Sum },
        element: Element::I64,
        type_name: TypeName::default(),
        length,
        buffer,
        offset,
        deadline_ms: 60_000,
        after: false,
        ended: false,
    }
}

#[test]
fn ranges_outside_of_a_buffer_are_refused() {
    let place = Place::new("a", None);
    for (buffer, offset, length) in [
        (1, 0, 513),
        (1, 4096, 1),
        (1, 4089, 1),
        (1, u64::MAX, 1),
        (1, 0, u64::MAX),
        (1, 8, u64::MAX / 8),
        (2, 0, 1),
    ] {
        let raw = Raw::joined(&place, "alone", 0, 1);
        assert!(matches!(raw.hear(), Some(ToProgram::Joined { .. })));
        raw.say(&ToService::Buffer { id: 1, bytes: 4096 });
        assert_eq!(raw.hear(), Some(ToProgram::Buffer { id: 1 }));
        raw.call(1, 1, 8, 511);
        assert_eq!(raw.hear(), Some(ToProgram::Ended { number: 1, failure: None }));
        raw.call(2, buffer, offset, length);
        match raw.hear() {
            Some(ToProgram::Ended { number: 2, failure: Some(failure) }) => {
                assert_eq!(failure.kind, FailureKind::Wrong, "{failure}");
            }
            other => panic!("{other:?} for {buffer} {offset} {length}"),
        }
        drop(raw);
        until("it is forgotten", || place.group("alone").is_none());
    }
}

#[test]
fn buffers_have_a_limit_and_come_back() {
    let mut place = Place::new("a", None);
    place.service = None;
    place.options = Options { memory: 2 << 20, ..place.options };
    place.start();
    let raw = Raw::joined(&place, "large", 0, 1);
    assert!(matches!(raw.hear(), Some(ToProgram::Joined { .. })));
    for (id, bytes) in [(1, 0), (1, 100), (1, 2 << 20), (1, 1 << 50), (1, u64::MAX)] {
        raw.say(&ToService::Buffer { id, bytes });
        assert!(matches!(raw.hear(), Some(ToProgram::NoBuffer { id: 1, .. })), "{bytes}");
    }
    // A part is left to other users.
    raw.say(&ToService::Buffer { id: 1, bytes: 2 << 20 });
    match raw.hear() {
        Some(ToProgram::NoBuffer { reason, .. }) => {
            assert!(reason.contains("one user have 1572864 bytes at most"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    for _ in 0..3 {
        raw.say(&ToService::Buffer { id: 1, bytes: 1 << 20 });
        assert_eq!(raw.hear(), Some(ToProgram::Buffer { id: 1 }));
        raw.say(&ToService::Buffer { id: 1, bytes: 4096 });
        assert!(matches!(raw.hear(), Some(ToProgram::NoBuffer { .. })), "the number is taken");
        raw.say(&ToService::Free { id: 1 });
    }
    // A buffer counts until its last call has ended, though the program has given it back.
    let pair = [Raw::joined(&place, "pair", 0, 2), Raw::joined(&place, "pair", 1, 2)];
    for raw in &pair {
        assert!(matches!(raw.hear(), Some(ToProgram::Joined { .. })));
    }
    pair[0].say(&ToService::Buffer { id: 1, bytes: 1 << 20 });
    assert_eq!(pair[0].hear(), Some(ToProgram::Buffer { id: 1 }));
    pair[0].call(1, 1, 0, 1);
    pair[0].say(&ToService::Free { id: 1 });
    pair[0].say(&ToService::Buffer { id: 2, bytes: 1 << 20 });
    assert!(matches!(pair[0].hear(), Some(ToProgram::NoBuffer { id: 2, .. })));
    pair[1].say(&ToService::Buffer { id: 1, bytes: 4096 });
    assert_eq!(pair[1].hear(), Some(ToProgram::Buffer { id: 1 }));
    pair[1].call(1, 1, 0, 1);
    assert_eq!(pair[0].hear(), Some(ToProgram::Ended { number: 1, failure: None }));
    pair[0].say(&ToService::Buffer { id: 2, bytes: 1 << 20 });
    assert_eq!(pair[0].hear(), Some(ToProgram::Buffer { id: 2 }));
}

/// A connection of TCP whose last descriptor is closed when the other side has read what was sent, which it never does.
fn lingers() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(100 * PATIENCE)).unwrap();
    (stream, other)
}

#[test]
fn a_descriptor_whose_end_takes_long_does_not_hold_the_group() {
    const WAIT: u64 = 256;
    let place = Place::new("a", None);
    for (number, (after, ended)) in [(false, true), (true, false), (false, false)].into_iter().enumerate() {
        let raw = Raw::joined(&place, &format!("lingers-{number}"), 0, 1);
        assert!(matches!(raw.hear(), Some(ToProgram::Joined { .. })));
        raw.say(&ToService::Buffer { id: 1, bytes: 4096 });
        assert_eq!(raw.hear(), Some(ToProgram::Buffer { id: 1 }));
        // The service reads no more while so many calls wait, so that it has the last descriptor when it reads.
        let gate = Event::new().unwrap();
        let first = Call { after: true, ..all_reduce(1, 1, 0, 1) };
        raw.say_with(&ToService::Call(first), &[gate.as_fd()]);
        (2..=WAIT).for_each(|number| raw.call(number, 1, 0, 1));
        let (stream, other) = lingers();
        let call = Call { after, ended, ..all_reduce(WAIT + 1, 1, 0, 1) };
        raw.say_with(&ToService::Call(call), &[stream.as_fd()]);
        drop(stream);
        gate.raise();
        let mut ended: Vec<_> = (0..=WAIT).map(|_| raw.hear()).collect();
        let refused =
            ended.iter().position(|one| !matches!(one, Some(ToProgram::Ended { failure: None, .. })));
        match ended.swap_remove(refused.unwrap()) {
            Some(ToProgram::Ended { number, failure: Some(failure) }) => {
                assert_eq!((number, failure.kind), (WAIT + 1, FailureKind::Wrong), "{failure}");
                assert!(failure.text.contains("an eventfd, a pipe or a Unix socket"), "{failure}");
            }
            other => panic!("{other:?}"),
        }
        // The thread of the group is free: it answers, which it does not while it closes the socket.
        raw.say(&ToService::Buffer { id: 2, bytes: 4096 });
        assert_eq!(raw.hear(), Some(ToProgram::Buffer { id: 2 }));
        assert_eq!(other.peek(&mut [0]).unwrap(), 1, "the bytes for which it lingers are not read");
    }
}

#[test]
fn hosts_are_told_apart_by_the_address_that_they_come_from() {
    let listener = Listener::bind(&Address::tcp("127.0.0.1:0"), &Security::none()).unwrap();
    let place: SocketAddr = listener.address().place().parse().unwrap();
    let (tell, told) = channel();
    let serving = listener.serve(move |incoming| {
        tell.send(incoming.peer_address()).unwrap();
        incoming.refuse("it is enough to have come");
    });
    let _serving = serving.unwrap();
    let purpose = Purpose::Group { host: "b".into(), group: "7/g".into(), lane: GroupLane::Control };
    let greeting = Greeting { run: 1, plan_version: 0, purpose };
    for last in [1, 2, 77] {
        let address = IpAddr::from([127, 0, 0, last]);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(address, 0).into()).unwrap();
        socket.connect(&place.into()).unwrap();
        let stream = tidemill_link::transport::tcp_stream(socket.into()).unwrap();
        assert!(dial_over(stream, &Security::none(), &greeting, PATIENCE).is_err());
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Some(address));
    }
}

#[test]
fn programs_that_say_nothing_have_a_limit() {
    let place = Place::new("a", None);
    let silent: Vec<Raw> = (0..256).map(|_| Raw::new(&place)).collect();
    let refused = Raw::new(&place);
    match refused.hear() {
        Some(ToProgram::Refused { reason }) => assert!(reason.contains("256 programs"), "{reason}"),
        other => panic!("{other:?}"),
    }
    drop(silent);
    until("others get in", || Group::join(&place.options("alone", 0, 1)).is_ok());
}

#[test]
fn packets_that_are_none_end_only_their_program() {
    let place = Place::new("a", None);
    let group = Group::join(&JoinOptions { deadline: PATIENCE, ..place.options("good", 0, 1) }).unwrap();
    for bytes in [&b"{}"[..], b"\xff\xfe", b"[1,2,3]", b"{\"join\":{}}"] {
        let raw = Raw::joined(&place, "bad", 0, 1);
        assert!(matches!(raw.hear(), Some(ToProgram::Joined { .. })));
        send(&raw.0, bytes, SendFlags::empty()).unwrap();
        assert_eq!(raw.hear(), None, "it hangs up");
        let first = Raw::new(&place);
        send(&first.0, bytes, SendFlags::empty()).unwrap();
        assert_eq!(first.hear(), None);
        until("it is forgotten", || place.group("bad").is_none());
    }
    let old = Raw::new(&place);
    old.say(&ToService::Ask {
        version: VERSION + 1,
        question: tidemill_collective::protocol::Question::List,
    });
    match old.hear() {
        Some(ToProgram::Refused { reason }) => assert!(reason.contains("version"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let buffer = group.buffer(Element::I32, 10).unwrap();
    group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
}

#[test]
fn many_calls_wait_without_harm() {
    let place = Place::new("a", None);
    let (one, other) = (Raw::joined(&place, "many", 0, 2), Raw::joined(&place, "many", 1, 2));
    for raw in [&one, &other] {
        assert!(matches!(raw.hear(), Some(ToProgram::Joined { .. })));
        raw.say(&ToService::Buffer { id: 1, bytes: 4096 });
        assert_eq!(raw.hear(), Some(ToProgram::Buffer { id: 1 }));
    }
    // More than the service keeps of one program: it has to wait itself.
    let full = (1..10_000)
        .find(|number| packets::send(&one.0, &ToService::Call(all_reduce(*number, 1, 0, 1)), &[]).is_err());
    let sent = full.unwrap() - 1;
    for number in 1..=sent {
        other.call(number, 1, 0, 1);
        assert_eq!(other.hear(), Some(ToProgram::Ended { number, failure: None }));
        assert_eq!(one.hear(), Some(ToProgram::Ended { number, failure: None }));
    }
}
