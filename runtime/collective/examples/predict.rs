//! Predicts how long operations of a group take on given links, as `tidemill net collective show` does. Reads JSON from standard input, and
//! prints JSON: the seconds of each operation.
//!
//! ```text
//! echo '{"hosts": [{"name": "a"}, {"name": "b"}], "ranks": [[0, "a"], [1, "b"]], "rates": {"a": 12.5e6, "b": 6.25e6}, "step": 0.0001,
//!   "strategy": {"epoch": 1, "members": [0, 1], "channels": [{"ring": [0, 1], "paths": [null, null]}], "piece": 65536, "small": 0},
//!   "operations": [["all-reduce", 4194304], ["broadcast", 4194304]]}' | cargo run -p tidemill-collective --example predict
//! ```
//!
//! `hosts` and `strategy` are as the service has them; a broadcast begins at the first member. `rates` are those of hosts, `rack_rates`
//! those out of racks without paths and into them, in bytes per second. `step` is the time of a message without bytes, in seconds.
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use tidemill_collective::cost::{Facts, Network, Totals, expected};
use tidemill_collective::element::Reduction;
use tidemill_collective::operation::Operation;
use tidemill_collective::strategy::Strategy;
use tidemill_collective::topology::{Group, Host};

#[derive(Deserialize)]
struct Task {
    hosts: Vec<Host>,
    ranks: Vec<(u32, String)>,
    rates: BTreeMap<String, f64>,
    #[serde(default)]
    rack_rates: BTreeMap<String, f64>,
    step: f64,
    strategy: Strategy,
    operations: Vec<(String, f64)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let task: Task = serde_json::from_reader(std::io::stdin().lock())?;
    task.strategy.check()?;
    let both = |rates: BTreeMap<String, f64>| {
        rates.into_iter().map(|(name, rate)| (name, [Some(rate); 2])).collect()
    };
    let totals = Totals { hosts: both(task.rates), racks: both(task.rack_rates) };
    let facts = Facts { step: task.step, ..Facts::default() };
    let network = Network { hosts: &task.hosts, totals: Some(&totals), facts, ..Network::default() };
    let group = Group { ranks: task.ranks, ..Group::default() };
    let mut seconds = Vec::with_capacity(task.operations.len());
    for (name, bytes) in &task.operations {
        let operation = match name.as_str() {
            "all-reduce" => Operation::AllReduce { reduction: Reduction::Sum },
            "reduce-scatter" => Operation::ReduceScatter { reduction: Reduction::Sum },
            "all-gather" => Operation::AllGather,
            "all-to-all" => Operation::AllToAll,
            "broadcast" => Operation::Broadcast { root: *task.strategy.members.first().ok_or("no members")? },
            other => return Err(format!("{other} is no operation of a group").into()),
        };
        seconds.push(expected(&network, &group, &task.strategy, operation, *bytes, &[]));
    }
    println!("{}", serde_json::to_string(&seconds)?);
    Ok(())
}
