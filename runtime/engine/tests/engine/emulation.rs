//! Runs on emulated workers and wires: their metering, uniform time dilation, and unchanged recovery.
use crate::parts::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_engine::clock::DilatedClock;
use tidemill_engine::{CallTimes, Emulation, OnDevice, Run, RunOptions, RunReport, WireSpec, WorkerSpeed};
use tidemill_machine::thread_time;

/// Uses this much processor time.
pub(crate) fn spin(wanted: Duration) {
    let begun = thread_time();
    while thread_time() - begun < wanted {}
}

/// A worker that takes `ratio` times the processor time, after a wire.
fn slow(ratio: f64) -> Emulation {
    let edge = |from: &str, to: &str| ((from.to_owned(), to.to_owned(), 0), 0);
    Emulation {
        workers: BTreeMap::from([("w".to_owned(), WorkerSpeed::Ratio)]),
        ratios: BTreeMap::from([("m".to_owned(), vec![ratio])]),
        assumed: BTreeMap::new(),
        wires: vec![WireSpec {
            from: "edge".to_owned(),
            to: "cloud".to_owned(),
            bandwidth: Some(100_000_000),
            delay: 5_000_000,
        }],
        edges: BTreeMap::from([edge("src", "m"), edge("m", "out")]),
        ..Emulation::default()
    }
}

/// The model on a device behind wires of 5 ms: 1 ms at the stage, 3 ms on the device, a byte a microsecond there.
fn on_a_device() -> Emulation {
    let wire = |from: &str, to: &str, bandwidth| WireSpec {
        from: from.to_owned(),
        to: to.to_owned(),
        bandwidth,
        delay: 5_000_000,
    };
    let times = |seconds: f64| CallTimes { seconds: vec![seconds], after_pause: 0.0 };
    let on_device = OnDevice {
        device: 0,
        stage: times(0.001),
        model: times(0.003),
        sent: 2_000,
        received: 100,
        there: Some(0),
        back: Some(1),
    };
    Emulation {
        workers: BTreeMap::from([("w".to_owned(), WorkerSpeed::Ratio)]),
        wires: vec![wire("edge", "hub", Some(8_000_000)), wire("hub", "edge", None)],
        devices: vec!["hub/gpu".to_owned()],
        on_devices: BTreeMap::from([("m".to_owned(), on_device)]),
        ..Emulation::default()
    }
}

/// Numbered records at a rate through a model that takes a millisecond of processor time per record.
fn pipeline(records: usize, rate: f64) -> (Builder, Collected) {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(records), Some(rate), Some(0), 40), "a");
    let compute = |batch: &arrow_array::RecordBatch| spin(Duration::from_millis(batch.num_rows() as u64));
    b.operator("m", model("m", compute), "b", &[]).edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    (b, collected)
}

fn expected(records: usize) -> Vec<String> {
    (0..records).map(|i| format!("k{i:06}={i}")).collect()
}

fn options(emulation: Emulation, dilation: f64) -> RunOptions {
    RunOptions {
        clock: Arc::new(DilatedClock::new(dilation)),
        emulation: Some(emulation),
        ..RunOptions::default()
    }
}

fn busy(report: &RunReport) -> f64 {
    report.emulation.as_ref().expect("it was emulated").workers[0].busy_seconds
}

#[test]
fn what_workers_and_wires_did_is_metered() {
    let (b, collected) = pipeline(100, 100.0);
    let run = Run::start(b.program, options(slow(3.0), 1.0)).expect("starts");
    let report = ended(&run, 30);
    assert_eq!(sorted(&collected), expected(100));
    let emulation = report.emulation.as_ref().expect("it was emulated");
    let stage = &emulation.workers[0].stages[0];
    assert_eq!((stage.stage.as_str(), stage.records), ("m", 100));
    assert!(stage.processor_seconds >= 0.1, "{stage:?}");
    assert!((stage.busy_seconds - 3.0 * stage.processor_seconds).abs() < 1e-3, "{stage:?}");
    let wire = &emulation.wires[0];
    for edge in &report.edges {
        let metered = wire.edges.iter().find(|metered| metered.from == edge.from && metered.to == edge.to);
        let metered = metered.expect("both edges are on the wire");
        assert_eq!((metered.records, metered.record_bytes), (edge.records, edge.bytes));
        assert!(metered.data_bytes > edge.bytes, "frames have headers: {metered:?}");
    }
    assert_eq!(wire.data_bytes, wire.edges.iter().map(|edge| edge.data_bytes).sum::<u64>());
    assert!(wire.progress_bytes > 0);
    // Two delays and the computation.
    assert!(report.sinks[0].latency.p50_ms >= 10.0 + 3.0, "{:?}", report.sinks[0].latency);
}

