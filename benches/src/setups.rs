//! Compares the costs of the planners' plans: the four setups of the publication's evaluation (its section 5.6) with
//! all planners, for the published models and for our own. Plans are deterministic, so each is made once.
mod accuracies;
mod bars;
mod contest;
mod edge_cap;
mod inputs;
mod lines;
mod moved_workers;
mod network_prices;
mod oversubscribed;
mod own;
mod rates;
mod return_traffic;
mod totals;

pub(crate) use inputs::{models, written};

use anyhow::Context;
use clap::Args;
use contest::{ENTRANTS, Effort, Entrant, Row};
use inputs::{Family, Setup, Wanted};
use lines::Line;
use std::path::{Path, PathBuf};

/// Options of `setups`.
#[derive(Debug, Clone, Args)]
#[group(id = "setups")]
pub(crate) struct Options {
    /// Parts of `setups`: totals, rates, accuracies, oversubscribed, network-prices, edge-cap, moved-workers,
    /// return-traffic.
    #[arg(long, value_delimiter = ',')]
    parts: Vec<String>,
    /// Seconds by the clock after which `setups` stops one search; what it left unproven is in the result.
    #[arg(long, default_value_t = 10.0)]
    search: f64,
    /// The repository, for the inputs of `setups`.
    #[arg(long, default_value = ".")]
    repository: PathBuf,
}

/// Inputs of all parts.
struct Bench<'a> {
    families: Vec<Family>,
    effort: Effort,
    folder: &'a Path,
}

/// A part: its name, its question, and its function.
type Part = (&'static str, &'static str, fn(&Bench<'_>, &str) -> anyhow::Result<Vec<Row>>);

const PARTS: [Part; 8] = [
    ("totals", "What do the planners' plans cost in the four setups?", totals::run),
    ("rates", "What do plans of the medium setup cost at other rates?", rates::run),
    ("accuracies", "What do plans of the medium setup cost at other accuracies?", accuracies::run),
    (
        "oversubscribed",
        "What does the small workload cost with more machines than it needs?",
        oversubscribed::run,
    ),
    (
        "network-prices",
        "How does the price of traffic change plans of the medium setup?",
        network_prices::run,
    ),
    ("edge-cap", "What do plans cost where the edge has 10 Mbps in all?", edge_cap::run),
    ("moved-workers", "What do plans cost with other machines of the nine at the edge?", moved_workers::run),
    ("return-traffic", "What is traffic back to the edge worth?", return_traffic::run),
];

pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<()> {
    for part in &options.parts {
        anyhow::ensure!(
            PARTS.iter().any(|(name, _, _)| name == part),
            "setups has no part {part}; its parts are {}",
            PARTS.map(|(name, _, _)| name).join(", ")
        );
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let published = Family::published(&options.repository)?;
    let own = Family::own(&options.repository, &published)?;
    let families = vec![published, own];
    let bench = Bench { families, effort: Effort { longest: options.search }, folder };
    for (name, question, answer) in PARTS {
        if !options.parts.is_empty() && !options.parts.iter().any(|part| part == name) {
            continue;
        }
        let file = format!("setups-{name}");
        let rows = answer(&bench, &file)?;
        println!("{question}");
        for row in &rows {
            println!("  {}", row.line());
        }
        contest::write(folder, &file, question, bench.inputs(), &rows)?;
    }
    Ok(())
}

impl Bench<'_> {
    /// Plans each of `points` with all planners; returns the rows, and the lines of their costs.
    fn sweep(
        &self,
        entrants: &[Entrant],
        points: &[f64],
        row: impl Fn(Entrant, f64) -> anyhow::Result<Row>,
    ) -> anyhow::Result<(Vec<Row>, Vec<Line>)> {
        let (mut rows, mut lines) = (Vec::new(), Vec::new());
        for (colour, entrant) in entrants.iter().enumerate() {
            let mut line = Line { name: entrant.name.to_owned(), colour, dashed: false, points: Vec::new() };
            for &point in points {
                let row = row(*entrant, point)?;
                line.points.push((point, row.total));
                rows.push(row);
            }
            lines.push(line);
        }
        Ok((rows, lines))
    }

    /// Describes the inputs, for the results.
    fn inputs(&self) -> Vec<String> {
        let describe = |family: &Family| {
            let workloads = Setup::ALL.map(|setup| {
                let Wanted { rate, accuracy, .. } = family.wanted(setup);
                format!("{} {rate}/s at {accuracy} %", setup.name())
            });
            let (low, high) = family.accuracies;
            format!(
                "{}: {}; accuracies from {low} to {high} %; rates x {}; workers busy up to {}; {}",
                family.title,
                workloads.join(", "),
                family.rate_factor,
                family.max_utilization,
                family.unit
            )
        };
        let mut inputs: Vec<String> = self.families.iter().map(describe).collect();
        inputs.push(format!(
            "no traffic to the edge unless said; workers shared unless said; each search stopped after {} s",
            self.effort.longest
        ));
        inputs.extend(self.families.iter().flat_map(|family| family.notes.iter().cloned()));
        inputs
    }
}

/// Returns even steps between two values, both included.
fn steps(from: f64, to: f64, count: usize) -> Vec<f64> {
    let step = |at: usize| from + (to - from) * at as f64 / count as f64;
    // Removes the digits that come from the division.
    (0..=count).map(|at| (step(at) * 1e6).round() / 1e6).collect()
}

/// Returns all planners of the figures.
fn everyone() -> &'static [Entrant] {
    &ENTRANTS
}
