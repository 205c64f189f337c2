//! Answers one question a file, each with a baseline in the same run; results are JSON files of one schema
//! (`result.rs`) with the machine's facts inside.
mod checkpointing;
mod link_throughput;
mod load_moves;
mod machine;
mod operator_overhead;
mod parts;
mod planning_time;
mod plot;
mod relational;
mod remote_links;
mod result;
mod setups;
mod simulation_time;
mod slot_to_slot;
mod start_up;
mod vqa_loop;

use clap::Parser;
use std::path::PathBuf;

/// Runs benchmarks and writes their results.
#[derive(Parser)]
struct Arguments {
    /// operator-overhead, slot-to-slot, link-throughput, remote-links, start-up, relational, vqa-loop, planning-time,
    /// setups, simulation-time, load-moves, checkpointing, or all.
    question: String,
    /// Folder for the result files.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
    /// The tidemill binary, for start-up and load-moves.
    #[arg(long, default_value = "target/debug/tidemill")]
    binary: PathBuf,
    /// What the other process of remote-links is to do; the benchmark calls itself with it.
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
    checkpointing: checkpointing::Options,
    #[command(flatten)]
    rival: vqa_loop::RivalOptions,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.question == "vqa-rival" {
        return vqa_loop::run_rival(&arguments.rival);
    }
    match (arguments.question.as_str(), &arguments.far_end) {
        ("remote-links-far-end", Some(task)) => return remote_links::serve_far_end(task),
        ("timely-far-end", Some(task)) => return remote_links::serve_timely_end(task),
        _ => {}
    }
    let asked = |name: &str| arguments.question == "all" || arguments.question == name;
    let mut results = Vec::new();
    if asked("operator-overhead") {
        results.push(operator_overhead::run()?);
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
    if asked("start-up") {
        results.push(start_up::run(&arguments.binary)?);
    }
    if asked("relational") {
        results.push(relational::run(&arguments.relational, &arguments.vqa_loop.release_binary)?);
    }
    if asked("vqa-loop") {
        results.push(vqa_loop::run(&arguments.vqa_loop)?);
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
    anyhow::ensure!(!results.is_empty(), "no such benchmark: {}", arguments.question);
    for result in results {
        result.print();
        result.write(&arguments.out)?;
    }
    Ok(())
}
