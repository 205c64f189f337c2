//! Prints the odds that all experts survive, by planner and number of lost nodes, and what a migration moves.
//!
//! ```text
//! cargo run -p tidemill-replicas --example recovery_odds
//! cargo run -p tidemill-replicas --example recovery_odds -- nodes=8 slots=4 floor=2 loads=500,90,60,10 lost=4
//! cargo run -p tidemill-replicas --example recovery_odds -- layers=12 zipf=1.5 output=json
//! ```
//!
//! Loads are a Zipf distribution over `experts` unless `loads` gives them; with several `layers` each has the experts in another order.
//! "busiest" is the load of the busiest replica relative to the mean. A chance is that of all layers together, for as many lost nodes as
//! its column says, all sets of them equally likely.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use tidemill_random::Random;
use tidemill_replicas::{
    Mapping, Odds, Placement, PlacementError, Search, allocate, compact, eplb, load_ratio, migrate, mro,
    plan, spread, survival,
};

const DEFAULTS: [(&str, &str); 10] = [
    ("nodes", "10"),
    ("slots", "6"),
    ("experts", "16"),
    ("floor", "2"),
    ("zipf", "1.5"),
    ("loads", ""),
    ("layers", "1"),
    ("lost", "6"),
    ("seed", "1"),
    ("output", "text"),
];

type Baseline = fn(&[usize], usize, usize) -> Result<Placement, PlacementError>;

struct Row {
    name: &'static str,
    layers: Vec<Placement>,
    odds: Vec<Odds>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut given: BTreeMap<&str, String> =
        DEFAULTS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let known: Vec<&str> = DEFAULTS.iter().map(|(name, _)| *name).collect();
        let place = given.get_mut(name).ok_or(format!("{argument}: write NAME=VALUE; names: {known:?}"))?;
        value.clone_into(place);
    }
    let number = |name: &str| -> Result<usize, String> {
        given[name].parse().map_err(|_| format!("{name}={}: a whole number is expected", given[name]))
    };
    let (nodes, slots, floor) = (number("nodes")?, number("slots")?, number("floor")?);
    let (lost, seed) = (number("lost")?.min(nodes), number("seed")? as u64);
    let loads = loads(&given["loads"], &given["zipf"], number("experts")?, number("layers")?, seed)?;

    let mut rows = Vec::new();
    let placed = |place: &dyn Fn(&[u64]) -> Result<Placement, PlacementError>| {
        loads.iter().map(|loads| place(loads)).collect::<Result<Vec<Placement>, PlacementError>>()
    };
    let baselines: [(&str, Baseline); 3] = [("compact", compact), ("spread", spread), ("mro", mro)];
    rows.push(("eplb, no floor", placed(&|loads| eplb(loads, nodes, slots))?));
    for (name, place) in baselines {
        let layers =
            placed(&|loads| allocate(loads, nodes, slots, floor).and_then(|all| place(&all, nodes, slots)))?;
        rows.push((name, layers));
    }
    let search = Search { seed, ..Search::of(lost) };
    let chosen = plan(&loads, nodes, slots, floor, search)?.layers;
    rows.push(("plan", chosen.clone()));
    let mut table = Vec::new();
    for (name, layers) in rows {
        let odds = survival(&layers, lost)?;
        table.push(Row { name, layers, odds });
    }
    let moves = moves(&loads, &chosen, floor, lost, seed)?;
    if given["output"] == "json" {
        println!("{:#}", as_json(&loads, &table, &moves));
    } else {
        print(&loads, &table, &moves, lost);
    }
    Ok(())
}

