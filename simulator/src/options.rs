//! What a simulation may be told.
use tidemill_optimizer::problem::Problem;
use tidemill_spec::publication::Publication;

/// Settings of a simulation. All times are plan time.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Seconds for which the sources emit; what is on the way then is still followed to its end. Default: 600.
    pub seconds: f64,
    /// Seconds at the beginning that count for nothing. Default: 0.
    pub warm_up: f64,
    /// All random numbers follow from it. Default: 1.
    pub seed: u64,
    /// Where latencies are counted. Default: behind each operator that nothing follows, published with each epoch.
    pub sinks: Vec<Sink>,
    /// Whether all sources begin at 0, as in the engine. If not, each begins at a random time within its interval.
    /// Default: true.
    pub aligned: bool,
    /// Calls that a worker makes at once. Default: 1, because service times are measured on a worker that does nothing
    /// else.
    pub calls_at_once: u32,
    /// How many ticks a source may be ahead of its oldest record that is on the way; then it waits, and its records are
    /// late. Default: 40, two checkpoint intervals, as in the engine.
    pub lead_ticks: u32,
    /// Ticks from one checkpoint to the next: sinks that publish with them do so then. Default: 20, as in the engine.
    pub checkpoint_every: u32,
    /// The simulation ends early after so many events, messages of progress not counted. Default: none.
    pub most_events: Option<u64>,
    /// The simulation ends early when so many records are on the way. Default: 10 million, less than 1 GB.
    pub most_records: u64,
}

/// Where latencies are counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Sink {
    /// Name for reports.
    pub name: String,
    /// Operator of the problem that it stands behind.
    pub operator: usize,
    /// Records that come to it per record that the operator serves: 1 where each gives one.
    pub ratio: f64,
    /// When readers see what has come.
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
