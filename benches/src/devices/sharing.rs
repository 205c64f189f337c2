//! Three tenants on one device, one of them hostile; and a busy session that moves to another device while its own is drained.
use super::now;
use super::page::{Found, Table, median, time};
use crate::result::Measurement;
use anyhow::{Context, ensure};
use std::collections::VecDeque;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_device::call::Failure;
use tidemill_device::child;
use tidemill_device::daemon::control::{Question, ask};
use tidemill_device::daemon::tenants::{Tenant, Tenants};
use tidemill_device::daemon::{Daemon, Options};
use tidemill_device::device::{Artifact, DeviceError, ModelId};
use tidemill_device::dial;
use tidemill_device::emulated::{Emulated, ModelTimes, Profile, artifact_of};
use tidemill_device::session::{CallError, Pending, Session};
use tidemill_device::value::Element;
use tidemill_link::remote::{Address, Security};

/// The question of this program that serves a session of a daemon.
pub(crate) const PROCESS: &str = "devices-process";

const MEMORY: u64 = 64 << 20;
const SHARES: [(&str, f64); 3] = [("half", 0.5), ("third", 0.3), ("fifth", 0.2)];
const MEASURED: Duration = Duration::from_secs(10);
/// Outstanding runs of a tenant. The hostile one has more, each of them longer.
const WINDOW: usize = 2;
const FLOOD: usize = 64;
const RUN_MS: f64 = 4.0;
const LONG_RUN_MS: f64 = 20.0;
/// Content of the model that moves: as large as ResNet-18.
const STATE: usize = 46_800_000;

/// Serves one session, by the emulated device of the two models.
pub(crate) fn serve_process() -> anyhow::Result<()> {
    super::relay::exact_timers();
    let takes = |run_ms| ModelTimes { run_ms, ..ModelTimes::default() };
    let models = [("short".to_owned(), takes(RUN_MS)), ("long".to_owned(), takes(LONG_RUN_MS))].into();
    child::main(&Emulated::new(Profile { models, ..Profile::default() }))?;
    Ok(())
}

/// A daemon with a process of this program for each session.
struct Served {
    daemon: Daemon,
    device: String,
    _cache: tempfile::TempDir,
}

impl Served {
    fn start(name: &str) -> anyhow::Result<Self> {
        let (cache, device) = (tempfile::tempdir()?, format!("bench-{name}-{}", std::process::id()));
        let tenant = |share| Tenant { share, memory: Some(MEMORY) };
        let tenants = SHARES.map(|(name, share)| (name.to_owned(), tenant(share)));
        let options = Options {
            device: device.clone(),
            kind: None,
            listen: vec![Address::tcp("127.0.0.1:0")],
            security: Security::none(),
            command: vec![std::env::current_exe()?.display().to_string(), PROCESS.to_owned()],
            cache: cache.path().to_owned(),
            cache_limit: 1 << 30,
            memory: None,
            slots: 1,
            batching: None,
            tenants: Tenants::new(tenants, true).map_err(anyhow::Error::msg)?,
            most_sessions: 16,
            longest_run: Duration::from_secs(60),
        };
        let daemon = Daemon::start(options).context("no daemon")?;
        Ok(Self { daemon, device, _cache: cache })
    }

    fn open(&self, tenant: &str) -> Result<Session, CallError> {
        dial::open(&self.daemon.addresses()[0], &Security::none(), tenant, "bench")
    }

    /// Seconds that the device computed for each tenant.
    fn computed(&self) -> anyhow::Result<[f64; 3]> {
        let listing = ask(&self.device, &Question::List)?.map_err(anyhow::Error::msg)?;
        Ok(SHARES.map(|(tenant, _)| {
            let its = listing.sessions.iter().filter(|session| session.tenant == tenant);
            its.map(|session| session.computed_seconds).sum()
        }))
    }
}

fn load(session: &Session, artifact: &Artifact, content: &[u8]) -> Result<ModelId, CallError> {
    let model = session.load(artifact, |_| Ok(Box::new(Cursor::new(content.to_vec()))))?;
    session.flush()?;
    Ok(model)
}

