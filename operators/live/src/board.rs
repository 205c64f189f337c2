//! State that the cameras of a source, its reader and the run share: states, accounts, and the newest frames of each camera.
use crate::decoder::Pictures;
use crate::event_time::{Arrivals, Increasing, Limit, monotonic};
use crate::ledger::{BEHIND, Ledger, PAUSED, RATE};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_operators::feeds::{FeedState, FeedStatus};
use tidemill_operators::record::EventTime;
use tidemill_operators::video::pool::FramePool;

/// A frame that waits for the reader.
#[derive(Debug)]
pub struct Waiting {
    /// Number of the frame, counted per camera.
    pub frame: i64,
    /// Event time, microseconds.
    pub time: EventTime,
    /// The picture.
    pub picture: Vec<u8>,
    /// Place among the frames of all cameras.
    order: u64,
}

impl Waiting {
    /// A frame that waits nowhere.
    pub(crate) fn new(frame: i64, time: EventTime, picture: Vec<u8>) -> Self {
        Self { frame, time, picture, order: 0 }
    }
}

/// State of a camera, as its supervisor tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// The state.
    pub state: FeedState,
    /// The time of the change to it.
    pub since: Instant,
    /// The cause, without secrets.
    pub detail: String,
    /// Connections made.
    pub connects: u64,
}

impl Told {
    /// A camera without a connection so far.
    pub fn new(state: FeedState) -> Self {
        Self { state, since: monotonic(), detail: String::new(), connects: 0 }
    }
}

struct Entry {
    /// Distinguishes it from a camera of its name that was removed.
    incarnation: u64,
    told: Told,
    /// Connections made by earlier readers of the source.
    connects_before: u64,
    ledger: Ledger<Waiting>,
    frames: i64,
    limit: Option<Limit>,
    increasing: Increasing,
}

#[derive(Default)]
struct Inner {
    feeds: BTreeMap<String, Entry>,
    incarnations: u64,
    orders: u64,
    arrivals: Arrivals,
}

/// See the module.
pub struct Board {
    inner: Mutex<Inner>,
    ready: Condvar,
    pool: Arc<FramePool>,
    /// Most frames of a camera that wait.
    keeps: usize,
}

impl Default for Board {
    fn default() -> Self {
        Self::keeping(1)
    }
}

