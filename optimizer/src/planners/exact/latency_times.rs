//! A bound under latency limits: every share of the keys keeps the limit by itself, with times rounded down to points.
//!
//! In a plan each key has a start and an end time at each operator. Rounded down to the points of a [`TimeGrid`], the
//! times of a route still fit into the limit. So the shares of the keys by operator, location, start point and duration
//! form a flow over time: arrivals may wait, but cannot start earlier. All this is linear in the shares, without a
//! binary. Unlike the mean latency, it does not let a fast share compensate a slow one. Two things are relaxed: the
//! rounding, and that the links of a join agree on the times of each key only in total.
use super::model::Model;
use super::prepared::Prepared;
use super::program::{Column, Terms};
use super::time_grid::{Call, TimeGrid, Trip, Wait, Window};
use crate::problem::Producer;
use std::collections::BTreeMap;

/// A non-negative duration in seconds as a key of maps.
type Bits = u64;

impl Prepared<'_> {
    /// Adds points of time.
    pub(super) fn in_time(mut self) -> Self {
        self.grid = if self.is_servable() { grid(&self) } else { None };
        self
    }

    /// Refines the points of time by a point of a program with them; returns whether there are more now.
    pub(super) fn refine(&mut self, model: &Model, values: &[f64]) -> bool {
        let Some(mut grid) = self.grid.take() else { return false };
        let links: Vec<(usize, usize)> = self.links.iter().map(|link| (link.from, link.to)).collect();
        let size = (self.problem.operators.len(), self.nodes());
        let is_finer = grid.refine(size, &links, &model.times, values);
        self.grid = Some(grid);
        is_finer
    }
}

/// Points for a program with all choices of this problem; none where an operator has none.
fn grid(prepared: &Prepared<'_>) -> Option<TimeGrid> {
    let limits = &prepared.problem.limits;
    let longest = limits.latency.iter().map(|limit| limits.path_seconds(limit)).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let mut grid = TimeGrid { longest, windows: Vec::new() };
    let operators = prepared.problem.operators.len();
    let fastest = |node: usize, location: usize| -> f64 {
        let Some(choices) = prepared.choices.get(node) else { return 0.0 };
        let there = choices.iter().filter(|choice| choice.location == location);
        there.map(|choice| choice.latency).reduce(f64::min).map_or(0.0, |seconds| grid.rounded(seconds))
    };
    let way = |link: usize, from: usize, to: usize| -> Option<f64> {
        let link = &prepared.links[link];
        prepared.problem.route(from, to)?;
        let groups = 0..link.groups.len();
        let ways = groups.map(|group| prepared.link_seconds(link, group, from, to));
        ways.reduce(f64::min).map(|seconds| grid.rounded(seconds))
    };
    let mut earliest: Vec<BTreeMap<usize, f64>> = vec![BTreeMap::new(); prepared.nodes()];
    let mut latest: Vec<BTreeMap<usize, f64>> = earliest.clone();
    for node in (operators..prepared.nodes()).chain(0..operators) {
        for &location in &prepared.domains[node] {
            let from_source = prepared.choices.get(node).filter(|_| is_fed(prepared, node)).map(|choices| {
                let there = choices.iter().filter(|choice| choice.location == location);
                there.map(|choice| choice.source_latency).reduce(f64::min).unwrap_or(0.0)
            });
            let mut begin = from_source.map_or(0.0, |seconds| grid.rounded(seconds));
            for (link, facts) in prepared.links.iter().enumerate().filter(|(_, link)| link.to == node) {
                let arrivals = earliest[facts.from].iter().filter_map(|(&from, begun)| {
                    Some(begun + fastest(facts.from, from) + way(link, from, location)?)
                });
                begin = begin.max(arrivals.reduce(f64::min)?);
            }
            earliest[node].insert(location, begin);
        }
    }
    for node in (0..operators).rev().chain(operators..prepared.nodes()) {
        for &location in &prepared.domains[node] {
            let own = prepared.deadline.get(node).copied().flatten().unwrap_or(f64::INFINITY);
            let mut end = own;
            for (link, facts) in prepared.links.iter().enumerate().filter(|(_, link)| link.from == node) {
                let departures = latest[facts.to].iter().filter_map(|(&to, ended)| {
                    Some(ended - fastest(facts.to, to) - way(link, location, to)?)
                });
                end = end.min(departures.reduce(f64::max)?);
            }
            latest[node].insert(location, end);
        }
    }
    let windows = (0..prepared.nodes()).map(|node| {
        let locations = earliest[node].iter().zip(latest[node].values());
        locations
            .map(|((&location, &earliest), &latest)| {
                (location, Window::new(earliest, latest.min(longest), fastest(node, location)))
            })
            .collect()
    });
    let windows = windows.collect();
    grid.windows = windows;
    Some(grid)
}

/// Whether a source with one location feeds an operator.
fn is_fed(prepared: &Prepared<'_>, operator: usize) -> bool {
    prepared.problem.inputs_of(operator).into_iter().any(|edge| {
        let from = prepared.problem.edges[edge].from;
        matches!(from, Producer::Source(source) if prepared.source_node[source].is_none())
    })
}

/// Columns that leave each node, by location and end point.
type Leaving = BTreeMap<(usize, usize), Vec<Column>>;

