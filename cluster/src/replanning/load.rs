//! Load that a run is planned for: the measured rate of open sources with headroom, in steps.
//!
//! The largest load of the last [`MEMORY`] seconds counts, so a plan grows at once and shrinks after a burst. It is multiplied by [`ROOM`]
//! and rounded up to a power of [`STEP`] times the workflow's rates, so that small changes keep the plan. Whether the present plan holds is
//! judged by the current load without headroom.
use super::Late;
use std::collections::{BTreeMap, VecDeque};
use tidemill_app::planning::Case;
use tidemill_optimizer::assemble::{Assembly, Level};
use tidemill_spec::plan::Plan;
use tidemill_spec::units::Rate;

/// Headroom factor.
pub const ROOM: f64 = 1.15;
/// Factor between the loads that plans are made for.
pub const STEP: f64 = 1.2;
/// Seconds over which the largest load counts.
pub const MEMORY: f64 = 60.0;
/// Smallest fraction of the workflow's rates to plan for, unless a level asks for more.
pub const LEAST: f64 = 1.0 / 32.0;

/// Recent loads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loads {
    seen: VecDeque<(f64, f64)>,
}

/// Load in records per second of the slowest source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Measured rate, or the rate level where that is higher.
    pub now: f64,
    /// Rate that the search plans for.
    pub planned: f64,
    /// Rate in the workflow.
    pub nominal: f64,
}

/// Whether a rate level applies. A plan then carries that rate even if less arrives.
fn has_level(case: &Case) -> bool {
    let own = case.workflow.slo.rate.is_some() && !case.options.without.contains(&Level::Rate);
    case.options.rate.is_some() || own
}

/// Measured rate divided by an assembly's, maximum over the open sources. `None` if there is none.
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
    /// Records the load at a time in seconds. `None` if the sources run at the workflow's rates.
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
    /// Describes the load, beside the range that a plan predicts.
    pub fn text(&self, plan: &Plan) -> String {
        let rate = |rate: f64| Rate((rate * 100.0).round() / 100.0);
        let range = plan.predicted.as_ref().and_then(|predicted| predicted.rate.as_ref()).map(|range| {
            let to = range.to.map_or_else(String::new, |to| format!(" and holds up to {}", rate(to.0)));
            format!(", the plan is for {}{to}", rate(range.value.0))
        });
        format!("{} come{}", rate(self.now), range.unwrap_or_default())
    }
}
