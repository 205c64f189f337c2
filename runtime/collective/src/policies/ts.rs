//! Traffic scheduling: groups of lower priority send while those before them compute.
//!
//! A group yields to all groups of higher priority that would be quicker without it, by the link that limits them, on top of the
//! paths that [`pfa`](super::pfa) gives:
//!
//! | the group that goes first has | the other one |
//! |---|---|
//! | ranks on each host of the other one | [yields](Strategy::yields): each host sends nothing of it while an operation of the first one moves bytes |
//! | ranks elsewhere, and operations that follow a period | gets [`Windows`]: the gaps that the traces of all its hosts foretell |
//! | no gaps, no period, or none that lasts | sends at any time |
//!
//! Groups that yield pay for it: one that could also have sent during the bursts takes longer.
//!
//! While others send, bursts last longer, and so does the period; with windows they get shorter. So where only lengths differ, the
//! short ones count: windows made anew from each other's traces lead to a rhythm as if nobody else sent.
//!
//! A period drifts, and clocks of hosts differ. Windows keep a distance from bursts: a part for how much bursts vary, and as much
//! as the trace says that starts are off after [`REMADE`], the time after which windows are made anew.
//!
//! ```
//! use tidemill_collective::policies::ts::{Span, windows};
//! // Every 100 ms an operation of 40 ms.
//! let trace: Vec<Span> = (0..10).map(|n| Span { start_us: n * 100_000, end_us: n * 100_000 + 40_000 }).collect();
//! let windows = windows(&trace)?;
//! assert_eq!((windows.period_us, windows.open_us), (100_000, vec![(41_000, 99_000)]));
//! # Ok::<(), tidemill_collective::policies::ts::NoWindows>(())
//! ```
use super::{Chosen, Cluster, pfa};
use crate::cost::{ALL_REDUCE, EXAMPLE, Link, duration, time};
use crate::strategy::{MAX_FIRST, Strategy, Windows};
use crate::topology::Group;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// When an operation ran, by the clock of its host, in microseconds since the epoch of Unix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Its start.
    pub start_us: u64,
    /// Its end.
    pub end_us: u64,
}

/// Why there are no windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWindows {
    /// Too little was traced.
    #[error("the trace has too few operations: at least {CYCLES} periods are needed")]
    Short,
    /// No period.
    #[error("the operations follow no period")]
    Irregular,
    /// Starts cannot be foretold.
    #[error("the operations drift by more than their gaps within {}ms", REMADE.as_millis())]
    Drifts,
    /// No gap.
    #[error("the group sends nearly all the time")]
    Busy,
}

/// Time after which windows are made anew from newer traces.
pub const REMADE: Duration = Duration::from_secs(1);

/// Periods that a trace must have, and as many of the last ones as are used.
const CYCLES: usize = 4;
const MOST_CYCLES: usize = 8;
/// The distance from bursts, beyond their variation; gaps of less are none.
const GUARD_US: i64 = 1_000;
/// How much a burst, a gap or a period may differ from the one before: this part, and this much.
const VARIATION: (f64, f64) = (0.1, 500.0);
/// The part of the bursts that may differ by more: a machine that does something else now and then changes no period.
const OUTLIERS: f64 = 0.25;
/// How much longer bursts may be than the short ones, because others send meanwhile.
const MOST_SHARED: f64 = 3.0;
/// The longest period: others would wait for as long.
const LONGEST_US: u64 = 60_000_000;
/// The part of the time that must be open: with less, the others would hardly ever send.
const LEAST_OPEN: f64 = 0.05;
/// The part of the time that a longer period must leave open beyond a shorter one.
const BETTER: f64 = 0.05;
/// The part by which a group must be quicker for others to yield to it.
const GAIN: f64 = 0.05;
/// Times at which windows are compared with others.
const SAMPLES: u64 = 4096;

/// Makes the strategy of each group: paths as of [`pfa`], and the times at which it yields. Says why.
pub fn choose(cluster: &Cluster<'_>, reserved: &[String]) -> BTreeMap<String, Chosen> {
    let strategies = pfa::strategies(cluster, reserved);
    let first = super::in_turn(cluster.groups);
    let mut chosen = BTreeMap::new();
    for group in cluster.groups {
        let Some(strategy) = strategies.get(&group.name) else { continue };
        let is_helped =
            |first: &&&Group| first.priority > group.priority && gains(cluster, &strategies, first, group);
        let (mut given, mut why) = (Given::default(), Vec::new());
        for first in first.iter().filter(is_helped) {
            let trace = cluster.traces.iter().find(|(name, _)| *name == first.name);
            why.push(given.add(first, group, trace.map_or(&[], |(_, trace)| trace)));
        }
        if why.is_empty() {
            why.push("no group that goes first would be quicker without it".to_owned());
        }
        let Given { windows, yields } = given;
        let strategy = Strategy { windows, yields, ..strategy.clone() };
        chosen.insert(group.name.clone(), Chosen { strategy, why: format!("as pfa; {}", why.join("; ")) });
    }
    chosen
}

