//! A worker of a plan as a server with an enforced speed.
//!
//! A worker makes one call at a time, first come, first served, over all its stages. The optimizer's loads and
//! waiting times assume that (one server, shares of its time add up), and profiles measure it (a call computes in one
//! thread). So two calls of one worker never overlap.
//!
//! A call takes its processor time here times the stage's ratio. Processor time, because emulated workers share the
//! few processors of this machine, and a call must not take longer because another worker computes. The time counts
//! from when the worker was free and had the call, not from when this machine began it: a thread that is woken late
//! takes nothing from the worker's capacity.
use super::{AssumedTimes, PacedStageReport, WorkerSpeed};
use crate::clock::{Clock, Nanoseconds};
use crate::executor::{CallGate, GatedCall, Span};
use crate::wake::Waker;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_spec::quota::Quota;

/// Weight of a call in the factor by which calls take longer here than assumed.
const SMOOTHING: f64 = 0.05;
/// A call overran if it took more than this share longer than it may, and more than [`OVERRUN_LEAST`] nanoseconds.
const OVERRUN_SHARE: f64 = 0.1;
const OVERRUN_LEAST: Nanoseconds = 500_000;

#[derive(Debug, Default)]
struct Turns {
    /// Number of the next call, and of the one that may compute.
    next: u64,
    serving: u64,
    closed: bool,
}

#[derive(Debug)]
struct ServerState {
    /// When the previous call ends on the worker.
    free_at: Nanoseconds,
    quota: Quota,
    /// The stage of that call.
    newest: Option<usize>,
}

/// A worker. See the module.
pub(crate) struct Server {
    speed: WorkerSpeed,
    clock: Arc<dyn Clock>,
    turns: Mutex<Turns>,
    turn_over: Condvar,
    /// Only the holder of the turn looks.
    state: Mutex<ServerState>,
    /// Number of stages so far.
    stages: AtomicUsize,
    /// Wakes the holder of the turn, which waits for the time.
    waker: Arc<Waker>,
    closed: AtomicBool,
}

impl Server {
    /// An idle worker.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub(super) fn new(speed: WorkerSpeed, clock: &Arc<dyn Clock>) -> std::io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        clock.on_jump(&waker);
        Ok(Self {
            speed,
            clock: Arc::clone(clock),
            turns: Mutex::default(),
            turn_over: Condvar::new(),
            state: Mutex::new(ServerState {
                free_at: Nanoseconds::MIN,
                quota: Quota::default(),
                newest: None,
            }),
            stages: AtomicUsize::new(0),
            waker,
            closed: AtomicBool::new(false),
        })
    }

    /// Ends all waits, now and later.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.turns().closed = true;
        self.turn_over.notify_all();
        self.waker.wake();
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is this caller's turn; false when the run is over.
    pub(super) fn take_turn(&self) -> bool {
        let mut turns = self.turns();
        let own = turns.next;
        turns.next += 1;
        while turns.serving != own && !turns.closed {
            turns = self.turn_over.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        !turns.closed
    }

    pub(super) fn end_turn(&self) {
        self.turns().serving += 1;
        self.turn_over.notify_all();
    }

    /// The number of a further stage.
    pub(super) fn add_stage(&self) -> usize {
        self.stages.fetch_add(1, Ordering::Relaxed)
    }

    /// Reserves the worker for a call of the stage of this number; only the holder of the turn does. `needed` is told whether the
    /// call follows another one of the stage at once, and returns nanoseconds of the worker's processor, which are returned too.
    pub(super) fn reserve(
        &self,
        stage: usize,
        submitted: Nanoseconds,
        needed: impl FnOnce(bool) -> Nanoseconds,
    ) -> (Span, Nanoseconds) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ServerState { free_at, quota, newest } = &mut *state;
        // Another stage's call, or none, came before: the processor has to find its data again.
        let follows = *newest == Some(stage) && submitted <= *free_at;
        *newest = Some(stage);
        let needed = needed(follows);
        let started = submitted.max(*free_at);
        let finished = match self.speed {
            WorkerSpeed::Ratio => started.saturating_add(needed),
            WorkerSpeed::Quota(share) => quota.end(started, needed, share),
        };
        *free_at = finished;
        (Span { started, finished }, needed)
    }

    fn sleep_until(&self, deadline: Nanoseconds) {
        while self.clock.now() < deadline && !self.closed.load(Ordering::Acquire) {
            self.waker.wait(self.clock.real_time_until(deadline));
            self.waker.clear();
        }
    }
}

