//! Expected performance of a plan: a short simulation during planning.
use crate::figures::milliseconds;
use crate::planning::Case;
use crate::preparation::kinds;
use crate::slo::RATE_TOLERANCE;
use std::collections::BTreeMap;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::physical::{output_rates, worker_names};
use tidemill_optimizer::solution::Solution;
use tidemill_optimizer::summary::{WorkerLoad, workers};
use tidemill_simulator::{
    Arrivals, Ended, Knowledge, Latency, LimitOutcome, Options, Simulation, Sink, SinkOutcome, Times,
    simulate,
};
use tidemill_spec::plan::{Plan, PredictedValue};
use tidemill_spec::units::{Percent, TimeSpan};
use tidemill_spec::workflow::Workflow;

/// Records at the slowest sink that make a 99th percentile stable: 50 of them lie above it.
const RECORDS: f64 = 5_000.0;
/// Seconds of plan time, at least and at most.
const SECONDS: (f64, f64) = (10.0, 600.0);
/// Events beyond which planning would no longer be quick: about a second of processor time in a development build.
const MOST_EVENTS: u64 = 500_000;

/// Seed of a short simulation, unless several are requested.
pub const FIRST_SEED: u64 = 1;

/// A worker that is busy for more of its time has no time left.
const FULL: f64 = 0.99;

/// Expected performance of a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Expectation {
    /// Latencies at the slowest sink; of those that no window is before, where there are any.
    Known {
        /// Its name.
        sink: String,
        /// Its latencies.
        latency: Latency,
        /// Seconds of plan time that were simulated.
        seconds: f64,
        /// Part of its time that each worker of the plan is busy, by id.
        utilization: BTreeMap<String, f64>,
        /// The levels on latency, at each sink.
        levels: Vec<LimitOutcome>,
        /// Contradictions to the promises of the plan.
        contradictions: Vec<Contradiction>,
        /// Whether the engine's own time is in it: where the profile has it for all workers.
        with_engine: bool,
    },
    /// The reason why there is no expectation.
    Unknown(String),
}

/// An expectation that contradicts a promise of the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Contradiction {
    /// A worker is busy all the time: more than it carries comes to it.
    Saturated {
        /// Its id.
        worker: String,
        /// Part of its time that it is busy.
        expected: f64,
        /// The part by the figures of the plan.
        planned: f64,
    },
    /// Fewer records come than are due.
    Rate {
        /// Part of them that comes.
        achieved: f64,
    },
    /// More of the records are late than the level allows.
    Latency {
        /// Sink.
        sink: String,
        /// Percentile of the level, in percent.
        percentile: f64,
        /// Limit in seconds.
        limit: f64,
        /// Expected value, in seconds.
        expected: f64,
    },
}

impl Contradiction {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Self::Saturated { worker, expected, planned } => format!(
                "{worker} is {:.0} % busy in the simulation, {:.0} % by the plan: it cannot process its records in time",
                100.0 * expected,
                100.0 * planned
            ),
            Self::Rate { achieved } => {
                format!("{:.1} % of the due records arrive in the simulation", 100.0 * achieved)
            }
            Self::Latency { sink, expected, .. } if expected.is_infinite() => {
                format!("readers of {sink} see records when the run ends")
            }
            Self::Latency { sink, percentile, limit, expected } => format!(
                "p{percentile} at {sink} is {} in the simulation, the level is {}",
                milliseconds(1e3 * expected),
                milliseconds(1e3 * limit)
            ),
        }
    }
}

/// Returns the contradictions between a simulation and a plan.
fn contradictions(simulation: &Simulation, names: &[String], planned: &[WorkerLoad]) -> Vec<Contradiction> {
    let workers = names.iter().zip(&simulation.workers).zip(planned);
    let full = workers.filter(|((_, worker), _)| worker.utilization > FULL);
    let mut all: Vec<Contradiction> = full
        .map(|((name, worker), planned)| Contradiction::Saturated {
            worker: name.clone(),
            expected: worker.utilization,
            planned: planned.utilization,
        })
        .collect();
    let achieved = simulation.achieved();
    if achieved < 1.0 - RATE_TOLERANCE && !simulation.is_too_short() {
        all.push(Contradiction::Rate { achieved });
    }
    for sink in &simulation.sinks {
        let missed = sink.limits.iter().filter(|limit| !limit.is_kept());
        all.extend(missed.map(|limit| Contradiction::Latency {
            sink: sink.name.clone(),
            percentile: limit.percentile,
            limit: limit.limit,
            expected: limit.seconds,
        }));
    }
    all
}

