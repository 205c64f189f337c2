//! Measures the overhead of engine and channels over the bare call of each model of the example. Each record is a batch
//! of its own, at a rate at which none waits for another. Each operator has a worker of its own: a slot of one process,
//! a process, or a machine in a network namespace.
use super::now;
use super::table::Row;
use crate::network::Network;
use crate::placed::{Place, run};
use crate::result::Measurement;
use anyhow::{Context, ensure};
use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tidemill_app::listener::Silent;
use tidemill_app::preparation::{PlanFrom, prepare_here};
use tidemill_engine::{LatencySummary, Program, RunReport};
use tidemill_operators::api::{Instance, Output};
use tidemill_operators::record::EventTime;
use tidemill_profiler::records;

/// Options of `operator-overhead`.
#[derive(Debug, Clone, Args)]
#[group(id = "operator-overhead-options")]
pub(crate) struct Options {
    /// Records of each run of the example, for operator-overhead.
    #[arg(long, default_value_t = 400)]
    overhead_records: u64,
    /// Only the models of the example, for operator-overhead.
    #[arg(long)]
    pub(super) overhead_of_models: bool,
}

/// Images model, speech model, answerer.
const COMBINATIONS: [(&str, [&str; 3]); 2] = [
    ("smallest models", ["scene-features-tiny", "speech-small", "answerer-small"]),
    ("largest models", ["scene-features-huge", "speech-large", "answerer-large"]),
];
/// Records a second of each source.
const RATE: u32 = 20;
/// Records with measured bare calls, and repetitions.
const SAMPLES: usize = 200;
const TIMES: usize = 3;
/// Warm-up calls, which take longer.
const WARM: usize = 20;
/// Workers of the plan and their machines: all at one site, so that no link delays.
const WORKERS: [(&str, &str); 4] =
    [("cameras", "hub-1"), ("models", "hub-2"), ("pairs", "hub-3"), ("answers", "hub-4")];
const PAIR: &str = "pair";
const MODELS: [&str; 3] = ["scene_features", "speech", "answerer"];

/// Writes the workflow with one variant each, and the plan; returns both paths.
fn files(folder: &Path, variants: &[&str; 3]) -> anyhow::Result<(PathBuf, PathBuf)> {
    let repository = std::env::current_dir()?;
    let data = repository.join("examples/vqa/data");
    ensure!(data.exists(), "{} is not there: run this in the repository", data.display());
    let mut text = "version: 1\nname: vqa\nsources:\n".to_owned();
    for (id, kind) in [("images", "image_directory"), ("questions", "wav_directory")] {
        writeln!(
            text,
            "  - {{id: {id}, kind: {kind}, key: key, rate: {RATE}/s, repeat: true, options: {{path: '{}'}}}}",
            data.join(id).display()
        )?;
    }
    text += "operators:\n";
    for ((id, input), variant) in
        [("scene_features", "images"), ("speech", "questions"), ("answerer", "pair")].iter().zip(variants)
    {
        let model = repository.join(format!("models/vqa/{variant}.yaml"));
        writeln!(text, "  - {{id: {id}, kind: ml, input: {input}, variants: ['{}']}}", model.display())?;
    }
    text += "  - {id: pair, kind: join, inputs: [scene_features, speech], options: {key: key, within: 2s}}\n\
             sinks:\n  - {id: out, kind: jsonl, input: answerer, options: {path: out.jsonl, columns: [key, answer]}}\n\
             run: {tick: 10ms, checkpoint_every: 10}\n";
    let workflow = folder.join("workflow.yaml");
    std::fs::write(&workflow, text)?;

    let mut text =
        "version: 1\nworkflow: {name: vqa}\ntick: 10ms\ncheckpoint_every: 10\nworkers:\n".to_owned();
    for (id, _) in WORKERS {
        writeln!(text, "  - {{id: {id}, tier: local, worker_type: large}}")?;
    }
    text += "stages:\n";
    let [images, speech, answerer] = variants;
    for (operator, worker, variant) in [
        ("images", "cameras", None),
        ("questions", "cameras", None),
        ("scene_features", "models", Some(images)),
        ("speech", "models", Some(speech)),
        ("pair", "pairs", None),
        ("answerer", "answers", Some(answerer)),
        ("out", "cameras", None),
    ] {
        let variant = variant.map_or_else(String::new, |id| format!(", variant: {id}, max_batch: 1"));
        // A slot for each: both models may compute at once.
        writeln!(
            text,
            "  - {{id: {operator}, operator: {operator}, worker: {worker}, slot_group: {operator}{variant}}}"
        )?;
    }
    text += "classes:\n  - {id: 0, share: 1, route: {images: images, questions: questions, scene_features: scene_features, speech: \
             speech, pair: pair, answerer: answerer, out: out}}\nedges:\n";
    for (from, to, input) in [
        ("images", "scene_features", 0),
        ("questions", "speech", 0),
        ("scene_features", "pair", 0),
        ("speech", "pair", 1),
        ("pair", "answerer", 0),
        ("answerer", "out", 0),
    ] {
        writeln!(text, "  - {{from: {from}, to: {to}, input: {input}}}")?;
    }
    let plan = folder.join("plan.yaml");
    std::fs::write(&plan, text)?;
    Ok((workflow, plan))
}

