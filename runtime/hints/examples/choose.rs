//! Chooses from hints: reads JSON from standard input, and prints a ring for each root, and a placement for each exchange, as JSON.
//!
//! ```text
//! echo '{"racks": [0, 0, 1], "loads": [[5e6, 5e6, 0], [5e6, 4e6, 1], [5e6, 5e6, 0], [5e6, 5e6, 0], [5e6, 5e6, 0], [5e6, 5e6, 0],
//!   [5e6, 5e6, 0], [5e6, 5e6, 0], [5e6, 5e6, 0], [5e6, 5e6, 0]], "own": 1, "roots": [0], "exchanges": []}' \
//!   | cargo run --release -p tidemill-hints --example choose
//! ```
//!
//! `loads` are those of links as `Tree` numbers them, machines before racks and up before down: the rate, what is free of it, and how many
//! share it. `own` is the number of flows for which bandwidth is estimated. An exchange has `fixed`, `slots` and `transfers` (from, to, bytes).
use serde::{Deserialize, Serialize};
use std::error::Error;
use tidemill_hints::estimate::{Guarantee, Load, bandwidth};
use tidemill_hints::placement::{Exchange, Transfer, place};
use tidemill_hints::schedule::{Goal, ring, schedule};
use tidemill_hints::tree::Tree;

#[derive(Deserialize)]
struct Question {
    racks: Vec<usize>,
    loads: Vec<(f64, f64, f64)>,
    own: f64,
    roots: Vec<usize>,
    exchanges: Vec<Wanted>,
}

#[derive(Deserialize)]
struct Wanted {
    fixed: Vec<Option<usize>>,
    slots: Vec<usize>,
    transfers: Vec<(usize, usize, f64)>,
}

#[derive(Serialize)]
struct Answer {
    /// For each root: the ring, and the seconds of a byte of a broadcast and of an all-reduce over it.
    rings: Vec<(Vec<usize>, f64, f64)>,
    /// Seconds of a byte of an all-reduce by weighted trees.
    trees: f64,
    /// The machine of each task of each exchange.
    placements: Vec<Vec<usize>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let question: Question = serde_json::from_reader(std::io::stdin().lock())?;
    let tree = Tree::of(&question.racks);
    let estimate = |&(total, residual, sharers): &(f64, f64, f64)| {
        bandwidth(Load { total, residual, sharers }, question.own, Guarantee::None)
    };
    let rates: Vec<f64> = question.loads.iter().map(estimate).collect();
    let mut rings = Vec::new();
    for root in question.roots {
        let found = ring(&tree, &rates, root)?;
        rings.push((found.order, found.broadcast, found.all_reduce));
    }
    let mut placements = Vec::new();
    for Wanted { fixed, slots, transfers } in question.exchanges {
        let transfers = transfers.into_iter().map(|(from, to, bytes)| Transfer { from, to, bytes }).collect();
        placements.push(place(&tree, &rates, &Exchange { fixed, slots, transfers })?.machines);
    }
    let trees = schedule(&tree, &rates, Goal::AllReduce)?.time;
    println!("{}", serde_json::to_string(&Answer { rings, trees, placements })?);
    Ok(())
}
