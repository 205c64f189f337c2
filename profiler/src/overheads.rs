//! Costs of the engine itself, measured with an engine whose operators do nothing.
use crate::statistics::rounded;
use arrow_array::{RecordBatch, StringArray};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_engine::{LatencySummary, Program, Run, RunOptions};
use tidemill_operators::api::{
    BoundOperator, BoundSink, BoundSource, Computation, Inference, Instance, OperatorError, Output, Sink,
    Source, SourcePosition, SourceRead, Spread,
};
use tidemill_operators::record::payload_schema;
use tidemill_spec::overheads::{OverheadTime, Overheads};
use tidemill_spec::plan::{Plan, PlanEdge, PlanWorkflow, RouteClass, Stage};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// Records of a run, and their rate per second: slots sleep between them.
const RECORDS: usize = 300;
const RATE: f64 = 200.0;
/// Characters of a nearly empty record, and of one that takes long to copy.
const SMALL: usize = 64;
const LARGE: usize = 256 << 10;

/// Pairs of runs, with a model and without.
const CALL_RUNS: usize = 3;

/// Measured figures in nanoseconds, as a measuring process reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    source: [u64; 4],
    hand_over: [u64; 4],
    frame: [u64; 4],
    frame_per_mebibyte: u64,
    call: [u64; 4],
}

impl Found {
    /// Measures for some seconds.
    ///
    /// # Errors
    /// A message if a run fails.
    pub fn measure() -> Result<Self, String> {
        let plain = run(SMALL, false, None)?;
        let handed = run(SMALL, false, Some("here"))?;
        let small = run(SMALL, false, Some("there"))?;
        let large = run(LARGE, false, Some("there"))?;
        // A difference of two runs is meaningful only if both were disturbed alike, so the median of several is used.
        let mut calls = Vec::new();
        for _ in 0..CALL_RUNS {
            let (without, with) = (run(SMALL, false, None)?, run(SMALL, true, None)?);
            let milliseconds = (with.arrival.p50_ms - without.arrival.p50_ms).max(0.0);
            calls.push((milliseconds * 1e6) as u64);
        }
        calls.sort_unstable();
        let mebibytes = (LARGE - SMALL) as f64 / f64::from(1 << 20);
        let longer = (large.transfer.p50_ms - small.transfer.p50_ms).max(0.0);
        Ok(Self {
            source: figures(&plain.arrival),
            hand_over: figures(&handed.transfer),
            frame: figures(&small.transfer),
            frame_per_mebibyte: (longer * 1e6 / mebibytes) as u64,
            call: [calls[CALL_RUNS / 2]; 4],
        })
    }

    /// Converts to the form of a profile, each time multiplied by a factor.
    pub fn times(&self, factor: f64) -> Overheads {
        let span = |nanoseconds: u64| rounded(nanoseconds as f64 * factor);
        let time = |[mean, p50, p90, p99]: [u64; 4]| {
            let [mean, p50, p90, p99] = [mean, p50, p90, p99].map(span);
            OverheadTime { mean, p50, p90, p99 }
        };
        Overheads {
            source: time(self.source),
            hand_over: time(self.hand_over),
            frame: time(self.frame),
            frame_per_mebibyte: span(self.frame_per_mebibyte),
            call: time(self.call),
        }
    }
}

/// Mean, median, 90th and 99th percentile in nanoseconds.
fn figures(summary: &LatencySummary) -> [u64; 4] {
    [summary.mean_ms, summary.p50_ms, summary.p90_ms, summary.p99_ms].map(|ms| (ms * 1e6) as u64)
}

/// Latencies of the records of a run.
struct Took {
    /// From the intended time to the sink.
    arrival: LatencySummary,
    /// From one slot to the other.
    transfer: LatencySummary,
}

/// Runs a source on worker `here` and a sink, with records of `characters` characters: in one slot, or the sink in a slot of its own
/// on worker `apart`. With a model between them or not.
fn run(characters: usize, with_model: bool, apart: Option<&str>) -> Result<Took, String> {
    let program = program(characters, with_model, apart);
    let run = Run::start(program, RunOptions::default()).map_err(|error| error.to_string())?;
    let report = run.wait().map_err(|error| error.to_string())?;
    let sink = report.sinks.first().ok_or("no sink in the report")?;
    let stage = report.stages.iter().find(|stage| stage.stage == "sink").ok_or("no stage of the sink")?;
    Ok(Took { arrival: sink.arrival, transfer: stage.transfer })
}

