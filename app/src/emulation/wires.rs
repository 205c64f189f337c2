//! The links between the places of a plan, from the infrastructure.
use super::place;
use crate::failure::{Failure, Kind};
use std::collections::BTreeMap;
use tidemill_engine::{Program, WireSpec};
use tidemill_spec::infrastructure::{Infrastructure, Link};
use tidemill_spec::plan::{Plan, PlanEdge, PlanWorker};

/// One direction between two places, with its edges.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulatedWire {
    /// The settings that the engine enforces.
    pub spec: WireSpec,
    /// Price of traffic, in $ per byte.
    pub dollars_per_byte: f64,
    /// The edges of the plan on it.
    pub edges: Vec<PlanEdge>,
}

impl EmulatedWire {
    /// `edge -> cloud`.
    pub fn name(&self) -> String {
        format!("{} -> {}", self.spec.from, self.spec.to)
    }

    /// Bytes per second expected by the plan; `None` if an edge has no figure.
    pub fn predicted(&self) -> Option<f64> {
        let of = |edge: &PlanEdge| Some(edge.rate?.0 * edge.bytes_per_record?.0 as f64);
        self.edges.iter().map(of).sum()
    }

    /// Whether it delays anything.
    pub fn enforces(&self) -> bool {
        self.spec.bandwidth.is_some() || self.spec.delay > 0
    }
}

/// Returns all links used by records of the plan. A sink is at the place of its input: the optimizer counts neither traffic
/// nor time for it, and neither does this.
pub(super) fn of(
    program: &Program,
    infrastructure: Option<&Infrastructure>,
) -> Result<Vec<EmulatedWire>, Failure> {
    let plan = &program.plan;
    let mut ways: Vec<EmulatedWire> = Vec::new();
    for edge in &plan.edges {
        let to_sink = plan
            .stages
            .iter()
            .any(|stage| stage.id == edge.to && program.sinks.contains_key(&stage.operator));
        let (Some(from), Some(to)) = (worker(plan, &edge.from), worker(plan, &edge.to)) else { continue };
        if to_sink || from.id == to.id {
            continue;
        }
        let (here, there) = (place(from), place(to));
        let link = infrastructure.and_then(|infrastructure| infrastructure.link(&from.tier, &to.tier));
        // Inside a site traffic is free, unless the tier has one site and a link to itself.
        if here == there && (link.is_none() || from.location.is_some()) {
            continue;
        }
        let link = link.ok_or_else(|| missing(edge, (&here, &there), infrastructure))?;
        match ways.iter_mut().find(|way| way.spec.from == here && way.spec.to == there) {
            Some(way) => way.edges.push(edge.clone()),
            None => ways.push(way(here, there, link, edge)),
        }
    }
    Ok(ways)
}

fn worker<'a>(plan: &'a Plan, stage: &str) -> Option<&'a PlanWorker> {
    let stage = plan.stages.iter().find(|known| known.id == stage)?;
    plan.workers.iter().find(|worker| worker.id == stage.worker)
}

fn way(from: String, to: String, link: &Link, edge: &PlanEdge) -> EmulatedWire {
    EmulatedWire {
        spec: WireSpec {
            from,
            to,
            bandwidth: link.bandwidth.as_ref().map(|bandwidth| bandwidth.0),
            delay: link.delay.0,
        },
        dollars_per_byte: link.price.0,
        edges: vec![edge.clone()],
    }
}

fn missing(edge: &PlanEdge, (from, to): (&str, &str), infrastructure: Option<&Infrastructure>) -> Failure {
    let way = format!("the plan sends `{}` -> `{}` from `{from}` to `{to}`", edge.from, edge.to);
    match infrastructure {
        None => Failure::new(
            Kind::Configuration,
            format!("{way}: a plan does not contain the bandwidth, delay and price of that link"),
        )
        .with_help("give the infrastructure of the plan: `--infra FILE`"),
        Some(known) => {
            Failure::new(Kind::Configuration, format!("{way}, but `{}` has no such link", known.name))
                .with_help(format!(
                    "add `- {{from: {}, to: {}}}` to its `links`, or plan again",
                    from.split('/').next().unwrap_or(from),
                    to.split('/').next().unwrap_or(to)
                ))
        }
    }
}

/// Index of the link by edge.
pub(super) fn edges(ways: &[EmulatedWire]) -> BTreeMap<(String, String, u32), usize> {
    let of = |(number, way): (usize, &EmulatedWire)| {
        let name = move |edge: &PlanEdge| ((edge.from.clone(), edge.to.clone(), edge.input), number);
        way.edges.iter().map(name).collect::<Vec<_>>()
    };
    ways.iter().enumerate().flat_map(of).collect()
}