fn post(session: &Session, model: ModelId) -> Result<(Instant, Pending), CallError> {
    let begin = now();
    let mut lane = session.lane();
    let input = lane.upload(Element::Uint8, &[100], &[7; 100])?;
    let outputs = lane.run(model, &[input], &[0])?;
    let pending = lane.read(outputs[0])?;
    lane.free(&[input, outputs[0]])?;
    Ok((begin, pending))
}

fn is_out_of_memory(error: &CallError) -> bool {
    matches!(error, CallError::Failed(Failure { error: DeviceError::OutOfMemory { .. }, .. }))
}

/// Runs until it is over, with so many outstanding; seconds of each.
fn work(
    served: &Served,
    tenant: &str,
    model: &str,
    window: usize,
    is_over: &AtomicBool,
) -> anyhow::Result<Vec<f64>> {
    super::relay::exact_timers();
    let session = served.open(tenant)?;
    let model = load(&session, &artifact_of(model, model.as_bytes(), 1, 1), model.as_bytes())?;
    let (mut outstanding, mut seconds) = (VecDeque::new(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        while outstanding.len() < window {
            outstanding.push_back(post(&session, model)?);
        }
        if let Some((begin, pending)) = outstanding.pop_front() {
            match pending.wait() {
                Ok(answer) => drop(answer.value()?),
                // Sessions of its own tenant hold all of its memory.
                Err(error) if window == FLOOD && is_out_of_memory(&error) => continue,
                Err(error) => return Err(error.into()),
            }
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    // Outstanding runs end with the session.
    Ok(seconds)
}

/// Holds memory until a call fails, again and again; how often it failed. Nothing but the limit may stop it.
fn leak(served: &Served, tenant: &str, is_over: &AtomicBool) -> anyhow::Result<usize> {
    let (mut refused, piece) = (0, MEMORY / 8);
    while !is_over.load(Ordering::Relaxed) {
        let session = served.open(tenant)?;
        let failure = (0..16).find_map(|_| {
            let made = session.lane().create(Element::Uint8, &[piece as usize]);
            made.map(drop).and_then(|()| session.flush()).err()
        });
        match failure {
            Some(error) if is_out_of_memory(&error) => refused += 1,
            other => anyhow::bail!("{tenant} holds {MEMORY} bytes, and more: {other:?}"),
        }
    }
    Ok(refused)
}

/// Shares of three tenants, and the times of the smallest, with or without a hostile one.
struct Shares {
    /// Percent of the device, in the order of [`SHARES`].
    parts: [f64; 3],
    seconds: Vec<f64>,
    refused: usize,
}

fn share(name: &str, is_hostile: bool) -> anyhow::Result<Shares> {
    let served = Served::start(name)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (served, is_over) = (&served, &is_over);
        let mut workers = Vec::new();
        for (at, (tenant, _)) in SHARES.into_iter().enumerate() {
            let (model, window) = if is_hostile && at == 0 { ("long", FLOOD) } else { ("short", WINDOW) };
            workers.push(scope.spawn(move || work(served, tenant, model, window, is_over)));
        }
        let leaker = is_hostile.then(|| scope.spawn(move || leak(served, SHARES[0].0, is_over)));
        let measured = (|| {
            while served.computed()?.iter().any(|seconds| *seconds < 0.1) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let before = served.computed()?;
            std::thread::sleep(MEASURED);
            let after = served.computed()?;
            anyhow::Ok([0, 1, 2].map(|at| after[at] - before[at]))
        })();
        is_over.store(true, Ordering::Relaxed);
        let mut seconds = Vec::new();
        for worker in workers {
            seconds = worker.join().expect("a thread of this bench does not panic")?;
        }
        let refused =
            leaker.map(|leaker| leaker.join().expect("a thread of this bench does not panic")).transpose()?;
        let computed = measured?;
        let all: f64 = computed.iter().sum();
        let parts = computed.map(|seconds| seconds / all * 100.0);
        Ok(Shares { parts, seconds, refused: refused.unwrap_or_default() })
    })
}

/// Seconds without a result, and runs that had to be repeated, while a device is drained and its busy session goes to another.
fn moved(round: usize) -> anyhow::Result<(f64, usize)> {
    let (from, to) = (Served::start("from")?, Served::start("to")?);
    let content: Vec<u8> = (0..STATE).map(|at| (at >> 3) as u8 ^ (at >> 11) as u8 ^ round as u8).collect();
    let artifact = artifact_of("short", &content, 1, 1);
    let mut session = from.open("half")?;
    let mut model = load(&session, &artifact, &content)?;
    let (mut outstanding, mut done, mut repeated) = (VecDeque::new(), 0, 0);
    let (mut last, mut pause, mut is_moved) = (now(), 0.0_f64, false);
    while done < 200 {
        while outstanding.len() < WINDOW {
            outstanding.push_back(post(&session, model)?);
        }
        if done == 100 && !is_moved && outstanding.len() == WINDOW {
            ask(&from.device, &Question::Drain { session: None })?.map_err(anyhow::Error::msg)?;
        }
        let Some((_, pending)) = outstanding.pop_front() else { continue };
        match pending.wait() {
            Ok(answer) => {
                answer.value()?;
                if is_moved {
                    pause = pause.max(last.elapsed().as_secs_f64());
                }
                (last, done) = (now(), done + 1);
            }
            Err(CallError::Lost { .. }) if !is_moved => {
                // A run is pure: those without a result are posted again, elsewhere.
                repeated = 1 + outstanding.len();
                outstanding.clear();
                session = to.open("half")?;
                model = load(&session, &artifact, &content)?;
                is_moved = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(is_moved, "the device was not drained");
    Ok((pause, repeated))
}

pub(super) fn run(rounds: usize) -> anyhow::Result<Found> {
    let (peaceful, hostile) = (share("peace", false)?, share("flood", true)?);
    let mut table = Table::new(["", "50 %", "30 %", "20 %", "p99 of the smallest tenant"]);
    let p99 = |seconds: &[f64]| {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    };
    for (name, shares) in [("all alike", &peaceful), ("the first floods, and leaks", &hostile)] {
        let parts = shares.parts.map(|part| format!("{part:.1} %"));
        table.row(std::iter::once(name.to_owned()).chain(parts).chain([time(p99(&shares.seconds))]));
    }
    let of = |shares: &Shares| {
        let off = SHARES.iter().zip(shares.parts).map(|((_, share), part)| (share * 100.0 - part).abs());
        off.fold(0.0, f64::max)
    };
    let (mut pauses, mut repeats) = (Vec::new(), Vec::new());
    for round in 0..rounds.min(3) {
        let (pause, repeated) = moved(round)?;
        pauses.push(pause);
        repeats.push(repeated as f64);
    }
    let section = format!(
        "## Tenants, and a drained device\n\nThree tenants with shares for {} s, processes of `tidemill device serve`; a run takes {RUN_MS} ms, \
         {WINDOW} are outstanding. Then the first one has {FLOOD} runs of {LONG_RUN_MS} ms outstanding, and sessions that hold memory until a call \
         fails: that happened {} times, to it alone.\n\n{}\nA device is drained while a session computes, which goes to another one with its model \
         of 46.8 MB, that this host lacks: {} without a result, {} runs posted again, none lost.\n",
        MEASURED.as_secs(),
        hostile.refused,
        table.text(),
        time(median(&pauses)),
        median(&repeats),
    );
    let parts = [of(&peaceful), of(&hostile)];
    let parts = Measurement::new(
        "largest difference between share and time, three tenants",
        "points",
        parts.to_vec(),
    );
    let milliseconds = |seconds: &[f64]| seconds.iter().map(|seconds| seconds * 1e3).collect();
    let small = "run of the smallest tenant";
    let measurements = vec![
        parts.goal(3.0),
        Measurement::new(small, "ms", milliseconds(&peaceful.seconds)).baseline(),
        Measurement::new(format!("{small}, beside a hostile one"), "ms", milliseconds(&hostile.seconds)),
        Measurement::new("pause of a session that moves with 46.8 MB", "ms", milliseconds(&pauses)),
    ];
    Ok(Found { measurements, section })
}
