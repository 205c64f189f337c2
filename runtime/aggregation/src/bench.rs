//! Jobs without data: gradients follow from the parameters by a formula, so that a lost or doubled one shows in the digest.
use crate::client::{Beginning, Client, ClientError, Joining};
use crate::master::{Question, ask, report::Report};
use crate::number::{Numbers, PARTS, bytes_of, halves};
use crate::rule::Rule;
use crate::tensor::{Spec, Tensor};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidemill_aggregation::workload::{ALEXNET, AWD_LM, BERT, Shape, VGG19};
use tidemill_rpc::{Bytes, Code, Status};

/// Interval of looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The models with published sizes.
pub const SHAPES: [(&str, Shape); 4] =
    [("alexnet", ALEXNET), ("vgg19", VGG19), ("awd-lm", AWD_LM), ("bert", BERT)];

/// A job for a measurement.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The socket of the transport service.
    pub socket: PathBuf,
    /// The machine of the aggregators; none: this one.
    pub at: Option<String>,
    /// The name of the job.
    pub job: String,
    /// The tensors.
    pub specs: Vec<Spec>,
    /// Workers, each of them a thread.
    pub workers: u32,
    /// Steps.
    pub steps: u64,
    /// The least number of aggregators.
    pub spread: u32,
    /// The time in which a worker computes a gradient: it sleeps.
    pub compute: Duration,
    /// The last worker is so much later in each tenth step.
    pub straggler: Duration,
    /// All tensors move each time that so many steps were made and no tensor moves; 0: never.
    pub migrate_every: u64,
    /// The job pauses, writes a checkpoint, and resumes as a new job each time that so many steps were made; 0: never.
    pub pause_every: u64,
    /// Compute the expected parameters, too.
    pub check: bool,
    /// Patience of the workers.
    pub patience: Duration,
}

/// The measurement of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// The version of this form.
    pub version: u32,
    /// The job.
    pub job: String,
    /// Tensors and bytes of a gradient.
    pub tensors: usize,
    /// See `tensors`.
    pub gradient_bytes: usize,
    /// The duration of each iteration of worker 0, in milliseconds.
    pub iterations_ms: Vec<f64>,
    /// The part of each iteration in which worker 0 waited for the exchange.
    pub exchanges_ms: Vec<f64>,
    /// Tensors that had another aggregator after the iteration than before.
    pub moved: Vec<usize>,
    /// The time of each pause with a checkpoint.
    pub pauses_ms: Vec<f64>,
    /// CRC-32C of the parameters at the end.
    pub digest: String,
    /// The same by one process that adds up alone; the test of the whole.
    pub expected_digest: Option<String>,
}

/// Returns the tensors of a model, with 1 of `scale` parts of its parameters.
///
/// ```
/// use tidemill_aggregation_service::{bench::{SHAPES, specs_of}, number::Numbers, rule::Rule};
/// let specs = specs_of(&SHAPES[1].1, 10, Numbers::F32, Rule::Momentum { rate: 0.1, momentum: 0.9 });
/// let numbers: usize = specs.iter().map(|spec| spec.count).sum();
/// assert!((13_000_000..15_000_000).contains(&numbers), "{numbers}");
/// ```
pub fn specs_of(shape: &Shape, scale: u32, numbers: Numbers, rule: Rule) -> Vec<Spec> {
    let count = |millions: f64| ((millions * 1e6 / f64::from(scale.max(1))) as usize).max(1);
    let whole = shape.tensors.iter().enumerate();
    whole
        .flat_map(|(index, millions)| {
            Spec::new(format!("{}.{index}", shape.name), count(*millions), numbers, rule)
                .pieces(crate::tensor::MOST_NUMBERS)
        })
        .collect()
}

/// The gradient of a worker: whole numbers of 1/1024 that follow from worker, step and place.
fn gradient(spec: &Spec, tensor: usize, worker: u32, step: u64) -> Vec<u8> {
    let seed =
        (tensor as u64).wrapping_mul(31) ^ u64::from(worker).wrapping_mul(0x9E37) ^ step.wrapping_mul(0x85EB);
    let part = |index: usize| ((index as u64).wrapping_mul(2_654_435_761) ^ seed) % 2048;
    let value = |index: usize| (part(index) as f32 - 1024.0) / 1024.0;
    match spec.numbers {
        Numbers::Fixed => bytes_of(
            &(0..spec.count).map(|index| (f64::from(value(index)) * PARTS) as i64).collect::<Vec<i64>>(),
        ),
        Numbers::F32 => bytes_of(&(0..spec.count).map(value).collect::<Vec<f32>>()),
        Numbers::F16 => halves(&(0..spec.count).map(value).collect::<Vec<f32>>()),
    }
}

