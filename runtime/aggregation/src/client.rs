//! The part of a worker: pushes gradients, pulls values, keeps states.
use crate::naming::{bind, method, state};
use crate::tensor::{Spec, TensorError};
use crate::wire::{self, MasterClient, Outcome};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tidemill_rpc::{Bytes, Channel, Code, Net, Request, Status};
use tokio::time::Instant;

mod checkpoint;
mod joining;

/// Pushes of one worker that are under way.
const AT_ONCE: usize = 32;
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A worker that wants to take part in a job.
#[derive(Debug, Clone)]
pub struct Joining {
    /// The socket of the transport service of this machine.
    pub socket: PathBuf,
    /// The machine of the aggregators, by the address of its transport service: `tcp://HOST:PORT`. None: this one.
    pub at: Option<String>,
    /// The name of the job.
    pub job: String,
    /// A secret of the job: other jobs cannot read or write its tensors.
    pub token: String,
    /// The number of this worker, from 0 on.
    pub worker: u32,
    /// The workers of the job.
    pub workers: u32,
    /// The least number of aggregators.
    pub spread: u32,
    /// The tensors; all workers name the same ones.
    pub specs: Vec<Spec>,
    /// Time in which a lost aggregator or master has to be replaced.
    pub patience: Duration,
}

/// States from which a job begins; all workers have the same ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Beginning {
    /// Updates that were made before.
    pub version: u64,
    /// The state of each tensor.
    pub states: Vec<Bytes>,
}

impl Beginning {
    /// Begins with these values, and moments of 0.
    pub fn with_values(specs: &[Spec], values: &[Vec<f64>]) -> Self {
        let states = specs.iter().zip(values).map(|(spec, values)| spec.state_of(values).into()).collect();
        Self { version: 0, states }
    }
}

/// Why a worker cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The transport service, the master or an aggregator refuses.
    #[error("{0}")]
    Refused(Status),
    /// A gradient was no number.
    #[error("{0}")]
    Diverged(String),
    /// Nobody has replaced a lost part.
    #[error("tensor {tensor} of job {job} was not reached for {seconds} s: {reason}")]
    Lost {
        /// The job.
        job: String,
        /// The tensor.
        tensor: String,
        /// The patience.
        seconds: u64,
        /// The last obstacle.
        reason: String,
    },
    /// The values of the current step are not there any more.
    #[error(
        "worker {worker} of job {job} cannot take part again: the values of step {version} of {tensor} are lost; end the job by `tidemill agg remove {job}`, and start it from its checkpoint"
    )]
    TooLate {
        /// The job.
        job: String,
        /// The worker.
        worker: u32,
        /// The tensor.
        tensor: String,
        /// The step.
        version: u64,
    },
    /// The numbers of gradients, states or tensors do not fit.
    #[error("{0}")]
    Form(String),
    /// A tensor does not fit.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        match status.code {
            Code::Aborted => Self::Diverged(status.message),
            _ => Self::Refused(status),
        }
    }
}

/// A worker of a job. Its calls block.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    paths: Paths,
    held: Vec<Held>,
    version: u64,
}

/// The paths to the aggregators.
#[derive(Debug)]
struct Paths {
    net: Net,
    master: MasterClient,
    joining: Joining,
    channels: Mutex<HashMap<String, Channel>>,
}

/// A tensor as a worker has it.
#[derive(Debug)]
struct Held {
    index: u32,
    spec: Spec,
    keeps: bool,
    /// `values` is the whole state, so that an aggregator can continue with it.
    gives: bool,
    place: String,
    /// Values, or the whole state of a tensor that this worker keeps.
    values: Bytes,
    /// The version of `values`.
    version: u64,
    /// The last gradient and its step: an aggregator that was replaced may need it again.
    last: Option<(u64, Bytes)>,
}

/// Time that is left for somebody to come back.
struct Patience {
    whole: Duration,
    since: Option<Instant>,
}

impl Patience {
    fn new(whole: Duration) -> Self {
        Self { whole, since: None }
    }

    fn is_over(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() > self.whole
    }
}

fn may_come_back(status: &Status) -> bool {
    matches!(
        status.code,
        Code::Unavailable | Code::NotFound | Code::DataLoss | Code::Cancelled | Code::Internal
    )
}

