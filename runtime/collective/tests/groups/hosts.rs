//! Programs of several hosts.
use crate::place::{PATIENCE, Place, until, with_ranks};
use std::net::{Shutdown, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidemill_collective::client::{Buffer, CallOptions, Error, Group};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::operation::Operation;
use tidemill_collective::protocol::{Failure, FailureKind, GroupState};
use tidemill_collective::service::{Collectives, Options};
use tidemill_collective::topology::{Host, Path};
use tidemill_collective::type_name::TypeName;
use tidemill_link::remote::Address;

fn sum(group: &Group, length: usize, value: i64) -> Result<i64, Error> {
    let buffer = group.buffer(Element::I64, length)?;
    buffer.write(0, &vec![value; length])?;
    group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
    let result = buffer.to_vec::<i64>()?;
    assert!(result.iter().all(|of| *of == result[0]));
    Ok(result[0])
}

fn three() -> [Place; 3] {
    let first = Place::new("a", None);
    let (second, third) = (Place::new("b", Some(&first)), Place::new("c", Some(&first)));
    until("all are registered", || first.listing().hosts.len() == 3);
    [first, second, third]
}

#[test]
fn ranks_of_three_hosts_compute_together() {
    let [a, b, c] = three();
    with_ranks(&[&a, &b, &c], "wide", 5, |group| {
        for length in [1, 1000, 200_000] {
            assert_eq!(sum(&group, length, i64::from(group.rank()) + 1).unwrap(), 15);
        }
        let buffer = group.buffer(Element::I32, 50_000).unwrap();
        buffer.write(0, &vec![group.rank().cast_signed(); 50_000]).unwrap();
        group.broadcast(&buffer, 4).unwrap().wait().unwrap();
        assert_eq!(buffer.to_vec::<i32>().unwrap(), vec![4; 50_000]);
    });
    let view = |place: &Place| place.group("wide");
    until("all have left", || view(&b).is_none());
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Failed(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_of_another_host_that_is_gone_is_named_and_the_others_continue() {
    let [a, b, c] = three();
    with_ranks(&[&a, &b, &c], "shrinks", 3, |group| {
        assert_eq!(sum(&group, 1000, 1).unwrap(), 3);
        if group.rank() == 2 {
            return;
        }
        let failure = failure(sum(&group, 100_000, 1).unwrap_err());
        assert_eq!((failure.kind, failure.rank, failure.host.as_str()), (FailureKind::Lost, Some(2), "c"));
        group.shrink(PATIENCE).unwrap();
        assert_eq!(group.members(), [0, 1]);
        assert_eq!(sum(&group, 1000, 7).unwrap(), 14);
    });
}

#[test]
fn a_rank_of_another_host_that_does_not_come_is_named_at_the_deadline() {
    let [a, b, _c] = three();
    with_ranks(&[&a, &b], "late", 2, |group| {
        assert_eq!(sum(&group, 10, 1).unwrap(), 2);
        if group.rank() == 1 {
            return until("it is broken", || {
                a.group("late").is_some_and(|group| group.state == GroupState::Broken)
            });
        }
        let buffer = group.buffer(Element::I64, 10).unwrap();
        let options = CallOptions { deadline: Duration::from_millis(700), ..CallOptions::default() };
        let operation = Operation::AllReduce { reduction: Reduction::Sum };
        let failure = failure(group.call(&buffer, operation, &options).unwrap().wait().unwrap_err());
        assert_eq!(
            (failure.kind, failure.rank, failure.host.as_str()),
            (FailureKind::Deadline, Some(1), "b")
        );
        assert!(failure.text.contains("operation 2"), "{failure}");
    });
}

#[test]
fn ranks_of_two_hosts_that_call_different_operations_learn_it() {
    let [a, b, _c] = three();
    with_ranks(&[&a, &b], "differs", 2, |group| {
        let buffer = group.buffer(Element::I64, 10_000).unwrap();
        let operation = match group.rank() {
            0 => Operation::AllReduce { reduction: Reduction::Sum },
            _ => Operation::Broadcast { root: 0 },
        };
        // One may have ended where it only sends; the next one does not.
        let call = || group.call(&buffer, operation, &CallOptions::default()).unwrap().wait();
        let failure = failure(call().and_then(|()| call()).unwrap_err());
        assert_eq!(failure.kind, FailureKind::Differs, "{failure}");
        for word in ["operation 1", "an all-reduce (sum)", "a broadcast (from rank 0)", "rank 0", "rank 1"] {
            assert!(failure.text.contains(word), "{failure}");
        }
    });
}

#[test]
fn elements_of_different_types_are_an_error_at_all_ranks_of_all_hosts() {
    let [a, b, c] = three();
    let reduction = Reduction::Sum;
    let operations = [
        Operation::Broadcast { root: 0 },
        Operation::AllGather,
        Operation::AllToAll,
        Operation::AllReduce { reduction },
        Operation::ReduceScatter { reduction },
    ];
    with_ranks(&[&a, &b, &c], "types", 3, |group| {
        let differs = |buffer: &Buffer, operation: Operation, name: &str, words: [&str; 2]| {
            let options = CallOptions { type_name: TypeName::new(name).unwrap(), ..CallOptions::default() };
            // One that only sends may have ended, and learns it with a later call.
            let mut calls = (0..100).map(|_| group.call(buffer, operation, &options).unwrap().wait());
            let failure = failure(calls.find_map(Result::err).unwrap());
            assert_eq!(failure.kind, FailureKind::Differs, "{failure}");
            for word in words.into_iter().chain(["rank 2", "operation "]) {
                assert!(failure.text.contains(word), "no {word:?} in: {failure}");
            }
            group.shrink(PATIENCE).unwrap();
            assert_eq!(sum(&group, 10, 1).unwrap(), 3);
        };
        // One that has not begun yet would learn in the answer to its join what the others do.
        assert_eq!(sum(&group, 10, 1).unwrap(), 3);
        let is_last = group.rank() == 2;
        for operation in operations {
            // By the shortest way, and by the rings.
            for length in [12, 300_000] {
                // As many bytes each, of one element and of all together.
                let buffer = group.buffer(if is_last { Element::I32 } else { Element::F32 }, length).unwrap();
                differs(&buffer, operation, "", [" f32", " i32"]);
                let (element, length) =
                    if is_last { (Element::I64, length / 2) } else { (Element::F32, length) };
                let buffer = group.buffer(element, length).unwrap();
                differs(&buffer, operation, "", [" f32", " i64"]);
                let buffer = group.buffer(Element::I64, 12).unwrap();
                let name = if is_last { "float64" } else { "uint64" };
                differs(&buffer, operation, name, ["96 bytes of uint64", "96 bytes of float64"]);
            }
        }
    });
}

#[test]
fn a_service_that_ends_is_named() {
    let [a, b, c] = three();
    let ends = std::sync::Mutex::new(Some(c));
    let (first, second) = std::thread::scope(|scope| {
        let third = {
            let options = ends.lock().unwrap().as_ref().unwrap().options("gone", 2, 3);
            scope.spawn(move || Group::join(&options).unwrap())
        };
        let second = scope.spawn(|| b.join("gone", 1, 3));
        let first = a.join("gone", 0, 3);
        let _third = third.join().unwrap();
        let second = second.join().unwrap();
        *ends.lock().unwrap() = None;
        (first, second)
    });
    std::thread::scope(|scope| {
        for group in [first, second] {
            scope.spawn(move || {
                let failure = failure(sum(&group, 1000, 1).unwrap_err());
                assert_eq!((failure.kind, failure.host.as_str()), (FailureKind::Lost, "c"), "{failure}");
                group.shrink(PATIENCE).unwrap();
                assert_eq!(sum(&group, 1000, 2).unwrap(), 4);
            });
        }
    });
}

/// Ends a connection that this process has made from one of these ports to that one.
#[expect(unsafe_code, reason = "a wire belongs to the service, and is ended from outside")]
fn end_connection(from: &RangeInclusive<u16>, to: u16) -> bool {
    let connections = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let number = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // SAFETY: it is no negative number, and is only asked for another descriptor of the same file, if it is open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        Some(TcpStream::from(descriptor.try_clone_to_owned().ok()?))
    });
    let mut wanted = connections.filter(|connection| {
        let has =
            |address: std::io::Result<std::net::SocketAddr>| address.map_or(0, |address| address.port());
        from.contains(&has(connection.local_addr())) && has(connection.peer_addr()) == to
    });
    wanted.next().is_some_and(|connection| connection.shutdown(Shutdown::Both).is_ok())
}

#[test]
fn a_wire_that_ends_while_no_operation_runs_is_noticed() {
    // Wires of rings have these ports, which no other connection gets.
    let first = 20_000 + u16::try_from(std::process::id() % 600).unwrap() * 16;
    let path = Path { name: "fibre".into(), ports: Some((first, first + 15)), rate: 1e9, ..Path::default() };
    let place = |name: &str, conductor: Option<&Place>| {
        let mut place = Place::new(name, conductor);
        place.service = None;
        place.options.host =
            Host { name: name.into(), rack: name.into(), paths: vec![path.clone()], ..Host::default() };
        place.start();
        place
    };
    let a = place("a", None);
    let b = place("b", Some(&a));
    until("both are registered", || a.listing().hosts.len() == 2);
    let groups = with_ranks(&[&a, &b], "rests", 2, |group| {
        assert_eq!(sum(&group, 100_000, 1).unwrap(), 2);
        group
    });
    let port = b.address().place().rsplit(':').next().unwrap().parse().unwrap();
    assert!(end_connection(&(first..=first + 15), port), "a wire of the ring");
    until("it is noticed without a call", || {
        a.group("rests").is_some_and(|group| group.state == GroupState::Broken)
    });
    let why = a.group("rests").unwrap().why;
    assert!(why.contains("it has ended while no operation ran"), "{why}");
    std::thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                let failure = failure(sum(group, 10, 1).unwrap_err());
                assert_eq!(failure.kind, FailureKind::Lost);
                // Both ends see it; the one that says it first names the other.
                let other = match failure.host.as_str() {
                    "a" => 0,
                    "b" => 1,
                    host => panic!("{host}: {failure}"),
                };
                assert_eq!(failure.rank, Some(other), "{failure}");
                group.shrink(PATIENCE).unwrap();
                assert_eq!(sum(group, 100_000, 3).unwrap(), 6);
            });
        }
    });
}

