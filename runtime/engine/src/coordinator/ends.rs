//! Decides which checkpoints must not be kept because of how streams have ended.
//!
//! A stream with a journal may have ended because its producer was killed with the run. A continued run reads on, from a
//! producer that continues there. So no state may be kept that depends on the end of such a stream: closed windows, a sink
//! with all epochs, a last epoch without more rows. A checkpoint depends on it as soon as one of its parts was made after
//! the end; then the previous one remains. The work repeated from there ends with the run: all sources have ended, and
//! everything was read.
//!
//! If another source continues, the run may last for any time, and needs checkpoints. Then the end counts, unless the run
//! is ended early.
use crate::checkpoint::Checkpoint;
use crate::frame::CLOSED;
use crate::graph::Program;
use crate::store::EpochLogs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_operators::api::{BoundSource, SourcePromise};

struct OneSource {
    stages: Vec<String>,
    is_journalled: bool,
}

/// Known ends of sources.
pub(super) struct Ends {
    /// Newer than those in a checkpoint.
    epochs: Arc<EpochLogs>,
    sources: Vec<OneSource>,
    is_early: AtomicBool,
}

impl Ends {
    pub(super) fn of(program: &Program, epochs: &Arc<EpochLogs>) -> Self {
        let one = |(id, source): (&String, &BoundSource)| {
            let stages = program.plan.stages.iter().filter(|stage| stage.operator == *id);
            OneSource {
                stages: stages.map(|stage| stage.id.clone()).collect(),
                is_journalled: source.promise() == SourcePromise::Journalled,
            }
        };
        let sources = program.sources.iter().map(one).filter(|source| !source.stages.is_empty());
        Self { epochs: Arc::clone(epochs), sources: sources.collect(), is_early: AtomicBool::new(false) }
    }

    /// Records that the run is stopped, or fails, before its sources have ended or all records have passed through.
    pub(super) fn end_early(&self) {
        self.is_early.store(true, Ordering::Release);
    }

    /// Returns whether a checkpoint must not be kept. Call it when all parts are gathered: those of sinks and dead letters are then
    /// older, or the end of the source is known.
    pub(super) fn forbid(&self, checkpoint: &Checkpoint) -> bool {
        let is_early = self.is_early.load(Ordering::Acquire);
        let is_through = checkpoint.epoch == CLOSED && !is_early;
        if checkpoint.is_complete || is_through {
            return false;
        }
        let is_told = |stage: &String| checkpoint.sources.get(stage).is_some_and(|log| log.end.is_some());
        let is_known = |stage: &String| is_told(stage) || self.epochs.known_end(stage).is_some();
        let has_ended = |source: &OneSource| source.stages.iter().any(is_known);
        // Its sinks may have rows after an end that it lacks: if a file has grown before another process reads it,
        // the last epoch has more records, as with a larger limit.
        let is_between =
            |source: &OneSource| source.stages.iter().any(|stage| is_known(stage) && !is_told(stage));
        if checkpoint.epoch != CLOSED && self.sources.iter().any(is_between) {
            return true;
        }
        // Not if its end came while the parts were made, or only to some of its stages.
        let is_kept = |source: &OneSource| source.stages.iter().all(is_told);
        let mut ended =
            self.sources.iter().filter(|source| source.is_journalled && has_ended(source)).peekable();
        ended.peek().is_some() && (is_early || self.sources.iter().all(has_ended) || !ended.all(is_kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::LettersPast;
    use crate::frame::Epoch;
    use crate::store::{End, EpochLog};
    use std::collections::BTreeMap;

    const END: End = End { sequence: 7, epoch: 3, limit: false };

    /// Stream `s` with two stages, and file `f`.
    fn ends() -> Ends {
        let source = |stages: &[&str], is_journalled| OneSource {
            stages: stages.iter().map(|stage| (*stage).to_owned()).collect(),
            is_journalled,
        };
        Ends {
            epochs: Arc::new(EpochLogs::default()),
            sources: vec![source(&["s", "s-2"], true), source(&["f"], false)],
            is_early: AtomicBool::new(false),
        }
    }

    /// A checkpoint with these sources at their end.
    fn checkpoint(epoch: Epoch, ended: &[&str]) -> Checkpoint {
        let log =
            |stage: &str| EpochLog { end: ended.contains(&stage).then_some(END), ..EpochLog::default() };
        Checkpoint {
            epoch,
            elapsed: 0,
            is_complete: false,
            stages: BTreeMap::new(),
            sources: ["s", "s-2", "f"].map(|stage| (stage.to_owned(), log(stage))).into(),
            sinks: BTreeMap::new(),
            letters: LettersPast::default(),
            restarts: 0,
        }
    }

    #[test]
    fn the_end_of_a_stream_is_kept_only_where_another_source_goes_on() {
        for (ended, is_forbidden) in [
            (&[][..], false),
            (&["f"][..], false),
            (&["s"][..], true),
            (&["s", "s-2"][..], false),
            (&["s", "s-2", "f"][..], true),
        ] {
            assert_eq!(ends().forbid(&checkpoint(4, ended)), is_forbidden, "{ended:?}");
        }
    }

    #[test]
    fn what_may_have_been_gathered_after_the_end_is_not_kept() {
        let ends = ends();
        ends.epochs.end("f", END);
        assert!(ends.forbid(&checkpoint(4, &[])), "a file may have grown when it is read again");
        assert!(!ends.forbid(&checkpoint(4, &["f"])));
        assert!(!ends.forbid(&checkpoint(CLOSED, &[])), "all has come through");
        ends.epochs.end("s", END);
        assert!(ends.forbid(&checkpoint(4, &["f"])));
        ends.epochs.end("s-2", END);
        assert!(ends.forbid(&checkpoint(4, &["s", "s-2"])), "the file has ended too");
    }

    #[test]
    fn a_run_that_is_ended_early_keeps_no_end_of_a_stream() {
        let all = ["s", "s-2", "f"];
        let ends = ends();
        assert!(!ends.forbid(&checkpoint(CLOSED, &all)), "all has come through");
        ends.end_early();
        assert!(ends.forbid(&checkpoint(CLOSED, &all)));
        assert!(ends.forbid(&checkpoint(4, &["s", "s-2"])));
        assert!(!ends.forbid(&checkpoint(4, &["f"])));
        assert!(!ends.forbid(&Checkpoint { is_complete: true, ..checkpoint(CLOSED, &all) }));
    }
}
