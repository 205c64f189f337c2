//! The links between the places of a plan, from the infrastructure: those of edges, and those to devices and back.
use super::speeds::StageSpeed;
use super::{on_devices, place};
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
    /// The tensors of models on devices on it.
    pub tensors: Vec<Tensors>,
}

/// Tensors of a stage on their way to its device, or back.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensors {
    /// Stage id.
    pub stage: String,
    /// Whether they go to the device.
    pub is_there: bool,
    /// Bytes of a record.
    pub bytes_per_record: u64,
    /// Records per second by the plan; `None` if it has no figure.
    pub rate: Option<f64>,
}

impl EmulatedWire {
    /// `edge -> cloud`.
    pub fn name(&self) -> String {
        format!("{} -> {}", self.spec.from, self.spec.to)
    }

    /// Bytes per second expected by the plan; `None` if an edge or a stage has no figure.
    pub fn predicted(&self) -> Option<f64> {
        let of = |edge: &PlanEdge| Some(edge.rate?.0 * edge.bytes_per_record?.0 as f64);
        let tensors = |tensors: &Tensors| Some(tensors.rate? * tensors.bytes_per_record as f64);
        self.edges.iter().map(of).chain(self.tensors.iter().map(tensors)).sum()
    }

    /// Seconds that bytes take, if nothing else is on the way.
    fn seconds(&self, bytes: u64) -> f64 {
        let sending =
            self.spec.bandwidth.map_or(0.0, |bandwidth| bytes as f64 * 8.0 / bandwidth.max(1) as f64);
        sending + self.spec.delay as f64 / 1e9
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
        let what = || format!("the plan sends `{}` -> `{}`", edge.from, edge.to);
        let link = link((&from.tier, &here), (&to.tier, &there), infrastructure, what)?;
        if let Some(link) = link {
            let number = way(&mut ways, here, there, link);
            ways[number].edges.push(edge.clone());
        }
    }
    Ok(ways)
}

/// Positions of the wires to a device and back.
type Both = (Option<usize>, Option<usize>);

/// Adds the paths of models on devices to the links, their part in the speeds, and returns the positions to the device and back by
/// stage: none where both are at one place.
pub(super) fn add_tensors(
    ways: &mut Vec<EmulatedWire>,
    program: &Program,
    infrastructure: Option<&Infrastructure>,
    speeds: &mut [StageSpeed],
) -> Result<BTreeMap<String, Both>, Failure> {
    let plan = &program.plan;
    let mut positions = BTreeMap::new();
    for speed in speeds {
        let records = u64::from(speed.max_batch.max(1));
        let (Some(on), Some(own)) = (speed.device.as_mut(), worker(plan, &speed.stage)) else { continue };
        let Some(device) = plan.devices.iter().find(|device| device.id == on.device) else { continue };
        let mut numbers = (None, None);
        // Within a machine nothing is on a link.
        if device.worker != own.id {
            let (tier, at) = on_devices::place_of(plan, infrastructure, device)?;
            let here = place(own);
            let rate = planned_rate(plan, &speed.stage);
            let mut add = |from: (&str, &str), to: (&str, &str), is_there: bool, bytes: u64| {
                let what = || {
                    format!(
                        "the model of stage `{}` on the device `{}` sends tensors",
                        speed.stage, on.device
                    )
                };
                let Some(link) = link(from, to, infrastructure, what)? else { return Ok(None) };
                let number = way(ways, from.1.to_owned(), to.1.to_owned(), link);
                on.network += ways[number].seconds(bytes * records);
                let tensors = Tensors { stage: speed.stage.clone(), is_there, bytes_per_record: bytes, rate };
                ways[number].tensors.push(tensors);
                Ok::<_, Failure>(Some(number))
            };
            let (sent, received) = (on.sent, on.received);
            numbers.0 = add((&own.tier, &here), (&tier, &at), true, sent)?;
            numbers.1 = add((&tier, &at), (&own.tier, &here), false, received)?;
        }
        positions.insert(speed.stage.clone(), numbers);
    }
    Ok(positions)
}

/// Records per second that reach a stage by the plan.
fn planned_rate(plan: &Plan, stage: &str) -> Option<f64> {
    let into = plan.edges.iter().filter(|edge| edge.to == stage && edge.input == 0);
    into.map(|edge| Some(edge.rate?.0)).sum()
}

/// Returns the link between two places, each with its tier. Inside a site traffic is free, unless the tier has one site and a link to
/// itself.
fn link<'a>(
    (from, here): (&str, &str),
    (to, there): (&str, &str),
    infrastructure: Option<&'a Infrastructure>,
    what: impl Fn() -> String,
) -> Result<Option<&'a Link>, Failure> {
    let link = infrastructure.and_then(|infrastructure| infrastructure.link(from, to));
    if here == there && (link.is_none() || here.contains('/')) {
        return Ok(None);
    }
    link.map(Some).ok_or_else(|| missing(&what(), (here, there), infrastructure))
}

fn worker<'a>(plan: &'a Plan, stage: &str) -> Option<&'a PlanWorker> {
    let stage = plan.stages.iter().find(|known| known.id == stage)?;
    plan.workers.iter().find(|worker| worker.id == stage.worker)
}

/// Position of the way between two places, which is added if it is new.
fn way(ways: &mut Vec<EmulatedWire>, from: String, to: String, link: &Link) -> usize {
    let known = ways.iter().position(|way| way.spec.from == from && way.spec.to == to);
    known.unwrap_or_else(|| {
        ways.push(EmulatedWire {
            spec: WireSpec {
                from,
                to,
                bandwidth: link.bandwidth.as_ref().map(|bandwidth| bandwidth.0),
                delay: link.delay.0,
            },
            dollars_per_byte: link.price.0,
            edges: Vec::new(),
            tensors: Vec::new(),
        });
        ways.len() - 1
    })
}

fn missing(what: &str, (from, to): (&str, &str), infrastructure: Option<&Infrastructure>) -> Failure {
    let way = format!("{what} from `{from}` to `{to}`");
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
