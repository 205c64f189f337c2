//! The master: which aggregator has which tensor, and the processes of aggregators.
//!
//! It compares what its map wants with what the aggregators have, and takes the next step of each move, over and over. So it makes no difference
//! when it dies, and an aggregator that does not answer is only asked again.
use crate::aggregator::digest;
use crate::naming::{method, service_of};
use crate::tensor::TensorError;
use crate::wire::{self, MasterServer};
use map::{Job, Map, Stage};
use processes::Processes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_aggregation::{Service, ServiceError};
use tidemill_rpc::{Channel, Code, Net, Request, Status};
use tokio::sync::Mutex;
use tokio::time::Instant;

mod answering;
mod map;
mod measuring;
mod moving;
mod processes;
pub mod report;

pub use processes::{AggregatorOptions, run_aggregator};

/// Interval of looks at all aggregators, and while tensors move.
const PERIOD: Duration = Duration::from_millis(250);
const MOVING: Duration = Duration::from_millis(20);
/// Time in which an aggregator answers.
const ANSWER: Duration = Duration::from_secs(5);
/// An aggregator that does not answer for so long is ended.
const SILENCE: Duration = Duration::from_secs(15);

/// How a master works.
#[derive(Debug, Clone)]
pub struct MasterOptions {
    /// The socket of the transport service of this machine.
    pub socket: PathBuf,
    /// The folder of the map.
    pub folder: PathBuf,
    /// The command of an aggregator, to which options are added.
    pub command: Vec<String>,
    /// So many aggregators, to which jobs are dealt, and no moves but those that are asked for. None: as many as the jobs need.
    pub fixed: Option<u32>,
    /// The most aggregators.
    pub most: u32,
    /// Bytes of a job on an aggregator.
    pub job_memory: u64,
    /// The part of its speed that a job may lose.
    pub loss_limit: f64,
    /// Iterations in which a new job is measured alone.
    pub profiled: u32,
    /// Iterations after which the speed of a job is compared with that.
    pub monitored: u32,
}

/// Why a master or an aggregator cannot work.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The transport service.
    #[error("{}", .0.message)]
    Transport(#[from] Status),
    /// A file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The map is no map.
    #[error(
        "{}: {reason}; use another folder, or remove the file: the states of its jobs are lost then", path.display()
    )]
    Map {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another master is there.
    #[error("a master works already {0}")]
    Second(String),
    /// An aggregator does not start.
    #[error("aggregator {0} does not start: {1}")]
    Start(String, String),
    /// The rules of the service.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl MasterError {
    fn file(path: &Path, error: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }

    fn status(self) -> Status {
        match self {
            Self::Transport(status) => status,
            Self::Tensor(error) => Status::invalid_argument(error.to_string()),
            other => Status::internal(other.to_string()),
        }
    }
}

/// A tensor of a job.
type Key = (String, u32);
/// The tensors of all aggregators that answered.
type Seen = BTreeMap<String, BTreeMap<Key, wire::Held>>;

struct State {
    options: MasterOptions,
    map: Map,
    net: Net,
    secret: String,
    processes: Processes,
    channels: HashMap<String, Channel>,
    seen: Seen,
    silent: HashMap<String, Instant>,
    windows: HashMap<String, measuring::Window>,
    /// The last measured iteration of a job.
    measured: HashMap<String, Duration>,
    /// The version of a tensor that leaves, and since when.
    leaving: HashMap<Key, (u64, Instant)>,
}

/// A master, whose state one task changes at a time.
#[derive(Clone)]
struct Master(Arc<Mutex<State>>);

/// Works as a master until `stop` says so; then all aggregators end. `ready` is called when jobs may come.
///
/// # Errors
/// No transport service answers, another master is there, or the folder cannot be used.
pub fn run(
    options: MasterOptions,
    stop: impl Fn() -> bool,
    ready: impl FnOnce(usize),
) -> Result<(), MasterError> {
    std::fs::create_dir_all(&options.folder).map_err(|error| MasterError::file(&options.folder, error))?;
    let Some(_lock) = processes::lock(&options.folder.join(processes::MASTER))? else {
        return Err(MasterError::Second(format!("in {}", options.folder.display())));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| MasterError::file(&options.folder, error))?;
    runtime.block_on(async {
        let net = Net::connect_to(&options.socket, "aggregation-master").await?;
        if net.discover(wire::MasterClient::SERVICE).await.is_ok() {
            return Err(MasterError::Second(format!("at {}", options.socket.display())));
        }
        let service = Service::with_loss_limit(options.loss_limit)?;
        let map = Map::open(&options.folder, service)?;
        let secret = processes::secret(&options.folder)?;
        let processes = Processes::new(&options.folder, &options.socket, &options.command);
        let mut state = State {
            map,
            secret,
            processes,
            net: net.clone(),
            channels: HashMap::new(),
            seen: BTreeMap::new(),
            silent: HashMap::new(),
            windows: HashMap::new(),
            measured: HashMap::new(),
            leaving: HashMap::new(),
            options,
        };
        let began = state.begin().await;
        let count = state.map.aggregators.len();
        let master = Master(Arc::new(Mutex::new(state)));
        let result = match began {
            Ok(()) => master.work(&net, stop, || ready(count)).await,
            Err(error) => Err(error),
        };
        master.0.lock().await.end();
        result
    })
}