/// The times at which a group yields.
#[derive(Default)]
struct Given {
    windows: Option<Windows>,
    yields: Vec<String>,
}

impl Given {
    /// Lets the group yield to this one as well, if that leaves it any time. Says which it is.
    fn add(&mut self, first: &Group, group: &Group, trace: &[Span]) -> String {
        let name = &first.name;
        let hosts: BTreeSet<&str> = first.ranks.iter().map(|(_, host)| host.as_str()).collect();
        let anyway = |why: NoWindows| format!("sends at any time beside {name}: {why}");
        if self.yields.len() + self.windows.iter().flat_map(Windows::each).count() >= MAX_FIRST {
            return format!("sends at any time beside {name}: it yields to {MAX_FIRST} others");
        }
        if group.ranks.iter().all(|(_, host)| hosts.contains(host.as_str())) {
            return match open_part(trace) {
                None => anyway(NoWindows::Short),
                Some(open) if open < LEAST_OPEN => anyway(NoWindows::Busy),
                Some(open) => {
                    self.yields.push(name.clone());
                    let open = 100.0 * open;
                    format!(
                        "waits on each host while {name} sends there, which leaves {open:.0} % of the time"
                    )
                }
            };
        }
        let windows = match windows(trace) {
            Ok(windows) => windows,
            Err(why) => return anyway(why),
        };
        let period = duration(windows.period_us as f64 / 1e6);
        let at_us = trace.iter().map(|span| span.end_us).max().unwrap_or(0);
        let together = match self.windows.clone() {
            None => windows,
            Some(mut before) => {
                before.also.push(windows);
                before
            }
        };
        let open = open_in(&together, at_us);
        if open < LEAST_OPEN {
            return format!("sends at any time beside {name}: the groups before it leave no common gap");
        }
        self.windows = Some(together);
        format!("sends in the gaps of {name}, each {period}: {:.0} % of the time", 100.0 * open)
    }
}

/// Returns the part of the time of a trace in which nothing ran. None: too little was traced.
fn open_part(trace: &[Span]) -> Option<f64> {
    let bursts = bursts(trace);
    let (first, last) = (bursts.first()?, bursts.last()?);
    let busy: u64 = bursts.iter().map(|(start, end)| end - start).sum();
    let spans = trace.len() >= CYCLES;
    spans.then(|| 1.0 - busy as f64 / (last.1 - first.0).max(1) as f64)
}

/// Returns the part of the time after this one in which windows are open, by looking at some times.
fn open_in(windows: &Windows, at_us: u64) -> f64 {
    let longest = windows.each().map(|one| one.period_us).max().unwrap_or(1);
    let step = (MOST_CYCLES as u64 * longest / SAMPLES).max(1);
    let open = (0..SAMPLES).filter(|sample| windows.closed_for(at_us + sample * step) == 0).count();
    open as f64 / SAMPLES as f64
}

/// Returns whether a group would send at other times by one strategy than by another one, in the time after this one.
pub(crate) fn differ(one: &Strategy, other: &Strategy, at_us: u64) -> bool {
    if one.yields != other.yields {
        return true;
    }
    let (Some(one), Some(other)) = (&one.windows, &other.windows) else {
        return one.windows != other.windows;
    };
    let step = REMADE.as_micros() as u64 / SAMPLES;
    let is_open = |windows: &Windows, at_us| windows.closed_for(at_us) == 0;
    let differs = |sample: &u64| is_open(one, at_us + sample * step) != is_open(other, at_us + sample * step);
    (0..SAMPLES).filter(differs).count() as f64 > LEAST_OPEN * SAMPLES as f64
}

/// Returns whether a group would be quicker if another one sent nothing: the model of costs says so of the link that limits it.
fn gains(
    cluster: &Cluster<'_>,
    strategies: &BTreeMap<String, Strategy>,
    first: &Group,
    other: &Group,
) -> bool {
    let beside = |left_out: Option<&str>| {
        let is_there = |group: &&Group| group.name != first.name && Some(group.name.as_str()) != left_out;
        let others: Vec<(&Group, &Strategy)> =
            cluster.groups.iter().filter(is_there).map(|group| (group, &strategies[&group.name])).collect();
        time(&cluster.network, first, &strategies[&first.name], ALL_REDUCE, EXAMPLE, &others)
    };
    let (with, without) = (beside(None), beside(Some(&other.name)));
    let is_sent = with.slowest.is_some_and(|link| !matches!(link, Link::Memory(_)));
    is_sent && without.on_slowest < (1.0 - GAIN) * with.on_slowest
}