/// Simulates a plan shortly, with arrivals as even as its sources have them. All random numbers follow from `seed`.
pub fn expectation(
    case: &Case,
    assembly: &Assembly,
    solution: &Solution,
    plan: &Plan,
    seed: u64,
) -> Expectation {
    let times = Times::measured(&case.inputs(), assembly, solution);
    let problem = &*assembly.problem.at(&solution.variants);
    let mut unknown: Vec<&str> = times
        .knowledge()
        .filter(|(_, known)| *known < Knowledge::Distribution)
        .map(|(hosting, _)| problem.operators[solution.hostings[hosting].operator].id.as_str())
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    if !unknown.is_empty() {
        return Expectation::Unknown(format!(
            "the profile has no distribution of service times of {}",
            unknown.join(", ")
        ));
    }
    let all = simulation_options(case, assembly, solution, plan);
    let slowest =
        all.sinks.iter().map(|sink| problem.operators[sink.operator].rate).fold(f64::INFINITY, f64::min);
    let seconds = (RECORDS / slowest).clamp(SECONDS.0, SECONDS.1);
    let (warm_up, most_events) = (0.1 * seconds, Some(MOST_EVENTS));
    let options = Options { seconds: seconds + warm_up, warm_up, seed, most_events, ..all };
    match simulate(problem, solution, &times, &Arrivals::constant(), &options) {
        Ok(simulation) if simulation.ended == Ended::Complete => {
            let names = worker_names(assembly, solution);
            let contradictions = contradictions(&simulation, &names, &workers(problem, solution));
            let busy = simulation.workers.iter().map(|worker| worker.utilization);
            let utilization = names.into_iter().zip(busy).collect();
            let came = simulation.sinks.iter().map(|sink| sink.arrival.count).max().unwrap_or(0);
            let levels = simulation.sinks.iter().flat_map(|sink| sink.limits.iter().copied()).collect();
            let sinks = simulation.sinks.into_iter();
            let rank =
                |sink: &SinkOutcome| (!waits_for_windows(&case.workflow, &sink.name), sink.latency.count > 0);
            let worst = sinks
                .max_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.latency.p99.total_cmp(&b.latency.p99)));
            match worst.filter(|sink| sink.latency.count > 0) {
                Some(sink) => {
                    let (sink, latency) = (sink.name, sink.latency);
                    let with_engine = times.knows_engine();
                    Expectation::Known {
                        sink,
                        latency,
                        seconds,
                        utilization,
                        levels,
                        contradictions,
                        with_engine,
                    }
                }
                None if came > 0 => {
                    Expectation::Unknown("readers of the sink see records when the run ends".to_owned())
                }
                None => Expectation::Unknown("no record reaches a sink in the simulation".to_owned()),
            }
        }
        Ok(simulation) => Expectation::Unknown(format!(
            "{} events cover {} of the {} to simulate; `tidemill simulate` continues for longer",
            crate::figures::grouped(simulation.events),
            crate::figures::seconds(simulation.seconds),
            crate::figures::seconds(options.seconds)
        )),
        Err(error) => Expectation::Unknown(error.to_string()),
    }
}

/// Whether the records of a sink wait for the end of a window, which is not simulated: what is expected there is too little.
fn waits_for_windows(workflow: &Workflow, sink: &str) -> bool {
    let sink = workflow.sinks.iter().find(|other| other.id.value == sink);
    let mut before: Vec<&str> = sink.into_iter().map(|sink| sink.input.from.value.as_str()).collect();
    // A loaded workflow has no cycles.
    while let Some(id) = before.pop() {
        let Some(operator) = workflow.operators.iter().find(|operator| operator.id.value == id) else {
            continue;
        };
        if kinds().operator_of(operator).has_windows {
            return true;
        }
        before.extend(operator.inputs.iter().map(|input| input.from.value.as_str()));
    }
    false
}

/// Returns the options common to all simulations of a plan: its sinks and the limit by which sources may be ahead.
pub fn simulation_options(case: &Case, assembly: &Assembly, solution: &Solution, plan: &Plan) -> Options {
    let problem = assembly.problem.at(&solution.variants);
    let given = output_rates(&case.inputs(), assembly, solution);
    let sinks = case.workflow.sinks.iter().filter_map(|sink| {
        let from = &sink.input.from.value;
        let operator = *assembly.hosts.get(from)?;
        let served = problem.operators[operator].rate;
        Some(Sink {
            name: sink.id.value.clone(),
            operator,
            ratio: given.get(from).filter(|_| served > 0.0).map_or(1.0, |given| given / served),
            publication: kinds().sink(&sink.kind).publication,
        })
    });
    let most = |ticks: u64| u32::try_from(ticks).unwrap_or(u32::MAX);
    Options {
        sinks: sinks.collect(),
        lead_ticks: most(plan.checkpoint_every.saturating_mul(2)),
        checkpoint_every: most(plan.checkpoint_every),
        ..Options::of(&assembly.problem)
    }
}

impl Expectation {
    /// The level on latency that is kept least, where there is one and something is expected.
    pub fn slowest_level(&self) -> Option<&LimitOutcome> {
        let Self::Known { levels, .. } = self else { return None };
        levels.iter().max_by(|a, b| (a.seconds / a.limit).total_cmp(&(b.seconds / b.limit)))
    }

    /// Returns the contradictions to the promises of the plan.
    pub fn contradictions(&self) -> &[Contradiction] {
        match self {
            Self::Known { contradictions, .. } => contradictions,
            Self::Unknown(_) => &[],
        }
    }

    /// Writes it into the plan, where it is known.
    pub fn write_into(&self, plan: &mut Plan) {
        if let (Self::Known { sink, latency, utilization, .. }, Some(predicted)) = (self, &mut plan.predicted)
        {
            predicted.latency_at = Some(sink.clone());
            // Full microseconds: more is not known.
            let span = |seconds: f64| TimeSpan((seconds * 1e6).round() as u64 * 1000);
            let (from, to) = latency.middle;
            let value = |seconds: f64| Some(PredictedValue { value: span(seconds), from: None, to: None });
            (predicted.mean, predicted.p90) = (value(latency.mean), value(latency.p90));
            predicted.p50 =
                Some(PredictedValue { value: span(latency.p50), from: Some(span(from)), to: Some(span(to)) });
            predicted.p99 = value(latency.p99);
            let percent = |part: &f64| Percent((part * 1e4).round() / 100.0);
            predicted.utilization =
                utilization.iter().map(|(id, part)| (id.clone(), percent(part))).collect();
        }
    }
}
