//! The measurements to make: operators with each model and backend, on each worker type that this machine can emulate, and
//! models on devices.
use crate::device::Device;
use crate::subject::Subject;
use std::collections::BTreeMap;
use tidemill_spec::digest::sha256;
use tidemill_spec::infrastructure::{Infrastructure, WorkerType};
use tidemill_spec::profile::How;
use tidemill_spec::units::Bytes;

/// The measuring machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    /// Name of the processor.
    pub cpu: String,
    /// Processors.
    pub cores: usize,
    /// Bytes of memory, where known.
    pub memory: Option<u64>,
    /// The load average before, if other programs keep the machine busy, which makes times too long.
    pub busy: Option<f64>,
}

/// A type of worker that can be measured here, or a kind of device.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Name in the infrastructure.
    pub worker_type: String,
    /// Origin of its figures.
    pub how: How,
    /// Processors to restrain the measuring process to; `None`: unrestrained.
    pub cpus: Option<f64>,
    /// Stated slowness: times are multiplied by it.
    pub factor: f64,
    /// Processors of the type.
    pub cores: Option<f64>,
    /// Memory of the type.
    pub memory: Option<Bytes>,
    /// The device to measure, if the name is that of a kind of devices.
    pub device: Option<Device>,
}

/// Returns the worker types of an infrastructure that can be measured here, then the devices, and the reasons why others
/// cannot. `factors` has the slowdown of types against this machine.
pub fn kinds(
    infrastructure: &Infrastructure,
    host: &Host,
    factors: &BTreeMap<String, f64>,
    devices: &[Device],
) -> (Vec<Kind>, Vec<String>) {
    let (mut kinds, mut left): (Vec<Kind>, Vec<String>) = (Vec::new(), Vec::new());
    let mut seen: Vec<&str> = Vec::new();
    for worker in infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter()) {
        let name = worker.worker_type.value.as_str();
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        match worker.accelerators.first() {
            Some(accelerator) => left.push(format!(
                "{name} has an accelerator ({}): measure it there, or write its figures into a profile and merge it",
                accelerator.accelerator_type
            )),
            None => kinds.push(kind(worker, host, factors.get(name).copied().unwrap_or(1.0))),
        }
    }
    let workers = infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter());
    for name in workers.flat_map(|worker| &worker.devices).map(|device| device.kind.value.as_str()) {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        match devices.iter().find(|device| device.kind == name) {
            Some(device) => kinds.push(of_device(device)),
            None => left.push(format!(
                "{name} is a device: measure it with `--device {name}=ADDRESS`, where `tidemill device serve` listens, or \
                 write its figures into a profile and merge it"
            )),
        }
    }
    (kinds, left)
}

fn kind(worker: &WorkerType, host: &Host, factor: f64) -> Kind {
    let cores = worker.vcpu.as_ref().map(|vcpu| vcpu.value);
    let here = host.cores as f64;
    let (cpus, how) = match cores {
        Some(cores) if cores < here => (Some(cores), How::Limited),
        Some(cores) if cores > here => (None, How::Predicted),
        _ => (None, How::Measured),
    };
    Kind {
        worker_type: worker.worker_type.value.clone(),
        how: if factor == 1.0 { how } else { How::Limited },
        cpus,
        factor,
        cores,
        memory: worker.memory.as_ref().map(|memory| memory.value),
        device: None,
    }
}

fn of_device(device: &Device) -> Kind {
    Kind {
        worker_type: device.kind.clone(),
        how: How::Measured,
        cpus: None,
        factor: 1.0,
        cores: None,
        memory: None,
        device: Some(device.clone()),
    }
}

/// One measurement; worker types with equal restraints share it, and kinds of devices at one address.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Operator or source id.
    pub operator: String,
    /// The manifest's id.
    pub variant: Option<String>,
    /// Backend of the model.
    pub backend: Option<String>,
    /// Processors to restrain the process to.
    pub cpus: Option<f64>,
    /// Address of the device that computes the model; none: the process, or a program of the back end beside it.
    pub device: Option<String>,
    /// Sizes of batches.
    pub batches: Vec<u32>,
}

