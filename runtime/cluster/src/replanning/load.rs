//! For which load a run is planned: that of sources which give what comes, with room for more, in steps.
//!
//! The largest load of the last [`MEMORY`] seconds counts: a plan grows at once and shrinks when a burst is over. It is planned for
//! [`ROOM`] times as much, rounded up to a power of [`STEP`] times the rates of the workflow, so that a load that moves a little
//! leads to one plan and not to many. Whether the present plan holds is judged by the load of now, without room.
use super::Late;
use std::collections::{BTreeMap, VecDeque};
use tidemill_app::planning::Case;
use tidemill_optimizer::assemble::{Assembly, Level};
use tidemill_spec::plan::Plan;
use tidemill_spec::units::Rate;

/// Times the load that a plan is made for.
pub const ROOM: f64 = 1.15;
/// Factor between the loads that plans are made for.
pub const STEP: f64 = 1.2;
/// Seconds of which the largest load counts.
pub const MEMORY: f64 = 60.0;
/// The least part of the workflow's rates that is planned for, where no level says more.
pub const LEAST: f64 = 1.0 / 32.0;

/// The loads of the last seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loads {
    seen: VecDeque<(f64, f64)>,
}

/// A load, as a rate of the slowest source: records per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// As it is measured, or what the level on the rate asks for, where that is more.
    pub now: f64,
    /// For which a plan is looked for.
    pub planned: f64,
    /// That of the workflow.
    pub nominal: f64,
}

/// Whether the level on the rate is one that counts: then a plan carries that much, however little comes.
fn has_level(case: &Case) -> bool {
    let own = case.workflow.slo.rate.is_some() && !case.options.without.contains(&Level::Rate);
    case.options.rate.is_some() || own
}

/// What comes, as a factor on the rates of an assembly: of the sources that give what comes the one that gives most of it. None: there
/// is no such source.
fn factor(late: &Late, assembly: &Assembly) -> Option<f64> {
    let sources = &assembly.problem.sources;
    let outputs: BTreeMap<&str, f64> =
        sources.iter().map(|source| (source.id.as_str(), source.rate)).collect();
    let live = late.measured.sources.iter().filter(|(_, source)| source.is_live);
    let factors = live.filter_map(|(id, source)| {
        let nominal = outputs.get(id.as_str()).copied().filter(|rate| *rate > 0.0)?;
        Some(source.given / nominal)
    });
    factors.reduce(f64::max)
}

impl Loads {
    /// The load by what was measured at a time in seconds; none: the rates of the sources are those of the workflow.
    pub fn see(&mut self, late: &Late, case: &Case, assembly: &Assembly, now: f64) -> Option<Load> {
        let measured = factor(late, assembly)?;
        self.seen.push_back((now, measured));
        self.seen.retain(|(at, _)| now - at < MEMORY);
        let largest = self.seen.iter().map(|(_, factor)| *factor).fold(measured, f64::max);
        let least = if has_level(case) { 1.0 } else { LEAST };
        let step = ((largest * ROOM).max(1e-9).ln() / STEP.ln() - 1e-6).ceil();
        let nominal = assembly.rate;
        let rounded = |rate: f64| (rate * 1e6).round() / 1e6;
        Some(Load {
            now: rounded(nominal * measured.max(least)),
            planned: rounded(nominal * STEP.powf(step).max(least)),
            nominal,
        })
    }
}

impl Load {
    /// In words, beside what a plan says of itself.
    pub fn text(&self, plan: &Plan) -> String {
        let rate = |rate: f64| Rate((rate * 100.0).round() / 100.0);
        let range = plan.predicted.as_ref().and_then(|predicted| predicted.rate.as_ref()).map(|range| {
            let to = range.to.map_or_else(String::new, |to| format!(" and holds up to {}", rate(to.0)));
            format!(", the plan was made for {}{to}", rate(range.value.0))
        });
        format!("{} come{}", rate(self.now), range.unwrap_or_default())
    }
}
