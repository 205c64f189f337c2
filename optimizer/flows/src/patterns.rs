//! Rings, trees and shuffles of flows. Each takes the flows that it waits for, and returns those whose ends are its end.
use crate::flow::{Flow, FlowError, FlowId, LinkId};
use crate::simulation::Simulation;

/// A route between two members.
pub type Route = Vec<LinkId>;

/// Adds a flow without bytes that ends when all of these have.
///
/// # Errors
/// The flows must exist.
pub fn barrier(simulation: &mut Simulation, flows: &[FlowId]) -> Result<FlowId, FlowError> {
    simulation.flow(Flow::pause(0.0).after(flows))
}

/// Adds the steps of a ring: `routes[i]` leads from member i to the next one, and each sends a piece of `bytes / n` in each step. A
/// member passes on what it has received in the step before. An all-reduce has 2(n - 1) steps, an all-gather n - 1.
///
/// # Errors
/// The links and flows must exist.
pub fn ring(
    simulation: &mut Simulation,
    routes: &[Route],
    bytes: f64,
    steps: usize,
    after: &[FlowId],
) -> Result<Vec<FlowId>, FlowError> {
    let members = routes.len();
    let mut last: Vec<FlowId> = Vec::new();
    for step in 0..steps {
        let mut current = Vec::with_capacity(members);
        for (member, route) in routes.iter().enumerate() {
            let flow = Flow::new(route.clone(), bytes / members as f64);
            let received = (member + members - 1) % members;
            let flow =
                if step == 0 { flow.after(after) } else { flow.after(&[last[member], last[received]]) };
            current.push(simulation.flow(flow)?);
        }
        last = current;
    }
    Ok(last)
}

/// Adds a ring with pieces so small that its steps do not matter: one flow an edge, which carries all that the steps would. It needs
/// 2(n - 1) times fewer flows than [`ring`], and takes as long where one link is the slowest all the time.
///
/// # Errors
/// The links and flows must exist.
pub fn streamed_ring(
    simulation: &mut Simulation,
    routes: &[Route],
    bytes: f64,
    steps: usize,
    after: &[FlowId],
) -> Result<Vec<FlowId>, FlowError> {
    let share = bytes * steps as f64 / routes.len().max(1) as f64;
    routes.iter().map(|route| simulation.flow(Flow::new(route.clone(), share).after(after))).collect()
}

/// A member of a tree other than the root.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its parent: the root is 0, and `members[i]` is i + 1. Parents come before their children.
    pub parent: usize,
    /// The way to the parent.
    pub up: Route,
    /// The way from the parent.
    pub down: Route,
}

/// Adds an all-reduce over a tree, in some pieces: each member sends a piece to its parent when its children have sent theirs, and the
/// root sends it back down.
///
/// # Errors
/// The links and flows must exist, and parents come first.
pub fn tree(
    simulation: &mut Simulation,
    members: &[Member],
    bytes: f64,
    pieces: usize,
    after: &[FlowId],
) -> Result<Vec<FlowId>, FlowError> {
    if let Some(member) =
        (1..).zip(members).find_map(|(own, member)| (member.parent >= own).then_some(member))
    {
        let value = member.parent as f64;
        return Err(FlowError::Range { what: "the parent of a member", value });
    }
    let piece = bytes / pieces.max(1) as f64;
    let mut up_before: Vec<Option<FlowId>> = vec![None; members.len()];
    let mut down_before = up_before.clone();
    for _ in 0..pieces.max(1) {
        let mut of_children: Vec<Vec<FlowId>> = vec![Vec::new(); members.len() + 1];
        for (position, member) in members.iter().enumerate().rev() {
            let mut waits = std::mem::take(&mut of_children[position + 1]);
            waits.extend(up_before[position]);
            waits.extend_from_slice(after);
            let flow = simulation.flow(Flow::new(member.up.clone(), piece).after(&waits))?;
            up_before[position] = Some(flow);
            of_children[member.parent].push(flow);
        }
        let mut arrived: Vec<Vec<FlowId>> = vec![std::mem::take(&mut of_children[0])];
        for (position, member) in members.iter().enumerate() {
            let mut waits = arrived[member.parent].clone();
            waits.extend(down_before[position]);
            let flow = simulation.flow(Flow::new(member.down.clone(), piece).after(&waits))?;
            down_before[position] = Some(flow);
            arrived.push(vec![flow]);
        }
    }
    Ok(down_before.into_iter().flatten().collect())
}

/// Adds an exchange of all with all: a flow of these bytes for each route.
///
/// # Errors
/// The links and flows must exist.
pub fn shuffle(
    simulation: &mut Simulation,
    routes: &[(Route, f64)],
    after: &[FlowId],
) -> Result<Vec<FlowId>, FlowError> {
    routes
        .iter()
        .map(|(route, bytes)| simulation.flow(Flow::new(route.clone(), *bytes).after(after)))
        .collect()
}
