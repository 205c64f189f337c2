//! Compares following vehicles across cameras with hand-written loops: the release build of the `tidemill` command with
//! `--rate max` against [`rival`] in Rust and loops in Python over OpenCV and ONNX Runtime
//! (`benches/vehicles/opencv_loop.py`). All are separate processes pinned to the same cores, in turn, with the same
//! clips, models and batch sizes. The vehicle of each track is compared line by line with the loop in Rust.
//!
//! Rates are of the running time that each program reports, after loading its models. Memory is the process's; ffmpeg,
//! the decoder of Tidemill and of the loop in Rust, has its own. The p99 of a loop covers the time from reading a frame
//! until the tracker has seen it. Tidemill reads ahead as far as its buffers allow; its p99 covers the time from the
//! source's output of the last frame of a track until the track with its vehicle can be read. It shows the cost of
//! reading as fast as possible, not the delay for a camera.
mod rival;

use crate::contestant::run_pinned;
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use clap::Args;
use rival::{Outcome, Task};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Options of `vehicle-loop`.
#[derive(Debug, Args)]
#[group(id = "vehicle-loop-options")]
pub(crate) struct Options {
    /// Folder with clips `CAMERA.mp4`, for vehicle-loop.
    #[arg(long, default_value = "examples/aicity/data")]
    clips: PathBuf,
    /// Folder with the models `vehicles-SIZE.yaml` and `appearance-SIZE.yaml`.
    #[arg(long, default_value = "models/aicity")]
    vehicle_models: PathBuf,
    /// Sizes of both models, one combination after the other.
    #[arg(long, default_value = "tiny,huge", value_delimiter = ',')]
    vehicle_sizes: Vec<String>,
    /// How many cameras: the clips again and again under new names.
    #[arg(long, default_value = "1,4,16", value_delimiter = ',')]
    vehicle_cameras: Vec<usize>,
    /// Decoders of Tidemill and of the loop in Rust, `library` or `process`, one after the other.
    #[arg(long, default_value = "library", value_delimiter = ',', value_parser = ["library", "process"])]
    vehicle_decoders: Vec<String>,
    /// Runs of each contestant.
    #[arg(long, default_value_t = 3)]
    vehicle_rounds: usize,
    /// A Python with cv2, onnxruntime and scipy, and with supervision for the second loop; without it both are left out.
    #[arg(long, default_value = "target/vehicles/bin/python")]
    vehicle_python: PathBuf,
}

/// Frames and boxes per call of the models, for all contestants.
const BATCHES: [usize; 2] = [4, 16];
/// Milliseconds between two frames of the clips.
const BETWEEN_FRAMES: i64 = 100;
/// Least cosine of two tracks of one vehicle, and most milliseconds between cameras; as in the example, which also has
/// a list of routes.
const LIKENESS: f64 = 0.7;
const WITHIN: i64 = 40_000;

/// Runs the rival once in this process.
pub(crate) fn run_rival(task: &str) -> anyhow::Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let outcome = rival::run(&task)?;
    Ok(std::fs::write(&task.outcome, serde_json::to_string(&outcome)?)?)
}

/// All contestants in one folder.
struct Arena<'a> {
    folder: &'a Path,
    binary: PathBuf,
    own: PathBuf,
    python: Option<PathBuf>,
    script: PathBuf,
    task: Task,
}

/// One run.
struct Run {
    /// Frames a second.
    rate: f64,
    /// The most memory, MiB.
    memory: f64,
    /// Milliseconds. Of a loop, until a frame is seen; of Tidemill, until a finished track can be read.
    p99: f64,
}

