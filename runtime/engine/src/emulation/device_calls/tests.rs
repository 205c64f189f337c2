use super::super::WireSpec;
use super::super::WorkerSpeed;
use super::super::worker::report;
use super::*;
use crate::clock::ManualClock;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

const MS: Nanoseconds = 1_000_000;

/// A device behind wires of 8 Mbit/s (a byte is a microsecond) and 5 ms.
struct Place {
    clock: Arc<ManualClock>,
    there: Arc<Wire>,
    back: Arc<Wire>,
    device: Arc<Device>,
    sleepers: Arc<Sleepers>,
}

impl Place {
    fn new() -> Self {
        let wire = |from: &str, to: &str| {
            let (from, to) = (from.to_owned(), to.to_owned());
            Arc::new(Wire::new(WireSpec { from, to, bandwidth: Some(8_000_000), delay: 5_000_000 }))
        };
        let clock = Arc::new(ManualClock::new());
        let sleepers = Arc::new(Sleepers::new(&(Arc::clone(&clock) as Arc<dyn Clock>)));
        let device = Arc::new(Device::new("hub/gpu"));
        Self { clock, there: wire("edge", "hub"), back: wire("hub", "edge"), device, sleepers }
    }

    /// A stage on a worker of its own, which needs so long for a call.
    fn stage(&self, name: &str, milliseconds: f64) -> Arc<DeviceCalls> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let times = OnDevice {
            stage: CallTimes { seconds: vec![milliseconds / 1e3], after_pause: 0.0 },
            model: CallTimes { seconds: vec![0.006, 0.010], after_pause: 0.003 },
            sent: 1000,
            received: 500,
            ..OnDevice::default()
        };
        let path = Path {
            server: Arc::new(Server::new(WorkerSpeed::Ratio, &clock).expect("a descriptor")),
            device: Arc::clone(&self.device),
            there: Some(Arc::clone(&self.there)),
            back: Some(Arc::clone(&self.back)),
        };
        Arc::new(DeviceCalls::new(name, times, path, &self.sleepers, &clock))
    }

    /// Begins a call of two records, submitted now, and waits until its stage prepares it.
    fn begin(&self, calls: &Arc<DeviceCalls>) -> mpsc::Receiver<Option<GatedCall>> {
        let (waiting, (ended, ends)) = (self.sleepers.waiting(), mpsc::channel());
        let (calls, now) = (Arc::clone(calls), self.clock.now());
        std::thread::spawn(move || {
            let call = calls.call(2, now, &mut || Some(Duration::from_millis(1)));
            ended.send(call).expect("the test waits");
        });
        until(|| self.sleepers.waiting() > waiting);
        ends
    }

    fn on_its_way(&self) -> u64 {
        self.there.tensor_bytes.load(Ordering::Acquire)
    }

    fn computed(&self) -> usize {
        self.device.report().stages.len()
    }
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

fn times(network: u64, queue: u64, compute: u64) -> DeviceTimes {
    let [network, queue, compute] = [network, queue, compute].map(Duration::from_millis);
    DeviceTimes {
        network,
        queue,
        compute,
        round_trips: 1,
        sent: 2000,
        received: 1000,
        ..DeviceTimes::default()
    }
}

#[test]
fn a_call_takes_the_times_of_worker_wires_and_device() {
    let place = Place::new();
    let calls = place.stage("find", 2.0);
    let ends = place.begin(&calls);
    // 2 ms at the stage, 2 + 5 there, 10 + 3 after a pause, 1 + 5 back.
    place.clock.advance(28 * MS - 1);
    until(|| place.back.tensor_bytes.load(Ordering::Relaxed) > 0);
    assert_eq!(ends.try_recv(), Err(mpsc::TryRecvError::Empty), "a nanosecond is left");
    place.clock.advance(1);
    let call = ends.recv().expect("it ends").expect("the run continues");
    assert_eq!(call.span, Span { started: 0, finished: 28 * MS });
    assert_eq!(call.device, Some(times(13, 0, 13)));
    let report = report("find", &[calls.meter()]);
    assert_eq!((report.calls, report.records, report.overruns), (1, 2, 0));
    assert_eq!((report.busy_seconds, report.processor_seconds), (0.002, 0.001), "the worker's part only");
}

