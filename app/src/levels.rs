//! The effective service levels and rate of a run: those of the workflow, or those of the plan.
//!
//! A plan file has the rate that it was made for, but no levels of accuracy and latency, so its run is judged by the
//! workflow's.
use crate::listener::Listener;
use crate::preparation::Prepared;
use serde::Serialize;
use tidemill_spec::plan::{LatencyBasis, Predicted};
use tidemill_spec::units::Rate;
use tidemill_spec::workflow::Slo;

/// Ticks below which a run's rate is no evidence: records come by ticks, so its start and end decide.
pub const SHORT_TICKS: u32 = 4;

/// A requested rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RateChoice {
    /// As fast as downstream takes it.
    Max,
    /// Records per second of each source.
    PerSecond(f64),
}

/// Origin of a service level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// `slo:` of the workflow.
    Workflow,
    /// The plan, which was made for it.
    Plan,
    /// `--rate` of a run with a plan.
    Option,
}

impl Origin {
    /// Returns its name.
    pub fn text(self) -> &'static str {
        match self {
            Origin::Workflow => "workflow",
            Origin::Plan => "plan",
            Origin::Option => "--rate",
        }
    }
}

/// Sets the rate of the sources, and reports if a plan was made for other levels than the workflow's; returns the effective
/// levels and the origin of the rate. The workflow itself is unchanged: profiles and plans know its digest.
pub fn settle(prepared: &mut Prepared, asked: Option<RateChoice>, listener: &dyn Listener) -> (Slo, Origin) {
    let predicted = prepared.program.plan.predicted.clone().filter(|_| prepared.is_planned);
    let planned = predicted.as_ref().and_then(|predicted| Some(predicted.rate.as_ref()?.value.0));
    let planned = planned.filter(|rate| *rate > 0.0);
    let written = prepared.workflow.slo.clone();
    let sources = &mut prepared.program.sources;
    let slowest = sources.values().filter_map(|source| source.rate_per_second).reduce(f64::min);
    match (asked, planned) {
        (Some(RateChoice::Max), _) => sources.values_mut().for_each(|source| source.rate_per_second = None),
        (Some(RateChoice::PerSecond(rate)), _) => {
            sources.values_mut().for_each(|source| source.rate_per_second = Some(rate));
        }
        // As in the planner: sources keep their ratios, those without a rate get the plan's.
        (None, Some(planned)) => {
            let factor = slowest.map_or(1.0, |slowest| planned / slowest);
            for source in sources.values_mut().filter(|source| !source.live && !source.gives_what_comes()) {
                source.rate_per_second =
                    Some(source.rate_per_second.map_or(planned, |own| scaled(own, factor)));
            }
        }
        (None, None) => {}
    }
    let (level, origin) = match (asked, planned) {
        (Some(RateChoice::PerSecond(rate)), Some(_)) => (Some(rate), Origin::Option),
        (_, Some(planned)) => (Some(planned), Origin::Plan),
        (_, None) => (None, Origin::Workflow),
    };
    let mut slo = written.clone();
    if let Some(level) = level {
        slo.rate = Some(Rate(level).into());
    }
    if let Some(predicted) = &predicted {
        let own = written.rate.as_ref().map(|rate| rate.0).or(slowest);
        told(predicted, own, &written, asked).iter().for_each(|line| listener.note(line));
    }
    (slo, origin)
}

/// Multiplies a rate by a factor that is often exactly 1, without a rounding error.
fn scaled(own: f64, factor: f64) -> f64 {
    let product = own * factor;
    let whole = product.round();
    if (product - whole).abs() < 1e-9 * whole.abs() { whole } else { product }
}