impl Arena<'_> {
    fn outcome(&self, memory: f64) -> anyhow::Result<Run> {
        let said = std::fs::read_to_string(&self.task.outcome)?;
        let outcome: Outcome = serde_json::from_str(&said)?;
        Ok(Run { rate: outcome.frames as f64 / outcome.seconds, memory, p99: outcome.p99_ms })
    }

    fn rust(&self, cores: &str, threads: usize) -> anyhow::Result<Run> {
        let task = Task { threads, ..self.task.clone() };
        let arguments =
            ["vehicle-rival".to_owned(), format!("--vehicle-task={}", serde_json::to_string(&task)?)];
        let cost = run_pinned(cores, &self.own, &arguments, self.folder)?;
        self.outcome(cost.memory)
    }

    fn python(&self, python: &Path, tracker: &str) -> anyhow::Result<Run> {
        let task = serde_json::to_string(&self.task)?;
        let script = self.script.display().to_string();
        let cost = run_pinned("0", python, &[script, tracker.to_owned(), task], self.folder)?;
        self.outcome(cost.memory)
    }

    fn tidemill(&self, cores: &str) -> anyhow::Result<Run> {
        let arguments = ["run", "workflow.yaml", "--rate", "max", "--report-json", "report.json", "--quiet"];
        let cost = run_pinned(cores, &self.binary, &arguments.map(str::to_owned), self.folder)?;
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.folder.join("report.json"))?)?;
        let seconds = report["seconds"].as_f64().context("no seconds in the report")?;
        let stages = report["stages"].as_array().context("no stages in the report")?;
        let read = stages.iter().filter(|stage| stage["operator"] == "cameras");
        let frames: u64 = read.filter_map(|stage| stage["records_out"].as_u64()).sum();
        ensure!(frames > 0, "the report tells of no frame");
        let p99 = report["sinks"][0]["latency"]["p99_ms"].as_f64().context("no latency in the report")?;
        Ok(Run { rate: frames as f64 / seconds, memory: cost.memory, p99 })
    }

    /// Counts the lines of Tidemill that differ from those of the loop in Rust.
    fn different(&self) -> anyhow::Result<usize> {
        let theirs = std::fs::read_to_string(&self.task.out)?;
        let mut ours: BTreeMap<String, i64> = BTreeMap::new();
        for line in std::fs::read_to_string(self.folder.join("tidemill.jsonl"))?.lines() {
            let row: serde_json::Value = serde_json::from_str(line)?;
            let [track, vehicle] = ["track", "vehicle"].map(|name| row[name].as_str().unwrap_or("?"));
            *ours.entry(format!("{track} {vehicle}")).or_default() +=
                row["_change"].as_i64().context("a row without `_change`")?;
        }
        ours.retain(|_, count| *count != 0);
        let common = theirs.lines().filter(|line| ours.get(*line) == Some(&1)).count();
        Ok(theirs.lines().count().max(ours.len()) - common)
    }
}

/// Returns the workflow of the example up to the vehicles, with these models.
fn workflow(task: &Task) -> String {
    let (detector, appearance, backend) = (task.detector.display(), task.appearance.display(), &task.backend);
    let [frames, boxes] = task.batches;
    let decoder = if task.in_process { "library" } else { "process" };
    let mut text = "version: 1\nname: vehicles\nsources:\n".to_owned();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "  - {{id: cameras, kind: video, options: {{path: clips, decoder: {decoder}}}}}\n\
         operators:\n\
         \x20 - {{id: detect, kind: ml, input: cameras, variants: ['{detector}'], backend: {backend}, \
         batching: {{max_batch: {frames}, budget: 20ms}}, options: {{keep: [image]}}}}\n\
         \x20 - {{id: vehicles, kind: crop, input: detect}}\n\
         \x20 - {{id: appearance, kind: ml, input: vehicles, variants: ['{appearance}'], backend: {backend}, \
         batching: {{max_batch: {boxes}, budget: 20ms}}}}\n\
         \x20 - {{id: tracks, kind: track, input: appearance, options: {{gives: tracks}}}}\n\
         \x20 - {{id: across, kind: associate, input: tracks, options: {{likeness: {}, within: {}ms}}}}\n\
         sinks:\n\
         \x20 - {{id: identified, kind: jsonl, input: across, options: {{path: tidemill.jsonl, columns: [track, vehicle]}}}}\n\
         run: {{tick: 50ms}}\n",
        task.likeness, task.within,
    );
    text
}

/// Links `count` cameras with their own names in `folder` to the clips of `data`.
fn lay_out(data: &Path, folder: &Path, count: usize) -> anyhow::Result<()> {
    let data = data.canonicalize().with_context(|| data.display().to_string())?;
    let entries = std::fs::read_dir(&data).with_context(|| data.display().to_string())?;
    let mut clips: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    clips.retain(|path| path.extension().is_some_and(|ending| ending == "mp4"));
    clips.sort();
    ensure!(!clips.is_empty(), "no .mp4 file in {}", data.display());
    std::fs::create_dir(folder.join("clips"))?;
    for (number, clip) in clips.iter().cycle().take(count).enumerate() {
        std::os::unix::fs::symlink(clip, folder.join("clips").join(format!("camera-{number:02}.mp4")))?;
    }
    // All search for the library of ONNX Runtime and for ffmpeg from here.
    let installed = std::env::current_dir()?.join(".tidemill");
    if installed.exists() {
        std::os::unix::fs::symlink(installed.canonicalize()?, folder.join(".tidemill"))?;
    }
    Ok(())
}

