//! Simulates plans by discrete events: hours or days of plan time in seconds, on this machine only. The results are
//! rates, latencies, queues, utilisation, traffic and cost.
//!
//! The model follows the engine: sources with intended emission times that wait when they are too far ahead, route
//! classes, adaptive batching, joins that wait for complete epochs before that of a pair, workers that serve one call
//! after the other, links that send records and then progress in order. Service times are drawn from measured
//! distributions.
//!
//! | module | holds |
//! |---|---|
//! | `arrivals` | arrival times: [`Arrivals`], [`Trace`]; levels of a changing load, and switches: [`Schedule`] |
//! | `times` | service times: [`Times`], [`Distribution`] |
//! | `options` | settings: [`Options`] |
//! | `network` | the prepared plan |
//! | `emission` | sources |
//! | `frontier` | epochs and frontiers |
//! | `world` | the simulation itself |
//! | `simulation` | the results: [`Simulation`] |
//!
//! ```
//! use tidemill_problems::{PublishedSetting, published_vqa_problem};
//! use tidemill_optimizer::planner::{Planner, SearchLimits};
//! use tidemill_optimizer::planners::exact::Exact;
//! use tidemill_simulator::{Arrivals, Options, Times, simulate};
//! let problem = published_vqa_problem(40.0, 56.0, PublishedSetting::ALL[0]);
//! let outcome = Exact.plan(&problem, &SearchLimits::default())?;
//! let solution = outcome.solution.ok_or("no plan")?;
//! let times = Times::of_modes(&problem, &solution);
//! let options = Options { seconds: 30.0, ..Options::of(&problem) };
//! let simulation = simulate(&problem, &solution, &times, &Arrivals::constant(), &options)?;
//! assert!((simulation.sinks[0].rate - 40.0).abs() < 1.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod arrivals;
mod calendar;
mod emission;
mod frontier;
mod network;
mod options;
mod simulation;
mod statistics;
mod times;
mod world;

pub use arrivals::{
    Arrivals, Division, LevelUse, Levels, LoadBin, Price, Schedule, Spacing, Spell, Switching, Trace,
    TraceError, cheapest_levels, coarsened, divisions, histogram,
};
pub use options::{Options, Sink};
pub use simulation::{
    Ended, Latency, LimitOutcome, LinkOutcome, Simulation, SinkOutcome, SourceOutcome, StageOutcome,
    WorkerOutcome,
};
pub use times::{Distribution, Knowledge, Quantiles, ServiceTimes, Times};

use network::Network;
use tidemill_optimizer::cost::CostError;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Solution;
use world::World;

/// Events and emitted records between two calls of the observer.
const WORK_BETWEEN_LOOKS: u64 = 1 << 15;

/// Why a plan cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// The plan does not fit the problem, or sends records without a route.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// A position out of range.
    #[error("{0} does not fit the problem")]
    Position(&'static str),
    /// A source whose rate is not above 0.
    #[error("a source has no rate")]
    Rate,
    /// A simulated time that is not above 0.
    #[error("the simulated time is not above 0")]
    Time,
}

/// Progress of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Plan time so far, in seconds.
    pub seconds: f64,
    /// Total plan time, in seconds.
    pub of: f64,
    /// Events so far.
    pub events: u64,
}

/// Simulates a plan to its end, or to the limits of the options.
///
/// # Errors
/// A solution that does not fit the problem.
pub fn simulate(
    problem: &Problem,
    solution: &Solution,
    times: &Times,
    arrivals: &Arrivals,
    options: &Options,
) -> Result<Simulation, SimulationError> {
    simulate_watched(problem, solution, times, arrivals, options, &mut |_| true)
}

/// Simulates a plan. Calls `watch` every few ten thousand events and records; `false` ends the simulation, and the
/// result covers the time so far.
///
/// # Errors
/// A solution that does not fit the problem.
pub fn simulate_watched(
    problem: &Problem,
    solution: &Solution,
    times: &Times,
    arrivals: &Arrivals,
    options: &Options,
    watch: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Simulation, SimulationError> {
    if !(options.seconds > 0.0 && options.seconds.is_finite()) {
        return Err(SimulationError::Time);
    }
    if solution.variants.len() != problem.operators.len() {
        return Err(SimulationError::Position("the list of variants"));
    }
    let problem = &*problem.at(&solution.variants);
    let network = Network::new(problem, solution, times, options)?;
    let mut world = World::new(problem, solution, &network, arrivals, options);
    let mut look_at = 0;
    let ended = loop {
        if world.work >= look_at {
            look_at = world.work + WORK_BETWEEN_LOOKS;
            let seconds = (world.now as f64 / 1e9).min(options.seconds);
            if !watch(&Progress { seconds, of: options.seconds, events: world.events }) {
                break Ended::Interrupted;
            }
        }
        if options.most_events.is_some_and(|most| world.events >= most) {
            break Ended::Events;
        }
        if world.on_the_way >= options.most_records {
            break Ended::Records;
        }
        if !world.step() {
            break Ended::Complete;
        }
    };
    Ok(Simulation::of(&mut world, ended, problem, solution)?)
}