impl Master {
    async fn work(
        &self,
        net: &Net,
        stop: impl Fn() -> bool,
        ready: impl FnOnce(),
    ) -> Result<(), MasterError> {
        let _serving = net.serve(MasterServer::new(self.clone())).await?;
        ready();
        let mut next = Instant::now();
        while !stop() {
            if Instant::now() >= next {
                let mut state = self.0.lock().await;
                if let Err(error) = state.look().await {
                    tracing::warn!("{error}");
                }
                next = Instant::now() + if state.is_moving() { MOVING } else { PERIOD };
            }
            tokio::time::sleep(MOVING).await;
        }
        Ok(())
    }
}

impl State {
    async fn begin(&mut self) -> Result<(), MasterError> {
        // Those that a master started before it could say so.
        for name in self.processes.known()? {
            if !self.map.aggregators.contains(&name) {
                self.processes.end(&name);
            }
        }
        for _ in self.map.aggregators.len()..self.options.fixed.unwrap_or(0) as usize {
            self.start().await?;
        }
        self.write()
    }

    fn end(&mut self) {
        for name in self.map.aggregators.clone() {
            self.processes.end(&name);
        }
        self.processes.wait();
    }

    fn write(&self) -> Result<(), MasterError> {
        self.map.write(&self.options.folder)
    }

    /// Starts an aggregator.
    async fn start(&mut self) -> Result<String, MasterError> {
        if self.map.aggregators.len() >= self.options.most as usize {
            let text = format!(
                "there are {} aggregators, which is the most; raise it by `tidemill agg serve --most-aggregators`",
                self.options.most
            );
            return Err(Status::new(Code::ResourceExhausted, text).into());
        }
        let name = self.map.new_name();
        // Written before it starts: a name is never used again, and one that is lost is found dead.
        self.map.aggregators.insert(name.clone());
        self.write()?;
        let net = self.net.clone();
        if let Err(error) = self.processes.start(&name, &net).await {
            self.map.aggregators.remove(&name);
            self.write()?;
            return Err(error);
        }
        tracing::info!("aggregator {name} serves");
        Ok(name)
    }

    fn is_moving(&self) -> bool {
        self.map.jobs.values().any(|job| !job.moves.is_empty())
    }

    /// Makes a call to an aggregator.
    async fn call<Q: tidemill_rpc::Message, R: tidemill_rpc::Message>(
        &mut self,
        name: &str,
        method: u32,
        message: Q,
    ) -> Result<R, Status> {
        let channel = match self.channels.get(name) {
            Some(channel) => channel.clone(),
            None => {
                let (channel, _) = self.net.discover(&service_of(name)).await?;
                self.channels.insert(name.to_owned(), channel.clone());
                channel
            }
        };
        let called = channel.unary(method, Request::new(message).within(ANSWER)).await;
        if called.is_err() {
            self.channels.remove(name);
        }
        Ok(called?.into_inner())
    }

    /// Makes an aggregator expect tensors, or take them back.
    async fn expect(&mut self, job: &str, tensors: &[u32], at: &str) -> Result<(), Status> {
        let Some(of) = self.map.jobs.get(job) else { return Ok(()) };
        let expected = tensors.iter().filter_map(|tensor| {
            let spec = serde_json::to_string(of.specs.get(*tensor as usize)?).ok()?;
            Some(wire::Expected { tensor: *tensor, spec })
        });
        let request = wire::ExpectRequest {
            secret: self.secret.clone(),
            job: job.to_owned(),
            token_digest: of.digest.clone().into(),
            workers: of.workers,
            limit: self.options.job_memory,
            tensors: expected.collect(),
        };
        self.call::<_, wire::Nothing>(at, method::EXPECT, request).await?;
        Ok(())
    }