fn initial(specs: &[Spec]) -> Vec<Vec<f64>> {
    let value = |index: usize| (index % 17) as f64 / 16.0 - 0.5;
    specs.iter().map(|spec| (0..spec.count).map(value).collect()).collect()
}

fn digest_of(values: impl Iterator<Item = Vec<f64>>) -> String {
    let mut crc = 0;
    values.for_each(|values| crc = crc32c::crc32c_append(crc, &bytes_of(&values)));
    format!("{crc:08x}")
}

/// The parameters that a job must have at its end.
fn expected(options: &BenchOptions) -> Result<String, ClientError> {
    let mut all = Vec::new();
    for ((index, spec), values) in options.specs.iter().enumerate().zip(initial(&options.specs)) {
        let mut tensor = Tensor::new(spec.clone(), options.workers);
        tensor.put(0, &spec.state_of(&values))?;
        for step in 0..options.steps {
            for worker in 0..options.workers {
                tensor.add(worker, Some(&gradient(spec, index, worker, step)))?;
            }
        }
        all.push(spec.values_of(&tensor.values())?);
    }
    Ok(digest_of(all.into_iter()))
}

/// The threads of a job.
struct Shared {
    options: BenchOptions,
    /// All workers have left before one joins again.
    barrier: Barrier,
    /// Counts pauses, for new names of the job.
    pauses: AtomicU64,
    checkpoint: PathBuf,
    progress: Mutex<Box<dyn FnMut(u64) + Send>>,
}

