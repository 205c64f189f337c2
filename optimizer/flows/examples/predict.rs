//! Predicts how long operations of groups take on given links. Reads JSON from standard input, and prints JSON: the seconds of each group.
//!
//! ```text
//! echo '{"links": {"a": 12.5e6, "b": 6.25e6}, "groups": [{"operation": "all-reduce", "bytes": 1e6, "piece": 65536,
//!   "step": 0.0002, "rings": [[["a"], ["b"]]]}]}' | cargo run --release -p tidemill-flows --example predict
//! ```
//!
//! `links` have bytes per second. A group has a ring for each channel: the links from each member to the next one. Its bytes are cut evenly among
//! the rings. All groups begin at once, and share links. `all-reduce` takes 2 (n - 1) steps of the ring, `broadcast` goes from the first
//! member along the ring in pieces of `piece` bytes. `step` is the time of a step or a piece beside that of its bytes, in seconds.
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use tidemill_flows::patterns::{Route, barrier};
use tidemill_flows::{Flow, FlowError, FlowId, LinkId, Simulation};

#[derive(Deserialize)]
struct Task {
    links: BTreeMap<String, f64>,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    operation: Operation,
    bytes: f64,
    piece: f64,
    step: f64,
    rings: Vec<Vec<Vec<String>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    AllReduce,
    Broadcast,
}

fn main() -> Result<(), Box<dyn Error>> {
    let task: Task = serde_json::from_reader(std::io::stdin().lock())?;
    let mut simulation = Simulation::default();
    let mut links: BTreeMap<&str, LinkId> = BTreeMap::new();
    for (name, rate) in &task.links {
        links.insert(name, simulation.link(*rate)?);
    }
    let mut ends = Vec::new();
    for group in &task.groups {
        let mut last = Vec::new();
        for edges in &group.rings {
            let route = |edge: &Vec<String>| -> Result<Route, String> {
                let link = |name: &String| {
                    links.get(name.as_str()).copied().ok_or_else(|| format!("there is no link {name}"))
                };
                edge.iter().map(link).collect()
            };
            let routes = edges.iter().map(route).collect::<Result<Vec<Route>, String>>()?;
            let bytes = group.bytes / group.rings.len() as f64;
            last.extend(match group.operation {
                Operation::AllReduce => all_reduce(&mut simulation, &routes, bytes, group)?,
                Operation::Broadcast => broadcast(&mut simulation, &routes, bytes, group)?,
            });
        }
        ends.push(barrier(&mut simulation, &last)?);
    }
    simulation.run()?;
    let seconds: Vec<Option<f64>> = ends.into_iter().map(|end| simulation.end(end)).collect();
    println!("{}", serde_json::to_string(&seconds)?);
    Ok(())
}

/// Most pieces that a block is cut into: more of them change the prediction by less than a hundredth.
const MOST_PIECES: f64 = 32.0;

fn pieces(bytes: f64, piece: f64) -> usize {
    (bytes / piece.max(1.0)).ceil().clamp(1.0, MOST_PIECES) as usize
}

/// Adds the steps of an all-reduce: a member passes a piece of a block on when it came, after the pieces that it sends before.
fn all_reduce(
    simulation: &mut Simulation,
    routes: &[Route],
    bytes: f64,
    group: &Group,
) -> Result<Vec<FlowId>, FlowError> {
    let members = routes.len();
    let block = bytes / members as f64;
    let count = pieces(block, group.piece);
    let mut sent: Vec<Option<FlowId>> = vec![None; members];
    let mut arrived: Vec<Vec<FlowId>> = vec![Vec::new(); count];
    for _ in 0..2 * members.saturating_sub(1) {
        for before in &mut arrived {
            let mut now = Vec::with_capacity(members);
            for (member, route) in routes.iter().enumerate() {
                let mut waits: Vec<FlowId> = sent[member].into_iter().collect();
                if let Some(received) = before.get((member + members - 1) % members) {
                    waits.push(simulation.flow(Flow::pause(group.step).after(&[*received]))?);
                }
                let flow = Flow::new(route.clone(), block / count as f64).after(&waits);
                let flow = simulation.flow(flow)?;
                sent[member] = Some(flow);
                now.push(flow);
            }
            *before = now;
        }
    }
    Ok(sent.into_iter().flatten().collect())
}

/// Adds a broadcast from the first member along the ring. The last edge carries nothing.
fn broadcast(
    simulation: &mut Simulation,
    routes: &[Route],
    bytes: f64,
    group: &Group,
) -> Result<Vec<FlowId>, FlowError> {
    // A chain needs finer pieces than a ring: its end is as many pieces late as it has edges.
    let count = (bytes / group.piece.max(1.0)).ceil().max(1.0) as usize;
    let mut sent: Vec<Option<FlowId>> = vec![None; routes.len()];
    for _ in 0..count {
        let mut received: Option<FlowId> = None;
        for (member, route) in routes.iter().enumerate().take(routes.len().saturating_sub(1)) {
            let mut waits: Vec<FlowId> = sent[member].into_iter().collect();
            if let Some(received) = received {
                waits.push(simulation.flow(Flow::pause(group.step).after(&[received]))?);
            }
            let flow = simulation.flow(Flow::new(route.clone(), bytes / count as f64).after(&waits))?;
            sent[member] = Some(flow);
            received = Some(flow);
        }
    }
    Ok(sent.into_iter().flatten().collect())
}
