//! What a plan is expected to do: a short simulation while it is planned.
use super::options;
use crate::planning::Case;
use std::collections::BTreeMap;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::physical::worker_names;
use tidemill_optimizer::solution::Solution;
use tidemill_simulator::{Arrivals, Ended, Knowledge, Latency, Options, Times, simulate};
use tidemill_spec::plan::{Plan, PredictedValue};
use tidemill_spec::units::{Percent, TimeSpan};

/// Records at the slowest sink that make a 99th percentile stable: 50 of them lie above it.
const RECORDS: f64 = 5_000.0;
/// Seconds of plan time, at least and at most.
const SECONDS: (f64, f64) = (10.0, 600.0);
/// Events beyond which planning would no longer be quick: about a second of processor time in a development build.
const MOST_EVENTS: u64 = 500_000;

/// What a plan is expected to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expectation {
    /// Latencies at the slowest sink.
    Known {
        /// Its name.
        sink: String,
        /// Its latencies.
        latency: Latency,
        /// Seconds of plan time that were simulated.
        seconds: f64,
        /// Part of its time that each worker of the plan is busy, by id.
        utilization: BTreeMap<String, f64>,
    },
    /// Why nothing is expected.
    Unknown(String),
}

/// Simulates a plan shortly, with arrivals as even as its sources have them.
pub(crate) fn expectation(case: &Case, assembly: &Assembly, solution: &Solution, plan: &Plan) -> Expectation {
    let times = Times::measured(&case.inputs(), assembly, solution);
    let problem = &assembly.problem;
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
    let all = options(case, assembly, plan);
    let slowest =
        all.sinks.iter().map(|sink| problem.operators[sink.operator].rate).fold(f64::INFINITY, f64::min);
    let seconds = (RECORDS / slowest).clamp(SECONDS.0, SECONDS.1);
    let options =
        Options { seconds: 1.1 * seconds, warm_up: 0.1 * seconds, most_events: Some(MOST_EVENTS), ..all };
    match simulate(problem, solution, &times, &Arrivals::constant(), &options) {
        Ok(simulation) if simulation.ended == Ended::Complete => {
            let names = worker_names(assembly, solution);
            let busy = simulation.workers.iter().map(|worker| worker.utilization);
            let utilization = names.into_iter().zip(busy).collect();
            let sinks = simulation.sinks.into_iter();
            let worst = sinks.max_by(|a, b| a.latency.p99.total_cmp(&b.latency.p99));
            match worst.filter(|sink| sink.latency.count > 0) {
                Some(sink) => {
                    Expectation::Known { sink: sink.name, latency: sink.latency, seconds, utilization }
                }
                None => Expectation::Unknown("no record comes to a sink while it is simulated".to_owned()),
            }
        }
        Ok(simulation) => Expectation::Unknown(format!(
            "{} events are {} of the {} that were to be simulated; `tidemill simulate` takes longer",
            crate::figures::grouped(simulation.events),
            crate::figures::seconds(simulation.seconds),
            crate::figures::seconds(options.seconds)
        )),
        Err(error) => Expectation::Unknown(error.to_string()),
    }
}

impl Expectation {
    /// Writes it into the plan, where it is known.
    pub(crate) fn write_into(&self, plan: &mut Plan) {
        if let (Self::Known { latency, utilization, .. }, Some(predicted)) = (self, &mut plan.predicted) {
            // Full microseconds: more is not known.
            let span = |seconds: f64| TimeSpan((seconds * 1e6).round() as u64 * 1000);
            let (from, to) = latency.middle;
            predicted.p50 =
                Some(PredictedValue { value: span(latency.p50), from: Some(span(from)), to: Some(span(to)) });
            predicted.p99 = Some(PredictedValue { value: span(latency.p99), from: None, to: None });
            let percent = |part: &f64| Percent((part * 1e4).round() / 100.0);
            predicted.utilization =
                utilization.iter().map(|(id, part)| (id.clone(), percent(part))).collect();
        }
    }
}
