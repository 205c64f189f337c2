//! Compares the VQA pipeline with a hand-written loop: the release build of the `tidemill` command with `--rate max`
//! against [`rival`]. Both are separate processes pinned to the same cores, in turn (A B A B), with the same files,
//! models, backend, decoders and batch sizes; the answers are compared line by line.
//!
//! Rates are of the running time that each program reports, after loading its models. Processor time is the process's
//! total less that of a run of two pairs, which stands for the start.
mod combination;
pub(crate) mod rival;

use crate::contestant::{Cost, run_pinned};
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use clap::Args;
use rival::{BatchSizes, Models, Outcome, SIZES};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Options of `vqa-loop`.
#[derive(Debug, Args)]
#[group(id = "vqa-loop-options")]
pub(crate) struct Options {
    /// Folder with `images` and `questions`, for vqa-loop.
    #[arg(long, default_value = "examples/vqa/data")]
    data: PathBuf,
    /// Workflow whose models are compared: all smallest and all largest; for vqa-loop.
    #[arg(long, default_value = "examples/vqa/workflow.yaml")]
    workflow: PathBuf,
    /// Manifests of one combination instead: image model, speech model, answerer. May be given several times.
    #[arg(long = "models", value_name = "IMAGES,SPEECH,ANSWERER", value_delimiter = ',')]
    models: Vec<PathBuf>,
    /// Backends to compare on.
    #[arg(long = "backend", default_value = "ort", value_delimiter = ',')]
    backends: Vec<String>,
    /// Pairs of a run, fewer where models are slow; the files of the folder again and again under new names.
    #[arg(long, default_value_t = 3000)]
    pairs: usize,
    /// Runs of each contestant.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The release build of the tidemill command.
    #[arg(long, default_value = "target/release/tidemill")]
    pub(crate) release_binary: PathBuf,
}

/// Options of one run of the rival; the benchmark calls itself with them.
#[derive(Debug, Args)]
pub(crate) struct RivalOptions {
    #[arg(long, hide = true)]
    rival_models: Option<String>,
    #[arg(long, hide = true, default_value = r#"{"images":1,"speech":1,"answerer":1}"#)]
    rival_sizes: String,
    #[arg(long, hide = true, default_value_t = 1)]
    rival_threads: usize,
    #[arg(long, hide = true, default_value_t = usize::MAX)]
    rival_records: usize,
}

/// Runs the rival once in this process, with the files of `images` and `questions` here; writes lines to `rival.jsonl`
/// and its report to `rival.json`. With 0 records, runs the sweep of batch sizes.
pub(crate) fn run_rival(options: &RivalOptions) -> anyhow::Result<()> {
    let models: Models = serde_json::from_str(options.rival_models.as_deref().context("no models")?)?;
    let sizes: BatchSizes = serde_json::from_str(&options.rival_sizes)?;
    let mut pairs = rival::pairs(Path::new("images"), Path::new("questions"))?;
    let said = if options.rival_records == 0 {
        serde_json::to_string(&rival::sweep(&models, &pairs, SWEEP_ROUNDS)?)?
    } else {
        pairs.truncate(options.rival_records);
        let out = Path::new("rival.jsonl");
        serde_json::to_string(&rival::run(&models, sizes, &pairs, options.rival_threads, out)?)?
    };
    Ok(std::fs::write("rival.json", said)?)
}

/// Rounds of a sweep.
const SWEEP_ROUNDS: usize = 15;
/// Pairs of the run that stands for the start.
const START: usize = 2;
/// Longest run of the loop on one core, approximately, microseconds; slow models get fewer pairs.
const LONGEST_RUN: f64 = 8e6;
/// Least pairs of a run, unless fewer are wanted.
const FEWEST_PAIRS: usize = 100;

