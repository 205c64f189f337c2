//! Devices of infrastructures in problems and plans.
use super::*;
use crate::check::{check, recomputed_cost};
use crate::cost::cost;
use crate::physical::{physical, solution_of};
use crate::planners::exact::Exact;
use crate::problem::Way;
use tidemill_spec::plan::{PlanFile, device_of};

/// A device in the cloud, with figures of the features and of the answers.
pub(crate) const DEVICE: &str =
    "{kind: card, count: 2, memory: 4GiB, share: 50%, price: 0.01 $/h, address: 'cloud.example:7440'}";

pub(super) fn case(device: &str, workflow: &str) -> Case {
    let infrastructure = INFRASTRUCTURE
        .replace(
            "{type: big, count: 2, price: 0.5 $/h}",
            &format!("{{type: big, count: 2, price: 0.5 $/h, devices: [{device}]}}"),
        )
        .replace("delay: 20ms}", "delay: 20ms, direction: both}");
    let more = "  - {operator: features, variant: large, backend: rten, worker_type: little, how: measured, peak_memory: 80MiB, model_part: 95%, batches: [{batch: 1, p75: 100ms, p90: 200ms}]}
  - {operator: features, variant: small, worker_type: card, how: measured, batches: [{batch: 1, p75: 1ms}, {batch: 4, p75: 2ms}, {batch: 8, p75: 3ms}]}
  - {operator: features, variant: large, backend: rten, worker_type: card, how: measured, peak_memory: 1GiB, model_part: 80%, batches: [{batch: 1, p75: 2ms}]}
messages:";
    Case::new(
        workflow,
        &infrastructure,
        &PROFILE.replace("messages:", more).replace(
            "{worker_type: big, how: measured}]",
            "{worker_type: big, how: measured}, {worker_type: card, how: measured}]",
        ),
    )
}

#[test]
fn a_device_is_a_class_that_stages_elsewhere_use() {
    let assembly = case(DEVICE, WORKFLOW).assembled();
    let problem = &assembly.problem;
    let class = &problem.worker_classes[2];
    assert_eq!((class.worker_type.as_str(), class.location, class.count, class.price), ("card", 1, 4, 0.01));
    assert_eq!(class.memory_bytes, Some(4.0 * f64::from(1 << 30)));
    assert_eq!(assembly.names[2][2..], ["cloud-big-1/card-0", "cloud-big-1/card-1"]);
    let facts = assembly.devices[2].as_ref().expect("a device");
    assert_eq!((facts.owner, facts.machines[2].as_str()), (1, "cloud-big-1"));
    // Its stage keeps a twentieth of the time; the device takes four fifths of its own, twice as long on half of it.
    let large = &problem.operators[0].variants[1].modes[0];
    let (stage, remote) = (large[1].clone(), large[1].remote.clone().expect("a device"));
    assert!(large[0].remote.is_none() && (stage.seconds_per_record - 0.005).abs() < 1e-9);
    assert!((remote.run.call_seconds - 0.0032).abs() < 1e-9, "{remote:?}");
    assert_eq!((remote.sent_bytes, remote.received_bytes), (100_000.0, 1_000.0));
    let way = problem.way(0, &remote);
    let seconds = 101_000.0 / 10e6;
    assert!(
        way.is_some_and(
            |Way { round_trip, transfer }| round_trip == 0.04 && (transfer - seconds).abs() < 1e-9
        )
    );
    // The device has no modes of its own, and no figures of other models.
    assert!(problem.operators.iter().all(|of| of.variants.iter().all(|variant| variant.modes[2].is_empty())));
    assert!(
        assembly.notes.iter().any(|note| note.starts_with("speech/speech has no figures on the device card"))
    );
    let part = assembly.notes.iter().filter(|note| note.contains("model_part")).collect::<Vec<_>>();
    assert!(part.len() == 1 && part[0].contains("of features on big, little: a stage"), "{part:?}");
    assert!(part[0].ends_with("measure it there: `tidemill profile`"), "{part:?}");
}

#[test]
fn a_stage_without_a_measured_part_keeps_a_fifth() {
    let assembly = case(DEVICE, WORKFLOW).assembled();
    let modes = &assembly.problem.operators[0].variants[0].modes[0];
    let remote: Vec<(u32, f64)> = modes
        .iter()
        .filter(|mode| mode.remote.is_some())
        .map(|mode| (mode.batch, (mode.seconds_per_record * 1e6).round() / 1e6))
        .collect();
    // A fifth of 20 ms, and of 60 ms for four; the workflow allows no batch of 8.
    assert_eq!(remote, [(1, 0.004), (4, 0.003)]);
}

