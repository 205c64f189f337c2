//! Payloads between two processes of one host, one at a time. The same touches for all: the sender copies bytes into what
//! it sends, writes the time into the first eight, and sends; the receiver reads the first eight bytes and the last one,
//! and answers with 64 bytes. A latency is from that time to that last byte, so it does not contain the filling.
use crate::contender::{Contender, Gate, Running, Serve, listening, locked};
use crate::load::{Filter, Latencies, Load, Outcome, Scenario, Workload};
use crate::process::Room;
use anyhow::{Context, bail};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Bytes of the largest payload.
pub const LARGEST: usize = 4 << 20;
/// Bytes of an answer.
const ANSWER: usize = 64;

/// Nanoseconds of a clock that all processes of a host share.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The sending side.
pub trait Sending {
    /// Sends a copy of these bytes with the time in front, and returns the time.
    ///
    /// # Errors
    /// When it cannot.
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<u64>;

    /// Waits for the answer: nanoseconds from the sending until the receiver had read.
    ///
    /// # Errors
    /// When the receiver is gone.
    fn answer(&mut self) -> anyhow::Result<u64>;
}

/// Writes the time into the first bytes.
pub fn stamp(payload: &mut [u8]) -> u64 {
    let now = now();
    payload[..8].copy_from_slice(&now.to_le_bytes());
    now
}

/// Reads a number from the first bytes.
pub fn number(payload: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&payload[..8]);
    u64::from_le_bytes(first)
}

/// Reads the first bytes and the last one; returns how long they took, in nanoseconds.
pub fn touch(payload: &[u8]) -> u64 {
    let sent = number(payload);
    std::hint::black_box(payload.last());
    now() - sent
}

/// Keeps those who poll on cores of their own: on one they would only wait for each other.
pub fn stay_on_core(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core % std::thread::available_parallelism().map_or(1, usize::from));
    // Where that is forbidden, the scheduler decides.
    let _ = rustix::thread::sched_setaffinity(None, &cores);
}