/// Returns the gaps of a group, from a trace of its operations.
///
/// # Errors
/// There are none, or it is not known when.
pub fn windows(trace: &[Span]) -> Result<Windows, NoWindows> {
    let bursts = bursts(trace);
    if bursts.len() < CYCLES {
        // A trace without any gap says enough.
        return Err(if bursts.len() == 1 { NoWindows::Busy } else { NoWindows::Short });
    }
    let part = |windows: &Windows| {
        windows.open_us.iter().map(|(from, to)| to - from).sum::<u64>() as f64 / windows.period_us as f64
    };
    let rhythms = (1..=bursts.len() / CYCLES).filter_map(|count| Rhythm::of(&bursts, count));
    let (even, uneven): (Vec<Rhythm<'_>>, Vec<Rhythm<'_>>) =
        rhythms.partition(|rhythm| rhythm.lengths.is_none());
    // Bursts that are nearly alike repeat themselves sooner, and less exactly: the period that leaves most open is the right one.
    let best = |rhythms: Vec<Rhythm<'_>>| {
        let gaps = rhythms.into_iter().map(|rhythm| (rhythm.gaps(true), rhythm.gaps(false)));
        gaps.reduce(|best, next| if part(&next.0) > part(&best.0) + BETTER { next } else { best })
    };
    let found = best(even).or_else(|| best(uneven));
    let (windows, without_drift) =
        found.filter(|(windows, _)| windows.period_us <= LONGEST_US).ok_or(NoWindows::Irregular)?;
    match (part(&windows) < LEAST_OPEN, part(&without_drift) < LEAST_OPEN) {
        (_, true) => Err(NoWindows::Busy),
        (true, false) => Err(NoWindows::Drifts),
        (false, false) => Ok(windows),
    }
}

/// Bursts that repeat themselves.
struct Rhythm<'a> {
    /// The last periods, each with as many bursts.
    used: &'a [(u64, u64)],
    per_period: usize,
    /// Microseconds.
    period: f64,
    /// Microseconds by which starts are off after [`REMADE`].
    drift: f64,
    /// How long bursts would be if no other group sent meanwhile, where that is not so now: their lengths differ, and the gaps between
    /// them do not.
    lengths: Option<Vec<f64>>,
}

impl<'a> Rhythm<'a> {
    /// Returns the rhythm of bursts with this many per period; none: they do not repeat themselves.
    fn of(bursts: &'a [(u64, u64)], count: usize) -> Option<Self> {
        let cycles = (bursts.len() / count).min(MOST_CYCLES);
        let used = &bursts[bursts.len() - cycles * count..];
        let start = |at: usize| used[at].0 as f64;
        let length = |at: usize| (used[at].1 - used[at].0) as f64;
        let before = |at: usize| start(at) - used[at - 1].1 as f64;
        let of_place = |place: usize, value: &dyn Fn(usize) -> f64, part| {
            let all = (place..used.len()).step_by(count).filter(|at| *at > 0).map(value);
            quantile(all.collect(), part)
        };
        let is_alike =
            |one: f64, other: f64| (one - other).abs() <= VARIATION.1 + VARIATION.0 * one.max(other);
        let are_alike = |value: &dyn Fn(usize) -> f64| {
            let usual: Option<Vec<f64>> = (0..count).map(|place| of_place(place, value, 0.5)).collect();
            let usual = usual.unwrap_or_default();
            let alike = (1..used.len()).filter(|at| is_alike(value(*at), usual[at % count])).count();
            alike as f64 >= (1.0 - OUTLIERS) * (used.len() - 1) as f64
        };
        if !are_alike(&before) {
            return None;
        }
        let passed = |over: usize| -> Vec<f64> {
            (over * count..used.len()).map(|at| start(at) - start(at - over * count)).collect()
        };
        // Over some periods at once their number is more exact.
        let over = (cycles / 2).max(1);
        let period = quantile(passed(over), 0.5)? / over as f64;
        let off = |over: usize, period: f64| {
            let off = passed(over).into_iter().map(|passed| (passed - period * over as f64).abs());
            quantile(off.collect(), 1.0 - OUTLIERS)
        };
        // What is off adds up as the steps of a random walk.
        let steps =
            |over: f64, period: f64| (REMADE.as_micros() as f64 / (period * over).max(1.0)).max(1.0).sqrt();
        let single = passed(1);
        let repeated = single.iter().filter(|passed| is_alike(**passed, period)).count();
        let has_short = (0..count).any(|place| {
            let (shortest, usual) = (of_place(place, &length, 0.0), of_place(place, &length, 0.5));
            shortest
                .zip(usual)
                .is_some_and(|(shortest, usual)| usual - shortest > VARIATION.1 + 2.0 * VARIATION.0 * usual)
        });
        if !has_short && are_alike(&length) && repeated as f64 >= (1.0 - OUTLIERS) * single.len() as f64 {
            let drift = (off(over, period)? * steps(over as f64, period)).max(1.5 * off(1, period)?);
            return Some(Self { used, per_period: count, period, drift, lengths: None });
        }
        let sum = |part: f64| -> Option<f64> {
            (0..count).map(|place| of_place(place, &length, part)).sum::<Option<f64>>()
        };
        if sum(1.0 - OUTLIERS)? > MOST_SHARED * sum(0.0)? {
            return None;
        }
        let lengths: Vec<f64> =
            (0..count).map(|place| of_place(place, &length, 0.0)).collect::<Option<_>>()?;
        let pauses: Vec<f64> =
            (0..count).map(|place| of_place(place, &before, 0.5)).collect::<Option<_>>()?;
        let period = lengths.iter().sum::<f64>() + pauses.iter().sum::<f64>();
        let varies = (1..used.len()).map(|at| (before(at) - pauses[at % count]).abs()).collect();
        let drift = quantile(varies, 1.0 - OUTLIERS)? * steps(1.0, period);
        Some(Self { used, per_period: count, period, drift, lengths: Some(lengths) })
    }