impl Paths {
    async fn channel(&self, aggregator: &str) -> Result<Channel, Status> {
        let open = crate::aggregator::locked(&self.channels).get(aggregator).cloned();
        if let Some(channel) = open {
            return Ok(channel);
        }
        let channel = bind(&self.net, aggregator, self.joining.at.as_deref()).await?;
        crate::aggregator::locked(&self.channels).insert(aggregator.to_owned(), channel.clone());
        Ok(channel)
    }

    async fn locate(&self, held: &mut Held) -> Result<(), Status> {
        let Joining { job, token, worker, .. } = &self.joining;
        let request = wire::LocateRequest { job: job.clone(), token: token.clone(), worker: *worker };
        let places = self.master.locate(request).await?.into_inner().aggregators;
        if let Some(place) = places.into_iter().nth(held.index as usize) {
            held.place = place;
        }
        Ok(())
    }

    async fn push(&self, held: &Held, version: u64, gradient: &Bytes) -> Result<wire::PushReply, Status> {
        let channel = self.channel(&held.place).await?;
        let push = wire::PushRequest {
            job: self.joining.job.clone(),
            token: self.joining.token.clone(),
            tensor: held.index,
            worker: self.joining.worker,
            version,
            unusable: gradient.is_empty(),
            keeps: held.keeps,
            gradient: gradient.clone(),
        };
        Ok(channel.unary(method::PUSH, Request::new(push)).await?.into_inner())
    }

    /// Gives the kept state to the aggregator. If it cannot take it, the next push finds out.
    async fn give(&self, held: &Held) -> Result<(), Status> {
        let channel = self.channel(&held.place).await?;
        let Joining { job, token, .. } = &self.joining;
        let message = state(job, token, held.index, held.version, held.values.clone());
        channel.unary::<_, wire::PutReply>(method::PUT, Request::new(message)).await?;
        Ok(())
    }

    /// Makes a step with one tensor.
    async fn step(&self, held: &mut Held, version: u64, gradient: Bytes) -> Result<(), ClientError> {
        let mut patience = Patience::new(self.joining.patience);
        loop {
            let obstacle = match self.push(held, version, &gradient).await {
                Ok(reply) if reply.outcome == Outcome::DONE => {
                    (held.version, held.gives) = (reply.version, held.keeps);
                    // Replies lie in memory of the transport service, which others need.
                    held.values = Bytes::copy_from_slice(&reply.values);
                    if !reply.moved_to.is_empty() {
                        held.place = reply.moved_to;
                    }
                    held.last = Some((version, gradient));
                    return Ok(());
                }
                Ok(reply) if reply.outcome == Outcome::AGAIN => continue,
                Ok(reply) if reply.outcome == Outcome::ELSEWHERE && !reply.moved_to.is_empty() => {
                    held.place = reply.moved_to;
                    "it moves".to_owned()
                }
                Ok(reply) if reply.outcome == Outcome::ELSEWHERE => {
                    let located = self.locate(held).await;
                    tokio::time::sleep(PAUSE).await;
                    located.err().map_or("it is placed anew".to_owned(), |status| status.to_string())
                }
                Ok(reply) if held.gives => {
                    // The aggregator needs a state, and this worker has it.
                    let given = self.give(held).await;
                    let of = if reply.outcome == Outcome::BEHIND { "an older state" } else { "no state" };
                    given.err().map_or(format!("{} has {of}", held.place), |status| status.to_string())
                }
                Ok(reply) if reply.outcome == Outcome::BEHIND => {
                    let last = held.last.clone().filter(|(of, _)| *of == reply.version);
                    let Some((of, last)) = last else {
                        return Err(self.too_late(held, reply.version));
                    };
                    match self.push(held, of, &last).await {
                        Ok(_) => format!("{} had an older state", held.place),
                        Err(status) => status.to_string(),
                    }
                }
                Ok(_) => format!("{} waits for the state from worker {}", held.place, self.keeper(held)),
                Err(status) if may_come_back(&status) => {
                    crate::aggregator::locked(&self.channels).remove(&held.place);
                    let before = held.place.clone();
                    let located = self.locate(held).await;
                    if located.is_ok() && held.place != before && held.gives {
                        // An error shows at the next push.
                        let _ = self.give(held).await;
                    }
                    tokio::time::sleep(PAUSE).await;
                    located.err().unwrap_or(status).to_string()
                }
                Err(status) => return Err(status.into()),
            };
            if patience.is_over() {
                return Err(self.lost(held, obstacle));
            }
        }
    }

