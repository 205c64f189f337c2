//! Measures whether plans keep their promises: four plans of the example over three sites, predicted, simulated, and
//! run on machines in network namespaces whose links have a real rate and a real delay. Nothing else is enforced.
use crate::machine::processor_time;
use crate::network::Network;
use crate::placed::{Place, run as run_placed};
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidemill_engine::RunReport;
use tidemill_spec::plan::{Plan, PlanFile};

/// Options of `cluster-truth`.
#[derive(Debug, Clone, Args)]
#[group(id = "cluster-truth-options")]
pub(crate) struct Options {
    /// Seconds of each run, for cluster-truth.
    #[arg(long, default_value_t = 30.0)]
    truth_seconds: f64,
    /// The profile that plans are made with, for cluster-truth.
    #[arg(long, default_value = "examples/vqa/profile.yaml")]
    truth_profile: PathBuf,
}

const WORKFLOW: &str = "examples/vqa/workflow.yaml";
/// Machines of one type: this machine. The links are those of `benches/experiments/cluster_network.py`.
const INFRASTRUCTURE: &str = "version: 1
name: three-sites
tiers:
  - id: edge
    workers: [{type: large, count: 3, vcpu: 2, memory: 8GiB, price: 0.120 $/h}]
  - id: hub
    workers: [{type: large, count: 3, vcpu: 2, memory: 8GiB, price: 0.100 $/h}]
  - id: cloud
    workers: [{type: large, count: 4, vcpu: 2, memory: 8GiB, price: 0.083 $/h}]
links:
  - {from: edge, to: hub, price: 0.01 $/GiB, bandwidth: 100Mbps, delay: 5ms}
  - {from: hub, to: edge, price: 0.01 $/GiB, bandwidth: 100Mbps, delay: 5ms}
  - {from: hub, to: cloud, price: 0.1 $/GiB, bandwidth: 50Mbps, delay: 20ms}
  - {from: cloud, to: hub, price: 0.02 $/GiB, bandwidth: 50Mbps, delay: 20ms}
  - {from: edge, to: cloud, price: 0.11 $/GiB, bandwidth: 50Mbps, delay: 25ms}
  - {from: cloud, to: edge, price: 0.03 $/GiB, bandwidth: 50Mbps, delay: 25ms}
";
/// The edge has more machines than workers, since source devices are machines too.
const MACHINES: &str = "edge:5,hub:3,cloud:4";
/// Dollars per byte of each link, as above.
const PRICES: [(&str, f64); 4] =
    [("edge->hub", 0.01), ("hub->edge", 0.01), ("hub->cloud", 0.1), ("cloud->hub", 0.02)];
const GIB: f64 = (1u64 << 30) as f64;

