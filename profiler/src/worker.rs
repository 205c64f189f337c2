//! The process that measures one operator. It reads requests on stdin and answers on stdout, one JSON object per line. It
//! ends with its stdin, so it never outlives the process that started it.
use crate::cache;
use crate::overheads;
use crate::pace;
use crate::records::window;
use crate::stopwatch::Stopwatch;
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tidemill_operators::api::{
    BoundOperator, BoundSource, Instance, OperatorError, Output, Source, SourceRead,
};
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::kind::Step;
use tidemill_operators::record::{EventTime, Metadata};
use tidemill_operators::registry::Registry;
use tidemill_spec::workflow::Workflow;

/// Runs of a batch size before measuring.
const WARM_UPS: usize = 2;
/// Least nanoseconds of one sample. Faster calls are repeated, so that a sample is long enough for the restraint to take
/// effect and for the clock to be precise.
const LEAST_SAMPLE: u64 = 100_000;
/// Runs of one sample, at most.
const MOST_RUNS: u64 = 10_000;

/// Nanoseconds without a call before each call that is measured after a pause: the distance of records at 50/s.
pub const PAUSE: u64 = 20_000_000;
/// Bytes written in such a pause, which evict the processor's caches as other models and the system do.
const OTHER_WORK: usize = 8 << 20;

/// A request of the parent process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Prepare the operator.
    Load(Load),
    /// Run batches of this size for a time, with a least and a largest number.
    Measure {
        /// Records of a batch.
        batch: usize,
        /// Duration in seconds.
        seconds: f64,
        /// Least number of batches.
        least: usize,
        /// Largest number of batches.
        most: usize,
    },
    /// Report the peak memory of the process.
    Memory,
    /// Run the fixed computation that shows the processor's pace.
    Pace,
    /// Run an engine with operators that do nothing.
    Overheads,
    /// Run batches of one record, each after [`PAUSE`] in which other memory is used.
    MeasureAfterPause {
        /// Calls.
        calls: usize,
    },
}

/// The operator to measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Workflow file.
    pub workflow: PathBuf,
    /// Operator or source id.
    pub operator: String,
    /// Manifest path, as written in the workflow, by operator: one for each with models.
    pub variants: BTreeMap<String, String>,
    /// Backend for the operator's model.
    pub backend: Option<String>,
    /// Files with the operator's input, one for each input, in a valid order of arrival.
    pub inputs: Vec<PathBuf>,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The operator is ready; nanoseconds from process start to the first result.
    Loaded(u64),
    /// Nanoseconds of each batch.
    Measured(Vec<u64>),
    /// Bytes.
    Memory(u64),
    /// Costs of the engine.
    Overheads(overheads::Found),
    /// The request failed.
    Failed(String),
}

/// Answers requests until stdin ends.
///
/// # Errors
/// When stdout is closed.
pub fn serve(registry: &Registry) -> io::Result<()> {
    let (sender, requests) = mpsc::channel::<String>();
    // Reads in a thread, so that the end of stdin ends the process even while a model runs for minutes.
    std::thread::Builder::new().name("requests".into()).spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    })?;
    let mut bench: Option<Bench> = None;
    let mut out = io::stdout().lock();
    for line in requests {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => answer(request, registry, &mut bench),
            Err(error) => Err(error.to_string()),
        };
        let reply = reply.unwrap_or_else(Reply::Failed);
        serde_json::to_writer(&mut out, &reply)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn answer(request: Request, registry: &Registry, bench: &mut Option<Bench>) -> Result<Reply, String> {
    match (request, bench) {
        (Request::Load(load), bench) => {
            let (loaded, nanoseconds) = Bench::load(&load, registry)?;
            *bench = Some(loaded);
            Ok(Reply::Loaded(nanoseconds))
        }
        (Request::Measure { batch, seconds, least, most }, Some(bench)) => {
            bench.measure(batch, seconds, least, most).map(Reply::Measured).map_err(|error| error.to_string())
        }
        (Request::MeasureAfterPause { calls }, Some(bench)) => {
            bench.measure_after_pause(calls).map(Reply::Measured).map_err(|error| error.to_string())
        }
        (Request::Measure { .. } | Request::MeasureAfterPause { .. }, None) => {
            Err("nothing is loaded".to_owned())
        }
        (Request::Overheads, _) => overheads::Found::measure().map(Reply::Overheads),
        (Request::Pace, _) => Ok(Reply::Measured(vec![pace::pace()])),
        (Request::Memory, _) => Ok(Reply::Memory(peak_memory())),
    }
}

