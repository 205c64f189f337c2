//! Measures the cost of checkpoints to a run. A paced stream is joined with rows in the state, with a checkpoint a
//! second and without, by size of the state; the kept rows of the stream change a hundredth of it a second.
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Options of the measurement.
#[derive(clap::Args)]
#[group(id = "checkpointing")]
pub(crate) struct Options {
    /// Seconds of each paced run of `checkpointing` that are measured.
    #[arg(long, default_value_t = 10)]
    checkpointing_seconds: usize,
    /// Runs of each kind, in turn.
    #[arg(long, default_value_t = 2)]
    checkpointing_rounds: usize,
    /// Sizes of the state, MiB.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    checkpointing_mib: Vec<usize>,
}

/// Rows of the stream a second.
const RATE: usize = 1000;
/// Seconds of reading the state's rows.
const LOADING: usize = 4;
/// Seconds after that, not measured.
const SETTLING: usize = 2;
/// Bytes of a row in the state, and rows per MiB of state.
const WIDTH: usize = 1000;
const ROWS_PER_MIB: usize = (1 << 20) / WIDTH;
/// Largest p99 with checkpoints that meets the goal, relative to that without.
const GOAL: f64 = 1.2;

#[expect(clippy::disallowed_methods, reason = "what readers of a file see is real time")]
fn now() -> Instant {
    Instant::now()
}

/// Writes the files of a run with this much state.
fn write_inputs(folder: &Path, mib: usize, rows: usize) -> anyhow::Result<()> {
    let held = mib * ROWS_PER_MIB;
    // A hundredth of the state a second, less the other columns of a row.
    let payload = (mib * (1 << 20) / 100 / RATE).max(1);
    let text = |width: usize, seed: usize| -> String {
        // No two rows are equal, so that none can be deduplicated.
        let letter = |n: usize| char::from(b'a' + ((seed * 31 + n * 7 + n * n * seed) % 26) as u8);
        (0..width).map(letter).collect()
    };
    let mut lying = String::from("key,at,held\n");
    for row in 0..held {
        writeln!(lying, "{row},{row},{}", text(WIDTH - 24, row))?;
    }
    std::fs::write(folder.join("held.csv"), lying)?;
    let mut stream = String::from("key,at,number,payload\n");
    for row in 0..rows {
        writeln!(stream, "{},{row},{row},{}", (row * 7919) % held, text(payload, row))?;
    }
    std::fs::write(folder.join("stream.csv"), stream)?;
    let workflow = format!(
        "version: 1
name: checkpointing
sources:
  - id: held
    kind: csv
    rate: {}/s
    options: {{path: held.csv, columns: {{key: int64, at: int64, held: text}}, event_time: at}}
  - id: stream
    kind: csv
    rate: {RATE}/s
    options: {{path: stream.csv, columns: {{key: int64, at: int64, number: int64, payload: text}}, event_time: at}}
operators:
  - {{id: found, kind: join, inputs: [stream, held], options: {{key: key, within: 30d, same_names: keep_first}}}}
sinks:
  - {{id: out, kind: jsonl, input: found, options: {{path: out.jsonl, columns: [number], overwrite: true}}}}
run: {{tick: 10ms}}
",
        (held / LOADING).max(1)
    );
    std::fs::write(folder.join("workflow.yaml"), workflow)?;
    Ok(())
}

fn start(binary: &Path, folder: &Path, arguments: &[&str]) -> anyhow::Result<Child> {
    Command::new(binary)
        .args(["run", "workflow.yaml", "--quiet"])
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("log"))?)
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))
}

fn ended_well(child: &mut Child, folder: &Path) -> anyhow::Result<()> {
    let status = child.wait()?;
    let said = std::fs::read_to_string(folder.join("log"))?;
    ensure!(status.success(), "the run ended with {status}: {said}");
    Ok(())
}

fn remove_outputs(folder: &Path) -> anyhow::Result<()> {
    let _ = std::fs::remove_file(folder.join("out.jsonl"));
    let state = folder.join("state");
    if state.exists() {
        std::fs::remove_dir_all(state)?;
    }
    Ok(())
}

/// Observations of a paced run.
struct Paced {
    /// Delay of each row for a reader of the output, relative to the fastest of the run: milliseconds.
    late: Vec<f64>,
    /// MiB written per checkpoint, without outputs.
    written: Option<f64>,
}

/// Bytes that a process has written to files and pipes.
fn written(child: &Child) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/io", child.id())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: ")?.trim().parse().ok())
}

fn checkpoints(folder: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(folder.join("state/manifest.json")).ok()?;
    let document: serde_json::Value = serde_json::from_str(&text).ok()?;
    document["manifest"]["checkpoint"].as_u64()
}

