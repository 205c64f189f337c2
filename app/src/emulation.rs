//! `tidemill run --emulate`: every worker of a plan on this machine, at its own speed, with its own links.
//!
//! | step | module |
//! |---|---|
//! | speed of each worker, from the profile | `speeds` |
//! | missing times on this machine | `calibration` |
//! | models compute before the run starts | `warm_up` |
//! | models that compute on devices of the plan | `on_devices` |
//! | bandwidth, delay and price between places | `wires` |
//! | dilation factor of the run | `dilation` |
//! | predictions compared with measurements | `comparison` |
mod calibration;
pub mod comparison;
pub mod dilation;
pub mod on_devices;
pub mod speeds;
pub(crate) mod warm_up;
pub mod wires;

pub use dilation::RequestedDilation;
pub use warm_up::WarmUps;

use crate::failure::{Failure, Kind};
use crate::listener::Listener;
use crate::machine::Machine;
use crate::planning::measuring;
use crate::preparation::Prepared;
use dilation::{Dilation, Need};
use speeds::{Basis, StageSpeed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidemill_engine::{Emulation, OnDevice, Program, WorkerSpeed};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::{Plan, PlanDevice, PlanWorker, SOURCE_DEVICE};
use tidemill_spec::profile::{Profile, ProfileFile};
use tidemill_spec::workflow::Workflow;
use wires::EmulatedWire;

/// Options of an emulation.
#[derive(Debug, Clone, Default)]
pub struct EmulationOptions {
    /// Machines, links and prices; without it, those of the plan.
    pub infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`, for the speeds of the workers.
    pub profiles: Vec<PathBuf>,
    /// Requested dilation.
    pub dilation: RequestedDilation,
    /// Whether the workers are separate processes, so that models do not run in this one.
    pub by_processes: bool,
}

/// A plan that can be emulated, with its data.
pub struct Emulated {
    /// Settings for the engine.
    pub emulation: Emulation,
    /// Dilation of the run.
    pub dilation: Dilation,
    /// Workers of the plan, without source devices.
    pub workers: Vec<Worker>,
    /// Devices of the plan that compute models.
    pub devices: Vec<EmulatedDevice>,
    /// In the order of the wires of the emulation.
    pub ways: Vec<EmulatedWire>,
    /// Speed of each stage with a model.
    pub speeds: Vec<StageSpeed>,
    /// Number of samples of the profile's accuracy, the first ones of this workflow's sources.
    pub scored_on: Option<u64>,
    /// Data for the workers' processes to warm their models up, by stage.
    pub warm_ups: WarmUps,
}

/// A worker of the plan.
#[derive(Debug)]
pub struct Worker {
    /// Id in the plan.
    pub id: String,
    /// Type in the infrastructure.
    pub worker_type: String,
    /// `tier/location`.
    pub place: String,
    /// Price in $/h.
    pub dollars_per_hour: f64,
    /// Origin of its speed; `None` if it has no models, so that nothing is enforced.
    pub basis: Option<Basis>,
    /// Its share of a processor, if it has less than one.
    pub share: Option<f64>,
}

/// A device of the plan that computes models.
#[derive(Debug)]
pub struct EmulatedDevice {
    /// Id in the plan.
    pub id: String,
    /// Kind in the infrastructure.
    pub kind: String,
    /// `tier/location` of its machine.
    pub place: String,
    /// Price in $/h while it is used.
    pub dollars_per_hour: f64,
    /// Part of its time that the run may use.
    pub share: f64,
}

impl Emulated {
    /// Reads the files beside the plan, warms the models up, measures missing times, and prints the emulated settings.
    ///
    /// # Errors
    /// Invalid files; missing data for the emulation, with advice.
    pub fn prepare(
        options: &EmulationOptions,
        prepared: &mut Prepared,
        listener: &dyn Listener,
    ) -> anyhow::Result<Self> {
        let infrastructure = options.infrastructure.as_deref().map(Infrastructure::load).transpose()?;
        let profile = profile(&options.profiles, &prepared.workflow, listener)?;
        let host = Machine::look();
        let mut speeds = speeds::of(prepared, &profile, options.profiles.is_empty(), &host)?;
        on_devices::check_memory(&prepared.program, &speeds, &profile)?;
        let mut ways = wires::of(&prepared.program, infrastructure.as_ref())?;
        let positions =
            wires::add_tensors(&mut ways, &prepared.program, infrastructure.as_ref(), &mut speeds)?;
        let warm_ups =
            calibration::complete(&mut speeds, &mut prepared.program, options.by_processes, listener)?;
        let program = &prepared.program;
        speeds.iter_mut().for_each(StageSpeed::settle);
        let devices = devices(&program.plan, infrastructure.as_ref(), &speeds)?;
        let ids: Vec<String> = devices.iter().map(|device| device.id.clone()).collect();
        let on_devices = speeds.iter().filter_map(|speed| {
            let (there, back) = positions.get(&speed.stage).copied()?;
            Some((speed.stage.clone(), OnDevice { there, back, ..speed.on_device(&ids)? }))
        });
        let workers = workers(program, infrastructure.as_ref(), &speeds)?;
        let dilation = dilation::choose(options.dilation, &Need::of(program, &speeds), host.cores);
        let paced = |worker: &Worker| {
            let speed = match worker.basis.as_ref()? {
                Basis::Quota(share) => WorkerSpeed::Quota(*share),
                Basis::Enforced if worker.share.is_some() => WorkerSpeed::Quota(worker.share.unwrap_or(1.0)),
                Basis::Offered | Basis::Enforced => WorkerSpeed::Ratio,
            };
            Some((worker.id.clone(), speed))
        };
        let emulation = Emulation {
            workers: workers.iter().filter_map(paced).collect(),
            ratios: speeds
                .iter()
                .filter(|speed| speed.device.is_none())
                .map(|speed| (speed.stage.clone(), speed.ratios.clone()))
                .collect(),
            assumed: speeds.iter().filter_map(StageSpeed::assumed).collect(),
            wires: ways.iter().map(|way| way.spec.clone()).collect(),
            edges: wires::edges(&ways),
            on_devices: on_devices.collect(),
            devices: ids,
        };
        let scored_on = scored_on(&profile, &prepared.workflow);
        let assumed = speeds.iter().filter(|speed| speed.device.as_ref().is_some_and(|on| on.is_assumed));
        let assumed: BTreeSet<&str> = assumed.map(|speed| speed.operator.as_str()).collect();
        if !assumed.is_empty() {
            let of = assumed.into_iter().collect::<Vec<_>>().join(", ");
            let source = prepared.workflow.name.span.source();
            let workflow = Path::new(source.map_or("WORKFLOW", |source| source.name()));
            let folder = options.profiles.first().map_or(Path::new("profile"), PathBuf::as_path);
            let measure = measuring(workflow, options.infrastructure.as_deref(), folder);
            listener.note(&format!(
                "the profile has no `model_part` of {of} where its stage runs: the stage is taken to keep a fifth of the time; \
                 measure it there: {measure}"
            ));
        }
        let emulated = Self { emulation, dilation, workers, devices, ways, speeds, scored_on, warm_ups };
        listener.note(&emulated.announcement(host.cores));
        Ok(emulated)
    }

    fn announcement(&self, cores: usize) -> String {
        let types: Vec<String> = self
            .workers
            .iter()
            .filter_map(|worker| {
                Some(format!("{} ({}): {}", worker.id, worker.worker_type, worker.basis.as_ref()?))
            })
            .collect();
        let devices = self.devices.iter();
        let devices = devices.map(|device| format!("{} ({}): by the profile", device.id, device.kind));
        let all: Vec<String> = types.into_iter().chain(devices).collect();
        format!("emulated {}; {}", self.dilation.told(cores), all.join(", "))
    }
}

/// Location of a worker.
fn place(worker: &PlanWorker) -> String {
    match &worker.location {
        Some(location) => format!("{}/{location}", worker.tier),
        None => worker.tier.clone(),
    }
}

fn workers(
    program: &Program,
    infrastructure: Option<&Infrastructure>,
    speeds: &[StageSpeed],
) -> Result<Vec<Worker>, Failure> {
    let workers = program.plan.workers.iter().filter(|worker| worker.worker_type != SOURCE_DEVICE);
    let make = |worker: &PlanWorker| {
        let listed = infrastructure.and_then(|infrastructure| {
            Some(infrastructure.tier(&worker.tier)?.worker_type(&worker.worker_type)?.price.value)
        });
        let price = listed.or(worker.price).ok_or_else(|| {
            let message = format!(
                "worker `{}` of type `{}` in `{}` has no price",
                worker.id, worker.worker_type, worker.tier
            );
            let help = match infrastructure {
                None => "give `--infra`, or write `price:` at the worker in the plan".to_owned(),
                Some(known) => {
                    format!("`{}` has no such type there: give the infrastructure of the plan", known.name)
                }
            };
            Failure::new(Kind::Configuration, message).with_help(help)
        })?;
        let own = speeds.iter().find(|speed| speed.worker == worker.id);
        Ok(Worker {
            id: worker.id.clone(),
            worker_type: worker.worker_type.clone(),
            place: place(worker),
            dollars_per_hour: price.0,
            basis: own.map(|speed| speed.basis.clone()),
            share: own.and_then(|speed| speed.share),
        })
    };
    workers.map(make).collect()
}

/// The devices that compute models of stages.
fn devices(
    plan: &Plan,
    infrastructure: Option<&Infrastructure>,
    speeds: &[StageSpeed],
) -> Result<Vec<EmulatedDevice>, Failure> {
    let is_used =
        |device: &&PlanDevice| speeds.iter().any(|speed| speed.device_id() == Some(device.id.as_str()));
    let make = |device: &PlanDevice| {
        let (_, place) = on_devices::place_of(plan, infrastructure, device)?;
        Ok(EmulatedDevice {
            id: device.id.clone(),
            kind: device.kind.clone(),
            place,
            dollars_per_hour: device.price.map_or(0.0, |price| price.0),
            share: device.share.map_or(1.0, |share| share.0 / 100.0),
        })
    };
    plan.devices.iter().filter(is_used).map(make).collect()
}

/// Number of samples of a profile's accuracy, if it was made of this workflow: the first ones of its sources, which a run
/// judges too.
fn scored_on(profile: &Profile, workflow: &Workflow) -> Option<u64> {
    let same = profile.workflow.digest.as_deref() == Some(workflow.profiled_digest().as_str());
    let accuracy = profile.accuracy.as_ref().filter(|accuracy| same && accuracy.scored_on.is_none())?;
    accuracy.end_to_end.iter().filter_map(|row| row.samples).max().or(accuracy.samples)
}

/// Merges all profiles; empty without any.
fn profile(
    paths: &[std::path::PathBuf],
    workflow: &Workflow,
    listener: &dyn Listener,
) -> anyhow::Result<Profile> {
    let mut profile = Profile::empty(workflow.name.value.clone());
    for path in paths {
        let file = if path.is_dir() { path.join("profile.yaml") } else { path.clone() };
        let read = ProfileFile::load(Path::new(&file))?;
        let found = read.validate_against(workflow);
        if found.has_errors() {
            return Err(found.into());
        }
        listener.warnings(&found);
        profile = profile.merge(&read.profile)?.profile;
    }
    Ok(profile)
}