    async fn forget(&mut self, job: &str, tensors: Vec<u32>, at: &str) -> Result<(), Status> {
        let request = wire::ForgetRequest { secret: self.secret.clone(), job: job.to_owned(), tensors };
        self.call::<_, wire::Nothing>(at, method::FORGET, request).await?;
        Ok(())
    }

    /// Compares the map with the aggregators, and takes the next steps.
    async fn look(&mut self) -> Result<(), MasterError> {
        self.processes.reap();
        let dead: Vec<String> =
            self.map.aggregators.iter().filter(|name| !self.processes.lives(name)).cloned().collect();
        for name in dead {
            self.replace(&name).await?;
        }
        self.list().await;
        self.sweep().await;
        self.move_tensors().await?;
        self.measure().await?;
        self.release()
    }

    async fn list(&mut self) {
        self.seen.clear();
        for name in self.map.aggregators.clone() {
            let request = wire::ListRequest { secret: self.secret.clone() };
            match self.call::<_, wire::Listing>(&name, method::LIST, request).await {
                Ok(listing) => {
                    self.silent.remove(&name);
                    let held =
                        listing.tensors.into_iter().map(|held| ((held.job.clone(), held.tensor), held));
                    self.seen.insert(name, held.collect());
                }
                Err(status) => {
                    let since = *self.silent.entry(name.clone()).or_insert_with(Instant::now);
                    if since.elapsed() > SILENCE {
                        tracing::error!("aggregator {name} does not answer, and is ended: {status}");
                        self.processes.kill(&name);
                    }
                }
            }
        }
        for (name, job) in &mut self.map.jobs {
            let made_steps = |held: &wire::Held| held.job == *name && held.steps > 0;
            job.started |= self.seen.values().flat_map(BTreeMap::values).any(made_steps);
        }
    }

    /// Frees what the map does not know: the copies of moves whose end a master did not see. Makes room for what it knows, where a master died
    /// before.
    async fn sweep(&mut self) {
        let mut missing: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
        for (name, job) in &self.map.jobs {
            for (tensor, place) in (0..).zip(&job.places) {
                if self.seen.get(place).is_some_and(|seen| !seen.contains_key(&(name.clone(), tensor))) {
                    missing.entry((place.clone(), name.clone())).or_default().push(tensor);
                }
            }
        }
        for ((place, job), tensors) in missing {
            // The next look tries again.
            let _ = self.expect(&job, &tensors, &place).await;
        }
        let mut unknown: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
        for (name, tensors) in &self.seen {
            for (job, tensor) in tensors.keys() {
                let is_known = self.map.jobs.get(job).is_some_and(|of| {
                    of.places.get(*tensor as usize) == Some(name) || of.moves.get(tensor) == Some(name)
                });
                if !is_known {
                    unknown.entry((name.clone(), job.clone())).or_default().push(*tensor);
                }
            }
        }
        for ((name, job), tensors) in unknown {
            // The next look tries again.
            let _ = self.forget(&job, tensors, &name).await;
        }
    }

    /// Ends aggregators that have nothing to do.
    fn release(&mut self) -> Result<(), MasterError> {
        if self.options.fixed.is_some() {
            return Ok(());
        }
        let idle: Vec<String> = self
            .map
            .aggregators
            .iter()
            .filter(|name| {
                let is_empty = self.seen.get(*name).is_some_and(BTreeMap::is_empty);
                is_empty && self.map.tensors_of(name) == 0 && self.map.of_name(name).is_none()
            })
            .cloned()
            .collect();
        for name in &idle {
            tracing::info!("aggregator {name} has nothing to do, and ends");
            self.map.aggregators.remove(name);
            self.channels.remove(name);
            self.processes.end(name);
        }
        if idle.is_empty() { Ok(()) } else { self.write() }
    }

    /// Removes a job, and releases aggregators that others do not need.
    async fn remove(&mut self, name: &str) -> Result<(), MasterError> {
        let Some(job) = self.map.jobs.remove(name) else { return Ok(()) };
        let id = tidemill_aggregation::JobId(job.id);
        if self.map.service.jobs().any(|other| other == id) {
            self.map.service.exit(id)?;
            let (released, _) = self.map.service.scale_in();
            for released in released {
                self.map.names.remove(&released.0);
            }
        }
        self.follow_service();
        self.write()?;
        let tensors: Vec<u32> =
            (0..job.specs.len()).filter_map(|tensor| u32::try_from(tensor).ok()).collect();
        let holders: BTreeSet<&String> = job.places.iter().chain(job.moves.values()).collect();
        for holder in holders {
            // One that is lost has nothing to free.
            let _ = self.forget(name, tensors.clone(), holder).await;
        }
        self.windows.remove(name);
        self.measured.remove(name);
        Ok(())
    }

