//! Every worker of a plan on this one machine: servers with an enforced speed ([`worker`]), wires with an enforced
//! bandwidth and delay ([`wire`]), and meters of what both did.
//!
//! What is enforced is time, in the time of the run's one clock: a model really computes its records here, and its
//! worker is then held as long as that worker would have needed. With a dilated clock rates, speeds and delays are
//! stretched together, so a machine that is too slow for real time gives the same figures in plan time.
mod alarm;
mod hosts;
pub(crate) mod link;
mod remote;
mod times;
pub(crate) mod wire;
pub(crate) mod worker;

pub(crate) use hosts::{Emulated, HostEmulation};
pub(crate) use remote::WireEnd;

use crate::clock::Clock;
use crate::failure::RunError;
use crate::graph::Program;
use crate::link::{Link, Memfd};
use alarm::Alarm;
use link::{EdgeMeter, EmulatedLink};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_spec::plan::{PlanEdge, Stage};
use wire::Wire;
use worker::{Server, StagePace};

/// What is to be emulated; ids are those of the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// Workers with an enforced speed, by id. The models of all others run as they would without emulation.
    pub workers: BTreeMap<String, WorkerSpeed>,
    /// By stage, for calls of 1, 2, ... records: time on the stage's worker per processor time on this machine. A call
    /// with more records has the last one; none: 1.
    pub ratios: BTreeMap<String, Vec<f64>>,
    /// By stage: how long calls should take here. Where they take longer or shorter in the run, because this processor
    /// computes other things too, they do not there. None: they do.
    pub assumed: BTreeMap<String, AssumedTimes>,
    /// What lies between two places.
    pub wires: Vec<WireSpec>,
    /// Position in [`Emulation::wires`] by edge (sending stage, receiving stage, input); all others are not emulated.
    pub edges: BTreeMap<(String, String, u32), usize>,
}

/// How long calls of a stage take, in seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AssumedTimes {
    /// Processor time on this machine of calls with 1, 2, ... records, one right after the other.
    pub here: Vec<f64>,
    /// How much longer a call takes that does not follow upon another of the stage: on the worker, and here.
    pub after_pause: (f64, f64),
}

/// How fast a worker computes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum WorkerSpeed {
    /// In the processor time of a call times the stage's ratio.
    Ratio,
    /// As one that may use so much of a processor, 0 < share <= 1, in each period of 10 ms: what the processor quota of
    /// a control group does. Ratios count as well.
    Quota(f64),
}

/// One direction between two places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSpec {
    /// Sending place.
    pub from: String,
    /// Receiving place.
    pub to: String,
    /// Bits per second; none: not limited.
    pub bandwidth: Option<u64>,
    /// Nanoseconds that every byte is under way.
    pub delay: u64,
}

/// What a worker did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Worker id.
    pub worker: String,
    /// Plan seconds in which it computed.
    pub busy_seconds: f64,
    /// Its stages with models.
    pub stages: Vec<PacedStageReport>,
}

/// What a stage did on its worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacedStageReport {
    /// Stage id.
    pub stage: String,
    /// Calls of its model.
    pub calls: u64,
    /// Records in them.
    pub records: u64,
    /// Plan seconds that the worker was held for it.
    pub busy_seconds: f64,
    /// Seconds of the worker's processor that its calls needed: less than it was held where a quota stopped them.
    pub needed_seconds: f64,
    /// Plan seconds that its calls took in fact.
    pub elapsed_seconds: f64,
    /// Seconds of processor time of its calls on this machine.
    pub processor_seconds: f64,
    /// Calls that took longer here than the worker may take: this machine was too busy, or is too slow.
    pub overruns: u64,
    /// Plan seconds that these calls took, and that they should have taken.
    pub overrun_seconds: (f64, f64),
}

/// What a wire carried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireReport {
    /// Which one.
    #[serde(flatten)]
    pub wire: WireSpec,
    /// Bytes of frames with records, as they travel: header and Arrow message (replays included).
    pub data_bytes: u64,
    /// Bytes of frames that tell progress.
    pub progress_bytes: u64,
    /// Plan seconds in which it sent; 0 where the bandwidth is not limited.
    pub busy_seconds: f64,
    /// Its edges.
    pub edges: Vec<WireEdgeReport>,
}

/// What an edge sent over its wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireEdgeReport {
    /// Sending stage.
    pub from: String,
    /// Receiving stage.
    pub to: String,
    /// Input of the receiver.
    pub input: u32,
    /// Records.
    pub records: u64,
    /// Bytes of the records in memory: what the edge itself counts.
    pub record_bytes: u64,
    /// Bytes of their frames as they travel.
    pub data_bytes: u64,
}

/// What the emulator did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EmulationReport {
    /// Emulated workers, by id.
    pub workers: Vec<WorkerReport>,
    /// Wires in the order in which they were given.
    pub wires: Vec<WireReport>,
}

impl Emulation {
    /// # Errors
    /// A speed or an edge that cannot be.
    fn check(&self) -> Result<(), RunError> {
        for (id, speed) in &self.workers {
            if let WorkerSpeed::Quota(share) = speed
                && !(*share > 0.0 && *share <= 1.0)
            {
                return Err(RunError::Plan(format!("worker '{id}' has {share} of a processor")));
            }
        }
        let is_no_number = |ratio: &f64| !(*ratio >= 0.0 && ratio.is_finite());
        if let Some((stage, _)) = self.ratios.iter().find(|(_, ratios)| ratios.iter().any(is_no_number)) {
            return Err(RunError::Plan(format!("stage '{stage}' has a ratio of speeds that is no number")));
        }
        match self.edges.iter().find(|(_, wire)| **wire >= self.wires.len()) {
            Some((edge, _)) => Err(RunError::Plan(format!("edge {} -> {} has no wire", edge.0, edge.1))),
            None => Ok(()),
        }
    }
}

