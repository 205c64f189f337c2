//! A source, a model and a sink that do nothing, and plans with them.
use arrow_array::{Int64Array, RecordBatch, StringArray};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_engine::Program;
use tidemill_operators::api::*;
use tidemill_operators::record::payload_schema;
use tidemill_spec::plan::*;
use tidemill_spec::types::{Column, ColumnType, StreamType};

pub(crate) fn stream() -> StreamType {
    StreamType::new([Column::new("text", ColumnType::Text), Column::new("value", ColumnType::Int64)])
}

/// Creates a payload of `rows` rows with `width` characters each.
pub(crate) fn payload(rows: usize, width: usize) -> RecordBatch {
    let text = StringArray::from(vec!["x".repeat(width); rows]);
    let values = Int64Array::from((0..rows as i64).collect::<Vec<_>>());
    RecordBatch::try_new(payload_schema(&stream()), vec![Arc::new(text), Arc::new(values)])
        .expect("the schema of the stream")
}

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
            dead_letters: vec![],
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

struct Pass;

impl Stateless for Pass {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        output.push(batch.clone());
        Ok(())
    }
}

impl Inference for Pass {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        output.push(batch.clone());
        Ok(())
    }
}

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

/// The stages between source and sink.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Middle {
    /// This number of operators that pass batches on, on the slot's thread.
    Operators(usize),
    /// This number of models that pass batches on, each on its executor.
    Models(usize),
}

/// Builds source -> middle -> sink with `batches` batches of `payload`; the source is on worker `local`, and the sink has a slot of its
/// own on worker `apart`, if that is given.
pub(crate) fn chain(
    payload: RecordBatch,
    batches: usize,
    rate: Option<f64>,
    middle: Middle,
    apart: Option<&str>,
) -> Program {
    let rows = payload.num_rows();
    let stage = |id: &str, group: &str| Stage {
        slot_group: group.into(),
        max_batch: rows as u32,
        ..Stage::new(id, id, "local")
    };
    let source = BoundSource {
        id: "source".into(),
        kind: "repeat".into(),
        output: stream(),
        key: None,
        rate_per_second: rate,
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
        make: Arc::new(move || Ok(Box::new(Repeat { payload: payload.clone(), left: batches }))),
    };
    let sink = BoundSink {
        id: "sink".into(),
        kind: "nothing".into(),
        input: stream(),
        ground_truth: None,
        files: vec![],
        is_standard_output: false,
        answers: None,
        repeats: false,
        make: Arc::new(|| Ok(Box::new(Nothing))),
        durable: None,
    };
    let (n, computation) = match middle {
        Middle::Operators(n) => (n, Computation::Stateless),
        Middle::Models(n) => (n, Computation::Inference),
    };
    let mut stages = vec![stage("source", "main")];
    let mut operators = BTreeMap::new();
    for i in 0..n {
        let id = format!("pass{i}");
        stages.push(stage(&id, "main"));
        let make: MakeInstance = match middle {
            Middle::Operators(_) => Arc::new(|| Ok(Instance::Stateless(Box::new(Pass)))),
            Middle::Models(_) => Arc::new(|| Ok(Instance::Inference(Box::new(Pass)))),
        };
        let bound = BoundOperator {
            id: id.clone(),
            kind: "pass".into(),
            output: stream(),
            computation,
            spread: Spread::Any,
            model: None,
            make,
        };
        operators.insert(id, bound);
    }
    stages.push(match apart {
        Some(worker) => Stage { worker: worker.into(), ..stage("sink", "other") },
        None => stage("sink", "main"),
    });
    let edges = stages.windows(2).map(|pair| PlanEdge::new(&pair[0].id, &pair[1].id, 0));
    let route = stages.iter().map(|stage| (stage.operator.clone(), stage.id.clone())).collect();
    let plan = Plan {
        edges: edges.collect(),
        stages,
        classes: vec![RouteClass { id: 0, share: 1.0, route }],
        ..Plan::new(PlanWorkflow { name: "bench".into(), digest: None })
    };
    Program {
        plan,
        sources: BTreeMap::from([("source".into(), source)]),
        operators,
        sinks: BTreeMap::from([("sink".into(), sink)]),
        on_panic: BTreeMap::new(),
        when_cut: BTreeMap::new(),
    }
}

/// Returns user and system time of this process, microseconds.
pub(crate) fn cpu_microseconds() -> f64 {
    tidemill_machine::process_time().as_secs_f64() * 1e6
}
