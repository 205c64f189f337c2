//! Dilation of a run, if this machine is too slow for real time.
use super::speeds::{Basis, StageSpeed};
use crate::figures::milliseconds;
use std::str::FromStr;
use tidemill_engine::Program;

/// Processor time of sources, joins, channels and sinks, as a share of that of the models.
const ENGINE_SHARE: f64 = 0.25;
/// Share of the processors that may be needed: the rest is for bursts.
const HEADROOM: f64 = 0.7;
/// A call must end here some time before its end on a faster worker.
const CALL_HEADROOM: f64 = 1.25;
/// Largest factor that can be requested.
const MOST: f64 = 1000.0;

/// Requested dilation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RequestedDilation {
    /// The least that this machine needs.
    #[default]
    Auto,
    /// This factor.
    Factor(f64),
}

impl FromStr for RequestedDilation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let factor: f64 = text
            .parse()
            .map_err(|_| format!("`{text}` is not a factor; write a number such as `2`, or `auto`"))?;
        match factor > 0.0 && factor <= MOST {
            true => Ok(Self::Factor(factor)),
            false => {
                Err(format!("a factor must be above 0 and at most {MOST}; with 2 a run takes twice as long"))
            }
        }
    }
}

/// Dilation of a run, with its reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Dilation {
    /// Real seconds per plan second.
    pub factor: f64,
    /// Whether it was computed.
    pub is_auto: bool,
    /// Processors that the plan needs in real time, if its rates are known.
    pub processors: Option<f64>,
    /// Reason why a computed factor is not 1.
    pub reason: Option<String>,
}

impl Dilation {
    /// Describes it.
    pub fn told(&self, cores: usize) -> String {
        let needs = match self.processors {
            Some(processors) => {
                format!("in real time the plan needs about {processors:.2} of {cores} processors here")
            }
            None => "the plan's need of processors is not known".to_owned(),
        };
        match (self.factor == 1.0, self.is_auto) {
            (true, _) => format!("in real time ({needs})"),
            (false, true) => {
                let reason =
                    self.reason.as_ref().map(|reason| format!(", because {reason}")).unwrap_or_default();
                format!("{} times slower than real time{reason} ({needs})", self.factor)
            }
            (false, false) => format!("{} times slower than real time, as requested ({needs})", self.factor),
        }
    }
}

/// Needs of a plan on this machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Need {
    /// Processor seconds per plan second.
    processors: Option<f64>,
    /// Smallest ratio of a call's permitted time to its time here.
    least_ratio: f64,
    /// Description of that call.
    tightest: Option<String>,
    /// The workers, if the rates are known.
    workers: Vec<Load>,
}

/// Load of a worker in real time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    /// Share of the time in calls.
    busy: f64,
    /// Ratio of a call's permitted time to its time here alone.
    ratio: f64,
}

impl Need {
    /// Computes the needs from the rates at which records reach the stages.
    pub(super) fn of(program: &Program, speeds: &[StageSpeed]) -> Self {
        let least_ratio = speeds.iter().flat_map(|speed| &speed.ratios).copied().fold(1.0, f64::min);
        let tightest = tightest(speeds);
        let closed = program.sources.values().any(|source| source.rate_per_second.is_none());
        let processors = match closed {
            true => Some(saturated(speeds)),
            false => speeds.iter().map(|speed| need(program, speed)).sum(),
        };
        let workers = loads(program, speeds, closed).unwrap_or_default();
        let processors = processors.map(|models: f64| models * (1.0 + ENGINE_SHARE));
        Self { processors, least_ratio, tightest, workers }
    }
}

/// Returns the workers' loads; `None` if a rate is unknown.
fn loads(program: &Program, speeds: &[StageSpeed], closed: bool) -> Option<Vec<Load>> {
    let mut workers: Vec<(&str, Load)> = Vec::new();
    for speed in speeds {
        let ratio = match speed.basis {
            _ if speed.device.is_some() => speed.full_ratio(),
            Basis::Quota(share) => 1.0 / share.max(1e-9),
            _ => speed.full_ratio() / speed.share.unwrap_or(1.0),
        };
        let busy = if closed { 1.0 } else { need(program, speed)? * ratio };
        match workers.iter_mut().find(|(worker, _)| *worker == computes(speed)) {
            Some((_, load)) => {
                load.busy = (load.busy + busy).min(1.0);
                load.ratio = load.ratio.min(ratio);
            }
            None => workers.push((computes(speed), Load { busy: busy.min(1.0), ratio })),
        }
    }
    Some(workers.into_iter().map(|(_, load)| load).collect())
}

