//! Trains a model by several processes, which are the ranks of a group.
//!
//! ```text
//! cargo run -p tidemill-training --example train -- ranks=2
//! cargo run -p tidemill-training --example train -- ranks=4 model=mixture steps=1000 checkpoint=/tmp/training
//! ```
//!
//! The program starts a service for groups and a process for each rank, and prints the loss. The last line has a digest of the parameters: it is
//! the same for any number of ranks, and for a training that continues from its checkpoint.
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::service::{Collectives, Options as ServiceOptions};
use tidemill_collective::topology::Host;
use tidemill_training::data::spirals;
use tidemill_training::{Exchange, Model, Options, Ranks, Trainer};

const DEFAULTS: [(&str, &str); 9] = [
    ("ranks", "2"),
    ("model", "perceptron"),
    ("steps", "1000"),
    ("seed", "1"),
    ("rate", "0.05"),
    ("checkpoint", ""),
    ("every", "250"),
    // Set by the program itself for each rank.
    ("service", ""),
    ("rank", "0"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut given: BTreeMap<&str, String> =
        DEFAULTS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let known: Vec<&str> = DEFAULTS[..7].iter().map(|(name, _)| *name).collect();
        let place = given.get_mut(name).ok_or(format!("{argument}: write NAME=VALUE; names: {known:?}"))?;
        value.clone_into(place);
    }
    if given["service"].is_empty() { start(&given) } else { rank(&given) }
}

/// Starts the service and the ranks, and waits for them; if one fails, the others end.
fn start(given: &BTreeMap<&str, String>) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("net.sock");
    let host = Host { name: "here".to_owned(), ..Host::default() };
    let service = Collectives::start(ServiceOptions::new(socket.clone(), host))?;
    let ranks: u32 = given["ranks"].parse().map_err(|_| "ranks: a whole number is expected")?;
    let mut children: Vec<Child> = Vec::new();
    let mut result = Ok(());
    for rank in 0..ranks {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args().skip(1)).arg(format!("rank={rank}"));
        command.arg(format!("service={}", socket.display()));
        match command.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                result = Err(format!("rank {rank} cannot be started: {error}"));
                break;
            }
        }
    }
    for (rank, child) in children.iter_mut().enumerate() {
        if result.is_err() {
            let _ = child.kill(); // It may have ended by itself.
        }
        let status = child.wait()?;
        if !status.success() && result.is_ok() {
            result = Err(format!("rank {rank} ended: {status}"));
        }
    }
    drop(service);
    Ok(result?)
}

fn rank(given: &BTreeMap<&str, String>) -> Result<(), Box<dyn Error>> {
    let options =
        Options { seed: given["seed"].parse()?, rate: given["rate"].parse()?, ..Options::default() };
    let model = match given["model"].as_str() {
        "perceptron" => Model::Perceptron { sizes: vec![2, 32, 32, 3] },
        "mixture" => Model::Mixture { inputs: 2, hidden: 12, experts: 4, classes: 3, balance: 0.05 },
        other => return Err(format!("model={other}: write perceptron or mixture").into()),
    };
    let (steps, every): (u64, u64) = (given["steps"].parse()?, given["every"].parse()?);
    let join = JoinOptions {
        service: PathBuf::from(&given["service"]),
        ..JoinOptions::new("training", given["rank"].parse()?, given["ranks"].parse()?)
    };
    let mut exchange = Ranks::new(Group::join(&join)?);
    let is_first = exchange.share().0 == 0;
    let mut trainer = Trainer::new(model, options, spirals(3, 300, options.seed))?;
    let checkpoint = Some(Path::new(&given["checkpoint"])).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = checkpoint.filter(|path| path.exists()) {
        trainer.load(path)?;
        if is_first {
            println!("continues after step {}", trainer.steps());
        }
    }
    let (mut sum, mut count) = (0.0, 0u32);
    while trainer.steps() < steps {
        sum += trainer.step(&mut exchange)?;
        count += 1;
        if is_first && (trainer.steps().is_multiple_of(every.max(1)) || trainer.steps() == steps) {
            println!("step {:>6}: loss {:.4}", trainer.steps(), sum / f64::from(count));
            (sum, count) = (0.0, 0);
            if let Some(path) = checkpoint {
                trainer.save(path)?;
            }
        }
    }
    if is_first {
        let evaluation = trainer.evaluate();
        let bits = trainer.parameters().iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        println!(
            "accuracy {:.1} %, examples by expert: {:.2?}",
            100.0 * evaluation.accuracy,
            evaluation.experts
        );
        println!("digest of the parameters: {:08x}", crc32c::crc32c(&bits));
    }
    Ok(())
}
