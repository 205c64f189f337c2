//! Measures links between processes: two threads over the loopback of this host, two processes, and two processes in
//! network namespaces. The baseline is a raw socket with the same number of bytes on the same path; timely's exchange
//! between two processes is measured next to them.
#[path = "../../runtime/link/tests/remote/authority.rs"]
mod authority;
mod far_end;
mod timely_exchange;

pub(crate) use far_end::serve as serve_far_end;
pub(crate) use timely_exchange::serve as serve_timely_end;

use crate::result::{Answer, Measurement};
use anyhow::Context;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::scope;
use std::time::{Duration, Instant};
use tidemill_link::frame::{Content, Control, Frame, Header};
use tidemill_link::link::{LinkReceiver, LinkSender};
use tidemill_link::remote::{
    Address, Certificates, Greeting, Listener, Purpose, Role, Security, dial, schema_hash,
};

const ROUNDS: usize = 7;
/// Rounds with the far end in a process, which is started each time.
const ROUNDS_OF_PROCESSES: usize = 3;
const PINGS: usize = 2000;
/// Bytes of a round of throughput.
const VOLUME: usize = 512 << 20;
/// Bytes in flight that a channel allows its sender.
const WINDOW: usize = 4 << 20;
/// Bytes of a control word.
const WORD: usize = 16;
const PATIENCE: Duration = Duration::from_secs(10);

#[expect(clippy::disallowed_methods, reason = "what sockets take is real time")]
fn now() -> Instant {
    Instant::now()
}

fn schema() -> SchemaRef {
    let fields = [Field::new("number", DataType::Int64, false), Field::new("bytes", DataType::Binary, false)];
    Arc::new(Schema::new(fields.to_vec()))
}

fn batch(width: usize) -> anyhow::Result<RecordBatch> {
    let bytes = vec![7u8; width];
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(vec![1])), Arc::new(BinaryArray::from(vec![bytes.as_slice()]))];
    Ok(RecordBatch::try_new(schema(), columns)?)
}

fn frame(sequence: u64, batch: &RecordBatch) -> Frame {
    let header = Header { incarnation: 1, sequence, sent_at: 0, cost: 0 };
    Frame { header, content: Content::Data { epoch: 0, batch: batch.clone() } }
}

/// Creates a host's certificate and its trusted authority.
pub(crate) fn certificates() -> Certificates {
    authority::Authority::named("benches").certify("tidemill", |_| {})
}

fn greeting(role: Role) -> Greeting {
    let purpose = Purpose::Channel { channel: 1, role, incarnation: 0, schema: schema_hash(&schema()) };
    Greeting { run: 1, plan_version: 1, purpose }
}

type Ends = (Box<dyn LinkSender>, Box<dyn LinkReceiver>);

fn connect(address: &Address, security: &Security) -> anyhow::Result<Ends> {
    let (give, take) = sync_channel(1);
    let serving = Listener::bind(address, security)?.serve(move |incoming| {
        // It fails only after the round has failed.
        let _ = give.send(incoming.accept(&greeting(Role::Receiver)));
    })?;
    let sender = dial(serving.address(), security, &greeting(Role::Sender), PATIENCE)?;
    let receiver = take.recv_timeout(PATIENCE)??;
    Ok((sender.into_sender(schema())?, receiver.into_receiver(schema())?))
}

fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags) -> anyhow::Result<()> {
    poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], None)?;
    Ok(())
}

fn receive(receiver: &mut dyn LinkReceiver) -> anyhow::Result<Frame> {
    loop {
        if let Some(frame) = receiver.receive()? {
            return Ok(frame);
        }
        wait(receiver.descriptor(), PollFlags::IN)?;
        receiver.clear();
    }
}

/// Waits for a control word, and meanwhile sends unsent bytes.
fn hear(sender: &mut dyn LinkSender) -> anyhow::Result<Control> {
    loop {
        if let Some(control) = sender.receive_control()? {
            return Ok(control);
        }
        wait(sender.descriptor(), PollFlags::IN)?;
        sender.clear();
    }
}

/// Measures the microseconds from sending a record to the control word that answers it.
fn ping(address: &Address, security: &Security, width: usize) -> anyhow::Result<Vec<f64>> {
    let (sender, receiver) = connect(address, security)?;
    scope(|scope| {
        let answers = scope.spawn(move || answer_pings(receiver));
        let times = send_pings(sender, width)?;
        answers.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        Ok(times)
    })
}

fn answer_pings(mut receiver: Box<dyn LinkReceiver>) -> anyhow::Result<()> {
    for _ in 0..PINGS {
        receive(receiver.as_mut())?;
        receiver.send_control(Control::Credit(1))?;
    }
    Ok(())
}

