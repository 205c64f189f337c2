//! Results of a simulation.
use crate::network::{Nanoseconds, is_join, nanoseconds};
use crate::statistics::Distributed;
use crate::world::World;
use tidemill_optimizer::cost::{Cost, CostError, cost};
use tidemill_optimizer::problem::{LatencyLimit, Problem, Producer};
use tidemill_optimizer::solution::Solution;
use tidemill_spec::publication::Publication;

/// A number of records further from the expected one, in standard deviations, is not explained by chance.
const MOST_DEVIATIONS: f64 = 4.0;

/// Results of a simulation. All times are plan time, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Why it ended.
    pub ended: Ended,
    /// Simulated seconds of the plan: fewer than requested if it ended early.
    pub seconds: f64,
    /// Counted seconds, without the warm-up.
    pub counted_seconds: f64,
    /// Simulated events.
    pub events: u64,
    /// By source of the problem.
    pub sources: Vec<SourceOutcome>,
    /// By sink of the options.
    pub sinks: Vec<SinkOutcome>,
    /// By hosting of the solution.
    pub stages: Vec<StageOutcome>,
    /// By worker of the solution.
    pub workers: Vec<WorkerOutcome>,
    /// Connections between locations that take time and carried records.
    pub links: Vec<LinkOutcome>,
    /// Cost at the simulated rates, by [`cost`].
    pub cost: Cost,
    /// Seconds in which at least one source was held back: records were due that the plan could not take.
    pub late_seconds: f64,
    /// Records that never met a partner in a join.
    pub unmatched: u64,
    /// Records in flight at the end: 0 unless it ended early.
    pub on_the_way: u64,
    /// Most records in flight at once.
    pub most_on_the_way: u64,
}

/// Why a simulation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The time was over and all records had arrived.
    Complete,
    /// The limit on events.
    Events,
    /// The limit on records in flight.
    Records,
    /// The observer ended it.
    Interrupted,
}

/// A source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceOutcome {
    /// Records that it emitted.
    pub records: u64,
    /// Records that were due: more than emitted, if it was held back at the end.
    pub due: u64,
}

/// A sink.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkOutcome {
    /// Its name.
    pub name: String,
    /// Operator of the problem that feeds it.
    pub operator: usize,
    /// Received records, including those after the sources ended.
    pub records: u64,
    /// Records received in the counted time.
    pub in_time: u64,
    /// Received records per second of the counted time, relative to the due ones: records naturally in flight at its
    /// start and end do not count as missing.
    pub rate: f64,
    /// Records per second of the counted time that would have arrived if every due record had arrived at once.
    pub due_rate: f64,
    /// Standard deviation of the number of records by chance alone, as a share of those due: 0 where each record gives
    /// equally many, otherwise that of a Poisson number, `1 / sqrt(due)`.
    pub sampling: f64,
    /// From the time that a record was due at its source until readers of the sink can see it; for pairs, from the
    /// latest due time of its records. Empty for a sink that publishes at the end of the run.
    pub latency: Latency,
    /// Until the record arrives at the sink, before publication.
    pub arrival: Latency,
    /// Until readers can see a record, by route class, for classes with records; classes from the 256th on are merged.
    pub classes: Vec<(usize, Latency)>,
    /// Each latency limit of the problem that applies here, with its outcome.
    pub limits: Vec<LimitOutcome>,
}

/// A distribution of latencies, in seconds. Percentiles are within 0.1 % (by route class 1 %).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// Records.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 45th and 55th percentile: far apart where the latencies have two peaks and the median lies between them, for
    /// example where half of the records wait for their tick.
    pub middle: (f64, f64),
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// Outcome of a latency limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitOutcome {
    /// Percentile that is bounded, in percent.
    pub percentile: f64,
    /// The bound in seconds.
    pub limit: f64,
    /// The percentile in seconds; infinite for a sink that publishes at the end of the run.
    pub seconds: f64,
    /// Share of the records above the bound.
    pub over: f64,
}

impl LimitOutcome {
    /// Whether it was kept.
    pub fn is_kept(&self) -> bool {
        self.seconds <= self.limit
    }
}

/// A stage: one operator on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageOutcome {
    /// Records taken.
    pub records: u64,
    /// Calls started.
    pub calls: u64,
    /// Records of these calls.
    pub called: u64,
    /// Mean number of records waiting to be served, over time.
    pub queue_mean: f64,
    /// Most records waiting.
    pub queue_max: u64,
    /// Mean seconds that a record waited to be served.
    pub waiting: f64,
    /// Mean seconds that a record waited for its epoch, and partners, to be complete.
    pub held: f64,
    /// Share of the time of its worker.
    pub utilization: f64,
}

