//! The requirements of the engine's suite (`tests/engine/conformance.rs`) for links in one process, tested on those
//! between processes.
use crate::parts::*;
use tidemill_link::frame::{CLOSED, Content, Control, WatermarkStep};
use tidemill_link::link::LinkError;
use tidemill_link::remote::READ_AHEAD;

#[test]
fn frames_arrive_in_order_and_unchanged() {
    for (mut sender, mut receiver) in links() {
        let mut sent = std::collections::VecDeque::new();
        for n in 0..200u64 {
            // Sizes from nothing to far more than a socket takes, so that every path is taken.
            let width = [0, 1, 100, 10_000, 400_000, 12_000_000][if n == 77 { 5 } else { n as usize % 5 }];
            let content = match n % 4 {
                3 if n % 8 == 3 => {
                    Content::Elsewhere { from: n, until: if n % 16 == 3 { CLOSED } else { n + 2 } }
                }
                3 => Content::Frontier {
                    rows: 0,
                    epoch: if n == 199 { CLOSED } else { n },
                    steps: vec![WatermarkStep { epoch: n, watermark: -(n as i64) }],
                },
                _ => Content::Data { epoch: n, batch: batch(1 + n as usize % 3, width) },
            };
            let frame = frame(n, content);
            let bytes = sender.send(frame.clone()).expect("the receiver is there");
            assert!(bytes >= 64);
            sent.push_back(frame);
            if n % 7 == 0 {
                while let Some(expected) = sent.pop_front() {
                    let received = receive(Some(sender.as_mut()), receiver.as_mut()).expect("arrives");
                    assert!(received == expected, "frame {n} differs");
                }
            }
        }
        while let Some(expected) = sent.pop_front() {
            let received = receive(Some(sender.as_mut()), receiver.as_mut()).expect("arrives");
            assert!(received == expected);
        }
        assert!(receiver.receive().expect("the sender is there").is_none());
    }
}

#[test]
fn control_words_travel_back() {
    for (mut sender, mut receiver) in links() {
        let words = [
            Control::Resume(4),
            Control::Credit(99),
            Control::Ahead(1 << 40),
            Control::Delivers(7),
            Control::Durable(CLOSED),
        ];
        for word in words {
            receiver.send_control(word).expect("the sender is there");
        }
        sleep(sender.descriptor());
        assert!(sender.clear(), "the descriptor was readable");
        for word in words {
            assert_eq!(hear(sender.as_mut()).expect("the receiver is there"), word);
        }
        assert_eq!(sender.receive_control().expect("the receiver is there"), None);
    }
}

#[test]
fn a_lost_sender_is_told_after_what_it_sent() {
    for (mut sender, mut receiver) in links() {
        sender.send(data(0, 2, 3)).expect("the receiver is there");
        drop(sender);
        sleep(receiver.descriptor());
        assert!(receiver.clear(), "the descriptor was readable");
        assert!(receive(None, receiver.as_mut()).is_ok());
        for _ in 0..3 {
            assert!(matches!(receive(None, receiver.as_mut()), Err(LinkError::Lost)));
        }
        assert!(matches!(receiver.send_control(Control::Credit(1)), Err(LinkError::Lost)));
    }
}

#[test]
fn a_lost_receiver_is_told_to_the_sender() {
    for (mut sender, mut receiver) in links() {
        receiver.send_control(Control::Credit(1)).expect("the sender is there");
        drop(receiver);
        sleep(sender.descriptor());
        assert!(sender.clear(), "the descriptor was readable");
        assert_eq!(hear(sender.as_mut()).expect("what was said can be taken"), Control::Credit(1));
        for _ in 0..3 {
            assert!(matches!(hear(sender.as_mut()), Err(LinkError::Lost)));
        }
        assert!(matches!(sender.send(data(0, 1, 1)), Err(LinkError::Lost)));
    }
}

/// Bytes that the socket does not take wait, whole and in order, and leave when the descriptor is ready.
#[test]
fn sending_never_blocks() {
    for (mut sender, mut receiver) in links() {
        let frames = 40;
        for n in 0..frames {
            sender.send(data(n, 1, 1 << 20)).expect("the receiver is there");
        }
        for n in 0..frames {
            let received = receive(Some(sender.as_mut()), receiver.as_mut()).expect("arrives");
            assert!(received == data(n, 1, 1 << 20));
        }
    }
}

/// A receiver whose records are not taken reads ahead, but not without end.
#[test]
fn a_receiver_reads_ahead_and_not_without_end() {
    for (mut sender, mut receiver) in links() {
        let frames = 3 * (READ_AHEAD as u64 >> 20);
        for n in 0..frames {
            sender.send(data(n, 1, 1 << 20)).expect("the receiver is there");
        }
        for _ in 0..2000 {
            sender.clear();
            receiver.clear();
        }
        drop(sender);
        receiver.clear();
        let mut next = 0;
        // The sender's queue is gone with it; bytes that it gave to the system are not.
        while let Ok(frame) = receive(None, receiver.as_mut()) {
            assert!(frame == data(next, 1, 1 << 20));
            next += 1;
        }
        assert!(next * (1 << 20) >= READ_AHEAD as u64 - (2 << 20) && next < frames, "{next} of {frames}");
    }
}
