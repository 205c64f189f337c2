//! What a simulation has found.
use crate::network::{Nanoseconds, is_join, nanoseconds};
use crate::statistics::Distributed;
use crate::world::World;
use tidemill_optimizer::cost::{Cost, CostError, cost};
use tidemill_optimizer::problem::{LatencyLimit, Problem, Producer};
use tidemill_optimizer::solution::Solution;
use tidemill_spec::publication::Publication;

/// A number of records that lies further from the expected one, in standard deviations, is not explained by chance.
const MOST_DEVIATIONS: f64 = 4.0;

/// What a simulation has found. All times are plan time, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Why it ended.
    pub ended: Ended,
    /// Seconds of the plan that were simulated: less than asked for if it ended early.
    pub seconds: f64,
    /// Seconds that count: without the warm-up.
    pub counted_seconds: f64,
    /// Events that were simulated.
    pub events: u64,
    /// By source of the problem.
    pub sources: Vec<SourceOutcome>,
    /// By sink of the options.
    pub sinks: Vec<SinkOutcome>,
    /// By hosting of the solution.
    pub stages: Vec<StageOutcome>,
    /// By worker of the solution.
    pub workers: Vec<WorkerOutcome>,
    /// Ways between locations that take time and that records took.
    pub links: Vec<LinkOutcome>,
    /// Cost at the rates that were simulated, by [`cost`].
    pub cost: Cost,
    /// Seconds in which at least one source was held back: records were due that the plan could not take.
    pub late_seconds: f64,
    /// Records that never met a partner in a join.
    pub unmatched: u64,
    /// Records on the way when it ended: 0 unless it ended early.
    pub on_the_way: u64,
    /// Most records that were on the way at once.
    pub most_on_the_way: u64,
}

/// Why a simulation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The time was over and all records had arrived.
    Complete,
    /// So many events as were allowed.
    Events,
    /// So many records on the way as were allowed.
    Records,
    /// Whoever watched it wanted it to.
    Interrupted,
}

/// A source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceOutcome {
    /// Records that it emitted.
    pub records: u64,
    /// Records that were due: more, if it was held back at the end.
    pub due: u64,
}

/// A sink.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkOutcome {
    /// Its name.
    pub name: String,
    /// Operator of the problem that it stands behind.
    pub operator: usize,
    /// Records that came, those after the sources ended included.
    pub records: u64,
    /// Records that came in the counted time.
    pub in_time: u64,
    /// Records per second of the counted time that came, beside those that were due: as many as are naturally on the way at its
    /// begin and its end do not count as missing.
    pub rate: f64,
    /// Records per second of the counted time that would have come if everything that was due had come at once.
    pub due_rate: f64,
    /// Standard deviation of the number of records by chance alone, as a part of those that were due: 0 where each record gives as
    /// many as any other, otherwise that of a Poisson number, `1 / sqrt(due)`.
    pub sampling: f64,
    /// From when a record was due at its source until readers of the sink can see it; of pairs, since the latest of its
    /// records was due. Of a sink that publishes at the end of the run there are none.
    pub latency: Latency,
    /// Until the record arrives at the sink, before it is published.
    pub arrival: Latency,
    /// Until readers can see a record, by route class, of those with records; classes from the 256th on are put together.
    pub classes: Vec<(usize, Latency)>,
    /// How well each limit of the problem that holds here was kept.
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
    /// 45th and 55th percentile: far apart where the latencies have two peaks and the median lies between them, as where half
    /// of the records wait for their tick.
    pub middle: (f64, f64),
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// How well a limit on latency was kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitOutcome {
    /// Percentile that is bounded, in percent.
    pub percentile: f64,
    /// The bound in seconds.
    pub limit: f64,
    /// The percentile in seconds; infinite for a sink that publishes at the end of the run, however long that is.
    pub seconds: f64,
    /// Share of the records that took longer than the bound.
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
    /// Records that it took.
    pub records: u64,
    /// Calls that it began.
    pub calls: u64,
    /// Records of these calls.
    pub called: u64,
    /// Records that waited to be served, on average over time.
    pub queue_mean: f64,
    /// Most records that waited.
    pub queue_max: u64,
    /// Mean seconds that a record waited to be served.
    pub waiting: f64,
    /// Mean seconds that a record waited for its epoch, and partners, to be complete.
    pub held: f64,
    /// Part of the time of its worker.
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
    /// Part of its time that it was busy.
    pub utilization: f64,
}

