//! Programs of one host.
use crate::place::{PATIENCE, Place, until, with_ranks};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;
use tidemill_collective::client::{CallOptions, Error, Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::operation::Operation;
use tidemill_collective::protocol::{FailureKind, GroupState};

#[test]
fn each_operation_gives_what_it_should() {
    let place = Place::new("a", None);
    with_ranks(&[&place], "all", 3, |group| {
        let rank = i32::try_from(group.rank()).unwrap();
        for length in [6_usize, 30_000] {
            let buffer = group.buffer(Element::I32, length).unwrap();
            buffer.write(0, &vec![rank + 1; length]).unwrap();
            group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
            assert_eq!(buffer.to_vec::<i32>().unwrap(), vec![6; length]);

            buffer.write(0, &vec![rank; length]).unwrap();
            group.broadcast(&buffer, 2).unwrap().wait().unwrap();
            assert_eq!(buffer.to_vec::<i32>().unwrap(), vec![2; length]);

            let part = length / 3;
            let own = usize::try_from(rank).unwrap() * part..(usize::try_from(rank).unwrap() + 1) * part;
            buffer.write(0, &vec![rank; length]).unwrap();
            group.reduce_scatter(&buffer, Reduction::Max).unwrap().wait().unwrap();
            assert_eq!(buffer.to_vec::<i32>().unwrap()[own.clone()], vec![2; part]);

            buffer.write(own.start, &vec![rank + 10; part]).unwrap();
            group.all_gather(&buffer).unwrap().wait().unwrap();
            let expected: Vec<i32> = [10, 11, 12].iter().flat_map(|value| vec![*value; part]).collect();
            assert_eq!(buffer.to_vec::<i32>().unwrap(), expected);

            buffer.write(0, &expected.iter().map(|value| value + 100 * rank).collect::<Vec<_>>()).unwrap();
            group.all_to_all(&buffer).unwrap().wait().unwrap();
            let expected: Vec<i32> =
                [0, 100, 200].iter().flat_map(|value| vec![value + 10 + rank; part]).collect();
            assert_eq!(buffer.to_vec::<i32>().unwrap(), expected);
        }
    });
}

#[test]
fn floats_of_16_bits_and_several_pending_calls() {
    let place = Place::new("a", None);
    with_ranks(&[&place], "half", 2, |group| {
        let halves = group.buffer(Element::F16, 1000).unwrap();
        let brains = group.buffer(Element::Bf16, 1000).unwrap();
        halves.write(0, &vec![half::f16::from_f32(1.5); 1000]).unwrap();
        brains.write(0, &vec![half::bf16::from_f32(-2.0); 1000]).unwrap();
        let pending: Vec<_> = (0..3)
            .flat_map(|_| [&halves, &brains])
            .map(|buffer| group.all_reduce(buffer, Reduction::Sum).unwrap())
            .collect();
        // The last one first: results wait for who asks.
        pending.into_iter().rev().for_each(|pending| pending.wait().unwrap());
        assert!(halves.to_vec().unwrap().iter().all(|value: &half::f16| value.to_f32() == 12.0));
        assert!(brains.to_vec().unwrap().iter().all(|value: &half::bf16| value.to_f32() == -16.0));
        let wrong = halves.write(0, &[1.0_f32]).unwrap_err();
        assert!(wrong.to_string().contains("F16"), "{wrong}");
        assert!(halves.write(999, &[half::f16::ZERO; 2]).is_err());
    });
}

#[test]
fn ranks_that_are_missing_are_named() {
    let place = Place::new("a", None);
    let options = JoinOptions { deadline: Duration::from_millis(500), ..place.options("few", 1, 4) };
    let error = std::thread::scope(|scope| {
        let other = scope.spawn(|| Group::join(&JoinOptions { rank: 3, ..options.clone() }));
        let first = Group::join(&options).unwrap_err();
        other.join().unwrap().unwrap_err();
        first
    });
    let text = error.to_string();
    assert!(text.contains("0, 2") && text.contains("few") && text.contains("in time"), "{text}");
    until("it is forgotten", || place.group("few").is_none());
}

#[test]
fn a_rank_that_is_taken_and_a_size_that_differs_are_refused() {
    let place = Place::new("a", None);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| place.join("pair", 0, 2));
        until("the first one waits", || place.group("pair").is_some_and(|group| group.ranks.len() == 1));
        let taken = Group::join(&place.options("pair", 0, 2)).unwrap_err().to_string();
        assert!(taken.contains("another program") && taken.contains("rank 0"), "{taken}");
        let differs = Group::join(&place.options("pair", 1, 3)).unwrap_err().to_string();
        assert!(differs.contains("has 2 ranks"), "{differs}");
        let outside = Group::join(&place.options("pair", 2, 2)).unwrap_err().to_string();
        assert!(outside.contains("rank 2 of 2"), "{outside}");
        let named = Group::join(&place.options("a/b", 0, 1)).unwrap_err().to_string();
        assert!(named.contains("no name"), "{named}");
        let second = place.join("pair", 1, 2);
        let first = first.join().unwrap();
        assert_eq!((first.members(), second.members()), (vec![0, 1], vec![0, 1]));
        assert!(Group::join(&place.options("pair", 1, 2)).is_err(), "it runs already");
    });
}