    /// Puts the lost aggregator's tensors on a new one: their keepers bring the states.
    async fn replace(&mut self, name: &str) -> Result<(), MasterError> {
        let needs_one =
            self.options.fixed.is_some() || self.map.of_name(name).is_some() || self.map.tensors_of(name) > 0;
        self.map.aggregators.remove(name);
        self.channels.remove(name);
        self.silent.remove(name);
        self.processes.end(name);
        if !needs_one {
            return self.write();
        }
        let new = self.start().await.inspect_err(|_| {
            // It is tried again.
            self.map.aggregators.insert(name.to_owned());
        })?;
        tracing::warn!("aggregator {name} is lost; {new} takes its place");
        if let Some(id) = self.map.of_name(name) {
            self.map.names.insert(id, new.clone());
        }
        let mut expected: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
        for (job_name, job) in &mut self.map.jobs {
            let mut expect = |at: &str, tensor: u32| {
                expected.entry((job_name.clone(), at.to_owned())).or_default().push(tensor);
            };
            for (tensor, place) in (0..).zip(&mut job.places) {
                let to = job.moves.get(&tensor).cloned();
                if place == name {
                    // A move that had begun is made by the keepers.
                    *place = to.unwrap_or_else(|| new.clone());
                    job.moves.remove(&tensor);
                    expect(place, tensor);
                } else if to.as_deref() == Some(name) {
                    // The old one has its copy; where the service wants the tensor elsewhere, it moves later.
                    job.moves.remove(&tensor);
                    expect(place, tensor);
                }
            }
        }
        self.windows.clear();
        self.write()?;
        for ((job, at), tensors) in expected {
            if let Err(status) = self.expect(&job, &tensors, &at).await {
                tracing::warn!("{at} does not expect tensors of {job}: {status}");
            }
        }
        self.follow_service();
        self.write()
    }

    /// Makes tensors move where the service wants them.
    fn follow_service(&mut self) {
        for job in self.map.jobs.values_mut().filter(|job| job.stage == Stage::Placed) {
            for (tensor, place) in job.places.iter().enumerate() {
                let wanted = self.map.service.place(tidemill_aggregation::JobId(job.id), tensor);
                let wanted = wanted.and_then(|id| self.map.names.get(&id.0));
                let Some((wanted, tensor)) = wanted.zip(u32::try_from(tensor).ok()) else { continue };
                if wanted != place && !job.moves.contains_key(&tensor) {
                    job.moves.insert(tensor, wanted.clone());
                }
            }
        }
    }
}

fn is_of(job: &Job, token: &str) -> bool {
    job.digest == digest(token)
}

/// Asks the master of a transport service. The calls block.
///
/// # Errors
/// No master serves there, or it refuses.
pub fn ask(socket: &Path, question: Question) -> Result<report::Report, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Status::internal(error.to_string()))?;
    runtime.block_on(async {
        let net = Net::connect_to(socket, "agg").await?;
        let master = wire::MasterClient::connect(&net).await?;
        let document = match question {
            Question::Report { job } => {
                master.report(wire::ReportRequest { job: job.unwrap_or_default() }).await?
            }
            Question::Move { job, tensor, to } => {
                master.r#move(wire::MoveRequest { job, tensor, to }).await?
            }
            Question::Remove { job } => {
                master.remove(wire::ReportRequest { job }).await?;
                master.report(wire::ReportRequest::default()).await?
            }
        };
        serde_json::from_str(&document.message.json)
            .map_err(|error| Status::internal(format!("the answer of the master: {error}")))
    })
}

/// A question to the master.
#[derive(Debug, Clone)]
pub enum Question {
    /// Jobs and aggregators.
    Report {
        /// One job only.
        job: Option<String>,
    },
    /// Moves tensors.
    Move {
        /// The job.
        job: String,
        /// One tensor only.
        tensor: Option<u32>,
        /// The aggregator.
        to: String,
    },
    /// Removes a job, with the states of its tensors.
    Remove {
        /// The job.
        job: String,
    },
}
