//! Measures the time of a run without models over a tiny file, from the start of the process to its end.
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use tidemill_engine::clock::{Clock, WallClock};

const ROUNDS: usize = 30;

fn milliseconds(command: &mut Command) -> anyhow::Result<f64> {
    let clock = WallClock::new();
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(clock.now() as f64 / 1e6)
}

const WORKFLOW: &str = "version: 1
name: start-up
sources:
  - id: readings
    kind: csv
    options: {path: readings.csv, columns: {sensor: text, value: float64}}
operators:
  - {id: warm, kind: filter, input: readings, options: {where: \"value > 1.0\"}}
sinks:
  - {id: out, kind: jsonl, input: warm, options: {path: out.jsonl}}
";

pub(crate) fn run(binary: &Path) -> anyhow::Result<Answer> {
    let binary = binary.canonicalize().with_context(|| {
        format!("{} is not there: build it with `cargo build -p tidemill`", binary.display())
    })?;
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("workflow.yaml"), WORKFLOW)?;
    std::fs::write(folder.path().join("readings.csv"), "sensor,value\na,1.5\nb,0.5\n")?;
    let (mut nothing, mut version, mut run) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        nothing.push(milliseconds(&mut Command::new("/bin/true"))?);
        version.push(milliseconds(Command::new(&binary).arg("version"))?);
        run.push(milliseconds(
            Command::new(&binary).args(["run", "workflow.yaml"]).current_dir(folder.path()),
        )?);
    }
    let measurements = vec![
        Measurement::new("/bin/true", "ms", nothing).baseline(),
        Measurement::new("tidemill version", "ms", version),
        Measurement::new("tidemill run of a two-line CSV, start to end", "ms", run).goal(300.0),
    ];
    Ok(Answer::new("start-up", "How long does a run without models take to start and end?", measurements))
}
