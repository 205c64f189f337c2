//! Setup of a host, from the beginning of a run until it can follow orders.
use super::{Host, HostEvent, Notices, Opening, PreparedModels, Resources, SlotPlan};
use crate::checkpoint::{Past, StagePast, decode};
use crate::clock::{Clock, Nanoseconds};
use crate::cut::Cuts;
use crate::emulation::Emulator;
use crate::failure::RunError;
use crate::faults::Faults;
use crate::frame::CLOSED;
use crate::graph::{Graph, MetricsTable, Program, SlotSpec};
use crate::letters::Letters;
use crate::node::source::{ReaderPool, Schedule};
use crate::protocol::Beginning;
use crate::report::SlotFacts;
use crate::samples::Sampler;
use crate::slot::SlotShared;
use crate::store::{EpochLogs, SnapshotStore};
use crate::traces::Tracer;
use crossbeam_channel::{Receiver, Sender};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// The parts of a host.
pub(crate) struct Setup<'a> {
    pub(crate) program: &'a Program,
    pub(crate) graph: &'a Graph,
    pub(crate) metrics: &'a MetricsTable,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) letters: &'a Arc<Letters>,
    pub(crate) epochs: &'a Arc<EpochLogs>,
    pub(crate) sampler: Option<&'a Arc<Sampler>>,
    pub(crate) tracer: Option<&'a Arc<Tracer>>,
    pub(crate) emulator: Option<&'a Arc<Emulator>>,
    pub(crate) faults: Option<&'a Arc<dyn Faults>>,
    /// Whether to keep the whole epoch log, for a later replay.
    pub(crate) keep_epochs: bool,
    /// The run keeps checkpoints.
    pub(crate) is_durable: bool,
    /// Models that are loaded already.
    pub(crate) prepared: Option<&'a PreparedModels>,
    /// State of a host that keeps more while its edges are cut.
    pub(crate) cuts: Option<Arc<Cuts>>,
}

impl Setup<'_> {
    /// Opens the resources of the slots that `is_own` selects. Returns the host, and its slots for reports.
    pub(crate) fn host(
        &self,
        mut beginning: Beginning,
        is_own: impl Fn(&SlotSpec) -> bool,
        events: (Sender<HostEvent>, Receiver<HostEvent>),
        notices: Notices,
    ) -> Result<(Host, Vec<SlotFacts>), RunError> {
        let past = beginning.past.take();
        let resources = Opening {
            program: self.program,
            graph: self.graph,
            metrics: self.metrics,
            clock: self.clock,
            emulator: self.emulator.map(AsRef::as_ref),
            faults: self.faults,
            replay: beginning.replay.as_ref(),
            past: past.as_ref(),
            rows_before: &beginning.rows_before,
            is_durable: self.is_durable,
            prepared: self.prepared,
        };
        let resources = resources.open(is_own)?;
        let slots = self.slot_facts(&resources);
        let shared = Arc::new(self.shared(&beginning, past)?);
        let metrics = self.metrics.sinks.clone();
        let host = Host::new(resources, metrics, shared, self.emulator.cloned(), events, notices);
        Ok((host.with_model_copies(beginning.model_copies), slots))
    }

    fn slot_facts(&self, resources: &Resources) -> Vec<SlotFacts> {
        let processor = |plan: &Option<SlotPlan>| plan.as_ref().map(|plan| Arc::clone(&plan.processor));
        let slots = self.graph.slots.iter().zip(&resources.slots);
        slots.map(|(slot, plan)| SlotFacts::of(slot, processor(plan).unwrap_or_default())).collect()
    }

    fn shared(&self, beginning: &Beginning, past: Option<Past>) -> Result<SlotShared, RunError> {
        let snapshots = SnapshotStore::default();
        let kept = match beginning.keeps_for_checkpoints {
            true => past.as_ref().map_or(0, |past| past.epoch),
            false => CLOSED,
        };
        if self.is_durable {
            let epoch = past.as_ref().map_or(0, |past| past.epoch);
            snapshots.keep_from(epoch);
            self.epochs.keep_from(epoch);
        }
        if let Some(past) = past {
            for (stage, StagePast { snapshot: (epoch, state), calls }) in past.stages {
                let calls: Result<Vec<_>, String> = calls.iter().map(|calls| decode(calls)).collect();
                let calls = calls.map_err(|text| RunError::System(format!("stage '{stage}': {text}")))?;
                snapshots.begin_with(&stage, epoch, state, calls.concat());
            }
            self.epochs.begin_with(past.sources);
            self.letters.begin_with(&past.letters);
        }
        Ok(SlotShared {
            clock: Arc::clone(self.clock),
            begins: AtomicI64::new(beginning.started - beginning.elapsed_before),
            schedule: Schedule {
                rate: None,
                start: beginning.started - beginning.elapsed_before,
                tick: self.program.plan.tick.0 as Nanoseconds,
                base: None,
                records: beginning.records,
                duration: beginning.duration,
            },
            checkpoint_every: self.program.plan.checkpoint_every.max(1),
            snapshots: Arc::new(snapshots),
            epochs: Arc::clone(self.epochs),
            letters: Arc::clone(self.letters),
            sampler: self.sampler.cloned(),
            tracer: self.tracer.cloned(),
            stop: Arc::new(AtomicBool::new(false)),
            readers: Arc::new(ReaderPool::new()),
            keep_epochs: self.keep_epochs,
            recoverable: beginning.recoverable,
            faults: self.faults.cloned(),
            kept: Arc::new(AtomicU64::new(kept)),
            cuts: self.cuts.clone(),
        })
    }
}
