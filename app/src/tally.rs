//! Totals over all processes of a run that keeps a state, and the share of the last one, from the checkpoints at its start and end.
//!
//! A process counts its own work, and some of that is repeated: records read after the last checkpoint are read again. Checkpoints count
//! each record once, so the shares of the processes add up to the run.
use crate::state::checkpoint::described;
use crate::state::place::StatePlace;
use serde::Serialize;
use std::collections::BTreeMap;
use tidemill_engine::EpochLog;
use tidemill_spec::plan::Plan;
use tidemill_state::{Limits, Manifest, StateError};

/// Figures of a run, or of a part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Processes that have written a checkpoint.
    pub processes: u64,
    /// Engine time in seconds, without the time between two processes.
    pub seconds: f64,
    /// Records that were read before the checkpoint, each once, by source.
    pub records_in: BTreeMap<String, u64>,
    /// Records that are in the outputs for good, by sink.
    pub records_out: BTreeMap<String, u64>,
    /// Dead letters, each once.
    pub dead_letters: u64,
    /// Restarts of slots.
    pub restarts: u64,
}

impl Tally {
    /// Reads the totals of a checkpoint; `plan`: the one with its sources.
    pub fn of(manifest: &Manifest, plan: &Plan) -> Self {
        let sinks = manifest.sinks.iter().map(|(sink, state)| (sink.clone(), state.rows));
        Self {
            processes: manifest.totals.processes,
            seconds: manifest.seconds,
            records_in: by_source(manifest, plan, |log| before(log, manifest.epoch)),
            records_out: sinks.collect(),
            dead_letters: manifest.totals.dead_letters,
            restarts: manifest.totals.restarts,
        }
    }

    /// Returns the additions since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let less = |(id, now): (&String, &u64)| {
                (id.clone(), now.saturating_sub(before.get(id).copied().unwrap_or(0)))
            };
            now.iter().map(less).collect()
        };
        Self {
            processes: self.processes.saturating_sub(before.processes),
            seconds: (self.seconds - before.seconds).max(0.0),
            records_in: less(&self.records_in, &before.records_in),
            records_out: less(&self.records_out, &before.records_out),
            dead_letters: self.dead_letters.saturating_sub(before.dead_letters),
            restarts: self.restarts.saturating_sub(before.restarts),
        }
    }
}

/// The state that a process left of its run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Left {
    /// Number of the last checkpoint.
    pub checkpoint: u64,
    /// No work is left.
    pub complete: bool,
    /// The limits that ended sources: a run with a larger one continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<String>,
    /// Totals of this process.
    pub this_process: Tally,
    /// Totals of all processes.
    pub all_processes: Tally,
    /// Records by source that the next process reads again, because they are after the last checkpoint.
    pub read_again: BTreeMap<String, u64>,
    /// Rows by sink that this process wrote after the last checkpoint: the next one writes them again, and first takes them back where the
    /// sink can.
    pub written_again: BTreeMap<String, u64>,
    /// The checkpoint in words.
    #[serde(skip)]
    pub described: String,
}

impl Left {
    /// Reads the state of a process that has ended, started from `before` and has written these rows, by sink.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn look(
        place: &StatePlace,
        before: &Tally,
        written: &BTreeMap<String, u64>,
        plan: &Plan,
    ) -> Result<Option<Self>, StateError> {
        let state = place.look()?;
        Ok(state.manifest().map(|manifest| Self::of(manifest, before, written, plan)))
    }

    fn of(manifest: &Manifest, before: &Tally, written: &BTreeMap<String, u64>, plan: &Plan) -> Self {
        let all = Tally::of(manifest, plan);
        let behind = |log: &EpochLog| log.emitted - self::before(log, manifest.epoch);
        let read_again = match manifest.complete {
            true => BTreeMap::new(),
            false => by_source(manifest, plan, behind),
        };
        let this_process = all.since(before);
        let kept = |sink: &String| this_process.records_out.get(sink).copied().unwrap_or(0);
        let behind = written.iter().map(|(sink, rows)| (sink.clone(), rows.saturating_sub(kept(sink))));
        let written_again = behind.filter(|(_, rows)| *rows > 0 && !manifest.complete).collect();
        Self {
            checkpoint: manifest.checkpoint,
            complete: manifest.complete,
            stopped_at: manifest.stopped_at.as_ref().map(Limits::to_string),
            this_process,
            all_processes: all,
            written_again,
            read_again: read_again.into_iter().filter(|(_, records)| *records > 0).collect(),
            described: described(manifest),
        }
    }
}