impl Task {
    /// Returns a description.
    pub fn name(&self) -> String {
        let mut name = self.operator.clone();
        for part in [&self.variant, &self.backend].into_iter().flatten() {
            name.push(' ');
            name.push_str(part);
        }
        if let Some(cpus) = self.cpus {
            name.push_str(&format!(" on {cpus} cpu"));
        }
        if let Some(device) = &self.device {
            name.push_str(&format!(" on {device}"));
        }
        name
    }

    /// Whether its times are those of a type of worker or a kind of device.
    pub fn is_of(&self, kind: &Kind) -> bool {
        let address = kind.device.as_ref().map(|device| device.address.as_str());
        (self.cpus, self.device.as_deref()) == (kind.cpus, address)
    }

    /// Returns a key that changes whenever the times may: the name of its state.
    pub fn key(&self, subject: &Subject, host: &Host, input: &str) -> String {
        let model = self.variant.as_ref().and_then(|variant| subject.model(&self.operator, variant));
        let model = model.map(|model| model.digest()).unwrap_or_default();
        let operator = subject.workflow.operators.iter().find(|operator| operator.id == *self.operator);
        let source = subject.workflow.sources.iter().find(|source| source.id == *self.operator);
        let options = operator.map(|operator| &operator.options).or(source.map(|source| &source.options));
        let options = serde_json::to_string(&options).unwrap_or_default();
        let text = format!("{}|{model}|{options}|{}|{}|{input}", self.name(), host.cpu, host.cores);
        sha256(text.as_bytes())[..24].to_owned()
    }
}

/// Returns all measurements: sources, then operators, in the order of the workflow, then models on devices.
pub fn tasks(subject: &Subject, kinds: &[Kind]) -> Vec<Task> {
    let mut limits: Vec<Option<f64>> = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.device.is_none()) {
        if !limits.contains(&kind.cpus) {
            limits.push(kind.cpus);
        }
    }
    let mut tasks = Vec::new();
    let mut add = |operator: &str, variant: Option<&str>, backend: Option<&str>, batches: &[u32]| {
        tasks.extend(limits.iter().map(|cpus| Task {
            operator: operator.to_owned(),
            variant: variant.map(str::to_owned),
            backend: backend.map(str::to_owned),
            cpus: *cpus,
            device: None,
            batches: batches.to_vec(),
        }));
    };
    for source in &subject.workflow.sources {
        add(&source.id, None, None, &[1]);
    }
    for operator in &subject.workflow.operators {
        let Some(models) = subject.models.get(&operator.id.value) else {
            add(&operator.id, None, None, &[1]);
            continue;
        };
        let batches = sizes(operator.batching.as_ref().map_or(1, |batching| batching.max_batch.value));
        for model in models {
            for backend in &model.backends {
                add(&operator.id, Some(model.id()), Some(backend), &batches);
            }
        }
    }
    let mut addresses: Vec<&str> = Vec::new();
    for device in kinds.iter().filter_map(|kind| kind.device.as_ref()) {
        if !addresses.contains(&device.address.as_str()) {
            addresses.push(&device.address);
            tasks.extend(on_device(subject, device));
        }
    }
    tasks
}

/// The measurements of all models with the back ends of a device that they allow.
fn on_device(subject: &Subject, device: &Device) -> Vec<Task> {
    let mut tasks = Vec::new();
    for operator in &subject.workflow.operators {
        let named = operator.named_backend();
        for model in subject.models.get(&operator.id.value).into_iter().flatten() {
            let allowed = |backend: &&String| {
                model.manifest.allows(backend) && named.is_none_or(|named| named == backend.as_str())
            };
            tasks.extend(device.backends.iter().filter(allowed).map(|backend| Task {
                operator: operator.id.value.clone(),
                variant: Some(model.id().to_owned()),
                backend: Some(backend.clone()),
                cpus: None,
                device: Some(device.address.clone()),
                batches: sizes(operator.batching.as_ref().map_or(1, |batching| batching.max_batch.value)),
            }));
        }
    }
    tasks
}

