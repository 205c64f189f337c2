//! The cost of a strategy for a day, and the records that miss their levels.
use super::day::Workload;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::solution::Solution;
use tidemill_simulator::{Arrivals, Options, Sink, Spacing, Spell, Times, Trace, simulate};
use tidemill_spec::publication::Publication;

/// A strategy to serve a day.
pub(super) struct DayStrategy {
    pub(super) name: String,
    pub(super) levels: Vec<Level>,
    pub(super) spells: Vec<Spell>,
    pub(super) switches: f64,
}

/// A plan in use.
pub(super) struct Level {
    /// The largest factor that it was planned for.
    pub(super) top: f64,
    /// The factor at which a worker is as busy as allowed, or a link is full.
    pub(super) carries: f64,
    /// $/h.
    pub(super) compute: f64,
    /// $/h at `top`.
    pub(super) network: f64,
    pub(super) accuracy: Option<f64>,
    pub(super) lead_ticks: u32,
    pub(super) assembly: Assembly,
    pub(super) solution: Solution,
}

/// The outcome of a strategy. Shares are of all records of the day.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Outcome {
    /// $ of the day.
    pub(super) cost: f64,
    /// Share turned away at the source, beyond the plan's capacity.
    pub(super) shed: f64,
    /// Share answered later than the latency level allows, or not at all.
    pub(super) late: f64,
    /// Share answered in time, with less accuracy than the level.
    pub(super) below: f64,
    /// Mean accuracy of the answers in time, in percent.
    pub(super) accuracy: f64,
}

impl Outcome {
    /// Share of records that miss a level.
    pub(super) fn missed(&self) -> f64 {
        self.shed + self.late + self.below
    }
}

impl DayStrategy {
    /// Returns the $ of the day: workers from switch to switch, and traffic of the served records.
    pub(super) fn cost(&self, trace: &Trace) -> f64 {
        let each = self.spells.iter().map(|spell| {
            let level = &self.levels[spell.level];
            let served: f64 =
                clipped(trace, spell).map(|(from, to, factor)| (to - from) * factor.min(level.carries)).sum();
            level.compute * (spell.end - spell.begin) / 3600.0 + level.network * served / level.top / 3600.0
        });
        each.sum()
    }
}

/// Clips the trace to a spell.
fn clipped<'a>(trace: &'a Trace, spell: &'a Spell) -> impl Iterator<Item = (f64, f64, f64)> + 'a {
    let parts = trace.parts().map(|(from, to, factor)| (from.max(spell.begin), to.min(spell.end), factor));
    parts.filter(|(from, to, _)| to > from)
}

/// Simulates every spell with its plan and Poisson arrivals; load beyond the plan's capacity is turned away at the
/// source. A switch takes effect at once; the old plan serves the records in flight.
pub(super) fn judge(workload: &Workload, trace: &Trace, way: &DayStrategy) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome { cost: way.cost(trace), ..Outcome::default() };
    let (mut due, mut good) = (0.0, 0.0);
    for (index, spell) in way.spells.iter().enumerate() {
        let level = &way.levels[spell.level];
        let problem = &level.assembly.problem;
        let length = spell.end - spell.begin;
        let mut parts = Vec::new();
        for (from, to, factor) in clipped(trace, spell) {
            let served = factor.min(level.carries);
            outcome.shed += (factor - served) * (to - from) * workload.rate;
            parts.push((from - spell.begin, served / level.top));
        }
        // One more part, so that the spell ends before the trace repeats.
        parts.push((length, 1.0));
        let times = Times::measured(&workload.inputs(), &level.assembly, &level.solution);
        let arrivals = Arrivals { spacing: Spacing::Poisson, trace: Some(Trace::new(parts)?) };
        // Results go to text files.
        let to_files = |sink: Sink| Sink { publication: Publication::EachEpoch, ..sink };
        let standard = Options::of(problem);
        let options = Options {
            sinks: standard.sinks.iter().cloned().map(to_files).collect(),
            checkpoint_every: (level.lead_ticks / 2).max(1),
            seconds: length,
            seed: index as u64 + 1,
            lead_ticks: level.lead_ticks,
            ..standard
        };
        let simulation = simulate(problem, &level.solution, &times, &arrivals, &options)?;
        let records = simulation.sources.iter().map(|source| source.due as f64).fold(f64::INFINITY, f64::min);
        let sink = simulation.sinks.iter().min_by(|a, b| a.records.cmp(&b.records));
        let in_time = sink.map_or(0.0, |sink| {
            let over = sink.limits.iter().map(|limit| limit.over).fold(0.0, f64::max);
            sink.records as f64 * (1.0 - over)
        });
        due += records;
        outcome.late += (records - in_time).max(0.0);
        let accuracy = level.accuracy.unwrap_or(0.0);
        outcome.accuracy += accuracy * in_time;
        good += in_time;
        if accuracy < workload.accuracy - 1e-9 {
            outcome.below += in_time;
        }
    }
    let all = due + outcome.shed;
    outcome.shed /= all;
    outcome.late /= all;
    outcome.below /= all;
    outcome.accuracy /= good.max(1.0);
    Ok(outcome)
}
