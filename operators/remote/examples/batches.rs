//! Times clients of one device, each in a process of its own, against clients whose runs are computed together.
//!
//! ```text
//! batches CLIENTS SECONDS emulated RUN_MS ROW_MS     a batch takes RUN_MS, and ROW_MS for each row
//! batches CLIENTS SECONDS BACKEND MODEL.onnx         rows of zeros
//! ```
//!
//! Each client runs one row, waits for the result, and runs the next one. Prints the rate of all, the latency
//! of a run, and how many runs a batch had.
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tidemill_device::batching::Batching;
use tidemill_device::child;
use tidemill_device::daemon::tenants::Tenants;
use tidemill_device::daemon::{Daemon, Options};
use tidemill_device::device::{Artifact, ModelFile, ModelId};
use tidemill_device::dial;
use tidemill_device::emulated::{Emulated, ModelTimes, Profile, artifact_of};
use tidemill_device::session::Session;
use tidemill_device::value::Element;
use tidemill_inference::facts::{Dimension, Port, PortElement};
use tidemill_inference::inspect;
use tidemill_link::remote::{Address, Security};
use tidemill_remote::backends::Backends;
use tidemill_spec::types::ElementType;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Argument with which the program is the process of a session.
const PROCESS: &str = "--process";
/// Runs of each client before the first that counts.
const WARM_UP: usize = 10;
/// Rows of a batch.
const ROWS: usize = 8;

#[expect(clippy::disallowed_methods, reason = "real time is measured")]
fn now() -> Instant {
    Instant::now()
}

/// The process of sessions on this device.
fn process(device: &[&str]) -> Result<(), AnyError> {
    match *device {
        ["emulated", run_ms, row_ms] => {
            let (run_ms, row_ms) = (run_ms.parse()?, row_ms.parse()?);
            let others = ModelTimes { run_ms, row_ms, has_rows: true, ..ModelTimes::default() };
            child::main(&Emulated::new(Profile { others, ..Profile::default() }))?;
        }
        [backend, _] => child::main(&Backends::open(&[backend.to_owned()], Path::new("."))?)?,
        _ => return Err("see the source for the arguments".into()),
    }
    Ok(())
}

/// A model, its file, and one row of each input.
struct Model {
    artifact: Artifact,
    content: Vec<u8>,
    inputs: Vec<(Element, Vec<usize>)>,
}

impl Model {
    fn of(device: &[&str]) -> Result<Self, AnyError> {
        let [backend, file] = *device else {
            let content = b"a model".to_vec();
            let inputs = vec![(Element::Float32, vec![1, 3, 64, 64])];
            return Ok(Self { artifact: artifact_of("model", &content, 1, 1), content, inputs });
        };
        let facts = inspect(Path::new(file))?;
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
        let artifact = Artifact {
            name: file.to_owned(),
            backend: backend.to_owned(),
            files: vec![ModelFile {
                name: "model.onnx".to_owned(),
                hash: facts.sha256.clone(),
                bytes: facts.file_bytes,
            }],
            inputs: names(&facts.inputs),
            outputs: names(&facts.outputs),
            options: serde_json::Value::Null,
        };
        let inputs = facts.inputs.iter().map(|port| {
            let element = match port.element {
                PortElement::Known(ElementType::Float32) => Element::Float32,
                PortElement::Known(ElementType::Uint8) => Element::Uint8,
                PortElement::Known(ElementType::Int64) => Element::Int64,
                _ => return Err(format!("no rows are made for {}", port.type_text())),
            };
            let size = |dimension: &Dimension| match dimension {
                Dimension::Fixed(size) => *size,
                Dimension::Free(_) => 1,
            };
            Ok((element, port.shape.iter().flatten().map(size).collect()))
        });
        let inputs = inputs.collect::<Result<_, _>>()?;
        Ok(Self { artifact, content: std::fs::read(file)?, inputs })
    }