/// Describes differences between the plan's levels and the workflow's, a line each.
fn told(predicted: &Predicted, own: Option<f64>, written: &Slo, asked: Option<RateChoice>) -> Vec<String> {
    let mut lines = Vec::new();
    let planned = predicted.rate.as_ref().map(|rate| rate.value.0);
    let apart = |a: f64, b: f64| (a - b).abs() > 1e-9 * b.abs();
    match (asked, planned, own) {
        (Some(RateChoice::PerSecond(rate)), Some(planned), _) if apart(rate, planned) => lines.push(format!(
            "note: the rate of the plan is {}; `--rate` sets that of the run to {}, by which it is judged",
            Rate(planned),
            Rate(rate)
        )),
        (None, Some(planned), Some(own)) if apart(own, planned) => lines.push(format!(
            "note: the run has the rate of the plan, {}, and is judged by it; the workflow says {} (`--rate \
             {}` sets that)",
            Rate(planned),
            Rate(own),
            Rate(own)
        )),
        _ => {}
    }
    let rate_differs = !lines.is_empty();
    let mut others = Vec::new();
    if let Some(wanted) = &written.accuracy {
        match predicted.accuracy.as_ref().map(|accuracy| accuracy.value.0).filter(|said| *said < wanted.0) {
            Some(said) => lines.push(format!(
                "note: the plan expects an accuracy of {said} %, less than the {} % of the workflow: it was \
                 made for another level; the run is judged by the workflow's level",
                wanted.0
            )),
            None => others.push(format!("accuracy at least {} %", wanted.0)),
        }
    }
    if predicted.latency_basis == LatencyBasis::Expected {
        let p99 = predicted.p99.as_ref().map(|p99| format!(" (p99 {})", p99.value)).unwrap_or_default();
        lines.push(format!(
            "note: the plan keeps its level on latency in a simulation{p99}; no bound guarantees it"
        ));
    }
    if let Some(wanted) = &written.latency {
        let said = predicted.p99.as_ref().map(|p99| p99.value).filter(|_| wanted.percentile.0 >= 99.0);
        match said.filter(|said| said.0 > wanted.below.0) {
            Some(said) => lines.push(format!(
                "note: the plan expects a p99 of {said}, more than the {} of the workflow; the run is \
                 judged by the workflow's level",
                wanted.below.value
            )),
            None => others.push(format!("{} below {}", wanted.percentile.value, wanted.below.value)),
        }
    }
    if rate_differs && !others.is_empty() {
        lines.push(format!(
            "note: a plan does not contain its levels of accuracy and latency; the run is judged by the workflow's: {}",
            others.join(", ")
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::plan::PredictedValue;
    use tidemill_spec::units::Percent;

    fn predicted(rate: f64, accuracy: f64) -> Predicted {
        Predicted {
            rate: Some(PredictedValue { value: Rate(rate), from: None, to: None }),
            mean: None,
            p50: None,
            p90: None,
            p99: None,
            latency_at: None,
            latency_basis: Default::default(),
            cost: None,
            accuracy: Some(PredictedValue { value: Percent(accuracy), from: None, to: None }),
            utilization: Default::default(),
        }
    }

    #[test]
    fn what_differs_is_told() {
        let slo = Slo { accuracy: Some(Percent(85.0).into()), ..Slo::default() };
        assert!(told(&predicted(40.0, 86.5), Some(40.0), &slo, None).is_empty());
        let lines = told(&predicted(400.0, 86.5), Some(40.0), &slo, None);
        assert!(lines[0].contains("400/s") && lines[0].contains("the workflow says 40/s"), "{lines:?}");
        assert!(lines[1].contains("accuracy at least 85 %"), "{lines:?}");
        let lines = told(&predicted(40.0, 56.0), Some(40.0), &slo, None);
        assert!(lines[0].contains("accuracy of 56 %"), "{lines:?}");
        let lines = told(&predicted(40.0, 86.5), Some(40.0), &slo, Some(RateChoice::PerSecond(20.0)));
        assert!(
            lines[0].contains("the rate of the plan is 40/s") && lines[0].contains("to 20/s"),
            "{lines:?}"
        );
        let expected = Predicted { latency_basis: LatencyBasis::Expected, ..predicted(40.0, 86.5) };
        let lines = told(&expected, Some(40.0), &slo, None);
        assert!(lines.len() == 1 && lines[0].contains("no bound guarantees it"), "{lines:?}");
    }

    #[test]
    fn a_rate_is_the_plans_exactly() {
        assert_eq!(scaled(40.0, 47.0 / 40.0), 47.0);
        assert_eq!(scaled(0.3, 1.5), 0.3 * 1.5);
    }
}