/// Returns rate, memory and p99 of the runs of one contestant.
fn measurements(name: &str, runs: &[Run], baseline: bool) -> Vec<Measurement> {
    let of = |what: &str, unit, samples| {
        let one = Measurement::new(format!("{name}, {what}"), unit, samples);
        if baseline { one.baseline() } else { one }
    };
    vec![
        of("rate", "frames/s", runs.iter().map(|run| run.rate).collect()),
        of("peak memory", "MiB", runs.iter().map(|run| run.memory).collect()),
        of("p99", "ms", runs.iter().map(|run| run.p99).collect()),
    ]
}

fn ratios(name: String, ours: &[Run], theirs: &[Run]) -> Measurement {
    let samples = ours.iter().zip(theirs).map(|(ours, theirs)| ours.rate / theirs.rate);
    Measurement::new(name, "ratio", samples.collect())
}

/// Runs all contestants in turn with one combination of models and the arena's cameras.
fn compare(arena: &Arena<'_>, label: &str, rounds: usize) -> anyhow::Result<Vec<Measurement>> {
    let two_cores = std::thread::available_parallelism()?.get() > 1;
    let (mut ours, mut rust, mut ours_two, mut rust_two) = (vec![], vec![], vec![], vec![]);
    let (mut python, mut supervision, mut different) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        rust.push(arena.rust("0", 1)?);
        ours.push(arena.tidemill("0")?);
        different.push(arena.different()? as f64);
        if two_cores {
            rust_two.push(arena.rust("0,1", 2)?);
            ours_two.push(arena.tidemill("0,1")?);
            different.push(arena.different()? as f64);
        }
        if let Some(path) = &arena.python {
            python.push(arena.python(path, "own")?);
            supervision.push(arena.python(path, "supervision")?);
        }
    }
    let mut all = measurements(&format!("{label}: loop in Rust, 1 core"), &rust, true);
    all.extend(measurements(&format!("{label}: tidemill, 1 core"), &ours, false));
    all.push(ratios(format!("{label}: tidemill / loop in Rust, 1 core"), &ours, &rust).goal(0.95));
    if two_cores {
        all.extend(measurements(&format!("{label}: loop in Rust, 2 threads, 2 cores"), &rust_two, true));
        all.extend(measurements(&format!("{label}: tidemill, 2 cores"), &ours_two, false));
        all.push(ratios(format!("{label}: tidemill / loop of 2 threads, 2 cores"), &ours_two, &rust_two));
    }
    if arena.python.is_some() {
        for (name, runs) in [("loop in Python", &python), ("loop in Python with supervision", &supervision)] {
            all.extend(measurements(&format!("{label}: {name}, 1 core"), runs, true));
            all.push(ratios(format!("{label}: tidemill / {name}, 1 core"), &ours, runs).goal(1.2));
        }
    }
    all.push(Measurement::new(
        format!("{label}: tracks of another vehicle than in the loop"),
        "tracks",
        different,
    ));
    Ok(all)
}

pub(crate) fn run(options: &Options, binary: &Path) -> anyhow::Result<Answer> {
    let full = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    let binary = full(binary).context("build the command with `cargo build --release -p tidemill`")?;
    let python =
        options.vehicle_python.exists().then(|| std::path::absolute(&options.vehicle_python)).transpose()?;
    let mut all = Vec::new();
    for size in &options.vehicle_sizes {
        let model = |family: &str| full(&options.vehicle_models.join(format!("{family}-{size}.yaml")));
        let combinations = options
            .vehicle_decoders
            .iter()
            .flat_map(|decoder| options.vehicle_cameras.iter().map(move |cameras| (decoder, cameras)));
        for (decoder, cameras) in combinations {
            let folder = tempfile::tempdir()?;
            lay_out(&options.clips, folder.path(), *cameras)?;
            let task = Task {
                detector: model("vehicles")?,
                appearance: model("appearance")?,
                backend: "ort".into(),
                batches: BATCHES,
                between_frames: BETWEEN_FRAMES,
                likeness: LIKENESS,
                within: WITHIN,
                clips: folder.path().join("clips"),
                threads: 1,
                in_process: decoder == "library",
                out: folder.path().join("rival.txt"),
                outcome: folder.path().join("outcome.json"),
            };
            std::fs::write(folder.path().join("workflow.yaml"), workflow(&task))?;
            let arena = Arena {
                folder: folder.path(),
                binary: binary.clone(),
                own: std::env::current_exe()?,
                python: python.clone(),
                script: full(Path::new("benches/vehicles/opencv_loop.py"))?,
                task,
            };
            let many = if *cameras == 1 { "" } else { "s" };
            let label = format!("{size} models, {cameras} camera{many}, decoded by {decoder}");
            all.extend(compare(&arena, &label, options.vehicle_rounds)?);
        }
    }
    Ok(Answer::new("vehicle-loop", "Is following vehicles as fast as a loop written by hand?", all))
}
