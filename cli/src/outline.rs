//! A workflow or a plan as boxes and arrows, for drawings.
use tidemill_spec::plan::{Freshness, Plan, PlanEdge};
use tidemill_spec::workflow::{Input, Workflow};

/// Role of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Source,
    Operator,
    Sink,
}

/// A box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) role: Role,
    /// Short description.
    pub(crate) text: String,
    /// The worker it is on; `None` in a workflow.
    pub(crate) worker: Option<String>,
}

/// An arrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrow {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Port if the receiver has several, freshness and carrier if they are named.
    pub(crate) text: String,
}

/// Boxes and arrows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) name: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) arrows: Vec<Arrow>,
}

/// The outline of a workflow.
pub(crate) fn of_workflow(workflow: &Workflow) -> Outline {
    let mut outline = Outline { name: workflow.name.value.clone(), nodes: Vec::new(), arrows: Vec::new() };
    let mut node = |id: &str, role: Role, text: String| {
        outline.nodes.push(Node { id: id.to_owned(), role, text, worker: None });
    };
    for source in &workflow.sources {
        let rate = source.rate.as_ref().map(|rate| format!(", {}", rate.value)).unwrap_or_default();
        node(&source.id, Role::Source, format!("{}{rate}", source.kind));
    }
    for operator in &workflow.operators {
        let mut text = operator.kind.value.clone();
        let names: Vec<&str> = operator.variants.iter().map(|path| stem(&path.value)).collect();
        if !names.is_empty() {
            text.push_str(&format!(": {}", names.join(" | ")));
        }
        text.extend(operator.named_backend().map(|backend| format!(", {backend}")));
        node(&operator.id, Role::Operator, text);
    }
    for sink in &workflow.sinks {
        node(&sink.id, Role::Sink, sink.kind.value.clone());
    }
    for operator in &workflow.operators {
        let several = operator.inputs.len() > 1;
        for (port, input) in operator.inputs.iter().enumerate() {
            outline.arrows.push(arrow(input, &operator.id, several.then_some(port)));
        }
    }
    outline.arrows.extend(workflow.sinks.iter().map(|sink| arrow(&sink.input, &sink.id, None)));
    outline
}

fn arrow(input: &Input, to: &str, port: Option<usize>) -> Arrow {
    let parts = [port.map(|port| format!("input {port}")), freshness(input.freshness).map(str::to_owned)];
    Arrow {
        from: input.from.value.clone(),
        to: to.to_owned(),
        text: parts.into_iter().flatten().collect::<Vec<_>>().join(", "),
    }
}

fn freshness(freshness: Option<Freshness>) -> Option<&'static str> {
    freshness.map(|freshness| match freshness {
        Freshness::Block => "block",
        Freshness::DropOldest => "drop oldest",
        Freshness::Latest => "latest",
    })
}

/// The name of a manifest without folder and extension.
pub(crate) fn stem(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.strip_suffix(".yaml").or(file.strip_suffix(".yml")).unwrap_or(file)
}

/// Formats the price of an edge's traffic: `0.0412 $/h`.
fn traffic_price(edge: &PlanEdge) -> Option<String> {
    let cost = edge.rate?.0 * edge.bytes_per_record?.0 as f64 * 3600.0 * edge.price?.0;
    Some(format!("{cost:.4} $/h"))
}

/// The outline of a plan for this workflow.
pub(crate) fn of_plan(workflow: &Workflow, plan: &Plan) -> Outline {
    let role = |operator: &str| {
        if workflow.sources.iter().any(|source| source.id == *operator) {
            Role::Source
        } else if workflow.sinks.iter().any(|sink| sink.id == *operator) {
            Role::Sink
        } else {
            Role::Operator
        }
    };
    let nodes = plan.stages.iter().map(|stage| {
        let mut parts = Vec::new();
        if stage.id != stage.operator {
            parts.push(stage.operator.clone());
        }
        let backend = stage.backend.as_ref().map(|backend| format!(" on {backend}")).unwrap_or_default();
        parts.extend(stage.variant.as_ref().map(|variant| format!("{variant}{backend}")));
        if stage.share < 1.0 {
            parts.push(format!("share {}", stage.share));
        }
        if stage.partitions > 1 {
            parts.push(format!("{} partitions", stage.partitions));
        }
        if stage.max_batch > 1 {
            parts.push(format!("batch {} within {}", stage.max_batch, stage.batching_budget));
        }
        if stage.slot_group != "main" {
            parts.push(format!("slot {}", stage.slot_group));
        }
        let (id, worker) = (stage.id.clone(), Some(stage.worker.clone()));
        Node { id, role: role(&stage.operator), text: parts.join(", "), worker }
    });
    let several = |to: &str| plan.edges.iter().any(|edge| edge.to == to && edge.input > 0);
    let arrows = plan.edges.iter().map(|edge| {
        let port = several(&edge.to).then(|| format!("input {}", edge.input));
        let rate = edge.rate.map(|rate| format!("{}/s", (rate.0 * 100.0).round() / 100.0));
        let parts = [port, freshness(edge.freshness).map(str::to_owned), rate, traffic_price(edge)];
        let text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        Arrow { from: edge.from.clone(), to: edge.to.clone(), text }
    });
    Outline { name: workflow.name.value.clone(), nodes: nodes.collect(), arrows: arrows.collect() }
}
