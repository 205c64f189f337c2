//! Every worker of a plan on this one machine: servers with an enforced speed ([`worker`]), wires with an enforced
//! bandwidth and delay ([`wire`]), devices that compute models for stages ([`device_calls`]), and meters of all.
//!
//! The emulation enforces time, in the time of the run's one clock: a model really computes its records here, and its
//! worker is then held as long as that worker would have needed. With a dilated clock rates, speeds and delays are
//! stretched together, so a machine that is too slow for real time gives the same figures in plan time.
mod alarm;
mod device;
mod device_calls;
mod free_at;
mod hosts;
pub(crate) mod link;
mod remote;
mod sleepers;
mod spec;
mod times;
pub(crate) mod wire;
pub(crate) mod worker;

pub(crate) use hosts::{Emulated, HostEmulation};
pub(crate) use remote::WireEnd;
pub use spec::{
    AssumedTimes, CallTimes, DeviceStageReport, EmulatedDeviceReport, Emulation, EmulationReport, OnDevice,
    PacedStageReport, WireEdgeReport, WireReport, WireSpec, WorkerReport, WorkerSpeed,
};

use crate::clock::Clock;
use crate::executor::CallGate;
use crate::failure::RunError;
use crate::graph::Program;
use crate::link::{AsBytes, Link};
use alarm::Alarm;
use device::Device;
use device_calls::{DeviceCalls, Path};
use link::{EdgeMeter, EmulatedLink};
use sleepers::Sleepers;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_spec::plan::{PlanEdge, Stage};
use wire::Wire;
use worker::{Meter, Server, StagePace};

/// An [`Emulation`] at work in a run.
pub(crate) struct Emulator {
    servers: BTreeMap<String, Arc<Server>>,
    ratios: BTreeMap<String, Vec<f64>>,
    assumed: BTreeMap<String, AssumedTimes>,
    /// Of the instances of each stage.
    meters: std::sync::Mutex<BTreeMap<String, Vec<Arc<Meter>>>>,
    wires: Vec<Arc<Wire>>,
    devices: Vec<Arc<Device>>,
    on_devices: BTreeMap<String, OnDevice>,
    sleepers: Arc<Sleepers>,
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
        let devices = spec.devices.iter().map(|id| Arc::new(Device::new(id)));
        Self::with(spec, |_| true, (wires.collect(), devices.collect()), clock)
    }

    /// Makes the servers of some workers.
    fn with(
        spec: &Emulation,
        is_own: impl Fn(&str) -> bool,
        (wires, devices): (Vec<Arc<Wire>>, Vec<Arc<Device>>),
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
            meters: std::sync::Mutex::default(),
            wires,
            devices,
            on_devices: spec.on_devices.clone(),
            sleepers: Arc::new(Sleepers::new(clock)),
            edges: edges.collect(),
            alarm: Arc::new(Alarm::start(clock).map_err(system)?),
            clock: Arc::clone(clock),
        })
    }

    /// Returns the gate that gives the calls of a stage the speed of its worker, or of its device; none: the speed of this machine.
    pub(crate) fn gate(&self, stage: &Stage) -> Option<Arc<dyn CallGate>> {
        let server = Arc::clone(self.servers.get(&stage.worker)?);
        let (gate, meter): (Arc<dyn CallGate>, _) = match self.on_devices.get(&stage.id) {
            Some(on_device) => {
                let calls = self.device_calls(stage, on_device, server)?;
                let meter = calls.meter();
                (Arc::new(calls), meter)
            }
            None => {
                let ratios = self.ratios.get(&stage.id).cloned().unwrap_or_default();
                let assumed = self.assumed.get(&stage.id).cloned();
                let pace = StagePace::new(server, ratios).with_assumed(assumed);
                let meter = pace.meter();
                (Arc::new(pace), meter)
            }
        };
        let mut meters = self.meters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        meters.entry(stage.id.clone()).or_default().push(meter);
        Some(gate)
    }

    /// Returns the gate of a stage whose model is on a device.
    fn device_calls(&self, stage: &Stage, on_device: &OnDevice, server: Arc<Server>) -> Option<DeviceCalls> {
        let wire = |number: Option<usize>| number.and_then(|number| self.wires.get(number)).map(Arc::clone);
        let path = Path {
            server,
            device: Arc::clone(self.devices.get(on_device.device)?),
            there: wire(on_device.there),
            back: wire(on_device.back),
        };
        Some(DeviceCalls::new(&stage.id, on_device.clone(), path, &self.sleepers, &self.clock))
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
        self.sleepers.close();
        self.alarm.close();
    }

    /// Reports the work of its workers and wires in a run of this program.
    pub(crate) fn report_of(&self, program: &Program) -> EmulationReport {
        let stage = |id: &str| program.plan.stages.iter().find(|stage| stage.id == id);
        self.report(|id| stage(id).map(|stage| stage.worker.clone()))
    }

    fn report(&self, workers: impl Fn(&str) -> Option<String>) -> EmulationReport {
        let meters = self.meters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let reports = self.servers.keys().map(|worker| {
            let own = meters.iter().filter(|(stage, _)| workers(stage).as_ref() == Some(worker));
            let stages: Vec<PacedStageReport> =
                own.map(|(stage, meters)| worker::report(stage, meters)).collect();
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
                tensor_bytes: get(&wire.tensor_bytes),
                busy_seconds: get(&wire.busy) as f64 / 1e9,
                edges: edges.collect(),
            }
        });
        let devices = self.devices.iter().map(|device| device.report());
        EmulationReport { workers: reports.collect(), wires: wires.collect(), devices: devices.collect() }
    }
}
