//! Effects of checkpoints on the journals.
use super::{folder, forget, journalled, needed};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_engine::clock::Nanoseconds;
use tidemill_engine::{EpochLog, JournalOrder, Program};
use tidemill_operators::api::SourcePosition;
use tidemill_operators::journal::{Journal, SEGMENT};

/// Bytes of a journal that checkpoints before the last one may need, so that the stream continues beside them.
fn room(size: u64, checkpoint_every: u64) -> u64 {
    (size / 2).min(size.saturating_add(2 * SEGMENT).saturating_sub(needed(checkpoint_every)))
}

/// The journal of one source.
struct SourceJournal {
    source: String,
    folder: PathBuf,
    /// Its stages.
    stages: Vec<String>,
    place: fn(&SourcePosition) -> Option<u64>,
    /// Longest time without a checkpoint in which the stream is read.
    keep: Nanoseconds,
    /// Bytes of it that checkpoints before the last one may need.
    room: u64,
    /// `None` if another process reads it.
    journal: Option<Arc<Journal>>,
}

/// Effects of checkpoints on the journals: data that is no longer needed is released, and while no checkpoint can be
/// written for too long, the streams are not read.
pub(crate) struct Keeper {
    state: PathBuf,
    kept: Vec<SourceJournal>,
    /// Positions of the kept checkpoints, oldest first; by source, 0 if missing.
    begins: VecDeque<BTreeMap<String, u64>>,
    /// Positions of the pinned checkpoint, which is always kept.
    pinned: Option<BTreeMap<String, u64>>,
    /// Number of checkpoints kept, if the journals have room.
    most: usize,
    /// Whether the removal of older ones was reported.
    told: bool,
    /// Engine time of the first failure since the last checkpoint.
    failing_since: Option<Nanoseconds>,
    /// Orders for journals on other machines.
    orders: Option<BTreeMap<String, JournalOrder>>,
}

/// Checkpoints kept after a write; see [`Keeper::keeping`].
pub(crate) struct Keeping {
    /// Positions of the new one.
    begins: BTreeMap<String, u64>,
    /// Number of checkpoints, including the new one.
    pub(crate) checkpoints: usize,
    /// Positions of the pinned checkpoint, which is always kept.
    pinned: Option<BTreeMap<String, u64>>,
}

impl Keeping {
    /// Whether a checkpoint is pinned.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }
}

impl Keeper {
    /// `opened`: the journals that this process reads; `most`: number of checkpoints kept.
    pub(crate) fn new(
        state: &Path,
        program: &Program,
        mut opened: BTreeMap<String, Arc<Journal>>,
        most: usize,
    ) -> Self {
        let kept = journalled(program).filter_map(|source| {
            let stages = program.plan.stages.iter().filter(|stage| stage.operator == source.id);
            let options = source.journal.as_ref()?;
            let keep = options.keep().0;
            Some(SourceJournal {
                source: source.id.clone(),
                folder: folder(state, &source.id),
                stages: stages.map(|stage| stage.id.clone()).collect(),
                place: source.journalled.as_ref()?.place,
                keep: Nanoseconds::try_from(keep).unwrap_or(Nanoseconds::MAX),
                room: room(options.size().0, program.plan.checkpoint_every),
                journal: opened.remove(&source.id),
            })
        });
        Self {
            state: state.to_owned(),
            kept: kept.collect(),
            begins: VecDeque::new(),
            pinned: None,
            most,
            told: false,
            failing_since: None,
            orders: None,
        }
    }

    /// Sets that the journals are on other machines: nothing is done here, and orders for them are collected.
    pub(crate) fn elsewhere(mut self) -> Self {
        self.orders = Some(BTreeMap::new());
        self
    }

