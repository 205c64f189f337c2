//! State of the connection to a channel's receiver, and the reaction to a cut: keeping data, or ending the run.
use crate::clock::Nanoseconds;
use crate::cut::{CUT_AFTER, Hold};
use crate::failure::RunError;
use crate::frame::Epoch;
use crate::metrics::EdgeMetrics;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_spec::workflow::{CutBuffer, WhenCut};

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connected,
    /// Not connected since then; a connection may be in progress.
    Missing(Nanoseconds),
    /// Cut since then; new data is kept.
    Cut(Nanoseconds),
    /// Cut for longer than data is to be kept.
    GivenUp(Nanoseconds),
    /// Restored since then; kept data is being delivered, up to this epoch.
    Delivers {
        since: Nanoseconds,
        until: Epoch,
    },
}

/// Observed state of the channel.
pub(super) struct View {
    pub(super) now: Nanoseconds,
    pub(super) is_connected: bool,
    /// No data waits to be sent.
    pub(super) is_sent: bool,
    /// Position of the channel: its frontier, and the durable epoch downstream.
    pub(super) frontier: Epoch,
    pub(super) durable: Epoch,
    /// The receiver has everything.
    pub(super) is_over: bool,
    /// Bytes that the channel keeps.
    pub(super) bytes: usize,
}

/// Watches the connection to a channel's receiver on another host.
pub(super) struct Connection {
    name: String,
    when_cut: WhenCut,
    /// Buffer during a cut; `None`: no additional data is kept.
    kept: Option<CutBuffer>,
    metrics: Arc<EdgeMetrics>,
    state: State,
    /// This channel's contribution to its edge's figures: cut channels, delivering channels, kept bytes.
    told: (i64, i64, i64),
}

impl Connection {
    pub(super) fn new(name: String, when_cut: WhenCut, metrics: Arc<EdgeMetrics>) -> Self {
        let kept = when_cut.kept();
        Self { name, when_cut, kept, metrics, state: State::Connected, told: (0, 0, 0) }
    }

    /// Additional data held.
    pub(super) fn hold(&self) -> Hold {
        match (&self.kept, self.state) {
            (Some(kept), State::Cut(_)) => Hold::Cut(kept.size().0),
            (Some(kept), State::Delivers { .. }) => Hold::Delivers(kept.size().0),
            _ => Hold::None,
        }
    }

    /// Updates the state; returns when to look next if no other event may come before.
    ///
    /// # Errors
    /// The edge has been cut for too long, and the run must end.
    pub(super) fn look(&mut self, view: &View) -> Result<Option<Nanoseconds>, RunError> {
        let before = self.state;
        let after = self.next(view);
        self.state = after;
        if before != after {
            self.change(before, after, view);
        }
        self.show(view);
        let ends = |since: Nanoseconds| match (&self.when_cut, &self.kept) {
            (WhenCut::Stop(stop), _) => since.saturating_add(nanoseconds(stop.after().0)),
            (_, Some(kept)) => since.saturating_add(nanoseconds(kept.time().0)),
            (_, None) => Nanoseconds::MAX,
        };
        match (after, &self.when_cut) {
            (State::Missing(since), _) => Ok(Some(since + CUT_AFTER)),
            (State::Cut(since), WhenCut::Stop(stop)) if view.now >= ends(since) => {
                Err(RunError::Cut(format!(
                    "edge {} is cut for {}, and `when_cut: stop` ends the run then",
                    self.name,
                    stop.after()
                )))
            }
            (State::Cut(since), _) => Ok(Some(ends(since))),
            (State::Connected | State::GivenUp(_) | State::Delivers { .. }, _) => Ok(None),
        }
    }

    fn next(&self, view: &View) -> State {
        if view.is_over {
            return State::Connected;
        }
        let View { now, is_connected, .. } = *view;
        match (self.state, is_connected) {
            (State::Connected, true) | (State::Missing(_), true) => State::Connected,
            // Zero means never in the figures.
            (State::Connected, false) => State::Missing(now.max(1)),
            (State::Missing(since), false) if now - since >= CUT_AFTER => State::Cut(since),
            (State::Cut(since), false) => match &self.kept {
                Some(kept) if now - since >= nanoseconds(kept.time().0) => State::GivenUp(since),
                _ => State::Cut(since),
            },
            (State::Cut(_) | State::GivenUp(_), true) => State::Delivers { since: now, until: view.frontier },
            (State::Delivers { until, .. }, true) if view.is_sent && view.durable >= until => {
                State::Connected
            }
            // Cut again before all was delivered: new data is kept without a pause.
            (State::Delivers { .. }, false) => State::Cut(now.max(1)),
            (state, _) => state,
        }
    }

