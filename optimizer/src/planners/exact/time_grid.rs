//! The points of time that the bound under latency limits distinguishes, by operator and location.
//!
//! Few points make a small program and a weak bound. So there are few at first. Where keys of the relaxation's point
//! would really end too late, the points from which their times were rounded down are added: dynamic discretization
//! discovery (Boland, Hewitt, Marshall and Savelsbergh 2017, section 3).
use super::tuning::{FIRST_POINTS, NEGLIGIBLE_SHARE, QUANTA, SAME_TIME};
use std::collections::BTreeMap;

/// Possible start and end times of keys at an operator, or an origin of sources, at a location, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Window {
    /// Earliest start and latest end.
    pub(super) earliest: f64,
    pub(super) latest: f64,
    /// Points, ascending; the first is the earliest possible.
    pub(super) begins: Vec<f64>,
    pub(super) ends: Vec<f64>,
}

/// Points by node and location.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TimeGrid {
    /// The longest limit in seconds.
    pub(super) longest: f64,
    pub(super) windows: Vec<BTreeMap<usize, Window>>,
}

/// The columns of a flow over time.
#[derive(Debug, Clone, Default)]
pub(super) struct TimeColumns {
    pub(super) calls: Vec<Call>,
    pub(super) trips: Vec<Trip>,
    pub(super) waits: Vec<Wait>,
}

/// Keys that start at a point, with their duration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) node: usize,
    pub(super) location: usize,
    pub(super) begin: usize,
    pub(super) seconds: f64,
    pub(super) end: usize,
    pub(super) column: usize,
}

/// Keys that leave at an end point, with their time on a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trip {
    pub(super) link: usize,
    pub(super) from: usize,
    pub(super) end: usize,
    pub(super) seconds: f64,
    pub(super) to: usize,
    pub(super) begin: usize,
    pub(super) column: usize,
}

/// Keys that have arrived on a link and wait from one point to the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) link: usize,
    pub(super) location: usize,
    pub(super) begin: usize,
    pub(super) column: usize,
}

impl Window {
    pub(super) fn new(earliest: f64, latest: f64, fastest: f64) -> Self {
        let spread = |from: f64, to: f64| -> Vec<f64> {
            let step = (to - from).max(0.0) / FIRST_POINTS as f64;
            if step <= 0.0 { vec![from] } else { (0..FIRST_POINTS).map(|i| from + step * i as f64).collect() }
        };
        let begins = spread(earliest, latest - fastest);
        Self { earliest, latest, begins, ends: spread(earliest + fastest, latest) }
    }
}

impl TimeGrid {
    /// Seconds rounded down to a quantum.
    pub(super) fn rounded(&self, seconds: f64) -> f64 {
        let quantum = self.longest / QUANTA;
        (seconds / quantum + 1e-6).floor().max(0.0) * quantum
    }

    /// The last point at or before a time; none before the first.
    pub(super) fn at(&self, points: &[f64], time: f64) -> Option<usize> {
        points.partition_point(|point| *point <= time + SAME_TIME * self.longest).checked_sub(1)
    }