fn is_readable(pending: &tidemill_collective::client::Pending, time: Duration) -> bool {
    let readable = pending.readable().unwrap();
    let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    poll(&mut [PollFd::from_borrowed_fd(readable, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn an_operation_waits_for_a_descriptor_and_another_one_tells_its_end() {
    let place = Place::new("a", None);
    let gate = tidemill_link::wake::Event::new().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let group = place.join("gate", 1, 2);
            let buffer = group.buffer(Element::I64, 10).unwrap();
            buffer.write(0, &[2_i64; 10]).unwrap();
            group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
        });
        let group = place.join("gate", 0, 2);
        let buffer = group.buffer(Element::I64, 10).unwrap();
        let after = Some(std::os::fd::AsFd::as_fd(&gate));
        let options = CallOptions { after, readable: true, ..CallOptions::default() };
        let operation = Operation::AllReduce { reduction: Reduction::Sum };
        let pending = group.call(&buffer, operation, &options).unwrap();
        // Written after the call, and before the operation.
        assert!(!is_readable(&pending, Duration::from_millis(100)));
        buffer.write(0, &[40_i64; 10]).unwrap();
        gate.raise();
        assert!(is_readable(&pending, PATIENCE));
        pending.wait().unwrap();
        assert_eq!(buffer.to_vec::<i64>().unwrap(), [42; 10]);
        other.join().unwrap();
    });
}

#[test]
fn a_program_waits_for_a_service_that_is_not_there_yet() {
    let mut place = Place::new("a", None);
    place.service = None;
    let at_once = JoinOptions { wait: Duration::ZERO, ..place.options("waits", 0, 1) };
    let text = Group::join(&at_once).unwrap_err().to_string();
    let (socket, groups) = (place.socket(), place.folder.path().join("net.groups"));
    assert!(text.contains(&groups.display().to_string()) && !text.contains("after"), "{text}");
    assert!(text.contains(&format!("`tidemill net serve --socket {}`", socket.display())), "{text}");
    let soon = JoinOptions { wait: Duration::from_millis(120), ..at_once.clone() };
    let text = Group::join(&soon).unwrap_err().to_string();
    assert!(text.contains("also after 0.12 s"), "{text}");
    // The deadline counts from the beginning, and the socket of a service that was killed is no service.
    drop(std::os::unix::net::UnixListener::bind(&groups).unwrap());
    let late = JoinOptions { deadline: Duration::from_millis(110), wait: PATIENCE, ..at_once.clone() };
    let text = Group::join(&late).unwrap_err().to_string();
    assert!(text.contains("also after 0.11 s"), "{text}");
    std::fs::remove_file(&groups).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| Group::join(&JoinOptions { wait: PATIENCE, ..at_once }));
        std::thread::sleep(Duration::from_millis(100));
        place.start();
        assert_eq!(waits.join().unwrap().unwrap().members(), [0]);
    });
}