/// A way between two locations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOutcome {
    /// Sending location of the problem.
    pub from: usize,
    /// Receiving location.
    pub to: usize,
    /// Records that it took.
    pub records: u64,
    /// Their bytes.
    pub bytes: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Part of its bandwidth; none: that has no bound.
    pub utilization: Option<f64>,
    /// Longest that a record waited for those before it, in seconds.
    pub longest_wait: f64,
}

impl Simulation {
    /// The records per second that came, as a part of those that were due, at the sink where it is least. Where chance decides how
    /// many records an operator gives, those that were drawn are those that were due, unless that number is further from the
    /// expected one than chance explains (four standard deviations of a Poisson number, [`SinkOutcome::sampling`]).
    pub fn achieved(&self) -> f64 {
        let parts =
            self.sinks.iter().filter(|sink| sink.due_rate > 0.0).map(|sink| sink.rate / sink.due_rate);
        parts.fold(1.0, f64::min)
    }

    /// Whether it was too short to tell whether records come at the rate at which they are due: at some sink none came in the
    /// counted time, which may be because it ended before one could; none had to wait at a source.
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
        // What has begun counts up to its end, which a simulation that ended early has not seen.
        let most = if ended == Ended::Complete { f64::INFINITY } else { 1.0 };
        let part = |busy: u64| if end > from { (busy as f64 / (end - from) as f64).min(most) } else { 0.0 };
        let late_seconds = world.late_time() as f64 / 1e9;
        let mut sources = vec![SourceOutcome { records: 0, due: 0 }; problem.sources.len()];
        let arrivals = world.arrivals;
        // What was due in the counted time.
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
        // What was due over what comes on average: 1 without a trace, but for chance.
        let seconds = end as f64 / 1e9;
        let expected: f64 = problem.sources.iter().map(|source| source.rate * counted).sum();
        let load = if expected > 0.0 { all_due as f64 / expected } else { 0.0 };
        let sinks = world.options.sinks.iter().zip(&world.sinks).map(|(sink, counts)| {
            let rate = problem.operators[sink.operator].rate * sink.ratio;
            let due = rate * load * counted;
            // A record takes some time even where none waits. What was due so long before the begin comes in the counted time,
            // what was due so long before the end comes after it. Of latencies only what cannot be a queue counts: joins and
            // windows wait for the end of a tick.
            let natural = counts.arrival.at(50.0).min(counts.arrival.smallest() + 2.0 * world.tick_seconds());
            let before = |time: Nanoseconds| {
                arrivals.nominal_seconds(time.saturating_sub(nanoseconds(natural)), time) * rate
            };
            let sampling = match (is_drawn(problem, sink.operator) || !is_whole(sink.ratio)) && due > 0.0 {
                true => 1.0 / due.sqrt(),
                false => 0.0,
            };
            // As many records as were drawn are due: how many that is says nothing of the plan. A number that chance does not
            // explain does.
            let came = counts.arrival.count() as f64;
            let drawn = if missing < 1.0 { came / (1.0 - missing) } else { due };
            let is_chance = (drawn - due).abs() <= MOST_DEVIATIONS * sampling * due;
            // Of a sink that few records reach, none may have come.
            let may_be_few = came > 0.0 || !is_whole(sink.ratio);
            let due = if ended == Ended::Complete && may_be_few && is_chance { drawn } else { due };
            let to_come = due + before(from) - before(end).min(due);
            // Where everything may still be on the way, what the sources could not send is all that is known to be missing.
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

/// Whether chance decides how many records come behind an operator: somewhere before it a record gives one or more, or none.
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
