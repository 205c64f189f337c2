//! A bound under latency limits: every share of the keys keeps the limit by itself, with times rounded down to steps.
//!
//! In a plan each key has a time at which each of its operators begins and ends. Rounded down to whole steps, the times
//! of a route still fit into the limit: the sum of the rounded is no more than the rounded sum. So the shares of the
//! keys by operator, location, time of begin and duration make a flow over time: what arrives on a link at a step may
//! wait, but cannot begin earlier. All this is linear in the shares, without a binary; unlike the mean latency, it does
//! not let a fast share make good for a slow one. What is relaxed: the rounding, and that the links of a join agree on
//! the times of each key only as a whole.
use super::model::Model;
use super::prepared::Prepared;
use super::program::{Column, Terms};
use crate::problem::Producer;
use std::collections::BTreeMap;

/// An operator, or an origin of sources, at a location.
#[derive(Debug, Default)]
struct Node {
    /// Earliest begin and latest end, in steps.
    begin: usize,
    end: usize,
    /// Share columns by duration in steps.
    shares: BTreeMap<usize, Vec<Column>>,
    /// Columns of the keys that begin at a step.
    begins: BTreeMap<usize, Vec<Column>>,
    /// Columns of the keys that end at a step.
    ends: BTreeMap<usize, Vec<Column>>,
}

/// Adds the flow over time, with the longest limit cut into so many steps.
pub(super) fn add(model: &mut Model, prepared: &Prepared<'_>, steps: usize) {
    let longest = prepared.problem.limits.latency.iter().map(|limit| limit.seconds).fold(0.0, f64::max);
    let step = longest / steps as f64;
    if step <= 0.0 {
        return;
    }
    let whole = |seconds: f64| (seconds / step + 1e-9).floor().max(0.0) as usize;
    let Some(mut nodes) = nodes(model, prepared, &whole) else { return };
    let operators = prepared.problem.operators.len();
    for of_operator in nodes.iter_mut().take(operators) {
        for node in of_operator.values_mut() {
            add_durations(model, node);
        }
    }
    for (index, link) in prepared.links.iter().enumerate() {
        if prepared.deadline[link.to].is_none() {
            continue;
        }
        let mut of_pair: BTreeMap<(usize, usize, usize), Vec<Column>> = BTreeMap::new();
        for (group, from, to, column) in model.link_columns(index) {
            let seconds = whole(prepared.link_seconds(link, group, from, to));
            of_pair.entry((from, to, seconds)).or_default().push(column);
        }
        let mut leaving: BTreeMap<(usize, usize), Terms> = BTreeMap::new(); // by location and step
        let mut coming: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
        for ((from, to, seconds), flows) in of_pair {
            let mut terms: Terms = flows.into_iter().map(|column| (column, -1.0)).collect();
            if let (Some(before), Some(after)) = (nodes[link.from].get(&from), nodes[link.to].get(&to)) {
                let latest = after.begins.keys().next_back().copied();
                for &end in before.ends.keys() {
                    if latest.is_some_and(|latest| end + seconds <= latest) {
                        let column = model.program.real(0.0, 0.0, 1.0);
                        terms.push((column, 1.0));
                        leaving.entry((from, end)).or_default().push((column, -1.0));
                        let arrival = (end + seconds).max(after.begin);
                        coming.entry((to, arrival)).or_default().push((column, 1.0));
                    }
                }
            }
            model.program.equal(terms, 0.0);
        }
        for (&from, node) in &nodes[link.from] {
            for (&end, ended) in &node.ends {
                let mut terms = leaving.remove(&(from, end)).unwrap_or_default();
                terms.extend(ended.iter().map(|column| (*column, 1.0)));
                model.program.equal(terms, 0.0);
            }
        }
        for (&to, node) in &nodes[link.to] {
            add_arrivals(model, node, |at| coming.get(&(to, at)).cloned().unwrap_or_default());
        }
    }
}

