//! Checks the backends of models on workers: those that a plan needs, and those whose figures can be planned with.
//!
//! A worker that reports no backends, as older programs do, passes: its failure would show in the run.
use crate::api::WorkerView;
use crate::facts::Role;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::backend::{BackendChoice, runtime};
use tidemill_spec::plan::{Plan, Stage};
use tidemill_spec::profile::Profile;
use tidemill_spec::workflow::Workflow;

/// The backend that is a library, which a machine may lack.
const ONNXRUNTIME: &str = "ort";

/// The backend that the model of a stage runs on, where the plan or the workflow names one: else its worker takes what it has.
pub(super) fn named<'a>(workflow: &'a Workflow, stage: &'a Stage) -> Option<&'a str> {
    stage.variant.as_ref()?;
    let operator = workflow.operators.iter().find(|operator| operator.id.value == stage.operator);
    let of_workflow = || operator.and_then(|operator| operator.named_backend());
    stage.backend.as_deref().or_else(of_workflow).filter(|backend| *backend != BackendChoice::AUTO)
}

/// A backend that a role needs and that is not among these, and the operator that is to run on it; none also where it is not known which
/// there are.
pub(super) fn lacking<'a>(has: Option<&[String]>, role: &'a Role) -> Option<(&'a str, &'a str)> {
    let has = has?;
    let lacking = role.backends.iter().find(|(backend, _)| !has.contains(backend));
    lacking.map(|(backend, operator)| (backend.as_str(), operator.as_str()))
}

/// Rejects a plan with a model on a worker without its backend, where the run would fail. A plan's worker without a namesake in the cluster
/// may be placed on any worker. An absent worker with the backend is waited for.
///
/// # Errors
/// Names the operator, backend and workers, with a remedy.
pub(super) fn check(views: &[WorkerView], roles: &BTreeMap<String, Role>) -> Result<(), String> {
    let there: Vec<&WorkerView> = views.iter().filter(|view| takes_work(view)).collect();
    for (name, role) in roles {
        let name = role.worker.as_ref().unwrap_or(name);
        let of_that_name: Vec<&WorkerView> =
            there.iter().copied().filter(|view| view.name == *name).collect();
        // A drained worker gets no work when it is back.
        let may_come_back = |view: &WorkerView| {
            view.name == *name && !view.is_drained && lacking(view.backends.as_deref(), role).is_none()
        };
        if of_that_name.is_empty() && views.iter().any(may_come_back) {
            continue;
        }
        let able = if of_that_name.is_empty() { &there } else { &of_that_name };
        // `None` as soon as one of them has all backends.
        let lack: Option<Vec<(&str, &str)>> =
            able.iter().map(|view| lacking(view.backends.as_deref(), role)).collect();
        let Some(&(backend, operator)) = lack.as_deref().and_then(<[_]>::first) else { continue };
        let names: Vec<&str> = able.iter().map(|view| view.name.as_str()).collect();
        let who = match &names[..] {
            [only] => format!("worker {only} does not have"),
            all => format!("none of the workers {} has", all.join(", ")),
        };
        return Err(format!(
            "`{operator}` needs the backend `{backend}`, which {who}: {}; or write `backend: rten`, which \
             every worker has, at `{operator}` in the workflow, and plan it again",
            fix(backend)
        ));
    }
    Ok(())
}

/// Backends that a plan names, each with the type of the workers that run models on it: of a plan as it is placed, as figures are those of
/// the machines.
pub(super) fn in_use(plan: &Plan) -> BTreeSet<(String, String)> {
    let of = |stage: &Stage| {
        let worker = plan.workers.iter().find(|worker| worker.id == stage.worker)?;
        Some((stage.backend.clone()?, worker.worker_type.clone()))
    };
    plan.stages.iter().filter_map(of).collect()
}

/// Leaves out figures of backends that some worker of their type lacks, with a note for each. Figures of the present or next plan stay
/// (`in_use`), because they are needed to assess it.
pub(super) fn leave_out(
    profile: &mut Profile,
    views: &[WorkerView],
    in_use: &BTreeSet<(String, String)>,
) -> Vec<String> {
    let mut left_out: BTreeMap<(String, String), String> = BTreeMap::new();
    profile.services.retain(|service| {
        let Some(backend) = &service.backend else { return true };
        let key = (backend.clone(), service.worker_type.clone());
        if in_use.contains(&key) {
            return true;
        }
        let lacks = |view: &&WorkerView| {
            takes_work(view)
                && view.worker_type.as_ref() == Some(&service.worker_type)
                && view.backends.as_ref().is_some_and(|has| !has.contains(backend))
        };
        let workers: Vec<&str> = views.iter().filter(lacks).map(|view| view.name.as_str()).collect();
        if !workers.is_empty() {
            left_out.insert(key, workers.join(", "));
        }
        workers.is_empty()
    });
    let lines = left_out.into_iter().map(|((backend, worker_type), workers)| {
        format!(
            "plans do not use `{backend}` on `{worker_type}`: {workers} cannot run models on it; {}",
            fix(&backend)
        )
    });
    lines.collect()
}

