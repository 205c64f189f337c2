//! Measures the rows a second of the relational parts on one core: CSV reading, filter, map and window separately, then
//! a complete run (CSV, filter, tumbling window, Parquet) next to DuckDB on the same file, where `python3` can import
//! it.
use crate::result::{Answer, Measurement};
use anyhow::{Context, anyhow, ensure};
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_operators::api::{BoundOperator, BoundSource, Instance, Output, SourceRead};
use tidemill_operators::kind::{EndContext, InputPort, OperatorContext};
use tidemill_operators::record::{derive_id, record_schema, source_id};
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::StreamType;
use tidemill_spec::yaml;

/// Options of the measurement.
#[derive(clap::Args)]
#[group(id = "relational")]
pub(crate) struct Options {
    /// Rows of the file that relational reads.
    #[arg(long, default_value_t = 2_000_000)]
    relational_rows: usize,
}

const ROUNDS: usize = 5;
/// Rows given to a part at once, as in an epoch.
const BATCH: usize = 1024;
const SENSORS: u64 = 1000;

const SOURCE: &str = "path: readings.csv
columns: {sensor: text, at: int64, temperature: float64, humidity: int64}
event_time: at";
const FILTER: &str = "where: temperature > 0.0 && humidity < 90";
const MAP: &str = "columns: {fahrenheit: temperature * 1.8 + 32, wet: \"humidity > 80 ? 'wet' : 'dry'\"}";
const WINDOW: &str = "size: 10s\ngroup_by: [sensor]\naggregates: [{function: count, as: n}]";

const WORKFLOW: &str = "version: 1
name: relational
sources:
  - id: readings
    kind: csv
    options: {path: readings.csv, columns: {sensor: text, at: int64, temperature: float64, humidity: int64}, event_time: at}