    /// Asks for a tensor: its values, those before the last step, or the whole state.
    async fn ask(&self, held: &Held, whole: bool, before: bool) -> Result<wire::State, Status> {
        let Joining { job, token, .. } = &self.joining;
        let (job, token, tensor) = (job.clone(), token.clone(), held.index);
        let request = wire::PullRequest { job, token, tensor, whole, before };
        let channel = self.channel(&held.place).await?;
        Ok(channel.unary(method::PULL, Request::new(request)).await?.into_inner())
    }

    fn lost(&self, held: &Held, reason: String) -> ClientError {
        let (job, tensor) = (self.joining.job.clone(), held.spec.name.clone());
        ClientError::Lost { job, tensor, seconds: self.joining.patience.as_secs(), reason }
    }

    fn too_late(&self, held: &Held, version: u64) -> ClientError {
        let Joining { job, worker, .. } = &self.joining;
        ClientError::TooLate { job: job.clone(), worker: *worker, tensor: held.spec.name.clone(), version }
    }

    fn keeper(&self, held: &Held) -> u32 {
        held.index % self.joining.workers.max(1)
    }
}

impl Client {
    /// Makes a step with all workers: waits until the gradients of all of them have come. None as a gradient: it is no number, and the step must
    /// not happen; so do floats that are none.
    ///
    /// # Errors
    /// An aggregator is lost and not replaced, or a gradient was no number: then no tensor has changed.
    pub fn step(&mut self, gradients: Vec<Option<Bytes>>) -> Result<(), ClientError> {
        if gradients.len() != self.held.len() {
            let text =
                format!("{} gradients came, and there are {} tensors", gradients.len(), self.held.len());
            return Err(ClientError::Form(text));
        }
        for (held, gradient) in self.held.iter().zip(&gradients) {
            let expected = held.spec.numbers.of_gradient() * held.spec.count;
            if let Some(found) = gradient.as_ref().map(Bytes::len).filter(|found| *found != expected) {
                return Err(TensorError::Length { name: held.spec.name.clone(), found, expected }.into());
            }
        }
        let pairs = || self.held.iter().zip(&gradients);
        let is_usable =
            pairs().all(|(held, gradient)| gradient.as_ref().is_some_and(|bytes| held.spec.is_finite(bytes)));
        let (paths, version) = (&self.paths, self.version);
        let steps = self.held.iter_mut().zip(gradients).map(|(held, gradient)| {
            // An empty one says that there is none: for no tensor, so that all of them stay at this step.
            let gradient = gradient.filter(|_| is_usable).unwrap_or_default();
            paths.step(held, version, gradient)
        });
        let all = stream::iter(steps).buffer_unordered(AT_ONCE).try_collect::<()>();
        self.runtime.block_on(all)?;
        self.version += 1;
        Ok(())
    }

    /// Returns the values of a tensor after the last step.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn values(&self, tensor: usize) -> Result<Vec<f64>, ClientError> {
        let held = self.held.get(tensor);
        let held = held.ok_or_else(|| ClientError::Form(format!("there is no tensor {tensor}")))?;
        Ok(if held.keeps {
            held.spec.values_of_state(&held.values)?
        } else {
            held.spec.values_of(&held.values)?
        })
    }

    /// Returns the steps of the job.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of this worker, and the number of workers.
    pub fn share(&self) -> (usize, usize) {
        (self.paths.joining.worker as usize, self.paths.joining.workers.max(1) as usize)
    }

    /// Returns the tensors with their aggregators, as this worker knows them.
    pub fn places(&self) -> impl Iterator<Item = (&Spec, &str)> {
        self.held.iter().map(|held| (&held.spec, held.place.as_str()))
    }

    /// Ends the part of this worker. When all workers have left, the job is over and its memory is free.
    ///
    /// # Errors
    /// The master is not reached.
    pub fn leave(self) -> Result<(), ClientError> {
        let Joining { job, token, worker, patience, .. } = &self.paths.joining;
        let request = wire::LocateRequest { job: job.clone(), token: token.clone(), worker: *worker };
        self.runtime.block_on(async {
            let mut patience = Patience::new(*patience);
            loop {
                match self.paths.master.leave(request.clone()).await {
                    Err(status) if status.code == Code::Unavailable && !patience.is_over() => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    left => return left.map(drop).map_err(ClientError::from),
                }
            }
        })
    }
}
