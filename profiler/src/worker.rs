//! The process that measures one operator. It reads requests on stdin and answers on stdout, one JSON object per line. It
//! ends with its stdin, so it never outlives the process that started it.
use crate::cache;
use crate::device::{OnDevice, Opener};
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
use tidemill_machine::Process;
use tidemill_operators::api::{
    BoundOperator, BoundSource, Instance, OperatorError, Output, Source, SourceRead,
};
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::kind::Step;
use tidemill_operators::record::{EventTime, Metadata};
use tidemill_operators::registry::Registry;
use tidemill_spec::backend::own_device;
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
    /// Address of the device that computes its model; none: this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// Times of batches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Nanoseconds of each batch.
    pub each: Vec<u64>,
    /// Nanoseconds of all of them together in the model's own runs; none: not known.
    pub model: Option<u64>,
}

impl From<Vec<u64>> for Times {
    fn from(each: Vec<u64>) -> Self {
        Self { each, model: None }
    }
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The operator is ready; nanoseconds from process start to the first result.
    Loaded(u64),
    /// Times of the batches.
    Measured(Times),
    /// Bytes: the peak of the process, with that of the one that computes for it, or the files of a model on a device.
    Memory(u64),
    /// Costs of the engine.
    Overheads(overheads::Found),
    /// The request failed.
    Failed(String),
}

/// Answers requests until stdin ends. `open`: loads a model on a device.
///
/// # Errors
/// When stdout is closed.
pub fn serve(registry: &Registry, open: Opener<'_>) -> io::Result<()> {
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
            Ok(request) => answer(request, registry, open, &mut bench),
            Err(error) => Err(error.to_string()),
        };
        let reply = reply.unwrap_or_else(Reply::Failed);
        serde_json::to_writer(&mut out, &reply)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn answer(
    request: Request,
    registry: &Registry,
    open: Opener<'_>,
    bench: &mut Option<Bench>,
) -> Result<Reply, String> {
    match (request, bench) {
        (Request::Load(load), bench) => {
            let (loaded, nanoseconds) = Bench::load(&load, registry, open)?;
            *bench = Some(loaded);
            Ok(Reply::Loaded(nanoseconds))
        }
        (Request::Measure { batch, seconds, least, most }, Some(bench)) => {
            bench.measure(batch, seconds, least, most).map(Reply::Measured).map_err(|error| error.to_string())
        }
        (Request::MeasureAfterPause { calls }, Some(bench)) => {
            let times = bench.measure_after_pause(calls).map_err(|error| error.to_string())?;
            Ok(Reply::Measured(times.into()))
        }
        (Request::Measure { .. } | Request::MeasureAfterPause { .. }, None) => {
            Err("nothing is loaded".to_owned())
        }
        (Request::Overheads, _) => overheads::Found::measure().map(Reply::Overheads),
        (Request::Pace, _) => Ok(Reply::Measured(vec![pace::pace()].into())),
        (Request::Memory, bench) => {
            let computes = bench.as_ref().map_or(Computes::Here, |bench| bench.computes());
            Ok(Reply::Memory(match computes {
                Computes::Here => peak_memory(&Process::this()),
                Computes::Beside(process) => {
                    peak_memory(&Process::this()) + peak_memory(&Process::of(process))
                }
                Computes::There { bytes } => bytes,
            }))
        }
    }
}

/// Peak memory of a process in bytes; 0 if the system does not report it.
fn peak_memory(process: &Process) -> u64 {
    process.status().peak().unwrap_or(0)
}

/// Where the model of an operator computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Computes {
    /// In this process, as what has no model does.
    Here,
    /// In a process of this machine, which has this number and belongs to the operator: the calls are timed whole.
    Beside(u32),
    /// On a device: the times are those that it reports.
    There {
        /// Bytes of the model's files.
        bytes: u64,
    },
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
        computes: Computes,
    },
}

/// One call, in nanoseconds.
#[derive(Clone, Copy)]
struct Call {
    whole: u64,
    /// The model's own runs in it.
    model: Option<u64>,
}