impl Board {
    /// A board on which this many frames of each camera may wait.
    pub fn keeping(keeps: usize) -> Self {
        Self { inner: Mutex::default(), ready: Condvar::new(), pool: Arc::default(), keeps }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Buffers for pictures.
    pub fn pool(&self) -> &Arc<FramePool> {
        &self.pool
    }

    /// Returns the present time, microseconds since 1970.
    pub fn now(&self) -> EventTime {
        self.lock().arrivals.now()
    }

    /// Jumps of the clock of this machine.
    pub fn jumps(&self) -> u64 {
        self.lock().arrivals.jumps()
    }

    /// Adds a camera whose frames are limited to `most` a second.
    pub fn add(self: &Arc<Self>, feed: &str, most: Option<f64>, state: FeedState) -> Place {
        let mut inner = self.lock();
        inner.incarnations += 1;
        let incarnation = inner.incarnations;
        let entry = Entry {
            incarnation,
            told: Told::new(state),
            connects_before: 0,
            ledger: Ledger::keeping(self.keeps),
            frames: 0,
            limit: most.map(Limit::per_second),
            increasing: Increasing::default(),
        };
        inner.feeds.insert(feed.to_owned(), entry);
        Place { board: Arc::clone(self), feed: feed.to_owned(), incarnation }
    }

    /// Removes a camera and its waiting frame.
    pub fn remove(&self, feed: &str) {
        self.lock().feeds.remove(feed);
    }

    /// Returns the state and counts of all cameras, by name.
    pub fn status(&self) -> Vec<FeedStatus> {
        let inner = self.lock();
        let status = |(name, entry): (&String, &Entry)| FeedStatus {
            feed: name.clone(),
            state: entry.told.state,
            seconds: entry.told.since.elapsed().as_secs_f64(),
            detail: entry.told.detail.clone(),
            connects: entry.connects_before + entry.told.connects,
            received: entry.ledger.received(),
            emitted: entry.ledger.emitted(),
            drops: entry
                .ledger
                .drops()
                .iter()
                .map(|(reason, count)| ((*reason).to_owned(), *count))
                .collect(),
            waiting: entry.ledger.waiting_frames(),
        };
        inner.feeds.iter().map(status).collect()
    }

    /// Takes the waiting frames, the oldest first: at most `rows`, fewer when they pass `bytes`, but at least one. Waits for
    /// one as long as `patience`.
    pub fn take(&self, rows: usize, bytes: usize, patience: Duration) -> Vec<(String, Waiting)> {
        let deadline = monotonic() + patience;
        let mut inner = self.lock();
        loop {
            let taken = inner.take(rows.max(1), bytes);
            if !taken.is_empty() {
                return taken;
            }
            let left = deadline.saturating_duration_since(monotonic());
            if left.is_zero() {
                return taken;
            }
            inner = self.ready.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    fn take(&mut self, rows: usize, bytes: usize) -> Vec<(String, Waiting)> {
        let (mut taken, mut length) = (Vec::new(), 0);
        while taken.len() < rows && (taken.is_empty() || length < bytes) {
            let of = |(name, entry): (&String, &Entry)| Some((entry.ledger.waiting()?.order, name.clone()));
            let Some((_, name)) = self.feeds.iter().filter_map(of).min() else { break };
            if let Some(frame) = self.feeds.get_mut(&name).and_then(|entry| entry.ledger.take()) {
                length += frame.picture.len();
                taken.push((name, frame));
            }
        }
        taken
    }
}

/// The place of one camera on the board. It does nothing once the camera was removed.
#[derive(Clone)]
pub struct Place {
    board: Arc<Board>,
    feed: String,
    incarnation: u64,
}

impl Place {
    /// The board.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Name of the camera.
    pub fn feed(&self) -> &str {
        &self.feed
    }

    fn with<T>(&self, change: impl FnOnce(&mut Entry, &mut u64) -> T) -> Option<T> {
        let mut inner = self.board.lock();
        let Inner { feeds, orders, .. } = &mut *inner;
        let entry = feeds.get_mut(&self.feed).filter(|entry| entry.incarnation == self.incarnation)?;
        Some(change(entry, orders))
    }

    /// Tells the state.
    pub fn tell(&self, told: Told) {
        self.with(|entry, _| entry.told = told);
    }

    /// Changes the state alone, while the camera has no supervisor.
    pub fn turn(&self, state: FeedState) {
        self.with(|entry, _| {
            entry.told.since = if entry.told.state == state { entry.told.since } else { monotonic() };
            (entry.told.state, entry.told.detail) = (state, String::new());
        });
    }

    /// Shows an order: a pause, or that a camera that is paused or has failed is tried again.
    pub fn follow(&self, is_paused: bool) {
        let state = self.with(|entry, _| entry.told.state);
        match state {
            Some(FeedState::Paused | FeedState::Failed) if !is_paused => self.turn(FeedState::Connecting),
            Some(_) if is_paused => self.turn(FeedState::Paused),
            _ => {}
        }
    }

    /// Notes that another supervisor begins, which counts its own connections.
    pub fn begin(&self) {
        self.with(|entry, _| {
            entry.connects_before += entry.told.connects;
            entry.told.connects = 0;
        });
    }

    /// Drops the waiting frame, because the camera is paused.
    pub fn discard(&self) {
        self.with(|entry, _| entry.ledger.discard(PAUSED));
    }

    /// Counts a frame that the decoder had no time for.
    pub fn behind(&self) {
        self.with(|entry, _| {
            entry.frames += 1;
            entry.ledger.skip(BEHIND);
        });
    }
}

impl Pictures for Place {
    fn wants(&self, time: EventTime) -> bool {
        let takes = self.with(|entry, _| {
            let takes = entry.limit.as_mut().is_none_or(|limit| limit.takes(time));
            if !takes {
                entry.frames += 1;
                entry.ledger.skip(RATE);
            }
            takes
        });
        takes.unwrap_or(false)
    }

    fn buffer(&self) -> Vec<u8> {
        self.board.pool.take(0)
    }

    fn picture(&self, time: EventTime, picture: Vec<u8>) {
        let is_single = self.board.keeps == 1;
        let before = self.with(|entry, orders| {
            let (frame, time) = (entry.frames, entry.increasing.next(time));
            // It takes the place of the one that it replaces: else slow cameras would always come first.
            let replaced = entry.ledger.waiting().filter(|_| is_single);
            let order = replaced.map_or(*orders, |waiting| waiting.order);
            entry.frames += 1;
            *orders += 1;
            entry.ledger.offer(Waiting { frame, time, picture, order })
        });
        self.board.ready.notify_one();
        if let Some(Some(superseded)) = before {
            // Its buffer is used again.
            drop(self.board.pool.share(superseded.picture));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn the_newest_frame_of_each_camera_waits() {
        let board = Arc::new(Board::default());
        let gate = board.add("gate", None, FeedState::Connecting);
        let dock = board.add("dock", None, FeedState::Connecting);
        for time in [10, 20, 15] {
            assert!(gate.wants(time));
            gate.picture(time, vec![1; 10]);
        }
        dock.picture(5, vec![2; 10]);
        let taken = board.take(10, 1000, NOW);
        let rows: Vec<_> = taken.iter().map(|(name, row)| (name.as_str(), row.frame, row.time)).collect();
        assert_eq!(rows, [("gate", 2, 21), ("dock", 0, 5)], "times increase");
        assert!(board.take(10, 1000, NOW).is_empty());
        for camera in [&gate, &dock] {
            camera.picture(30, vec![3; 10]);
        }
        assert_eq!(board.take(10, 10, NOW).len(), 1, "ten bytes are enough");
        assert_eq!(board.take(1, 1000, NOW).len(), 1);
    }

    #[test]
    fn a_removed_camera_gives_nothing() {
        let board = Arc::new(Board::default());
        let old = board.add("gate", None, FeedState::Connecting);
        old.picture(1, vec![1]);
        board.remove("gate");
        assert!(board.status().is_empty() && board.take(1, 1, NOW).is_empty());
        let new = board.add("gate", None, FeedState::Connecting);
        old.picture(2, vec![2]);
        old.tell(Told::new(FeedState::Live));
        assert!(!old.wants(3) && new.wants(3));
        let status = &board.status()[0];
        assert_eq!((status.received, status.state), (0, FeedState::Connecting));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_frame_is_accounted_for(
            orders in prop::collection::vec((0..4u8, 0..3usize, 1..100_000i64), 0..200), limited in any::<bool>(),
        ) {
            let board = Arc::new(Board::default());
            let most = limited.then_some(20.0);
            let places: Vec<Place> =
                ["a", "b", "c"].iter().map(|name| board.add(name, most, FeedState::Live)).collect();
            let (mut received, mut emitted, mut time) = ([0; 3], 0, 0);
            for (order, camera, later) in orders {
                time += later;
                let place = &places[camera];
                match order {
                    0 if place.wants(time) => place.picture(time, vec![0; 4]),
                    0 => {}
                    1 => place.behind(),
                    2 => emitted += board.take(camera + 1, 6, NOW).len() as u64,
                    _ => place.discard(),
                }
                received[camera] += u64::from(order < 2);
                let status = board.status();
                for (of, received) in status.iter().zip(received) {
                    prop_assert_eq!(of.received, received);
                    prop_assert_eq!(of.received, of.emitted + of.drops.values().sum::<u64>() + of.waiting);
                }
                prop_assert_eq!(status.iter().map(|of| of.emitted).sum::<u64>(), emitted);
            }
        }
    }
}