/// Measures the milliseconds of each bare call by operator: the engine's operator, called without the engine.
fn bare(workflow: &Path, plan: &Path) -> anyhow::Result<BTreeMap<&'static str, Vec<f64>>> {
    let program = prepare_here(workflow, PlanFrom::File(plan), &Silent)?.program;
    let mut times = BTreeMap::new();
    let mut outputs = Vec::new();
    for (number, (source, model)) in [("images", MODELS[0]), ("questions", MODELS[1])].into_iter().enumerate()
    {
        let source = program.sources.get(source).context("no such source")?;
        let input = records::read(source, u32::try_from(number)?, SAMPLES)?;
        let (taken, output) = calls(&program, model, &input)?;
        times.insert(model, taken);
        outputs.push(output);
    }
    let mut pairs = Output::default();
    let join = program.operators.get("pair").context("no join")?;
    let Instance::Stateful(mut join) = (join.make)()? else { anyhow::bail!("a join keeps rows") };
    for (port, input) in outputs.iter().enumerate() {
        join.apply(port, &records::by_time(&whole(input)?), &mut pairs)?;
    }
    join.advance(EventTime::MAX, &mut pairs)?;
    times.insert(PAIR, joined(&program, &outputs)?);
    times.insert(MODELS[2], calls(&program, MODELS[2], &whole(&pairs.batches)?)?.0);
    Ok(times)
}

