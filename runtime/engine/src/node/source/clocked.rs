//! Ends the epochs of a stream by the clock: the time of its next record is unknown, and present records must not wait for
//! it.
//!
//! An epoch lasts at most a tick from its first record on. Its end must not change when its records are read again, since
//! other stages may have passed that epoch already. So each such end is in the epoch log, and for a stream with a journal
//! it is on disk (a mark) before it counts. Records older than this incarnation are read again without the clock.
use super::pool::{ReaderPool, Turns};
use crate::clock::Nanoseconds;
use crate::executor::Notifier;
use crate::frame::Epoch;
use crate::store::Cut;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_operators::journal::Journal;
use tidemill_operators::record::EventTime;

/// Ends recorded by an earlier process, and the journal for further ones.
pub(super) struct Marks {
    journal: Arc<Journal>,
    /// The stage.
    reader: String,
    /// Sequence number of the first record of each epoch that the clock started.
    begun: BTreeMap<Epoch, u64>,
}

impl Marks {
    pub(super) fn of(journal: Arc<Journal>, reader: &str) -> Result<Self, String> {
        let begun = journal.marks(reader).map_err(|error| error.to_string())?;
        Ok(Self { journal, reader: reader.to_owned(), begun })
    }
}

type Answer = Arc<Mutex<Option<Result<(), String>>>>;

/// An end that is being written to disk.
struct Marking {
    journal: Arc<Journal>,
    reader: String,
    epoch: Epoch,
    sequence: u64,
    /// Earlier epochs are not read again.
    kept: Epoch,
    answer: Answer,
    notifier: Notifier,
}

impl Turns for Marking {
    fn turn(self: Box<Self>) -> Option<Box<dyn Turns>> {
        let marked = self.journal.mark(&self.reader, self.epoch, self.sequence, self.kept);
        let marked = marked.map_err(|error| error.to_string());
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(marked);
        self.notifier.notify();
        None
    }
}

/// State of the current epoch by the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// Open: it has no record, or known records may belong to it.
    Open,
    /// It ends at this engine time.
    EndsAt(Nanoseconds),
    /// It has ended.
    Ended,
}

/// The ends of the epochs of one stream.
pub(super) struct Clocked {
    tick: Nanoseconds,
    /// Emission time of the epoch's first record.
    since: Option<Nanoseconds>,
    /// Epochs of an earlier incarnation, by the sequence number of their first record; with their watermark, if known.
    begun: BTreeMap<u64, (Epoch, Option<EventTime>)>,
    /// Whether all records of an earlier incarnation were emitted.
    has_caught_up: bool,
    keeper: Option<(Marks, ReaderPool)>,
    asked: Option<(Epoch, Answer)>,
    notifier: Notifier,
}

