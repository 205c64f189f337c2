//! Sockets without anything: what the kernel can do. Blocking; a thread for each connection. A message is its length, the
//! length of the reply that it wants (0: none), and so many bytes; the server drops them as they come.
use crate::contender::{Contender, Gate, Running, Serve, listening};
use crate::drive::MESSAGES;
use crate::load::{Filter, Latencies, Load, Outcome, SMALL, Scenario, Workload};
use crate::process::Room;
use anyhow::{Context, ensure};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const HEADER: usize = 8;
const REPLY: usize = HEADER + SMALL;
const BUFFER: usize = 256 << 10;

/// Raw sockets, of either kind.
pub struct Raw {
    /// Unix sockets and not TCP.
    pub unix: bool,
}

trait Socket: Read + Write + Send + Sized + 'static {
    fn again(&self) -> std::io::Result<Self>;
}

impl Socket for TcpStream {
    fn again(&self) -> std::io::Result<Self> {
        self.try_clone()
    }
}

impl Socket for UnixStream {
    fn again(&self) -> std::io::Result<Self> {
        self.try_clone()
    }
}

fn connect_tcp(address: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

fn message(bytes: usize, reply: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + bytes);
    message.extend((bytes as u32).to_le_bytes());
    message.extend((reply as u32).to_le_bytes());
    message.resize(HEADER + bytes, 7);
    message
}

