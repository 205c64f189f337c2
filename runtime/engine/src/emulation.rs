//! Every worker of a plan on this one machine: servers with an enforced speed ([`worker`]), wires with an enforced
//! bandwidth and delay ([`wire`]), and meters of both.
//!
//! The emulation enforces time, in the time of the run's one clock: a model really computes its records here, and its
//! worker is then held as long as that worker would have needed. With a dilated clock rates, speeds and delays are
//! stretched together, so a machine that is too slow for real time gives the same figures in plan time.
mod alarm;
mod hosts;
pub(crate) mod link;
mod remote;
mod spec;
mod times;
pub(crate) mod wire;
pub(crate) mod worker;

pub(crate) use hosts::{Emulated, HostEmulation};
pub(crate) use remote::WireEnd;
pub use spec::{
    AssumedTimes, Emulation, EmulationReport, PacedStageReport, WireEdgeReport, WireReport, WireSpec,
    WorkerReport, WorkerSpeed,
};

use crate::clock::Clock;
use crate::executor::CallGate;
use crate::failure::RunError;
use crate::graph::Program;
use crate::link::{AsBytes, Link};
use alarm::Alarm;
use link::{EdgeMeter, EmulatedLink};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_spec::plan::{PlanEdge, Stage};
use wire::Wire;
use worker::{Server, StagePace};

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
    /// When the system has no descriptor or thread left; when a speed or an edge is invalid.
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

    /// Returns the gate that gives the calls of a stage the speed of its worker; none: the speed of this machine.
    pub(crate) fn gate(&self, stage: &Stage) -> Option<Arc<dyn CallGate>> {
        let server = self.servers.get(&stage.worker)?;
        let ratios = self.ratios.get(&stage.id).cloned().unwrap_or_default();
        let assumed = self.assumed.get(&stage.id).cloned();
        let pace = Arc::new(StagePace::new(Arc::clone(server), ratios).with_assumed(assumed));
        let mut paces = self.paces.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        paces.entry(stage.id.clone()).or_default().push(Arc::clone(&pace));
        Some(pace)
    }

    /// Returns the emulated link of an edge; none: the plan decides. Between two places records always travel as
    /// bytes.
    pub(crate) fn link(&self, edge: &PlanEdge) -> Option<Arc<dyn Link>> {
        let (wire, meter) = self.edges.get(&(edge.from.clone(), edge.to.clone(), edge.input))?;
        Some(Arc::new(EmulatedLink::new(
            Arc::new(AsBytes),
            Arc::clone(&self.wires[*wire]),
            Arc::clone(meter),
            Arc::clone(&self.alarm),
            Arc::clone(&self.clock),
        )))
    }

    /// Returns the receiving end of an edge whose sender is on another host; none: frames are not delayed.
    pub(crate) fn wire_end(&self, edge: &PlanEdge) -> Option<WireEnd> {
        let (wire, meter) = self.edges.get(&(edge.from.clone(), edge.to.clone(), edge.input))?;
        Some(WireEnd::new(Arc::clone(&self.wires[*wire]), Arc::clone(meter), Arc::clone(&self.clock)))
    }

    /// Releases all held workers when the run is over.
    pub(crate) fn close(&self) {
        self.servers.values().for_each(|server| server.close());
        self.alarm.close();
    }

    /// Reports the work of its workers and wires in a run of this program.
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