/// Measures the milliseconds of the join for each of its rows, those of both inputs in turn, as they arrive.
fn joined(program: &Program, inputs: &[Vec<RecordBatch>]) -> anyhow::Result<Vec<f64>> {
    let bound = program.operators.get(PAIR).context("no join")?;
    let inputs: Vec<RecordBatch> =
        inputs.iter().map(|input| Ok(records::by_time(&whole(input)?))).collect::<anyhow::Result<_>>()?;
    let mut taken = Vec::new();
    for _ in 0..TIMES {
        let Instance::Stateful(mut join) = (bound.make)()? else { anyhow::bail!("a join keeps rows") };
        let rows = inputs.iter().map(RecordBatch::num_rows).min().unwrap_or(0);
        for row in 0..rows {
            let (mut output, begin) = (Output::default(), now());
            for (port, input) in inputs.iter().enumerate() {
                join.apply(port, &input.slice(row, 1), &mut output)?;
            }
            taken.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(taken)
}

/// Concatenates batches.
fn whole(batches: &[RecordBatch]) -> anyhow::Result<RecordBatch> {
    let first = batches.first().context("no records")?;
    Ok(concat_batches(first.schema_ref(), batches)?)
}

fn calls(program: &Program, id: &str, input: &RecordBatch) -> anyhow::Result<(Vec<f64>, Vec<RecordBatch>)> {
    let bound = program.operators.get(id).with_context(|| format!("no operator {id}"))?;
    let Instance::Inference(mut model) = (bound.make)()? else { anyhow::bail!("{id} is no model") };
    let (mut taken, mut batches) = (Vec::new(), Vec::new());
    for call in 0..WARM + TIMES * input.num_rows() {
        let (mut output, record) = (Output::default(), records::window(input, call, 1));
        let begin = now();
        model.infer(&record, &mut output)?;
        let time = begin.elapsed().as_secs_f64() * 1e3;
        if call >= WARM {
            taken.push(time);
        }
        // Keep each record's output once.
        if call < input.num_rows() {
            batches.append(&mut output.batches);
        }
    }
    Ok((taken, batches))
}

/// Returns the figures of an operator at one place, milliseconds: median and p99.
fn figures(report: &RunReport, stage: &str) -> anyhow::Result<[(LatencySummary, &'static str); 3]> {
    let stage = report.stages.iter().find(|one| one.stage == stage).context("no such stage")?;
    ensure!(stage.dead_letters.is_empty(), "{} has dead letters", stage.stage);
    Ok([(stage.queue, "waits"), (stage.compute, "computes"), (stage.transfer, "comes")])
}

fn measured(name: String, times: LatencySummary) -> Measurement {
    let samples = usize::try_from(times.count).unwrap_or(usize::MAX);
    Measurement::summed_up(name, "ms", samples, [times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms])
}

/// Measures the bare calls as baselines, then the same in the engine at each place. Returns the measurements and the
/// rows of a table.
pub(super) fn measure(options: &Options, binary: &Path) -> anyhow::Result<(Vec<Measurement>, Vec<Row>)> {
    let binary = binary.canonicalize().with_context(|| {
        format!("{} is not there: build it with `cargo build -p tidemill`", binary.display())
    })?;
    let network = Network::up("hub:4");
    if let Err(error) = &network {
        println!("not measured between network namespaces: {error:#}");
    }
    let mut places = vec![("one process", Place::Here), ("processes", Place::Processes)];
    if let Ok(network) = &network {
        let machines = WORKERS.map(|(worker, machine)| (worker.to_owned(), machine.to_owned()));
        places.push(("network namespaces", Place::Machines(network, machines.into())));
    }
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for (size, variants) in COMBINATIONS {
        let folder = tempfile::tempdir()?;
        let (workflow, plan) = files(folder.path(), &variants)?;
        let bare = bare(&workflow, &plan)?;
        for (model, taken) in &bare {
            all.push(Measurement::new(format!("{size}, {model}: bare call"), "ms", taken.clone()).baseline());
        }
        for (name, place) in &places {
            let report = run(&workflow, &plan, options.overhead_records, &binary, place)
                .with_context(|| format!("{size}, {name}"))?;
            for (operator, variant) in MODELS.iter().zip(variants).chain([(&PAIR, "join")]) {
                let times = figures(&report, operator)?;
                for (times, what) in times {
                    if times.count > 0 && *operator != PAIR {
                        all.push(measured(format!("{size}, {name}, {operator}: {what}"), times));
                    }
                }
                let [(waits, _), (computes, _), (comes, _)] = times;
                if let Some(bare) = bare.get(operator) {
                    let place = (*name).to_owned();
                    let operator = (*operator).to_owned();
                    rows.push(Row::new(operator, variant, place, bare, [waits, computes, comes]));
                }
            }
            let [.., (transfer, _)] = figures(&report, "pair")?;
            all.push(measured(format!("{size}, {name}, pair: comes"), transfer));
            let sink = report.sinks.first().context("no sink")?;
            ensure!(
                sink.records == options.overhead_records,
                "{} of {} answers",
                sink.records,
                options.overhead_records
            );
            all.push(measured(format!("{size}, {name}: from the source to the sink"), sink.arrival));
            let apart = report.hosts.iter().map(|host| host.clock_plus_minus_ms).fold(0.0, f64::max);
            all.push(Measurement::new(
                format!("{size}, {name}: clocks differ by at most"),
                "ms",
                vec![apart],
            ));
        }
    }
    Ok((all, rows))
}
