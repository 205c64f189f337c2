//! Measures a workflow without models as an HTTP service: `http` in, `http` out. Clients keep their connections. In a closed loop each
//! sends its next request when it has the answer; in an open loop requests are due at fixed times, and their latencies count from
//! then on, whether a client was free or not. The baseline is a thread for each connection that answers at once.
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_engine::clock::{Clock, WallClock};

/// Numbers of clients of the closed loops.
const CLIENTS: [usize; 4] = [1, 8, 64, 512];
/// Clients of the open loops.
const OPEN_CLIENTS: usize = 64;
/// Rates of the open loops, as shares of what the closed loop of that many clients reached.
const SHARES: [f64; 3] = [0.25, 0.5, 0.75];
/// Stack of a client.
const STACK: usize = 128 << 10;

/// Options of the measurement.
#[derive(clap::Args)]
#[group(id = "service")]
pub(crate) struct Options {
    /// Seconds of each loop of service.
    #[arg(long, default_value_t = 5.0)]
    service_seconds: f64,
}

/// A service that ends with this.
struct Service {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(binary: &Path, address: &str) -> anyhow::Result<Service> {
    let folder = tempfile::tempdir()?;
    let workflow = format!(
        "version: 1
name: service
sources:
  - {{id: requests, kind: http, options: {{listen: '{address}', columns: {{n: int64}}, max_waiting: 4096}}}}
sinks:
  - {{id: answers, kind: http, input: requests, options: {{answers: requests}}}}
"
    );
    std::fs::write(folder.path().join("workflow.yaml"), workflow)?;
    let mut command = Command::new(binary);
    command.args(["run", "workflow.yaml", "--quiet"]).current_dir(folder.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut service = Service { child, _folder: folder };
    while !Client::connect(address).and_then(|mut client| client.ask()).unwrap_or(false) {
        if let Some(status) = service.child.try_wait()? {
            anyhow::bail!("the service ended with {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(service)
}

/// Answers every request at once, until the process ends.
fn answer_at_once() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let serve = move || {
        for stream in listener.incoming().flatten() {
            let answer = move || {
                let _ = stream.set_nodelay(true);
                let mut reader = BufReader::new(&stream);
                while let Ok(Some(body)) = message(&mut reader) {
                    let length = body.len();
                    let mut answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
                    answer.extend(body);
                    if (&stream).write_all(&answer).is_err() {
                        return;
                    }
                }
            };
            // Without a thread the client is told by the end of its connection.
            let _ = std::thread::Builder::new().stack_size(STACK).spawn(answer);
        }
    };
    std::thread::Builder::new().spawn(serve)?;
    Ok(address)
}

/// Reads a request or an answer; returns its body, if it is a request or the status is 200.
fn message(reader: &mut impl BufRead) -> anyhow::Result<Option<Vec<u8>>> {
    let (mut line, mut length, mut is_first, mut is_good) = (String::new(), 0, true, true);
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the connection has ended");
        if std::mem::take(&mut is_first) {
            is_good = !line.starts_with("HTTP/") || line.contains(" 200 ");
        }
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(is_good.then_some(body))
}

/// A connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Returns whether the answer is a row.
    fn ask(&mut self) -> anyhow::Result<bool> {
        let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n{\"n\":1}";
        self.0.get_mut().write_all(request)?;
        message(&mut self.0).map(|body| body.is_some())
    }
}

/// Schedule of a load; `None` of the interval: the next request follows the answer.
struct Load {
    clock: WallClock,
    /// Nanoseconds.
    until: i64,
    interval: Option<f64>,
    next: AtomicU64,
    /// Answers without a row.
    refused: AtomicU64,
}

impl Load {
    /// The time at which the next request of a client is due; `None`: no more.
    fn next(&self) -> Option<i64> {
        let due = match self.interval {
            None => self.clock.now(),
            Some(interval) => (self.next.fetch_add(1, Ordering::Relaxed) as f64 * interval) as i64,
        };
        (due < self.until).then_some(due)
    }
}

/// Latencies in milliseconds, and answers per second.
fn measure(
    address: &str,
    clients: usize,
    rate: Option<f64>,
    seconds: f64,
) -> anyhow::Result<(Vec<f64>, f64)> {
    let connections = (0..clients).map(|_| Client::connect(address)).collect::<anyhow::Result<Vec<_>>>()?;
    let load = Arc::new(Load {
        clock: WallClock::new(),
        until: (seconds * 1e9) as i64,
        interval: rate.map(|rate| 1e9 / rate),
        next: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    let threads = connections.into_iter().map(|mut client| {
        let load = Arc::clone(&load);
        std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let mut latencies = Vec::new();
            while let Some(due) = load.next() {
                while let Ok(early) = u64::try_from(due - load.clock.now())
                    && early > 0
                {
                    std::thread::sleep(Duration::from_nanos(early));
                }
                if !client.ask()? {
                    load.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                latencies.push((load.clock.now() - due) as f64 / 1e6);
            }
            Ok(latencies)
        })
    });
    let threads: Vec<JoinHandle<anyhow::Result<Vec<f64>>>> = threads.collect::<Result<_, _>>()?;
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
    }
    let taken = load.clock.now() as f64 / 1e9;
    ensure!(!latencies.is_empty(), "no answer came within {seconds} s");
    let answers = latencies.len() as f64 / taken;
    let refused = load.refused.load(Ordering::Relaxed);
    if refused > 0 {
        eprintln!("{refused} answers of {clients} clients were no rows, and do not count");
    }
    Ok((latencies, answers))
}

pub(crate) fn run(options: &Options, binary: &Path) -> anyhow::Result<Answer> {
    let binary = binary.canonicalize().with_context(|| {
        format!("{} is not there: build it with `cargo build --release -p tidemill`", binary.display())
    })?;
    let seconds = options.service_seconds;
    let mut measurements = Vec::new();
    let at_once = answer_at_once()?;
    for clients in CLIENTS {
        let (latencies, answers) = measure(&at_once, clients, None, seconds)?;
        let name = format!("answered at once, {clients} clients");
        measurements.push(Measurement::new(format!("{name}: latency"), "ms", latencies).baseline());
        measurements.push(Measurement::new(format!("{name}: answers"), "1/s", vec![answers]).baseline());
    }
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let _service = start(&binary, &address)?;
    let mut most = 0.0;
    for clients in CLIENTS {
        let (latencies, answers) = measure(&address, clients, None, seconds)?;
        if clients == OPEN_CLIENTS {
            most = answers;
        }
        let name = format!("workflow, closed loop, {clients} clients");
        measurements.push(Measurement::new(format!("{name}: latency"), "ms", latencies));
        measurements.push(Measurement::new(format!("{name}: answers"), "1/s", vec![answers]));
    }
    for share in SHARES {
        let rate = (share * most).max(1.0);
        let (latencies, answers) = measure(&address, OPEN_CLIENTS, Some(rate), seconds)?;
        let name = format!("workflow, open loop at {:.0} % of that of {OPEN_CLIENTS} clients", 100.0 * share);
        measurements.push(Measurement::new(format!("{name}: latency"), "ms", latencies));
        measurements.push(Measurement::new(format!("{name}: answers"), "1/s", vec![answers]));
    }
    let question =
        "How many requests a second does a workflow without models answer over HTTP, and how quickly?";
    Ok(Answer::new("service", question, measurements))
}