fn paced(binary: &Path, folder: &Path, durable: bool, seconds: usize) -> anyhow::Result<Paced> {
    remove_outputs(folder)?;
    let state: &[&str] = if durable { &["--state", "state", "--checkpoint-interval", "1s"] } else { &[] };
    let mut child = start(binary, folder, state)?;
    let begin = now();
    let first = RATE * (LOADING + SETTLING);
    let path = folder.join("out.jsonl");
    let (mut at, mut rest, mut seen) = (0, Vec::new(), Vec::new());
    // Counters at the start and at the end of the measured part.
    let counters = |child: &Child, at: u64| Some((written(child)?.saturating_sub(at), checkpoints(folder)?));
    let mut before = None;
    while child.try_wait()?.is_none() {
        if let Ok(mut file) = File::open(&path) {
            file.seek(SeekFrom::Start(at))?;
            let mut new = Vec::new();
            at += file.read_to_end(&mut new)? as u64;
            let time = begin.elapsed().as_secs_f64() * 1e3;
            rest.extend(new);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let row: serde_json::Value = serde_json::from_slice(&line)?;
                let number = row["number"].as_u64().context("a row without its number")? as usize;
                if (first..first + seconds * RATE).contains(&number) {
                    seen.push(time - number as f64 * 1e3 / RATE as f64);
                    before = before.or_else(|| counters(&child, at));
                }
            }
        }
        if seen.len() + RATE / 10 >= seconds * RATE {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let last = counters(&child, at);
    ended_well(&mut child, folder)?;
    ensure!(seen.len() > seconds * RATE / 2, "only {} rows were seen in time", seen.len());
    let quickest = seen.iter().copied().fold(f64::INFINITY, f64::min);
    let written = before.zip(last).filter(|((_, from), (_, to))| to > from);
    let written =
        written.map(|((least, from), (most, to))| most.saturating_sub(least) as f64 / (to - from) as f64);
    Ok(Paced {
        late: seen.iter().map(|time| time - quickest).collect(),
        written: written.map(|bytes| bytes / f64::from(1 << 20)),
    })
}

/// Rows a second without pacing.
fn unpaced(binary: &Path, folder: &Path, durable: bool, rows: usize) -> anyhow::Result<f64> {
    remove_outputs(folder)?;
    let state: &[&str] = if durable { &["--state", "state", "--checkpoint-interval", "1s"] } else { &[] };
    let begin = now();
    let mut child = start(binary, folder, &[&["--rate", "max"], state].concat())?;
    ended_well(&mut child, folder)?;
    Ok(rows as f64 / begin.elapsed().as_secs_f64())
}

fn p99(late: &mut [f64]) -> f64 {
    late.sort_by(f64::total_cmp);
    late[(late.len() - 1) * 99 / 100]
}

pub(crate) fn run(options: &Options, binary: &Path) -> anyhow::Result<Answer> {
    let binary = std::path::absolute(binary)?;
    let mut measurements = Vec::new();
    for mib in &options.checkpointing_mib {
        let folder = tempfile::tempdir()?;
        let rows = RATE * (LOADING + SETTLING + options.checkpointing_seconds + 1);
        write_inputs(folder.path(), *mib, rows)?;
        let all = rows + mib * ROWS_PER_MIB;
        let mut tails = [Vec::new(), Vec::new()];
        let mut rates = [Vec::new(), Vec::new()];
        let (mut ratios, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..options.checkpointing_rounds {
            for durable in [false, true] {
                let mut seen = paced(&binary, folder.path(), durable, options.checkpointing_seconds)?;
                tails[usize::from(durable)].push(p99(&mut seen.late));
                bytes.extend(seen.written.filter(|_| durable));
                rates[usize::from(durable)].push(unpaced(&binary, folder.path(), durable, all)?);
            }
            if let (Some(without), Some(with)) = (tails[0].last(), tails[1].last()) {
                ratios.push(with / without);
            }
        }
        let [without, with] = tails;
        let name = |what: &str| format!("{mib} MiB: {what}");
        measurements
            .push(Measurement::new(name("p99 beyond the quickest row, without"), "ms", without).baseline());
        measurements.push(Measurement::new(
            name("p99 beyond the quickest row, a checkpoint a second"),
            "ms",
            with,
        ));
        let ratio = Measurement::new(name("p99 with checkpoints over without, same round"), "times", ratios);
        measurements.push(if *mib == 100 { ratio.goal(GOAL) } else { ratio });
        let [without, with] = rates;
        measurements.push(Measurement::new(name("unpaced, without"), "rows/s", without).baseline());
        measurements.push(Measurement::new(name("unpaced, a checkpoint a second"), "rows/s", with));
        if !bytes.is_empty() {
            measurements.push(Measurement::new(name("written a checkpoint, 1 % changes"), "MiB", bytes));
        }
    }
    Ok(Answer::new("checkpointing", "What do checkpoints cost a run?", measurements))
}
