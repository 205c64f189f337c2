//! Cost of one call: in this process, over a Unix socket, over TCP; with a wait for its answer, and posted.
use super::far_end::{Connected, Host, Way};
use super::now;
use super::page::{Found, Table, median, percent, time};
use crate::result::Measurement;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use tidemill_device::call::HEAD;
use tidemill_device::device::{Run, TensorId};
use tidemill_device::session::{CallError, Lane};
use tidemill_device::value::{Element, Value};

/// Calls of each kind in a round.
const CALLS: usize = 1_000;
/// Posted calls between two waits that are not measured: what is on its way fits the buffers of a socket.
const TOGETHER: usize = 50;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Run,
    Create,
    Upload(usize),
    Facts,
}

/// Calls, and what the publication calls the step from a wait to none.
const KINDS: [(Kind, &str, &str); 6] = [
    (Kind::Run, "run", "+OR"),
    (Kind::Create, "create", "+SR"),
    (Kind::Upload(64), "upload of 64 B", "+OR"),
    (Kind::Upload(32 << 10), "upload of 32 KiB", "+OR"),
    (Kind::Upload(602_112), "upload of 602,112 B", "+OR"),
    (Kind::Facts, "facts", "+locality"),
];

impl Kind {
    fn calls(self) -> usize {
        if matches!(self, Kind::Upload(100_000..)) { CALLS / 10 } else { CALLS }
    }
}

fn post(
    kind: Kind,
    lane: &mut Lane<'_>,
    to: &Connected,
    known: TensorId,
    bytes: &[u8],
) -> Result<Option<TensorId>, CallError> {
    match kind {
        Kind::Run => lane.run(to.model, &[known], &[]).map(|_| None),
        Kind::Create => lane.create(Element::Uint8, &[1]).map(Some),
        Kind::Upload(_) => lane.upload(Element::Uint8, &[bytes.len()], bytes).map(Some),
        Kind::Facts => {
            black_box(to.snapshot().memory);
            Ok(None)
        }
    }
}

/// Microseconds of calls with a wait after each, and of posted ones.
fn over(to: &Connected, kind: Kind) -> anyhow::Result<[Vec<f64>; 2]> {
    let bytes = vec![7; if let Kind::Upload(bytes) = kind { bytes } else { 0 }];
    let known = to.lane().upload(Element::Uint8, &[1], &[1])?;
    let (mut waited, mut posted) = (Vec::new(), Vec::new());
    for _ in 0..kind.calls() {
        let begin = now();
        let mut lane = to.lane();
        // A query of the device's state asks it, where nothing is known here.
        let made = if kind == Kind::Facts { None } else { post(kind, &mut lane, to, known, &bytes)? };
        let pending = lane.read(known)?;
        drop(lane);
        pending.wait()?;
        waited.push(begin.elapsed().as_secs_f64() * 1e6);
        to.lane().free(made.as_slice())?;
    }
    let mut made = Vec::new();
    for call in 0..kind.calls() {
        let begin = now();
        let mut lane = to.lane();
        made.extend(post(kind, &mut lane, to, known, &bytes)?);
        drop(lane);
        posted.push(begin.elapsed().as_secs_f64() * 1e6);
        if call % if bytes.len() < 1_000 { TOGETHER } else { 1 } == 0 {
            to.lane().free(&std::mem::take(&mut made))?;
            to.flush()?;
        }
    }
    made.push(known);
    to.lane().free(&made)?;
    to.flush()?;
    Ok([waited, posted])
}

/// Microseconds of calls of the device itself.
fn here(host: &Host, kind: Kind) -> anyhow::Result<Vec<f64>> {
    let (mut device, model) = host.here()?;
    let bytes = vec![7; if let Kind::Upload(bytes) = kind { bytes } else { 0 }];
    device.upload(TensorId(0), Value::new(Element::Uint8, vec![1], vec![1])?)?;
    let mut times = Vec::new();
    for _ in 0..kind.calls() {
        let begin = now();
        match kind {
            Kind::Run => {
                black_box(device.run(&Run { model, inputs: vec![TensorId(0)], outputs: Vec::new() })?);
            }
            Kind::Create => device.create(TensorId(1), Element::Uint8, &[1])?,
            Kind::Upload(_) => {
                device.upload(TensorId(1), Value::new(Element::Uint8, vec![bytes.len()], bytes.clone())?)?;
            }
            Kind::Facts => {
                black_box(model);
            }
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6);
        device.free(TensorId(1));
    }
    Ok(times)
}

