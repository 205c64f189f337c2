//! Channels beside others: peers that are slow, stand still or restart.
use crate::parts::*;
use std::sync::mpsc::Receiver;
use tidemill_link::frame::{Content, Control};
use tidemill_link::link::{LinkEnds, LinkError};
use tidemill_link::remote::*;
use tidemill_random::Random;

fn of_channel(channel: u64, role: Role) -> Greeting {
    let purpose = Purpose::Channel { channel, role, incarnation: 0, schema: schema_hash(&schema()) };
    Greeting { purpose, ..greeting(role) }
}

/// A channel of a host that listens; the sender dials.
fn channel(serving: &Serving, security: &Security, incoming: &Receiver<Incoming>, number: u64) -> LinkEnds {
    let (sends, takes) = (of_channel(number, Role::Sender), of_channel(number, Role::Receiver));
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| dial(serving.address(), security, &sends, PATIENCE));
        let receiver = accept(incoming, &takes);
        let sender = accepted.join().expect("does not panic").expect("is accepted");
        (sender.into_sender(schema()).expect("a link"), receiver.into_receiver(schema()).expect("a link"))
    })
}

/// Largest amount in transit between two hosts while no end reads: buffers of the system, and the ring of a local
/// one.
const UNDER_WAY: u64 = 64 << 20;

/// Head-of-line blocking: of two channels between the same two hosts one is full, because its receiver takes nothing.
/// The other one continues as if it were alone, and the first one has lost nothing.
#[test]
fn a_channel_that_stands_still_holds_up_no_other() {
    for kind in kinds() {
        let (serving, incoming) = serve(&kind);
        let (mut stuck, mut later) = channel(&serving, &kind.security, &incoming, 1);
        let (mut sender, mut receiver) = channel(&serving, &kind.security, &incoming, 2);
        let frames = UNDER_WAY >> 20;
        for n in 0..frames {
            stuck.send(data(n, 1, 1 << 20)).expect("the receiver is there");
        }
        let takes_more = stuck.wants_writable() && (0..1_000_000).all(|_| writable(stuck.as_ref()));
        assert!(!takes_more, "{:?} takes everything: nothing stands still", kind.address);
        for n in 0..500 {
            sender.send(data(n, 1, 1000 * (n as usize % 100))).expect("the receiver is there");
            let received = receive(Some(sender.as_mut()), receiver.as_mut()).expect("arrives");
            assert!(received == data(n, 1, 1000 * (n as usize % 100)), "frame {n} differs");
            receiver.send_control(Control::Credit(n)).expect("the sender is there");
            assert_eq!(hear(sender.as_mut()).expect("the receiver is there"), Control::Credit(n));
        }
        for n in 0..frames {
            let received = receive(Some(stuck.as_mut()), later.as_mut()).expect("arrives");
            assert!(received == data(n, 1, 1 << 20), "frame {n} differs");
        }
    }
}

/// Whether the socket of a sender takes something now.
fn writable(sender: &dyn tidemill_link::link::LinkSender) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    sender.clear();
    let mut descriptors = [PollFd::from_borrowed_fd(sender.descriptor(), PollFlags::OUT)];
    poll(&mut descriptors, Some(&Timespec::default())).expect("an open descriptor") > 0
}

/// A receiver that looks at its descriptors all the time and takes a record now and then: all of them come, in order, and its credits
/// come back.
#[test]
fn a_slow_peer_gets_everything_in_its_own_time() {
    const FRAMES: u64 = 200;
    let mut random = Random::of_seed(5);
    for kind in kinds() {
        let (mut sender, mut receiver) = connect(&kind, random.chance(0.5));
        let width = |n: u64| [10, 70_000, 200, 130_000, 4_000][n as usize % 5];
        let (mut sent, mut taken, mut credit) = (0u64, 0u64, 300_000i64);
        while taken < FRAMES {
            while credit > 0 && sent < FRAMES {
                sender.send(data(sent, 1, width(sent))).expect("the receiver is there");
                (credit, sent) = (credit - width(sent) as i64, sent + 1);
            }
            for _ in 0..random.below(20) {
                sender.clear();
                receiver.clear();
            }
            let takes = 1 + random.below(3).min((sent - taken) as usize - 1);
            for _ in 0..takes {
                let received = receive(Some(sender.as_mut()), receiver.as_mut()).expect("arrives");
                assert!(received == data(taken, 1, width(taken)), "frame {taken} differs");
                receiver.send_control(Control::Credit(width(taken) as u64)).expect("the sender is there");
                taken += 1;
            }
            for at in taken - takes as u64..taken {
                let heard = hear(sender.as_mut()).expect("the receiver is there");
                assert_eq!(heard, Control::Credit(width(at) as u64));
                credit += width(at) as i64;
            }
        }
        assert!(receiver.receive().expect("the sender is there").is_none());
    }
}

/// Both hosts end and restart, in any order and with any data in transit, and meet at the same address: data that the
/// receiver had taken does not come again, all else comes once, and nothing of a former connection comes over a later
/// one.
#[test]
fn everything_arrives_once_although_both_ends_begin_again() {
    const EPOCHS: u64 = 400;
    for kind in kinds() {
        let mut random = Random::of_seed(7);
        let (mut taken, mut restarts, mut at) = (0u64, 0u32, kind.address.clone());
        while taken < EPOCHS {
            let (serving, incoming) = serve(&Kind { address: at, ..kind.clone() });
            at = serving.address().clone();
            let (mut sender, mut receiver) = channel(&serving, &kind.security, &incoming, 7);
            receiver.send_control(Control::Resume(taken)).expect("the sender is there");
            assert_eq!(hear(sender.as_mut()).expect("the receiver is there"), Control::Resume(taken));
            let upto = (taken + 1 + random.below(60) as u64).min(EPOCHS);
            let width = |epoch: u64| if epoch.is_multiple_of(9) { 90_000 } else { epoch as usize % 300 };
            for epoch in taken..upto {
                let mut frame = data(epoch, 1 + epoch as usize % 3, width(epoch));
                frame.header.incarnation = restarts;
                sender.send(frame).expect("the receiver is there");
            }
            for _ in 0..random.below((upto - taken) as usize + 1) {
                let frame = receive(Some(sender.as_mut()), receiver.as_mut()).expect("arrives");
                assert_eq!(frame.header.incarnation, restarts, "it is of a former connection");
                let Content::Data { epoch, batch: records } = frame.content else { panic!("records") };
                assert_eq!(epoch, taken);
                assert!(records == batch(1 + epoch as usize % 3, width(epoch)), "epoch {epoch} differs");
                taken += 1;
            }
            restarts += 1;
            match random.below(3) {
                0 => drop((sender, receiver, serving)),
                1 => drop((serving, receiver, sender)),
                // One has begun again while the other has not noticed yet.
                _ => {
                    drop((sender, serving));
                    while let Ok(frame) = receive(None, receiver.as_mut()) {
                        assert_eq!(frame.header.incarnation, restarts - 1);
                    }
                    assert!(matches!(receive(None, receiver.as_mut()), Err(LinkError::Lost)));
                }
            }
        }
        assert!(restarts > 8, "{restarts} restarts");
    }
}