/// Looks again soon, without sleeping. The other side may need this core.
pub fn look_again(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

/// Runs the load of a sender.
///
/// # Errors
/// When sending fails.
pub fn send(sender: &mut impl Sending, load: &Load, gate: &mut Gate) -> anyhow::Result<Outcome> {
    let payload = vec![7; load.workload.shape().0];
    let mut phase = |seconds: f64| -> anyhow::Result<Outcome> {
        let (mut one_way, mut both_ways) = (Latencies::default(), Latencies::default());
        let started = Instant::now();
        let mut calls = 0;
        while started.elapsed().as_secs_f64() < seconds {
            let sent = sender.send(&payload)?;
            one_way.add(sender.answer()?);
            both_ways.add(now() - sent);
            calls += 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        let bytes = calls * payload.len() as u64;
        let mut outcome = Outcome { calls, bytes, seconds, ..Outcome::default() };
        one_way.write_to(&mut outcome);
        outcome.more.insert("both_ways_p50_us".into(), both_ways.median());
        Ok(outcome)
    };
    phase(load.warmup)?;
    gate.pass()?;
    phase(load.seconds)
}

/// Whether a scenario is one of this module.
pub fn is_channel(scenario: &Scenario) -> bool {
    matches!(scenario.workload, Workload::Channel(_))
        && scenario.filter == Filter::None
        && scenario.link.is_none()
        && scenario.services == 1
}

/// A Unix socket, into which and out of which the kernel copies.
pub struct Copying;

struct CopyingSender(UnixStream, Vec<u8>);

impl Sending for CopyingSender {
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<u64> {
        self.1.clear();
        self.1.extend_from_slice(bytes);
        let sent = stamp(&mut self.1);
        self.0.write_all(&self.1)?;
        Ok(sent)
    }

    fn answer(&mut self) -> anyhow::Result<u64> {
        let mut answer = [0; ANSWER];
        self.0.read_exact(&mut answer)?;
        Ok(number(&answer))
    }
}

impl Contender for Copying {
    fn name(&self) -> String {
        "Unix socket + copy".into()
    }

    fn ready(&self) -> Result<String, String> {
        Ok("the kernel's".into())
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        is_channel(scenario)
    }

    fn start(&self, scenario: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let listen = room.path("socket").display().to_string();
        let order = Serve { listen, more: scenario.workload.shape().0.to_string(), ..Serve::default() };
        let (child, target) = room.server(&self.name(), &order, None)?;
        Ok(Running { target, processes: vec![child] })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        let listener = UnixListener::bind(&order.listen)?;
        listening(&order.listen);
        let (mut stream, mut payload) = (listener.accept()?.0, vec![0; order.more.parse()?]);
        while stream.read_exact(&mut payload).is_ok() {
            let mut answer = [0; ANSWER];
            answer[..8].copy_from_slice(&touch(&payload).to_le_bytes());
            stream.write_all(&answer)?;
        }
        Ok(())
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        send(&mut CopyingSender(UnixStream::connect(target)?, Vec::new()), load, gate)
    }
}

/// iceoryx2: publish and subscribe, in both directions, and events to wake the other side.
pub struct Iceoryx {
    /// Looks again and again and never sleeps.
    pub polls: bool,
}

/// One side: what it sends with and what it receives with.
struct Ports {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
    polls: bool,
    // The last field: it goes after its ports.
    _node: Node<ipc::Service>,
}

impl Ports {
    /// The receiver is the first side. `place` has the prefix of all files and their folder.
    fn open(place: &str, first: bool, longest: usize, polls: bool) -> anyhow::Result<Self> {
        set_log_level(LogLevel::Error);
        if polls {
            stay_on_core(usize::from(first));
        }
        let (prefix, folder) = place.split_once(' ').context("a prefix and a folder")?;
        let mut config = Config::default();
        config.global.prefix = FileName::new(prefix.as_bytes())?;
        config.global.set_root_path(&Path::new(folder.as_bytes())?);
        let builder = NodeBuilder::new().config(&config).signal_handling_mode(SignalHandlingMode::Disabled);
        let node = builder.create::<ipc::Service>()?;
        let data = |name: &str| -> anyhow::Result<_> {
            let service = node.service_builder(&name.try_into()?).publish_subscribe::<[u8]>();
            Ok(service.open_or_create()?)
        };
        let event = |name: &str| -> anyhow::Result<_> {
            Ok(node.service_builder(&name.try_into()?).event().open_or_create()?)
        };
        let (there, back) = (data("there")?, data("back")?);
        let (bell_there, bell_back) = (event("bell there")?, event("bell back")?);
        let ((sends, rings), (receives, hears)) = if first {
            ((back, bell_back), (there, bell_there))
        } else {
            ((there, bell_there), (back, bell_back))
        };
        Ok(Self {
            publisher: sends.publisher_builder().initial_max_slice_len(longest).create()?,
            subscriber: receives.subscriber_builder().create()?,
            notifier: rings.notifier_builder().create()?,
            listener: hears.listener_builder().create()?,
            polls,
            _node: node,
        })
    }

    fn send(&self, bytes: &[u8], finish: impl FnOnce(&mut [u8])) -> anyhow::Result<()> {
        let mut sample = self.publisher.loan_slice_uninit(bytes.len())?.write_from_slice(bytes);
        finish(sample.payload_mut());
        sample.send()?;
        if !self.polls {
            self.notifier.notify()?;
        }
        Ok(())
    }

    fn receive(&self, read: impl Fn(&[u8]) -> u64) -> anyhow::Result<u64> {
        let mut looks = 0;
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(read(sample.payload()));
            }
            if self.polls {
                look_again(&mut looks);
            } else {
                self.listener.timed_wait(|_| {}, Duration::from_secs(1))?;
            }
        }
    }
}

impl Sending for Ports {
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<u64> {
        let mut sent = 0;
        Self::send(self, bytes, |payload| sent = stamp(payload))?;
        Ok(sent)
    }

    fn answer(&mut self) -> anyhow::Result<u64> {
        self.receive(number)
    }
}

impl Contender for Iceoryx {
    fn name(&self) -> String {
        if self.polls { "iceoryx2, polling" } else { "iceoryx2, waiting" }.into()
    }

    fn ready(&self) -> Result<String, String> {
        Ok(locked("iceoryx2"))
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        is_channel(scenario)
    }

    fn start(&self, _: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let folder = room.path("iceoryx2").display().to_string();
        std::fs::create_dir_all(&folder)?;
        let prefix = crate::process::prefix(std::process::id());
        let order = Serve { more: format!("{prefix} {folder}"), ..Serve::default() };
        let (child, target) = room.server(&self.name(), &order, None)?;
        Ok(Running { target, processes: vec![child] })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        let ports = Ports::open(&order.more, true, ANSWER, self.polls)?;
        listening(&order.more);
        let mut answer = [0; ANSWER];
        loop {
            let took = ports.receive(touch)?;
            answer[..8].copy_from_slice(&took.to_le_bytes());
            ports.send(&answer, |_| ())?;
        }
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        let bytes = load.workload.shape().0;
        if bytes > LARGEST {
            bail!("at most {LARGEST} bytes");
        }
        send(&mut Ports::open(target, false, bytes, self.polls)?, load, gate)
    }
}
