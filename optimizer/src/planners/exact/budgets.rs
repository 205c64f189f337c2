//! Latency budgets per operator and location, as sets of columns that a plan may use.
//!
//! With a budget for each operator at each location, and with the pairs of locations between which records may go, every
//! route ends in time as soon as the longest path over the budgets does; what is left is a program without latency, which
//! is solved quickly. Budgets by location let a fast machine in one place stand for a slow link to it, which one budget
//! per operator does not. Which budgets are best is searched from outside: a plan seldom uses up its budgets, and what it
//! leaves can be given to others.
use super::model::Model;
use super::prepared::Prepared;
use super::program::Column;
use crate::problem::Producer;
use crate::realise::SMALL_SHARE;

/// Rounding of sums of seconds.
const ROUNDING: f64 = 1e-9;

/// An operator, or an origin of sources, at a location.
#[derive(Debug)]
struct Node {
    /// None for an origin, which takes no time.
    operator: Option<usize>,
    /// Latencies that occur, rising.
    steps: Vec<f64>,
    /// Seconds from sources with one location.
    source: f64,
    /// Latest end; infinite where no limit looks at it.
    deadline: f64,
    /// Shares with their latency.
    shares: Vec<(f64, Column)>,
}

/// Records of some variants from one node to another.
#[derive(Debug)]
struct Pair {
    from: usize,
    to: usize,
    seconds: f64,
    flow: Column,
}

/// Operators by location in topological order, and what leads from one to the next.
#[derive(Debug)]
pub(super) struct Paths {
    nodes: Vec<Node>,
    pairs: Vec<Pair>,
}

/// Which columns a plan may use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Budgets {
    /// Per node: most seconds of its own; minus infinity where it is not used.
    own: Vec<f64>,
    /// Per pair.
    open: Vec<bool>,
}

impl Paths {
    pub(super) fn new(prepared: &Prepared<'_>, model: &Model) -> Self {
        let operators = prepared.problem.operators.len();
        let mut nodes = Vec::new();
        let mut place = vec![vec![None; prepared.problem.locations.len()]; prepared.nodes()];
        for node in (operators..prepared.nodes()).chain(0..operators) {
            for &location in &prepared.domains[node] {
                place[node][location] = Some(nodes.len());
                nodes.push(Self::node(prepared, model, node, location));
            }
        }
        let mut pairs = Vec::new();
        for (index, link) in prepared.links.iter().enumerate() {
            for (group, from, to, flow) in model.link_columns(index) {
                if let (Some(before), Some(after)) = (place[link.from][from], place[link.to][to]) {
                    let seconds = prepared.link_seconds(link, group, from, to);
                    pairs.push(Pair { from: before, to: after, seconds, flow });
                }
            }
        }
        Self { nodes, pairs }
    }

    fn node(prepared: &Prepared<'_>, model: &Model, node: usize, location: usize) -> Node {
        if node >= prepared.problem.operators.len() {
            let (steps, shares) = (vec![0.0], Vec::new());
            return Node { operator: None, steps, source: 0.0, deadline: f64::INFINITY, shares };
        }
        let choices = &prepared.choices[node];
        let there = model.shares[node].iter().filter(|(index, _)| choices[*index].location == location);
        let shares: Vec<(f64, Column)> = there.map(|&(index, c)| (choices[index].latency, c)).collect();
        let mut steps: Vec<f64> = shares.iter().map(|(seconds, _)| *seconds).collect();
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        let is_fed = prepared.problem.inputs_of(node).into_iter().any(|edge| {
            matches!(prepared.problem.edges[edge].from, Producer::Source(s) if prepared.source_node[s].is_none())
        });
        let source = choices.iter().find(|choice| choice.location == location);
        Node {
            operator: Some(node),
            steps,
            source: source.filter(|_| is_fed).map_or(0.0, |choice| choice.source_latency),
            deadline: prepared.deadline[node].unwrap_or(f64::INFINITY),
            shares,
        }
    }