operators:
  - {id: warm, kind: filter, input: readings, options: {where: \"temperature > 0.0 && humidity < 90\"}}
  - {id: counted, kind: window, input: warm, options: {size: 10s, group_by: [sensor], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: out, kind: parquet, input: counted, options: {path: out.parquet, overwrite: true}}
";

/// Prints the seconds of the query, without Python's start.
const DUCKDB: &str = "import time, duckdb
start = time.perf_counter()
connection = duckdb.connect(config={'threads': 1})
connection.execute(\"\"\"copy (
  select \"at\" - \"at\" % 10000 as window_start, \"at\" - \"at\" % 10000 + 10000 as window_end, sensor, count(*) as n
  from read_csv('readings.csv', header = true,
    columns = {'sensor': 'VARCHAR', 'at': 'BIGINT', 'temperature': 'DOUBLE', 'humidity': 'BIGINT'})
  where temperature > 0.0 and humidity < 90 group by all order by all) to 'duckdb.parquet' (format parquet)\"\"\")
print(time.perf_counter() - start)";

/// Writes readings of many sensors, one a millisecond; each is a function of its number.
fn write_readings(path: &Path, rows: usize) -> anyhow::Result<()> {
    let mut text = String::from("sensor,at,temperature,humidity\n");
    for row in 0..rows {
        let random = u64::from_le_bytes(derive_id(row as u64, &[], 0)[..8].try_into()?);
        let temperature = (random >> 20) % 5000;
        writeln!(
            text,
            "sensor-{:04},{},{:.2},{}",
            random % SENSORS,
            1_700_000_000_000 + row,
            temperature as f64 / 100.0 - 10.0,
            (random >> 40) % 100
        )?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn bind_source(folder: &Path) -> anyhow::Result<BoundSource> {
    let id = "readings".into();
    let options = yaml::parse(&SourceFile::new("workflow.yaml", SOURCE)).map_err(|e| anyhow!("{e}"))?;
    let registry = Registry::builtin();
    let kind = registry.source("csv").context("there is a source `csv`")?;
    kind.bind(&EndContext::new(&id, folder), &options).map_err(|e| anyhow!("{e}"))
}

fn bind_operator(kind: &str, input: &StreamType, options: &str) -> anyhow::Result<BoundOperator> {
    let id = kind.into();
    let context = OperatorContext::new(&id, Path::new("."));
    let port = InputPort { from: "readings".into(), stream: input.clone(), span: Span::nowhere() };
    let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).map_err(|e| anyhow!("{e}"))?;
    let registry = Registry::builtin();
    let kind = registry.operator(kind).with_context(|| format!("there is an operator `{kind}`"))?;
    kind.bind(&context, &[port], &options).map_err(|e| anyhow!("{e}"))
}

/// Reads the complete file; returns its batches as they leave a source.
fn read(source: &BoundSource) -> anyhow::Result<(f64, Vec<RecordBatch>)> {
    let clock = WallClock::new();
    let mut reader = (source.make)().map_err(|e| anyhow!(e.message))?;
    let mut chunks = Vec::new();
    while let SourceRead::Rows { payload, times, .. } =
        reader.read(BATCH, 4 << 20).map_err(|e| anyhow!(e.message))?
    {
        chunks.push((payload, times.unwrap_or_default()));
    }
    let seconds = clock.now() as f64 / 1e9;
    let schema = record_schema(&source.output);
    let mut first = 0;
    let batches = chunks.into_iter().map(|(payload, times)| {
        let rows = payload.num_rows();
        let sequences = first..first + rows as u64;
        first = sequences.end;
        let ids: Vec<u8> = sequences.clone().flat_map(|sequence| source_id(0, sequence)).collect();
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from(vec![0; rows])),
            Arc::new(UInt64Array::from_iter_values(sequences)),
            Arc::new(Int64Array::from(times)),
            Arc::new(Int64Array::from(vec![0; rows])),
            Arc::new(UInt32Array::from(vec![0; rows])),
            Arc::new(Int8Array::from(vec![1; rows])),
        ];
        columns.extend(payload.columns().iter().cloned());
        Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
    });
    Ok((seconds, batches.collect::<anyhow::Result<_>>()?))
}

/// Returns the seconds of an operator for the batches, and its number of output rows.
fn process(bound: &BoundOperator, batches: &[RecordBatch]) -> anyhow::Result<(f64, usize)> {
    let instance = (bound.make)().map_err(|e| anyhow!(e.message))?;
    let mut rows = 0;
    let mut take = |output: Output| rows += output.batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    let clock = WallClock::new();
    match instance {
        Instance::Stateless(mut operator) => {
            for batch in batches {
                let mut output = Output::default();
                operator.process(batch, &mut output).map_err(|e| anyhow!(e.message))?;
                take(output);
            }
        }
        Instance::Stateful(mut operator) => {
            for batch in batches {
                let mut output = Output::default();
                operator.apply(0, batch, &mut output).map_err(|e| anyhow!(e.message))?;
                let times = tidemill_operators::record::Metadata::of(batch).times.values();
                let newest = times.last().copied().unwrap_or(i64::MIN);
                operator.advance(newest, &mut output).map_err(|e| anyhow!(e.message))?;
                take(output);
            }
        }
        Instance::Inference(_) => anyhow::bail!("a relational operator"),
    }
    Ok((clock.now() as f64 / 1e9, rows))
}

/// Returns a command pinned to the first core.
fn on_one_core(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    command
}

pub(crate) fn run(options: &Options, binary: &Path) -> anyhow::Result<Answer> {
    let binary = binary.canonicalize().with_context(|| {
        format!("{} is not there: build it with `cargo build --release -p tidemill`", binary.display())
    })?;
    let rows = options.relational_rows;
    let folder = tempfile::tempdir()?;
    write_readings(&folder.path().join("readings.csv"), rows)?;
    std::fs::write(folder.path().join("workflow.yaml"), WORKFLOW)?;
    let source = bind_source(folder.path())?;
    let mut operators = Vec::new();
    for (kind, text) in [("filter", FILTER), ("map", MAP), ("window", WINDOW)] {
        operators.push((kind, bind_operator(kind, &source.output, text)?));
    }
    let python = Path::new("python3");
    let has_duckdb = Command::new(python)
        .args(["-c", "import duckdb"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !has_duckdb {
        println!("python3 cannot import duckdb (`pip install duckdb`): measured without it");
    }
    let mut csv = Vec::new();
    let mut parts = vec![Vec::new(); operators.len()];
    let (mut whole, mut duckdb) = (Vec::new(), Vec::new());
    let rate = |seconds: f64| rows as f64 / seconds / 1e6;
    for _ in 0..ROUNDS {
        // Interleaved, so that a busy moment of the machine affects all of them.
        let (seconds, batches) = read(&source)?;
        ensure!(batches.iter().map(RecordBatch::num_rows).sum::<usize>() == rows, "rows are missing");
        csv.push(rate(seconds));
        for ((kind, bound), samples) in operators.iter().zip(&mut parts) {
            let (seconds, given) = process(bound, &batches)?;
            ensure!(given > 0, "`{kind}` gives no rows");
            samples.push(rate(seconds));
        }
        drop(batches);
        let clock = WallClock::new();
        let mut command = on_one_core(&binary);
        let status = command
            .args(["run", "workflow.yaml"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        ensure!(status.context("`taskset` runs")?.success(), "`tidemill run` failed");
        whole.push(rate(clock.now() as f64 / 1e9));
        if has_duckdb {
            let told = on_one_core(python).args(["-c", DUCKDB]).current_dir(folder.path()).output()?;
            ensure!(
                told.status.success(),
                "the query of DuckDB failed: {}",
                String::from_utf8_lossy(&told.stderr)
            );
            duckdb.push(rate(String::from_utf8(told.stdout)?.trim().parse()?));
        }
    }
    let unit = "million rows/s";
    let mut measurements = vec![Measurement::new("CSV reading, four columns", unit, csv)];
    for ((kind, _), samples) in operators.iter().zip(parts) {
        measurements.push(Measurement::new(*kind, unit, samples));
    }
    let run = Measurement::new("tidemill run: CSV, filter, window, Parquet; one core", unit, whole);
    if has_duckdb {
        let duckdb =
            Measurement::new("DuckDB: the same file and result; one thread", unit, duckdb).baseline();
        measurements.push(run.goal(duckdb.median() / 1.5));
        measurements.push(duckdb);
    } else {
        measurements.push(run);
    }
    Ok(Answer::new("relational", "How many rows a second do the relational parts take?", measurements))
}