/// 1, 2, 4, ... and the largest.
fn sizes(largest: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = std::iter::successors(Some(1u32), |size| size.checked_mul(2))
        .take_while(|size| *size < largest)
        .collect();
    sizes.push(largest.max(1));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::tests::subject;

    const INFRASTRUCTURE: &str = "
version: 1
name: i
tiers:
  - id: edge
    workers: [{type: small, vcpu: 0.5, price: 0.01 $/h}, {type: same, vcpu: 2, price: 0.1 $/h}]
  - id: cloud
    workers:
      - {type: small, vcpu: 0.5, price: 0.02 $/h}
      - {type: large, vcpu: 16, price: 0.5 $/h}
      - {type: fast, price: 2 $/h, accelerators: [{type: A100}]}
      - {type: old, vcpu: 2, price: 0.05 $/h}
";

    fn host() -> Host {
        Host { cpu: "c".to_owned(), cores: 2, memory: None, busy: None }
    }

    #[test]
    fn types_are_what_this_machine_can_be() {
        let infrastructure =
            Infrastructure::parse(INFRASTRUCTURE, "i").unwrap_or_else(|errors| panic!("{errors}"));
        let factors = BTreeMap::from([("old".to_owned(), 1.5)]);
        let (kinds, left) = kinds(&infrastructure, &host(), &factors, &[]);
        let facts: Vec<_> = kinds.iter().map(|k| (k.worker_type.as_str(), k.how, k.cpus, k.factor)).collect();
        assert_eq!(
            facts,
            [
                ("small", How::Limited, Some(0.5), 1.0),
                ("same", How::Measured, None, 1.0),
                ("large", How::Predicted, None, 1.0),
                ("old", How::Limited, None, 1.5),
            ]
        );
        assert!(left.len() == 1 && left[0].contains("A100"), "{left:?}");
        let tasks = tasks(&subject(), &kinds);
        // Two sources, one join, five models with a backend each; two restraints.
        assert_eq!(tasks.len(), 2 * 8);
    }

    #[test]
    fn devices_get_models_with_back_ends_that_both_have() {
        let text = INFRASTRUCTURE.replace(
            "{type: large, vcpu: 16, price: 0.5 $/h}",
            "{type: large, vcpu: 2, price: 0.5 $/h, devices: [{kind: card}, {kind: other}, {kind: twin}]}",
        );
        let infrastructure = Infrastructure::parse(&text, "i").unwrap_or_else(|errors| panic!("{errors}"));
        let device = |kind: &str| Device {
            kind: kind.to_owned(),
            address: "hub:7440".to_owned(),
            backends: vec!["nothing-allows-it".to_owned(), "rten".to_owned()],
        };
        let (kinds, left) =
            kinds(&infrastructure, &host(), &BTreeMap::new(), &[device("card"), device("twin")]);
        assert!(left.len() == 2 && left[1].contains("--device other=ADDRESS"), "{left:?}");
        let cards: Vec<&Kind> = kinds.iter().filter(|kind| kind.device.is_some()).collect();
        assert_eq!((cards.len(), cards[0].worker_type.as_str()), (2, "card"));
        let tasks = tasks(&subject(), &kinds);
        let there: Vec<&Task> = tasks.iter().filter(|task| task.is_of(cards[0])).collect();
        assert!(there.iter().all(|task| task.backend.as_deref() == Some("rten") && task.is_of(cards[1])));
        // One of each of the five models: both kinds are at one address.
        assert_eq!((there.len(), tasks.iter().filter(|task| task.device.is_some()).count()), (5, 5));
        assert!(there[0].name().ends_with(" rten on hub:7440"), "{}", there[0].name());
        let here = kinds.iter().find(|kind| kind.device.is_none() && kind.cpus.is_none()).unwrap();
        assert!(!there[0].is_of(here) && tasks[1].is_of(here), "{:?}", tasks[1]);
    }

    #[test]
    fn sizes_double_up_to_the_largest() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 4, 8]);
        assert_eq!(sizes(6), [1, 2, 4, 6]);
    }

    #[test]
    fn a_state_is_of_one_task_only() {
        let subject = subject();
        let task = |operator: &str, cpus| Task {
            operator: operator.to_owned(),
            variant: None,
            backend: None,
            cpus,
            device: None,
            batches: vec![1],
        };
        let key = |task: Task, input: &str| task.key(&subject, &host(), input);
        let first = key(task("a", None), "x");
        assert_eq!(first, key(task("a", None), "x"));
        for other in [key(task("b", None), "x"), key(task("a", Some(0.5)), "x"), key(task("a", None), "y")] {
            assert_ne!(first, other);
        }
    }
}