    /// Earliest time at which all of a node's records have come, on the slowest way within the budgets.
    fn begins(&self, budgets: &Budgets) -> Vec<f64> {
        let mut begins: Vec<f64> = self.nodes.iter().map(|node| node.source).collect();
        // Pairs stand in the order of their receivers' first inputs, not of the nodes; so go by node.
        for node in 0..self.nodes.len() {
            for (pair, _) in self.pairs.iter().zip(&budgets.open).filter(|(p, open)| **open && p.to == node) {
                begins[node] = begins[node].max(begins[pair.from] + budgets.own[pair.from] + pair.seconds);
            }
        }
        begins
    }

    /// Latest time at which each node may end.
    fn ends(&self, budgets: &Budgets) -> Vec<f64> {
        let mut ends: Vec<f64> = self.nodes.iter().map(|node| node.deadline).collect();
        for node in (0..self.nodes.len()).rev() {
            for (pair, _) in self.pairs.iter().zip(&budgets.open).filter(|(p, open)| **open && p.from == node)
            {
                ends[node] = ends[node].min(ends[pair.to] - budgets.own[pair.to] - pair.seconds);
            }
        }
        ends
    }

    /// Whether every route within the budgets ends in time.
    pub(super) fn keep(&self, budgets: &Budgets) -> bool {
        let begins = self.begins(budgets);
        let nodes = self.nodes.iter().zip(&begins).zip(&budgets.own);
        nodes.into_iter().all(|((node, begin), own)| begin + own <= node.deadline + ROUNDING)
    }

    /// Whether these are budgets of such paths.
    pub(super) fn fit(&self, budgets: &Budgets) -> bool {
        (budgets.own.len(), budgets.open.len()) == (self.nodes.len(), self.pairs.len())
    }

    /// Columns that may not be used.
    pub(super) fn closed(&self, budgets: &Budgets) -> Vec<Column> {
        let pairs = self.pairs.iter().zip(&budgets.open).filter(|(_, open)| !**open);
        let mut closed: Vec<Column> = pairs.map(|(pair, _)| pair.flow).collect();
        for (node, own) in self.nodes.iter().zip(&budgets.own) {
            let slow = node.shares.iter().filter(|(seconds, _)| *seconds > own + ROUNDING);
            closed.extend(slow.map(|(_, column)| *column));
        }
        closed
    }

    /// What a point uses.
    pub(super) fn used(&self, values: &[f64]) -> Budgets {
        let own = |node: &Node| match node.operator {
            None => 0.0,
            Some(_) => {
                let used = node.shares.iter().filter(|(_, column)| values[*column] > SMALL_SHARE);
                used.map(|(seconds, _)| *seconds).fold(f64::NEG_INFINITY, f64::max)
            }
        };
        Budgets {
            own: self.nodes.iter().map(own).collect(),
            open: self.pairs.iter().map(|pair| values[pair.flow] > SMALL_SHARE).collect(),
        }
    }

    /// Budgets to begin with: all operators as many times slower than their fastest as there is time for, over ways of
    /// at most so many seconds, for each length of way that occurs.
    pub(super) fn stretched(&self) -> Vec<Budgets> {
        let mut lengths: Vec<f64> = self.pairs.iter().map(|pair| pair.seconds).collect();
        lengths.sort_by(f64::total_cmp);
        lengths.dedup_by(|a, b| *a - *b < 1e-4);
        if lengths.is_empty() {
            lengths.push(0.0);
        }
        let lengths = (0..LENGTHS.min(lengths.len()))
            .map(|index| lengths[index * (lengths.len() - 1) / (LENGTHS.min(lengths.len()) - 1).max(1)]);
        let mut fastest =
            vec![f64::INFINITY; self.nodes.iter().filter_map(|n| n.operator).max().map_or(0, |v| v + 1)];
        for node in &self.nodes {
            if let (Some(operator), Some(&first)) = (node.operator, node.steps.first()) {
                fastest[operator] = fastest[operator].min(first);
            }
        }
        let mut all = Vec::new();
        for length in lengths {
            let of = |own: &dyn Fn(f64) -> f64| Budgets {
                own: self
                    .nodes
                    .iter()
                    .map(|node| match node.operator {
                        None => 0.0,
                        Some(operator) => step_below(node, own(fastest[operator])),
                    })
                    .collect(),
                open: self.pairs.iter().map(|pair| pair.seconds <= length + 1e-4).collect(),
            };
            // Slower by a factor, by as much each, and both.
            for (times, plus) in [(1.0, 0.0), (0.0, 1.0), (1.0, 0.05)] {
                let at = |part: f64| of(&|first: f64| first * (1.0 + part * times) + part * plus);
                let (mut low, mut high) = (0.0f64, 64.0f64);
                if !self.keep(&at(low)) {
                    continue;
                }
                for _ in 0..30 {
                    let middle = 0.5 * (low + high);
                    if self.keep(&at(middle)) { low = middle } else { high = middle }
                }
                let mut budgets = at(low);
                self.fill(&mut budgets, None, true);
                if !all.contains(&budgets) {
                    all.push(budgets);
                }
            }
        }
        all
    }

