//! Options of a simulation.
use tidemill_optimizer::problem::Problem;
use tidemill_spec::publication::Publication;

/// Settings of a simulation. All times are plan time.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Seconds for which the sources emit; records in flight then are still followed to their end. Default: 600.
    pub seconds: f64,
    /// Initial seconds that are not counted. Default: 0.
    pub warm_up: f64,
    /// Seed of all random numbers. Default: 1.
    pub seed: u64,
    /// Sinks that count latencies. Default: after each operator without a consumer, published with each epoch.
    pub sinks: Vec<Sink>,
    /// Whether all sources start at 0, as in the engine. If not, each starts at a random time within its interval.
    /// Default: true.
    pub aligned: bool,
    /// Concurrent calls of a worker. Default: 1, because service times are measured on an otherwise idle worker.
    pub calls_at_once: u32,
    /// Ticks that a source may be ahead of its oldest record in flight; beyond that it waits, and its records are late.
    /// Default: 40, two checkpoint intervals, as in the engine.
    pub lead_ticks: u32,
    /// Ticks from one checkpoint to the next, with which some sinks publish. Default: 20, as in the engine.
    pub checkpoint_every: u32,
    /// Limit on events, excluding progress messages, that ends the simulation early. Default: none.
    pub most_events: Option<u64>,
    /// Limit on records in flight that ends the simulation early. Default: 10 million, less than 1 GB.
    pub most_records: u64,
}

/// A sink that counts latencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Sink {
    /// Name in reports.
    pub name: String,
    /// Operator of the problem that feeds it.
    pub operator: usize,
    /// Records that it receives per record that the operator serves: 1 where each gives one.
    pub ratio: f64,
    /// When readers see its records.
    pub publication: Publication,
}

impl Options {
    /// The defaults for a problem.
    pub fn of(problem: &Problem) -> Self {
        let last = problem.last_operators().into_iter();
        let sink = |operator: usize| Sink {
            name: problem.operators[operator].id.clone(),
            operator,
            ratio: 1.0,
            publication: Publication::EachEpoch,
        };
        Self {
            seconds: 600.0,
            warm_up: 0.0,
            seed: 1,
            sinks: last.map(sink).collect(),
            aligned: true,
            calls_at_once: 1,
            lead_ticks: 40,
            checkpoint_every: 20,
            most_events: None,
            most_records: 10_000_000,
        }
    }
}
