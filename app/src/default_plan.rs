//! The plan of a workflow without one: one worker, one stage per operator, one thread for everything but inference (models
//! compute on threads of their own).
use crate::choice::Chosen;
use std::collections::BTreeMap;
use tidemill_spec::plan::{Plan, PlanEdge, PlanWorker, PlanWorkflow, RouteClass, Stage};
use tidemill_spec::units::TimeSpan;
use tidemill_spec::workflow::{Batching, Input, Workflow};

const WORKER: &str = "local";

/// Returns the plan; each operator with models gets the chosen one.
pub fn default_plan(workflow: &Workflow, chosen: &BTreeMap<String, Chosen>) -> Plan {
    let mut stages: Vec<Stage> =
        workflow.sources.iter().map(|source| stage(&source.id.value, None, None)).collect();
    let mut edges = Vec::new();
    for operator in &workflow.operators {
        let id = &operator.id.value;
        let variant = chosen.get(id).map(|chosen| chosen.id.clone());
        stages.push(Stage {
            device: operator.device.as_ref().and_then(|device| device.own()),
            ..stage(id, variant, operator.batching.as_ref())
        });
        edges.extend((0u32..).zip(&operator.inputs).map(|(port, input)| edge(input, id, port)));
    }
    for sink in &workflow.sinks {
        stages.push(stage(&sink.id.value, None, None));
        edges.push(edge(&sink.input, &sink.id.value, 0));
    }
    let route = stages.iter().map(|stage| (stage.operator.clone(), stage.id.clone())).collect();
    Plan {
        tick: workflow.run.tick.value,
        checkpoint_every: workflow.run.checkpoint_every.value,
        workers: vec![PlanWorker {
            id: WORKER.into(),
            tier: WORKER.into(),
            location: None,
            worker_type: WORKER.into(),
            price: None,
        }],
        stages,
        classes: vec![RouteClass { id: 0, share: 1.0, route }],
        edges,
        ..Plan::new(PlanWorkflow { name: workflow.name.value.clone(), digest: Some(workflow.digest()) })
    }
}

fn stage(operator: &str, variant: Option<String>, batching: Option<&Batching>) -> Stage {
    Stage {
        variant,
        max_batch: batching.map_or(1, |batching| batching.max_batch.value),
        batching_budget: batching.map_or(TimeSpan(0), |batching| batching.budget),
        ..Stage::new(operator, operator, WORKER)
    }
}

fn edge(input: &Input, to: &str, port: u32) -> PlanEdge {
    PlanEdge { freshness: input.freshness, ..PlanEdge::new(&input.from.value, to, port) }
}