#[test]
fn elements_are_computed_in_place_between_operations() {
    let place = Place::new("a", None);
    with_ranks(&[&place], "in-place", 2, |group| {
        let mut buffer = group.buffer(Element::F32, 100_000).unwrap();
        buffer.elements_mut::<f32>().unwrap().fill(group.rank() as f32 + 1.0);
        let pending = group.all_reduce(&buffer, Reduction::Sum).unwrap();
        // It waits for the end, also where no other caller does.
        assert!(buffer.elements_mut::<f32>().unwrap().iter().all(|value| *value == 3.0));
        pending.wait().unwrap();
        drop(group.all_reduce(&buffer, Reduction::Sum).unwrap());
        assert!(buffer.elements_mut::<f32>().unwrap().iter().all(|value| *value == 6.0));
        assert_eq!(buffer.to_vec::<f32>().unwrap(), vec![6.0; 100_000]);
        let wrong = buffer.elements_mut::<i32>().unwrap_err().to_string();
        assert!(wrong.contains("F32") && wrong.contains("I32"), "{wrong}");
        assert!(group.buffer(Element::I64, 0).unwrap().elements_mut::<i64>().unwrap().is_empty());
    });
}

#[test]
fn a_wait_may_end_before_its_operation_and_leaving_ends_all_waits() {
    let place = Place::new("a", None);
    let group = place.join("waits", 0, 1);
    let mut buffer = group.buffer(Element::I32, 10).unwrap();
    let operation = Operation::AllReduce { reduction: Reduction::Sum };
    let gate = tidemill_link::wake::Event::new().unwrap();
    let options = CallOptions { after: Some(std::os::fd::AsFd::as_fd(&gate)), ..CallOptions::default() };
    let mut first = group.call(&buffer, operation, &options).unwrap();
    assert!(!first.wait_for(Duration::ZERO).unwrap());
    assert!(!first.wait_for(Duration::from_millis(20)).unwrap());
    gate.raise();
    assert!(first.wait_for(PATIENCE).unwrap() && first.wait_for(Duration::ZERO).unwrap());
    let closed = tidemill_link::wake::Event::new().unwrap();
    let options = CallOptions { after: Some(std::os::fd::AsFd::as_fd(&closed)), ..CallOptions::default() };
    let second = group.call(&buffer, operation, &options).unwrap();
    let waits = std::thread::spawn(move || second.wait().unwrap_err().to_string());
    group.leave();
    let text = waits.join().unwrap();
    assert!(text.contains("left by this program"), "{text}");
    assert!(buffer.elements_mut::<i32>().is_err(), "the operation has not ended");
    assert_eq!(buffer.to_vec::<i32>().unwrap(), [0; 10]);
    until("the service knows it", || place.group("waits").is_none());
}

