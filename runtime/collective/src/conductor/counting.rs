//! Figures and traces of groups, as services say them.
use super::{Conductor, Group, Link, claims};
use crate::peers::Key;
use crate::policies::ts::Span;
use crate::protocol::{Figures, GroupState, Minute};
use std::collections::VecDeque;
use std::time::Duration;

/// The time of which figures are shown beside those of the life of a group.
const MINUTE: Duration = Duration::from_secs(60);
/// Time between two figures that are kept for that.
const STEP: Duration = Duration::from_secs(5);
/// Time after which a trace tells nothing any more: its group does nothing.
const QUIET: Duration = Duration::from_millis(2500);

/// The last operations of a group on a host, and when it said so.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) spans: Vec<Span>,
    said: Duration,
}

/// Figures of a group at some times of the last minute, ascending.
#[derive(Debug, Default)]
pub(super) struct Past {
    kept: VecDeque<(Duration, Figures)>,
    /// When there were some last.
    said: Duration,
}

impl Past {
    fn note(&mut self, figures: Figures, now: Duration) {
        self.said = now;
        if self.kept.back().is_some_and(|(at, _)| now.saturating_sub(*at) < STEP) {
            return;
        }
        // The last one from before the minute stays: from it on, it is counted.
        while self.kept.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= MINUTE) {
            self.kept.pop_front();
        }
        self.kept.push_back((now, figures));
    }

    /// Returns the difference of the figures now and those of a minute ago, or of when it was formed.
    pub(super) fn minute(&self, figures: Figures, now: Duration) -> Minute {
        if !self.kept.is_empty() && now.saturating_sub(self.said) >= MINUTE {
            return Minute { over_us: MINUTE.as_micros() as u64, ..Minute::default() };
        }
        let before = self.kept.iter().rev().find(|(at, _)| now.saturating_sub(*at) >= MINUTE);
        let Some((at, before)) = before.or_else(|| self.kept.front()) else { return Minute::default() };
        let more = |now: u64, before: u64| now.saturating_sub(before);
        Minute {
            over_us: u64::try_from(now.saturating_sub(*at).as_micros()).unwrap_or(u64::MAX),
            operations: more(figures.operations, before.operations),
            bytes: more(figures.bytes, before.bytes),
            busy_us: more(figures.busy_us, before.busy_us),
            held_us: more(figures.held_us, before.held_us),
        }
    }
}

impl Group {
    /// Its figures: those of the host that counted most.
    pub(super) fn figures(&self) -> Figures {
        let largest = |of: fn(&Figures) -> u64| self.figures.values().map(of).max().unwrap_or_default();
        Figures {
            operations: largest(|of| of.operations),
            bytes: largest(|of| of.bytes),
            busy_us: largest(|of| of.busy_us),
            epoch: self.figures.values().map(|of| of.epoch).min().unwrap_or_default(),
            control_messages: self.figures.values().map(|of| of.control_messages).sum(),
            held_us: largest(|of| of.held_us),
            changes: largest(|of| of.changes),
        }
    }
}

impl Conductor {
    /// A service says what its part of a group has done.
    pub(super) fn count(&mut self, from: Link, key: &Key, figures: Figures, trace: Vec<Span>) {
        let now = self.now;
        let group = self.groups.get_mut(key).filter(|group| group.links().contains(&from));
        let Some(group) = group else { return };
        group.traces.insert(from, Trace { spans: claims::spans(trace), said: now });
        group.figures.insert(from, figures);
        let figures = group.figures();
        group.past.note(figures, now);
        if group.state() == GroupState::Running
            && let Some(at) = group.ordered.take()
        {
            self.hints.switched(now.saturating_sub(at));
        }
    }

    /// When the operations of groups ran, at any of their hosts. Those that do nothing now are not there.
    pub(super) fn traces(&self) -> Vec<(String, Vec<Span>)> {
        let fresh = |trace: &&Trace| self.now.saturating_sub(trace.said) < QUIET;
        let of = |group: &Group| -> Vec<Span> {
            group.traces.values().filter(fresh).flat_map(|trace| trace.spans.iter().copied()).collect()
        };
        let traced = self.groups.iter().map(|(key, group)| (key.to_string(), of(group)));
        traced.filter(|(_, spans)| !spans.is_empty()).collect()
    }
}
