//! Emulation with one process per worker: each has the server of its worker and the data that its worker receives over
//! wires, which all of them share, and so they share the devices; the coordinator combines their reports.
use super::device::Device;
use super::times::SharedTimes;
use super::wire::Wire;
use super::{
    DeviceStageReport, EmulatedDeviceReport, Emulation, EmulationReport, Emulator, PacedStageReport,
    WireReport, WorkerReport,
};
use crate::clock::Clock;
use crate::failure::RunError;
use crate::graph::Program;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The emulation's data for a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostEmulation {
    spec: Emulation,
    /// Path of the shared times of the wires and devices.
    times: PathBuf,
}

impl HostEmulation {
    /// Creates the emulator of a worker's process.
    ///
    /// # Errors
    /// The process that made the times is gone or on another machine; no descriptor or thread is left.
    pub(crate) fn emulator(&self, worker: &str, clock: &Arc<dyn Clock>) -> Result<Emulator, RunError> {
        let times = SharedTimes::open(&self.times).map_err(|error| {
            let times = self.times.display();
            RunError::System(format!(
                "the emulated wires and devices cannot be shared ({times}: {error}): all workers of a run that is emulated must be on the \
                 machine of its coordinator, as processes of the same user"
            ))
        })?;
        let times = Arc::new(times);
        let wires = self.spec.wires.iter().enumerate();
        let wires = wires.map(|(number, wire)| Arc::new(Wire::shared(wire.clone(), &times, number)));
        let devices = self.spec.devices.iter().zip(self.spec.wires.len()..);
        let devices = devices.map(|(id, number)| Arc::new(Device::shared(id, &times, number)));
        Emulator::with(&self.spec, |other| other == worker, (wires.collect(), devices.collect()), clock)
    }
}

/// The emulation of a run.
#[expect(clippy::large_enum_variant, reason = "a run has one")]
pub(crate) enum Emulated {
    /// In this process.
    Here(Arc<Emulator>),
    /// One process per worker.
    ByHosts(EmulatedByHosts),
}

/// The coordinator's side.
pub(crate) struct EmulatedByHosts {
    spec: Emulation,
    times: SharedTimes,
    /// Report of each host, by number.
    reports: Mutex<BTreeMap<usize, EmulationReport>>,
}

impl Emulated {
    /// Creates the emulation of a run in this process, or of one with hosts.
    ///
    /// # Errors
    /// See [`Emulator::new`].
    pub(crate) fn new(spec: Emulation, clock: &Arc<dyn Clock>, has_hosts: bool) -> Result<Self, RunError> {
        if !has_hosts {
            return Ok(Self::Here(Arc::new(Emulator::new(&spec, clock)?)));
        }
        spec.check()?;
        let times = SharedTimes::create(spec.wires.len() + spec.devices.len())
            .map_err(|error| RunError::System(format!("no emulation: {error}")))?;
        Ok(Self::ByHosts(EmulatedByHosts { spec, times, reports: Mutex::default() }))
    }

    /// The emulator of this process.
    pub(crate) fn here(&self) -> Option<&Arc<Emulator>> {
        match self {
            Self::Here(emulator) => Some(emulator),
            Self::ByHosts(_) => None,
        }
    }

    /// Returns the data for hosts.
    pub(crate) fn of_hosts(&self) -> Option<HostEmulation> {
        match self {
            Self::Here(_) => None,
            Self::ByHosts(EmulatedByHosts { spec, times, .. }) => {
                Some(HostEmulation { spec: spec.clone(), times: times.path() })
            }
        }
    }

    /// Records a host's report.
    pub(crate) fn show(&self, host: usize, report: EmulationReport) {
        if let Self::ByHosts(EmulatedByHosts { reports, .. }) = self {
            reports.lock().unwrap_or_else(PoisonError::into_inner).insert(host, report);
        }
    }

    /// Returns the combined report.
    pub(crate) fn report(&self, program: &Program) -> EmulationReport {
        match self {
            Self::Here(emulator) => emulator.report_of(program),
            Self::ByHosts(EmulatedByHosts { spec, reports, .. }) => {
                let mut all = EmulationReport::nothing(spec);
                let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
                reports.values().for_each(|report| all.add(report));
                all
            }
        }
    }
}

