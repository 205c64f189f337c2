//! One suite for every kind of link: the frames themselves, and channels with fan-in, routed fan-out and credits.
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_engine::EmulatedLink;
use tidemill_engine::clock::{Clock, ManualClock, Nanoseconds};
use tidemill_engine::frame::{CLOSED, Content, Control, Frame, Header, WatermarkStep};
use tidemill_engine::link::{AsBytes, InProcess, Link, LinkError, LinkSender};
use tidemill_engine::{Emulation, Run, RunOptions, WireSpec};
use tidemill_operators::record::record_schema;

/// A kind of link, with an action that lets all sent frames arrive.
struct Kind {
    link: Box<dyn Link>,
    clock: Option<Arc<ManualClock>>,
    /// Counters of a link that stalls.
    counts: Option<Arc<FaultCounts>>,
}

impl Kind {
    fn arrive(&self) {
        if let Some(clock) = &self.clock {
            clock.advance(60_000_000_000);
        }
    }

    /// Ends a stall.
    fn go_on(&self, sender: &mut dyn LinkSender) {
        if self.counts.is_some() {
            // A stall ends after enough checks by its sender; nothing has arrived yet.
            (0..5).for_each(|_| assert!(sender.receive_control().is_ok_and(|control| control.is_none())));
        }
    }
}

fn wire(bandwidth: Option<u64>, delay: u64) -> WireSpec {
    WireSpec { from: "here".into(), to: "there".into(), bandwidth, delay }
}

fn links() -> Vec<Kind> {
    let plain: [Box<dyn Link>; 2] = [Box::new(InProcess), Box::new(AsBytes)];
    let emulated = |inner: Arc<dyn Link>, bandwidth, delay| {
        let clock = Arc::new(ManualClock::new());
        let own = Arc::clone(&clock) as Arc<dyn Clock>;
        let link = EmulatedLink::over(wire(bandwidth, delay), inner, own).expect("a thread");
        Kind { link: Box::new(link), clock: Some(clock), counts: None }
    };
    let mut all: Vec<Kind> = plain.into_iter().map(|link| Kind { link, clock: None, counts: None }).collect();
    all.push(emulated(Arc::new(AsBytes), None, 0));
    all.push(emulated(Arc::new(AsBytes), Some(1_000_000_000), 20_000_000));
    all.push(emulated(Arc::new(InProcess), Some(1_000_000), 20_000_000));
    for inner in [Arc::new(InProcess) as Arc<dyn Link>, Arc::new(AsBytes)] {
        let counts = Arc::new(FaultCounts::default());
        let link = FaultyLink { inner, fault: Fault::Stall(5), counts: Arc::clone(&counts) };
        all.push(Kind { link: Box::new(link), clock: None, counts: Some(counts) });
    }
    all
}