/// Adds the flow over time.
pub(super) fn add(model: &mut Model, prepared: &Prepared<'_>, grid: &TimeGrid) {
    let operators = prepared.problem.operators.len();
    let ended: Vec<Leaving> = (0..prepared.nodes())
        .map(|node| match node.checked_sub(operators) {
            None => add_calls(model, prepared, grid, node),
            Some(origin) => {
                let locations = prepared.origins[origin].iter();
                locations
                    .map(|&(location, share)| ((location, 0), vec![model.program.real(0.0, share, share)]))
                    .collect()
            }
        })
        .collect();
    for (index, link) in prepared.links.iter().enumerate() {
        if prepared.deadline[link.to].is_some() {
            add_trips(model, prepared, grid, index, &ended[link.from]);
        }
    }
}

/// Adds keys by start and duration, of an operator: together those of the shares of that duration.
fn add_calls(model: &mut Model, prepared: &Prepared<'_>, grid: &TimeGrid, node: usize) -> Leaving {
    let mut ended = Leaving::new();
    if prepared.deadline[node].is_none() {
        return ended; // no limit looks at it
    }
    let is_fed = is_fed(prepared, node);
    for (&location, window) in &grid.windows[node] {
        // By duration, and by the time of the transfer from a source before it.
        let mut shares: BTreeMap<(Bits, Bits), Vec<Column>> = BTreeMap::new();
        for &(choice, column) in &model.shares[node] {
            let facts = &prepared.choices[node][choice];
            if facts.location == location {
                let source = if is_fed { grid.rounded(facts.source_latency) } else { 0.0 };
                let key = (grid.rounded(facts.latency).to_bits(), source.to_bits());
                shares.entry(key).or_default().push(column);
            }
        }
        for ((seconds, source), shares) in shares {
            let (seconds, source) = (f64::from_bits(seconds), f64::from_bits(source));
            let first = grid.at(&window.begins, source.max(window.earliest)).unwrap_or(0);
            let mut terms: Terms = shares.into_iter().map(|column| (column, -1.0)).collect();
            for (begin, &at) in window.begins.iter().enumerate().skip(first) {
                if at + seconds > window.latest + 1e-9 * grid.longest {
                    break;
                }
                let Some(end) = grid.at(&window.ends, at + seconds) else { continue };
                let column = model.program.real(0.0, 0.0, 1.0);
                terms.push((column, 1.0));
                ended.entry((location, end)).or_default().push(column);
                model.times.calls.push(Call { node, location, begin, seconds, end, column });
            }
            model.program.equal(terms, 0.0);
        }
    }
    ended
}

/// Adds keys on a link by the point at which they leave, their wait after it, and their start.
fn add_trips(model: &mut Model, prepared: &Prepared<'_>, grid: &TimeGrid, index: usize, ended: &Leaving) {
    let link = &prepared.links[index];
    let mut of_pair: BTreeMap<(usize, usize, Bits), Vec<Column>> = BTreeMap::new();
    for (group, from, to, column) in model.link_columns(index) {
        let seconds = grid.rounded(prepared.link_seconds(link, group, from, to));
        of_pair.entry((from, to, seconds.to_bits())).or_default().push(column);
    }
    let mut leaving: BTreeMap<(usize, usize), Terms> = BTreeMap::new(); // by location and point
    let mut coming: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
    for ((from, to, seconds), flows) in of_pair {
        let seconds = f64::from_bits(seconds);
        let mut terms: Terms = flows.into_iter().map(|column| (column, -1.0)).collect();
        let (before, after) = (&grid.windows[link.from][&from], &grid.windows[link.to][&to]);
        let last = model.times.calls.iter().filter(|call| (call.node, call.location) == (link.to, to));
        let last = last.map(|call| call.begin).max();
        for &(_, end) in ended.range((from, 0)..=(from, usize::MAX)).map(|(key, _)| key) {
            let arrival = before.ends[end] + seconds;
            let begin = grid.at(&after.begins, arrival.max(after.earliest)).unwrap_or(0);
            if last.is_none_or(|last| begin > last) || arrival > after.latest + 1e-9 * grid.longest {
                continue;
            }
            let column = model.program.real(0.0, 0.0, 1.0);
            terms.push((column, 1.0));
            leaving.entry((from, end)).or_default().push((column, -1.0));
            coming.entry((to, begin)).or_default().push((column, 1.0));
            model.times.trips.push(Trip { link: index, from, end, seconds, to, begin, column });
        }
        model.program.equal(terms, 0.0);
    }
    for (key, columns) in ended {
        let mut terms = leaving.remove(key).unwrap_or_default();
        terms.extend(columns.iter().map(|column| (*column, 1.0)));
        model.program.equal(terms, 0.0);
    }
    for &to in grid.windows[link.to].keys() {
        add_arrivals(model, index, link.to, to, |begin| {
            coming.get(&(to, begin)).cloned().unwrap_or_default()
        });
    }
}

/// Keys that have arrived wait or start.
fn add_arrivals(
    model: &mut Model,
    link: usize,
    node: usize,
    location: usize,
    coming: impl Fn(usize) -> Terms,
) {
    let mut begins: BTreeMap<usize, Terms> = BTreeMap::new();
    for call in model.times.calls.iter().filter(|call| (call.node, call.location) == (node, location)) {
        begins.entry(call.begin).or_default().push((call.column, -1.0));
    }
    let Some(&last) = begins.keys().next_back() else { return };
    let mut waiting: Option<Column> = None;
    for begin in 0..=last {
        let mut terms = coming(begin);
        terms.extend(waiting.map(|column| (column, 1.0)));
        terms.extend(begins.remove(&begin).unwrap_or_default());
        waiting = (begin < last).then(|| {
            let column = model.program.real(0.0, 0.0, 1.0);
            terms.push((column, -1.0));
            model.times.waits.push(Wait { link, location, begin, column });
            column
        });
        model.program.equal(terms, 0.0);
    }
}