#[test]
fn what_a_rank_sent_before_it_left_arrives_at_those_that_call_later() {
    let [a, b, _c] = three();
    with_ranks(&[&a, &b], "leaves", 2, |group| {
        let mut buffer = group.buffer(Element::I32, 100).unwrap();
        for round in 1..=3 {
            buffer.elements_mut::<i32>().unwrap().fill(if group.rank() == 1 { round } else { 0 });
            group.broadcast(&buffer, 1).unwrap().wait().unwrap();
            assert_eq!(buffer.elements_mut::<i32>().unwrap(), [round; 100]);
            if group.rank() == 0 && round == 1 {
                until("it has left", || {
                    a.group("leaves").is_some_and(|group| group.state == GroupState::Broken)
                });
            }
        }
    });
}

#[test]
fn groups_continue_without_the_conductor_and_know_it_again() {
    let mut conductor = Place::new("hub", None);
    let (a, b) = (Place::new("a", Some(&conductor)), Place::new("b", Some(&conductor)));
    until("both are registered", || conductor.listing().hosts.len() == 3);
    let address = conductor.address();
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| b.join("stays", 1, 2));
        (a.join("stays", 0, 2), second.join().unwrap())
    });
    let both = |length| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| sum(&second, length, 1).unwrap());
            assert_eq!((sum(&first, length, 2).unwrap(), other.join().unwrap()), (3, 3));
        });
    };
    both(1000);
    conductor.service = None;
    both(2000);
    conductor.options.listen = Some(Address::tcp(address.place()));
    until("the address is free", || {
        conductor.service = Collectives::start(conductor.options.clone()).ok();
        conductor.service.is_some()
    });
    until("the group is known again", || {
        conductor.group("stays").is_some_and(|group| group.ranks.len() == 2)
    });
    both(3000);
    let answer = conductor.ask(tidemill_collective::protocol::Question::Strategy {
        group: "stays".into(),
        strategy: "ring:1,0".into(),
    });
    assert!(matches!(answer, tidemill_collective::protocol::Answer::Done(_)), "{answer:?}");
    both(4000);
}

