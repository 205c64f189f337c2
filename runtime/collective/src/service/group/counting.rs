//! Figures and counters of a group on this host.
use super::super::counted::micros;
use super::super::formation::Current;
use super::super::now;
use super::Work;
use crate::policies::ts::Span;
use crate::protocol::{Failure, FailureKind};
use crate::team::host_clock;
use std::time::Duration;

/// Operations in a trace: enough for some steps of a program.
const MOST_SPANS: usize = 512;

impl Work {
    /// An operation was carried out; of its time, the last part of which bytes were held is not counted yet.
    pub(super) fn has_ended(&mut self, current: &Current, held: Duration) {
        let took = now().saturating_duration_since(current.since);
        let numbered = &current.numbered;
        self.was_held(held);
        self.shared.ended(numbered, took);
        self.figures.operations += 1;
        self.figures.bytes += numbered.length.saturating_mul(numbered.element.bytes() as u64);
        let end_us = micros(host_clock()());
        let took_us = micros(took);
        self.figures.busy_us += took_us;
        self.trace.push_back(Span { start_us: end_us.saturating_sub(took_us), end_us });
        if self.trace.len() > MOST_SPANS {
            self.trace.pop_front();
        }
    }

    /// Bytes waited for groups that go first.
    pub(super) fn was_held(&mut self, held: Duration) {
        if !held.is_zero() {
            self.figures.held_us += micros(held);
            self.shared.count(|counts| counts.held_us += micros(held));
        }
    }

    /// The group is broken.
    pub(super) fn has_broken(&mut self, failure: &Failure) {
        self.shared.rests();
        self.changes = None;
        if failure.kind == FailureKind::Lost && failure.rank.is_some() {
            self.shared.count(|counts| counts.lost_ranks += 1);
        }
    }
}
