//! Benchmarks: one question per file, each with a baseline in the same run. Results are JSON files of one schema
//! (`result.rs`) that include the machine's facts.
mod association;
mod backends;
mod camera_soak;
mod checkpointing;
mod cluster_scale;
mod cluster_soak;
mod cluster_truth;
mod contestant;
mod devices;
mod fit;
mod link_throughput;
mod load_moves;
mod machine;
mod model_stage;
mod network;
mod operator_overhead;
mod panels;
mod parts;
mod placed;
mod planning_time;
mod plot;
mod relational;
mod remote_links;
mod replanning;
mod result;
mod service;
mod setups;
mod simulation_time;
mod slot_to_slot;
mod start_up;
mod vehicle_loop;
mod vqa_loop;

use clap::Parser;
use std::path::{Path, PathBuf};

/// Runs benchmarks and writes their results.
#[derive(Parser)]
struct Arguments {
    /// operator-overhead, slot-to-slot, link-throughput, remote-links, start-up, relational, association, vqa-loop, vehicle-loop, planning-time,
    /// setups, simulation-time, load-moves, replanning, checkpointing, service, devices, backends, cluster-scale, cluster-truth, cluster-soak, camera-soak, or all but replanning, which takes long,
    /// cluster-*, which want root, camera-soak, which wants a server of pictures, and backends, which scripts/test-backends.sh sets up.
    question: String,
    /// Folder for the result files.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
    /// The tidemill binary, for start-up and load-moves; for operator-overhead and cluster-* where there is no release build.
    #[arg(long, default_value = "target/debug/tidemill")]
    binary: PathBuf,
    /// Task of the other process of remote-links or cluster-scale; the benchmark starts itself with it.
    #[arg(long, hide = true)]
    far_end: Option<String>,
    #[command(flatten)]
    relational: relational::Options,
    #[command(flatten)]
    vqa_loop: vqa_loop::Options,
    #[command(flatten)]
    planning_time: planning_time::Options,
    #[command(flatten)]
    setups: setups::Options,
    #[command(flatten)]
    simulation_time: simulation_time::Options,
    #[command(flatten)]
    load_moves: load_moves::Options,
    #[command(flatten)]
    replanning: replanning::Options,
    #[command(flatten)]
    checkpointing: checkpointing::Options,
    #[command(flatten)]
    service: service::Options,
    #[command(flatten)]
    devices: devices::Options,
    #[command(flatten)]
    backends: backends::Options,
    #[command(flatten)]
    operator_overhead: operator_overhead::Options,
    #[command(flatten)]
    cluster_scale: cluster_scale::Options,
    #[command(flatten)]
    cluster_truth: cluster_truth::Options,
    #[command(flatten)]
    cluster_soak: cluster_soak::Options,
    #[command(flatten)]
    camera_soak: camera_soak::Options,
    #[command(flatten)]
    rival: vqa_loop::RivalOptions,
    #[command(flatten)]
    vehicle_loop: vehicle_loop::Options,
    /// Task of the hand-written loop of vehicle-loop; the benchmark starts itself with it.
    #[arg(long, hide = true)]
    vehicle_task: Option<String>,
}

impl Arguments {
    /// Returns the release build where there is one.
    fn built(&self) -> &Path {
        let release = &self.vqa_loop.release_binary;
        if release.exists() { release } else { &self.binary }
    }
}

fn main() -> anyhow::Result<()> {
    if let Some(served) = backends::serve_proxy() {
        return served;
    }
    let arguments = Arguments::parse();
    if arguments.question == "vqa-rival" {
        return vqa_loop::run_rival(&arguments.rival);
    }
    if let ("vehicle-rival", Some(task)) = (arguments.question.as_str(), &arguments.vehicle_task) {
        return vehicle_loop::run_rival(task);
    }
    if arguments.question == devices::sharing::PROCESS {
        return devices::sharing::serve_process();
    }
    match (arguments.question.as_str(), &arguments.far_end) {
        ("remote-links-far-end", Some(task)) => return remote_links::serve_far_end(task),
        ("timely-far-end", Some(task)) => return remote_links::serve_timely_end(task),
        ("cluster-scale-workers", Some(task)) => return cluster_scale::serve_workers(task),
        _ => {}
    }
    let asked = |name: &str| arguments.question == "all" || arguments.question == name;
    let mut results = Vec::new();
    if asked("operator-overhead") {
        let (options, binary) = (&arguments.operator_overhead, arguments.built());
        results.push(operator_overhead::run(options, binary, &arguments.out)?);
    }
    if asked("slot-to-slot") {
        results.push(slot_to_slot::run()?);
    }
    if asked("link-throughput") {
        results.push(link_throughput::run()?);
    }
    if asked("remote-links") {
        results.push(remote_links::run()?);
    }
    if asked("checkpointing") {
        results.push(checkpointing::run(&arguments.checkpointing, &arguments.vqa_loop.release_binary)?);
    }
    if asked("service") {
        results.push(service::run(&arguments.service, arguments.built())?);
    }
    if asked("devices") {
        match devices::run(&arguments.devices, &arguments.out)? {
            None if arguments.question == "devices" => return Ok(()),
            answer => results.extend(answer),
        }
    }
    if arguments.question == "backends" {
        results.push(backends::run(&arguments.backends, &arguments.out)?);
    }
    if asked("start-up") {
        results.push(start_up::run(&arguments.binary)?);
    }
    if asked("relational") {
        results.push(relational::run(&arguments.relational, &arguments.vqa_loop.release_binary)?);
    }
    if asked("association") {
        results.push(association::run()?);
    }
    if asked("vqa-loop") {
        results.push(vqa_loop::run(&arguments.vqa_loop)?);
    }
    if asked("vehicle-loop") {
        results.push(vehicle_loop::run(&arguments.vehicle_loop, &arguments.vqa_loop.release_binary)?);
    }
    if asked("planning-time") {
        results.push(planning_time::run(&arguments.planning_time, &arguments.out)?);
    }
    if asked("setups") {
        setups::run(&arguments.setups, &arguments.out)?;
        if arguments.question == "setups" {
            return Ok(());
        }
    }
    if asked("simulation-time") {
        results.push(simulation_time::run(&arguments.simulation_time, &arguments.out)?);
    }
    if asked("load-moves") {
        load_moves::run(&arguments.load_moves, &arguments.binary, &arguments.out)?;
        if arguments.question == "load-moves" {
            return Ok(());
        }
    }
    if arguments.question == "replanning" {
        return replanning::run(&arguments.replanning, &arguments.out);
    }
    if arguments.question == "cluster-scale" {
        results.push(cluster_scale::run(&arguments.cluster_scale, arguments.built(), &arguments.out)?);
    }
    if arguments.question == "cluster-truth" {
        results.push(cluster_truth::run(&arguments.cluster_truth, arguments.built())?);
    }
    if arguments.question == "cluster-soak" {
        results.push(cluster_soak::run(&arguments.cluster_soak, arguments.built(), &arguments.out)?);
    }
    if arguments.question == "camera-soak" {
        results.push(camera_soak::run(&arguments.camera_soak, arguments.built(), &arguments.out)?);
    }
    anyhow::ensure!(!results.is_empty(), "no such benchmark: {}", arguments.question);
    for result in results {
        result.print();
        result.write(&arguments.out)?;
    }
    Ok(())
}