/// Links `count` pairs with their own names in `folder` to the files of `data`.
fn lay_out(data: &Path, folder: &Path, count: usize) -> anyhow::Result<()> {
    let data = data.canonicalize().with_context(|| data.display().to_string())?;
    for (kind, ending) in [("images", "jpg"), ("questions", "wav")] {
        std::fs::create_dir(folder.join(kind))?;
        let mut files: Vec<PathBuf> = std::fs::read_dir(data.join(kind))
            .with_context(|| data.join(kind).display().to_string())?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        files.retain(|file| file.extension().is_some_and(|found| found == ending));
        files.sort();
        ensure!(!files.is_empty(), "no .{ending} file in {}", data.join(kind).display());
        for (number, file) in files.iter().cycle().take(count).enumerate() {
            std::os::unix::fs::symlink(file, folder.join(kind).join(format!("{number:06}.{ending}")))?;
        }
    }
    // Both search for the library of ONNX Runtime from here.
    let installed = std::env::current_dir()?.join(".tidemill");
    if installed.exists() {
        std::os::unix::fs::symlink(installed, folder.join(".tidemill"))?;
    }
    Ok(())
}

/// Returns the workflow of the example with these models and batch sizes.
fn workflow(models: &Models, sizes: BatchSizes) -> String {
    let mut text = "version: 1\nname: vqa\nsources:\n".to_owned();
    for (id, kind) in [("images", "image_directory"), ("questions", "wav_directory")] {
        let _ = writeln!(text, "  - {{id: {id}, kind: {kind}, key: key, options: {{path: {id}}}}}");
    }
    text.push_str("operators:\n");
    for (id, input, model, size) in [
        ("scene_features", "images", &models.images, sizes.images),
        ("speech", "questions", &models.speech, sizes.speech),
        ("answerer", "pair", &models.answerer, sizes.answerer),
    ] {
        let (model, backend) = (model.display(), &models.backend);
        let _ = writeln!(
            text,
            "  - {{id: {id}, kind: ml, input: {input}, variants: ['{model}'], backend: {backend}, \
             batching: {{max_batch: {size}, budget: 20ms}}}}"
        );
    }
    text.push_str(
        "  - {id: pair, kind: join, inputs: [scene_features, speech], options: {key: key, within: 2s}}\n\
         sinks:\n  - {id: answers, kind: jsonl, input: answerer, options: {path: tidemill.jsonl, columns: [key, question, answer]}}\n\
         run: {tick: 50ms, checkpoint_every: 20}\n",
    );
    text
}

/// Results of one contestant's runs.
#[derive(Default)]
struct Runs {
    rate: Vec<f64>,
    per_cpu: Vec<f64>,
    memory: Vec<f64>,
}

impl Runs {
    fn add(&mut self, pairs: usize, seconds: f64, cost: Cost, start: f64) {
        self.rate.push(pairs as f64 / seconds);
        self.per_cpu.push((pairs - START) as f64 / (cost.cpu - start));
        self.memory.push(cost.memory);
    }

    fn measurements(self, name: &str, cores: &str, baseline: bool) -> Vec<Measurement> {
        let of = |what: &str, unit, samples| {
            let one = Measurement::new(format!("{name}, {cores}, {what}"), unit, samples);
            if baseline { one.baseline() } else { one }
        };
        vec![
            of("rate", "pairs/s", self.rate),
            of("rate by processor time", "pairs/CPU s", self.per_cpu),
            of("peak memory", "MiB", self.memory),
        ]
    }
}

/// Both contestants in one folder.
struct Arena<'a> {
    folder: &'a Path,
    binary: PathBuf,
    own: PathBuf,
    pairs: usize,
    models: Models,
    sizes: BatchSizes,
}

