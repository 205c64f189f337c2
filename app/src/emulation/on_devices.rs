//! Models of stages that compute on devices of the plan: their times, tensors and places.
//!
//! The times are those of plans: on the worker of the stage, the part of the profiled times that is not the model's; on the device, the
//! model's part of the times of its kind, over the share of the device. Rows that go there as they are (`sends: rows`) leave nothing to the
//! worker. Each call takes the mean time: it does not vary with the records, as a call on a worker does.
use super::place;
use super::speeds::{Known, StageSpeed, Times};
use crate::failure::{Failure, Kind};
use std::collections::BTreeMap;
use tidemill_engine::{CallTimes, EMULATED, OnDevice, Program};
use tidemill_inference::inspect;
use tidemill_inference::payload::payload;
use tidemill_optimizer::assemble::Site;
use tidemill_spec::infrastructure::{Infrastructure, Tier, WorkerType};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::plan::{Plan, PlanDevice, Sends, Stage};
use tidemill_spec::profile::{Profile, Service};
use tidemill_spec::units::Bytes;

/// Part of a call on a worker that is taken to be the model's where it was not measured, as in plans.
const ASSUMED_MODEL_PART: f64 = 0.8;

/// A stage's model on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpeed {
    /// Id of the device in the plan.
    pub device: String,
    /// Its kind.
    pub kind: String,
    /// Calls on the device, of which the run has its share.
    pub model: Times,
    /// Additional time of calls after a pause, seconds.
    pub after_pause: f64,
    /// Bytes of a record to the device.
    pub sent: u64,
    /// Bytes of a record back.
    pub received: u64,
    /// Seconds that the tensors of a full batch take there and back, if nothing else is on the way.
    pub network: f64,
    /// Whether the part of the model on the worker is not known from a measurement.
    pub is_assumed: bool,
}

/// Returns the device that a stage of an emulated plan names.
pub(super) fn of<'a>(plan: &'a Plan, stage: &Stage) -> Option<&'a PlanDevice> {
    let id = stage.device.as_deref()?.strip_prefix(EMULATED)?.strip_prefix(':')?;
    plan.devices.iter().find(|device| device.id == id)
}

fn failed(message: String, help: impl Into<String>) -> Failure {
    Failure::new(Kind::Configuration, message).with_help(help)
}

/// Whether figures are those of the model of a stage on a type of machine.
fn is_of(service: &Service, stage: &Stage, variant: Option<&str>, machine: &str) -> bool {
    service.operator == stage.operator
        && service.variant.as_deref() == variant
        && service.worker_type == machine
}

/// Returns what is known of a stage on its worker without the model: the measured part, else the assumed one. None: no times there.
pub(super) fn on_worker(
    profile: &Profile,
    stage: &Stage,
    variant: Option<&str>,
    worker_type: &str,
) -> Option<(Known, bool)> {
    let rows = profile.services.iter().filter(|service| is_of(service, stage, variant, worker_type));
    let own = rows.filter_map(|service| {
        let part = match stage.sends {
            Sends::Rows => 0.0,
            Sends::Tensors => 1.0 - service.model_part.map_or(ASSUMED_MODEL_PART, |part| part.0 / 100.0),
        };
        let known = Known::of(profile, service)?;
        Some((known.scaled(part), service.model_part.is_none() && stage.sends == Sends::Tensors))
    });
    // Preparing inputs and outputs is the same for all back ends: the measured one, else the least.
    own.min_by(|(a, assumed), (b, other)| {
        assumed.cmp(other).then(a.times.at(stage.max_batch).total_cmp(&b.times.at(stage.max_batch)))
    })
}