impl Clocked {
    /// `begun`: the epochs of a former incarnation after the present position. `is_first`: there was none.
    pub(super) fn new<'a>(
        tick: Nanoseconds,
        begun: impl Iterator<Item = (&'a Epoch, &'a Cut)>,
        is_first: bool,
        notifier: Notifier,
    ) -> Self {
        let begun = begun.map(|(epoch, cut)| (cut.sequence, (*epoch, Some(cut.watermark)))).collect();
        Self { tick, since: None, begun, has_caught_up: is_first, keeper: None, asked: None, notifier }
    }

    /// Uses a journal with these marks.
    pub(super) fn keep_in(&mut self, marks: Marks) {
        for (epoch, sequence) in &marks.begun {
            self.begun.entry(*sequence).or_insert((*epoch, None));
        }
        self.has_caught_up &= marks.journal.extent().end == 0;
        let pool = ReaderPool::of_one(&format!("mark-{}", marks.reader));
        self.keeper = Some((marks, pool));
    }

    /// Returns the earlier incarnation's epoch at this record, if it is later than `current`.
    pub(super) fn begun_with(&mut self, sequence: u64, current: Epoch) -> Option<(Epoch, Option<EventTime>)> {
        let mut found = None;
        while let Some(entry) = self.begun.first_entry().filter(|entry| *entry.key() <= sequence) {
            found = Some(entry.remove()).filter(|(epoch, _)| *epoch > current).or(found);
        }
        found
    }

    /// Returns the first record of the next epoch of the earlier incarnation.
    pub(super) fn next_begun(&self) -> u64 {
        self.begun.first_key_value().map_or(u64::MAX, |(sequence, _)| *sequence)
    }

    /// Records were emitted. `has_caught_up`: all available ones.
    pub(super) fn emitted(&mut self, now: Nanoseconds, has_caught_up: bool) {
        self.since.get_or_insert(now);
        self.has_caught_up |= has_caught_up;
    }

    /// Starts an epoch.
    pub(super) fn begin(&mut self) {
        self.since = None;
    }

    pub(super) fn look(&self, now: Nanoseconds) -> Clock {
        let end = self.since.map(|since| since.saturating_add(self.tick));
        match end.filter(|_| self.has_caught_up && self.begun.is_empty()) {
            None => Clock::Open,
            Some(end) if now < end => Clock::EndsAt(end),
            Some(_) => Clock::Ended,
        }
    }

    /// Returns the epoch that starts with the record `sequence` because the clock has ended `current`, or `Ok(None)`; an
    /// error is that of [`Clocked::asked`].
    pub(super) fn turn(
        &mut self,
        now: Nanoseconds,
        (current, sequence): (Epoch, u64),
        kept: impl FnOnce() -> Epoch,
    ) -> Result<Option<Epoch>, Option<String>> {
        match self.asked()? {
            None if self.look(now) == Clock::Ended => {
                let next = current + 1;
                self.ask(next, sequence, kept()).then_some(Some(next)).ok_or(None)
            }
            begun => Ok(begun),
        }
    }

    /// Requests that `epoch` starts with the record `sequence`; returns whether it may at once. Else [`Clocked::asked`]
    /// reports it later. Epochs before `kept` are not read again.
    fn ask(&mut self, epoch: Epoch, sequence: u64, kept: Epoch) -> bool {
        let Some((marks, pool)) = &self.keeper else { return true };
        let answer = Answer::default();
        let (journal, reader) = (Arc::clone(&marks.journal), marks.reader.clone());
        let notifier = self.notifier.clone();
        let marking =
            Marking { journal, reader, epoch, sequence, kept, answer: Arc::clone(&answer), notifier };
        if let Err(error) = pool.submit(Box::new(marking)) {
            let text = format!("no thread to write to the journal with: {error}");
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(text));
            self.notifier.notify();
        }
        self.asked = Some((epoch, answer));
        false
    }

    /// Returns the requested epoch: `Ok(None)`: no request; `Err(None)`: not on disk yet; `Err(Some(_))`: it cannot start.
    fn asked(&mut self) -> Result<Option<Epoch>, Option<String>> {
        let Some((epoch, answer)) = &self.asked else { return Ok(None) };
        let epoch = *epoch;
        let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match answer {
            None => Err(None),
            Some(answer) => {
                self.asked = None;
                answer.map(|()| Some(epoch)).map_err(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::journal::LEAST_SIZE;

    const TICK: Nanoseconds = 50;

    fn notifier() -> Notifier {
        Notifier { flag: Arc::default(), waker: Arc::new(crate::wake::Waker::new().expect("works")) }
    }

    fn clocked(begun: &[(Epoch, u64)], is_first: bool) -> Clocked {
        let cut = |sequence| Cut {
            position: tidemill_operators::api::SourcePosition::default(),
            skip: 0,
            sequence,
            newest: 0,
            watermark: 7,
        };
        let begun: BTreeMap<_, _> = begun.iter().map(|(epoch, sequence)| (*epoch, cut(*sequence))).collect();
        Clocked::new(TICK, begun.iter(), is_first, notifier())
    }

    #[test]
    fn an_epoch_lasts_a_tick_from_its_first_record_on() {
        let mut clocked = clocked(&[], true);
        assert_eq!(clocked.look(1000), Clock::Open, "it has no record");
        clocked.emitted(1000, true);
        clocked.emitted(1020, true);
        assert_eq!((clocked.look(1020), clocked.look(1050)), (Clock::EndsAt(1050), Clock::Ended));
        assert!(clocked.ask(3, 2, 0), "nobody has to keep it");
        clocked.begin();
        assert_eq!(clocked.look(2000), Clock::Open);
    }

    #[test]
    fn what_was_begun_before_begins_there_again_and_the_clock_does_not_count_until_then() {
        let mut clocked = clocked(&[(4, 10), (6, 20)], false);
        assert_eq!((clocked.begun_with(9, 3), clocked.next_begun()), (None, 10));
        clocked.emitted(0, true);
        assert_eq!(clocked.look(1000), Clock::Open);
        assert_eq!((clocked.begun_with(10, 3), clocked.next_begun()), (Some((4, Some(7))), 20));
        assert_eq!(clocked.begun_with(20, 6), None, "it has begun already");
        assert_eq!((clocked.next_begun(), clocked.look(1000)), (u64::MAX, Clock::Ended));
    }

    #[test]
    fn what_may_have_been_emitted_before_is_read_again_without_the_clock() {
        let mut clocked = clocked(&[], false);
        clocked.emitted(0, false);
        assert_eq!(clocked.look(1000), Clock::Open);
        clocked.emitted(1000, true);
        assert_eq!(clocked.look(1000), Clock::Ended);
    }

    #[test]
    fn an_end_counts_when_it_is_on_the_disk() {
        let folder = tempfile::tempdir().expect("works");
        let journal = Journal::open(folder.path(), 1, LEAST_SIZE).expect("works");
        let mut first = clocked(&[], true);
        first.keep_in(Marks::of(Arc::clone(&journal), "stage").expect("works"));
        assert_eq!(first.asked(), Ok(None));
        assert!(!first.ask(5, 33, 0));
        let begun = loop {
            match first.asked() {
                Err(None) => std::thread::yield_now(),
                other => break other,
            }
        };
        assert_eq!((begun, first.asked()), (Ok(Some(5)), Ok(None)));
        assert_eq!(journal.marks("stage").expect("works"), [(5, 33)].into());
        drop((first, journal));
        let journal = Journal::open(folder.path(), 1, LEAST_SIZE).expect("works");
        let mut second = clocked(&[], true);
        second.keep_in(Marks::of(journal, "stage").expect("works"));
        assert_eq!(second.begun_with(33, 4), Some((5, None)));
    }

    #[test]
    fn an_end_that_cannot_be_kept_is_told() {
        let folder = tempfile::tempdir().expect("works");
        let path = folder.path().join("journal");
        let journal = Journal::open(&path, 1, LEAST_SIZE).expect("works");
        let mut clocked = clocked(&[], true);
        clocked.keep_in(Marks::of(journal, "stage").expect("works"));
        std::fs::remove_dir_all(&path).expect("works");
        clocked.ask(1, 1, 0);
        let told = loop {
            match clocked.asked() {
                Err(None) => std::thread::yield_now(),
                other => break other,
            }
        };
        assert!(told.expect_err("it cannot").is_some_and(|text| text.contains("marks-stage")));
    }
}