    /// Returns the gaps between bursts.
    fn gaps(&self, is_drifting: bool) -> Windows {
        let Self { used, per_period, period, drift, .. } = *self;
        let cycles = used.len() / per_period;
        let length = period.round().max(1.0) as i64;
        let guard = GUARD_US + if is_drifting { drift.round() as i64 } else { 0 };
        let begin = |cycle: usize| used[cycle * per_period].0 as i64;
        // The start of the last period, as the last few periods have it.
        let last = cycles - 1;
        let near = (cycles.saturating_sub(CYCLES)..cycles)
            .map(|cycle| begin(cycle) as f64 + (period * (last - cycle) as f64) - begin(last) as f64);
        let near = if self.lengths.is_some() { None } else { quantile(near.collect(), 0.5) };
        let anchor = begin(last) + near.unwrap_or(0.0).round() as i64;
        // Each burst of the period as nearly all of its repetitions cover it, or as it would be alone.
        let mut busy: Vec<(i64, i64)> = (0..per_period)
            .map(|place| {
                let of = |side: fn(&(u64, u64)) -> u64, part| {
                    let after =
                        |cycle: usize| (side(&used[cycle * per_period + place]) as i64 - begin(cycle)) as f64;
                    quantile((0..cycles).map(after).collect(), part).unwrap_or(0.0).round() as i64
                };
                (
                    of(|burst| burst.0, OUTLIERS / 2.0) - guard,
                    of(|burst| burst.1, 1.0 - OUTLIERS / 2.0) + guard,
                )
            })
            .collect();
        busy.sort_unstable();
        let mut open = Vec::new();
        for (at, (_, end)) in busy.iter().enumerate() {
            let covered = busy[..=at].iter().map(|burst| burst.1).fold(*end, i64::max);
            let next = busy.get(at + 1).map_or(busy[0].0 + length, |burst| burst.0);
            if next - covered >= GUARD_US {
                open.push((covered, next));
            }
        }
        Windows { period_us: length as u64, open_us: folded(&open, anchor, length), also: Vec::new() }
    }
}

/// Returns the value below which this part of the values is.
fn quantile(mut values: Vec<f64>, part: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let at = (part * (values.len() as f64 - 1.0)).round().max(0.0) as usize;
    values.get(at).copied()
}

/// Returns the spans, joined where nothing worth a window is between them.
fn bursts(trace: &[Span]) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> =
        trace.iter().map(|span| (span.start_us, span.end_us.max(span.start_us))).collect();
    spans.sort_unstable();
    let mut bursts: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match bursts.last_mut() {
            // Two distances and a gap do not fit.
            Some(last) if start < last.1 + 3 * GUARD_US as u64 => last.1 = last.1.max(end),
            _ => bursts.push((start, end)),
        }
    }
    bursts
}

/// Returns times after an anchor as times of the period, ascending.
fn folded(open: &[(i64, i64)], anchor: i64, length: i64) -> Vec<(u64, u64)> {
    let mut folded = Vec::new();
    for (from, to) in open {
        let start = (anchor + from).rem_euclid(length);
        let end = start + (to - from);
        folded.push((start as u64, end.min(length) as u64));
        if end > length {
            folded.push((0, (end - length) as u64));
        }
    }
    folded.sort_unstable();
    folded
}

#[cfg(test)]
mod tests;