impl Arena<'_> {
    fn rival(&self, cores: &str, threads: usize, records: usize) -> anyhow::Result<(f64, Cost)> {
        let arguments = [
            "vqa-rival".to_owned(),
            format!("--rival-models={}", serde_json::to_string(&self.models)?),
            format!("--rival-sizes={}", serde_json::to_string(&self.sizes)?),
            format!("--rival-threads={threads}"),
            format!("--rival-records={records}"),
        ];
        let cost = run_pinned(cores, &self.own, &arguments, self.folder)?;
        let said = std::fs::read_to_string(self.folder.join("rival.json"))?;
        if records == 0 {
            return Ok((0.0, cost));
        }
        let outcome: Outcome = serde_json::from_str(&said)?;
        ensure!(outcome.pairs == records, "the loop answered {} of {records} pairs", outcome.pairs);
        Ok((outcome.seconds, cost))
    }

    fn tidemill(&self, cores: &str, records: usize) -> anyhow::Result<(f64, Cost)> {
        let arguments = ["run", "workflow.yaml", "--rate", "max", "--report-json", "report.json", "--quiet"];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
        arguments.extend(["--records".to_owned(), records.to_string()]);
        let cost = run_pinned(cores, &self.binary, &arguments, self.folder)?;
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.folder.join("report.json"))?)?;
        let answered = report["sinks"][0]["records"].as_u64();
        ensure!(answered == Some(records as u64), "tidemill answered {answered:?} of {records} pairs");
        Ok((report["seconds"].as_f64().context("no seconds in the report")?, cost))
    }

    /// Counts the differing lines.
    fn different_answers(&self) -> anyhow::Result<usize> {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name));
        let (ours, theirs) = (read("tidemill.jsonl")?, read("rival.jsonl")?);
        ensure!(ours.lines().count() == theirs.lines().count(), "one has more answers than the other");
        Ok(ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).count())
    }

    fn compare(&self, label: &str, rounds: usize) -> anyhow::Result<Vec<Measurement>> {
        let two_cores = std::thread::available_parallelism()?.get() > 1;
        let start = |cost: anyhow::Result<(f64, Cost)>| cost.map(|(_, cost)| cost.cpu);
        let (rival_start, start_of_two) =
            (start(self.rival("0", 1, START))?, start(self.rival("0", 2, START))?);
        let tidemill_start = start(self.tidemill("0", START))?;
        let (mut one, mut two, mut other_one, mut other_two) =
            (Runs::default(), Runs::default(), Runs::default(), Runs::default());
        let mut ratios: [Vec<f64>; 4] = Default::default();
        let mut different = Vec::new();
        for _ in 0..rounds {
            let (rival, cost) = self.rival("0", 1, self.pairs)?;
            other_one.add(self.pairs, rival, cost, rival_start);
            let (ours, our_cost) = self.tidemill("0", self.pairs)?;
            one.add(self.pairs, ours, our_cost, tidemill_start);
            different.push(self.different_answers()? as f64);
            ratios[0].push(rival / ours);
            ratios[1].push((cost.cpu - rival_start) / (our_cost.cpu - tidemill_start));
            if two_cores {
                let (ours, our_cost) = self.tidemill("0,1", self.pairs)?;
                two.add(self.pairs, ours, our_cost, tidemill_start);
                different.push(self.different_answers()? as f64);
                ratios[2].push(rival / ours);
                let (rival, cost) = self.rival("0,1", 2, self.pairs)?;
                other_two.add(self.pairs, rival, cost, start_of_two);
                ratios[3].push(rival / ours);
            }
        }
        let name = |what: &str| format!("{label}: {what}");
        let mut all = other_one.measurements(&name("loop"), "1 core", true);
        all.extend(one.measurements(&name("tidemill"), "1 core", false));
        let [one, by_cpu, two_of_one, two_of_two] = ratios;
        all.push(Measurement::new(name("tidemill / loop, 1 core, rate"), "ratio", one).goal(0.95));
        let measured = name("tidemill / loop, 1 core, rate by processor time");
        all.push(Measurement::new(measured, "ratio", by_cpu).goal(0.95));
        if two_cores {
            all.extend(two.measurements(&name("tidemill"), "2 cores", false));
            all.extend(other_two.measurements(&name("loop of 2 threads"), "2 cores", true));
            let measured = name("tidemill on 2 cores / loop on 1 core, rate");
            all.push(Measurement::new(measured, "ratio", two_of_one).goal(1.3));
            all.push(Measurement::new(
                name("tidemill / loop of 2 threads, 2 cores, rate"),
                "ratio",
                two_of_two,
            ));
        }
        all.push(Measurement::new(name("answers that differ"), "lines", different));
        Ok(all)
    }
}

