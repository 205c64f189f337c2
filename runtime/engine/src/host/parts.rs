//! A host's parts of checkpoints, assembled on a thread of their own: nothing is encoded or written to disk on the threads
//! of the slots.
use super::{Notices, SlotPlan, Work};
use crate::checkpoint::{StageChange, encode};
use crate::failure::operator_error;
use crate::frame::CLOSED;
use crate::node::sink::{SharedSink, past};
use crate::protocol::{Notice, Part, PartRequest};
use crate::slot::SlotShared;
use crate::store::{EpochLog, StageDelta};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;

struct Job {
    request: PartRequest,
    stages: BTreeMap<String, StageDelta>,
    sources: BTreeMap<String, EpochLog>,
}

/// Assembles parts, one after the other.
struct Maker {
    jobs: Sender<Job>,
    /// Jobs not started yet.
    waiting: Receiver<Job>,
    thread: JoinHandle<()>,
}

pub(super) struct Parts {
    shared: Arc<SlotShared>,
    sinks: BTreeMap<String, SharedSink>,
    /// Source stages that are read together: a checkpoint needs their positions in exactly its epoch.
    seated: BTreeSet<String>,
    /// The thread, started with the first job.
    maker: Option<Maker>,
    notices: Notices,
}

impl Parts {
    pub(super) fn new(
        shared: &Arc<SlotShared>,
        slots: &[Option<SlotPlan>],
        sinks: &BTreeMap<String, SharedSink>,
        notices: &Notices,
    ) -> Self {
        let instances = slots.iter().flatten().flat_map(|slot| &slot.instances);
        let seated = instances.filter(|instance| matches!(instance.work, Work::Source { seat: Some(_), .. }));
        Self {
            shared: Arc::clone(shared),
            sinks: sinks.clone(),
            seated: seated.map(|instance| instance.context.instance.clone()).collect(),
            maker: None,
            notices: Arc::clone(notices),
        }
    }

    /// Starts the requested part.
    pub(super) fn begin(&mut self, request: PartRequest) {
        let number = request.number;
        let part = match self.job(request).map(|job| self.send(job)) {
            Some(Ok(())) => return,
            Some(Err(text)) => Err(text),
            None => Ok(None),
        };
        (self.notices)(Notice::Part { number, part });
    }

    fn send(&mut self, mut job: Job) -> Result<(), String> {
        if self.maker.is_none() {
            let (jobs, waiting) = bounded::<Job>(1);
            let (sinks, notices, taken) = (self.sinks.clone(), Arc::clone(&self.notices), waiting.clone());
            let work = move || {
                for job in taken {
                    let number = job.request.number;
                    notices(Notice::Part { number, part: part(&sinks, job).map(Some) });
                }
            };
            let thread = std::thread::Builder::new().name("tm-part".into()).spawn(work);
            let thread = thread.map_err(|error| format!("no thread for checkpoints: {error}"))?;
            self.maker = Some(Maker { jobs, waiting, thread });
        }
        let Some(maker) = &self.maker else { return Ok(()) };
        if maker.thread.is_finished() {
            return Err("the thread for checkpoints is gone".to_owned());
        }
        // The coordinator requests one at a time: a waiting one belongs to an abandoned checkpoint.
        while let Err(TrySendError::Full(again)) = maker.jobs.try_send(job) {
            let _ = maker.waiting.try_recv();
            job = again;
        }
        Ok(())
    }

    fn job(&self, request: PartRequest) -> Option<Job> {
        let epoch = request.epoch;
        let sources = self.shared.epochs.since(epoch);
        // Sources that are read together cut their epochs together; a new process starts from one position of each.
        let is_placed = |log: &EpochLog| {
            log.cuts.contains_key(&epoch) || log.end.is_some_and(|end| end.epoch < epoch) || epoch == CLOSED
        };
        if epoch > 0 && !self.seated.iter().all(|source| sources.get(source).is_some_and(is_placed)) {
            return None;
        }
        let mut stages = BTreeMap::new();
        if epoch != CLOSED {
            for stage in self.shared.snapshots.stages() {
                let base = request.snapshots.get(&stage).copied();
                // Unknown up to here: the next checkpoint will have it.
                let delta = self.shared.snapshots.since(&stage, base, request.from, epoch)?;
                stages.insert(stage, delta);
            }
        }
        Some(Job { request, stages, sources })
    }
}

fn part(sinks: &BTreeMap<String, SharedSink>, job: Job) -> Result<Part, String> {
    let Job { request, stages: deltas, sources } = job;
    let mut stages = BTreeMap::new();
    for (stage, StageDelta { snapshot, calls, from }) in deltas {
        let calls = encode(&calls)?;
        stages.insert(stage, StageChange { snapshot, calls, from, upto: request.epoch });
    }
    let mut pasts = BTreeMap::new();
    for (id, cell) in sinks {
        let epochs = (request.from, request.epoch);
        let past =
            past(cell, epochs, request.is_complete).map_err(|error| operator_error(id, error).to_string())?;
        pasts.insert(id.clone(), past);
    }
    Ok(Part { stages, sources, sinks: pasts })
}