/// Peak memory of this process in bytes; 0 if the system does not report it.
fn peak_memory() -> u64 {
    tidemill_machine::Process::this().status().peak().unwrap_or(0)
}

/// The operator under test.
enum Bench {
    Source {
        bound: BoundSource,
        reader: Box<dyn Source>,
    },
    Operator {
        bound: BoundOperator,
        instance: Instance,
        inputs: Vec<RecordBatch>,
        next: usize,
        warm: BTreeSet<usize>,
    },
}

impl Bench {
    fn load(load: &Load, registry: &Registry) -> Result<(Self, u64), String> {
        let mut workflow = Workflow::load(&load.workflow).map_err(|found| found.render(false))?;
        for operator in &mut workflow.operators {
            if let Some(wanted) = load.variants.get(&operator.id.value) {
                operator.variants.retain(|written| written.value == *wanted);
            }
        }
        let choice = Choice { variant: None, backend: load.backend.clone() };
        let choose = |id: &str| if id == load.operator { choice.clone() } else { Choice::default() };
        let workflow = bind_workflow(&workflow, registry, choose).map_err(|found| found.render(false))?;
        if let Some(source) = workflow.sources.get(&load.operator) {
            let stopwatch = Stopwatch::start();
            let reader = (source.make)().map_err(|error| error.to_string())?;
            let mut bench = Self::Source { bound: source.clone(), reader };
            bench.once(1).map_err(|error| error.to_string())?;
            return Ok((bench, stopwatch.nanoseconds()));
        }
        let mut inputs = Vec::new();
        for path in &load.inputs {
            let batch = cache::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            if batch.num_rows() == 0 {
                return Err("no records reach it".to_owned());
            }
            inputs.push(batch);
        }
        let stopwatch = Stopwatch::start();
        let bound = workflow
            .bind_operator(&load.operator, &choice, Step::Open)
            .map_err(|found| found.render(false))?;
        let instance = (bound.make)().map_err(|error| error.to_string())?;
        let mut bench = Self::Operator { bound, instance, inputs, next: 0, warm: BTreeSet::new() };
        bench.once(1).map_err(|error| error.to_string())?;
        Ok((bench, stopwatch.nanoseconds()))
    }

    fn measure(
        &mut self,
        batch: usize,
        seconds: f64,
        least: usize,
        most: usize,
    ) -> Result<Vec<u64>, OperatorError> {
        if let Self::Operator { warm, .. } = self
            && warm.insert(batch)
        {
            for _ in 0..WARM_UPS {
                self.once(batch)?;
            }
        }
        let runs = (LEAST_SAMPLE / self.once(batch)?.max(1)).clamp(1, MOST_RUNS);
        let stopwatch = Stopwatch::start();
        let mut times = Vec::new();
        while times.len() < most && (times.len() < least || stopwatch.seconds() < seconds) {
            let mut sum = 0;
            for _ in 0..runs {
                sum += self.once(batch)?;
            }
            times.push(sum / runs);
        }
        Ok(times)
    }

    fn measure_after_pause(&mut self, calls: usize) -> Result<Vec<u64>, OperatorError> {
        let mut other = vec![0u8; OTHER_WORK];
        let mut times = Vec::with_capacity(calls);
        for call in 0..calls {
            other.fill(call as u8);
            std::hint::black_box(&other);
            // Last, so that the processor sleeps until the call.
            std::thread::sleep(Duration::from_nanos(PAUSE));
            times.push(self.once(1)?);
        }
        Ok(times)
    }

    /// Runs one batch; returns nanoseconds.
    fn once(&mut self, batch: usize) -> Result<u64, OperatorError> {
        match self {
            Self::Source { bound, reader } => {
                for _ in 0..2 {
                    let stopwatch = Stopwatch::start();
                    let read = reader.read(batch, usize::MAX)?;
                    let elapsed = stopwatch.nanoseconds();
                    match read {
                        SourceRead::Rows { .. } => return Ok(elapsed),
                        SourceRead::Idle { .. } => {}
                        SourceRead::End => *reader = (bound.make)()?,
                    }
                }
                Err(OperatorError::new("it gives no records"))
            }
            Self::Operator { bound, instance, inputs, next, .. } => {
                let mut output = Output::default();
                if let Instance::Stateful(_) = instance {
                    return epoch(bound, instance, inputs, next, batch);
                }
                let input = window(&inputs[0], *next, batch);
                *next += batch;
                let stopwatch = Stopwatch::start();
                match instance {
                    Instance::Stateless(operator) => operator.process(&input, &mut output)?,
                    Instance::Inference(model) => model.infer(&input, &mut output)?,
                    Instance::Stateful(_) => {}
                }
                Ok(stopwatch.nanoseconds())
            }
        }
    }
}