/// Returns the speed of a stage's model on its device.
///
/// # Errors
/// The profile has no times of it there; the bytes of its tensors are not known.
pub(super) fn speed(
    program: &Program,
    (stage, name): (&Stage, &str),
    variant: Option<&str>,
    profile: &Profile,
    device: &PlanDevice,
) -> Result<DeviceSpeed, Failure> {
    let kind = device.kind.as_str();
    let share = device.share.map_or(1.0, |share| share.0 / 100.0);
    let rows = profile.services.iter().filter(|service| is_of(service, stage, variant, kind));
    let rows = rows.filter(|service| {
        service.backend.is_none() || stage.backend.is_none() || service.backend == stage.backend
    });
    let rows = rows.filter_map(|service| {
        let part = match stage.sends {
            Sends::Rows => 1.0,
            Sends::Tensors => service.model_part.map_or(1.0, |part| part.0 / 100.0),
        };
        Some(Known::of(profile, service)?.scaled(part / share))
    });
    // A plan may leave the back end to the device: it expects the times of one of them.
    let expected = stage.remote_run.as_ref().map_or(0.0, |run| run.compute.0 as f64 / 1e9);
    let away = |known: &Known| (known.times.at(stage.max_batch) - expected).abs();
    let Some(known) = rows.min_by(|a, b| away(a).total_cmp(&away(b))) else {
        return Err(failed(
            format!(
                "the profile has no times of `{name}` on the device `{kind}`, where stage `{}` runs",
                stage.id
            ),
            format!(
                "measure them (`tidemill profile --device {kind}=tcp://HOST:PORT`), or plan again with this profile"
            ),
        ));
    };
    let (sent, received) = bytes(program, stage)?;
    Ok(DeviceSpeed {
        device: device.id.clone(),
        kind: kind.to_owned(),
        model: known.times,
        after_pause: known.after_pause,
        sent,
        received,
        network: 0.0,
        is_assumed: false,
    })
}

/// Bytes of a record to the device and back: those of the plan, else those of the manifest.
fn bytes(program: &Program, stage: &Stage) -> Result<(u64, u64), Failure> {
    if let Some(run) = &stage.remote_run {
        return Ok((run.sent.0, run.received.0));
    }
    let unknown = |why: String| {
        failed(
            format!("the bytes of a record of stage `{}` to its device are not known: {why}", stage.id),
            "plan it (`tidemill plan --infra FILE`), which writes `remote_run`, or write it at the stage",
        )
    };
    if stage.sends == Sends::Rows {
        return Err(unknown("rows have the sizes of the data".to_owned()));
    }
    let model = program.operators.get(&stage.id).and_then(|bound| bound.model.as_ref());
    let model = model.ok_or_else(|| unknown("its model belongs to this program".to_owned()))?;
    let manifest = Manifest::load(&model.manifest).map_err(|found| unknown(found.to_string()))?;
    let file = || inspect(&model.manifest.parent()?.join(&manifest.file.value)).ok();
    let payload = payload(&manifest, None, file).map_err(|error| unknown(error.to_string()))?;
    Ok((payload.inputs, payload.outputs))
}

/// Refuses models that a device has no memory for. Stages that use the same model share it.
///
/// # Errors
/// Their memory by the profile is more than that of the device.
pub(super) fn check_memory(
    program: &Program,
    speeds: &[StageSpeed],
    profile: &Profile,
) -> Result<(), Failure> {
    for device in &program.plan.devices {
        let Some(memory) = device.memory else { continue };
        let mut models: BTreeMap<(&str, Option<&str>), Bytes> = BTreeMap::new();
        for speed in speeds.iter().filter(|speed| speed.device_id() == Some(device.id.as_str())) {
            let stage = program.plan.stages.iter().find(|stage| stage.id == speed.stage);
            let backend = stage.and_then(|stage| stage.backend.as_deref());
            let service = profile.service(&speed.operator, speed.variant.as_deref(), backend, &device.kind);
            if let Some(bytes) = service.and_then(|service| service.peak_memory) {
                models.insert((&speed.operator, speed.variant.as_deref()), bytes);
            }
        }
        let all = Bytes(models.values().map(|bytes| bytes.0).sum());
        if all.0 > memory.0 {
            let names: Vec<&str> = models.keys().map(|(operator, _)| *operator).collect();
            let message = format!(
                "the models of {} need {all} on `{}`, which has {memory}",
                names.join(", "),
                device.id
            );
            return Err(failed(
                message,
                "plan again with this infrastructure, or give the device more `memory`",
            ));
        }
    }
    Ok(())
}