impl EmulationReport {
    /// Creates an empty report of an emulation.
    fn nothing(spec: &Emulation) -> Self {
        let worker = |id: &String| WorkerReport { worker: id.clone(), busy_seconds: 0.0, stages: Vec::new() };
        let wire = |wire: &super::WireSpec| WireReport {
            wire: wire.clone(),
            data_bytes: 0,
            progress_bytes: 0,
            tensor_bytes: 0,
            busy_seconds: 0.0,
            edges: Vec::new(),
        };
        let device =
            |id: &String| EmulatedDeviceReport { device: id.clone(), busy_seconds: 0.0, stages: Vec::new() };
        Self {
            workers: spec.workers.keys().map(worker).collect(),
            wires: spec.wires.iter().map(wire).collect(),
            devices: spec.devices.iter().map(device).collect(),
        }
    }

    /// Adds another process's report of this emulation.
    pub(crate) fn add(&mut self, more: &Self) {
        for worker in &more.workers {
            match self.workers.iter_mut().find(|own| own.worker == worker.worker) {
                Some(own) => own.add(worker),
                None => self.workers.push(worker.clone()),
            }
        }
        for (number, wire) in more.wires.iter().enumerate() {
            match self.wires.get_mut(number) {
                Some(own) => own.add(wire),
                None => self.wires.push(wire.clone()),
            }
        }
        for device in &more.devices {
            match self.devices.iter_mut().find(|own| own.device == device.device) {
                Some(own) => own.add(device),
                None => self.devices.push(device.clone()),
            }
        }
    }
}

impl EmulatedDeviceReport {
    fn add(&mut self, more: &Self) {
        self.busy_seconds += more.busy_seconds;
        for stage in &more.stages {
            match self.stages.iter_mut().find(|own| own.stage == stage.stage) {
                Some(own) => own.add(stage),
                None => self.stages.push(stage.clone()),
            }
        }
    }
}

impl DeviceStageReport {
    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.records += more.records;
        self.busy_seconds += more.busy_seconds;
        self.waited_seconds += more.waited_seconds;
    }
}

impl WorkerReport {
    fn add(&mut self, more: &Self) {
        self.busy_seconds += more.busy_seconds;
        for stage in &more.stages {
            match self.stages.iter_mut().find(|own| own.stage == stage.stage) {
                Some(own) => own.add(stage),
                None => self.stages.push(stage.clone()),
            }
        }
    }
}

impl PacedStageReport {
    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.records += more.records;
        self.busy_seconds += more.busy_seconds;
        self.needed_seconds += more.needed_seconds;
        self.elapsed_seconds += more.elapsed_seconds;
        self.processor_seconds += more.processor_seconds;
        self.overruns += more.overruns;
        self.overrun_seconds.0 += more.overrun_seconds.0;
        self.overrun_seconds.1 += more.overrun_seconds.1;
    }
}