    /// Budgets around those of a plan, each with what is left given to another operator first.
    pub(super) fn around(&self, used: &Budgets) -> Vec<Budgets> {
        let mut operators: Vec<usize> = self.nodes.iter().filter_map(|node| node.operator).collect();
        operators.dedup();
        let firsts = std::iter::once(None).chain(operators.into_iter().map(Some));
        let mut all: Vec<Budgets> = Vec::new();
        for first in firsts {
            for pairs_first in [true, false] {
                let mut budgets = used.clone();
                self.fill(&mut budgets, first, pairs_first);
                if !all.contains(&budgets) {
                    all.push(budgets);
                }
            }
        }
        all
    }

    /// Gives away what time is left: to one operator first, then to ways, or the other way round, then to all.
    fn fill(&self, budgets: &mut Budgets, first: Option<usize>, pairs_first: bool) {
        if !pairs_first {
            self.raise(budgets, |operator| Some(operator) == first);
        }
        // What was not used may be, at its fastest.
        let (begins, ends) = (self.begins(budgets), self.ends(budgets));
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(&fastest) = node.steps.first() else { continue };
            if budgets.own[index] < fastest && begins[index] + fastest <= ends[index] + ROUNDING {
                budgets.own[index] = fastest;
            }
        }
        if pairs_first {
            self.raise(budgets, |operator| Some(operator) == first);
        }
        let mut begins = self.begins(budgets);
        let mut ends = self.ends(budgets);
        for index in 0..self.pairs.len() {
            let pair = &self.pairs[index];
            let (before, after) = (budgets.own[pair.from], budgets.own[pair.to]);
            if budgets.open[index] || before == f64::NEG_INFINITY || after == f64::NEG_INFINITY {
                continue;
            }
            let comes = begins[pair.from] + before + pair.seconds;
            if comes + after <= ends[pair.to] + ROUNDING {
                budgets.open[index] = true;
                if comes > begins[pair.to] {
                    begins = self.begins(budgets);
                }
                if ends[pair.to] - after - pair.seconds < ends[pair.from] {
                    ends = self.ends(budgets);
                }
            }
        }
        self.raise(budgets, |_| true);
    }

    /// Raises the budgets of some operators as far as there is time.
    fn raise(&self, budgets: &mut Budgets, is_raised: impl Fn(usize) -> bool) {
        for (index, node) in self.nodes.iter().enumerate() {
            if budgets.own[index] == f64::NEG_INFINITY || !node.operator.is_some_and(&is_raised) {
                continue;
            }
            let most = self.ends(budgets)[index] - self.begins(budgets)[index];
            budgets.own[index] = budgets.own[index].max(step_below(node, most));
        }
    }
}

/// Lengths of ways that are tried.
const LENGTHS: usize = 4;

/// The largest latency that occurs within some seconds; minus infinity where none does.
fn step_below(node: &Node, seconds: f64) -> f64 {
    node.steps.iter().copied().filter(|step| *step <= seconds + ROUNDING).fold(f64::NEG_INFINITY, f64::max)
}
