#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
use super::super::inference::tests::{rows, slot_with};
use super::*;
use crate::clock::ManualClock;
use crate::freshness::FreshnessQueue;
use crate::link::{InProcess, Link, LinkReceiver};
use tidemill_spec::plan::Freshness;

/// Others may restart from here.
const CHECKPOINT: Epoch = 2;

fn egress() -> Egress {
    let slot = Rc::new(slot_with(&Arc::new(ManualClock::new())));
    slot.kept.store(CHECKPOINT, Ordering::Release);
    Egress::new(
        slot,
        Arc::default(),
        "f->g".into(),
        Track::own(),
        Account::default(),
        1,
        FreshnessQueue::new(Freshness::Block, usize::MAX),
        0,
        (None, None),
        0,
        Elsewhere::Nothing,
    )
}

/// A receiver that continues from an epoch; everything before is durable downstream.
fn receiver(egress: &mut Egress, incarnation: u32, epoch: Epoch) -> Box<dyn LinkReceiver> {
    let (sender, mut receiver) = InProcess.connect(rows(0, 0).schema()).unwrap();
    egress.attach(sender, incarnation);
    receiver.send_control(Control::Resume(epoch)).unwrap();
    receiver.send_control(Control::Durable(epoch)).unwrap();
    egress.pump();
    receiver
}

/// Epochs of the received records.
fn epochs(receiver: &mut dyn LinkReceiver) -> Vec<Epoch> {
    let frames = std::iter::from_fn(|| receiver.receive().unwrap());
    let epoch = |frame: Frame| match frame.content {
        Content::Data { epoch, .. } => Some(epoch),
        _ => None,
    };
    frames.filter_map(epoch).collect()
}

/// An egress whose input has ended, and whose receiver has all of it durable.
fn complete() -> (Egress, Box<dyn LinkReceiver>) {
    let mut egress = egress();
    let mut first = receiver(&mut egress, 1, 0);
    for epoch in 0..5 {
        egress.push(epoch, rows(epoch * 2, epoch * 2 + 2));
    }
    egress.frontier = CLOSED;
    egress.pump();
    assert_eq!(epochs(&mut *first), [0, 1, 2, 3, 4]);
    assert!(egress.is_waited_for(), "it has not said that it has them");
    first.send_control(Control::Durable(CLOSED)).unwrap();
    egress.pump();
    assert!(egress.durable() == CLOSED && !egress.is_waited_for());
    assert_eq!(egress.complete_at(), Some(1));
    (egress, first)
}

/// Data durable downstream of the former receiver does not let the upstream slot end.
#[test]
fn a_receiver_that_has_begun_again_from_an_earlier_epoch_is_waited_for() {
    let (mut egress, first) = complete();
    drop(first);
    egress.pump();
    assert!(!egress.is_waited_for(), "nobody is there");
    let mut second = receiver(&mut egress, 2, CHECKPOINT);
    // The fault: it lacks data that its predecessor had.
    assert_eq!(epochs(&mut *second), [2, 3, 4], "all that was kept for the checkpoint comes again");
    assert_eq!(egress.durable(), CLOSED, "those in front have been told so");
    assert!(egress.is_waited_for());
    second.send_control(Control::Durable(4)).unwrap();
    egress.pump();
    assert!(egress.is_waited_for() && egress.complete_at() == Some(1));
    second.send_control(Control::Durable(CLOSED)).unwrap();
    egress.pump();
    assert!(!egress.is_waited_for() && egress.complete_at() == Some(2));
}

/// Its host may be gone for good.
#[test]
fn a_receiver_that_is_lost_or_has_finished_is_not_waited_for() {
    let (mut egress, _first) = complete();
    let second = receiver(&mut egress, 2, CHECKPOINT);
    assert!(egress.is_waited_for());
    drop(second);
    egress.pump();
    assert!(!egress.is_waited_for());
    let _third = receiver(&mut egress, 3, CHECKPOINT);
    assert!(egress.is_waited_for());
    egress.receiver_finished();
    assert!(!egress.is_waited_for());
    assert_eq!(egress.complete_at(), Some(1), "neither of the others has said so itself");
}