    /// Adds the points from which the times of late keys were rounded down; returns whether there are any.
    ///
    /// A key is late where the latest of all keys at its point, each by the real times of its route, leaves too little
    /// time for the slowest continuation: this finds more keys than are really late, never fewer.
    ///
    /// `links`: the nodes that links lead from and to, by link; nodes from `operators` on are origins of sources.
    pub(super) fn refine(
        &mut self,
        (operators, nodes): (usize, usize),
        links: &[(usize, usize)],
        columns: &TimeColumns,
        values: &[f64],
    ) -> bool {
        let is_used = |column: usize| values[column] > NEGLIGIBLE_SHARE;
        let calls: Vec<&Call> = columns.calls.iter().filter(|call| is_used(call.column)).collect();
        let trips: Vec<&Trip> = columns.trips.iter().filter(|trip| is_used(trip.column)).collect();
        let waits: Vec<&Wait> = columns.waits.iter().filter(|wait| is_used(wait.column)).collect();
        // The real end of the last key, by node, location and end point; forwards.
        let mut ended: BTreeMap<(usize, usize, usize), f64> = BTreeMap::new();
        let mut begun: BTreeMap<(usize, usize, usize), f64> = BTreeMap::new();
        let order = (operators..nodes).chain(0..operators); // origins send first
        for node in order.clone() {
            for (link, (before, _)) in links.iter().enumerate().filter(|(_, (_, to))| *to == node) {
                let mut arrived: BTreeMap<(usize, usize), f64> = BTreeMap::new();
                for trip in trips.iter().filter(|trip| trip.link == link) {
                    let sent = ended.get(&(*before, trip.from, trip.end));
                    let sent = sent.copied().unwrap_or(0.0);
                    let at = arrived.entry((trip.to, trip.begin)).or_insert(0.0);
                    *at = at.max(sent + trip.seconds);
                }
                let mut waiting: Vec<&&Wait> = waits.iter().filter(|wait| wait.link == link).collect();
                waiting.sort_by_key(|wait| wait.begin);
                for wait in waiting {
                    let before = arrived.get(&(wait.location, wait.begin)).copied().unwrap_or(0.0);
                    let at = arrived.entry((wait.location, wait.begin + 1)).or_insert(0.0);
                    *at = at.max(before);
                }
                for ((location, begin), time) in arrived {
                    let at = begun.entry((node, location, begin)).or_insert(0.0);
                    *at = at.max(time);
                }
            }
            for call in calls.iter().filter(|call| call.node == node) {
                let point = self.windows[node][&call.location].begins[call.begin];
                let real = begun.entry((node, call.location, call.begin)).or_insert(point);
                *real = real.max(point);
                let end = *real + call.seconds;
                let at = ended.entry((node, call.location, call.end)).or_insert(0.0);
                *at = at.max(end);
            }
        }
        // The latest allowed start and end of the keys, backwards.
        let mut latest_end: BTreeMap<(usize, usize, usize), f64> = BTreeMap::new();
        let mut latest_begin: BTreeMap<(usize, usize, usize, usize), f64> = BTreeMap::new(); // by link into it
        let mut late: Vec<(usize, usize, bool, f64)> = Vec::new(); // node, location, is a begin, the point to add
        let tolerance = SAME_TIME * self.longest;
        for node in (0..operators).rev().chain(operators..nodes) {
            let mut least: BTreeMap<(usize, usize), f64> = BTreeMap::new();
            for call in calls.iter().filter(|call| call.node == node) {
                let window = &self.windows[node][&call.location];
                let end = latest_end.get(&(node, call.location, call.end)).copied().unwrap_or(window.latest);
                let end = end.min(window.latest);
                let begin = least.entry((call.location, call.begin)).or_insert(f64::INFINITY);
                *begin = begin.min(end - call.seconds);
                let exact = window.begins[call.begin] + call.seconds;
                let real = begun[&(node, call.location, call.begin)] + call.seconds;
                if real > end + tolerance && exact > window.ends[call.end] + tolerance {
                    late.push((node, call.location, false, exact));
                }
            }
            for (link, (sender, _)) in links.iter().enumerate().filter(|(_, (_, to))| *to == node) {
                for (&(location, begin), &time) in &least {
                    latest_begin.insert((link, node, location, begin), time);
                }
                let mut waiting: Vec<&&Wait> = waits.iter().filter(|wait| wait.link == link).collect();
                waiting.sort_by_key(|wait| std::cmp::Reverse(wait.begin));
                for wait in waiting {
                    let after = latest_begin.get(&(link, node, wait.location, wait.begin + 1)).copied();
                    let at =
                        latest_begin.entry((link, node, wait.location, wait.begin)).or_insert(f64::INFINITY);
                    *at = at.min(after.unwrap_or(f64::INFINITY));
                }
                for trip in trips.iter().filter(|trip| trip.link == link) {
                    let begin = latest_begin.get(&(link, node, trip.to, trip.begin)).copied();
                    let begin = begin.unwrap_or(f64::INFINITY);
                    let at = latest_end.entry((*sender, trip.from, trip.end)).or_insert(f64::INFINITY);
                    *at = at.min(begin - trip.seconds);
                    let exact = self.windows[*sender][&trip.from].ends[trip.end] + trip.seconds;
                    let real = ended.get(&(*sender, trip.from, trip.end)).copied().unwrap_or(0.0);
                    let point = self.windows[node][&trip.to].begins[trip.begin];
                    if real + trip.seconds > begin + tolerance && exact > point + tolerance {
                        late.push((node, trip.to, true, exact));
                    }
                }
            }
        }
        let mut is_finer = false;
        for (node, location, is_begin, time) in late {
            let Some(window) = self.windows[node].get_mut(&location) else { continue };
            let points = if is_begin { &mut window.begins } else { &mut window.ends };
            let next = points.partition_point(|point| *point <= time + tolerance);
            if next.checked_sub(1).is_some_and(|before| time - points[before] > tolerance) {
                points.insert(next, time);
                is_finer = true;
            }
        }
        is_finer
    }
}