/// Runs an epoch with `batch` records of every input; returns nanoseconds. At the end of the records a new instance starts
/// again with the first, so that time only grows.
fn epoch(
    bound: &BoundOperator,
    instance: &mut Instance,
    inputs: &[RecordBatch],
    next: &mut usize,
    batch: usize,
) -> Result<u64, OperatorError> {
    let shortest = inputs.iter().map(RecordBatch::num_rows).min().unwrap_or(0);
    let batch = batch.min(shortest);
    if *next + batch > shortest {
        *next = 0;
        *instance = (bound.make)()?;
    }
    let rows: Vec<RecordBatch> = inputs.iter().map(|input| input.slice(*next, batch)).collect();
    *next += batch;
    let newest = |rows: &RecordBatch| Metadata::of(rows).times.values().last().copied().unwrap_or(0);
    let watermark: EventTime = rows.iter().map(newest).min().unwrap_or(0);
    let mut output = Output::default();
    let Instance::Stateful(operator) = instance else { return Err(OperatorError::new("it has no state")) };
    let stopwatch = Stopwatch::start();
    for (port, rows) in rows.iter().enumerate() {
        operator.apply(port, rows, &mut output)?;
    }
    operator.advance(watermark, &mut output)?;
    Ok(stopwatch.nanoseconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKFLOW: &str = "
version: 1
name: w
sources: [{id: rows, kind: csv, options: {path: rows.csv, columns: {k: text, x: int64}}}]
operators:
  - {id: large, kind: filter, input: rows, options: {where: x > 1}}
  - {id: same, kind: join, inputs: [large, rows], options: {key: k, within: 10s, same_names: keep_first}}
sinks: [{id: out, kind: jsonl, input: same, options: {path: out.jsonl}}]
";

    fn load(folder: &std::path::Path, operator: &str, inputs: Vec<PathBuf>) -> Load {
        std::fs::write(folder.join("workflow.yaml"), WORKFLOW).unwrap();
        std::fs::write(folder.join("rows.csv"), "k,x\na,1\nb,2\nc,3\n").unwrap();
        let workflow = folder.join("workflow.yaml");
        Load { workflow, operator: operator.to_owned(), variants: BTreeMap::new(), backend: None, inputs }
    }

    #[test]
    fn every_kind_of_operator_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::builtin();
        let workflow = load(folder.path(), "rows", Vec::new());
        let bound = Workflow::load(&workflow.workflow).unwrap();
        let bound = bind_workflow(&bound, &registry, |_| Choice::default()).unwrap();
        let rows = crate::records::read(&bound.sources["rows"], 0, 10).unwrap();
        let file = folder.path().join("rows.arrow");
        cache::write(&file, &rows).unwrap();
        for (operator, inputs) in [("rows", 0), ("large", 1), ("same", 2)] {
            let mut bench = None;
            let request = Request::Load(load(folder.path(), operator, vec![file.clone(); inputs]));
            assert!(matches!(answer(request, &registry, &mut bench), Ok(Reply::Loaded(_))), "{operator}");
            let request = Request::Measure { batch: 2, seconds: 0.0, least: 7, most: 100 };
            let Ok(Reply::Measured(times)) = answer(request, &registry, &mut bench) else {
                panic!("{operator}")
            };
            assert!(times.len() >= 7 && times.iter().all(|time| *time > 0), "{operator}: {times:?}");
        }
        let Ok(Reply::Memory(bytes)) = answer(Request::Memory, &registry, &mut None) else { panic!() };
        assert!(bytes > 1 << 20, "{bytes}");
    }

    #[test]
    fn what_cannot_be_measured_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::builtin();
        let request = Request::Measure { batch: 1, seconds: 0.1, least: 1, most: 1 };
        assert!(answer(request, &registry, &mut None).is_err());
        let request = Request::Load(load(folder.path(), "lorge", Vec::new()));
        let error = answer(request, &registry, &mut None).unwrap_err();
        assert!(error.contains("lorge"), "{error}");
    }

    #[test]
    fn requests_and_replies_are_lines() {
        let request = Request::Measure { batch: 8, seconds: 0.5, least: 5, most: 100 };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"measure":{"batch":8,"seconds":0.5,"least":5,"most":100}}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
        assert_eq!(serde_json::to_string(&Reply::Loaded(7)).unwrap(), r#"{"loaded":7}"#);
    }
}