/// An [`Emulation`] at work in a run.
pub(crate) struct Emulator {
    servers: BTreeMap<String, Arc<Server>>,
    ratios: BTreeMap<String, Vec<f64>>,
    assumed: BTreeMap<String, AssumedTimes>,
    paces: std::sync::Mutex<BTreeMap<String, Vec<Arc<StagePace>>>>,
    wires: Vec<Arc<Wire>>,
    edges: BTreeMap<(String, String, u32), (usize, Arc<EdgeMeter>)>,
    alarm: Arc<Alarm>,
    clock: Arc<dyn Clock>,
}

impl Emulator {
    /// Makes all servers and wires.
    ///
    /// # Errors
    /// When the system has no descriptor or thread left; a speed or an edge that cannot be.
    pub(crate) fn new(spec: &Emulation, clock: &Arc<dyn Clock>) -> Result<Self, RunError> {
        spec.check()?;
        let wires = spec.wires.iter().map(|wire| Arc::new(Wire::new(wire.clone())));
        Self::with(spec, |_| true, wires.collect(), clock)
    }

    /// Makes the servers of some workers.
    fn with(
        spec: &Emulation,
        is_own: impl Fn(&str) -> bool,
        wires: Vec<Arc<Wire>>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, RunError> {
        let system = |error: std::io::Error| RunError::System(format!("no emulation: {error}"));
        let mut servers = BTreeMap::new();
        for (id, speed) in spec.workers.iter().filter(|(id, _)| is_own(id)) {
            servers.insert(id.clone(), Arc::new(Server::new(*speed, clock).map_err(system)?));
        }
        let edges = spec.edges.iter().map(|(edge, wire)| (edge.clone(), (*wire, Arc::default())));
        Ok(Self {
            servers,
            ratios: spec.ratios.clone(),
            assumed: spec.assumed.clone(),
            paces: std::sync::Mutex::default(),
            wires,
            edges: edges.collect(),
            alarm: Arc::new(Alarm::start(clock).map_err(system)?),
            clock: Arc::clone(clock),
        })
    }

    /// How fast the calls of a stage are; none: as fast as they are here.
    pub(crate) fn pace(&self, stage: &Stage) -> Option<Arc<StagePace>> {
        let server = self.servers.get(&stage.worker)?;
        let ratios = self.ratios.get(&stage.id).cloned().unwrap_or_default();
        let assumed = self.assumed.get(&stage.id).cloned();
        let pace = Arc::new(StagePace::new(Arc::clone(server), ratios).with_assumed(assumed));
        let mut paces = self.paces.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        paces.entry(stage.id.clone()).or_default().push(Arc::clone(&pace));
        Some(pace)
    }

    /// What carries an edge; none: what the plan says. Between two places records always travel as bytes.
    pub(crate) fn link(&self, edge: &PlanEdge) -> Option<Arc<dyn Link>> {
        let (wire, meter) = self.edges.get(&(edge.from.clone(), edge.to.clone(), edge.input))?;
        Some(Arc::new(EmulatedLink::new(
            Arc::new(Memfd),
            Arc::clone(&self.wires[*wire]),
            Arc::clone(meter),
            Arc::clone(&self.alarm),
            Arc::clone(&self.clock),
        )))
    }

    /// The receiving end of an edge whose sender is on another host; none: nothing holds up what comes.
    pub(crate) fn wire_end(&self, edge: &PlanEdge) -> Option<WireEnd> {
        let (wire, meter) = self.edges.get(&(edge.from.clone(), edge.to.clone(), edge.input))?;
        Some(WireEnd::new(Arc::clone(&self.wires[*wire]), Arc::clone(meter), Arc::clone(&self.clock)))
    }

    /// The run is over: nobody is held any more.
    pub(crate) fn close(&self) {
        self.servers.values().for_each(|server| server.close());
        self.alarm.close();
    }

    /// What its workers and wires did in a run of this program.
    pub(crate) fn report_of(&self, program: &Program) -> EmulationReport {
        let stage = |id: &str| program.plan.stages.iter().find(|stage| stage.id == id);
        self.report(|id| stage(id).map(|stage| stage.worker.clone()))
    }

    fn report(&self, workers: impl Fn(&str) -> Option<String>) -> EmulationReport {
        let paces = self.paces.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let reports = self.servers.keys().map(|worker| {
            let own = paces.iter().filter(|(stage, _)| workers(stage).as_ref() == Some(worker));
            let stages: Vec<PacedStageReport> =
                own.map(|(stage, paces)| worker::report(stage, paces)).collect();
            let busy_seconds = stages.iter().map(|stage| stage.busy_seconds).sum();
            WorkerReport { worker: worker.clone(), busy_seconds, stages }
        });
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let wires = self.wires.iter().enumerate().map(|(number, wire)| {
            let own = self.edges.iter().filter(|(_, (of, _))| *of == number);
            let edges = own.map(|((from, to, input), (_, meter))| WireEdgeReport {
                from: from.clone(),
                to: to.clone(),
                input: *input,
                records: get(&meter.records),
                record_bytes: get(&meter.record_bytes),
                data_bytes: get(&meter.data_bytes),
            });
            WireReport {
                wire: wire.spec().clone(),
                data_bytes: get(&wire.data_bytes),
                progress_bytes: get(&wire.progress_bytes),
                busy_seconds: get(&wire.busy) as f64 / 1e9,
                edges: edges.collect(),
            }
        });
        EmulationReport { workers: reports.collect(), wires: wires.collect() }
    }
}
