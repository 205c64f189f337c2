//! Accelerators of a worker that streams use: those of the devices of their plans.
use crate::api::Capacity;
use crate::facts::{Document, RunFacts};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_jobs::Resources;
use tidemill_spec::plan::{PlanDevice, device_of};

/// Devices of a worker on which stages of a run compute.
fn used<'a>(run: &'a RunFacts, worker: &'a str) -> impl Iterator<Item = &'a PlanDevice> {
    let stages = run.plan.stages.iter();
    let ids: BTreeSet<&str> = stages.filter_map(|stage| device_of(stage.device.as_deref()?)).collect();
    run.plan.devices.iter().filter(move |device| {
        let placed = run.roles.get(&device.worker).and_then(|role| role.worker.as_deref());
        ids.contains(device.id.as_str()) && placed.unwrap_or(&device.worker) == worker
    })
}

/// Accelerators of a worker that streams use. A device takes one of its kind. The kinds of a plan may have other names than the types that
/// drivers report: such a device takes one of which the worker has most.
pub(super) fn reserved(document: &Document, worker: &str, whole: &Capacity) -> Resources {
    let mut left: BTreeMap<&str, u64> = BTreeMap::new();
    whole.accelerators.iter().for_each(|kind| *left.entry(kind).or_default() += 1);
    let mut reserved = Resources::default();
    // Runs share a device with an address.
    let mut seen = BTreeSet::new();
    for (name, run) in document.runs.iter().filter(|(_, run)| !run.state.is_over()) {
        for device in used(run, worker) {
            let identity = match &device.address {
                Some(address) => (None, address),
                None => (Some(name), &device.id),
            };
            if !seen.insert(identity) {
                continue;
            }
            let own = left.get_key_value(device.kind.as_str()).filter(|(_, count)| **count > 0);
            let number = |kind: &str| whole.accelerators.iter().filter(|one| *one == kind).count();
            let most = left.iter().filter(|(_, count)| **count > 0).max_by_key(|(kind, _)| number(kind));
            let Some(kind) = own.or(most).map(|(kind, _)| *kind) else { continue };
            left.entry(kind).and_modify(|count| *count -= 1);
            *reserved.devices.entry(kind.to_owned()).or_default() += 1;
        }
    }
    reserved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RunState;
    use crate::facts::Role;
    use tidemill_spec::plan::Plan;

    fn run(devices: &str, used: &str, state: RunState) -> RunFacts {
        let text = format!(
            "version: 1\nworkflow: {{name: flow}}\nworkers: [{{id: hub, tier: hub, worker_type: server}}]\ndevices: [{devices}]\n\
             stages:\n  - {{id: rows, operator: rows, worker: hub}}\n  \
             - {{id: detect, operator: detect, worker: hub, variant: small, device: 'device:{used}'}}\n\
             classes: [{{id: 0, share: 1, route: {{rows: rows, detect: detect}}}}]\nedges: [{{from: rows, to: detect}}]\n"
        );
        let mut facts = RunFacts::test(Plan::parse(&text, "plan.yaml").unwrap(), state);
        let role = Role { worker: Some("north".to_owned()), ..Role::default() };
        facts.roles = BTreeMap::from([("hub".to_owned(), role)]);
        facts
    }

    #[test]
    fn devices_that_stages_use_are_no_accelerators_for_jobs() {
        let whole = Capacity {
            processors: 4.0,
            memory_bytes: 1000,
            accelerators: ["h100", "h100", "npu"].map(str::to_owned).into(),
        };
        let of_kind = "{id: hub/npu, kind: npu, worker: hub, address: 'hub:7440'}";
        let of_other = "{id: hub/gpu, kind: gpu-small, worker: hub}";
        let all = format!("{of_kind}, {of_other}");
        let mut document = Document::default();
        let mut counts = |runs: Vec<RunFacts>| {
            document.runs = Default::default();
            for (number, run) in runs.into_iter().enumerate() {
                document.runs.insert(format!("run-{number}"), run);
            }
            let found = reserved(&document, "north", &whole);
            assert_eq!(reserved(&document, "south", &whole), Resources::default());
            (found.device("npu"), found.device("h100"))
        };
        let running = |used: &str| run(&all, used, RunState::Running);
        assert_eq!(counts(vec![running("hub/npu")]), (1, 0));
        assert_eq!(counts(vec![running("hub/gpu")]), (0, 1), "its kind is unknown to the driver");
        assert_eq!(counts(vec![running("hub/npu"), running("hub/npu")]), (1, 0), "they share it");
        assert_eq!(counts(vec![running("hub/gpu"), running("hub/gpu")]), (0, 2));
        assert_eq!(counts(vec![run(&all, "hub/gpu", RunState::Complete)]), (0, 0));
        let many = vec![running("hub/gpu"), running("hub/gpu"), running("hub/gpu"), running("hub/gpu")];
        assert_eq!(counts(many), (1, 2), "no more than there are");
    }
}