    fn run(&self, session: &Session, model: ModelId) -> Result<(), AnyError> {
        let mut lane = session.lane();
        let mut tensors = Vec::new();
        for (element, shape) in &self.inputs {
            let bytes = shape.iter().product::<usize>() * element.bytes().unwrap_or(1);
            tensors.push(lane.upload(*element, shape, &vec![0; bytes])?);
        }
        let outputs: Vec<u32> = (0..self.artifact.outputs.len() as u32).collect();
        let results = lane.run(model, &tensors, &outputs)?;
        let pending = results.iter().map(|result| lane.read(*result)).collect::<Result<Vec<_>, _>>()?;
        tensors.extend(results);
        lane.free(&tensors)?;
        drop(lane);
        pending.into_iter().try_for_each(|pending| pending.wait().map(drop))?;
        Ok(())
    }
}

/// The latencies of one client, for this long, and its session.
fn client(
    address: &Address,
    model: &Model,
    begin: &Barrier,
    lasts: Duration,
) -> Result<(Session, Vec<Duration>), AnyError> {
    let session = dial::open(address, &Security::none(), "default", "batches")?;
    let loaded =
        session.load(&model.artifact, |_| Ok(Box::new(std::io::Cursor::new(model.content.clone()))))?;
    let warm = (0..WARM_UP).try_for_each(|_| model.run(&session, loaded));
    begin.wait();
    warm?;
    let (begun, mut latencies) = (now(), Vec::new());
    while begun.elapsed() < lasts {
        let run = now();
        model.run(&session, loaded)?;
        latencies.push(run.elapsed());
    }
    Ok((session, latencies))
}

fn measure(
    device: &[&str],
    clients: usize,
    lasts: Duration,
    batching: Option<Batching>,
) -> Result<String, AnyError> {
    let cache = tempfile::tempdir()?;
    let own = std::env::current_exe()?.display().to_string();
    let words = [own, PROCESS.to_owned()].into_iter();
    let daemon = Daemon::start(Options {
        device: format!("batches-{}", std::process::id()),
        kind: None,
        listen: vec![Address::unix(cache.path().join("device").display().to_string())],
        security: Security::none(),
        command: words.chain(device.iter().map(|word| (*word).to_owned())).collect(),
        cache: cache.path().to_owned(),
        cache_limit: 8 << 30,
        memory: None,
        slots: 1,
        tenants: Tenants::new([], false)?,
        most_sessions: 256,
        longest_run: Duration::from_secs(60),
        batching,
    })?;
    let (address, model) = (daemon.addresses().swap_remove(0), Arc::new(Model::of(device)?));
    let begin = Barrier::new(clients);
    let (sessions, latencies): (Vec<Session>, Vec<_>) = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..clients).map(|_| scope.spawn(|| client(&address, &model, &begin, lasts))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.push(thread.join().map_err(|_| "a client panicked")??);
        }
        Ok::<_, AnyError>(all)
    })?
    .into_iter()
    .unzip();
    let mut latencies = latencies.concat();
    latencies.sort();
    let at = |part: f64| {
        let place = (latencies.len() as f64 * part) as usize;
        latencies.get(place).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    };
    let rate = latencies.len() as f64 / lasts.as_secs_f64();
    let listing = daemon.listing();
    drop(sessions);
    let together = match listing.batches {
        0 => "-".to_owned(),
        batches => format!("{:.1}", listing.runs as f64 / batches as f64),
    };
    Ok(format!("{rate:>8.1} | {:>8.1} | {:>8.1} | {together:>10}", at(0.5), at(0.99)))
}

fn main() -> Result<(), AnyError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (clients, lasts, device) = match words[..] {
        [PROCESS, ref device @ ..] => return process(device),
        [clients, seconds, ref device @ ..] => {
            (clients.parse()?, Duration::from_secs_f64(seconds.parse()?), device)
        }
        _ => return Err("batches CLIENTS SECONDS DEVICE..., see the source".into()),
    };
    let clients_text = format!("{clients} clients");
    let columns = ["runs/s", "p50, ms", "p99, ms"].map(|name| format!("{name:>8}")).join(" | ");
    println!("{clients_text:<34} | {columns} | runs/batch");
    let together = |wait| Some(Batching { rows: ROWS, wait: Duration::from_millis(wait) });
    for (name, batching) in [
        ("a process for each session", None),
        ("a process for all, without batches", Some(Batching { rows: 1, wait: Duration::ZERO })),
        ("--batch 8", together(0)),
        ("--batch 8 --batch-wait 2ms", together(2)),
    ] {
        println!("{name:<34} | {}", measure(device, clients, lasts, batching)?);
    }
    Ok(())
}