impl StageOutcome {
    /// Mean records of a call.
    pub fn batch(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.called as f64 / self.calls as f64 }
    }
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorkerOutcome {
    /// Busy share of its time.
    pub utilization: f64,
}

/// A connection between two locations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOutcome {
    /// Sending location of the problem.
    pub from: usize,
    /// Receiving location.
    pub to: usize,
    /// Records carried.
    pub records: u64,
    /// Their bytes.
    pub bytes: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Used share of its bandwidth; none: unlimited.
    pub utilization: Option<f64>,
    /// Longest wait of a record for earlier ones, in seconds.
    pub longest_wait: f64,
}

impl Simulation {
    /// Returns the rate of arriving records as a share of the due rate, at the worst sink. Where chance decides how
    /// many records an operator gives, the drawn number counts as due, unless it is further from the expected one than
    /// chance explains (four standard deviations of a Poisson number, [`SinkOutcome::sampling`]).
    pub fn achieved(&self) -> f64 {
        let parts =
            self.sinks.iter().filter(|sink| sink.due_rate > 0.0).map(|sink| sink.rate / sink.due_rate);
        parts.fold(1.0, f64::min)
    }

    /// Whether it was too short to judge the achieved rate: at some sink no record arrived in the counted time, which
    /// may be because it ended before one could, and none had to wait at a source.
    pub fn is_too_short(&self) -> bool {
        let waits = self.late_seconds > 0.0 || self.sources.iter().any(|source| source.due > source.records);
        let is_open = |sink: &SinkOutcome| {
            let comes_later = sink.records > 0 || self.on_the_way > 0;
            sink.due_rate > 0.0 && sink.in_time == 0 && comes_later
        };
        !waits && self.sinks.iter().any(is_open)
    }

