//! Computes the share of the sources' records that reached the sinks.
//!
//! An operator, and a channel between two slots, keeps the share of its records that it did not lose: dead letters, late
//! rows (`late`) and rows dropped by `freshness`. The share that reached a sink is the product over all operators and
//! channels before it, each counted once, also if paths part and meet again in a join. With several sinks, the smallest
//! share counts.
//!
//! Shares, not numbers, are used, so that intended changes do not matter: filters drop records, windows and joins combine
//! them, models emit any number. A filtered record is not lost, nor is a row without a partner in the data (`unmatched`);
//! one whose partner was lost before the join counts by that loss.
use crate::figures::grouped;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use tidemill_engine::{Observer, Program, Promise, RunReport};

/// Reasons of drops that are no loss.
pub const ON_PURPOSE: [&str; 2] = ["filtered", "unmatched"];

/// Records at one point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    came: u64,
    lost: u64,
}

impl Place {
    fn kept(self) -> f64 {
        // Results of many records (of a window) may be lost, so the loss can seem to exceed the input.
        1.0 - self.lost.min(self.came) as f64 / self.came.max(1) as f64
    }
}

/// Input and losses by point: all stages of an operator together, and all channels between two operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivery {
    operators: BTreeMap<String, Place>,
    ways: BTreeMap<(String, String), Place>,
}

impl Delivery {
    /// Computes the delivery of an ended run.
    pub fn of(report: &RunReport, program: &Program) -> Self {
        let mut delivery = Self::default();
        for stage in &report.stages {
            let lost = lost(&stage.drops) + stage.dead_letters.values().sum::<u64>();
            delivery.operator(&stage.operator, stage.records_in, lost);
        }
        for edge in &report.edges {
            delivery.way(program, &edge.from, &edge.to, edge.records, lost(&edge.drops));
        }
        delivery
    }

    /// Computes the delivery of a run until now.
    pub fn so_far(observer: &Observer, program: &Program) -> Self {
        let mut delivery = Self::default();
        for stage in &program.plan.stages {
            let Some(metrics) = observer.stage(&stage.id) else { continue };
            let lost = lost(&metrics.drops.counts()) + metrics.dead_letters.counts().values().sum::<u64>();
            delivery.operator(&stage.operator, metrics.records_in.load(Ordering::Relaxed), lost);
        }
        for edge in &program.plan.edges {
            let Some(metrics) = observer.edge(&edge.from, &edge.to, edge.input) else { continue };
            let records = metrics.records.load(Ordering::Relaxed);
            delivery.way(program, &edge.from, &edge.to, records, lost(&metrics.drops.counts()));
        }
        delivery
    }

    fn operator(&mut self, operator: &str, came: u64, lost: u64) {
        let place = self.operators.entry(operator.to_owned()).or_default();
        (place.came, place.lost) = (place.came + came, place.lost + lost);
    }

    fn way(&mut self, program: &Program, from: &str, to: &str, sent: u64, lost: u64) {
        let operator = |id: &str| {
            let stage = program.plan.stages.iter().find(|stage| stage.id == id);
            stage.map_or_else(|| id.to_owned(), |stage| stage.operator.clone())
        };
        let place = self.ways.entry((operator(from), operator(to))).or_default();
        (place.came, place.lost) = (place.came + sent + lost, place.lost + lost);
    }

    /// Returns input and losses since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: &Place, before: Option<&Place>| {
            let before = before.copied().unwrap_or_default();
            Place { came: now.came.saturating_sub(before.came), lost: now.lost.saturating_sub(before.lost) }
        };
        let operators = self.operators.iter();
        let ways = self.ways.iter();
        Self {
            operators: operators
                .map(|(id, place)| (id.clone(), less(place, before.operators.get(id))))
                .collect(),
            ways: ways.map(|(way, place)| (way.clone(), less(place, before.ways.get(way)))).collect(),
        }
    }

    /// Returns the share of the sources' records that reached the worst sink; 1 without losses. Unreadable records are
    /// excluded: the source did not emit them.
    pub fn share<'a>(&self, sinks: impl IntoIterator<Item = &'a String>) -> f64 {
        sinks.into_iter().map(|sink| self.share_of(sink)).fold(1.0, f64::min)
    }

    fn share_of(&self, sink: &str) -> f64 {
        let mut share = 1.0;
        let (mut waiting, mut seen) = (vec![sink], BTreeSet::new());
        while let Some(operator) = waiting.pop() {
            if !seen.insert(operator) {
                continue;
            }
            let into = self.ways.iter().filter(|((_, to), _)| to == operator);
            let before = waiting.len();
            for ((from, _), way) in into {
                share *= way.kept();
                waiting.push(from);
            }
            let is_source = waiting.len() == before;
            if !is_source {
                share *= self.operators.get(operator).map_or(1.0, |place| place.kept());
            }
        }
        share
    }
}

fn lost(drops: &BTreeMap<String, u64>) -> u64 {
    drops.iter().filter(|(reason, _)| !ON_PURPOSE.contains(&reason.as_str())).map(|(_, n)| n).sum()
}

/// Describes the guarantee of each sink, with reasons; sinks with equal ones share a line.
pub fn promise_lines<'a>(promises: impl IntoIterator<Item = (&'a str, &'a Promise)>) -> Vec<String> {
    let mut lines: Vec<(&Promise, Vec<&str>)> = Vec::new();
    for (sink, promise) in promises {
        match lines.iter_mut().find(|(known, _)| *known == promise) {
            Some((_, sinks)) => sinks.push(sink),
            None => lines.push((promise, vec![sink])),
        }
    }
    lines.iter().map(|(promise, sinks)| format!("{}: {promise}", sinks.join(", "))).collect()
}

