//! Event-time watermarks by epoch: "once all epochs before e are complete, the watermark is w".
//!
//! Watermarks travel beside the frontier and are a function of the epoch alone, so that windows and joins decide
//! identically in every replay, at any speed.
use crate::frame::{CLOSED, Epoch, WatermarkStep};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use tidemill_operators::record::EventTime;

/// Watermark before anything is known.
pub(crate) const UNKNOWN: EventTime = EventTime::MIN;

/// The watermarks of one stream.
#[derive(Debug, Clone)]
pub(crate) enum Track {
    /// Written by a source, a stateful stage or one upstream of an ingress.
    Own(Rc<RefCell<BTreeMap<Epoch, EventTime>>>),
    /// The meet over several streams.
    Meet(Vec<Track>),
}

impl Track {
    pub(crate) fn own() -> Self {
        Self::Own(Rc::default())
    }

    pub(crate) fn meet(mut tracks: Vec<Track>) -> Self {
        if tracks.len() == 1 { tracks.remove(0) } else { Self::Meet(tracks) }
    }

    /// Records a step; a step known already is left alone (replays repeat steps).
    pub(crate) fn record(&self, step: WatermarkStep) {
        let Self::Own(steps) = self else { unreachable!("only own tracks are written") };
        let mut steps = steps.borrow_mut();
        let before = steps.range(..=step.epoch).next_back().map(|(_, w)| *w);
        if before.is_none_or(|before| before < step.watermark) {
            steps.insert(step.epoch, step.watermark);
        }
    }

    /// The watermark once all epochs before `epoch` are complete.
    pub(crate) fn at(&self, epoch: Epoch) -> EventTime {
        match self {
            Self::Own(steps) => steps.borrow().range(..=epoch).next_back().map_or(UNKNOWN, |(_, w)| *w),
            Self::Meet(tracks) => tracks.iter().map(|track| track.at(epoch)).min().unwrap_or(UNKNOWN),
        }
    }

    /// The first epoch after `after` and up to `upto` at which a step is recorded.
    pub(crate) fn next_step(&self, after: Epoch, upto: Epoch) -> Option<Epoch> {
        match self {
            Self::Own(_) if after >= upto => None,
            Self::Own(steps) => {
                steps.borrow().range((Bound::Excluded(after), Bound::Included(upto))).next().map(|(e, _)| *e)
            }
            Self::Meet(tracks) => tracks.iter().filter_map(|track| track.next_step(after, upto)).min(),
        }
    }

    /// All steps after `after` up to `upto`, as a frontier frame carries them.
    pub(crate) fn steps(&self, after: Option<Epoch>, upto: Epoch) -> Vec<WatermarkStep> {
        let mut steps = Vec::new();
        let mut last = match after {
            Some(epoch) => self.at(epoch),
            None => {
                let watermark = self.at(0);
                if watermark > UNKNOWN {
                    steps.push(WatermarkStep { epoch: 0, watermark });
                }
                watermark
            }
        };
        let mut position = after.unwrap_or(0);
        while let Some(epoch) = self.next_step(position, upto) {
            let watermark = self.at(epoch);
            if watermark > last {
                steps.push(WatermarkStep { epoch, watermark });
                last = watermark;
            }
            position = epoch;
        }
        steps
    }

    /// Removes steps that no frontier at or after `epoch` needs.
    pub(crate) fn prune(&self, epoch: Epoch) {
        match self {
            Self::Own(steps) => {
                let mut steps = steps.borrow_mut();
                if epoch == CLOSED {
                    return;
                }
                if let Some(keep) = steps.range(..=epoch).next_back().map(|(e, _)| *e) {
                    *steps = steps.split_off(&keep);
                }
            }
            Self::Meet(tracks) => tracks.iter().for_each(|track| track.prune(epoch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meet_follows_the_slowest() {
        let (a, b) = (Track::own(), Track::own());
        let meet = Track::meet(vec![a.clone(), b.clone()]);
        a.record(WatermarkStep { epoch: 1, watermark: 10 });
        a.record(WatermarkStep { epoch: 5, watermark: 50 });
        b.record(WatermarkStep { epoch: 3, watermark: 20 });
        assert_eq!([meet.at(1), meet.at(3), meet.at(9)], [UNKNOWN, 10, 20]);
        assert_eq!(
            meet.steps(None, 9),
            [WatermarkStep { epoch: 3, watermark: 10 }, WatermarkStep { epoch: 5, watermark: 20 }]
        );
        assert_eq!(meet.steps(Some(3), 9), [WatermarkStep { epoch: 5, watermark: 20 }]);
    }

    #[test]
    fn pruning_keeps_what_later_frontiers_need() {
        let track = Track::own();
        for epoch in 1..10 {
            track.record(WatermarkStep { epoch, watermark: epoch as i64 });
        }
        track.prune(5);
        assert_eq!([track.at(5), track.at(7)], [5, 7]);
        assert_eq!(track.at(4), UNKNOWN);
    }
}