/// The worker or device that computes a stage's model.
fn computes(speed: &StageSpeed) -> &str {
    speed.device_id().unwrap_or(&speed.worker)
}

/// Returns the least factor, in tenths, with which calls end in time although calls of other workers compute meanwhile. A
/// processor shared by several calls slows each down by their number.
///
/// Average needs are not enough: of three workers that are busy half of the time, all three compute at once in an eighth of
/// it, and one late call in a hundred is one too many. So the number of simultaneous calls is that of nearly all of the
/// time (two standard deviations above the mean).
fn by_concurrency(workers: &[Load], cores: usize) -> f64 {
    let keeps_up = |factor: f64| {
        let computing = |load: &Load| (load.busy / (load.ratio * factor)).min(1.0);
        let all: f64 = workers.iter().map(computing).sum();
        workers.iter().enumerate().all(|(index, own)| {
            let others = workers.iter().enumerate().filter(|(other, _)| *other != index);
            let others: Vec<f64> = others.map(|(_, load)| computing(load)).collect();
            let mean: f64 = others.iter().sum();
            let deviation = others.iter().map(|part| part * (1.0 - part)).sum::<f64>().sqrt();
            let at_once = 1.0 + (mean + 2.0 * deviation).min(others.len() as f64) + ENGINE_SHARE * all;
            let longer = at_once / cores.max(1) as f64;
            longer <= 1.0 || longer * CALL_HEADROOM <= own.ratio * factor
        })
    };
    let tenths = 10..=(MOST as u32 * 10);
    let mut factors = tenths.map(|tenths| f64::from(tenths) / 10.0);
    factors.find(|factor| keeps_up(*factor)).unwrap_or(MOST)
}

/// The call with the largest ratio of its time here to that on its worker.
fn tightest(speeds: &[StageSpeed]) -> Option<String> {
    let calls =
        speeds.iter().flat_map(|speed| speed.ratios.iter().zip(1_u32..).map(move |call| (speed, call)));
    let (speed, (ratio, records)) = calls.min_by(|a, b| a.1.0.total_cmp(b.1.0))?;
    let here = speed.here.as_ref()?.at(records);
    let of = if records == 1 { "1 record".to_owned() } else { format!("{records} records") };
    Some(format!(
        "a call of {} with {of} takes {} on this machine and {} on {}, and some time must remain",
        speed.stage,
        milliseconds(here * 1e3),
        milliseconds(here * ratio * 1e3),
        match speed.device_id() {
            Some(device) => format!("{} and {device}, links included", speed.worker),
            None => speed.worker.clone(),
        }
    ))
}

/// Processors needed by the calls of a stage.
fn need(program: &Program, speed: &StageSpeed) -> Option<f64> {
    let rate = stage_rate(program, &speed.stage)?;
    let records = speed.max_batch.max(1);
    // A dilated run has pauses between calls, even if workers of the plan would not.
    let call = speed.here.as_ref()?.at(records) + speed.after_pause.1;
    Some(rate * call / f64::from(records))
}

/// Records per second that reach a stage: those of its edges in the plan, scaled by the present rate of the sources, else
/// the stage's share of the slowest source's rate.
pub(super) fn stage_rate(program: &Program, stage: &str) -> Option<f64> {
    let slowest = program.sources.values().filter_map(|source| source.rate_per_second).reduce(f64::min);
    let plan = &program.plan;
    let into: Option<f64> = plan
        .edges
        .iter()
        .filter(|edge| edge.to == stage && edge.input == 0)
        .map(|edge| Some(edge.rate?.0))
        .sum();
    let planned = plan.predicted.as_ref().and_then(|predicted| Some(predicted.rate.as_ref()?.value.0));
    let scale = match (slowest, planned) {
        (Some(now), Some(planned)) if planned > 0.0 => now / planned,
        _ => 1.0,
    };
    let share = || Some(slowest? * plan.stages.iter().find(|known| known.id == stage)?.share);
    into.filter(|rate| *rate > 0.0).map(|rate| rate * scale).or_else(share)
}