fn loads(
    list: &str,
    zipf: &str,
    experts: usize,
    layers: usize,
    seed: u64,
) -> Result<Vec<Vec<u64>>, Box<dyn Error>> {
    let base: Vec<u64> = if list.is_empty() {
        let exponent: f64 = zipf.parse().map_err(|_| format!("zipf={zipf}: a number is expected"))?;
        (1..=experts).map(|rank| (1e6 / (rank as f64).powf(exponent)).round() as u64).collect()
    } else {
        let parsed: Result<_, _> = list.split(',').map(|load| load.trim().parse::<u64>()).collect();
        parsed.map_err(|error| format!("loads={list}: {error}; write whole numbers with commas"))?
    };
    let mut random = Random::of_seed(seed);
    let shuffled = |layer: usize| {
        let mut loads = base.clone();
        for place in (1..loads.len()).rev().filter(|_| layer > 0) {
            loads.swap(place, random.below(place + 1));
        }
        loads
    };
    Ok((0..layers).map(shuffled).collect())
}

/// For one lost node after another: transfers with the fewest, with a greedy and with the same places.
fn moves(
    loads: &[Vec<u64>],
    old: &[Placement],
    floor: usize,
    lost: usize,
    seed: u64,
) -> Result<Vec<[usize; 4]>, Box<dyn Error>> {
    let (nodes, slots) = (old[0].nodes().len(), old[0].slots());
    let mut moves = Vec::new();
    for count in 1..=lost {
        let left = nodes - count;
        let search = Search { seed, evaluations: 2_000, ..Search::of(lost.min(left)) };
        let Ok(new) = plan(loads, left, slots, floor, search) else { break };
        let kept: Vec<Option<usize>> = (count..nodes).map(Some).collect();
        let needed = |mapping| migrate(old, &kept, &new.layers, mapping);
        let fewest = needed(Mapping::Fewest)?;
        let greedy = needed(Mapping::Greedy)?.transfers.len();
        // Without a mapping each node takes the place of its number.
        let mut same = 0;
        for (old, new) in old.iter().zip(&new.layers) {
            for (node, held) in new.nodes().iter().enumerate() {
                let mut held = held.clone();
                held.dedup();
                same += held.iter().filter(|expert| !old.has(node + count, **expert)).count();
            }
        }
        moves.push([fewest.transfers.len(), greedy, same, fewest.lost().count()]);
    }
    Ok(moves)
}

fn ratio(loads: &[Vec<u64>], row: &Row) -> f64 {
    let of_layer = |(loads, layer): (&Vec<u64>, &Placement)| load_ratio(loads, &layer.replicas());
    loads.iter().zip(&row.layers).map(of_layer).fold(0.0, f64::max)
}

fn print(loads: &[Vec<u64>], table: &[Row], moves: &[[usize; 4]], lost: usize) {
    print!("{:<16}{:>8}", "", "busiest");
    (1..=lost).for_each(|lost| print!("{:>8}", format!("{lost} lost")));
    println!("   replicas of the first layer");
    for row in table {
        print!("{:<16}{:>8.2}", row.name, ratio(loads, row));
        row.odds[1..].iter().for_each(|odds| print!("{:>8.3}", odds.chance()));
        println!("   {:?}", row.layers[0].replicas());
    }
    println!("\ntransfers to the plan of the nodes that are left");
    println!("{:<16}{:>8}{:>8}{:>8}{:>16}", "", "fewest", "greedy", "same", "of a checkpoint");
    for (count, [fewest, greedy, same, lost]) in moves.iter().enumerate() {
        println!("{:<16}{fewest:>8}{greedy:>8}{same:>8}{lost:>16}", format!("{} lost", count + 1));
    }
}

fn as_json(loads: &[Vec<u64>], table: &[Row], moves: &[[usize; 4]]) -> Value {
    let rows: Vec<Value> = table
        .iter()
        .map(|row| {
            let chances: Vec<f64> = row.odds.iter().map(|odds| odds.chance()).collect();
            json!({"planner": row.name, "busiest": ratio(loads, row), "chances": chances, "layers": row.layers})
        })
        .collect();
    let moves: Vec<Value> = moves
        .iter()
        .enumerate()
        .map(|(count, [fewest, greedy, same, lost])| {
            json!({"lost": count + 1, "fewest": fewest, "greedy": greedy, "same": same, "of_a_checkpoint": lost})
        })
        .collect();
    json!({"loads": loads, "odds": rows, "transfers": moves})
}