/// Describes the losses by reason, including `unmatched`: `9 800 dead letters, 12 late`. `None` without losses.
pub fn losses_text(report: &RunReport) -> Option<String> {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    let stages = report.stages.iter().map(|stage| &stage.drops);
    for (reason, records) in stages.chain(report.edges.iter().map(|edge| &edge.drops)).flatten() {
        if reason != "filtered" {
            *reasons.entry(reason).or_default() += records;
        }
    }
    let letters: u64 = report.stages.iter().flat_map(|stage| stage.dead_letters.values()).sum();
    let letters = (letters > 0).then(|| match letters {
        1 => "1 dead letter".to_owned(),
        many => format!("{} dead letters", grouped(many)),
    });
    let reasons = reasons.iter().map(|(reason, records)| match *reason {
        "freshness" => format!("{} dropped for freshness", grouped(*records)),
        other => format!("{} {other}", grouped(*records)),
    });
    let told: Vec<String> = letters.into_iter().chain(reasons).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_engine::{Guarantee, Scope};

    /// `operators` with input and losses, `ways` (edges) with losses per 100.
    fn delivery(operators: &[(&str, u64, u64)], ways: &[(&str, &str, u64)]) -> Delivery {
        let mut delivery = Delivery::default();
        operators.iter().for_each(|(id, came, lost)| delivery.operator(id, *came, *lost));
        for (from, to, lost) in ways {
            let place = Place { came: 100, lost: *lost };
            delivery.ways.insert(((*from).to_owned(), (*to).to_owned()), place);
        }
        delivery
    }

    fn share(delivery: &Delivery, sinks: &[&str]) -> f64 {
        let sinks: Vec<String> = sinks.iter().map(|sink| (*sink).to_owned()).collect();
        (delivery.share(&sinks) * 1e6).round() / 1e6
    }

    #[test]
    fn sinks_of_one_promise_share_a_line() {
        let of = |guarantee, because: &[&str]| Promise {
            guarantee,
            scope: Scope::Run,
            because: because.iter().map(|why| (*why).to_owned()).collect(),
        };
        let (once, often) = (of(Guarantee::ExactlyOnce, &[]), of(Guarantee::AtLeastOnce, &["why"]));
        let lines = promise_lines([("a", &once), ("b", &often), ("c", &once)]);
        assert_eq!(lines, ["a, c: exactly once", "b: at least once: why"]);
    }

    #[test]
    fn what_is_lost_on_the_way_does_not_come_through() {
        // 98 of 100 are dead letters; a later filter and a window do not change that.
        let line = [("s", "m", 0), ("m", "f", 0), ("f", "w", 0), ("w", "out", 0)];
        let counts = [("s", 0, 7), ("m", 1000, 980), ("f", 20, 0), ("w", 10, 0), ("out", 1, 0)];
        assert_eq!(share(&delivery(&counts, &line), &["out"]), 0.02);
        // On the channel between slots.
        assert_eq!(share(&delivery(&[], &[("s", "m", 99), ("m", "out", 0)]), &["out"]), 0.01);
        // Everything.
        assert_eq!(share(&delivery(&[("m", 5, 5)], &[("s", "m", 0), ("m", "out", 0)]), &["out"]), 0.0);
        assert_eq!(share(&delivery(&[("w", 5, 9)], &[("s", "w", 0), ("w", "out", 0)]), &["out"]), 0.0);
    }

    #[test]
    fn a_join_needs_both_and_a_shared_loss_counts_once() {
        let ways =
            [("s", "a", 0), ("a", "b", 0), ("a", "c", 0), ("b", "j", 0), ("c", "j", 0), ("j", "out", 0)];
        let counts = [("a", 100, 10), ("b", 90, 0), ("c", 90, 45), ("j", 135, 0)];
        assert_eq!(share(&delivery(&counts, &ways), &["out"]), 0.45);
    }

    #[test]
    fn of_several_sinks_the_worst_counts() {
        let ways = [("s", "a", 0), ("a", "good", 0), ("s", "b", 0), ("b", "bad", 0)];
        let delivery = delivery(&[("a", 100, 0), ("b", 100, 75)], &ways);
        assert_eq!(share(&delivery, &["good"]), 1.0);
        assert_eq!(share(&delivery, &["good", "bad"]), 0.25);
    }

    #[test]
    fn a_window_of_a_run_has_its_own_share() {
        let ways = [("s", "m", 0), ("m", "out", 0)];
        let (before, now) = (delivery(&[("m", 100, 0)], &ways), delivery(&[("m", 200, 50)], &ways));
        assert_eq!(share(&now, &["out"]), 0.75);
        assert_eq!(share(&now.since(&before), &["out"]), 0.5);
    }

    proptest! {
        #[test]
        fn shares_are_shares(
            counts in prop::collection::vec((0u64..50, 0u64..60), 5),
            edges in prop::collection::vec((0usize..5, 0usize..5, 0u64..100), 0..10),
        ) {
            const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
            let counts: Vec<_> = NAMES.iter().zip(counts).map(|(id, (came, lost))| (*id, came, lost)).collect();
            let forward = edges.into_iter().filter(|(from, to, _)| from < to);
            let ways: Vec<_> = forward.map(|(from, to, lost)| (NAMES[from], NAMES[to], lost)).collect();
            let of = share(&delivery(&counts, &ways), &["e"]);
            prop_assert!((0.0..=1.0).contains(&of));
            let mut more = counts.clone();
            more[3].2 += 1;
            prop_assert!(share(&delivery(&more, &ways), &["e"]) <= of);
        }
    }
}