/// Counters of the calls of a stage.
#[derive(Debug, Default)]
pub(super) struct Meter {
    calls: AtomicU64,
    records: AtomicU64,
    busy: AtomicU64,
    needed: AtomicU64,
    elapsed: AtomicU64,
    processor: AtomicU64,
    overruns: AtomicU64,
    overrun_elapsed: AtomicU64,
    overrun_allowed: AtomicU64,
}

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) records: usize,
    /// The time that the worker was held.
    pub(super) held: Nanoseconds,
    /// The time of the worker's processor that it needed.
    pub(super) needed: Nanoseconds,
    /// The time that it may take here, and took.
    pub(super) allowed: Nanoseconds,
    pub(super) elapsed: Nanoseconds,
    /// Its processor time here.
    pub(super) processor: Duration,
}

impl Meter {
    pub(super) fn count(&self, call: Ended) {
        let add = |counter: &AtomicU64, value: Nanoseconds| {
            counter.fetch_add(u64::try_from(value).unwrap_or(0), Ordering::Relaxed);
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(call.records as u64, Ordering::Relaxed);
        add(&self.busy, call.held);
        add(&self.needed, call.needed);
        add(&self.elapsed, call.elapsed);
        add(&self.processor, Nanoseconds::try_from(call.processor.as_nanos()).unwrap_or(Nanoseconds::MAX));
        let excess = call.elapsed - call.allowed;
        if excess > OVERRUN_LEAST && excess as f64 > OVERRUN_SHARE * call.allowed as f64 {
            self.overruns.fetch_add(1, Ordering::Relaxed);
            add(&self.overrun_elapsed, call.elapsed);
            add(&self.overrun_allowed, call.allowed);
        }
    }
}

/// Speed of the calls of one model on its worker.
pub(crate) struct StagePace {
    server: Arc<Server>,
    /// Ratios of calls with 1, 2, ... records.
    ratios: Vec<f64>,
    /// Assumed times of calls, where a speed is enforced; otherwise calls take the ratio of their time here.
    assumed: Option<AssumedTimes>,
    /// Calls, and the factor by which they take longer here than assumed, smoothed.
    longer: Mutex<(u32, f64)>,
    /// Number of the stage on its server.
    number: usize,
    meter: Arc<Meter>,
}

impl StagePace {
    pub(super) fn new(server: Arc<Server>, ratios: Vec<f64>) -> Self {
        let number = server.add_stage();
        Self { server, ratios, assumed: None, longer: Mutex::new((0, 1.0)), number, meter: Arc::default() }
    }

    /// Its counters.
    pub(super) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Sets the assumed times of calls. An enforced speed does not depend on how long calls happen to take here in
    /// this run, only on their differences.
    pub(super) fn with_assumed(self, assumed: Option<AssumedTimes>) -> Self {
        Self { assumed, ..self }
    }

    /// Nanoseconds of the worker's processor that a call needs.
    fn needed(&self, records: usize, processor: Duration, follows: bool) -> Nanoseconds {
        let took = processor.as_nanos() as f64;
        let ratio = self.ratio(records);
        let assumed = self.assumed.as_ref();
        let known = assumed.and_then(|assumed| Some((assumed, of(&assumed.here, records)?)));
        let Some((assumed, here)) = known.filter(|(_, here)| *here > 0.0) else {
            return (took * ratio) as Nanoseconds;
        };
        let (pause_there, pause_here) = if follows { (0.0, 0.0) } else { assumed.after_pause };
        let there = ratio * here + pause_there;
        let relative = took / 1e9 / (here + pause_here);
        let mut longer = self.longer.lock().unwrap_or_else(PoisonError::into_inner);
        let (calls, factor) = &mut *longer;
        *calls = calls.saturating_add(1);
        *factor += (relative - *factor) * SMOOTHING.max(1.0 / f64::from(*calls));
        if *factor > 0.0 { (there * relative / *factor * 1e9) as Nanoseconds } else { 0 }
    }

    /// Reserves the worker's time for a call that took `elapsed` here.
    fn hold(
        &self,
        records: usize,
        submitted: Nanoseconds,
        processor: Duration,
        elapsed: Nanoseconds,
    ) -> Span {
        let needed = |follows| self.needed(records, processor, follows);
        let (span, needed) = self.server.reserve(self.number, submitted, needed);
        let held = span.finished - span.started;
        self.meter.count(Ended { records, held, needed, allowed: held, elapsed, processor });
        span
    }