#[test]
fn stages_wait_for_each_other_on_the_wire_and_at_the_device() {
    let place = Place::new();
    let (first, second) = (place.stage("find", 2.0), place.stage("name", 3.0));
    let (ends, ends_too) = (place.begin(&first), place.begin(&second));
    place.clock.advance(2 * MS);
    until(|| place.on_its_way() == 2000);
    place.clock.advance(MS);
    until(|| place.on_its_way() == 4000);
    // The first reaches the device at 9 ms and the second, after it on the wire, at 11 ms.
    place.clock.advance(6 * MS);
    until(|| place.computed() == 1);
    place.clock.advance(2 * MS);
    until(|| place.computed() == 2);
    // Computed until 22 ms and 32 ms, and back 6 ms later; the first takes the wire back before time reaches the second.
    place.clock.advance(11 * MS);
    until(|| place.back.tensor_bytes.load(Ordering::Acquire) == 1000);
    place.clock.advance(16 * MS);
    let [first, second] =
        [ends, ends_too].map(|ends| ends.recv().expect("it ends").expect("the run continues"));
    assert_eq!(first.device, Some(times(7 + 6, 0, 13)));
    assert_eq!(second.device, Some(times(8 + 6, 11, 10)), "without a pause, because the device was busy");
    assert_eq!(second.span, Span { started: 0, finished: 38 * MS });
}

#[test]
fn the_worker_is_free_while_the_device_computes() {
    let place = Place::new();
    let calls = place.stage("find", 2.0);
    let (ends, ends_too) = (place.begin(&calls), place.begin(&calls));
    place.clock.advance(100 * MS);
    let [first, second] =
        [ends, ends_too].map(|ends| ends.recv().expect("it ends").expect("the run continues"));
    assert_eq!((first.span.started, second.span.started), (0, 2 * MS));
}

/// Copies of a model are alike: the next call takes the one that is free first.
#[test]
fn a_call_takes_the_copy_that_came_back_first() {
    let place = Place::new();
    let calls = place.stage("find", 2.0);
    *calls.idle() = vec![7 * MS, 3 * MS, 9 * MS];
    assert_eq!([calls.take_idle(), calls.take_idle(), calls.take_idle()], [3 * MS, 7 * MS, 9 * MS]);
    assert_eq!(calls.take_idle(), Nanoseconds::MIN, "one that had no call yet");
}

/// It was submitted while the one before was on its way.
#[test]
fn a_copy_begins_its_next_call_when_the_last_one_is_back() {
    let place = Place::new();
    let calls = place.stage("find", 2.0);
    let ends = place.begin(&calls);
    place.clock.advance(28 * MS);
    let first = ends.recv().expect("it ends").expect("the run continues");
    assert_eq!(first.span, Span { started: 0, finished: 28 * MS });
    place.clock.advance(MS);
    let (ended, ends) = mpsc::channel();
    let next = Arc::clone(&calls);
    std::thread::spawn(move || {
        ended.send(next.call(2, 5 * MS, &mut || Some(Duration::ZERO))).expect("the test waits");
    });
    until(|| place.sleepers.waiting() == 1);
    place.clock.advance(100 * MS);
    let second = ends.recv().expect("it ends").expect("the run continues");
    assert_eq!(second.span.started, 28 * MS, "not when it was submitted");
    assert_eq!(second.device.map(|times| times.queue), Some(Duration::ZERO));
}

#[test]
fn a_model_that_takes_longer_here_is_counted() {
    let place = Place::new();
    let calls = place.stage("find", 2.0);
    let call = calls.call(2, 0, &mut || {
        place.clock.advance(40 * MS);
        Some(Duration::from_millis(40))
    });
    assert_eq!(call.map(|call| call.span), Some(Span { started: 0, finished: 40 * MS }));
    let report = report("find", &[calls.meter()]);
    assert_eq!((report.overruns, report.overrun_seconds), (1, (0.04, 0.028)));
}

#[test]
fn the_end_of_a_run_ends_all_waits() {
    let place = Place::new();
    let ends = place.begin(&place.stage("find", 1e6));
    place.sleepers.close();
    assert!(ends.recv().expect("it ends").is_some());
}
