//! Measures the time of a record from one slot to another, against a bare eventfd ping between two threads and a ping
//! with a queue, in the same minute. Open loop: one record a millisecond, sleeping receivers.
use crate::parts::{Middle, chain, payload};
use crate::result::{Answer, Measurement};
use rustix::event::{EventfdFlags, eventfd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_engine::{Run, RunOptions};

const PINGS: usize = 2000;
const ROUNDS: usize = 7;

/// One-way wake-up of a thread blocked in `read` of an eventfd, microseconds.
fn eventfd_pings() -> anyhow::Result<Vec<f64>> {
    // A counter: on a busy machine the receiver may still sleep at the next ping, and must see both.
    let descriptor = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?);
    let clock = Arc::new(WallClock::new());
    let sent = Arc::new(AtomicI64::new(0));
    let receiver = {
        let (descriptor, clock, sent) = (Arc::clone(&descriptor), Arc::clone(&clock), Arc::clone(&sent));
        std::thread::spawn(move || {
            let mut samples = Vec::with_capacity(PINGS);
            for _ in 0..PINGS {
                if rustix::io::read(&*descriptor, &mut [0u8; 8]).is_err() {
                    break;
                }
                samples.push((clock.now() - sent.load(Ordering::Acquire)) as f64 / 1e3);
            }
            samples
        })
    };
    for _ in 0..PINGS {
        std::thread::sleep(Duration::from_millis(1));
        sent.store(clock.now(), Ordering::Release);
        rustix::io::write(&*descriptor, &1u64.to_ne_bytes())?;
    }
    receiver.join().map_err(|_| anyhow::anyhow!("the receiver died"))
}

fn slot_to_slot(worker: &str) -> anyhow::Result<(f64, f64)> {
    let program = chain(payload(1, 64), PINGS, Some(1000.0), Middle::Operators(0), Some(worker));
    let report = Run::start(program, RunOptions::default())?.wait()?;
    let sink = report.stages.iter().find(|stage| stage.stage == "sink");
    let transfer = sink.map(|sink| sink.transfer).ok_or_else(|| anyhow::anyhow!("no sink in the report"))?;
    Ok((transfer.p50_ms * 1e3, transfer.p99_ms * 1e3))
}

pub(crate) fn run() -> anyhow::Result<Answer> {
    let (mut ping, mut in_process, mut as_bytes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut over_in_process, mut over_as_bytes, mut tails) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let bare = Measurement::new("ping", "us", eventfd_pings()?).median();
        let (shared, tail) = slot_to_slot("local")?;
        let (copied, _) = slot_to_slot("other")?;
        ping.push(bare);
        in_process.push(shared);
        as_bytes.push(copied);
        tails.push(tail);
        over_in_process.push(shared - bare);
        over_as_bytes.push(copied - bare);
    }
    let measurements = vec![
        Measurement::new("bare eventfd ping, p50 of a round", "us", ping).baseline(),
        Measurement::new("slot to slot, in_process, p50 of a round", "us", in_process),
        Measurement::new("slot to slot, as bytes, p50 of a round", "us", as_bytes),
        Measurement::new("slot to slot, in_process, p99 of a round", "us", tails),
        Measurement::new("in_process over the ping of the same round", "us", over_in_process).goal(15.0),
        Measurement::new("as bytes over the ping of the same round", "us", over_as_bytes).goal(15.0),
    ];
    Ok(Answer::new("slot-to-slot", "How long does a record take from one slot to another?", measurements))
}