impl From<u64> for Call {
    fn from(whole: u64) -> Self {
        Self { whole, model: None }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Bench {
    fn load(load: &Load, registry: &Registry, open: Opener<'_>) -> Result<(Self, u64), String> {
        let mut workflow = Workflow::load(&load.workflow).map_err(|found| found.render(false))?;
        for operator in &mut workflow.operators {
            if let Some(wanted) = load.variants.get(&operator.id.value) {
                operator.variants.retain(|written| written.value == *wanted);
            }
        }
        let place = match (&load.device, &load.backend) {
            (Some(address), _) => Some(format!("device:{address}")),
            (None, backend) => backend.as_deref().and_then(own_device),
        };
        // This process need not have the back end of another one.
        let backend = load.backend.clone().filter(|_| place.is_none());
        let choice = Choice { variant: None, backend };
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
        let (instance, computes) = match &place {
            None => ((bound.make)().map_err(|error| error.to_string())?, Computes::Here),
            Some(place) => {
                let mut spec = bound
                    .model
                    .clone()
                    .ok_or("no device computes it: its model keeps states, or belongs to this program")?;
                spec.backend = load.backend.clone().unwrap_or(spec.backend);
                let OnDevice { model, bytes, process } =
                    open(&spec, place).map_err(|error| error.to_string())?;
                (Instance::Inference(model), process.map_or(Computes::There { bytes }, Computes::Beside))
            }
        };
        let mut bench = Self::Operator { bound, instance, inputs, next: 0, warm: BTreeSet::new(), computes };
        bench.once(1).map_err(|error| error.to_string())?;
        Ok((bench, stopwatch.nanoseconds()))
    }

    fn measure(
        &mut self,
        batch: usize,
        seconds: f64,
        least: usize,
        most: usize,
    ) -> Result<Times, OperatorError> {
        if let Self::Operator { warm, .. } = self
            && warm.insert(batch)
        {
            for _ in 0..WARM_UPS {
                self.once(batch)?;
            }
        }
        let first = self.once(batch)?;
        let runs = match self.computes() {
            // Its clock is the device's, and each call takes a round trip.
            Computes::There { .. } => 1,
            Computes::Here | Computes::Beside(_) => (LEAST_SAMPLE / first.whole.max(1)).clamp(1, MOST_RUNS),
        };
        let stopwatch = Stopwatch::start();
        let mut times = Times { each: Vec::new(), model: first.model.map(|_| 0) };
        while times.each.len() < most && (times.each.len() < least || stopwatch.seconds() < seconds) {
            let mut sum = Call { whole: 0, model: Some(0) };
            for _ in 0..runs {
                let call = self.once(batch)?;
                sum.whole += call.whole;
                sum.model = sum.model.zip(call.model).map(|(all, own)| all + own);
            }
            times.each.push(sum.whole / runs);
            times.model = times.model.zip(sum.model).map(|(all, own)| all + own / runs);
        }
        Ok(times)
    }

    fn computes(&self) -> Computes {
        match self {
            Self::Source { .. } => Computes::Here,
            Self::Operator { computes, .. } => *computes,
        }
    }

    fn measure_after_pause(&mut self, calls: usize) -> Result<Vec<u64>, OperatorError> {
        let mut other = vec![0u8; OTHER_WORK];
        let mut times = Vec::with_capacity(calls);
        for call in 0..calls {
            other.fill(call as u8);
            std::hint::black_box(&other);
            // Last, so that the processor sleeps until the call.
            std::thread::sleep(Duration::from_nanos(PAUSE));
            times.push(self.once(1)?.whole);
        }
        Ok(times)
    }

    /// Runs one batch.
    fn once(&mut self, batch: usize) -> Result<Call, OperatorError> {
        match self {
            Self::Source { bound, reader } => {
                for _ in 0..2 {
                    let stopwatch = Stopwatch::start();
                    let read = reader.read(batch, usize::MAX)?;
                    let elapsed = stopwatch.nanoseconds();
                    match read {
                        SourceRead::Rows { .. } => return Ok(elapsed.into()),
                        SourceRead::Idle { .. } => {}
                        SourceRead::End => *reader = (bound.make)()?,
                    }
                }
                Err(OperatorError::new("it gives no records"))
            }
            Self::Operator { bound, instance, inputs, next, computes, .. } => {
                let mut output = Output::default();
                if let Instance::Stateful(_) = instance {
                    return epoch(bound, instance, inputs, next, batch).map(Call::from);
                }
                let input = window(&inputs[0], *next, batch);
                *next += batch;
                let stopwatch = Stopwatch::start();
                let mut model_time = None;
                match instance {
                    Instance::Stateless(operator) => operator.process(&input, &mut output)?,
                    Instance::Inference(model) => {
                        let before = model.model_time();
                        model.infer(&input, &mut output)?;
                        model_time = model.model_time().zip(before).map(|(after, before)| after - before);
                    }
                    Instance::Stateful(_) => {}
                }
                let elapsed = stopwatch.nanoseconds();
                if let Computes::There { .. } = computes {
                    let times =
                        output.device.ok_or_else(|| OperatorError::new("the device reports no times"))?;
                    let computed = nanoseconds(times.compute);
                    return Ok(Call { whole: computed, model: Some(computed) });
                }
                Ok(Call { whole: elapsed, model: model_time.map(nanoseconds) })
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
    use tidemill_operators::api::{DeviceTimes, Inference};
    use tidemill_operators::model::ModelSpec;

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
        Load {
            workflow,
            operator: operator.to_owned(),
            variants: BTreeMap::new(),
            backend: None,
            inputs,
            device: None,
        }
    }

    fn nowhere(_spec: &ModelSpec, device: &str) -> Result<OnDevice, OperatorError> {
        Err(OperatorError::new(format!("nothing listens at {device}")))
    }

    /// A model whose runs take 2 ms of each call by its own clock; a device would take 7 ms for each row.
    struct Fake(Duration);

    impl Inference for Fake {
        fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
            self.0 += Duration::from_millis(2);
            let compute = Duration::from_millis(7 * batch.num_rows() as u64);
            output.device = Some(DeviceTimes { compute, ..DeviceTimes::default() });
            Ok(())
        }

        fn model_time(&self) -> Option<Duration> {
            Some(self.0)
        }
    }

    fn bench_of_fake(computes: Computes) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let workflow = Workflow::load(load(folder.path(), "large", Vec::new()).workflow).unwrap();
        let bound = bind_workflow(&workflow, &Registry::builtin(), |_| Choice::default()).unwrap();
        let rows = crate::records::read(&bound.sources["rows"], 0, 10).unwrap();
        Bench::Operator {
            bound: bound.operators["large"].clone(),
            instance: Instance::Inference(Box::new(Fake(Duration::ZERO))),
            inputs: vec![rows],
            next: 0,
            warm: BTreeSet::new(),
            computes,
        }
    }

    #[test]
    fn the_time_of_the_model_itself_is_told_beside_that_of_the_calls() {
        let times = bench_of_fake(Computes::Here).measure(1, 0.0, 7, 100).unwrap();
        // 2 ms by the model's clock in each of the seven, however long the calls took.
        assert_eq!((times.each.len(), times.model), (7, Some(14_000_000)));
        assert!(times.each.iter().all(|time| *time != 7_000_000), "{times:?}");
    }

    #[test]
    fn the_times_of_a_model_on_a_device_are_those_that_the_device_reports() {
        let mut bench = bench_of_fake(Computes::There { bytes: 1234 });
        let times = bench.measure(3, 0.0, 5, 5).unwrap();
        assert_eq!(times, Times { each: vec![21_000_000; 5], model: Some(105_000_000) });
        let memory = answer(Request::Memory, &Registry::builtin(), &nowhere, &mut Some(bench));
        assert_eq!(memory, Ok(Reply::Memory(1234)));
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
            assert!(
                matches!(answer(request, &registry, &nowhere, &mut bench), Ok(Reply::Loaded(_))),
                "{operator}"
            );
            let request = Request::Measure { batch: 2, seconds: 0.0, least: 7, most: 100 };
            let Ok(Reply::Measured(times)) = answer(request, &registry, &nowhere, &mut bench) else {
                panic!("{operator}")
            };
            assert!(
                times.each.len() >= 7 && times.each.iter().all(|time| *time > 0),
                "{operator}: {times:?}"
            );
            assert_eq!(times.model, None, "{operator} has no model");
        }
        let Ok(Reply::Memory(bytes)) = answer(Request::Memory, &registry, &nowhere, &mut None) else {
            panic!()
        };
        assert!(bytes > 1 << 20, "{bytes}");
    }

    #[test]
    fn what_cannot_be_measured_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::builtin();
        let request = Request::Measure { batch: 1, seconds: 0.1, least: 1, most: 1 };
        assert!(answer(request, &registry, &nowhere, &mut None).is_err());
        let request = Request::Load(load(folder.path(), "lorge", Vec::new()));
        let error = answer(request, &registry, &nowhere, &mut None).unwrap_err();
        assert!(error.contains("lorge"), "{error}");
        let file = folder.path().join("rows.arrow");
        let rows = load(folder.path(), "rows", Vec::new());
        let bound = bind_workflow(&Workflow::load(&rows.workflow).unwrap(), &registry, |_| Choice::default());
        cache::write(&file, &crate::records::read(&bound.unwrap().sources["rows"], 0, 10).unwrap()).unwrap();
        let there =
            Load { device: Some("tcp://hub:1".to_owned()), ..load(folder.path(), "large", vec![file]) };
        let error = answer(Request::Load(there), &registry, &nowhere, &mut None).unwrap_err();
        assert!(error.contains("no device computes it"), "{error}");
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
