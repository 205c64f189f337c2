//! Windows: groups of lower priority send while those before them compute.
//!
//! A group that repeats itself, as training does, uses the network in bursts. From the trace of its operations follow its period
//! and the gaps in it. Groups of lower priority that share a link with it get these gaps as [`Windows`], on top of the paths
//! that [`pfa`](super::pfa) gives. They pay for it: a group that could also have sent during the bursts takes longer.
//!
//! Periods drift, and clocks of hosts differ. [`Windows`] keep a distance from bursts of as much as bursts varied, and are to be
//! made anew from a newer trace from time to time; after n periods they are off by n times the error of the period.
//!
//! ```
//! use tidemill_collective::policies::ts::{Span, windows};
//! // Every 100 ms an operation of 40 ms.
//! let trace: Vec<Span> = (0..10).map(|n| Span { start_us: n * 100_000, end_us: n * 100_000 + 40_000 }).collect();
//! let windows = windows(&trace)?;
//! assert_eq!((windows.period_us, windows.open_us), (100_000, vec![(41_000, 99_000)]));
//! # Ok::<(), tidemill_collective::policies::ts::NoWindows>(())
//! ```
use super::{Cluster, pfa};
use crate::cost::{Link, Network, links_of};
use crate::strategy::{Strategy, Windows};
use crate::topology::Group;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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
    /// No gap.
    #[error("the group sends nearly all the time")]
    Busy,
}

/// Periods that a trace must have, and as many of the last ones as are used.
const CYCLES: usize = 4;
const MOST_CYCLES: usize = 16;
/// The distance from bursts, beyond their variation; gaps of less are none.
const GUARD_US: i64 = 1_000;
/// How much a burst or gap may differ from the one a period before: this part, and this much.
const VARIATION: (f64, f64) = (0.1, 500.0);
/// The longest period: others would wait for as long.
const LONGEST_US: u64 = 60_000_000;
/// The part of a period that must be open: with less, the others would hardly ever send.
const LEAST_OPEN: f64 = 0.05;

/// Makes the strategy of each group: paths as of [`pfa`], and windows where a group with a trace goes before others.
pub fn strategies(cluster: &Cluster<'_>, reserved: &[String]) -> BTreeMap<String, Strategy> {
    let mut strategies = pfa::strategies(cluster, reserved);
    // The first in turn of those that have windows to give.
    let gaps: Vec<(&Group, Windows)> = super::in_turn(cluster.groups)
        .into_iter()
        .filter_map(|group| {
            let (_, trace) = cluster.traces.iter().find(|(name, _)| *name == group.name)?;
            match windows(trace) {
                Ok(windows) => Some((group, windows)),
                Err(reason) => {
                    tracing::info!(group = group.name, %reason, "other groups send at any time beside it");
                    None
                }
            }
        })
        .collect();
    for group in cluster.groups {
        let given = gaps.iter().find(|(first, _)| {
            first.priority > group.priority
                && do_share(
                    &cluster.network,
                    (first, &strategies[&first.name]),
                    (group, &strategies[&group.name]),
                )
        });
        let given = given.map(|(_, windows)| windows.clone());
        if let Some(strategy) = strategies.get_mut(&group.name) {
            strategy.windows = given;
        }
    }
    strategies
}

/// Tells whether two groups use a link in common: between racks if both leave theirs, else any.
fn do_share(network: &Network<'_>, one: (&Group, &Strategy), other: (&Group, &Strategy)) -> bool {
    let (one, other) = (links_of(network, one.0, one.1), links_of(network, other.0, other.1));
    let is_between =
        |link: &Link<'_>| matches!(link, Link::RackOut(..) | Link::RackIn(..) | Link::Between(..));
    let do_both_leave = one.iter().any(is_between) && other.iter().any(is_between);
    let is_memory = |link: &Link<'_>| matches!(link, Link::Memory(_));
    let common: BTreeSet<&Link<'_>> = one.intersection(&other).filter(|link| !is_memory(link)).collect();
    common.iter().any(|link| !do_both_leave || is_between(link))
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
    // Bursts that are nearly alike repeat themselves sooner, and less exactly: the period that leaves most open is the right one.
    let candidates =
        (1..=bursts.len() / CYCLES).filter_map(|count| Some(gaps(&bursts, count, period(&bursts, count)?)));
    let best = candidates.reduce(|best, next| if part(&next) > part(&best) + 0.01 { next } else { best });
    let windows = best.filter(|windows| windows.period_us <= LONGEST_US).ok_or(NoWindows::Irregular)?;
    if part(&windows) < LEAST_OPEN { Err(NoWindows::Busy) } else { Ok(windows) }
}

/// Returns the gaps between bursts, of which each period has this many.
fn gaps(bursts: &[(u64, u64)], per_period: usize, period: f64) -> Windows {
    let cycles = (bursts.len() / per_period).min(MOST_CYCLES);
    let used = &bursts[bursts.len() - cycles * per_period..];
    let anchor = used[used.len() - per_period].0 as i64;
    let length = period.round().max(1.0) as i64;
    // Each burst of the period as all of its repetitions cover it, around the start of the last period.
    let mut busy: Vec<(i64, i64)> = (0..per_period)
        .map(|place| {
            let repetitions = (0..cycles).map(|cycle| {
                let (start, end) = used[cycle * per_period + place];
                let shift = anchor - (period * (cycles - 1 - cycle) as f64).round() as i64;
                (start as i64 - shift, end as i64 - shift)
            });
            repetitions.fold((i64::MAX, i64::MIN), |all, one| (all.0.min(one.0), all.1.max(one.1)))
        })
        .map(|(start, end)| (start - GUARD_US, end + GUARD_US))
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
    Windows { period_us: length as u64, open_us: folded(&open, anchor, length) }
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

/// Returns the microseconds of a period of this many bursts; none: they do not repeat themselves.
fn period(bursts: &[(u64, u64)], count: usize) -> Option<f64> {
    let start = |at: usize| bursts[at].0 as f64;
    let is_alike = |one: f64, other: f64| (one - other).abs() <= VARIATION.1 + VARIATION.0 * one.max(other);
    let cycles = (bursts.len() / count).min(MOST_CYCLES);
    let first = bursts.len() - cycles * count;
    let is_repeated = (first + count..bursts.len()).all(|at| {
        let length = |at: usize| (bursts[at].1 - bursts[at].0) as f64;
        let before = |at: usize| start(at) - bursts[at - 1].1 as f64;
        is_alike(length(at), length(at - count))
            && (at - count == first || is_alike(before(at), before(at - count)))
    });
    is_repeated.then(|| (start(bursts.len() - count) - start(first)) / (cycles - 1) as f64)
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
