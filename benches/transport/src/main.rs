//! `make bench BENCH=transport`: what calls and channels cost, beside raw sockets, gRPC, proxies and iceoryx2.
#![allow(
    clippy::disallowed_methods,
    reason = "a bench measures the time that there is, not that of an engine"
)]

mod channel;
mod contender;
mod drive;
mod goals;
mod grpc;
mod harness;
mod link;
mod load;
mod managed;
mod process;
mod product;
mod raw;
mod report;
mod sidecar;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use contender::{Contender, Gate};
use harness::{Effort, measure};
use serde_json::{Value, json};
use sidecar::{Proxy, Sidecars};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Measures calls and channels of all contenders and prints tables.
#[derive(Parser)]
#[command(name = "transport")]
struct Arguments {
    /// One round of short measurements, in less than a minute; writes no file without --out
    #[arg(long)]
    quick: bool,
    /// Rounds
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each measurement
    #[arg(long)]
    seconds: Option<f64>,
    /// Calls in a second of the open loop
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Only contenders whose names contain one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only cases whose table or name contains one of these
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// The result file
    #[arg(long)]
    out: Option<PathBuf>,
    /// The product's command, of which its rows start services
    #[arg(long)]
    release_binary: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Part>,
}

/// Part of this program when it started itself.
#[derive(Subcommand)]
enum Part {
    /// A server of a contender
    #[command(hide = true)]
    Serve { name: String, order: String },
    /// A client of a contender
    #[command(hide = true)]
    Client { name: String, target: String, load: String },
    /// Any program that ends with its parent
    #[command(hide = true)]
    Bound {
        program: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// All contenders, in the order of the tables.
fn contenders() -> Vec<Box<dyn Contender>> {
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(raw::Raw { unix: false }),
        Box::new(raw::Raw { unix: true }),
        Box::new(grpc::Tonic { apart: false }),
        Box::new(grpc::Tonic { apart: true }),
        Box::new(Sidecars(Proxy::Nginx)),
        Box::new(Sidecars(Proxy::Haproxy)),
        Box::new(Sidecars(Proxy::Envoy)),
        Box::new(channel::Copying),
        Box::new(channel::Iceoryx { polls: false }),
        Box::new(channel::Iceoryx { polls: true }),
    ];
    all.extend(product::rows());
    all.extend(managed::rows());
    all
}

fn find(name: &str) -> anyhow::Result<Box<dyn Contender>> {
    contenders().into_iter().find(|contender| contender.name() == name).context("no such contender")
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.role {
        None => bench(&arguments),
        Some(part) => play(part),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play(part: &Part) -> anyhow::Result<()> {
    match part {
        Part::Serve { name, order } => find(name)?.serve(&serde_json::from_str(order)?),
        Part::Client { name, target, load } => {
            let outcome = find(name)?.client(&serde_json::from_str(load)?, target, &mut Gate::new())?;
            println!("{}", serde_json::to_string(&outcome)?);
            // The harness reads the processor times before it lets this process end.
            std::io::stdin().read_line(&mut String::new())?;
            Ok(())
        }
        Part::Bound { program, arguments } => process::become_bound(program, arguments),
    }
}

/// Removes everything when the user has enough.
fn end_on_signals() -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _kept = process::clean_up();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    end_on_signals()?;
    process::clean_up_after_others();
    let result = bench_and_report(arguments);
    drop(process::clean_up());
    result
}

fn bench_and_report(arguments: &Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let effort = Effort {
        rounds: arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 3 }),
        seconds: arguments.seconds.unwrap_or(if arguments.quick { 0.2 } else { 1.0 }),
        quick: arguments.quick,
        rate: arguments.rate,
    };
    let facts = machine(&effort);
    let all = contenders();
    let (mut ready, mut missing, mut versions) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for contender in &all {
        let name = contender.name();
        if !arguments.only.is_empty() && !arguments.only.iter().any(|part| name.contains(part)) {
            continue;
        }
        match contender.ready() {
            Ok(version) => {
                versions.insert(name, version.into());
                ready.push(contender.as_ref());
            }
            Err(why) => missing.push((name, why)),
        }
    }
    let room = process::Room::new(arguments.release_binary.clone())?;
    let link = link::make();
    if let Err(why) = &link {
        missing.push((harness::QOS.to_owned(), format!("skipped: {why:#}")));
    }
    let mut cases = harness::cases(&effort, link.as_ref().ok());
    if !arguments.cases.is_empty() {
        cases.retain(|case| {
            arguments.cases.iter().any(|part| case.table.contains(part) || case.what.contains(part))
        });
    }
    if cases.is_empty() || ready.is_empty() {
        bail!("nothing to measure: no case or no contender has such a name");
    }
    let rows = measure(&cases, &ready, &effort, &room, |line| eprintln!("{line}"));
    let mut machine = facts;
    machine["versions"] = Value::Object(versions);
    machine["load_average_after"] = load_average().into();
    machine["took_s"] = started.elapsed().as_secs().into();
    let report = report::Report { cases: &cases, rows: &rows, effort: &effort, machine, missing: &missing };
    println!("{}", serde_json::to_string(&report.machine)?);
    println!("{}", report.markdown());
    let standard = (!arguments.quick).then(|| PathBuf::from("docs/benchmarks/transport.json"));
    if let Some(path) = arguments.out.clone().or(standard) {
        let text = serde_json::to_string_pretty(&report.json())? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

fn load_average() -> String {
    let load = tidemill_machine::load_average();
    load.map_or_else(String::new, |averages| averages.map(|load| format!("{load:.2}")).join(" "))
}

/// Facts as in the other results (`benches/src/machine.rs`), taken before the first measurement.
fn machine(effort: &Effort) -> Value {
    let bytes = tidemill_machine::memory().map_or(0, |memory| memory.total) as f64;
    json!({
        "cpu": tidemill_machine::processor().unwrap_or_else(|| "unknown".into()),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": (bytes / (1 << 30) as f64 * 10.0).round() / 10.0,
        "kernel": tidemill_machine::kernel().1,
        "load_average": load_average(),
        "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
        "version": env!("CARGO_PKG_VERSION"),
        "link": link::SHAPE,
        "open_loop_calls_per_s": effort.rate,
    })
}