/// Chooses the cheapest sizes and sets the number of pairs of a run; the sizes are tried in the rival's process, on one
/// core.
fn best_sizes(arena: &mut Arena<'_>, label: &str) -> anyhow::Result<Vec<Measurement>> {
    arena.rival("0", 1, 0)?;
    let said = std::fs::read_to_string(arena.folder.join("rival.json"))?;
    let costs: [Vec<f64>; 3] = serde_json::from_str(&said)?;
    let best = |costs: &[f64]| {
        let sizes = SIZES.into_iter().zip(costs);
        sizes.min_by(|a, b| a.1.total_cmp(b.1)).map_or(1, |(size, _)| size)
    };
    arena.sizes = BatchSizes { images: best(&costs[0]), speech: best(&costs[1]), answerer: best(&costs[2]) };
    let least = |costs: &Vec<f64>| costs.iter().copied().fold(f64::INFINITY, f64::min);
    let fitting = (LONGEST_RUN / costs.iter().map(least).sum::<f64>()) as usize;
    arena.pairs = arena.pairs.min(fitting.max(FEWEST_PAIRS));
    let mut all = vec![Measurement::new(format!("{label}: a run"), "pairs", vec![arena.pairs as f64])];
    for (model, costs) in ["image model", "speech model", "answerer"].into_iter().zip(costs) {
        let best = best(&costs);
        for (size, cost) in SIZES.into_iter().zip(costs) {
            let mark = if size == best { " (best)" } else { "" };
            let name = format!("{label}: {model} alone, batch {size}{mark}");
            all.push(Measurement::new(name, "us CPU per record", vec![cost]));
        }
    }
    Ok(all)
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Answer> {
    let binary = options.release_binary.canonicalize().with_context(|| {
        let shown = options.release_binary.display();
        format!("{shown} is not there: build it with `cargo build --release -p tidemill`")
    })?;
    let combinations = match options.models.as_slice() {
        [] => combination::of_workflow(&options.workflow, &options.backends)?,
        written => {
            ensure!(written.len() % 3 == 0, "--models takes three manifests: images, speech, answerer");
            written.chunks_exact(3).map(|three| std::array::from_fn(|at| three[at].clone())).collect()
        }
    };
    let folder = tempfile::tempdir()?;
    lay_out(&options.data, folder.path(), options.pairs)?;
    let mut all = Vec::new();
    for manifests in &combinations {
        for backend in &options.backends {
            let full = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
            let models = Models {
                images: full(&manifests[0])?,
                speech: full(&manifests[1])?,
                answerer: full(&manifests[2])?,
                backend: backend.clone(),
            };
            let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let [images, speech, answerer] =
                [&models.images, &models.speech, &models.answerer].map(|path| stem(path));
            let label = format!("{images} + {speech} + {answerer} on {backend}");
            let mut arena = Arena {
                folder: folder.path(),
                binary: binary.clone(),
                own: std::env::current_exe()?,
                pairs: options.pairs,
                models,
                sizes: BatchSizes { images: 1, speech: 1, answerer: 1 },
            };
            all.extend(best_sizes(&mut arena, &label)?);
            std::fs::write(folder.path().join("workflow.yaml"), workflow(&arena.models, arena.sizes))?;
            all.extend(arena.compare(&label, options.rounds)?);
        }
    }
    Ok(Answer::new("vqa-loop", "Is the VQA pipeline as fast as a loop written by hand?", all))
}