/// Operators and origins by location, with the earliest and latest times; none where an operator has no time.
fn nodes(
    model: &mut Model,
    prepared: &Prepared<'_>,
    whole: &impl Fn(f64) -> usize,
) -> Option<Vec<BTreeMap<usize, Node>>> {
    let operators = prepared.problem.operators.len();
    let far = usize::MAX / 4;
    let mut nodes: Vec<BTreeMap<usize, Node>> = Vec::new();
    for index in 0..prepared.nodes() {
        let mut of_node = BTreeMap::new();
        for &location in &prepared.domains[index] {
            let mut node = Node { end: far, ..Node::default() };
            if index < operators {
                let is_fed = prepared.problem.inputs_of(index).into_iter().any(|edge| {
                    let from = prepared.problem.edges[edge].from;
                    matches!(from, Producer::Source(source) if prepared.source_node[source].is_none())
                });
                for &(choice, column) in &model.shares[index] {
                    let facts = &prepared.choices[index][choice];
                    if facts.location == location {
                        node.shares.entry(whole(facts.latency)).or_default().push(column);
                        if is_fed {
                            node.begin = whole(facts.source_latency);
                        }
                    }
                }
                node.end = prepared.deadline[index].map_or(far, whole);
            } else {
                let there = prepared.origins[index - operators].iter().find(|(other, _)| *other == location);
                let share = there.map_or(0.0, |(_, share)| *share);
                node.ends.insert(0, vec![model.program.real(0.0, share, share)]);
                node.shares.insert(0, Vec::new());
            }
            of_node.insert(location, node);
        }
        nodes.push(of_node);
    }
    let fastest = |node: &Node| node.shares.keys().next().copied().unwrap_or(far);
    let way = |link: usize, from: usize, to: usize| -> usize {
        let (link, pairs) = (&prepared.links[link], model.link_columns(link));
        let ways = pairs.filter(|&(_, i, j, _)| (i, j) == (from, to));
        ways.map(|(group, ..)| whole(prepared.link_seconds(link, group, from, to))).min().unwrap_or(far)
    };
    for to in 0..operators {
        for (link, facts) in prepared.links.iter().enumerate().filter(|(_, link)| link.to == to) {
            let locations: Vec<usize> = nodes[to].keys().copied().collect();
            for at in locations {
                let before = nodes[facts.from].iter();
                let soonest =
                    before.map(|(&i, node)| (node.begin + fastest(node)).saturating_add(way(link, i, at)));
                let soonest = soonest.min().unwrap_or(far);
                let node = nodes[to].get_mut(&at)?;
                node.begin = node.begin.max(soonest);
            }
        }
    }
    for from in (0..operators).rev() {
        for (link, facts) in prepared.links.iter().enumerate().filter(|(_, link)| link.from == from) {
            if prepared.deadline[facts.to].is_none() {
                continue;
            }
            let locations: Vec<usize> = nodes[from].keys().copied().collect();
            for at in locations {
                let after = nodes[facts.to].iter();
                let latest = after.filter_map(|(&j, node)| {
                    node.end.checked_sub(fastest(node).saturating_add(way(link, at, j)))
                });
                let latest = latest.max();
                let node = nodes[from].get_mut(&at)?;
                node.end = latest.map_or(0, |latest| node.end.min(latest));
            }
        }
    }
    Some(nodes)
}

/// Keys by begin and duration: together those of the shares of that duration.
fn add_durations(model: &mut Model, node: &mut Node) {
    if node.end >= usize::MAX / 4 {
        return; // no limit looks at it
    }
    for (&duration, shares) in &node.shares {
        let mut terms: Terms = shares.iter().map(|column| (*column, -1.0)).collect();
        for begin in node.begin..=node.end.saturating_sub(duration) {
            if begin + duration > node.end {
                break;
            }
            let column = model.program.real(0.0, 0.0, 1.0);
            terms.push((column, 1.0));
            node.begins.entry(begin).or_default().push(column);
            node.ends.entry(begin + duration).or_default().push(column);
        }
        model.program.equal(terms, 0.0);
    }
}

/// What has arrived waits or begins.
fn add_arrivals(model: &mut Model, node: &Node, coming: impl Fn(usize) -> Terms) {
    let (Some(&first), Some(&last)) = (node.begins.keys().next(), node.begins.keys().next_back()) else {
        return;
    };
    let mut waiting: Option<Column> = None;
    for at in first..=last {
        let mut terms = coming(at);
        terms.extend(waiting.map(|column| (column, 1.0)));
        let begins = node.begins.get(&at).map_or(&[][..], Vec::as_slice);
        terms.extend(begins.iter().map(|column| (*column, -1.0)));
        waiting = None;
        if at < last {
            let column = model.program.real(0.0, 0.0, 1.0);
            terms.push((column, -1.0));
            waiting = Some(column);
        }
        model.program.equal(terms, 0.0);
    }
}
