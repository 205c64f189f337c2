//! How fast groups are on this machine: teams in threads, with TCP over the loopback interface between them, beside a copy in memory and
//! a plain stream of TCP from one process to another.
//!
//! ```text
//! cargo run --release -p tidemill-collective --example loopback -- [RANKS] [CHANNELS] [MEBIBYTES]
//! ```
#![expect(clippy::disallowed_methods, reason = "it measures real time")]
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_collective::element::{Element, Reduction, combine};
use tidemill_collective::memory::Shared;
use tidemill_collective::operation::{Numbered, Operation};
use tidemill_collective::strategy::Strategy;
use tidemill_collective::team::{Team, WireName, host_clock};
use tidemill_collective::wire::{Socket, Wire};
use tidemill_shm::region::SharedRegion;

type Failure = Box<dyn Error + Send + Sync>;
type Wires = BTreeMap<WireName, Box<dyn Wire>>;

/// Bytes that a measurement moves, about.
const MOVED: u64 = 512 << 20;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [sink, port] = arguments.as_slice()
        && sink == "sink"
    {
        let mut stream = TcpStream::connect(("127.0.0.1", port.parse()?))?;
        let mut bytes = vec![0; 256 << 10];
        while stream.read(&mut bytes)? > 0 {}
        return Ok(());
    }
    let number = |index: usize, default: u64| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (ranks, channels, most) = (number(0, 2)? as u32, number(1, 1)? as usize, number(2, 64)? << 20);
    println!("copy in memory, {} MiB buffers: {:.2} GB/s", most >> 20, copies(most));
    for element in Element::ALL {
        println!("sums of {element:?} in the cache: {:.2} GB/s", sums(element));
    }
    println!("one stream of TCP between two processes: {:.2} GB/s", stream()?);
    println!("{ranks} ranks, one per host, {channels} channels:");
    println!(
        "{:16} {:>12} {:>10} {:>10} {:>12} {:>12}",
        "operation", "bytes", "p50", "p99", "GB/s", "bus GB/s"
    );
    let reduction = Reduction::Sum;
    let around = f64::from(ranks - 1) / f64::from(ranks);
    for (name, operation, bus) in [
        ("all-reduce", Operation::AllReduce { reduction }, 2.0 * around),
        ("broadcast", Operation::Broadcast { root: 0 }, 1.0),
        ("all-gather", Operation::AllGather, around),
        ("reduce-scatter", Operation::ReduceScatter { reduction }, around),
        ("all-to-all", Operation::AllToAll, around),
    ] {
        let mut bytes = 1 << 10;
        while bytes <= most {
            let length = bytes / 4 / u64::from(ranks) * u64::from(ranks);
            let times = measured(ranks, channels, operation, length)?;
            let at = |percent: usize| times[(times.len() - 1) * percent / 100];
            let rate = bytes as f64 / at(50).as_secs_f64() / 1e9;
            let (p50, p99) = (format!("{:.1?}", at(50)), format!("{:.1?}", at(99)));
            println!("{name:16} {bytes:12} {p50:>10} {p99:>10} {rate:12.3} {:12.3}", rate * bus);
            bytes *= 8;
        }
    }
    Ok(())
}

/// Returns how fast memory is copied, in gigabytes per second.
fn copies(bytes: u64) -> f64 {
    let (from, mut into) = (vec![1u8; bytes as usize], vec![0u8; bytes as usize]);
    let begun = Instant::now();
    let count = (MOVED / bytes).max(4);
    for _ in 0..count {
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut into);
    }
    (bytes * count) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

/// Returns how fast elements are added to those of a buffer, in gigabytes of it per second.
fn sums(element: Element) -> f64 {
    let (from, mut into) = (vec![0u8; 16 << 10], vec![0u8; 16 << 10]);
    let (begun, count) = (Instant::now(), 4000);
    for _ in 0..count {
        combine(element, Reduction::Sum, std::hint::black_box(&mut into), std::hint::black_box(&from));
    }
    (from.len() * count) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

fn stream() -> Result<f64, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let mut sink =
        Command::new(std::env::current_exe()?).args(["sink", &port]).stdin(Stdio::null()).spawn()?;
    let (mut stream, _) = listener.accept()?;
    let (bytes, begun) = (vec![1; 256 << 10], Instant::now());
    let count = (2 * MOVED / bytes.len() as u64).max(1);
    for _ in 0..count {
        stream.write_all(&bytes)?;
    }
    drop(stream);
    sink.wait()?;
    Ok((count * bytes.len() as u64) as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

/// Returns how long operations take at the slowest rank, ascending.
fn measured(
    ranks: u32,
    channels: usize,
    operation: Operation,
    length: u64,
) -> Result<Vec<Duration>, Failure> {
    let mut strategy = Strategy::rank_order(1, (0..ranks).collect());
    strategy.channels = vec![strategy.channels[0].clone(); channels];
    let operations = (MOVED / 4 / length.max(1) / u64::from(ranks)).clamp(5, 2000);
    let threads: Vec<_> = (0..ranks)
        .zip(wires(&strategy)?)
        .map(|(rank, wires)| {
            let strategy = strategy.clone();
            std::thread::spawn(move || -> Result<Vec<Duration>, Failure> {
                let mut team = Team::new(strategy, &[rank], wires, host_clock())?;
                let region = Arc::new(SharedRegion::create((length * 4).next_multiple_of(4096).max(4096))?);
                let buffer = Arc::new(Shared::new(region, 0, length * 4)?);
                let mut times = Vec::new();
                for number in 1..=operations {
                    let numbered = Numbered::new(number, operation, Element::F32, length);
                    let begun = Instant::now();
                    team.begin(numbered, BTreeMap::from([(rank, buffer.clone() as _)]))?;
                    team.finish()?;
                    times.push(begun.elapsed());
                }
                Ok(times)
            })
        })
        .collect();
    let mut slowest = vec![Duration::ZERO; operations as usize];
    for thread in threads {
        let times = thread.join().map_err(|_| "a rank panicked")??;
        slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = time.max(*slowest));
    }
    slowest.sort();
    Ok(slowest)
}

/// Returns the wires of each rank.
fn wires(strategy: &Strategy) -> Result<Vec<Wires>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut wires: Vec<Wires> = strategy.members.iter().map(|_| Wires::new()).collect();
    for rank in &strategy.members {
        for name in Team::needed(strategy, &[*rank]).into_iter().filter(|name| name.from == *rank) {
            let sender = TcpStream::connect(listener.local_addr()?)?;
            let (receiver, _) = listener.accept()?;
            sender.set_nodelay(true)?;
            wires[name.from as usize].insert(name.clone(), Box::new(Socket::new(sender)));
            wires[name.to as usize].insert(name, Box::new(Socket::new(receiver)));
        }
    }
    Ok(wires)
}