/// Processors needed by workers that compute all the time.
fn saturated(speeds: &[StageSpeed]) -> f64 {
    let mut workers: Vec<(&str, f64)> = Vec::new();
    for speed in speeds {
        let busy = match speed.basis {
            _ if speed.device.is_some() => 1.0 / speed.full_ratio().max(1e-9),
            Basis::Quota(share) => share,
            _ => speed.share.unwrap_or(1.0) / speed.full_ratio().max(1e-9),
        };
        match workers.iter_mut().find(|(worker, _)| *worker == computes(speed)) {
            Some((_, most)) => *most = most.max(busy),
            None => workers.push((computes(speed), busy)),
        }
    }
    workers.iter().map(|(_, busy)| busy).sum()
}

/// Returns the requested factor, or the least that leaves headroom.
pub(super) fn choose(wanted: RequestedDilation, need: &Need, cores: usize) -> Dilation {
    let mut reason = None;
    let mut auto = || {
        let by_load = need.processors.unwrap_or(0.0) / (HEADROOM * cores.max(1) as f64);
        let by_call =
            if need.least_ratio < 1.0 / CALL_HEADROOM { CALL_HEADROOM / need.least_ratio } else { 1.0 };
        let by_concurrency = by_concurrency(&need.workers, cores);
        let factor = by_load.max(by_call).max(by_concurrency);
        reason = match factor > 1.0 {
            true if by_call >= factor => need.tightest.clone(),
            true if by_concurrency >= factor => Some(
                "calls of several workers compute at the same time here, and each must end in time"
                    .to_owned(),
            ),
            true => {
                Some(format!("only {:.0} % of the processors here are reliably available", HEADROOM * 100.0))
            }
            false => None,
        };
        up(factor).clamp(1.0, MOST)
    };
    let (factor, is_auto) = match wanted {
        RequestedDilation::Auto => (auto(), true),
        RequestedDilation::Factor(factor) => (factor, false),
    };
    Dilation { factor, is_auto, processors: need.processors, reason }
}

/// Rounded up to a tenth.
pub(super) fn up(factor: f64) -> f64 {
    ((factor * 10.0 - 1e-6).ceil() / 10.0).max(0.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_read() {
        assert_eq!("auto".parse(), Ok(RequestedDilation::Auto));
        assert_eq!("2.5".parse(), Ok(RequestedDilation::Factor(2.5)));
        assert!("0".parse::<RequestedDilation>().is_err() && "fast".parse::<RequestedDilation>().is_err());
        assert!("NaN".parse::<RequestedDilation>().is_err());
    }

    #[test]
    fn the_least_factor_leaves_headroom() {
        let factor = |processors, least_ratio, cores| {
            let need = Need { processors, least_ratio, tightest: None, workers: Vec::new() };
            choose(RequestedDilation::Auto, &need, cores).factor
        };
        assert_eq!(factor(Some(1.0), 1.0, 2), 1.0);
        assert_eq!(factor(Some(2.8), 1.0, 2), 2.0);
        assert_eq!(factor(Some(2.8), 1.0, 8), 1.0);
        assert_eq!(factor(Some(0.1), 0.25, 2), 5.0, "a worker four times as fast");
        assert_eq!(factor(None, 1.0, 2), 1.0);
        let need = Need { processors: Some(9.0), least_ratio: 1.0, tightest: None, workers: Vec::new() };
        let asked = choose(RequestedDilation::Factor(3.0), &need, 2);
        assert_eq!((asked.factor, asked.is_auto), (3.0, false));
    }

    #[test]
    fn calls_that_meet_need_a_larger_factor() {
        let of = |workers: &[(f64, f64)], cores| {
            let loads: Vec<Load> =
                workers.iter().map(|(busy, ratio)| Load { busy: *busy, ratio: *ratio }).collect();
            by_concurrency(&loads, cores)
        };
        assert_eq!(of(&[], 2), 1.0);
        assert_eq!(of(&[(1.0, 1.0)], 2), 1.0, "alone");
        assert_eq!(of(&[(0.9, 10.0); 2], 2), 1.0, "machines that are much slower");
        // Workers as fast as this machine, with all processors in use: some calls end too late.
        assert!((1.3..1.6).contains(&of(&[(0.3, 1.0); 2], 2)), "{}", of(&[(0.3, 1.0); 2], 2));
        assert!((2.3..3.0).contains(&of(&[(0.9, 1.0); 4], 2)), "{}", of(&[(0.9, 1.0); 4], 2));
        assert_eq!(of(&[(0.9, 1.0); 4], 16), 1.0);
        assert!(of(&[(0.9, 1.0); 4], 1) > of(&[(0.9, 1.0); 4], 2));
    }
}