/// Records of the epochs before this one.
fn before(log: &EpochLog, epoch: u64) -> u64 {
    let next = log.cuts.range(epoch..).next().map(|(_, cut)| cut.sequence);
    next.unwrap_or(log.emitted).min(log.emitted)
}

/// A figure of each source: every one of its stages reads all of it.
fn by_source(manifest: &Manifest, plan: &Plan, of: impl Fn(&EpochLog) -> u64) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (stage, log) in &manifest.sources {
        let Ok(log) = serde_json::from_value::<EpochLog>(log.clone()) else { continue };
        let source = plan.stages.iter().find(|known| known.id == *stage);
        let source = source.map_or(stage, |stage| &stage.operator);
        let figure: &mut u64 = found.entry(source.clone()).or_default();
        *figure = (*figure).max(of(&log));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidemill_state::{Digest, Identity, SinkState, Totals};

    fn manifest() -> Manifest {
        let identity =
            Identity { workflow_name: "w".to_owned(), operators: BTreeMap::new(), plan: Digest(1) };
        let cut = |sequence: u64| json!({"position": "9:1", "skip": 0, "sequence": sequence, "newest": 0, "watermark": 0});
        let log = json!({"cuts": {"4": cut(80), "5": cut(95)}, "end": null, "emitted": 120});
        let mut manifest = Manifest { epoch: 5, seconds: 2.5, checkpoint: 7, ..Manifest::new(identity) };
        manifest.sources.insert("left".to_owned(), log);
        manifest.sinks.insert("out".to_owned(), SinkState { committed: 5, rows: 90, token: None });
        manifest.totals = Totals { processes: 2, restarts: 3, dead_letters: 4 };
        manifest
    }

    #[test]
    fn a_part_and_what_was_before_are_all() {
        let plan: Plan = serde_json::from_value(json!({
            "version": 1, "workflow": {"name": "w"}, "workers": [], "classes": [], "edges": [],
            "stages": [{"id": "left", "operator": "left", "worker": "w"}],
        }))
        .unwrap();
        let first = Tally {
            processes: 1,
            seconds: 1.0,
            records_in: BTreeMap::from([("left".to_owned(), 50)]),
            records_out: BTreeMap::from([("out".to_owned(), 40)]),
            dead_letters: 1,
            restarts: 3,
        };
        let written = BTreeMap::from([("out".to_owned(), 57)]);
        let left = Left::of(&manifest(), &first, &written, &plan);
        assert_eq!((left.this_process.records_in["left"], left.all_processes.records_in["left"]), (45, 95));
        assert_eq!((left.this_process.records_out["out"], left.all_processes.records_out["out"]), (50, 90));
        assert_eq!(
            (left.this_process.dead_letters, left.this_process.restarts, left.this_process.seconds),
            (3, 0, 1.5)
        );
        assert_eq!(left.read_again, BTreeMap::from([("left".to_owned(), 25)]));
        let complete = Manifest { complete: true, ..manifest() };
        assert_eq!(left.written_again, BTreeMap::from([("out".to_owned(), 7)]));
        let complete = Left::of(&complete, &first, &written, &plan);
        assert!(complete.read_again.is_empty() && complete.written_again.is_empty());
    }
}