    fn ratio(&self, records: usize) -> f64 {
        of(&self.ratios, records).unwrap_or(1.0)
    }
}

impl CallGate for StagePace {
    /// Waits for the worker, computes, and holds the worker for as long as the call takes there.
    fn call(
        &self,
        records: usize,
        submitted: Nanoseconds,
        compute: &mut dyn FnMut() -> Option<Duration>,
    ) -> Option<GatedCall> {
        let server = &self.server;
        if !server.take_turn() {
            return None;
        }
        let begun = server.clock.now();
        let processor = compute();
        let now = server.clock.now();
        let span = match processor {
            None => Span { started: begun, finished: now },
            Some(processor) => {
                let span = self.hold(records, submitted.min(begun), processor, now - begun);
                server.sleep_until(span.finished);
                Span { finished: span.finished.max(now), ..span }
            }
        };
        server.end_turn();
        Some(span.into())
    }
}

/// Returns the value of calls with this number of records; beyond the known numbers, the last.
pub(super) fn of(values: &[f64], records: usize) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    values.get(records.saturating_sub(1).min(last)).copied()
}

/// Reports the work of the instances of a stage.
pub(super) fn report(stage: &str, meters: &[Arc<Meter>]) -> PacedStageReport {
    let sum = |counter: fn(&Meter) -> &AtomicU64| {
        meters.iter().map(|meter| counter(meter).load(Ordering::Relaxed)).sum::<u64>()
    };
    let seconds = |counter: fn(&Meter) -> &AtomicU64| sum(counter) as f64 / 1e9;
    PacedStageReport {
        stage: stage.to_owned(),
        calls: sum(|meter| &meter.calls),
        records: sum(|meter| &meter.records),
        busy_seconds: seconds(|meter| &meter.busy),
        needed_seconds: seconds(|meter| &meter.needed),
        elapsed_seconds: seconds(|meter| &meter.elapsed),
        processor_seconds: seconds(|meter| &meter.processor),
        overruns: sum(|meter| &meter.overruns),
        overrun_seconds: (seconds(|meter| &meter.overrun_elapsed), seconds(|meter| &meter.overrun_allowed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use std::sync::mpsc;

    const MS: Nanoseconds = 1_000_000;

    fn server(speed: WorkerSpeed) -> (Arc<ManualClock>, Arc<Server>) {
        let clock = Arc::new(ManualClock::new());
        let server = Server::new(speed, &(Arc::clone(&clock) as Arc<dyn Clock>)).expect("a descriptor");
        (clock, Arc::new(server))
    }

    fn ms(n: u64) -> Option<Duration> {
        Some(Duration::from_millis(n))
    }

    /// Makes a call in a thread of its own, which sends when it computes and how it ended.
    fn calls(
        pace: &Arc<StagePace>,
        submitted: Nanoseconds,
        processor: u64,
    ) -> (mpsc::Receiver<()>, mpsc::Receiver<Option<Span>>) {
        let (computing, computes) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let pace = Arc::clone(pace);
        std::thread::spawn(move || {
            let span = pace.call(1, submitted, &mut || {
                computing.send(()).expect("the test waits");
                ms(processor)
            });
            ended.send(span.map(|call| call.span)).expect("the test waits");
        });
        (computes, ends)
    }

    #[test]
    fn a_call_of_10_ms_at_ratio_3_holds_30_ms() {
        let (clock, server) = server(WorkerSpeed::Ratio);
        let pace = Arc::new(StagePace::new(server, vec![3.0]));
        let (computes, ends) = calls(&pace, 0, 10);
        computes.recv().expect("it begins");
        clock.advance(10 * MS);
        clock.advance(20 * MS - 1);
        std::thread::yield_now();
        assert_eq!(ends.try_recv(), Err(mpsc::TryRecvError::Empty), "a nanosecond is left");
        clock.advance(1);
        assert_eq!(ends.recv(), Ok(Some(Span { started: 0, finished: 30 * MS })));
        let report = report("s", &[pace.meter()]);
        assert_eq!((report.calls, report.busy_seconds, report.processor_seconds), (1, 0.03, 0.01));
    }

    #[test]
    fn two_stages_on_one_worker_never_overlap() {
        let (clock, server) = server(WorkerSpeed::Ratio);
        let first = Arc::new(StagePace::new(Arc::clone(&server), vec![2.0]));
        let second = Arc::new(StagePace::new(Arc::clone(&server), vec![1.0]));
        let (computes, ends) = calls(&first, 0, 5);
        computes.recv().expect("it begins");
        let (computes_too, ends_too) = calls(&second, 3 * MS, 4);
        while server.turns().next < 2 {
            std::thread::yield_now();
        }
        clock.advance(10 * MS - 1);
        assert_eq!(computes_too.try_recv(), Err(mpsc::TryRecvError::Empty), "the worker is held");
        clock.advance(1);
        assert_eq!(ends.recv(), Ok(Some(Span { started: 0, finished: 10 * MS })));
        computes_too.recv().expect("now it begins");
        clock.advance(4 * MS);
        assert_eq!(ends_too.recv(), Ok(Some(Span { started: 10 * MS, finished: 14 * MS })));
    }

    #[test]
    fn a_late_thread_takes_nothing_from_the_worker() {
        let (clock, server) = server(WorkerSpeed::Ratio);
        let pace = Arc::new(StagePace::new(server, vec![1.0]));
        // Submitted at 0, computed at 7 ms only, because this machine was busy: on the worker it is over already.
        clock.advance(7 * MS);
        let span = pace.call(1, 0, &mut || ms(5)).expect("the run goes on").span;
        assert_eq!(span, Span { started: 0, finished: 7 * MS }, "but nobody heard of it before");
        clock.advance(MS);
        let next = pace.call(1, 6 * MS, &mut || ms(2)).expect("the run goes on").span;
        assert_eq!(next, Span { started: 6 * MS, finished: 8 * MS });
    }

    #[test]
    fn a_call_that_takes_longer_than_it_may_is_counted() {
        let (clock, server) = server(WorkerSpeed::Ratio);
        let pace = StagePace::new(server, vec![2.0]);
        let call = |took: Nanoseconds| {
            pace.call(1, clock.now(), &mut || {
                clock.advance(took);
                ms(5)
            });
        };
        call(10 * MS);
        assert_eq!(pace.meter.overruns.load(Ordering::Relaxed), 0);
        call(14 * MS);
        let report = report("s", &[pace.meter()]);
        assert_eq!((report.overruns, report.overrun_seconds), (1, (0.014, 0.01)));
    }

    #[test]
    fn the_ratio_goes_by_the_records_of_the_call() {
        let (_, server) = server(WorkerSpeed::Ratio);
        let pace = StagePace::new(Arc::clone(&server), vec![1.0, 2.0, 4.0]);
        assert_eq!([1, 2, 3, 9].map(|records| pace.ratio(records)), [1.0, 2.0, 4.0, 4.0]);
        assert_eq!(StagePace::new(server, Vec::new()).ratio(5), 1.0);
    }

    #[test]
    fn an_enforced_speed_does_not_depend_on_how_long_calls_take_here() {
        let (_, server) = server(WorkerSpeed::Ratio);
        let assumed = AssumedTimes { here: vec![0.010], after_pause: (0.006, 0.002) };
        let pace = StagePace::new(server, vec![2.0]).with_assumed(Some(assumed));
        let took = |submitted, processor| {
            let span = pace.hold(1, submitted, Duration::from_millis(processor), 0);
            (span.finished - span.started + MS / 2) / MS
        };
        // Twice as long as assumed, every one: still 20 ms there, and 6 more after a pause.
        assert_eq!(took(0, 24), 26);
        assert_eq!([took(0, 20), took(0, 20), took(MS, 20)], [20; 3]);
        assert_eq!(took(1000 * MS, 24), 26, "nothing was there to do for a while");
        // One that is longer than the others still is.
        assert!((0..200).all(|_| took(0, 20) == 20));
        assert_eq!(took(0, 40), 38, "it counts among the last ones");
    }

    #[test]
    fn the_end_of_a_run_lets_everybody_go() {
        let (_clock, server) = server(WorkerSpeed::Ratio);
        let pace = Arc::new(StagePace::new(Arc::clone(&server), vec![1.0]));
        let (computes, ends) = calls(&pace, 0, 1_000_000);
        computes.recv().expect("it begins");
        let (_, waits) = calls(&pace, 0, 1);
        while server.turns().next < 2 {
            std::thread::yield_now();
        }
        server.close();
        assert!(ends.recv().expect("it ends").is_some());
        assert_eq!(waits.recv(), Ok(None));
    }
}
