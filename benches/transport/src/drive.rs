//! Drives asynchronous clients, on one thread.
use crate::contender::Gate;
use crate::load::{Filter, Latencies, Load, Outcome, SMALL, Workload};
use bytes::Bytes;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

/// Messages of a stream.
pub const MESSAGES: u64 = 2000;

/// Who calls, for filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Says nothing about it.
    Silent,
    /// May call.
    Reader,
    /// May not.
    Intruder,
}

impl Role {
    /// The text of the header `x-role`.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Silent => None,
            Self::Reader => Some("reader"),
            Self::Intruder => Some("intruder"),
        }
    }
}

/// Why a call has no reply.
#[derive(Debug)]
pub enum Failure {
    /// A filter refused it.
    Refused,
    /// Something else.
    Broken(String),
}

/// An asynchronous client of a contender: one connection or channel.
pub trait Caller: Clone + 'static {
    /// Makes a call with this payload; the server answers with 64 bytes. Returns the length of the answer.
    fn call(&self, payload: Bytes, role: Role) -> impl Future<Output = Result<usize, Failure>>;

    /// Sends a payload so often on one stream, and returns how often the server got it.
    fn stream(&self, payload: Bytes, count: u64) -> impl Future<Output = Result<u64, Failure>>;
}

#[derive(Default)]
struct Record {
    latencies: RefCell<Latencies>,
    calls: Cell<u64>,
    bytes: Cell<u64>,
    refused: Cell<u64>,
    errors: Cell<u64>,
    turn: Cell<u64>,
}

fn add(cell: &Cell<u64>, number: u64) {
    cell.set(cell.get() + number);
}

impl Record {
    fn note(&self, since: Instant, bytes: usize, result: &Result<usize, Failure>) {
        match result {
            Ok(SMALL) => {
                self.latencies.borrow_mut().add(nanoseconds(since));
                add(&self.calls, 1);
                add(&self.bytes, bytes as u64);
            }
            Err(Failure::Refused) => add(&self.refused, 1),
            Ok(length) => self.fail(&format!("a reply has {length} bytes")),
            Err(Failure::Broken(why)) => self.fail(why),
        }
    }

    fn fail(&self, why: &str) {
        if self.errors.get() == 0 {
            eprintln!("{why}");
        }
        add(&self.errors, 1);
    }

    fn role(&self, load: &Load) -> Role {
        add(&self.turn, 1);
        match load.filter {
            Filter::Acl if self.turn.get().is_multiple_of(100) => Role::Intruder,
            _ if load.roles => Role::Reader,
            _ => Role::Silent,
        }
    }

    fn outcome(&self, started: Instant) -> Outcome {
        let mut outcome = Outcome {
            calls: self.calls.get(),
            bytes: self.bytes.get(),
            refused: self.refused.get(),
            errors: self.errors.get(),
            seconds: started.elapsed().as_secs_f64(),
            ..Outcome::default()
        };
        self.latencies.borrow().write_to(&mut outcome);
        outcome
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Runs a load. `connect` is called once, and for [`Workload::Qos`] twice: for the small calls, and for the others.
///
/// # Errors
/// When nothing connects.
pub fn run<C: Caller, F: Future<Output = anyhow::Result<C>>>(
    load: &Load,
    gate: &mut Gate,
    connect: impl Fn() -> F,
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let caller = connect().await?;
        let other = if let Workload::Qos(..) = load.workload { connect().await? } else { caller.clone() };
        phase(load, load.warmup, &caller, &other).await?;
        gate.pass()?;
        phase(load, load.seconds, &caller, &other).await
    })
}

async fn phase<C: Caller>(load: &Load, seconds: f64, caller: &C, other: &C) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let deadline = started + Duration::from_secs_f64(seconds);
    let record = Rc::new(Record::default());
    match load.workload {
        Workload::Open(rate) => open(load, rate, deadline, caller, &record).await?,
        Workload::Stream => {
            let payload = Bytes::from(vec![7; load.workload.shape().0]);
            while Instant::now() < deadline {
                match caller.stream(payload.clone(), MESSAGES).await {
                    Ok(count) => {
                        add(&record.calls, count);
                        add(&record.bytes, count * payload.len() as u64);
                    }
                    Err(Failure::Refused) => add(&record.refused, 1),
                    Err(Failure::Broken(why)) => record.fail(&why),
                }
            }
        }
        Workload::Qos(rate, bulk) => {
            let bulk_record = Rc::new(Record::default());
            let tasks = if bulk { closed(load, deadline, other, &bulk_record) } else { Vec::new() };
            if rate > 0.0 {
                open(load, rate, deadline, caller, &record).await?;
            }
            join(tasks).await;
            let mut outcome = record.outcome(started);
            let rate = bulk_record.bytes.get() as f64 / outcome.seconds;
            outcome.errors += bulk_record.errors.get();
            outcome.more.insert("bulk_mbit_per_s".into(), rate * 8.0 / 1e6);
            outcome.more.insert("bulk_p50_us".into(), bulk_record.latencies.borrow().median());
            return Ok(outcome);
        }
        _ => join(closed(load, deadline, caller, &record)).await,
    }
    Ok(record.outcome(started))
}

async fn join(tasks: Vec<tokio::task::JoinHandle<()>>) {
    for task in tasks {
        let _ = task.await;
    }
}

/// As many calls in flight as the workload has.
fn closed<C: Caller>(
    load: &Load,
    deadline: Instant,
    caller: &C,
    record: &Rc<Record>,
) -> Vec<tokio::task::JoinHandle<()>> {
    let (bytes, in_flight) = load.workload.shape();
    let payload = Bytes::from(vec![7; bytes]);
    let task = |_| {
        let (load, caller, record, payload) = (*load, caller.clone(), record.clone(), payload.clone());
        tokio::task::spawn_local(async move {
            while Instant::now() < deadline {
                let role = record.role(&load);
                let since = Instant::now();
                let result = caller.call(payload.clone(), role).await;
                record.note(since, bytes, &result);
            }
        })
    };
    (0..in_flight).map(task).collect()
}

/// Calls at their times, whatever became of those before.
async fn open<C: Caller>(
    load: &Load,
    rate: f64,
    deadline: Instant,
    caller: &C,
    record: &Rc<Record>,
) -> anyhow::Result<()> {
    let payload = Bytes::from(vec![7; SMALL]);
    // Timers of tokio are as exact as a millisecond; this one is as exact as the kernel.
    let timer = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    let period = Duration::from_secs_f64(1.0 / rate);
    let every = Timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
    let started = Instant::now();
    rustix::time::timerfd_settime(
        &timer,
        TimerfdTimerFlags::empty(),
        &Itimerspec { it_interval: every, it_value: every },
    )?;
    #[allow(
        deprecated,
        reason = "its successor is unsafe; what is wrong with it concerns types that lend descriptors of others"
    )]
    let timer = AsyncFd::new(timer)?;
    let mut tasks = Vec::new();
    let mut due = started;
    while due < deadline {
        let mut ready = timer.readable().await?;
        let mut count = [0; 8];
        let _ = rustix::io::read(timer.get_ref(), &mut count);
        ready.clear_ready();
        for _ in 0..u64::from_ne_bytes(count) {
            due += period;
            let (since, role) = (due, record.role(load));
            let (caller, record, payload) = (caller.clone(), record.clone(), payload.clone());
            tasks.push(tokio::task::spawn_local(async move {
                let result = caller.call(payload, role).await;
                record.note(since, SMALL, &result);
            }));
        }
    }
    join(tasks).await;
    Ok(())
}