fn program(characters: usize, with_model: bool, apart: Option<&str>) -> Program {
    let stream = StreamType::new([Column::new("text", ColumnType::Text)]);
    let text: Arc<StringArray> = Arc::new(StringArray::from(vec!["x".repeat(characters)]));
    let payload =
        RecordBatch::try_new(payload_schema(&stream), vec![text]).expect("the schema of the stream");
    let stage =
        |id: &str, slot_group: &str| Stage { slot_group: slot_group.into(), ..Stage::new(id, id, "here") };
    let source = BoundSource {
        id: "source".into(),
        kind: "repeat".into(),
        output: stream.clone(),
        key: None,
        rate_per_second: Some(RATE),
        out_of_order_microseconds: 0,
        live: false,
        waits_for_all: false,
        rereads: false,
        has_event_times: false,
        at_one_time: 1,
        stream: None,
        journalled: None,
        input: None,
        journal: None,
        feeds: None,
        requests: None,
        make: Arc::new(move || Ok(Box::new(Repeat { payload: payload.clone(), left: RECORDS }))),
    };
    let model = BoundOperator {
        id: "model".into(),
        kind: "pass".into(),
        output: stream.clone(),
        computation: Computation::Inference,
        spread: Spread::Any,
        model: None,
        make: Arc::new(|| Ok(Instance::Inference(Box::new(Pass)))),
    };
    let sink = BoundSink {
        id: "sink".into(),
        kind: "nothing".into(),
        input: stream,
        ground_truth: None,
        files: Vec::new(),
        is_standard_output: false,
        answers: None,
        repeats: false,
        make: Arc::new(|| Ok(Box::new(Nothing))),
        durable: None,
    };
    let mut stages = vec![stage("source", "main")];
    stages.extend(with_model.then(|| stage("model", "main")));
    stages.push(match apart {
        Some(worker) => Stage { worker: worker.into(), ..stage("sink", "other") },
        None => stage("sink", "main"),
    });
    let edge = |pair: &[Stage]| PlanEdge::new(&pair[0].id, &pair[1].id, 0);
    let plan = Plan {
        edges: stages.windows(2).map(edge).collect(),
        classes: vec![RouteClass {
            id: 0,
            share: 1.0,
            route: stages.iter().map(|stage| (stage.operator.clone(), stage.id.clone())).collect(),
        }],
        stages,
        ..Plan::new(PlanWorkflow { name: "overheads".into(), digest: None })
    };
    Program {
        plan,
        sources: BTreeMap::from([("source".into(), source)]),
        operators: with_model.then(|| ("model".to_owned(), model)).into_iter().collect(),
        sinks: BTreeMap::from([("sink".into(), sink)]),
        on_panic: BTreeMap::new(),
        when_cut: BTreeMap::new(),
    }
}

/// Sends one payload repeatedly.
struct Repeat {
    payload: RecordBatch,
    left: usize,
}

impl Source for Repeat {
    fn read(&mut self, _rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.left == 0 {
            return Ok(SourceRead::End);
        }
        self.left -= 1;
        Ok(SourceRead::Rows {
            payload: self.payload.clone(),
            times: None,
            dead_letters: Vec::new(),
            offsets: None,
        })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.left.to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.left = position.0.parse().map_err(|_| OperatorError::new("not a position"))?;
        Ok(())
    }
}

/// A model that returns its input.
struct Pass;

impl Inference for Pass {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        output.push(batch.clone());
        Ok(())
    }
}

/// A sink that discards everything.
struct Nothing;

impl Sink for Nothing {
    fn write(&mut self, _batch: &RecordBatch) -> Result<(), OperatorError> {
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_does_nothing_takes_some_time() {
        let found = Found::measure().unwrap_or_else(|error| panic!("{error}"));
        let overheads = found.times(1.0);
        for (name, time) in overheads.times() {
            assert!(time.is_in_order(), "{name}: {time:?}");
        }
        assert!(overheads.hand_over.mean.0 > 1_000 && overheads.frame.mean.0 > 1_000, "{overheads:?}");
        // Copying 1 MiB several times takes measurable time.
        assert!(overheads.frame_per_mebibyte.0 > 10_000, "{overheads:?}");
        let twice = found.times(2.0);
        assert!(twice.frame.p99.0 > overheads.frame.p99.0);
    }
}