fn batch(rows: usize, width: usize) -> RecordBatch {
    use arrow_array::*;
    let ids = FixedSizeBinaryArray::new(16, vec![7u8; rows * 16].into(), None);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(ids),
        Arc::new(UInt32Array::from(vec![1; rows])),
        Arc::new(UInt64Array::from((0..rows as u64).collect::<Vec<_>>())),
        Arc::new(Int64Array::from(vec![5i64; rows])),
        Arc::new(Int64Array::from(vec![6i64; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(Int8Array::from(vec![1i8; rows])),
        Arc::new(StringArray::from(vec!["x".repeat(width); rows])),
        Arc::new(Int64Array::from((0..rows as i64).collect::<Vec<_>>())),
    ];
    RecordBatch::try_new(record_schema(&stream()), columns).expect("the schema of the test stream")
}

fn frame(sequence: u64, content: Content) -> Frame {
    Frame { header: Header { incarnation: 3, sequence, sent_at: 11, cost: 5 }, content }
}

#[test]
fn frames_arrive_in_order_and_unchanged() {
    for kind in links() {
        let (mut sender, mut receiver) = kind.link.connect(record_schema(&stream())).expect("connects");
        let mut sent = Vec::new();
        for n in 0..200u64 {
            // Sizes from zero to far more than a ring, so that every path of a carrier is used.
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
            sender.send(frame.clone()).expect("the receiver is there");
            sent.push(frame);
            if n % 7 == 0 {
                kind.go_on(sender.as_mut());
                kind.arrive();
                while let Some(received) = receiver.receive().expect("the sender is there") {
                    assert!(received == sent.remove(0), "frame {} differs", received.header.sequence);
                }
            }
        }
        kind.go_on(sender.as_mut());
        kind.arrive();
        while let Some(received) = receiver.receive().expect("the sender is there") {
            assert!(received == sent.remove(0));
        }
        assert!(sent.is_empty());
        let stalled = kind.counts.as_ref().map(|counts| counts.stalled.load(Ordering::Relaxed));
        assert!(stalled.is_none_or(|stalled| stalled > 20), "{stalled:?} frames were held up");
    }
}

#[test]
fn control_words_travel_back() {
    for kind in links() {
        let (mut sender, mut receiver) = kind.link.connect(record_schema(&stream())).expect("connects");
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
        assert!(sender.clear(), "the descriptor was readable");
        for word in words {
            assert_eq!(sender.receive_control().expect("the receiver is there"), Some(word));
        }
        assert_eq!(sender.receive_control().expect("the receiver is there"), None);
    }
}

#[test]
fn a_lost_sender_is_told_after_what_it_sent() {
    for kind in links() {
        let (mut sender, mut receiver) = kind.link.connect(record_schema(&stream())).expect("connects");
        sender.send(frame(0, Content::Data { epoch: 1, batch: batch(2, 3) })).expect("the receiver is there");
        kind.go_on(sender.as_mut());
        drop(sender);
        assert!(receiver.clear(), "the descriptor was readable");
        kind.arrive();
        assert!(receiver.receive().expect("what was sent can be taken").is_some());
        assert!(matches!(receiver.receive(), Err(LinkError::Lost)));
    }
}

#[test]
fn a_lost_receiver_is_told_to_the_sender() {
    for kind in links() {
        let (mut sender, mut receiver) = kind.link.connect(record_schema(&stream())).expect("connects");
        receiver.send_control(Control::Credit(1)).expect("the sender is there");
        drop(receiver);
        assert!(sender.clear(), "the descriptor was readable");
        assert_eq!(sender.receive_control().expect("what was said can be taken"), Some(Control::Credit(1)));
        assert!(matches!(sender.receive_control(), Err(LinkError::Lost)));
        assert!(matches!(
            sender.send(frame(0, Content::Frontier { epoch: 1, rows: 0, steps: vec![] })),
            Err(LinkError::Lost)
        ));
    }
}

/// Two sources (fan-in), two routed stages (fan-out), then a window: its results need correct frontiers and watermarks.
fn fan(is_apart: bool, slow: Nanoseconds, budget: u64, emulation: Option<WireSpec>) {
    let clock = Arc::new(ManualClock::new());
    let mut b = Builder::new(&[0.3, 0.7]);
    b.is_apart = is_apart;
    b.byte_budget = budget;
    let (out, collected) = sink("out");
    b.source(rows_source("a", numbered(3000), None, Some(0), 100), "s1");
    b.source(rows_source("b", numbered(3000), None, Some(0), 37), "s2");
    for stage in ["f1", "f2"] {
        b.operator(stage, pass("f", |_| {}), stage, &[usize::from(stage == "f2")]);
        b.edge("a", stage, 0).edge("b", stage, 0);
    }
    b.operator("w", window("w", 100_000), "w", &[]).edge("f1", "w", 0).edge("f2", "w", 0);
    b.operator("slow", pass("slow", takes(&clock, slow)), "z", &[]).edge("w", "slow", 0);
    b.sink(out, "z").edge("slow", "out", 0);
    let emulation = emulation.map(|wire| {
        let edges = b.program.plan.edges.iter();
        let edges = edges.map(|edge| ((edge.from.clone(), edge.to.clone(), edge.input), 0));
        Emulation { edges: edges.collect(), wires: vec![wire], ..Emulation::default() }
    });
    let run = Run::start(b.program, RunOptions { emulation, clock: clock.clone(), ..RunOptions::default() })
        .expect("starts");
    drive(&run, &clock);
    let expected: Vec<String> = (0..30i64)
        .map(|w| {
            let sum: i64 = (w * 100..(w + 1) * 100).sum();
            format!("w{w:06}={}", 200 * 1_000_000_000 + 2 * sum)
        })
        .collect();
    assert_eq!(sorted(&collected), expected);
}

#[test]
fn frontier_and_watermark_under_fan_in_and_routed_fan_out() {
    for is_apart in APART {
        fan(is_apart, 0, 64 << 20, None);
    }
}

#[test]
fn a_slow_receiver_with_a_small_budget_loses_nothing() {
    for is_apart in APART {
        fan(is_apart, 3 * MILLISECOND, 1 << 16, None);
    }
}

#[test]
fn an_emulated_wire_under_fan_in_and_routed_fan_out() {
    for spec in [wire(None, 0), wire(Some(50_000_000), 3_000_000)] {
        fan(false, 0, 64 << 20, Some(spec.clone()));
        fan(false, MILLISECOND, 1 << 16, Some(spec));
    }
}

/// A receiver gets a frame when the wire has carried it, to the nanosecond, and two edges share the wire.
#[test]
fn an_emulated_frame_arrives_when_the_wire_has_carried_it() {
    let clock = Arc::new(ManualClock::new());
    let own = Arc::clone(&clock) as Arc<dyn Clock>;
    // 8 Mbit/s: a byte is a microsecond.
    let link =
        EmulatedLink::over(wire(Some(8_000_000), 5_000_000), Arc::new(AsBytes), own).expect("a thread");
    let (mut first, mut there) = link.connect(record_schema(&stream())).expect("connects");
    let (mut second, mut there_too) = link.connect(record_schema(&stream())).expect("connects");
    let progress = |epoch| frame(0, Content::Frontier { epoch, rows: 0, steps: vec![] });
    assert_eq!(
        first.send(progress(1)).expect("the receiver is there"),
        72,
        "a header and the number of rows"
    );
    assert_eq!(second.send(progress(2)).expect("the receiver is there"), 72);
    clock.advance(5_071_999);
    assert!(!there.clear() && there.receive().expect("the sender is there").is_none());
    clock.advance(1);
    while !there.clear() {
        std::thread::yield_now();
    }
    assert!(there.receive().expect("the sender is there").is_some());
    clock.advance(71_999);
    assert!(there_too.receive().expect("the sender is there").is_none(), "behind the other edge's frame");
    clock.advance(1);
    assert!(there_too.receive().expect("the sender is there").is_some());
}

/// The frontier of the lost slot is held: its receiver completes nothing, while another branch continues.
#[test]
fn a_lost_peer_holds_its_frontier_and_nobody_else() {
    for (is_apart, slot) in [(false, "w/a"), (true, "a/a")] {
        let mut b = Builder::new(&[1.0]);
        b.is_apart = is_apart;
        let (first, held) = sink("held");
        let (second, free) = sink("free");
        let (clock, kills) = (Arc::new(ManualClock::new()), Kills::new());
        b.source(rows_source("a", numbered(400), Some(2000.0), Some(0), 50), "a");
        b.source(rows_source("b", numbered(400), Some(2000.0), Some(0), 50), "b");
        b.sink(first, "x").edge("a", "held", 0);
        b.sink(second, "y").edge("b", "free", 0);
        for death in 1..=5 {
            let clock = Arc::clone(&clock);
            kills.order(slot, move |_| clock.now() >= death * 20 * MILLISECOND);
        }
        let options =
            RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
        let run = Run::start(b.program, options).expect("starts");
        passes(&clock, MILLISECOND, || !lines(&free).is_empty());
        assert_eq!(kills.drive(&run, &clock).restarts, 5);
        assert_eq!(lines(&held), row_lines(400));
        assert_eq!(lines(&free), row_lines(400));
    }
}

/// The first record of an epoch shows that no older one follows: the watermark does not need the epoch after.
#[test]
fn the_watermark_counts_the_record_that_comes_next() {
    for out_of_order in [0, 3000] {
        // Four rows per event time, as the frames of four cameras.
        let rows: Vec<Row> =
            numbered(1000).into_iter().map(|row| Row { time: row.value / 4 * 4000, ..row }).collect();
        let times: Vec<i64> = rows.iter().map(|row| row.time).collect();
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        b.source(rows_source("s", rows, Some(4000.0), Some(out_of_order), 64), "a");
        b.sink(out, "a").edge("s", "out", 0);
        let run = Run::start(b.program, RunOptions { keep_epoch_log: true, ..RunOptions::default() })
            .expect("starts");
        wait(&run);
        assert_eq!(collected.lock().expect("not poisoned").len(), 1000);
        let log = run.epoch_log();
        let cuts: Vec<(usize, i64)> = log["s"]
            .cuts
            .values()
            .map(|cut| (cut.sequence as usize, cut.watermark))
            .filter(|(at, _)| *at > 0)
            .collect();
        assert!(cuts.len() >= 4, "{cuts:?}");
        for (at, watermark) in cuts {
            assert_eq!(watermark, times[at] - out_of_order, "before record {at}");
        }
    }
}
