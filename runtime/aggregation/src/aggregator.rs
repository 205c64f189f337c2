//! The server of tensors.
//!
//! A tensor is *expected* (its state has not come), *active*, *leaving* (it moves after its next step) or *moved* (the state is kept for the case
//! that the new aggregator dies before all workers have come to it).
use crate::fault::reach;
use crate::naming::{method, service_of, state};
use crate::tensor::{Spec, Tensor};
use crate::wire::{self, Nothing, Outcome, Phase as WirePhase};
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tidemill_rpc::{Bytes, Channel, Code, Net, Request, Response, Status};
use tokio::sync::watch;

/// How long a push waits for a state that has not come, before its worker is asked for it.
const PATIENCE: Duration = Duration::from_millis(200);
/// Pause before a state that was not taken is sent again.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn invalid(error: &dyn std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Expected,
    Active { leaving: Option<String> },
    Moved { to: String, copied: bool },
}

#[derive(Debug)]
struct Held {
    tensor: Tensor,
    phase: Phase,
    /// The version with which it came.
    arrived: Option<u64>,
    /// Another aggregator sent it.
    came_by_move: bool,
    is_copying: bool,
    steps: u64,
    work: Duration,
    updated: Duration,
}

/// A tensor, and who waits for it.
#[derive(Debug)]
struct Slot {
    held: Mutex<Held>,
    changes: watch::Sender<u64>,
    waiting: AtomicUsize,
}

impl Slot {
    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Counts a push until its reply is made.
struct Waiting<'a>(&'a Slot);

impl<'a> Waiting<'a> {
    fn new(slot: &'a Slot) -> Self {
        slot.waiting.fetch_add(1, Ordering::AcqRel);
        Self(slot)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed();
        }
    }
}

#[derive(Debug)]
struct Admitted {
    digest: Vec<u8>,
    workers: u32,
    limit: u64,
    used: u64,
}

/// A server of tensors.
#[derive(Debug, Clone)]
pub struct Aggregator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    secret: String,
    net: Net,
    jobs: Mutex<BTreeMap<String, Admitted>>,
    slots: Mutex<BTreeMap<(String, u32), Arc<Slot>>>,
}

/// The answer to a push, or its next wait.
enum Next {
    Reply(wire::PushReply),
    /// The step is not complete.
    ForOthers,
    /// The state has not come.
    ForState,
}

impl Aggregator {
    /// Creates one without tensors.
    pub fn new(net: Net, name: &str, secret: &str) -> Self {
        let (name, secret) = (name.to_owned(), secret.to_owned());
        Self(Arc::new(Inner { name, secret, net, jobs: Mutex::default(), slots: Mutex::default() }))
    }

    /// Serves until the result is dropped.
    ///
    /// # Errors
    /// The transport service refuses it.
    pub async fn serve(&self) -> Result<tidemill_rpc::Serving, Status> {
        let named = crate::naming::Named::new(wire::AggregatorServer::new(self.clone()), &self.0.name)?;
        self.0.net.serve(named).await
    }

    fn is_master(&self, secret: &str) -> Result<(), Status> {
        if secret == self.0.secret {
            return Ok(());
        }
        Err(Status::new(Code::PermissionDenied, "only the master of this aggregator may do that"))
    }

    /// The tensor, if it is here and the token is that of its job or the secret of the service.
    fn slot(&self, job: &str, token: &str, tensor: u32) -> Result<Option<Arc<Slot>>, Status> {
        match locked(&self.0.jobs).get(job) {
            None => return Ok(None),
            Some(admitted) if token != self.0.secret && admitted.digest != digest(token) => {
                let text = format!("the token is not that of job {job}");
                return Err(Status::new(Code::PermissionDenied, text));
            }
            Some(_) => {}
        }
        Ok(locked(&self.0.slots).get(&(job.to_owned(), tensor)).cloned())
    }