fn failure(error: Error) -> tidemill_collective::protocol::Failure {
    match error {
        Error::Failed(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_that_is_gone_is_named_and_the_others_continue() {
    let place = Place::new("a", None);
    let left: Vec<i32> = with_ranks(&[&place], "three", 3, |group| {
        let buffer = group.buffer(Element::I32, 100).unwrap();
        buffer.write(0, &[1_i32; 100]).unwrap();
        group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
        if group.rank() == 1 {
            return 0;
        }
        let failure = failure(group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap_err());
        assert_eq!((failure.kind, failure.rank), (FailureKind::Lost, Some(1)), "{failure}");
        assert!(failure.text.contains("rank 1 on host a"), "{failure}");
        // Until it continues, all calls fail in the same way.
        assert!(group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().is_err());
        group.shrink(PATIENCE).unwrap();
        assert_eq!(group.members(), [0, 2]);
        buffer.write(0, &[5_i32; 100]).unwrap();
        group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
        buffer.to_vec::<i32>().unwrap()[99]
    });
    assert_eq!(left, [10, 0, 10]);
}

#[test]
fn a_program_takes_the_place_of_a_lost_rank() {
    let place = &Place::new("a", None);
    let first = std::thread::scope(|scope| {
        let second = scope.spawn(|| place.join("again", 1, 2));
        let first = place.join("again", 0, 2);
        drop(second.join().unwrap());
        first
    });
    until("it is broken", || place.group("again").is_some_and(|group| group.state == GroupState::Broken));
    std::thread::scope(|scope| {
        let sum = |group: &Group| {
            let buffer = group.buffer(Element::I32, 1).unwrap();
            buffer.write(0, &[1_i32]).unwrap();
            group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
            buffer.to_vec::<i32>().unwrap()[0]
        };
        let second = scope.spawn(move || sum(&place.join("again", 1, 2)));
        first.shrink(PATIENCE).unwrap();
        if first.members() == [0] {
            // The new one came later: it waits for the next time that the first one continues.
            assert_eq!(sum(&first), 1);
            until("the new one is there", || place.group("again").unwrap().ranks.len() == 2);
            first.shrink(PATIENCE).unwrap();
        }
        assert_eq!((sum(&first), second.join().unwrap()), (2, 2));
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let place = Place::new("a", None);
    with_ranks(&[&place], "late", 2, |group| {
        let buffer = group.buffer(Element::I32, 100).unwrap();
        if group.rank() == 1 {
            // The other one tells that it is broken.
            return until("it is broken", || {
                place.group("late").is_some_and(|group| group.state == GroupState::Broken)
            });
        }
        let options = CallOptions { deadline: Duration::from_millis(300), ..CallOptions::default() };
        let operation = Operation::AllReduce { reduction: Reduction::Sum };
        let failure = failure(group.call(&buffer, operation, &options).unwrap().wait().unwrap_err());
        assert_eq!((failure.kind, failure.rank), (FailureKind::Deadline, Some(1)), "{failure}");
        assert!(
            failure.text.contains("operation 1") && failure.text.contains("rank 1 on host a"),
            "{failure}"
        );
    });
}

#[test]
fn ranks_that_call_different_operations_learn_it() {
    let place = Place::new("a", None);
    with_ranks(&[&place], "differs", 2, |group| {
        let buffer = group.buffer(Element::I32, 100 + group.rank() as usize).unwrap();
        let failure = failure(group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap_err());
        assert_eq!(failure.kind, FailureKind::Differs, "{failure}");
        assert!(failure.text.contains("100") && failure.text.contains("101"), "{failure}");
    });
    with_ranks(&[&place], "types", 2, |group| {
        for (element, length, words) in
            [(Element::I32, 4, ["4 f32", "4 i32"]), (Element::I64, 2, ["4 f32", "2 i64"])]
        {
            let of_first = group.buffer(Element::F32, 4).unwrap();
            let of_other = group.buffer(element, length).unwrap();
            let buffer = if group.rank() == 0 { &of_first } else { &of_other };
            for operation in [Operation::Broadcast { root: 1 }, Operation::AllGather, Operation::AllToAll] {
                let called = group.call(buffer, operation, &CallOptions::default()).unwrap();
                let failure = failure(called.wait().unwrap_err());
                assert_eq!(failure.kind, FailureKind::Differs, "{failure}");
                assert!(words.iter().all(|word| failure.text.contains(word)), "{failure}");
                group.shrink(PATIENCE).unwrap();
            }
        }
    });
    // A call that is wrong at all ranks fails alone.
    with_ranks(&[&place], "wrong", 2, |group| {
        let buffer = group.buffer(Element::I32, 3).unwrap();
        let failure = failure(group.all_to_all(&buffer).unwrap().wait().unwrap_err());
        assert_eq!(failure.kind, FailureKind::Wrong, "{failure}");
        group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
    });
}