    /// Returns the orders for other machines since the last call.
    pub(crate) fn orders(&mut self) -> BTreeMap<String, JournalOrder> {
        self.orders.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds the positions of existing checkpoints, the oldest first, and of the pinned one.
    pub(crate) fn known(
        mut self,
        kept: &[BTreeMap<String, EpochLog>],
        pinned: Option<&BTreeMap<String, EpochLog>>,
    ) -> Self {
        self.begins = kept.iter().map(|logs| self.begins(logs)).collect();
        self.pinned = pinned.map(|logs| self.begins(logs));
        self
    }

    /// Returns the checkpoints kept if one with these positions is written. Older ones that need too much of a journal, so
    /// that its stream would have to wait for them, are removed: no checkpoint would be written any more. `is_pinned`: one
    /// is pinned, the last one if there is none yet.
    pub(crate) fn keeping(&self, begins: BTreeMap<String, u64>, is_pinned: bool) -> Keeping {
        let is_near = |older: &&BTreeMap<String, u64>| !self.is_far(older, &begins);
        let older = || self.begins.iter().rev().take(self.most.saturating_sub(1));
        let near = older().take_while(is_near).count();
        // The pinned one may be between others, which are counted with it.
        let checkpoints = if near < older().count() { near + 1 } else { self.most.max(1) };
        let pinned =
            self.pinned.as_ref().or(self.begins.back()).filter(|_| is_pinned).filter(is_near).cloned();
        Keeping { begins, checkpoints, pinned }
    }

    /// Returns the checkpoints kept of the existing ones, if the stream of a journal would wait for ever for data that
    /// older ones need: left by a process with a larger journal, or without this check. `None`: none is removed.
    pub(crate) fn stuck(&self) -> Option<Keeping> {
        let last = self.begins.back().filter(|_| self.orders.is_none())?;
        let mut all = self.begins.iter().chain(&self.pinned);
        all.any(|older| self.is_far(older, last)).then(|| Keeping {
            begins: last.clone(),
            checkpoints: 1,
            pinned: self.pinned.as_ref().filter(|pinned| !self.is_far(pinned, last)).cloned(),
        })
    }

    /// Whether a checkpoint needs more of a journal than there is room for, beside the need of one at `now`.
    fn is_far(&self, begins: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> bool {
        self.kept.iter().any(|kept| {
            let place = |begins: &BTreeMap<String, u64>| begins.get(&kept.source).copied().unwrap_or(0);
            let (from, to) = (place(begins), place(now));
            let bytes = |from| Journal::bytes_from(&kept.folder, from).ok().filter(|_| self.orders.is_none());
            let needed = match (bytes(from), bytes(to)) {
                // Includes the overhead of the files.
                (Some(all), Some(own)) => all.saturating_sub(own),
                _ => to.saturating_sub(from),
            };
            needed > kept.room
        })
    }

    /// Positions from which the sources are read again from a checkpoint with these logs.
    pub(crate) fn begins(&self, logs: &BTreeMap<String, EpochLog>) -> BTreeMap<String, u64> {
        let place = |kept: &SourceJournal, stage: &String| {
            let (_, cut) = logs.get(stage)?.cuts.first_key_value()?;
            (kept.place)(&cut.position)
        };
        let of = |kept: &SourceJournal| {
            let places = kept.stages.iter().map(|stage| place(kept, stage).unwrap_or(0));
            (kept.source.clone(), places.min().unwrap_or(0))
        };
        self.kept.iter().map(of).collect()
    }

    /// Records that a checkpoint was written.
    pub(crate) fn written(&mut self, keeping: Keeping, is_complete: bool) {
        let Keeping { begins, checkpoints, pinned } = keeping;
        self.failing_since = None;
        self.pinned = pinned;
        self.begins.push_back(begins);
        if self.begins.len().min(self.most) > checkpoints && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                "keeping fewer checkpoints than requested, because a stream would have to wait for the \
                 space that they need in its journal; a larger `size` of the journal keeps more"
            );
        }
        while self.begins.len() > checkpoints {
            self.begins.pop_front();
        }
        // A user can return a local run to an older checkpoint, but not one of a cluster.
        let is_last = self.begins.len() == 1 || self.orders.is_some();
        let nobody_goes_back = is_complete && is_last && self.pinned.is_none();
        for kept in &self.kept {
            let begins = self.begins.iter().chain(&self.pinned);
            let places = begins.map(|begins| begins.get(&kept.source).copied().unwrap_or(0));
            let before = places.min().unwrap_or(0);
            if let Some(orders) = &mut self.orders {
                let order =
                    if nobody_goes_back { JournalOrder::Forget } else { JournalOrder::Release(before) };
                orders.insert(kept.source.clone(), order);
                continue;
            }
            let released = match &kept.journal {
                Some(journal) => {
                    journal.hold(false);
                    journal.release(before)
                }
                None => Journal::release_in(&kept.folder, before),
            };
            if let Err(error) = released {
                tracing::warn!("source `{}`: {error}", kept.source);
            }
        }
        if nobody_goes_back
            && self.orders.is_none()
            && !self.kept.is_empty()
            && let Err(error) = forget(&self.state)
        {
            tracing::warn!("{error}");
        }
    }

