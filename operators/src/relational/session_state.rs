//! State of windows by session: the aggregates of every open session of every group.
//!
//! A row opens a session, joins the one that it is less than a gap away from, or joins two of them into one. Which sessions there are
//! follows from the rows alone, so their order of arrival does not matter. A session closes when the watermark has passed its last row
//! by the gap and the allowed lateness.
//!
//! A row is late if a session of this row alone would be closed. So no row joins a session that has closed: its last row is older than
//! any row that is not late.
use super::keys::{Key, Keys};
use super::snapshot;
use super::window_pane::Group;
use super::window_rows::{CHUNK_ROWS, Closed, EPOCH_ROWS, Origin, Setup, broken, group_bytes};
use crate::api::{OperatorError, Output, StateKeys, Stateful, TakesKeys};
use crate::record::{EventTime, Metadata};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_select::filter::filter_record_batch;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::sync::Arc;

/// Format of the snapshots.
const TAG: [u8; 8] = *b"SESSIO01";

/// When a session ends. All values in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sessions {
    /// Time without a row that ends one, positive.
    pub(super) gap: i64,
    /// Duration after its end for which a session still accepts rows, by the watermark.
    pub(super) lateness: i64,
}

impl Sessions {
    /// Whether a session with this last row no longer accepts rows.
    pub(super) fn is_closed(&self, last: EventTime, watermark: EventTime) -> bool {
        watermark >= last.saturating_add(self.gap).saturating_add(self.lateness)
            || watermark == EventTime::MAX
    }

    /// Whether the end of a session with this last row is a time.
    pub(super) fn has_end(&self, time: EventTime) -> bool {
        time.checked_add(self.gap).is_some() && time.checked_sub(self.gap).is_some()
    }
}

/// A session of a group. It starts at the first row of the group.
struct Session {
    /// Event time of its last row.
    last: EventTime,
    group: Group,
}

impl Session {
    fn start(&self) -> EventTime {
        self.group.first.0
    }
}

/// The open sessions of a group.
#[derive(Default)]
struct OpenGroup {
    /// By start; they do not touch each other.
    sessions: Vec<Session>,
    /// When to look whether one has ended: at most the last row of each.
    look: EventTime,
}

/// Running sessions.
pub(super) struct RunningSessions {
    setup: Arc<Setup>,
    sessions: Sessions,
    open: HashMap<Key, OpenGroup>,
    /// Groups by the time at which to look at them; those with another `look` by now do not count. So a row that makes a session longer
    /// changes nothing here.
    looks: BTreeMap<EventTime, Vec<Key>>,
    /// Closed sessions that have not been emitted, by last row, start and group.
    closed: BTreeMap<(EventTime, EventTime, Key), Group>,
    watermark: EventTime,
    bytes: usize,
}

fn session_bytes(key: &Key, group: &Group) -> usize {
    size_of::<Session>() + group_bytes(key, group)
}

impl RunningSessions {
    pub(super) fn new(setup: Arc<Setup>, sessions: Sessions) -> Self {
        Self {
            setup,
            sessions,
            open: HashMap::new(),
            looks: BTreeMap::new(),
            closed: BTreeMap::new(),
            watermark: EventTime::MIN,
            bytes: 0,
        }
    }

    /// Adds a session that touches none of its group.
    fn open(&mut self, key: Key, session: Session) {
        self.bytes += session_bytes(&key, &session.group);
        let group = self.open.entry(Arc::clone(&key)).or_default();
        if group.sessions.is_empty() || session.last < group.look {
            group.look = session.last;
            self.looks.entry(session.last).or_default().push(key);
        }
        let place = group.sessions.partition_point(|other| other.start() < session.start());
        group.sessions.insert(place, session);
    }

    /// Moves the sessions that the watermark has passed to the closed ones.
    fn close(&mut self) {
        let Self { sessions, watermark, .. } = *self;
        while let Some(entry) = self.looks.first_entry().filter(|it| sessions.is_closed(*it.key(), watermark))
        {
            let (look, keys) = entry.remove_entry();
            for key in keys {
                let Entry::Occupied(mut group) = self.open.entry(key) else { continue };
                if group.get().look != look {
                    continue;
                }
                let all = std::mem::take(&mut group.get_mut().sessions);
                let (ended, going): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|session| sessions.is_closed(session.last, watermark));
                for session in ended {
                    let place = (session.last, session.start(), Arc::clone(group.key()));
                    self.closed.insert(place, session.group);
                }
                match going.iter().map(|session| session.last).min() {
                    None => drop(group.remove()),
                    Some(look) => {
                        self.looks.entry(look).or_default().push(Arc::clone(group.key()));
                        *group.get_mut() = OpenGroup { sessions: going, look };
                    }
                }
            }
        }
    }

    /// Emits closed sessions until an epoch has enough rows.
    fn give(&mut self, output: &mut Output) -> Result<(), OperatorError> {
        let mut given = 0;
        while given < EPOCH_ROWS && !self.closed.is_empty() {
            let mut rows = Vec::new();
            while rows.len() < CHUNK_ROWS.min(EPOCH_ROWS - given)
                && let Some(((last, start, key), group)) = self.closed.pop_first()
            {
                self.bytes -= session_bytes(&key, &group);
                rows.push(Closed { times: start..last + self.sessions.gap, key, group });
            }
            given += rows.len();
            self.setup.emit(&rows, output)?;
        }
        Ok(())
    }

    /// Adds sessions of a snapshot, each of them new.
    fn add(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        setup.read(batch, |last, _, key, group| {
            let session = Session { last, group };
            match self.sessions.is_closed(last, self.watermark) {
                true => {
                    self.bytes += session_bytes(&key, &session.group);
                    self.closed.insert((last, session.start(), key), session.group);
                }
                false => self.open(key, session),
            }
        })
    }
}