    fn change(&mut self, before: State, after: State, view: &View) {
        let seconds = |since: Nanoseconds| (view.now - since) as f64 / 1e9;
        if let State::Cut(since) | State::GivenUp(since) = before
            && !matches!(after, State::Cut(_) | State::GivenUp(_))
        {
            self.metrics.cut_over(view.now);
            tracing::info!("edge {} is back after {:.1} s", self.name, seconds(since));
        }
        match (after, &self.when_cut) {
            (State::Cut(since), _) if !matches!(before, State::Cut(_)) => {
                self.metrics.cut_begins(since);
                let what = match &self.when_cut {
                    WhenCut::Buffer(buffer) => {
                        format!("up to {} are kept for {}", buffer.size(), buffer.time())
                    }
                    WhenCut::Stop(stop) => format!("the run ends after {} of this", stop.after()),
                    WhenCut::Degrade(degrade) => format!(
                        "`{}` answers on this side after {} of this, up to {} are kept for {}",
                        degrade.variant,
                        degrade.after(),
                        degrade.size(),
                        degrade.time()
                    ),
                };
                tracing::warn!("edge {} is cut: {what}", self.name);
            }
            (State::GivenUp(since), _) => {
                tracing::warn!(
                    "edge {} is cut for {:.0} s: sources wait from now on; what was kept stays kept",
                    self.name,
                    seconds(since)
                );
            }
            (State::Connected, WhenCut::Buffer(_) | WhenCut::Degrade(_)) => {
                if let State::Delivers { since, .. } = before {
                    let seconds = seconds(since);
                    tracing::info!(
                        "what edge {} kept is delivered, {seconds:.1} s after it was back",
                        self.name
                    );
                }
            }
            _ => {}
        }
    }

    fn show(&mut self, view: &View) {
        let is_cut = matches!(self.state, State::Cut(_) | State::GivenUp(_));
        let delivers = matches!(self.state, State::Delivers { .. });
        let bytes = if is_cut || delivers { view.bytes as i64 } else { 0 };
        self.metrics.cut.change(&mut self.told.0, i64::from(is_cut));
        self.metrics.delivers.change(&mut self.told.1, i64::from(delivers));
        self.metrics.buffered.change(&mut self.told.2, bytes);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let view = View {
            now: 0,
            is_connected: true,
            is_sent: true,
            frontier: 0,
            durable: 0,
            is_over: true,
            bytes: 0,
        };
        if matches!(self.state, State::Cut(_) | State::GivenUp(_)) {
            // The next incarnation reports the next cut.
            self.metrics.cut_since.store(0, Ordering::Relaxed);
        }
        self.state = State::Connected;
        self.show(&view);
    }
}