/// The split of a batch's time is that of the emulated device, in plan time, whatever the dilation.
#[test]
fn the_report_splits_the_time_of_a_model_on_an_emulated_device() {
    for dilation in [1.0, 2.0] {
        let (mut b, collected) = pipeline(60, 40.0);
        b.program.plan.stages[1].device = Some("emulated:hub/gpu".to_owned());
        let run = Run::start(b.program, options(on_a_device(), dilation)).expect("starts");
        let report = ended(&run, 30);
        assert_eq!(sorted(&collected), expected(60));
        let stage = report.stages.iter().find(|stage| stage.stage == "m").expect("it is in the plan");
        assert_eq!(stage.device.as_deref(), Some("emulated:hub/gpu"));
        let split = stage.on_device.as_ref().expect("a device computed");
        assert_eq!((split.round_trips, split.sessions_lost), (split.batches, 0));
        assert_eq!((split.sent_bytes, split.received_bytes), (60 * 2_000, 60 * 100));
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.05;
        assert!(near(split.compute.p50_ms, 3.0), "{split:?}");
        assert!(near(split.network.p50_ms, 12.0), "2 ms to send, and 5 ms each way: {split:?}");
        // The rest of the time is that of the stage, at least.
        assert!(split.client.p50_ms >= 0.95, "{split:?}");
        let emulation = report.emulation.as_ref().expect("it was emulated");
        let device = &emulation.devices[0];
        assert_eq!((device.device.as_str(), device.stages[0].records), ("hub/gpu", 60));
        assert!(near(device.busy_seconds, 0.003 * device.stages[0].calls as f64), "{device:?}");
        assert_eq!(
            emulation.wires.iter().map(|wire| wire.tensor_bytes).collect::<Vec<_>>(),
            [120_000, 6_000]
        );
        assert!(near(busy(&report), 0.001 * device.stages[0].calls as f64), "the worker has its part only");
    }
}

/// A plan names the device itself; `emulated:ID` is that of a run which emulates it.
#[test]
fn a_device_that_is_not_emulated_is_refused() {
    let (mut b, _) = pipeline(1, 40.0);
    b.program.plan.stages[1].device = Some("emulated:hub/gpu".to_owned());
    let error = Run::start(b.program, RunOptions::default()).err().expect("it has no times").to_string();
    assert!(error.contains("`device:ID`"), "{error}");
    let mut wrong = on_a_device();
    wrong.devices.clear();
    let (b, _) = pipeline(1, 40.0);
    let error = Run::start(b.program, options(wrong, 1.0)).err().expect("no such device").to_string();
    assert!(error.contains("stage 'm' is on a device that is not emulated"), "{error}");
}

/// 3 ms of the worker per record: at most 333 records a second, on any machine.
#[test]
fn a_worker_gives_no_more_than_its_speed() {
    let (b, collected) = pipeline(300, 3000.0);
    let run = Run::start(b.program, options(slow(3.0), 1.0)).expect("starts");
    let report = ended(&run, 30);
    assert_eq!(sorted(&collected), expected(300));
    assert!(report.seconds >= 0.9, "{} s", report.seconds);
    assert!(
        busy(&report) <= report.seconds + 1e-3,
        "one call at a time: {} in {}",
        busy(&report),
        report.seconds
    );
}