    /// Records that a checkpoint could not be written.
    pub(crate) fn failed(&mut self, now: Nanoseconds) {
        let since = *self.failing_since.get_or_insert(now);
        for kept in self.kept.iter().filter(|kept| now - since >= kept.keep) {
            if let Some(journal) = &kept.journal {
                journal.hold(true);
            } else if let Some(orders) = &mut self.orders {
                orders.insert(kept.source.clone(), JournalOrder::Hold);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::journal::LEAST_SIZE;
    use tidemill_state::JOURNALS;

    /// A journal with three segments of lines from a pipe.
    fn journal(state: &Path) -> Arc<Journal> {
        let journal = Journal::open(&folder(state, "s"), 1, 4 * LEAST_SIZE).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        journal.attach(|| Ok(std::os::fd::OwnedFd::from(reader).into())).unwrap();
        let sender = std::thread::spawn(move || {
            std::io::Write::write_all(&mut writer, &vec![b'\n'; 3 * SEGMENT as usize]).unwrap();
        });
        let (mut cursor, mut buffer) = (tidemill_operators::journal::Cursor::at(0), vec![0; 1 << 20]);
        while cursor.read(&journal, &mut buffer).unwrap() > 0 {}
        sender.join().unwrap();
        journal
    }

    fn keeper(state: &Path, journal: Option<&Arc<Journal>>, most: usize, known: usize) -> Keeper {
        let kept = SourceJournal {
            source: "s".into(),
            folder: folder(state, "s"),
            stages: vec!["s".into()],
            place: |position| position.0.parse().ok(),
            keep: 1000,
            room: 2 * LEAST_SIZE,
            journal: journal.cloned(),
        };
        let begins = std::iter::repeat_n(BTreeMap::new(), known).collect();
        Keeper {
            state: state.to_owned(),
            kept: vec![kept],
            begins,
            pinned: None,
            most,
            told: false,
            failing_since: None,
            orders: None,
        }
    }

    fn write(keeper: &mut Keeper, begins: BTreeMap<String, u64>, is_complete: bool) {
        let keeping = keeper.keeping(begins, false);
        keeper.written(keeping, is_complete);
    }

    fn logs(place: u64) -> BTreeMap<String, EpochLog> {
        let cut = tidemill_engine::Cut {
            position: SourcePosition(place.to_string()),
            skip: 3,
            sequence: 0,
            newest: 0,
            watermark: 0,
        };
        let mut log = EpochLog::default();
        log.cuts.insert(5, cut);
        BTreeMap::from([("s".to_owned(), log)])
    }

    #[test]
    fn what_no_kept_checkpoint_needs_is_released() {
        for (is_here, most, known) in [(true, 1, 0), (false, 1, 1), (true, 2, 0), (true, 2, 2)] {
            let state = tempfile::tempdir().unwrap();
            let journal = journal(state.path());
            let mut keeper = keeper(state.path(), is_here.then_some(&journal), most, known);
            let first = || Journal::look(&folder(state.path(), "s")).unwrap().unwrap().first;
            let begins = keeper.begins(&logs(2 * SEGMENT));
            assert_eq!(begins["s"], 2 * SEGMENT);
            let begins_at_first = keeper.begins(&BTreeMap::new());
            write(&mut keeper, begins_at_first, false);
            for _ in 0..most {
                assert_eq!(first(), 0, "an older checkpoint needs it");
                write(&mut keeper, begins.clone(), false);
            }
            assert!(first() > 0);
            write(&mut keeper, begins.clone(), true);
            assert_eq!(state.path().join(JOURNALS).exists(), most > 1);
        }
    }

    #[test]
    fn journals_of_other_machines_are_told_of_and_left_alone() {
        let state = tempfile::tempdir().unwrap();
        let mut keeper = keeper(state.path(), None, 2, 0).elsewhere();
        let told = |order| BTreeMap::from([("s".to_owned(), order)]);
        write(&mut keeper, BTreeMap::from([("s".to_owned(), 7)]), false);
        write(&mut keeper, BTreeMap::from([("s".to_owned(), 9)]), false);
        assert_eq!(keeper.orders(), told(JournalOrder::Release(7)), "the older one is kept too");
        assert!(keeper.orders().is_empty());
        keeper.failed(0);
        assert!(keeper.orders().is_empty(), "not for long yet");
        keeper.failed(2000);
        assert_eq!(keeper.orders(), told(JournalOrder::Hold));
        write(&mut keeper, BTreeMap::from([("s".to_owned(), 11)]), false);
        assert_eq!(keeper.orders(), told(JournalOrder::Release(9)));
        write(&mut keeper, BTreeMap::from([("s".to_owned(), 12)]), true);
        assert_eq!(keeper.orders(), told(JournalOrder::Forget));
        assert!(!state.path().join(JOURNALS).exists());
    }

    #[test]
    fn what_a_pinned_checkpoint_needs_is_kept_until_the_stream_would_wait_for_it() {
        let state = tempfile::tempdir().unwrap();
        let journal = journal(state.path());
        let mut keeper = keeper(state.path(), Some(&journal), 1, 0);
        let first = || Journal::look(&folder(state.path(), "s")).unwrap().unwrap().first;
        let begins = keeper.begins(&logs(0));
        write(&mut keeper, begins, false);
        for is_complete in [false, true] {
            let keeping = keeper.keeping(keeper.begins(&logs(2 * SEGMENT)), true);
            assert!(keeping.is_pinned());
            keeper.written(keeping, is_complete);
            assert_eq!(first(), 0, "whoever goes back reads it again");
        }
        keeper.kept[0].room = SEGMENT / 2;
        let begins = keeper.begins(&logs(2 * SEGMENT));
        for _ in 0..2 {
            // The checkpoint that changes this may never be written: until then the pinned one is there.
            assert!(!keeper.keeping(begins.clone(), true).is_pinned());
            keeper.failed(0);
            assert_eq!(first(), 0);
        }
        let keeping = keeper.keeping(begins, true);
        keeper.written(keeping, false);
        assert!(first() > 0);
    }

    #[test]
    fn older_checkpoints_are_given_up_before_the_stream_waits_for_them() {
        let state = tempfile::tempdir().unwrap();
        let journal = journal(state.path());
        let mut keeper = keeper(state.path(), Some(&journal), 3, 0);
        let first = || Journal::look(&folder(state.path(), "s")).unwrap().unwrap().first;
        let at_first = keeper.begins(&logs(0));
        write(&mut keeper, at_first, false);
        let begins = keeper.begins(&logs(2 * SEGMENT));
        assert_eq!(keeper.keeping(begins.clone(), false).checkpoints, 3);
        keeper.kept[0].room = SEGMENT / 2;
        let keeping = keeper.keeping(begins, false);
        assert_eq!((keeping.checkpoints, first()), (1, 0), "not before that is written");
        keeper.written(keeping, false);
        assert!(first() > 0);
    }

    /// In a continuing process: checkpoints that need little do not count as needing everything, and if the process is
    /// blocked it removes the obstacles.
    #[test]
    fn checkpoints_of_former_processes_need_what_they_say() {
        let state = tempfile::tempdir().unwrap();
        let journal = journal(state.path());
        let first = || Journal::look(&folder(state.path(), "s")).unwrap().unwrap().first;
        let known = |most, room, kept: &[u64], pinned: Option<u64>| {
            let mut keeper = keeper(state.path(), Some(&journal), most, 0);
            keeper.kept[0].room = room;
            let kept: Vec<_> = kept.iter().map(|place| logs(*place)).collect();
            keeper.known(&kept, pinned.map(logs).as_ref())
        };
        let last = 2 * SEGMENT;
        assert!(known(3, SEGMENT / 2, &[last, last], None).stuck().is_none());
        assert!(known(3, LEAST_SIZE, &[0, last], Some(0)).stuck().is_none());
        assert!(known(3, SEGMENT / 2, &[0, last], None).elsewhere().stuck().is_none());
        assert!(!known(1, SEGMENT / 2, &[last], Some(0)).stuck().unwrap().is_pinned());
        let mut keeper = known(3, SEGMENT / 2, &[0, last], Some(last));
        let keeping = keeper.stuck().unwrap();
        assert!(keeping.is_pinned() && keeping.checkpoints == 1);
        keeper.written(keeping, false);
        assert!(first() > 0 && keeper.stuck().is_none());
        let (mut keeper, begins) = (known(2, LEAST_SIZE, &[last], None), keeper.begins(&logs(last)));
        write(&mut keeper, begins, false);
        assert_eq!(keeper.begins.iter().map(|begins| begins["s"]).collect::<Vec<_>>(), [last, last]);
    }

    #[test]
    fn a_journal_that_just_fits_has_room_for_older_checkpoints() {
        for every in [1, 10, 1000] {
            let size = needed(every);
            assert!(room(size, every) <= 2 * SEGMENT && room(size, every) > 0, "{every}");
        }
        assert_eq!(room(1 << 30, 1), 1 << 29);
    }

    #[test]
    fn streams_are_held_when_no_checkpoint_comes_for_too_long() {
        let state = tempfile::tempdir().unwrap();
        let journal = journal(state.path());
        let mut keeper = keeper(state.path(), Some(&journal), 1, 0);
        let cursor = tidemill_operators::journal::Cursor::at(journal.extent().end);
        for (now, is_held) in [(5000, false), (5999, false), (6000, true)] {
            keeper.failed(now);
            assert_eq!(keeper.kept[0].journal.as_ref().unwrap().is_held(), is_held, "at {now}");
        }
        write(&mut keeper, BTreeMap::new(), false);
        assert!(!journal.is_held());
        keeper.failed(7000);
        assert!(!journal.is_held(), "it counts anew");
        assert!(cursor.is_ready(&journal), "the end is known");
    }
}