#[derive(Default)]
struct Measured {
    iterations: Vec<f64>,
    exchanges: Vec<f64>,
    moved: Vec<usize>,
    pauses: Vec<f64>,
    digest: String,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The aggregator to which all tensors move next: the one after that of the first tensor.
fn next_of(report: &Report, job: &str) -> Option<String> {
    let of = report.jobs.iter().find(|of| of.name == job)?;
    if of.tensors.iter().any(|tensor| tensor.moves_to.is_some()) {
        return None;
    }
    let own = &of.tensors.first()?.aggregator;
    let names: Vec<&String> = report.aggregators.iter().map(|of| &of.name).collect();
    let place = names.iter().position(|name| *name == own)?;
    let next = names.iter().cycle().nth(place + 1)?;
    (*next != own).then(|| (*next).clone())
}

#[allow(clippy::disallowed_methods, reason = "durations of this machine")]
fn now() -> Instant {
    Instant::now()
}

fn work(shared: &Shared, worker: u32) -> Result<Measured, ClientError> {
    let options = &shared.options;
    let joining = |job: String| Joining {
        socket: options.socket.clone(),
        at: options.at.clone(),
        token: format!("bench-{job}-{}", std::process::id()),
        job,
        worker,
        workers: options.workers,
        spread: options.spread,
        specs: options.specs.clone(),
        patience: options.patience,
    };
    let beginning = Beginning::with_values(&options.specs, &initial(&options.specs));
    let mut client = Client::join(joining(options.job.clone()), beginning)?;
    let gradients = |step: u64| -> Vec<Option<Bytes>> {
        let specs = options.specs.iter().enumerate();
        specs.map(|(tensor, spec)| Some(gradient(spec, tensor, worker, step).into())).collect()
    };
    // Without a comparison the same ones serve each step: to compute them would disturb the measurement.
    let first = (!options.check).then(|| gradients(0));
    let mut measured = Measured::default();
    let mover: Arc<Mutex<Option<std::thread::JoinHandle<()>>>> = Arc::default();
    while client.version() < options.steps {
        let began = now();
        let step = client.version();
        let is_late = worker + 1 == options.workers && step % 10 == 9;
        std::thread::sleep(options.compute + if is_late { options.straggler } else { Duration::ZERO });
        let gradients = match &first {
            Some(first) => first.clone(),
            None => gradients(step),
        };
        let before: Vec<String> = client.places().map(|(_, place)| place.to_owned()).collect();
        let exchange = now();
        client.step(gradients)?;
        if worker == 0 {
            let moved = client.places().zip(&before).filter(|((_, place), before)| place != before).count();
            measured.exchanges.push(milliseconds(exchange.elapsed()));
            measured.iterations.push(milliseconds(began.elapsed()));
            measured.moved.push(moved);
            (shared.progress.lock().unwrap_or_else(PoisonError::into_inner))(client.version());
            if options.migrate_every > 0 && client.version().is_multiple_of(options.migrate_every) {
                migrate(options, &mover);
            }
        }
        if options.pause_every > 0 && client.version().is_multiple_of(options.pause_every) {
            client = pause(shared, client, worker, &joining, &mut measured)?;
        }
    }
    let values: Result<Vec<Vec<f64>>, ClientError> =
        (0..options.specs.len()).map(|tensor| client.values(tensor)).collect();
    measured.digest = digest_of(values?.into_iter());
    client.leave()?;
    let last = mover.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(last) = last {
        let _ = last.join();
    }
    Ok(measured)
}

/// Asks for a move of all tensors, beside the job; not while the last question waits.
fn migrate(options: &BenchOptions, mover: &Mutex<Option<std::thread::JoinHandle<()>>>) {
    let mut mover = mover.lock().unwrap_or_else(PoisonError::into_inner);
    if mover.as_ref().is_some_and(|last| !last.is_finished()) {
        return;
    }
    let (socket, job) = (options.socket.clone(), options.job.clone());
    *mover = Some(std::thread::spawn(move || {
        // A failed question moves nothing, which the report shows.
        let report = ask(&socket, Question::Report { job: Some(job.clone()) });
        if let Some(to) = report.ok().and_then(|report| next_of(&report, &job)) {
            let _ = ask(&socket, Question::Move { job, tensor: None, to });
        }
    }));
}

/// Stops the job, and starts it again from a checkpoint.
fn pause(
    shared: &Shared,
    mut client: Client,
    worker: u32,
    joining: &impl Fn(String) -> Joining,
    measured: &mut Measured,
) -> Result<Client, ClientError> {
    let began = now();
    let specs = &shared.options.specs;
    if worker == 0 {
        client.states()?.save(specs, &shared.checkpoint)?;
        shared.pauses.fetch_add(1, Ordering::AcqRel);
    }
    shared.barrier.wait();
    client.leave()?;
    let job = format!("{}-{}", shared.options.job, shared.pauses.load(Ordering::Acquire));
    let client = Client::join(joining(job), Beginning::load(specs, &shared.checkpoint)?)?;
    shared.barrier.wait();
    measured.pauses.push(milliseconds(began.elapsed()));
    Ok(client)
}

/// Runs a job to its end, or until `stop` says so. `progress` gets the steps of worker 0.
///
/// # Errors
/// No master serves, or a worker fails.
pub fn run(
    options: &BenchOptions,
    progress: impl FnMut(u64) + Send + 'static,
    stop: impl Fn() -> bool,
) -> Result<BenchReport, ClientError> {
    let checkpoint =
        std::env::temp_dir().join(format!("tidemill-agg-{}-{}", options.job, std::process::id()));
    let shared = Arc::new(Shared {
        options: options.clone(),
        barrier: Barrier::new(options.workers as usize),
        pauses: AtomicU64::new(0),
        checkpoint: checkpoint.clone(),
        progress: Mutex::new(Box::new(progress)),
    });
    let (send, receive) = std::sync::mpsc::channel();
    for worker in 0..options.workers {
        let (shared, send) = (Arc::clone(&shared), send.clone());
        // Nobody waits for the others when one has failed: they wait for its gradient.
        std::thread::spawn(move || drop(send.send((worker, work(&shared, worker)))));
    }
    drop(send);
    let mut measured: BTreeMap<u32, Measured> = BTreeMap::new();
    let mut failed = None;
    while measured.len() < options.workers as usize && failed.is_none() {
        match receive.recv_timeout(LOOK) {
            Ok((worker, Ok(of))) => drop(measured.insert(worker, of)),
            Ok((_, Err(error))) => failed = Some(error),
            Err(RecvTimeoutError::Timeout) if stop() => {
                failed = Some(ClientError::Refused(Status::new(Code::Cancelled, "interrupted")));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                failed = Some(ClientError::Refused(Status::internal("a worker has panicked")));
            }
        }
    }
    // It is there only after a pause.
    let _ = std::fs::remove_file(&checkpoint);
    if let Some(error) = failed {
        return Err(error);
    }
    let first = measured.remove(&0).unwrap_or_default();
    if let Some(other) = measured.values().find(|other| other.digest != first.digest) {
        let text = format!("the workers have different parameters: one has the digest {}", other.digest);
        return Err(ClientError::Form(text));
    }
    Ok(BenchReport {
        version: 1,
        job: options.job.clone(),
        tensors: options.specs.len(),
        gradient_bytes: options.specs.iter().map(|spec| spec.numbers.of_gradient() * spec.count).sum(),
        iterations_ms: first.iterations,
        exchanges_ms: first.exchanges,
        moved: first.moved,
        pauses_ms: first.pauses,
        digest: first.digest,
        expected_digest: if options.check { Some(expected(options)?) } else { None },
    })
}