/// The plan takes twice as long in wall time, and as long as before in its own time.
#[test]
#[ignore = "long: make test-long"]
fn a_stretched_run_gives_the_same_in_plan_time() {
    let of = |dilation: f64| {
        let (b, collected) = pipeline(100, 100.0);
        #[expect(clippy::disallowed_methods, reason = "the wall is what is compared with")]
        let begun = std::time::Instant::now();
        let run = Run::start(b.program, options(slow(3.0), dilation)).expect("starts");
        let report = ended(&run, 40);
        assert_eq!(sorted(&collected), expected(100));
        (report, begun.elapsed().as_secs_f64())
    };
    let ((plain, _), (stretched, wall)) = (of(1.0), of(3.0));
    assert!(wall >= 3.0 * 0.99, "99 records at 100/s, three times slower: {wall}");
    for report in [&plain, &stretched] {
        assert!(report.seconds >= 0.99, "{}", report.seconds);
        assert!(report.sinks[0].latency.p50_ms >= 13.0, "{:?}", report.sinks[0].latency);
    }
    assert!(wall >= 2.9 * stretched.seconds, "plan time is a third of it: {wall} {}", stretched.seconds);
    let (once, again) = (busy(&plain), busy(&stretched));
    // In wall time it would be three times as much; processor time of a call varies less, also on a busy machine.
    let ratio = again / once;
    assert!(ratio > 0.4 && ratio < 2.5, "the worker was about as busy: {once} {again}");
}

/// Snapshots, restarts of slots and of models that panic work as without emulation.
#[test]
fn recovery_works_on_emulated_workers() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(600), Some(400.0), Some(0), 40), "a");
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let act = move |_: &arrow_array::RecordBatch| {
        spin(Duration::from_micros(300));
        assert!(counted.fetch_add(1, Ordering::Relaxed) != 20, "the twenty-first call");
    };
    b.operator("m", model("m", act), "b", &[]).edge("src", "m", 0);
    b.operator("w", window("w", 10_000), "d", &[]).edge("m", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    b.restart_on_panic("m");
    let mut emulation = slow(2.0);
    emulation.edges.insert(("m".to_owned(), "w".to_owned(), 0), 0);
    emulation.edges.insert(("w".to_owned(), "out".to_owned(), 0), 0);
    emulation.edges.remove(&("m".to_owned(), "out".to_owned(), 0));
    let kills = Kills::new();
    kills.order("w/b", |seen| seen.emitted("m") >= 100);
    kills.order("w/d", |seen| seen.emitted("w") >= 20);
    kills.order("w/a", |seen| seen.emitted("src") >= 400);
    let options = RunOptions { faults: Some(kills.clone()), ..options(emulation, 1.0) };
    let report = ended(&Run::start(b.program, options).expect("starts"), 40);
    kills.check(&report);
    let expected: Vec<String> = (0..60i64)
        .map(|w| format!("w{w:06}={}", 10 * 1_000_000_000 + (w * 10..(w + 1) * 10).sum::<i64>()))
        .collect();
    assert_eq!(sorted(&collected), expected);
    assert_eq!(report.restarts, 3);
    assert!(calls.load(Ordering::Relaxed) > 20);
}

/// A call that would hold its worker for hours does not delay the end.
#[test]
fn an_abort_waits_for_no_worker_and_no_wire() {
    let (b, _) = pipeline(100, 1000.0);
    let mut emulation = slow(10_000_000.0);
    emulation.wires[0].delay = 3_600_000_000_000;
    emulation.edges.remove(&("src".to_owned(), "m".to_owned(), 0));
    let run = Run::start(b.program, options(emulation, 1.0)).expect("starts");
    while run.report().stages.iter().all(|stage| stage.stage != "m" || stage.records_in == 0) {
        std::thread::yield_now();
    }
    run.stopper().abort();
    assert!(!ended(&run, 20).complete);
}

/// A far too slow wire holds no more than the credit of its edge.
#[test]
#[ignore = "long: make test-long"]
fn a_slow_wire_holds_what_its_credits_allow() {
    let mut b = Builder::new(&[1.0]);
    b.byte_budget = 1 << 16;
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(400_000), None, Some(0), 1000), "a");
    b.sink(out, "c").edge("src", "out", 0);
    let mut emulation = slow(1.0);
    emulation.wires[0].bandwidth = Some(8_000_000);
    let edge = ("src".to_owned(), "out".to_owned(), 0);
    emulation.edges = BTreeMap::from([(edge, 0)]);
    let run = Run::start(b.program, options(emulation, 1.0)).expect("starts");
    std::thread::sleep(Duration::from_secs(2));
    let wire = &run.report().emulation.expect("it is emulated").wires[0];
    // The credit of 4 MiB, the data carried at a million bytes a second, the last frame, and the frames' headers.
    assert!(wire.data_bytes < (4 << 20) + 4_000_000 + (1 << 20), "{wire:?}");
    run.stopper().abort();
    ended(&run, 20);
    drop(collected);
}