/// A wanted plan: name, records per second, other levels, options of the planner.
type Case = (&'static str, f64, &'static [&'static str], &'static [&'static str]);

const CASES: [Case; 4] = [
    ("as the planner chooses", 20.0, &["accuracy=85"], &[]),
    ("all in the cloud", 20.0, &["accuracy=85"], &["--planner", "cloud-only"]),
    ("one operator a worker", 20.0, &["accuracy=85"], &["--one-operator-per-worker"]),
    ("twice the rate, more accurate", 40.0, &["accuracy=93"], &["--planner", "cloud-only"]),
];

pub(crate) fn run(options: &Options, binary: &Path) -> anyhow::Result<Answer> {
    let binary = binary.canonicalize().with_context(|| {
        format!("{} is not there: build it with `cargo build -p tidemill`", binary.display())
    })?;
    let mut network = Network::up(MACHINES)?;
    let mut all = Vec::new();
    for case in &CASES {
        all.extend(measure(options, &binary, &mut network, case).with_context(|| case.0.to_owned())?);
    }
    Ok(Answer::new("cluster-truth", "Do plans keep on real links what they promise?", all))
}

/// Returns the standard output of a command.
fn told(binary: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(binary).args(arguments).output()?;
    // 1: a level is not met, a valid result.
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(matches!(output.status.code(), Some(0 | 1)), "{}: {said}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is no text")
}

fn measure(
    options: &Options,
    binary: &Path,
    network: &mut Network,
    (name, rate, levels, planning): &Case,
) -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let (infrastructure, plan) = (folder.path().join("infrastructure.yaml"), folder.path().join("plan.yaml"));
    std::fs::write(&infrastructure, INFRASTRUCTURE)?;
    let workflow = repeated(folder.path(), *rate)?;
    let workflow_text = text(&workflow)?;
    let rate_level = format!("rate={rate}/s");
    let mut files = vec!["--infra", text(&infrastructure)?, "--profiles", text(&options.truth_profile)?];
    for level in [rate_level.as_str(), "latency=none"].iter().chain(*levels) {
        files.extend(["--slo", *level]);
    }
    let mut arguments = vec!["plan", workflow_text, "--out", text(&plan)?];
    arguments.extend(&files);
    arguments.extend(*planning);
    told(binary, &arguments)?;
    let mut arguments = vec!["simulate", text(&plan)?, workflow_text, "--output", "json"];
    arguments.extend(&files);
    let simulated: Value = serde_json::from_str(&told(binary, &arguments)?)?;
    let planned = PlanFile::load(&plan)?.plan;

    let records = (rate * options.truth_seconds) as u64;
    let (before, time_before) = (network.bytes_of_links()?, processor_time());
    let report = {
        let place = Place::Machines(network, machines(&planned)?);
        run_placed(&workflow, &plan, records, binary, &place)?
    };
    let (after, time_after) = (network.bytes_of_links()?, processor_time());
    let carried: BTreeMap<String, f64> = after
        .iter()
        .map(|(link, bytes)| {
            let since = bytes - before.get(link).copied().unwrap_or_default();
            (link.clone(), since as f64 / report.seconds)
        })
        .collect();
    let mut all = compare(name, &planned, &simulated, &report, &carried)?;
    // All machines of the plan share this one: where it is overloaded, the result says nothing about the plan.
    if let (Some(before), Some(after)) = (time_before, time_after) {
        let busy = 100.0 * (after.0 - before.0) / (after.1 - before.1).max(1.0);
        all.push(Measurement::new(
            format!("{name}: processors of this machine in use, measured"),
            "%",
            vec![busy],
        ));
    }
    Ok(all)
}

/// Writes the example with repeating sources: a few hundred records are too few for p99.
fn repeated(folder: &Path, rate: f64) -> anyhow::Result<PathBuf> {
    let repository = std::env::current_dir()?;
    let text = std::fs::read_to_string(repository.join(WORKFLOW))?;
    let (_, text) = text.split_once("version:").context("a workflow has a version")?;
    let mut text = format!("version:{text}");
    for kind in ["image_directory", "wav_directory"] {
        text = text.replace(&format!("    kind: {kind}\n"), &format!("    kind: {kind}\n    repeat: true\n"));
    }
    let at = |path: &str| repository.join(path).display().to_string();
    text = text
        .replace("../../models", &at("models"))
        .replace("data/", &format!("{}/", at("examples/vqa/data")));
    text = text.replace("rate: 40/s", &format!("rate: {rate}/s"));
    let path = folder.join("workflow.yaml");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Assigns the next machine of its tier to each worker of a plan.
fn machines(plan: &Plan) -> anyhow::Result<BTreeMap<String, String>> {
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for worker in &plan.workers {
        let number = used.entry(worker.tier.as_str()).or_default();
        *number += 1;
        found.insert(worker.id.clone(), format!("{}-{number}", worker.tier));
    }
    Ok(found)
}

fn compare(
    case: &str,
    plan: &Plan,
    simulated: &Value,
    report: &RunReport,
    carried: &BTreeMap<String, f64>,
) -> anyhow::Result<Vec<Measurement>> {
    let sink = report.sinks.first().context("no sink")?;
    let of_simulation = &simulated["sinks"][0];
    let mut all = Vec::new();
    let mut tell = |what: &str, unit, from: &str, value: Option<f64>| {
        let Some(value) = value else { return };
        let measurement = Measurement::new(format!("{case}: {what}, {from}"), unit, vec![value]);
        all.push(if from == "measured" { measurement } else { measurement.baseline() });
    };
    let predicted = plan.predicted.as_ref();
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    tell("rate", "1/s", "predicted", predicted.and_then(|of| Some(of.rate.as_ref()?.value.0)));
    tell("rate", "1/s", "simulated", of_simulation["rate_per_second"].as_f64());
    tell("rate", "1/s", "measured", Some(sink.rate_per_second));
    let p50 = predicted.and_then(|of| Some(milliseconds(of.p50.as_ref()?.value.0)));
    tell("latency p50", "ms", "predicted", p50);
    tell("latency p50", "ms", "simulated", of_simulation["latency"]["p50_ms"].as_f64());
    tell("latency p50", "ms", "measured", Some(sink.latency.p50_ms));
    let p99 = predicted.and_then(|of| Some(milliseconds(of.p99.as_ref()?.value.0)));
    tell("latency p99", "ms", "predicted", p99);
    tell("latency p99", "ms", "simulated", of_simulation["latency"]["p99_ms"].as_f64());
    tell("latency p99", "ms", "measured", Some(sink.latency.p99_ms));
    tell("accuracy", "%", "predicted", predicted.and_then(|of| Some(of.accuracy.as_ref()?.value.0)));
    tell("accuracy", "%", "measured", sink.accuracy_percent);
    let links = simulated["links"].as_array().map_or(&[][..], Vec::as_slice);
    for (link, measured) in carried {
        // Traffic from the edge to the cloud passes both links.
        let over = |one: &Value| {
            let (from, to) = (one["from"].as_str()?, one["to"].as_str()?);
            let hops = match (from, to) {
                ("edge", "cloud") => vec!["edge->hub", "hub->cloud"],
                ("cloud", "edge") => vec!["cloud->hub", "hub->edge"],
                _ => {
                    return (format!("{from}->{to}") == *link)
                        .then(|| one["bytes_per_second"].as_f64())
                        .flatten();
                }
            };
            hops.contains(&link.as_str()).then(|| one["bytes_per_second"].as_f64()).flatten()
        };
        let expected: f64 = links.iter().filter_map(over).sum();
        tell(&format!("bytes {link}"), "B/s", "simulated", Some(expected));
        tell(&format!("bytes {link}"), "B/s", "measured", Some(*measured));
    }
    let compute = simulated["cost"]["compute"].as_f64().unwrap_or_default();
    let per_hour = |(link, price): &(&str, f64)| carried.get(*link).map(|bytes| bytes * 3600.0 / GIB * price);
    let network: f64 = PRICES.iter().filter_map(per_hour).sum();
    tell("cost", "$/h", "predicted", predicted.and_then(|of| Some(of.cost.as_ref()?.value.0)));
    tell("cost", "$/h", "simulated", simulated["cost"]["total"].as_f64());
    tell("cost", "$/h", "measured", Some(compute + network));
    let workers: Vec<String> = plan.workers.iter().map(|worker| worker.id.clone()).collect();
    println!("{case}: {}", workers.join(", "));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::infrastructure::Infrastructure;

    #[test]
    fn the_links_that_plans_are_made_for_are_those_of_the_network() {
        let network =
            std::fs::read_to_string("../benches/experiments/cluster_network.py").expect("it is there");
        for (link, rate, delay) in [(("edge", "hub"), "100.0", "5.0"), (("hub", "cloud"), "50.0", "20.0")] {
            let written = format!("(\"{}\", \"{}\"): ({rate}, {delay})", link.0, link.1);
            assert!(network.contains(&written), "{written}");
        }
        assert!(Infrastructure::parse(INFRASTRUCTURE, "infrastructure.yaml").is_ok());
    }
}
