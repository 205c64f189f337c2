//! Windows of event time, and the panes that they share.
//!
//! A window starts at every whole multiple of `slide` since 1970 and is `size` long, so a row is in `size / slide`
//! windows. Keeping it in each would cost that many updates per row. Instead time is cut at every start and every end
//! of a window. A piece between two cuts is a pane, and a row is in exactly one. A window is a run of whole panes,
//! merged when it closes. There are at most two panes per slide (one if `slide` divides `size`); a tumbling window is
//! its own only pane.
//!
//! ```text
//! size 5, slide 2     0   2   4   6   8
//! windows             |---------|
//!                         |---------|
//! cuts                | | | | | | | | |    panes are 1 long: every even number starts a window,
//!                                          every odd one (start + 5) ends one
//! ```
use crate::record::EventTime;
use std::ops::Range;

/// Windows of one length at equal distances. All values in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    /// Length, positive.
    pub(super) size: i64,
    /// Distance from one start to the next; positive, at most `size`.
    pub(super) slide: i64,
    /// Duration after its end for which a window still accepts rows, by the watermark.
    pub(super) lateness: i64,
}

impl Windows {
    /// Returns the pane of a time; `None` if one of its windows exceeds the range of times.
    pub(super) fn pane(&self, time: EventTime) -> Option<Range<EventTime>> {
        let last = time.div_euclid(self.slide).checked_mul(self.slide)?;
        last.checked_add(self.size)?;
        last.checked_sub(self.size)?;
        let cut = last + self.size % self.slide;
        Some(if time < cut { last..cut } else { cut..last + self.slide })
    }

    /// Start of the latest window that contains a pane or time.
    pub(super) fn last(&self, time: EventTime) -> EventTime {
        time.div_euclid(self.slide) * self.slide
    }

    /// Start of the earliest window that contains a pane.
    pub(super) fn first(&self, pane: EventTime) -> EventTime {
        let last = self.last(pane);
        let whole = self.size / self.slide;
        let cut = self.size % self.slide;
        // The piece before the cut also ends a window that started one slide earlier.
        last - if pane - last < cut { whole } else { whole - 1 } * self.slide
    }

    /// Whether a window no longer accepts rows.
    pub(super) fn is_closed(&self, start: EventTime, watermark: EventTime) -> bool {
        watermark >= (start + self.size).saturating_add(self.lateness) || watermark == EventTime::MAX
    }

    /// Start of the earliest window that is not closed at a watermark below `EventTime::MAX`.
    pub(super) fn first_open(&self, watermark: EventTime) -> EventTime {
        let before = watermark.saturating_sub(self.size).saturating_sub(self.lateness);
        before.div_euclid(self.slide).saturating_add(1).saturating_mul(self.slide)
    }

    /// No result of an open window has an earlier event time.
    pub(super) fn output_watermark(&self, watermark: EventTime) -> EventTime {
        match watermark {
            EventTime::MAX => EventTime::MAX,
            watermark => watermark.saturating_sub(self.lateness),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The windows that contain a time, by definition.
    fn windows_of(w: &Windows, time: i64) -> BTreeSet<i64> {
        let multiples = (time - w.size..=time).filter(|start| start.rem_euclid(w.slide) == 0);
        multiples.filter(|start| *start <= time && time < start + w.size).collect()
    }

    proptest! {
        #[test]
        fn panes_are_runs_of_times_that_are_in_the_same_windows(
            size in 1i64..40, slide in 1i64..40, lateness in 0i64..20, from in -200i64..200,
        ) {
            let w = Windows { size, slide: slide.min(size), lateness };
            let mut panes = BTreeSet::new();
            for time in from..from + 2 * size {
                let whole = w.pane(time).unwrap();
                prop_assert!(whole.contains(&time));
                prop_assert_eq!(w.pane(whole.end - 1), Some(whole.clone()));
                prop_assert_eq!(w.pane(whole.end).unwrap().start, whole.end);
                let pane = whole.start;
                let windows = windows_of(&w, time);
                prop_assert_eq!(windows.first(), Some(&w.first(pane)));
                prop_assert_eq!(windows.last(), Some(&w.last(pane)));
                prop_assert_eq!(w.last(time), w.last(pane));
                prop_assert_eq!(windows_of(&w, pane), windows);
                panes.insert(pane);
            }
            prop_assert!(panes.len() as i64 <= 2 * (2 * size / w.slide + 2));
            let open = (from - size - lateness - slide..)
                .find(|start| start.rem_euclid(w.slide) == 0 && !w.is_closed(*start, from));
            prop_assert_eq!(open, Some(w.first_open(from)));
        }
    }

    #[test]
    fn times_whose_windows_are_out_of_range_have_no_pane() {
        let w = Windows { size: 5000, slide: 2000, lateness: 0 };
        for time in [i64::MIN, i64::MIN + 4000, i64::MAX, i64::MAX - 3000] {
            assert_eq!(w.pane(time), None, "{time}");
        }
        assert_eq!(w.first_open(i64::MIN), i64::MIN.div_euclid(2000).saturating_add(1) * 2000);
        assert_eq!((w.output_watermark(i64::MIN), w.output_watermark(i64::MAX)), (i64::MIN, i64::MAX));
    }
}
