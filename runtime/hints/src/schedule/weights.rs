//! The linear program: how often each machine and each rack is the one that passes data on.
//!
//! In a tree that crosses each rack once, the machines of a rack form a tree, and the racks form one. What a link carries is
//! the number of neighbours of its end. Mixed over all trees of a rack of m machines, those numbers are what they are if one
//! machine at a time is the *hub* that all others of the rack hang on. The same holds for racks. And the edges to other racks
//! may begin at any machine of their rack. So three kinds of shares say all: how long each machine is hub of its rack, how long
//! each rack is the hub of all, and how many edges to other racks each machine has. Their sums are known, and each link limits
//! some of them.
//!
//! Where one link decides the time, the others could be loaded in many ways. Rates are never exact, so the program also keeps
//! low what the slowest machine of each rack takes, and the slowest rack: for a small part of its objective.
use super::{Goal, ScheduleError};
use crate::tree::{Direction, Link, Tree};
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};

/// The weight of all links that do not decide the time, beside the one that does.
const EVENNESS: f64 = 1e-4;

/// The solution of the program.
#[derive(Debug, Clone, Default)]
pub(super) struct Shares {
    /// How long each machine is the hub of its rack. They add up to 1 in each rack.
    pub(super) hubs: Vec<f64>,
    /// How long each rack is the hub of all. They add up to 1.
    pub(super) racks: Vec<f64>,
    /// Edges to other racks of each machine; of a broadcast only those that it sends by.
    pub(super) crossings: Vec<f64>,
}

/// The cost of a goal whatever is chosen.
pub(super) struct Fixed<'a> {
    tree: &'a Tree,
    goal: Goal,
}

impl<'a> Fixed<'a> {
    pub(super) fn of(tree: &'a Tree, goal: Goal) -> Self {
        Self { tree, goal }
    }

    /// Neighbours within its rack that a machine always serves.
    fn base(&self, machine: usize) -> f64 {
        let alone = self.tree.racks()[self.tree.rack_of(machine)].len() < 2;
        let always = match self.goal {
            Goal::AllReduce => true,
            Goal::Broadcast { root } => machine == root,
        };
        f64::from(u8::from(always && !alone))
    }

    /// Neighbours within its rack that the hub serves beyond that.
    fn of_hub(&self, rack: usize) -> f64 {
        let size = self.tree.racks()[rack].len();
        let others = match self.goal {
            Goal::Broadcast { root } if self.tree.rack_of(root) != rack => size - 1,
            _ => size.saturating_sub(2),
        };
        others as f64
    }

    /// Racks that a rack always serves.
    pub(super) fn rack_base(&self, rack: usize) -> f64 {
        let always = match self.goal {
            Goal::AllReduce => true,
            Goal::Broadcast { root } => self.tree.rack_of(root) == rack,
        };
        f64::from(u8::from(always && self.tree.racks().len() > 1))
    }

    /// Racks that the hub of all serves beyond that.
    pub(super) fn of_hub_rack(&self) -> f64 {
        self.tree.racks().len().saturating_sub(2) as f64
    }

    /// The rate of a node, as far as the shares load it: what it sends, and of an all-reduce what it receives, which is as much.
    fn rate(&self, rates: &[f64], link: impl Fn(Direction) -> Link) -> f64 {
        let [up, down] =
            [Direction::Up, Direction::Down].map(|direction| rates[self.tree.id(link(direction))]);
        if self.goal == Goal::AllReduce { up.min(down) } else { up }
    }

    /// The time that the receivers of a broadcast need, which no choice changes: each machine and each rack takes it in once.
    fn least(&self, rates: &[f64]) -> f64 {
        let Goal::Broadcast { root } = self.goal else { return 0.0 };
        let home = self.tree.rack_of(root);
        let machines = (0..self.tree.machines()).filter(|machine| *machine != root);
        let racks = (0..self.tree.racks().len()).filter(|rack| *rack != home);
        machines
            .map(|machine| Link::Machine(machine, Direction::Down))
            .chain(racks.map(|rack| Link::Rack(rack, Direction::Down)))
            .map(|link| 1.0 / rates[self.tree.id(link)])
            .fold(0.0, f64::max)
    }
}

/// Solves the program.
pub(super) fn shares(tree: &Tree, rates: &[f64], goal: Goal) -> Result<Shares, ScheduleError> {
    let fixed = Fixed::of(tree, goal);
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let groups = tree.racks().len() + 1;
    let time = program.add_var(1.0, (fixed.least(rates), f64::INFINITY));
    let mut column = |count: usize, cost: f64, high: f64| -> Vec<Variable> {
        (0..count).map(|_| program.add_var(cost, (0.0, high))).collect()
    };
    let hubs = column(tree.machines(), 0.0, 1.0);
    let racks = column(tree.racks().len(), 0.0, 1.0);
    let crossings = column(tree.machines(), 0.0, f64::INFINITY);
    // The times of the machines of each rack, and of all racks.
    let times = column(groups, EVENNESS / groups as f64, f64::INFINITY);
    let one = |variables: &mut dyn Iterator<Item = Variable>| {
        let mut sum = LinearExpr::empty();
        variables.for_each(|variable| sum.add(variable, 1.0));
        sum
    };
    program.add_constraint(one(&mut racks.iter().copied()), ComparisonOp::Eq, 1.0);
    for of_group in &times {
        program.add_constraint([(*of_group, 1.0), (time, -1.0)], ComparisonOp::Le, 0.0);
    }
    for (rack, members) in tree.racks().iter().enumerate() {
        program.add_constraint(one(&mut members.iter().map(|m| hubs[*m])), ComparisonOp::Eq, 1.0);
        let mut edges = one(&mut members.iter().map(|m| crossings[*m]));
        edges.add(racks[rack], -fixed.of_hub_rack());
        program.add_constraint(edges, ComparisonOp::Eq, fixed.rack_base(rack));
        let mut load = LinearExpr::empty();
        load.add(racks[rack], fixed.of_hub_rack());
        load.add(times[groups - 1], -fixed.rate(rates, |direction| Link::Rack(rack, direction)));
        program.add_constraint(load, ComparisonOp::Le, -fixed.rack_base(rack));
        for machine in members {
            let mut load = LinearExpr::empty();
            load.add(hubs[*machine], fixed.of_hub(rack));
            load.add(crossings[*machine], 1.0);
            // The root of a broadcast has no choice.
            let limit = if goal == (Goal::Broadcast { root: *machine }) { time } else { times[rack] };
            load.add(limit, -fixed.rate(rates, |direction| Link::Machine(*machine, direction)));
            program.add_constraint(load, ComparisonOp::Le, -fixed.base(*machine));
        }
    }
    let failed = |reason: String| ScheduleError::Solver(reason);
    let outcome = program.solve().map_err(|error| failed(error.to_string()))?;
    let solution = outcome.into_solution().map_err(|stopped| failed(format!("{stopped:?}")))?;
    let values = |variables: &[Variable]| -> Vec<f64> {
        variables.iter().map(|variable| solution.var_value(*variable).max(0.0)).collect()
    };
    Ok(Shares { hubs: values(&hubs), racks: values(&racks), crossings: values(&crossings) })
}