fn nanoseconds(time: u64) -> Nanoseconds {
    Nanoseconds::try_from(time).unwrap_or(Nanoseconds::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::units::{Bytes, TimeSpan};
    use tidemill_spec::workflow::CutStop;

    const SECOND: Nanoseconds = 1_000_000_000;
    const SIZE: u64 = 4 << 20;

    struct Case {
        connection: Connection,
        metrics: Arc<EdgeMetrics>,
        durable: Epoch,
        is_sent: bool,
    }

    impl Case {
        fn new(when_cut: WhenCut) -> Self {
            let metrics = Arc::<EdgeMetrics>::default();
            let connection = Connection::new("f->g".into(), when_cut, Arc::clone(&metrics));
            Self { connection, metrics, durable: 0, is_sent: true }
        }

        fn buffer() -> Self {
            let time = Some(TimeSpan(60 * SECOND as u64).into());
            Self::new(WhenCut::Buffer(CutBuffer { size: Some(Bytes(SIZE).into()), time }))
        }

        /// Looks at this time; the channel is at epoch 40.
        fn look(&mut self, seconds: i64, is_connected: bool) -> Result<Option<i64>, RunError> {
            let view = View {
                now: seconds * SECOND,
                is_connected,
                is_sent: self.is_sent,
                frontier: 40,
                durable: self.durable,
                is_over: false,
                bytes: 7,
            };
            self.connection.look(&view).map(|next| next.map(|next| next / SECOND))
        }

        fn told(&self) -> (u64, u64, u64) {
            (self.metrics.cut.get(), self.metrics.delivers.get(), self.metrics.buffered.get())
        }
    }

    #[test]
    fn what_is_dialled_again_at_once_was_not_cut() {
        let mut case = Case::buffer();
        assert_eq!(case.look(10, true), Ok(None));
        assert_eq!(case.look(11, false), Ok(Some(12)));
        assert_eq!(case.connection.hold(), Hold::None);
        assert_eq!(case.look(11, true), Ok(None));
        assert_eq!(case.look(20, false), Ok(Some(21)), "it counts from when it was missing again");
        assert_eq!((case.told(), case.metrics.cuts.load(Ordering::Relaxed)), ((0, 0, 0), 0));
    }

    #[test]
    fn what_is_cut_is_kept_until_it_is_delivered() {
        let mut case = Case::buffer();
        assert_eq!(case.look(10, false), Ok(Some(11)));
        assert_eq!(case.look(11, false), Ok(Some(70)), "its time is over then");
        assert_eq!((case.connection.hold(), case.told()), (Hold::Cut(SIZE), (1, 0, 7)));
        assert_eq!(case.metrics.cut_since.load(Ordering::Relaxed), 10 * SECOND);
        (case.durable, case.is_sent) = (20, false);
        assert_eq!(case.look(30, true), Ok(None));
        assert_eq!((case.connection.hold(), case.told()), (Hold::Delivers(SIZE), (0, 1, 7)));
        assert_eq!(case.metrics.cut_nanoseconds.load(Ordering::Relaxed), 20 * SECOND as u64);
        // Cut again in between: it counts as a cut at once.
        assert_eq!(case.look(31, false), Ok(Some(91)));
        assert_eq!(case.connection.hold(), Hold::Cut(SIZE));
        assert_eq!(case.look(32, true), Ok(None));
        (case.durable, case.is_sent) = (40, false);
        assert_eq!(case.look(33, true), Ok(None));
        assert_eq!(case.connection.hold(), Hold::Delivers(SIZE), "some waits to be sent");
        case.is_sent = true;
        assert_eq!(case.look(34, true), Ok(None));
        assert_eq!((case.connection.hold(), case.told()), (Hold::None, (0, 0, 0)));
        assert_eq!(case.metrics.cuts.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_is_cut_for_too_long_is_kept_and_nothing_more() {
        let mut case = Case::buffer();
        let _ = case.look(10, false);
        let _ = case.look(11, false);
        assert_eq!(case.look(70, false), Ok(None));
        assert_eq!((case.connection.hold(), case.told()), (Hold::None, (1, 0, 7)));
        assert_eq!(case.look(500, true), Ok(None));
        assert_eq!(case.connection.hold(), Hold::Delivers(SIZE));
    }

    #[test]
    fn a_run_that_is_to_stop_stops_after_its_time() {
        let after = Some(TimeSpan(5 * SECOND as u64).into());
        let mut case = Case::new(WhenCut::Stop(CutStop { after }));
        assert_eq!(case.look(10, false), Ok(Some(11)));
        assert_eq!(case.look(11, false), Ok(Some(15)));
        assert_eq!(case.look(14, false), Ok(Some(15)));
        assert_eq!(case.connection.hold(), Hold::None);
        let error = case.look(15, false).expect_err("its time is over");
        assert_eq!(error.to_string(), "edge f->g is cut for 5s, and `when_cut: stop` ends the run then");
    }

    #[test]
    fn a_slot_that_ends_takes_its_share_of_the_figures_along() {
        let mut case = Case::buffer();
        let _ = case.look(10, false);
        let _ = case.look(11, false);
        drop(case.connection);
        let metrics = case.metrics;
        assert_eq!((metrics.cut.get(), metrics.buffered.get()), (0, 0));
        assert_eq!(metrics.cut_since.load(Ordering::Relaxed), 0);
    }
}