#[test]
fn a_workflow_decides_about_devices() {
    let with = |device: &str| {
        WORKFLOW.replace(
            "variants: [small.yaml, large.yaml]",
            &format!("device: {device}, variants: [small.yaml, large.yaml]"),
        )
    };
    let kinds = |workflow: &str| {
        let problem = case(DEVICE, workflow).assembled().problem;
        let modes = problem.operators[0].variants.iter().flat_map(|variant| variant.modes.iter().flatten());
        modes.fold((0, 0), |(local, remote), mode| match mode.remote {
            None => (local + 1, remote),
            Some(_) => (local, remote + 1),
        })
    };
    let (local, remote) = kinds(WORKFLOW);
    assert_eq!(kinds(&with("cpu")), (local, 0));
    assert_eq!(kinds(&with("card")), (0, remote));
    let (codes, text) = case(DEVICE, &with("cart")).refused();
    assert!(codes == ["E0910"] && text.contains("did you mean `card`?"), "{text}");
}

#[test]
fn a_device_that_is_not_remotable_serves_its_machine() {
    let own = DEVICE.replace("count: 2, ", "remotable: false, ");
    let text = |assembly: &Assembly| assembly.notes.join("\n");
    let several = case(&own, WORKFLOW).assembled();
    assert!(
        !several.problem.has_remotes() && text(&several).contains("several machines"),
        "{}",
        text(&several)
    );
    let mut one = case(&own, WORKFLOW);
    one.infrastructure.tiers[1].workers.value[0].count = 1.into();
    let problem = one.assembled().problem;
    let remote =
        |class: usize| problem.operators[0].variants[0].modes[class].iter().any(|mode| mode.remote.is_some());
    assert!(!remote(0) && remote(1));
}

/// The large features are too slow for the edge, and pictures too expensive to send; their tensors are small.
#[test]
fn a_plan_names_its_devices_and_is_read_back() {
    let mut case = case(DEVICE, WORKFLOW);
    for model in case.models.get_mut("features").into_iter().flatten() {
        model.tensors = Some(TensorBytes { sent: 10_000, received: 1_000 });
    }
    case.infrastructure.tiers[1].workers.value[0].price.value.0 = 5.0;
    let assembly = case.assembled();
    let problem = &assembly.problem;
    let outcome = Exact.plan(problem, &SearchLimits::default()).expect("plans");
    let solution = outcome.solution.expect("there is a plan");
    assert_eq!(check(problem, &solution), []);
    let total = cost(problem, &solution).expect("has a cost").total();
    assert!((recomputed_cost(problem, &solution) - total).abs() < 1e-9);
    let plan = physical(&case.inputs(), &assembly, &solution, Vec::new()).expect("is a plan");
    let found = plan.validate_against(&case.workflow);
    assert!(found.is_empty(), "{found}");
    let stage = plan.stages.iter().find(|stage| stage.operator == "features").expect("a stage");
    assert!(stage.worker.starts_with("edge-little-"), "{stage:?}");
    let id = stage.device.as_deref().and_then(device_of).expect("on a device");
    let device = plan.devices.iter().find(|device| device.id == id).expect("in the plan");
    assert_eq!((device.kind.as_str(), device.worker.as_str()), ("card", "cloud-big-0"));
    assert_eq!(device.address.as_deref(), Some("cloud.example:7440"));
    let run = stage.remote_run.as_ref().expect("is expected");
    assert_eq!((run.sent.0, run.received.0, run.round_trip.0), (10_000, 1_000, 40_000_000));
    assert_eq!((run.transfer.0, run.compute.0), (1_100_000, 3_200_000));
    assert!(run.queue.0 > 0 && run.share.0 > 0.0 && run.share.0 < 50.0, "{run:?}");
    assert!(plan.workers.iter().all(|worker| worker.worker_type != "card"));
    // Through the file and back: the same numbers.
    let text = plan.to_yaml().expect("prints");
    let read = PlanFile::parse(&text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let again = solution_of(&case.inputs(), &assembly, &read.plan).unwrap_or_else(|error| panic!("{error}"));
    assert!((cost(problem, &again).expect("has a cost").total() - total).abs() < 1e-9);
    let again = crate::waits::with_least_waits(problem, &again);
    assert_eq!(check(problem, &again), []);
}