impl Stateful for RunningSessions {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let (metadata, sessions) = (Metadata::of(batch), self.sessions);
        let keys = Keys::of(batch, &setup.group_by);
        let mut late = 0;
        for row in 0..batch.num_rows() {
            let time = metadata.times.value(row);
            if !sessions.has_end(time) {
                let detail = format!("the event time {time} us is out of range");
                output.dead_letters.push(super::dead_row(batch, row, "bad_time", detail));
                continue;
            }
            if sessions.is_closed(time, self.watermark) {
                late += 1;
                continue;
            }
            let (first, origin) = ((time, metadata.id(row)), Origin::of(&metadata, row));
            let key = keys.get(row);
            let all = self.open.get_mut(&key).map_or(&mut [][..], |group| group.sessions.as_mut_slice());
            // Those that end before the row touch it no more; of the others only the next two can.
            let place = all.partition_point(|session| session.last <= time - sessions.gap);
            let is_near = |session: &Session| session.start() < time + sessions.gap;
            match all.get_mut(place).filter(|session| is_near(session)) {
                None => {
                    let mut group = setup.group(first, origin);
                    setup.add(&mut group, first, origin, (batch, row));
                    self.open(key, Session { last: time, group });
                }
                Some(session) => {
                    session.last = session.last.max(time);
                    setup.add(&mut session.group, first, origin, (batch, row));
                    if all.get(place + 1).is_some_and(is_near) {
                        let all = &mut self.open.get_mut(&key).expect("it has two sessions").sessions;
                        let next = all.remove(place + 1);
                        self.bytes -= session_bytes(&key, &next.group);
                        all[place].last = all[place].last.max(next.last);
                        all[place].group.merge(&next.group, &setup.aggregates);
                    }
                }
            }
        }
        setup.late.count(late, output);
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = self.watermark.max(watermark);
        self.close();
        self.give(output)
    }

    fn has_more(&self) -> bool {
        !self.closed.is_empty()
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        let open = match watermark {
            EventTime::MAX => EventTime::MAX,
            watermark => watermark.saturating_sub(self.sessions.lateness),
        };
        let waiting = self.closed.first_key_value().map(|((last, ..), _)| last + self.sessions.gap - 1);
        waiting.map_or(open, |time| time.min(open))
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let open = self
            .open
            .iter()
            .flat_map(|(key, group)| group.sessions.iter().map(move |it| (it.last, key, &it.group)));
        let closed = self.closed.iter().map(|((last, _, key), group)| (*last, key, group));
        let mut all: Vec<_> = open.chain(closed).collect();
        all.sort_unstable_by(|a, b| (a.0, a.2.first.0, a.1).cmp(&(b.0, b.2.first.0, b.1)));
        let batches = self.setup.write(&all)?;
        snapshot::write(TAG, &self.watermark, &[(self.setup.snapshot_schema(), batches)])
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let (watermark, sections) = snapshot::read(TAG, &[self.setup.snapshot_schema()], bytes)?;
        let mut restored = Self::new(Arc::clone(&self.setup), self.sessions);
        restored.watermark = watermark;
        sections.iter().flatten().try_for_each(|batch| restored.add(batch))?;
        *self = restored;
        Ok(())
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn take_in(&mut self, bytes: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let (watermark, sections): (EventTime, _) =
            snapshot::read(TAG, &[self.setup.snapshot_schema()], bytes)?;
        if self.watermark == EventTime::MIN && self.bytes == 0 {
            self.watermark = watermark;
        } else if self.watermark != watermark {
            return Err(OperatorError::new(
                "window: the stages with the state have not closed the same sessions, so other stages cannot \
                 take it over now: run the old plan briefly, then try again",
            ));
        }
        for batch in sections.iter().flatten() {
            let keys = StateKeys {
                classes: batch.column(5).as_primitive::<UInt32Type>(),
                first: batch.columns().get(8),
            };
            self.add(&filter_record_batch(batch, &takes(&keys)).map_err(broken)?)?;
        }
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.bytes
    }
}
