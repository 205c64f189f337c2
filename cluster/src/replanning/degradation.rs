//! Relaxes service levels in the user's order (`--degrade`) when no plan keeps all of them.
//!
//! Cheaper models are no degradation while the accuracy level is kept. A level is relaxed only after all before it have reached their
//! limits, and as little as possible. Each concession is reported as a miss with numbers. Levels that the user does not name are never
//! relaxed.
use super::decision::Miss;
use super::replanner::{Best, Search};
use tidemill_app::figures::milliseconds;
use tidemill_app::planning::Case;
use tidemill_app::service_level::LevelSetting;
use tidemill_optimizer::assemble::Level;
use tidemill_spec::units::{Percent, Percentile, Rate, TimeSpan};
use tidemill_spec::workflow::LatencySlo;

/// Bisection steps between a level and its limit.
const HALVINGS: usize = 3;

/// Requested levels.
#[derive(Debug, Clone, PartialEq)]
struct RequestedLevels {
    accuracy: Option<f64>,
    latency: Option<(f64, f64)>,
    rate: Option<f64>,
    /// Workers that may be lost at a time.
    survive: u32,
}

impl RequestedLevels {
    fn of(case: &Case) -> Option<Self> {
        let assembly = case.assemble().ok()?;
        let limits = &assembly.problem.limits;
        Some(Self {
            accuracy: limits.accuracy,
            latency: limits.latency.first().map(|limit| (limit.percentile, limit.seconds)),
            rate: Some(assembly.rate),
            survive: limits.survive,
        })
    }
}

/// The level that a setting concerns.
pub fn level_of(setting: &LevelSetting) -> Level {
    match setting {
        LevelSetting::Rate(_) => Level::Rate,
        LevelSetting::Accuracy(_) => Level::Accuracy,
        LevelSetting::Latency(_) => Level::Latency,
        LevelSetting::Survive(_) => Level::Survive,
    }
}

/// Checks an order.
///
/// # Errors
/// A level is listed twice, is not requested, or is not relaxed by its limit.
pub fn check(case: &Case, order: &[LevelSetting]) -> Result<(), String> {
    let Some(wanted) = RequestedLevels::of(case) else { return Ok(()) }; // planning reports a wrong level
    for (at, step) in order.iter().enumerate() {
        let level = level_of(step);
        if order[..at].iter().any(|other| level_of(other) == level) {
            return Err(format!(
                "`--degrade` names {level} twice: write each level once, in the order in which to relax them"
            ));
        }
        let no_level = || format!("`--degrade` relaxes {level}, but there is no level on it (`--slo`)");
        let (gives_way, of) = match step {
            LevelSetting::Rate(None) => {
                return Err(
                    "`--degrade rate=none` would carry nothing: write the least rate, `rate=10/s`".to_owned()
                );
            }
            LevelSetting::Rate(Some(to)) => {
                let of = wanted.rate.ok_or_else(no_level)?;
                (to.0 < of, format!("{}", Rate(of)))
            }
            LevelSetting::Accuracy(to) => {
                let of = wanted.accuracy.ok_or_else(no_level)?;
                (to.is_none_or(|to| to.0 < of), format!("{of} %"))
            }
            LevelSetting::Latency(to) => {
                let (_, of) = wanted.latency.ok_or_else(no_level)?;
                (to.as_ref().is_none_or(|to| to.below.0 as f64 / 1e9 > of), milliseconds(of * 1e3))
            }
            LevelSetting::Survive(_) if wanted.survive == 0 => return Err(no_level()),
            LevelSetting::Survive(to) => {
                (to.unwrap_or(0) < wanted.survive, format!("{} lost workers", wanted.survive))
            }
        };
        if !gives_way {
            return Err(format!("the limit of {level} in `--degrade` is not below the level, {of}"));
        }
    }
    Ok(())
}

/// A setting part of the distance from a level to its limit; `None` if there is nothing between.
fn between(step: &LevelSetting, wanted: &RequestedLevels, part: f64) -> Option<LevelSetting> {
    match step {
        LevelSetting::Accuracy(Some(to)) => {
            let from = wanted.accuracy?;
            Some(LevelSetting::Accuracy(Some(Percent(from + (to.0 - from) * part))))
        }
        LevelSetting::Latency(Some(to)) => {
            let (percentile, from) = wanted.latency?;
            let below = from + (to.below.0 as f64 / 1e9 - from) * part;
            let below = TimeSpan((below * 1e9).round() as u64);
            let percentile = Percentile(percentile);
            Some(LevelSetting::Latency(Some(LatencySlo {
                percentile: percentile.into(),
                below: below.into(),
            })))
        }
        // There is one plan for the admitted rate, not one for each load.
        LevelSetting::Rate(_)
        | LevelSetting::Accuracy(None)
        | LevelSetting::Latency(None)
        | LevelSetting::Survive(_) => None,
    }
}