const SILENT: &str = "TIDEMILL_TEST_SILENT_HOST";

/// A process with a service and rank 1, for the test below.
fn child_service() {
    let Ok(task) = std::env::var(SILENT) else { return };
    let (folder, conductor) = task.split_once(' ').unwrap();
    let host = Host { name: "quiet".into(), ..Host::default() };
    let options = Options {
        listen: Some(Address::tcp("127.0.0.1:0")),
        conductor: Some(Address::tcp(conductor)),
        ..Options::new(format!("{folder}/quiet.sock"), host)
    };
    let _service = Collectives::start(options.clone()).unwrap();
    let join = tidemill_collective::client::JoinOptions {
        service: options.socket,
        deadline: PATIENCE,
        ..tidemill_collective::client::JoinOptions::new("quiet", 1, 2)
    };
    let group = Group::join(&join).unwrap();
    while sum(&group, 1000, 1).is_ok() {}
    std::process::exit(0);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_host_that_is_silent_is_named() {
    child_service();
    let mut place = Place::new("a", None);
    place.options.silence = tidemill_collective::service::SILENCE;
    place.service = None;
    place.start();
    let task = format!("{} {}", place.folder.path().display(), place.address().place());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hosts::a_host_that_is_silent_is_named", "--nocapture"])
        .env(SILENT, task)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = Killed(child);
    let group = place.join("quiet", 0, 2);
    assert_eq!(sum(&group, 1000, 1).unwrap(), 2);
    let stopped = Command::new("kill").args(["-STOP", &child.0.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let begun = Instant::now();
    let failure = loop {
        // Calls that were under way may still end.
        if let Err(error) = sum(&group, 1000, 1) {
            break failure(error);
        }
    };
    assert_eq!((failure.kind, failure.host.as_str()), (FailureKind::Lost, "quiet"), "{failure}");
    assert!(failure.text.contains("is silent"), "{failure}");
    println!("named after {:?}", begun.elapsed());
}
