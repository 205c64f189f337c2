//! The cost of hints: services in one process, each the leader of its own rack, that count, report and are shown. Also the time of one
//! look at the sockets of the kernel.
//!
//! ```text
//! cargo run --release -p tidemill-collective --example hints_cost -- [SERVICES] [SECONDS]
//! ```
#![expect(clippy::disallowed_methods, reason = "it measures real time")]
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tidemill_collective::client::ask;
use tidemill_collective::hints::{Given, Settings, View};
use tidemill_collective::protocol::{Answer, Question};
use tidemill_collective::service::{Collectives, Options};
use tidemill_collective::topology::Host;
use tidemill_hints::collect::{Counter, Sockets, Source, interface_bytes};
use tidemill_link::remote::Address;

type Failure = Box<dyn Error + Send + Sync>;

/// Flows of each host.
const FLOWS: u64 = 20;

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Memory of this process, in megabytes.
fn resident() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / 1e6)
}

/// Flows whose bytes grow.
fn counters(begun: Instant) -> Given {
    Given::new(move || {
        let sent = begun.elapsed().as_micros() as u64;
        let flow = |id| Counter {
            id,
            local: [10, 0, 0, 1].into(),
            peer: [10, 9, 0, id as u8].into(),
            sent,
            received: sent,
        };
        Ok((0..FLOWS).map(flow).collect())
    })
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (services, seconds) = (number(0, 6)?, number(1, 10)?);
    let folder = std::env::temp_dir().join(format!("tidemill-hints-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let before = resident()?;
    let begun = Instant::now();
    let start = |number: u64, conductor: Option<Address>| -> Result<(Options, Collectives), Failure> {
        let host = Host { name: format!("h{number}"), rack: format!("r{number}"), ..Host::default() };
        let options = Options {
            listen: Some(Address::tcp("127.0.0.1:0")),
            conductor,
            hints: Settings { rate: Some([125e6; 2]), rack_rate: Some([125e6; 2]), ..Settings::default() },
            counters: Some(counters(begun)),
            ..Options::new(folder.join(format!("{number}.sock")), host)
        };
        Ok((options.clone(), Collectives::start(options)?))
    };
    let (options, conductor) = start(0, None)?;
    let others =
        (1..services).map(|number| start(number, conductor.address())).collect::<Result<Vec<_>, _>>()?;
    let look = || -> Result<View, Failure> {
        match ask(&options.socket, Question::Hints { group: None, flows: 1 }, Duration::from_secs(10))? {
            Answer::Hints(view) => Ok(*view),
            other => Err(format!("{other:?}").into()),
        }
    };
    while look()?.hosts.iter().filter(|host| host.reports).count() < services as usize {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (at, used, bytes) = (Instant::now(), processor_time(), interface_bytes("lo")?[0]);
    std::thread::sleep(Duration::from_secs(seconds));
    let passed = at.elapsed().as_secs_f64();
    let (used, bytes) = (processor_time() - used, interface_bytes("lo")?[0] - bytes);
    let view = look()?;
    let reports = view.hosts.iter().filter(|host| host.reports).count();
    let ages = view.racks.iter().filter_map(|rack| rack.age_ms);
    println!(
        "{services} services, {reports} report: {:.3} % of a processor each, {:.2} MB each, {:.1} kB/s each over loopback (headers, \
         acknowledgements and all other traffic there included), oldest figure {} ms",
        used / passed / services as f64 * 100.0,
        (resident()? - before) / services as f64,
        bytes as f64 / passed / services as f64 / 1e3,
        ages.max().unwrap_or_default(),
    );
    drop((others, conductor));
    std::fs::remove_dir_all(&folder)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut pairs = Vec::new();
    for count in [10, 100, 1000] {
        while pairs.len() < count / 2 {
            let one = TcpStream::connect(listener.local_addr()?)?;
            pairs.push((one, listener.accept()?));
        }
        let mut sockets = Sockets::open()?;
        let begun = processor_time();
        let found =
            (0..100).map(|_| sockets.counters().map(|found| found.len())).collect::<Result<Vec<_>, _>>()?;
        println!(
            "a look at {} sockets: {:.0} us of a processor",
            found.last().unwrap_or(&0),
            (processor_time() - begun) * 1e4
        );
    }
    Ok(())
}