/// Microseconds of a head of a message there and back over a bare socket.
fn bare(way: Way) -> anyhow::Result<Vec<f64>> {
    fn ping(mut near: impl Read + Write, mut far: impl Read + Write + Send) -> anyhow::Result<Vec<f64>> {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut head = [0; HEAD];
                while far.read_exact(&mut head).and_then(|()| far.write_all(&head)).is_ok() {}
            });
            let mut times = Vec::new();
            for _ in 0..CALLS {
                let (begin, mut head) = (now(), [0; HEAD]);
                near.write_all(&head)?;
                near.read_exact(&mut head)?;
                times.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            drop(near);
            Ok(times)
        })
    }
    if way == Way::Tcp {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let far = listener.accept()?.0;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        return ping(near, far);
    }
    let (near, far) = UnixStream::pair()?;
    ping(near, far)
}

/// Calls without payload and work, beside a bare socket.
fn round_trips(ways: &[(Connected, Way, &str)], rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table = Table::new(["", "bare socket", "call", "over it"]);
    for (to, way, name) in ways {
        let (mut bares, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            bares.extend(bare(*way)?);
            for _ in 0..CALLS {
                let begin = now();
                to.flush()?;
                calls.push(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        let [least, took] = [&bares, &calls].map(|samples| median(samples));
        table.row([(*name).to_owned(), time(least / 1e6), time(took / 1e6), time((took - least) / 1e6)]);
        found
            .measurements
            .push(Measurement::new(format!("{HEAD} B and back, {name}"), "us", bares).baseline());
        found
            .measurements
            .push(Measurement::new(format!("empty call, {name}"), "us", calls).goal(least + 10.0));
    }
    found.section = format!(
        "A call without payload and work, beside {HEAD} B there and back over a bare socket. Goal: 10 us over it.\n\n{}",
        table.text()
    );
    Ok(found)
}

pub(super) fn run(rounds: usize) -> anyhow::Result<Found> {
    let host = Host::new(0.0)?;
    let ways = Way::ON_HOST.map(|(way, name)| host.connect(way).map(|to| (to, way, name)));
    let ways = ways.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut found = round_trips(&ways, rounds)?;
    let mut columns = vec!["call".to_owned(), "in this process".to_owned()];
    for (.., name) in &ways {
        columns.extend([format!("{name}, waited for"), "not waited for".to_owned(), "saved".to_owned()]);
    }
    let mut table = Table::new(&columns);
    for (kind, name, step) in KINDS {
        let (mut local, mut remote) = (Vec::new(), vec![[Vec::new(), Vec::new()]; ways.len()]);
        for _ in 0..rounds {
            local.extend(here(&host, kind)?);
            for ((to, ..), samples) in ways.iter().zip(&mut remote) {
                for (samples, more) in samples.iter_mut().zip(over(to, kind)?) {
                    samples.extend(more);
                }
            }
        }
        let mut row = vec![format!("{name}, {step}"), time(median(&local) / 1e6)];
        found.measurements.push(Measurement::new(format!("{name}, in this process"), "us", local).baseline());
        for ((.., way), [waited, posted]) in ways.iter().zip(remote) {
            let (with, without) = (median(&waited) / 1e6, median(&posted) / 1e6);
            row.extend([time(with), time(without), percent(without / with - 1.0)]);
            let mut add = |what: &str, samples| {
                found.measurements.push(Measurement::new(format!("{name}, {way}, {what}"), "us", samples));
            };
            add("waited for", waited);
            add("not waited for", posted);
        }
        table.row(row);
    }
    found.section = format!(
        "## One call\n\nWith a wait for the answer after each call, and without: medians of {} calls (a tenth for the largest). \
         *Not waited for* is the time until the program continues.\n\n{}\n\
         Published, of single calls over RDMA: outstanding requests (OR) save 26 to 75 %, 32 to 68 % of copies of 32 KB to 16 MB, \
         locality 95 %.\n\n{}",
        CALLS * rounds,
        table.text(),
        found.section
    );
    Ok(found)
}