impl WireReport {
    fn add(&mut self, more: &Self) {
        self.data_bytes += more.data_bytes;
        self.progress_bytes += more.progress_bytes;
        self.tensor_bytes += more.tensor_bytes;
        self.busy_seconds += more.busy_seconds;
        for edge in &more.edges {
            let is_same = |own: &super::WireEdgeReport| {
                (&own.from, &own.to, own.input) == (&edge.from, &edge.to, edge.input)
            };
            match self.edges.iter_mut().find(|own| is_same(own)) {
                Some(own) => {
                    own.records += edge.records;
                    own.record_bytes += edge.record_bytes;
                    own.data_bytes += edge.data_bytes;
                }
                None => self.edges.push(edge.clone()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::emulation::{OnDevice, WireSpec, WorkerSpeed};
    use crate::wire;

    fn spec() -> Emulation {
        let wire = WireSpec { from: "edge".into(), to: "hub".into(), bandwidth: Some(1_000_000), delay: 3 };
        let edge = |to: &str| (("a".to_owned(), to.to_owned(), 0), 0);
        Emulation {
            workers: ["w", "v"].map(|worker| (worker.to_owned(), WorkerSpeed::Quota(0.5))).into(),
            ratios: [("m".to_owned(), vec![2.0])].into(),
            wires: vec![wire],
            edges: [edge("b"), edge("c")].into(),
            devices: vec!["gpu".into()],
            on_devices: [("m".to_owned(), OnDevice { there: Some(0), ..OnDevice::default() })].into(),
            ..Emulation::default()
        }
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(WallClock::new())
    }

    #[test]
    fn hosts_make_their_own_workers_and_share_the_wires() {
        let emulated = Emulated::new(spec(), &clock(), true).expect("a sound emulation");
        let told = emulated.of_hosts().expect("there are hosts");
        let bytes = wire::encode(&told).expect("plain data");
        let told: HostEmulation = wire::decode(&bytes).expect("what was written");
        let [w, v] = ["w", "v"].map(|worker| told.emulator(worker, &clock()).expect("descriptors"));
        assert_eq!(w.servers.keys().collect::<Vec<_>>(), ["w"]);
        // 125 bytes are a millisecond.
        let take = |emulator: &Emulator| emulator.wires[0].take(125, &*emulator.clock).expect("is there");
        let first = take(&w);
        assert_eq!(take(&v), first + 1_000_000, "behind what the other host has taken");
        let take = |emulator: &Emulator| emulator.devices[0].take(("m", 1), 0, |_| 5).expect("is there");
        assert_eq!((take(&w).started, take(&v).started), (0, 5), "they share the device");
        drop(emulated);
        assert!(told.emulator("w", &clock()).is_err(), "the coordinator is gone");
    }

    #[test]
    fn what_hosts_did_comes_together() {
        let emulated = Emulated::new(spec(), &clock(), true).expect("a sound emulation");
        let stage = |name: &str| PacedStageReport {
            stage: name.to_owned(),
            calls: 2,
            records: 10,
            busy_seconds: 0.5,
            needed_seconds: 0.25,
            elapsed_seconds: 0.75,
            processor_seconds: 0.125,
            overruns: 1,
            overrun_seconds: (0.5, 0.25),
        };
        let of = |worker: &str, to: &str| {
            let mut report = EmulationReport::nothing(&spec());
            report.workers.retain(|own| own.worker == worker);
            report.workers[0].add(&WorkerReport {
                worker: worker.to_owned(),
                busy_seconds: 0.5,
                stages: vec![stage(worker)],
            });
            let edge = super::super::WireEdgeReport {
                from: "a".into(),
                to: to.into(),
                input: 0,
                records: 4,
                record_bytes: 40,
                data_bytes: 50,
            };
            report.wires[0].data_bytes = 50;
            report.wires[0].busy_seconds = 0.25;
            report.wires[0].edges.push(edge);
            let stage =
                DeviceStageReport { stage: worker.to_owned(), calls: 1, ..DeviceStageReport::default() };
            report.devices[0].add(&EmulatedDeviceReport {
                device: "gpu".into(),
                busy_seconds: 0.5,
                stages: vec![stage],
            });
            let bytes = wire::encode(&report).expect("plain data");
            wire::decode::<EmulationReport>(&bytes).expect("what was written")
        };
        emulated.show(0, of("w", "b"));
        let mut again = of("v", "c");
        again.add(&of("v", "c"));
        emulated.show(1, of("v", "c"));
        emulated.show(1, again);
        let Emulated::ByHosts(by_hosts) = &emulated else { panic!("there are hosts") };
        let mut all = EmulationReport::nothing(&by_hosts.spec);
        by_hosts.reports.lock().expect("not poisoned").values().for_each(|report| all.add(report));
        let busy: Vec<_> = all.workers.iter().map(|own| (own.worker.as_str(), own.busy_seconds)).collect();
        assert_eq!(busy, [("v", 1.0), ("w", 0.5)]);
        assert_eq!(
            (all.workers[0].stages[0].calls, all.workers[0].stages[0].overrun_seconds),
            (4, (1.0, 0.5))
        );
        let wire = &all.wires[0];
        assert_eq!((wire.data_bytes, wire.busy_seconds), (150, 0.75));
        let edges: Vec<_> = wire.edges.iter().map(|edge| (edge.to.as_str(), edge.records)).collect();
        assert_eq!(edges, [("b", 4), ("c", 8)]);
        let device = &all.devices[0];
        let calls: Vec<_> = device.stages.iter().map(|stage| (stage.stage.as_str(), stage.calls)).collect();
        assert_eq!((device.busy_seconds, calls), (1.5, vec![("w", 1), ("v", 2)]));
    }
}