    fn look(
        &self,
        slot: &Arc<Slot>,
        push: &wire::PushRequest,
        gradient: &mut Option<Bytes>,
    ) -> Result<Next, Status> {
        let mut held = locked(&slot.held);
        let moved_to = match &held.phase {
            Phase::Expected => return Ok(Next::ForState),
            Phase::Active { .. } => String::new(),
            Phase::Moved { to, .. } => to.clone(),
        };
        let version = held.tensor.version();
        let reply = |outcome, values: Bytes| {
            Ok(Next::Reply(wire::PushReply { outcome, version, values, moved_to: moved_to.clone() }))
        };
        if push.version + 1 == version {
            let values = if push.keeps { held.tensor.state().into() } else { held.tensor.values() };
            return reply(Outcome::DONE, values);
        }
        if !moved_to.is_empty() {
            return reply(Outcome::ELSEWHERE, Bytes::new());
        }
        if let Some(error) = held.tensor.divergence() {
            return Err(Status::new(Code::Aborted, error.to_string()));
        }
        if push.version == version + 1 {
            return reply(Outcome::BEHIND, Bytes::new());
        }
        if push.version > version {
            return Ok(Next::ForState);
        }
        if push.version < version {
            let text = format!(
                "worker {} is at step {} of tensor {}, and the others are at {version}",
                push.worker, push.version, push.tensor
            );
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if held.tensor.has(push.worker) {
            *gradient = None;
            return Ok(Next::ForOthers);
        }
        let Some(gradient) = gradient.take() else { return reply(Outcome::AGAIN, Bytes::new()) };
        let began = clock(ClockId::ThreadCPUTime);
        let added = held.tensor.add(push.worker, (!push.unusable).then_some(&*gradient));
        held.work += clock(ClockId::ThreadCPUTime).saturating_sub(began);
        drop(gradient);
        match added {
            Ok(false) => return Ok(Next::ForOthers),
            Ok(true) => {}
            Err(error @ crate::tensor::TensorError::Diverged { .. }) => {
                slot.changed();
                return Err(Status::new(Code::Aborted, error.to_string()));
            }
            Err(error) => return Err(invalid(&error)),
        }
        held.steps += 1;
        held.updated = clock(ClockId::Monotonic);
        if held.came_by_move && held.arrived.is_some_and(|arrived| arrived + 1 == held.tensor.version()) {
            reach(&self.0.name, "advanced");
        }
        if let Phase::Active { leaving: Some(to) } = &held.phase {
            held.phase = Phase::Moved { to: to.clone(), copied: false };
            self.copy(slot, &mut held, push.job.clone(), push.tensor);
        }
        drop(held);
        slot.changed();
        self.look(slot, push, &mut None)
    }

    /// Sends the state of a tensor that has moved, until the other aggregator has it or the move is taken back.
    fn copy(&self, slot: &Arc<Slot>, held: &mut Held, job: String, tensor: u32) {
        if std::mem::replace(&mut held.is_copying, true) {
            return;
        }
        let (inner, slot) = (Arc::clone(&self.0), Arc::downgrade(slot));
        tokio::spawn(async move {
            replied(&slot).await;
            reach(&inner.name, "replied");
            let mut channel = None;
            loop {
                let Some(slot) = slot.upgrade() else { return };
                let (to, version, bytes) = {
                    let mut held = locked(&slot.held);
                    let Phase::Moved { to, copied: false } = held.phase.clone() else {
                        held.is_copying = false;
                        return;
                    };
                    (to, held.tensor.version(), held.tensor.state())
                };
                let message = state(&job, &inner.secret, tensor, version, bytes.into());
                match put(&inner.net, &to, &mut channel, message).await {
                    Ok(()) => {
                        reach(&inner.name, "copied");
                        let mut held = locked(&slot.held);
                        held.is_copying = false;
                        if let Phase::Moved { copied, .. } = &mut held.phase {
                            *copied = true;
                        }
                        return;
                    }
                    Err(status) => tracing::debug!("{to} has not taken tensor {tensor} of {job}: {status}"),
                }
                drop(slot);
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    fn listed(&self, (job, tensor): &(String, u32), slot: &Slot) -> wire::Held {
        let workers = locked(&self.0.jobs).get(job).map_or(1, |admitted| admitted.workers);
        let held = locked(&slot.held);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        wire::Held {
            job: job.clone(),
            tensor: *tensor,
            phase: match &held.phase {
                Phase::Expected => WirePhase::EXPECTED,
                Phase::Active { leaving: None } => WirePhase::ACTIVE,
                Phase::Active { leaving: Some(_) } => WirePhase::LEAVING,
                Phase::Moved { .. } => WirePhase::MOVED,
            },
            version: held.tensor.version(),
            arrived: held.arrived.unwrap_or(0),
            copied: matches!(held.phase, Phase::Moved { copied: true, .. }),
            bytes: held.tensor.spec().memory(workers),
            steps: held.steps,
            work_ns: nanoseconds(held.work),
            updated_ns: nanoseconds(held.updated),
            missing: held.tensor.missing(),
        }
    }
}

/// Waits until the replies of the step are made: they have priority over the state.
async fn replied(slot: &Weak<Slot>) {
    let Some(slot) = slot.upgrade() else { return };
    let mut changes = slot.changes.subscribe();
    while slot.waiting.load(Ordering::Acquire) > 0 {
        if changes.changed().await.is_err() {
            return;
        }
    }
    drop(slot);
    // The replies are made, and the other tasks send them.
    tokio::task::yield_now().await;
}

async fn put(net: &Net, to: &str, channel: &mut Option<Channel>, message: wire::State) -> Result<(), Status> {
    let open = match channel.take() {
        Some(open) => open,
        None => net.discover(&service_of(to)).await?.0,
    };
    open.unary::<wire::State, wire::PutReply>(method::PUT, Request::new(message)).await?;
    *channel = Some(open);
    Ok(())
}

impl wire::Aggregator for Aggregator {
    async fn push(&self, request: Request<wire::PushRequest>) -> Result<Response<wire::PushReply>, Status> {
        let mut push = request.into_inner();
        let Some(slot) = self.slot(&push.job, &push.token, push.tensor)? else {
            return Ok(wire::PushReply { outcome: Outcome::ELSEWHERE, ..Default::default() }.into());
        };
        let _waiting = Waiting::new(&slot);
        let mut gradient = Some(std::mem::take(&mut push.gradient));
        let mut changes = slot.changes.subscribe();
        loop {
            changes.mark_unchanged();
            match self.look(&slot, &push, &mut gradient)? {
                Next::Reply(reply) => return Ok(reply.into()),
                Next::ForOthers => {
                    if changes.changed().await.is_err() {
                        return Err(Status::unavailable("the aggregator ends"));
                    }
                }
                Next::ForState => {
                    if tokio::time::timeout(PATIENCE, changes.changed()).await.is_err() {
                        let reply = wire::PushReply { outcome: Outcome::AWAITING, ..Default::default() };
                        return Ok(reply.into());
                    }
                }
            }
        }
    }

    async fn pull(&self, request: Request<wire::PullRequest>) -> Result<Response<wire::State>, Status> {
        let pull = request.into_inner();
        let nothing = |outcome, moved_to: &str| {
            let moved_to = moved_to.to_owned();
            Ok(wire::State { outcome, moved_to, ..Default::default() }.into())
        };
        let Some(slot) = self.slot(&pull.job, &pull.token, pull.tensor)? else {
            return nothing(Outcome::ELSEWHERE, "");
        };
        let held = locked(&slot.held);
        match &held.phase {
            Phase::Expected => return nothing(Outcome::AWAITING, ""),
            Phase::Moved { to, .. } => return nothing(Outcome::ELSEWHERE, to),
            Phase::Active { .. } => {}
        }
        let (version, bytes) = match held.tensor.values_before() {
            _ if pull.whole => (held.tensor.version(), held.tensor.state().into()),
            Some(before) if pull.before => (held.tensor.version() - 1, before),
            _ => (held.tensor.version(), held.tensor.values()),
        };
        Ok(state(&pull.job, "", pull.tensor, version, bytes).into())
    }

    async fn put(&self, request: Request<wire::State>) -> Result<Response<wire::PutReply>, Status> {
        let put = request.into_inner();
        let is_copy = put.token == self.0.secret;
        let slot = self.slot(&put.job, &put.token, put.tensor)?;
        let slot = slot.ok_or_else(|| {
            let text = format!("{} does not expect tensor {} of job {}", self.0.name, put.tensor, put.job);
            Status::new(Code::NotFound, text)
        })?;
        if crc32c::crc32c(&put.state) != put.crc32c {
            return Err(Status::new(Code::DataLoss, "the state of the tensor has changed on its way"));
        }
        let mut held = locked(&slot.held);
        let is_newer = match held.phase {
            Phase::Expected => true,
            Phase::Active { .. } => put.version > held.tensor.version(),
            Phase::Moved { .. } => false,
        };
        if is_newer {
            if held.phase == Phase::Expected {
                held.phase = Phase::Active { leaving: None };
            }
            held.tensor.put(put.version, &put.state).map_err(|error| invalid(&error))?;
            (held.arrived, held.came_by_move) = (Some(put.version), is_copy);
            if is_copy {
                reach(&self.0.name, "received");
            }
        }
        let version = held.tensor.version();
        drop(held);
        slot.changed();
        Ok(wire::PutReply { version }.into())
    }

    async fn expect(&self, request: Request<wire::ExpectRequest>) -> Result<Response<Nothing>, Status> {
        let expect = request.into_inner();
        self.is_master(&expect.secret)?;
        let mut jobs = locked(&self.0.jobs);
        let is_known = jobs.contains_key(&expect.job);
        let admitted = jobs.entry(expect.job.clone()).or_insert_with(|| Admitted {
            digest: expect.token_digest.to_vec(),
            workers: expect.workers,
            limit: expect.limit,
            used: 0,
        });
        for expected in expect.tensors {
            let spec: Spec = serde_json::from_str(&expected.spec).map_err(|error| invalid(&error))?;
            spec.check().map_err(|error| invalid(&error))?;
            let mut slots = locked(&self.0.slots);
            let key = (expect.job.clone(), expected.tensor);
            if let Some(slot) = slots.get(&key) {
                let mut held = locked(&slot.held);
                if held.phase != Phase::Expected {
                    // It stays here, or comes back.
                    held.phase = Phase::Active { leaving: None };
                }
                drop(held);
                slot.changed();
                continue;
            }
            let needed = spec.memory(expect.workers);
            if admitted.used.saturating_add(needed) > admitted.limit {
                let text = format!(
                    "job {} may use {} bytes on {}, and tensor {} needs {needed} more than the {} in use",
                    expect.job, admitted.limit, self.0.name, spec.name, admitted.used
                );
                return Err(Status::new(Code::ResourceExhausted, text));
            }
            admitted.used += needed;
            let held = Held {
                tensor: Tensor::new(spec, expect.workers),
                phase: Phase::Expected,
                arrived: None,
                came_by_move: false,
                is_copying: false,
                steps: 0,
                work: Duration::ZERO,
                updated: Duration::ZERO,
            };
            let slot =
                Slot { held: Mutex::new(held), changes: watch::Sender::new(0), waiting: AtomicUsize::new(0) };
            slots.insert(key, Arc::new(slot));
        }
        drop(jobs);
        if is_known {
            reach(&self.0.name, "expected");
        }
        Ok(Nothing {}.into())
    }

    async fn migrate(&self, request: Request<wire::MigrateRequest>) -> Result<Response<Nothing>, Status> {
        let migrate = request.into_inner();
        self.is_master(&migrate.secret)?;
        let slot = self.slot(&migrate.job, &migrate.secret, migrate.tensor)?;
        let slot = slot.ok_or_else(|| Status::new(Code::NotFound, "there is no such tensor"))?;
        let mut held = locked(&slot.held);
        match &mut held.phase {
            Phase::Active { leaving } if !migrate.now => {
                *leaving = Some(migrate.to);
                reach(&self.0.name, "leaving");
            }
            Phase::Active { .. } => {
                held.tensor.drop_gradients();
                held.phase = Phase::Moved { to: migrate.to, copied: false };
                self.copy(&slot, &mut held, migrate.job, migrate.tensor);
            }
            Phase::Moved { to, copied: false } if *to == migrate.to => {
                self.copy(&slot, &mut held, migrate.job, migrate.tensor);
            }
            Phase::Moved { to, .. } if *to == migrate.to => {}
            Phase::Expected | Phase::Moved { .. } => {
                return Err(Status::new(Code::FailedPrecondition, "the tensor is not here now"));
            }
        }
        drop(held);
        slot.changed();
        Ok(Nothing {}.into())
    }

    async fn forget(&self, request: Request<wire::ForgetRequest>) -> Result<Response<Nothing>, Status> {
        let forget = request.into_inner();
        self.is_master(&forget.secret)?;
        let (mut jobs, mut slots) = (locked(&self.0.jobs), locked(&self.0.slots));
        for tensor in forget.tensors {
            let Some(slot) = slots.remove(&(forget.job.clone(), tensor)) else { continue };
            if let Some(admitted) = jobs.get_mut(&forget.job) {
                let freed = locked(&slot.held).tensor.spec().memory(admitted.workers);
                admitted.used = admitted.used.saturating_sub(freed);
            }
            // Pushes that wait look again, and ask the master.
            locked(&slot.held).phase = Phase::Expected;
            slot.changed();
        }
        if !slots.keys().any(|(job, _)| *job == forget.job) {
            jobs.remove(&forget.job);
        }
        reach(&self.0.name, "forgotten");
        Ok(Nothing {}.into())
    }

    async fn list(&self, request: Request<wire::ListRequest>) -> Result<Response<wire::Listing>, Status> {
        self.is_master(&request.message.secret)?;
        let slots = locked(&self.0.slots).clone();
        let tensors = slots.iter().map(|(key, slot)| self.listed(key, slot)).collect();
        Ok(wire::Listing { tensors }.into())
    }
}