/// The best plan with levels relaxed in this order, each as little as possible, and its misses. `None` if there is no such plan. The
/// options of the case are restored.
pub fn planned_with_less(
    case: &mut Case,
    order: &[LevelSetting],
    search: &mut dyn Search,
) -> Option<(Best, Vec<Miss>)> {
    let wanted = RequestedLevels::of(case)?;
    let original = case.options.clone();
    let mut found = None;
    for (at, step) in order.iter().enumerate() {
        let before = case.options.clone();
        step.set(&mut case.options);
        let Ok(best) = search.best(case, false) else { continue };
        let mut mildest = (best, step.clone());
        let (mut kept, mut given) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let middle = (kept + given) / 2.0;
            let Some(setting) = between(step, &wanted, middle) else { break };
            case.options.clone_from(&before);
            setting.set(&mut case.options);
            match search.best(case, false) {
                Ok(best) => (mildest, given) = ((best, setting), middle),
                Err(_) => kept = middle,
            }
        }
        let (best, last) = mildest;
        let settings = order[..at].iter().chain([&last]);
        let misses = settings.filter_map(|setting| missed(setting, &wanted, &best)).collect();
        found = Some((best, misses));
        break;
    }
    case.options = original;
    found
}

/// The plan's miss of a relaxed level.
fn missed(setting: &LevelSetting, wanted: &RequestedLevels, best: &Best) -> Option<Miss> {
    let miss = |level: Level, found: f64, text: String, by: f64| Miss {
        text,
        by: by.clamp(0.001, 1.0),
        found: Some((level, found)),
        gives_way: true,
    };
    match setting {
        LevelSetting::Accuracy(_) => {
            let (from, to) = (wanted.accuracy?, best.planned.summary.accuracy?);
            let text = format!("accuracy is relaxed: {to:.1} % instead of {from:.1} %");
            (to < from).then(|| miss(Level::Accuracy, to, text, 1.0 - to / from))
        }
        LevelSetting::Latency(to) => {
            let (percentile, from) = wanted.latency?;
            let to = to.as_ref().map(|to| to.below.0 as f64 / 1e9);
            let words = to.map_or("no bound".to_owned(), |to| format!("below {}", milliseconds(to * 1e3)));
            let text =
                format!("latency is relaxed: p{percentile} {words} instead of {}", milliseconds(from * 1e3));
            let to = to.unwrap_or(f64::INFINITY);
            Some(miss(Level::Latency, to, text, if to.is_finite() { to / from - 1.0 } else { 1.0 }))
        }
        LevelSetting::Rate(to) => {
            let (from, to) = (wanted.rate?, to.as_ref()?.0);
            (to < from).then(|| yielded_rate(from, to))
        }
        LevelSetting::Survive(to) => {
            let (from, to) = (wanted.survive, to.unwrap_or(0));
            let text = format!("survival is relaxed: {to} lost workers instead of {from}");
            (to < from)
                .then(|| miss(Level::Survive, f64::from(to), text, f64::from(from - to) / f64::from(from)))
        }
    }
}

/// The miss of a source rate that is reduced.
pub fn yielded_rate(from: f64, to: f64) -> Miss {
    let rounded = |rate: f64| Rate((rate * 100.0).round() / 100.0);
    Miss {
        text: format!(
            "the rate is relaxed: {} instead of {}, the rest is dropped or waits",
            rounded(to),
            rounded(from)
        ),
        by: (1.0 - to / from).clamp(0.001, 1.0),
        found: Some((Level::Rate, to)),
        gives_way: true,
    }
}

/// Marks misses within the user's limits.
pub fn mark(misses: &mut [Miss], order: &[LevelSetting]) {
    for miss in misses {
        let Some((level, found)) = miss.found else { continue };
        miss.gives_way = order.iter().filter(|step| level_of(step) == level).any(|step| match step {
            LevelSetting::Rate(to) => to.is_some_and(|to| found >= to.0 * 0.98),
            LevelSetting::Accuracy(to) => to.is_none_or(|to| found >= to.0 - 1e-9),
            LevelSetting::Survive(to) => found >= f64::from(to.unwrap_or(0)),
            LevelSetting::Latency(to) => to.as_ref().is_none_or(|to| found <= to.below.0 as f64 / 1e9 + 1e-9),
        });
    }
}