/// Answers one connection until its end.
fn answer(mut stream: impl Socket, mut next: Option<impl Socket>) -> std::io::Result<()> {
    let (mut buffer, mut filled, mut rest) = (vec![0; BUFFER], 0, None::<(usize, usize)>);
    let (mut replies, one) = (Vec::with_capacity(BUFFER), message(SMALL, 0));
    loop {
        let read = stream.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut at = 0;
        loop {
            let (left, reply) = match rest.take() {
                Some(rest) => rest,
                None if filled - at < HEADER => break,
                None => {
                    let header = (number(&buffer[at..]), number(&buffer[at + 4..]));
                    at += HEADER;
                    header
                }
            };
            let here = left.min(filled - at);
            at += here;
            if here < left {
                rest = Some((left - here, reply));
                break;
            }
            if reply > 0 {
                if let Some(next) = &mut next {
                    next.write_all(&message(SMALL, SMALL))?;
                    next.read_exact(&mut [0; REPLY])?;
                }
                replies.extend_from_slice(&one);
            }
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if !replies.is_empty() {
            stream.write_all(&replies)?;
            replies.clear();
        }
    }
}

/// Keeps so many requests in flight, on one thread.
fn windowed(stream: &mut impl Socket, load: &Load, seconds: f64) -> anyhow::Result<Outcome> {
    let (bytes, window) = load.workload.shape();
    let request = message(bytes, SMALL);
    // As many requests as one system call should take.
    let batch = (BUFFER / request.len()).clamp(1, window);
    let requests = request.repeat(batch);
    let (mut latencies, mut sent) = (Latencies::default(), VecDeque::with_capacity(window));
    let (mut replies, mut filled) = (vec![0; REPLY * window], 0);
    let started = Instant::now();
    let deadline = started + Duration::from_secs_f64(seconds);
    let (mut calls, mut free) = (0, window);
    loop {
        while free > 0 && (calls == 0 || Instant::now() < deadline) {
            let count = free.min(batch);
            let now = Instant::now();
            sent.extend(std::iter::repeat_n(now, count));
            stream.write_all(&requests[..count * request.len()])?;
            free -= count;
        }
        if sent.is_empty() {
            break;
        }
        let read = stream.read(&mut replies[filled..])?;
        ensure!(read > 0, "the server has gone");
        filled += read;
        let (came, now) = (filled / REPLY, Instant::now());
        filled %= REPLY;
        for _ in 0..came {
            let since = sent.pop_front().context("a reply too many")?;
            latencies.add((now - since).as_nanos() as u64);
        }
        calls += came as u64;
        free += came;
    }
    Ok(outcome(calls, calls * bytes as u64, started, &latencies))
}

fn outcome(calls: u64, bytes: u64, started: Instant, latencies: &Latencies) -> Outcome {
    let seconds = started.elapsed().as_secs_f64();
    let mut outcome = Outcome { calls, bytes, seconds, ..Outcome::default() };
    latencies.write_to(&mut outcome);
    outcome
}

/// Sends small requests at their times; another thread reads the replies.
fn open(stream: &mut impl Socket, rate: f64, seconds: f64) -> anyhow::Result<Outcome> {
    let (request, mut reader) = (message(SMALL, SMALL), stream.again()?);
    let (due, dues) = mpsc::channel::<Instant>();
    let replies = std::thread::spawn(move || -> std::io::Result<(u64, Latencies)> {
        let (mut latencies, mut calls) = (Latencies::default(), 0);
        while let Ok(due) = dues.recv() {
            reader.read_exact(&mut [0; REPLY])?;
            latencies.add(due.elapsed().as_nanos() as u64);
            calls += 1;
        }
        Ok((calls, latencies))
    });
    let (started, period) = (Instant::now(), Duration::from_secs_f64(1.0 / rate));
    let mut at = started;
    while at < started + Duration::from_secs_f64(seconds) {
        at += period;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        stream.write_all(&request)?;
        due.send(at)?;
    }
    drop(due);
    let (calls, latencies) = replies.join().map_err(|_| anyhow::anyhow!("the reader failed"))??;
    Ok(outcome(calls, calls * SMALL as u64, started, &latencies))
}

fn stream_of_messages(stream: &mut impl Socket, load: &Load, seconds: f64) -> anyhow::Result<Outcome> {
    let bytes = load.workload.shape().0;
    let several = message(bytes, 0).repeat(20);
    let (started, mut calls) = (Instant::now(), 0);
    while started.elapsed().as_secs_f64() < seconds {
        for _ in 0..MESSAGES / 20 - 1 {
            stream.write_all(&several)?;
        }
        let mut last = several.clone();
        let place = several.len() - HEADER - bytes;
        last[place..place + HEADER].copy_from_slice(&message(bytes, SMALL)[..HEADER]);
        stream.write_all(&last)?;
        stream.read_exact(&mut [0; REPLY])?;
        calls += MESSAGES;
    }
    Ok(outcome(calls, calls * bytes as u64, started, &Latencies::default()))
}

fn phase<S: Socket>(small: &mut S, bulk: &mut S, load: &Load, seconds: f64) -> anyhow::Result<Outcome> {
    match load.workload {
        Workload::Open(rate) => open(small, rate, seconds),
        Workload::Stream => stream_of_messages(small, load, seconds),
        Workload::Qos(rate, with_bulk) => {
            let (mut again, load) = (bulk.again()?, *load);
            let bulk = std::thread::spawn(move || {
                if with_bulk { windowed(&mut again, &load, seconds) } else { Ok(Outcome::default()) }
            });
            let mut outcome = if rate > 0.0 { open(small, rate, seconds)? } else { Outcome::default() };
            let bulk = bulk.join().map_err(|_| anyhow::anyhow!("the bulk failed"))??;
            let mbit = if bulk.seconds > 0.0 { bulk.bytes as f64 * 8e-6 / bulk.seconds } else { 0.0 };
            outcome.seconds = outcome.seconds.max(bulk.seconds);
            outcome.more.insert("bulk_mbit_per_s".into(), mbit);
            outcome.more.insert("bulk_p50_us".into(), bulk.p50);
            Ok(outcome)
        }
        _ => windowed(small, load, seconds),
    }
}

fn measure<S: Socket>(
    load: &Load,
    gate: &mut Gate,
    connect: impl Fn() -> anyhow::Result<S>,
) -> anyhow::Result<Outcome> {
    let mut small = connect()?;
    let mut bulk = if matches!(load.workload, Workload::Qos(..)) { connect()? } else { small.again()? };
    phase(&mut small, &mut bulk, load, load.warmup)?;
    gate.pass()?;
    phase(&mut small, &mut bulk, load, load.seconds)
}

impl Contender for Raw {
    fn name(&self) -> String {
        if self.unix { "raw Unix socket" } else { "raw TCP" }.into()
    }

    fn ready(&self) -> Result<String, String> {
        Ok("the kernel's".into())
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        scenario.filter == Filter::None
            && !matches!(scenario.workload, Workload::Channel(_) | Workload::Paired(_))
            && !(self.unix && (scenario.link.is_some() || scenario.services > 1))
    }

    fn start(&self, scenario: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let (host, namespace) = match &scenario.link {
            Some(link) => (link.address.as_str(), Some(link.server.as_str())),
            None => ("127.0.0.1", None),
        };
        let (mut processes, mut target) = (Vec::new(), None);
        for _ in 0..scenario.services {
            let path = room.path("socket").display().to_string();
            let listen = if self.unix { path } else { format!("{host}:0") };
            let order = Serve { listen, next: target.take(), ..Serve::default() };
            let (child, address) = room.server(&self.name(), &order, namespace)?;
            processes.push(child);
            target = Some(address);
        }
        Ok(Running { target: target.context("no service")?, processes })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        if self.unix {
            let listener = UnixListener::bind(&order.listen)?;
            listening(&order.listen);
            for stream in listener.incoming() {
                let stream = stream?;
                std::thread::spawn(move || answer(stream, None::<UnixStream>));
            }
            return Ok(());
        }
        let listener = TcpListener::bind(&order.listen)?;
        listening(listener.local_addr()?);
        for stream in listener.incoming() {
            let (stream, next) = (stream?, order.next.as_deref().map(connect_tcp).transpose()?);
            stream.set_nodelay(true)?;
            std::thread::spawn(move || answer(stream, next));
        }
        Ok(())
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        if self.unix {
            return measure(load, gate, || Ok(UnixStream::connect(target)?));
        }
        measure(load, gate, || connect_tcp(target))
    }
}
