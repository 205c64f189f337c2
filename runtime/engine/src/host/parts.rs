//! A host's parts of checkpoints, put together on a thread of their own: nothing is encoded or written to disk on the threads
//! of the slots.
use super::{Notices, SlotPlan, Work};
use crate::checkpoint::{StageChange, encode};
use crate::failure::operator_error;
use crate::frame::CLOSED;
use crate::node::sink::{SharedSink, past};
use crate::protocol::{Notice, Part, PartRequest};
use crate::slot::SlotShared;
use crate::store::{EpochLog, StageDelta};
use crossbeam_channel::{Sender, unbounded};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

struct Job {
    request: PartRequest,
    stages: BTreeMap<String, StageDelta>,
    sources: BTreeMap<String, EpochLog>,
}

pub(super) struct Parts {
    shared: Arc<SlotShared>,
    sinks: BTreeMap<String, SharedSink>,
    /// Source stages that are read side by side: a checkpoint needs their places in just its epoch.
    seated: BTreeSet<String>,
    /// To the thread, once there was something to do for it.
    jobs: Option<Sender<Job>>,
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
            jobs: None,
            notices: Arc::clone(notices),
        }
    }

    /// Begins the part that is asked for.
    pub(super) fn begin(&mut self, request: PartRequest) {
        let number = request.number;
        let part = match self.job(request).map(|job| self.send(job)) {
            Some(Ok(())) => return,
            Some(Err(text)) => Err(text),
            None => Ok(None),
        };
        (self.notices)(Notice::Part { number, part });
    }

    fn send(&mut self, job: Job) -> Result<(), String> {
        let jobs = match &self.jobs {
            Some(jobs) => jobs,
            None => {
                let (jobs, waiting) = unbounded::<Job>();
                let (sinks, notices) = (self.sinks.clone(), Arc::clone(&self.notices));
                let work = move || {
                    for job in waiting {
                        let number = job.request.number;
                        notices(Notice::Part { number, part: part(&sinks, job).map(Some) });
                    }
                };
                let thread = std::thread::Builder::new().name("tm-part".into()).spawn(work);
                thread.map_err(|error| format!("no thread for checkpoints: {error}"))?;
                self.jobs.insert(jobs)
            }
        };
        jobs.send(job).map_err(|_| "the thread for checkpoints is gone".to_owned())
    }

    fn job(&self, request: PartRequest) -> Option<Job> {
        let epoch = request.epoch;
        let sources = self.shared.epochs.since(epoch);
        // Sources that are read side by side cut their epochs together, which a new process begins from one place of each.
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
                // Not known up to here: the next checkpoint will do.
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
        let past = past(cell, request.is_complete).map_err(|error| operator_error(id, error).to_string())?;
        pasts.insert(id.clone(), past);
    }
    Ok(Part { stages, sources, sinks: pasts })
}