fn send_pings(mut sender: Box<dyn LinkSender>, width: usize) -> anyhow::Result<Vec<f64>> {
    let batch = batch(width)?;
    let mut times = Vec::new();
    for sequence in 0..PINGS as u64 {
        let begin = now();
        sender.send(frame(sequence, &batch))?;
        hear(sender.as_mut())?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

fn raw() -> anyhow::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let other = listener.accept()?.0;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

fn raw_ping(width: usize) -> anyhow::Result<Vec<f64>> {
    let (one, other) = raw()?;
    scope(|scope| {
        let answers = scope.spawn(move || raw_answer_pings(other, width));
        let times = raw_send_pings(one, width)?;
        answers.join().map_err(|_| anyhow::anyhow!("the peer panicked"))??;
        Ok(times)
    })
}

fn raw_answer_pings(mut stream: TcpStream, width: usize) -> std::io::Result<()> {
    let mut bytes = vec![0; width];
    for _ in 0..PINGS {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&bytes[..WORD])?;
    }
    Ok(())
}

fn raw_send_pings(mut stream: TcpStream, width: usize) -> anyhow::Result<Vec<f64>> {
    let (mut times, mut bytes) = (Vec::new(), vec![7; width]);
    for _ in 0..PINGS {
        let begin = now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes[..WORD])?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Measures the GB/s of one round, with the credits of a channel.
fn carry(address: &Address, security: &Security, width: usize) -> anyhow::Result<f64> {
    let (sender, receiver) = connect(address, security)?;
    scope(|scope| {
        let taking = scope.spawn(move || take_all(receiver, width));
        let rate = send_all(sender, width)?;
        taking.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        Ok(rate)
    })
}

fn take_all(mut receiver: Box<dyn LinkReceiver>, width: usize) -> anyhow::Result<()> {
    let mut owed = 0;
    for _ in 0..VOLUME / width {
        let frame = receive(receiver.as_mut())?;
        anyhow::ensure!(matches!(frame.content, Content::Data { .. }), "no records");
        owed += width as u64;
        if owed >= WINDOW as u64 / 4 {
            receiver.send_control(Control::Credit(std::mem::take(&mut owed)))?;
        }
    }
    // The receiver leaves now; the sender may still have control words to read.
    Ok(())
}

fn send_all(mut sender: Box<dyn LinkSender>, width: usize) -> anyhow::Result<f64> {
    let batch = batch(width)?;
    let frames = (VOLUME / width) as u64;
    let begin = now();
    let (mut credit, mut sequence) = (WINDOW as i64, 0);
    while sequence < frames {
        while credit > 0 && sequence < frames {
            sender.send(frame(sequence, &batch))?;
            (credit, sequence) = (credit - width as i64, sequence + 1);
        }
        while let Ok(Some(Control::Credit(bytes))) = sender.receive_control() {
            credit += bytes as i64;
        }
        if credit <= 0 {
            wait(sender.descriptor(), PollFlags::IN)?;
            sender.clear();
        }
    }
    // The rest is sent as the socket takes it, until the receiver has everything and leaves.
    while sender.receive_control().is_ok() {
        wait(sender.descriptor(), PollFlags::IN)?;
        sender.clear();
    }
    Ok((frames as usize * width) as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

fn raw_carry(width: usize) -> anyhow::Result<f64> {
    let (one, other) = raw()?;
    scope(|scope| {
        let taking = scope.spawn(move || raw_take_all(other, width));
        let rate = raw_send_all(one, width)?;
        taking.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        Ok(rate)
    })
}

fn raw_take_all(mut stream: TcpStream, width: usize) -> std::io::Result<()> {
    let mut bytes = vec![0; width];
    (0..VOLUME / width).try_for_each(|_| stream.read_exact(&mut bytes))
}

/// Sends until the other end has everything and leaves.
fn raw_send_all(mut stream: TcpStream, width: usize) -> anyhow::Result<f64> {
    let (times, bytes) = (VOLUME / width, vec![7; width]);
    let begin = now();
    (0..times).try_for_each(|_| stream.write_all(&bytes))?;
    let left = stream.read(&mut [0; 1])?;
    anyhow::ensure!(left == 0, "an answer that nobody asked for");
    Ok((times * width) as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

pub(crate) fn run() -> anyhow::Result<Answer> {
    let folder = tempfile::tempdir()?;
    let tcp = Address::tcp("127.0.0.1:0");
    let kinds = [
        ("tcp", tcp.clone(), Security::none()),
        ("tcp with TLS", tcp, Security::mutual(&certificates())?),
        ("unix", Address::unix(folder.path().join("link.sock")), Security::none()),
    ];
    let mut measurements = Vec::new();
    for (name, width) in [("1 KB", 1 << 10), ("64 KB", 64 << 10)] {
        let mut samples = vec![Vec::new(); kinds.len() + 1];
        for _ in 0..ROUNDS {
            samples[0].extend(raw_ping(width)?);
            for (at, (_, address, security)) in kinds.iter().enumerate() {
                samples[at + 1].extend(ping(address, security, width).context("ping")?);
            }
        }
        let mut samples = samples.into_iter();
        let raw = samples.next().unwrap_or_default();
        measurements
            .push(Measurement::new(format!("{name} and an answer, raw TCP socket"), "us", raw).baseline());
        for ((kind, ..), samples) in kinds.iter().zip(samples) {
            measurements.push(Measurement::new(format!("{name} and an answer, {kind}"), "us", samples));
        }
    }
    for (name, width) in [("64 KB", 64 << 10), ("1 MB", 1 << 20)] {
        let mut samples = vec![Vec::new(); kinds.len() + 1];
        for _ in 0..ROUNDS {
            samples[0].push(raw_carry(width)?);
            for (at, (_, address, security)) in kinds.iter().enumerate() {
                samples[at + 1].push(carry(address, security, width).context("throughput")?);
            }
        }
        let mut samples = samples.into_iter();
        let raw = samples.next().unwrap_or_default();
        measurements
            .push(Measurement::new(format!("raw TCP socket, {name} at once"), "GB/s", raw).baseline());
        for ((kind, ..), samples) in kinds.iter().zip(samples) {
            measurements.push(Measurement::new(format!("{kind}, {name} a record"), "GB/s", samples));
        }
    }
    measurements.extend(far_end::measure()?);
    Ok(Answer::new("remote-links", "What does a link between processes cost?", measurements))
}