fn takes_work(view: &WorkerView) -> bool {
    view.is_alive && !view.is_drained
}

/// Remedy for a missing backend.
fn fix(backend: &str) -> &'static str {
    match backend {
        ONNXRUNTIME => {
            "install ONNX Runtime there (`tidemill doctor --fix`), or start the worker in an image with `-onnxruntime`"
        }
        provider if runtime(provider) == ONNXRUNTIME => {
            "let TIDEMILL_ONNXRUNTIME there name a libonnxruntime.so with this provider (`tidemill doctor` shows those of a \
             library), and start the worker again"
        }
        _ => "start the worker with a program that has it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::plan::{PlanWorker, PlanWorkflow};

    fn worker(name: &str, backends: Option<&[&str]>) -> WorkerView {
        let view = serde_json::json!({
            "name": name, "is_alive": true, "silent_milliseconds": 20, "is_drained": false, "location": null, "tier": null,
            "worker_type": "small", "capacity": {"processors": 2, "memory_bytes": 1}, "backends": backends, "labels": {},
            "address": null, "hosts": [], "version": "1"
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn a_missing_provider_needs_another_library() {
        let views = [worker("hub", Some(&["ort", "rten"]))];
        let message = check(&views, &roles(&[("hub", "ort:cuda")])).unwrap_err();
        assert!(
            message
                .contains("the backend `ort:cuda`, which worker hub does not have: let TIDEMILL_ONNXRUNTIME"),
            "{message}"
        );
        assert_eq!(
            check(&[worker("hub", Some(&["ort", "ort:cuda"]))], &roles(&[("hub", "ort:cuda")])),
            Ok(())
        );
    }

    /// Roles that need these backends for the operator `see`.
    fn roles(needed: &[(&str, &str)]) -> BTreeMap<String, Role> {
        let role = |(name, backend): &(&str, &str)| {
            let backends = BTreeMap::from([((*backend).to_owned(), "see".to_owned())]);
            ((*name).to_owned(), Role { backends, ..Role::default() })
        };
        needed.iter().map(role).collect()
    }

    #[test]
    fn a_plan_that_needs_what_its_worker_lacks_is_refused_with_what_to_do() {
        let both = [worker("edge", Some(&["rten"])), worker("hub", Some(&["ort", "rten"]))];
        assert_eq!(check(&both, &roles(&[("hub", "ort"), ("edge", "rten")])), Ok(()));
        let message = check(&both, &roles(&[("edge", "ort")])).unwrap_err();
        for words in ["`see`", "backend `ort`", "worker edge does not", "ONNX Runtime", "`backend: rten`"] {
            assert!(message.contains(words), "`{words}` is not in {message}");
        }
        let message = check(&both, &roles(&[("edge", "quarter")])).unwrap_err();
        assert!(message.contains("`quarter`") && !message.contains("ONNX Runtime"), "{message}");
    }

    #[test]
    fn a_role_of_another_name_needs_one_worker_that_has_all() {
        let both = [worker("edge", Some(&["rten"])), worker("hub", Some(&["ort", "rten"]))];
        assert_eq!(check(&both, &roles(&[("local", "ort")])), Ok(()));
        let message = check(&both[..1], &roles(&[("local", "ort")])).unwrap_err();
        assert!(message.contains("worker edge does not have"), "{message}");
        let without = [both[0].clone(), worker("gate", Some(&["rten"]))];
        let message = check(&without, &roles(&[("local", "ort")])).unwrap_err();
        assert!(message.contains("none of the workers edge, gate has"), "{message}");
        // Its place counts, not its name.
        let mut placed = roles(&[("local", "ort")]);
        placed.values_mut().for_each(|role| role.worker = Some("edge".into()));
        assert!(check(&both, &placed).is_err());
    }

    #[test]
    fn who_is_not_there_or_says_nothing_is_not_judged() {
        let needed = roles(&[("edge", "ort")]);
        assert_eq!(check(&[], &needed), Ok(()));
        assert_eq!(check(&[worker("edge", None)], &needed), Ok(()));
        let lost = WorkerView { is_alive: false, ..worker("edge", Some(&["rten"])) };
        assert_eq!(check(&[lost], &needed), Ok(()));
        assert_eq!(check(&[worker("edge", Some(&["rten"]))], &roles(&[])), Ok(()));
    }

    #[test]
    fn a_worker_that_is_away_and_has_the_backend_is_waited_for() {
        let (needed, hub) = (roles(&[("edge", "ort")]), worker("hub", Some(&["rten"])));
        let away = |backends: Option<&[&str]>| WorkerView { is_alive: false, ..worker("edge", backends) };
        assert_eq!(check(&[away(Some(&["ort", "rten"])), hub.clone()], &needed), Ok(()));
        assert_eq!(check(&[away(None), hub.clone()], &needed), Ok(()));
        assert!(check(&[away(Some(&["rten"])), hub.clone()], &needed).is_err());
        let drained = WorkerView { is_drained: true, ..away(Some(&["ort"])) };
        assert!(check(&[drained, hub], &needed).is_err());
    }

    #[test]
    fn figures_of_what_a_worker_lacks_are_left_out() {
        let text = "
version: 1
workflow: {name: sight}
machines: [{worker_type: small, how: measured}, {worker_type: large, how: measured}]
services:
  - {operator: see, variant: m, backend: ort, worker_type: small, how: measured, batches: [{batch: 1, p75: 2ms}]}
  - {operator: see, variant: m, backend: rten, worker_type: small, how: measured, batches: [{batch: 1, p75: 3ms}]}
  - {operator: see, variant: m, backend: ort, worker_type: large, how: measured, batches: [{batch: 1, p75: 1ms}]}
  - {operator: pair, worker_type: small, how: measured, batches: [{batch: 1, p75: 1ms}]}
";
        let left = |views: &[WorkerView], in_use: &BTreeSet<(String, String)>| {
            let mut profile = Profile::parse(text, "profile.yaml").unwrap();
            let lines = leave_out(&mut profile, views, in_use);
            (profile.services.len(), lines)
        };
        let (both, nothing) =
            ([worker("edge", Some(&["rten"])), worker("hub", Some(&["ort", "rten"]))], BTreeSet::new());
        let (count, lines) = left(&both, &nothing);
        assert_eq!((count, lines.len()), (3, 1), "{lines:?}");
        assert!(lines[0].starts_with("plans do not use `ort` on `small`: edge cannot"), "{lines:?}");
        assert_eq!(left(&[worker("edge", None)], &nothing), (4, Vec::new()));
        // The plan's worker on the hub is still assessed when `edge` joins.
        let worker_of_plan = PlanWorker {
            id: "hub".into(),
            tier: "hub".into(),
            location: None,
            worker_type: "small".into(),
            price: None,
        };
        let plan = Plan {
            workers: vec![worker_of_plan],
            stages: vec![Stage { backend: Some("ort".into()), ..Stage::new("see", "see", "hub") }],
            ..Plan::new(PlanWorkflow { name: "sight".into(), digest: None })
        };
        assert_eq!(left(&both, &in_use(&plan)), (4, Vec::new()));
    }

    #[test]
    fn the_plan_names_a_backend_before_the_workflow_does() {
        let text = "
version: 1
name: sight
sources: [{id: rows, kind: csv, options: {path: rows.csv}}]
operators:
  - {id: see, kind: ml, input: rows, backend: ort, variants: [m.yaml]}
  - {id: some, kind: filter, input: see, options: {where: a > 1}}
sinks: [{id: out, kind: jsonl, input: some, options: {path: out.jsonl}}]
";
        let workflow = Workflow::parse(text, "workflow.yaml").unwrap();
        let stage = |backend: Option<&str>| Stage {
            variant: Some("m".into()),
            backend: backend.map(str::to_owned),
            ..Stage::new("see", "see", "edge")
        };
        assert_eq!(named(&workflow, &stage(None)), Some("ort"));
        assert_eq!(named(&workflow, &stage(Some("rten"))), Some("rten"));
        assert_eq!(named(&workflow, &stage(Some("auto"))), None);
        assert_eq!(named(&workflow, &Stage::new("some", "some", "edge")), None);
    }
}