/// Tier and `tier/location` of the machine that has a device.
///
/// # Errors
/// Neither the plan nor the infrastructure has the machine.
pub(super) fn place_of(
    plan: &Plan,
    infrastructure: Option<&Infrastructure>,
    device: &PlanDevice,
) -> Result<(String, String), Failure> {
    if let Some(worker) = plan.workers.iter().find(|worker| worker.id == device.worker) {
        return Ok((worker.tier.clone(), place(worker)));
    }
    let message =
        format!("it is not known where the machine `{}` of the device `{}` is", device.worker, device.id);
    let Some(known) = infrastructure else {
        return Err(failed(message, "give the infrastructure of the plan: `--infra FILE`"));
    };
    let site = known.tiers.iter().find_map(|tier| site_of(tier, &device.worker));
    let site = site.ok_or_else(|| {
        failed(message, format!("`{}` has no such machine: give the infrastructure of the plan", known.name))
    })?;
    let place =
        site.location.map_or_else(|| site.tier.clone(), |location| format!("{}/{location}", site.tier));
    Ok((site.tier, place))
}

/// The site of a tier that has a machine of this name.
fn site_of(tier: &Tier, machine: &str) -> Option<Site> {
    let names = tier.locations.iter().map(|location| Some(location.value.clone()));
    let mut sites = names.chain(tier.locations.is_empty().then_some(None));
    sites.find_map(|location| {
        let site = Site { tier: tier.id.value.clone(), location };
        tier.workers.iter().any(|worker| has(worker, tier, &site, machine)).then_some(site)
    })
}

/// Whether the machines of a type at a site include this one.
fn has(worker: &WorkerType, tier: &Tier, site: &Site, machine: &str) -> bool {
    let location = site.location.as_deref();
    if !worker.is_at(location) {
        return false;
    }
    if worker.names.is_empty() {
        return (0..worker.count.value)
            .any(|index| site.machine(&worker.worker_type.value, index) == machine);
    }
    let sites = if worker.locations.is_empty() { &tier.locations } else { &worker.locations };
    let before = sites.iter().position(|other| Some(other.as_str()) == location).unwrap_or(0);
    let count = worker.count.value as usize;
    worker.names.iter().skip(before * count).take(count).any(|name| name.value == machine)
}

impl StageSpeed {
    /// The device that computes its model.
    pub fn device_id(&self) -> Option<&str> {
        self.device.as_ref().map(|device| device.device.as_str())
    }

    /// Returns the settings of its calls for the engine, if a device computes its model.
    pub(super) fn on_device(&self, devices: &[String]) -> Option<OnDevice> {
        let on = self.device.as_ref()?;
        let sizes = || 1..=self.max_batch.max(1);
        let there = self.there.as_ref();
        Some(OnDevice {
            device: devices.iter().position(|id| *id == on.device)?,
            stage: CallTimes {
                seconds: sizes().map(|records| there.map_or(0.0, |times| times.at(records))).collect(),
                after_pause: self.after_pause.0,
            },
            model: CallTimes {
                seconds: sizes().map(|records| on.model.at(records)).collect(),
                after_pause: on.after_pause,
            },
            sent: on.sent,
            received: on.received,
            there: None,
            back: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFRASTRUCTURE: &str = "
version: 1
name: two
tiers:
  - {id: edge, locations: [north, south], workers: [{type: small, price: 0.1 $/h}]}
  - id: hub
    workers:
      - {type: large, count: 2, price: 0.1 $/h, devices: [{kind: card}]}
      - {type: named, count: 1, price: 0.1 $/h, names: [alice], devices: [{kind: card}]}
";

    fn device(worker: &str) -> PlanDevice {
        PlanDevice {
            id: format!("{worker}/card"),
            kind: "card".into(),
            worker: worker.into(),
            address: None,
            spares: Vec::new(),
            memory: None,
            share: None,
            price: None,
        }
    }

    #[test]
    fn the_machine_of_a_device_is_found_without_a_stage_on_it() {
        let known = Infrastructure::parse(INFRASTRUCTURE, "i.yaml").unwrap();
        let plan = Plan::new(tidemill_spec::plan::PlanWorkflow { name: "w".into(), digest: None });
        let of = |machine: &str| place_of(&plan, Some(&known), &device(machine));
        let at = |tier: &str, place: &str| (tier.to_owned(), place.to_owned());
        assert_eq!(of("hub-large-1").unwrap(), at("hub", "hub"));
        assert_eq!(of("alice").unwrap(), at("hub", "hub"));
        assert_eq!(of("edge-south-small-0").unwrap(), at("edge", "edge/south"));
        let wrong = of("hub-large-2").unwrap_err().to_string();
        assert!(wrong.contains("where the machine `hub-large-2`"), "{wrong}");
        assert!(place_of(&plan, None, &device("hub-large-1")).is_err());
    }
}
