//! The oracle, which knows the day: of plans for all loads and states, the sequence with the fewest misses, and the
//! cheapest of those.
use super::day::{STEP, State};
use super::search::Plans;
use super::strategies::best;
use super::world::{World, workers};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_cluster::replanning::assessment::{assessed, mark_of};
use tidemill_cluster::replanning::load::{LEAST, STEP as LADDER};
use tidemill_spec::plan::Plan;

/// $ for a missed record: more than any plan can cost.
const MISSED: f64 = 1e3;
/// Halvings of the range of loads in the search for a plan's capacity.
const HALVINGS: usize = 9;

/// A plan in use.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) plan: Plan,
}

struct Candidate {
    plan: Plan,
    workers: BTreeSet<String>,
    /// $ per hour.
    price: f64,
    /// By state, the largest factor at which it keeps all levels.
    carries: BTreeMap<State, f64>,
}

/// Chooses the plan of each moment by dynamic programming over the complete day.
pub(super) fn plans_of(world: &World<'_>, plans: &Plans) -> Vec<Chosen> {
    let candidates = candidates(world, plans);
    let moments = &world.day.moments;
    // Costs on top of the later plan while it is prepared, by the plans before and after.
    let change = |before: &Candidate, after: &Candidate| {
        let both: BTreeSet<String> = before.workers.union(&after.workers).cloned().collect();
        (world.price(&both) - after.price) * STEP / 3600.0 + 1e-9
    };
    let changes: Vec<Vec<f64>> = candidates
        .iter()
        .map(|after| candidates.iter().map(|before| change(before, after)).collect())
        .collect();
    let mut costs = vec![0.0; candidates.len()];
    let mut from: Vec<Vec<usize>> = Vec::new();
    for (number, moment) in moments.iter().enumerate() {
        let own = |candidate: &Candidate| {
            let carried = candidate.carries.get(&moment.state).copied().unwrap_or(0.0);
            let missed = (moment.factor - carried).max(0.0) * world.workload.rate * STEP;
            candidate.price * STEP / 3600.0 + MISSED * missed
        };
        let mut next = Vec::new();
        let mut back = Vec::new();
        for (at, candidate) in candidates.iter().enumerate() {
            let change = |other: usize| if number == 0 || other == at { 0.0 } else { changes[at][other] };
            let before = (0..candidates.len()).map(|other| (costs[other] + change(other), other));
            let (cost, other) = before.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, at));
            next.push(cost + own(candidate));
            back.push(other);
        }
        costs = next;
        from.push(back);
    }
    let last = (0..candidates.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b]));
    let Some(mut at) = last else { return Vec::new() };
    let mut chosen = Vec::new();
    for back in from.iter().rev() {
        chosen.push(Chosen { plan: candidates[at].plan.clone() });
        at = back[at];
    }
    chosen.reverse();
    chosen
}

/// Returns the best plans for all loads of the day in all of its states, and the capacity of each in each state.
fn candidates(world: &World<'_>, plans: &Plans) -> Vec<Candidate> {
    let largest = world.day.largest() * LADDER;
    let mut all: BTreeMap<String, Plan> = BTreeMap::new();
    for state in world.day.states() {
        let mut factor = LEAST.max(0.1);
        while factor <= largest {
            if let Ok(plan) = best(world, plans, state, factor) {
                all.entry(mark_of(&plan)).or_insert(plan);
            }
            factor *= LADDER;
        }
    }
    let carries = |plan: &Plan, state: State| {
        let keeps = |factor: f64| {
            let found = assessed(&world.case(state, factor), plan, false);
            found.is_ok_and(|found| found.misses.is_empty())
        };
        let (mut low, mut high) = (0.0, largest);
        if keeps(high) {
            return high;
        }
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if keeps(middle) { low = middle } else { high = middle }
        }
        low
    };
    let all = all.into_values().map(|plan| {
        let states = world.day.states().into_iter();
        let carries = states.map(|state| (state, carries(&plan, state))).collect();
        let workers = workers(&plan);
        Candidate { price: world.price(&workers), workers, carries, plan }
    });
    all.collect()
}
