//! The policies of a plan: those of its workflow, then those of its infrastructure.
use super::{EdgePattern, InfrastructurePolicy, Policy};
use crate::infrastructure::Infrastructure;
use crate::plan::{Plan, PlanPolicy};
use crate::span::Located;
use crate::workflow::Workflow;
use std::collections::{HashMap, HashSet};

/// Prefix of the id of an infrastructure's policy where the workflow has one of that id.
const PREFIX: &str = "infrastructure-";

/// Returns the policies of a workflow, in their order, then those of the infrastructure that are for it. Their ids are unique.
pub fn resolve(workflow: &Workflow, infrastructure: Option<&Infrastructure>) -> Vec<PlanPolicy> {
    let own: Vec<&Policy> = workflow.policies.iter().collect();
    let ids = ids(&own);
    let mut taken: HashSet<String> = ids.iter().cloned().collect();
    let mut all: Vec<PlanPolicy> = own.into_iter().zip(ids).map(|(policy, id)| planned(policy, id)).collect();
    let declared = infrastructure.map_or(&[][..], |infrastructure| &infrastructure.policies);
    // Numbers count the policies for other workflows too, so that an id means the same policy in all plans.
    let ids = self::ids(&declared.iter().map(|declared| &declared.policy).collect::<Vec<_>>());
    let reserved: HashSet<String> = ids.iter().cloned().collect();
    for (InfrastructurePolicy { workflow: of, policy }, mut id) in declared.iter().zip(ids) {
        if of.as_ref().is_some_and(|of| of.value != workflow.name.value) {
            continue;
        }
        if taken.contains(&id) {
            id.insert_str(0, PREFIX);
            while taken.contains(&id) || reserved.contains(&id) {
                id.insert_str(0, PREFIX);
            }
        }
        taken.insert(id.clone());
        all.push(planned(policy, id));
    }
    all
}

/// Returns the policies of a plan that are not of its workflow, in the form of an infrastructure: for another plan of the same run
/// without the infrastructure file of the first.
pub fn added_to(plan: &Plan, workflow: &Workflow) -> Vec<InfrastructurePolicy> {
    let of_workflow: HashSet<String> = resolve(workflow, None).into_iter().map(|policy| policy.id).collect();
    let added = plan.policies.iter().filter(|policy| !of_workflow.contains(&policy.id));
    added
        .map(|policy| InfrastructurePolicy {
            workflow: None,
            policy: Policy {
                id: Some(policy.id.clone().into()),
                edge: EdgePattern { from: policy.from.clone(), to: policy.to.clone() }.into(),
                side: policy.side,
                kind: policy.kind.clone().into(),
                options: policy.options.clone(),
            },
        })
        .collect()
}

/// The ids of a file's policies: those given, else the kind and the first number that is free.
fn ids(policies: &[&Policy]) -> Vec<String> {
    let given = |policy: &&Policy| policy.id.as_ref().map(|id: &Located<String>| id.value.clone());
    let mut taken: HashSet<String> = policies.iter().filter_map(given).collect();
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    policies
        .iter()
        .map(|policy| {
            given(policy).unwrap_or_else(|| {
                let number = numbers.entry(policy.kind.as_str()).or_insert(0);
                loop {
                    *number += 1;
                    let id = format!("{}-{number}", policy.kind);
                    if taken.insert(id.clone()) {
                        return id;
                    }
                }
            })
        })
        .collect()
}

fn planned(policy: &Policy, id: String) -> PlanPolicy {
    PlanPolicy {
        id,
        from: policy.edge.from.clone(),
        to: policy.edge.to.clone(),
        side: policy.side,
        kind: policy.kind.value.clone(),
        options: policy.options.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanWorkflow;

    fn workflow(policies: &str) -> Workflow {
        let text = format!(
            "version: 1\nname: copy\nsources: [{{id: a, kind: csv}}]\nsinks: [{{id: b, kind: stdout, input: a}}]\n\
             policies: {policies}\n"
        );
        Workflow::parse(&text, "workflow.yaml").expect("is right")
    }

    fn infrastructure(policies: &str) -> Infrastructure {
        let text = format!(
            "version: 1\nname: x\ntiers: [{{id: edge, workers: [{{type: small, price: 1 $/h}}]}}]\npolicies: {policies}\n"
        );
        Infrastructure::parse(&text, "infrastructure.yaml").expect("is right")
    }

    fn ids_of(policies: &[PlanPolicy]) -> Vec<&str> {
        policies.iter().map(|policy| policy.id.as_str()).collect()
    }

    #[test]
    fn those_of_the_workflow_come_first_and_then_those_for_it() {
        let workflow = workflow("[{edge: a -> b, encrypt: }, {edge: '*', side: receiver, log: {level: 1}}]");
        let infrastructure = infrastructure(
            "[{edge: '* -> b', log: {}}, {edge: '*', workflow: other, log: {}}, {edge: x -> y, workflow: copy, trace: }]",
        );
        let all = resolve(&workflow, Some(&infrastructure));
        assert_eq!(ids_of(&all), ["encrypt-1", "log-1", "infrastructure-log-1", "trace-1"]);
        assert_eq!(ids_of(&resolve(&workflow, None)), ["encrypt-1", "log-1"]);
        assert_eq!((all[2].from.as_deref(), all[2].to.as_deref()), (None, Some("b")));
        assert!(all[1].options.get("level").is_some_and(|level| level.span.line() == Some(5)));
        let applying = |from: &str, to: &str| all.iter().filter(|policy| policy.applies_to(from, to)).count();
        assert_eq!([applying("a", "b"), applying("x", "y"), applying("x", "b")], [3, 2, 2]);
    }

    #[test]
    fn ids_are_unique() {
        let workflow = workflow(
            "[{edge: '*', log: }, {id: log-1, edge: '*', log: }, {id: other, edge: '*', log: }, {edge: '*', log: }]",
        );
        let infrastructure = infrastructure(
            "[{id: other, edge: '*', log: }, {id: infrastructure-other, edge: '*', log: }, {edge: '*', log: }]",
        );
        assert_eq!(
            ids_of(&resolve(&workflow, Some(&infrastructure))),
            [
                "log-2",
                "log-1",
                "other",
                "log-3",
                "infrastructure-infrastructure-other",
                "infrastructure-other",
                "infrastructure-log-1"
            ]
        );
    }

    #[test]
    fn a_later_plan_keeps_what_an_infrastructure_added() {
        let workflow = workflow("[{edge: a -> b, log: {}}]");
        let mut known =
            infrastructure("[{edge: '*', workflow: copy, log: {level: 2}}, {edge: a -> b, trace: }]");
        let first = Plan {
            policies: resolve(&workflow, Some(&known)),
            ..Plan::new(PlanWorkflow { name: "copy".into(), digest: None })
        };
        known.policies = added_to(&first, &workflow);
        assert_eq!(resolve(&workflow, Some(&known)), first.policies);
        assert!(known.check().is_empty(), "{}", known.check());
    }
}