    pub(crate) fn of(
        world: &mut World<'_>,
        ended: Ended,
        problem: &Problem,
        solution: &Solution,
    ) -> Result<Self, CostError> {
        let (from, to) = world.window;
        let end = match ended {
            Ended::Complete => to,
            _ => world.now.clamp(from, to),
        };
        let counted = (end - from) as f64 / 1e9;
        // A started call counts up to its end, which a simulation that ended early has not reached.
        let most = if ended == Ended::Complete { f64::INFINITY } else { 1.0 };
        let part = |busy: u64| if end > from { (busy as f64 / (end - from) as f64).min(most) } else { 0.0 };
        let late_seconds = world.late_time() as f64 / 1e9;
        let mut sources = vec![SourceOutcome { records: 0, due: 0 }; problem.sources.len()];
        let arrivals = world.arrivals;
        // Records due in the counted time.
        let mut all_due = 0;
        for group in &mut world.groups {
            for position in 0..group.sources.len() {
                let records = group.sources[position].number;
                let due = records + group.missed(position, arrivals, (from, end));
                all_due += due - group.sources[position].early.min(due);
                sources[group.sources[position].source] = SourceOutcome { records, due };
            }
        }
        let held_back: u64 = sources.iter().map(|source| source.due - source.records).sum();
        let missing = if all_due > 0 { (held_back as f64 / all_due as f64).min(1.0) } else { 0.0 };
        // Due records over the average: 1 without a trace, except for chance.
        let seconds = end as f64 / 1e9;
        let expected: f64 = problem.sources.iter().map(|source| source.rate * counted).sum();
        let load = if expected > 0.0 { all_due as f64 / expected } else { 0.0 };
        let sinks = world.options.sinks.iter().zip(&world.sinks).map(|(sink, counts)| {
            let rate = problem.operators[sink.operator].rate * sink.ratio;
            let due = rate * load * counted;
            // A record takes some time even without queues. Records due this long before the start arrive in the
            // counted time, those due this long before the end arrive after it. Only the part of latencies that cannot
            // be a queue counts: joins and windows wait for the end of a tick.
            let natural = counts.arrival.at(50.0).min(counts.arrival.smallest() + 2.0 * world.tick_seconds());
            let before = |time: Nanoseconds| {
                arrivals.nominal_seconds(time.saturating_sub(nanoseconds(natural)), time) * rate
            };
            let sampling = match (is_drawn(problem, sink.operator) || !is_whole(sink.ratio)) && due > 0.0 {
                true => 1.0 / due.sqrt(),
                false => 0.0,
            };
            // The drawn number of records is due: it says nothing about the plan, unless chance does not explain it.
            let came = counts.arrival.count() as f64;
            let drawn = if missing < 1.0 { came / (1.0 - missing) } else { due };
            let is_chance = (drawn - due).abs() <= MOST_DEVIATIONS * sampling * due;
            // A sink that few records reach may have received none.
            let may_be_few = came > 0.0 || !is_whole(sink.ratio);
            let due = if ended == Ended::Complete && may_be_few && is_chance { drawn } else { due };
            let to_come = due + before(from) - before(end).min(due);
            // Where every record may still be in flight, only those that the sources could not send are known to be
            // missing.
            let part = if to_come > 0.0 { counts.records as f64 / to_come } else { 1.0 - missing };
            let holds = |limit: &&LatencyLimit| limit.sink.is_none_or(|operator| operator == sink.operator);
            let at_end = sink.publication == Publication::AtEnd;
            let limits = problem.limits.latency.iter().filter(holds).map(|limit| LimitOutcome {
                percentile: limit.percentile,
                limit: limit.seconds,
                seconds: if at_end { f64::INFINITY } else { counts.visible.at(limit.percentile) },
                over: if at_end { 1.0 } else { counts.visible.above(limit.seconds) },
            });
            let classes = counts.by_class.iter().enumerate();
            SinkOutcome {
                name: sink.name.clone(),
                operator: sink.operator,
                records: counts.arrival.count(),
                in_time: counts.records,
                rate: rate * load * part,
                due_rate: rate * load,
                sampling,
                latency: latency(&counts.visible),
                arrival: latency(&counts.arrival),
                classes: classes.filter_map(|(class, of)| Some((class, latency(of.as_ref()?)))).collect(),
                limits: limits.collect(),
            }
        });
        let sinks = sinks.collect();
        let stages = world.stages.iter().map(|stage| {
            let counts = &stage.counts;
            StageOutcome {
                records: counts.taken,
                calls: counts.batches,
                called: counts.called,
                queue_mean: counts.queue.mean((from, end)),
                queue_max: counts.queue.largest,
                waiting: counts.waiting.mean(),
                held: counts.held.mean(),
                utilization: part(counts.busy) / f64::from(world.options.calls_at_once.max(1)),
            }
        });
        let stages = stages.collect();
        let calls = f64::from(world.options.calls_at_once.max(1));
        let workers = world.workers.iter();
        let workers =
            workers.map(|worker| WorkerOutcome { utilization: part(worker.busy) / calls }).collect();
        let links = world.network.links.iter().zip(&world.links).filter(|(_, link)| link.records > 0);
        let links = links.map(|(facts, link)| LinkOutcome {
            from: facts.from,
            to: facts.to,
            records: link.records,
            bytes: link.bytes,
            bytes_per_second: if counted > 0.0 { link.bytes / counted } else { 0.0 },
            utilization: facts.bytes_per_second.map(|_| part(link.busy)),
            longest_wait: link.longest_wait as f64 / 1e9,
        });
        let links = links.collect();
        let mut simulated = problem.clone();
        for (edge, sent) in simulated.edges.iter_mut().zip(&world.sent) {
            edge.rate = if counted > 0.0 { *sent as f64 / counted } else { 0.0 };
        }
        Ok(Self {
            ended,
            seconds,
            counted_seconds: counted,
            events: world.events,
            sources,
            sinks,
            stages,
            workers,
            links,
            cost: cost(&simulated, solution)?,
            late_seconds,
            unmatched: world.unmatched,
            on_the_way: world.on_the_way,
            most_on_the_way: world.most_on_the_way,
        })
    }
}

/// Whether each record gives equally many, without chance.
fn is_whole(ratio: f64) -> bool {
    (ratio - ratio.round()).abs() < 1e-9
}

/// Whether chance decides the number of records after an operator: somewhere before it a record gives a random number
/// of records.
fn is_drawn(problem: &Problem, operator: usize) -> bool {
    let mut arriving = 0.0;
    for edge in problem.inputs_of(operator) {
        let edge = &problem.edges[edge];
        arriving += edge.rate;
        let given = match edge.from {
            Producer::Source(source) => problem.sources[source].rate,
            Producer::Operator(before) if is_drawn(problem, before) => return true,
            Producer::Operator(before) => problem.operators[before].rate,
        };
        if given > 0.0 && !is_whole(edge.rate / given) {
            return true;
        }
    }
    !is_join(problem, operator) && arriving > 0.0 && !is_whole(problem.operators[operator].rate / arriving)
}

fn latency(counts: &Distributed) -> Latency {
    Latency {
        count: counts.count(),
        mean: counts.mean(),
        p50: counts.at(50.0),
        middle: (counts.at(45.0), counts.at(55.0)),
        p90: counts.at(90.0),
        p99: counts.at(99.0),
        max: counts.largest(),
    }
}
