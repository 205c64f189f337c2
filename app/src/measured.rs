//! Measurements of a run over some seconds, and the degree to which they miss its service levels. The only implementation,
//! for windows of a second and for `status`, metrics and re-planning.
use crate::delivery::Delivery;
use crate::figures::{milliseconds, rate, wilson_percent_of};
use crate::slo::{RATE_TOLERANCE, accuracy_text};
use crate::slo_watch::percentile_of;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tidemill_engine::{Observer, Program};
use tidemill_operators::api::BoundSource;
use tidemill_spec::plan::Predicted;
use tidemill_spec::workflow::Slo;

/// A source at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Given {
    records: u64,
    has_ended: bool,
}

/// Counters at one time, as needed for levels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counters {
    /// Engine seconds.
    pub(crate) seconds: f64,
    sources: BTreeMap<String, Given>,
    delivery: Delivery,
}

impl Counters {
    /// Reads the present counters.
    pub(crate) fn now(observer: &Observer, program: &Program) -> Self {
        let sources = program.sources.keys().map(|source| {
            let stages = program.plan.stages.iter().filter(|stage| stage.operator == *source);
            let metrics: Vec<_> = stages.filter_map(|stage| observer.stage(&stage.id)).collect();
            let records = metrics.iter().map(|stage| stage.records_out.load(Ordering::Relaxed)).sum();
            let has_ended = metrics.iter().all(|stage| stage.ended.load(Ordering::Acquire));
            (source.clone(), Given { records, has_ended })
        });
        Self {
            seconds: observer.progress().seconds,
            sources: sources.collect(),
            delivery: Delivery::so_far(observer, program),
        }
    }

    /// Whether they are below the earlier ones: a new process of the run counts from 0.
    pub(crate) fn has_begun_again(&self, before: &Self) -> bool {
        let fewer = |(id, given): (&String, &Given)| {
            self.sources.get(id).is_some_and(|now| now.records < given.records)
        };
        self.seconds < before.seconds || before.sources.iter().any(fewer)
    }
}

/// Rate of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SourceRate {
    /// Required records per second; `None`: as many as possible, or as many as come.
    pub asked: Option<f64>,
    /// Emitted records per second.
    pub given: f64,
    /// Whether it has emitted anything.
    pub has_begun: bool,
    /// Whether its records come at any time: they are the load then.
    pub is_live: bool,
}

/// Judged answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scored {
    /// Right ones.
    pub correct: u64,
    /// All with truth.
    pub all: u64,
    /// Number of independent samples with the uncertainty of this share: fewer than all if these are boxes of tracks or
    /// characters of texts, which depend on each other.
    pub independent: u64,
}

impl Scored {
    /// Percent of right answers.
    pub fn percent(&self) -> f64 {
        100.0 * self.correct as f64 / self.all.max(1) as f64
    }

    /// Its 95 % interval; `None` without answers.
    pub fn interval_percent(&self) -> Option<(f64, f64)> {
        wilson_percent_of(self.correct, self.all, self.independent)
    }
}

/// Measurements of a run over some seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Engine seconds.
    pub seconds: f64,
    /// Sources that have not ended.
    pub sources: BTreeMap<String, SourceRate>,
    /// Share of the sources' records that was not lost.
    pub delivered: f64,
    /// Milliseconds at the percentile of the latency level, at the slowest sink.
    pub latency_ms: Option<f64>,
    /// Judged answers of the whole run, at the sink with the smallest share of right ones.
    pub scored: Option<Scored>,
}

impl Default for Measured {
    fn default() -> Self {
        Self { seconds: 0.0, sources: BTreeMap::new(), delivered: 1.0, latency_ms: None, scored: None }
    }
}

/// A service level with its measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredLevel {
    /// `rate`, `accuracy` or `latency`.
    pub level: &'static str,
    /// The required value, with its unit.
    pub wanted: String,
    /// The required value: a minimum in records per second or percent, a maximum in milliseconds.
    pub wanted_value: f64,
    /// The measured value: records per second, percent or milliseconds; `None` if it could not be measured.
    pub value: Option<f64>,
    /// The measured value with its unit.
    pub text: Option<String>,
    /// Relative amount by which the level is missed; 0 or less: it is met. `None`: unknown.
    pub missed_by: Option<f64>,
    /// The plan's expectation with its unit, if it is below the requirement: the level is missed then, whether it can be
    /// measured or not.
    pub planned: Option<String>,
}

impl MeasuredLevel {
    /// Adds the expectations of a plan made for a looser level.
    pub fn beside(self, predicted: &Predicted) -> Self {
        let expected = match self.level {
            "accuracy" => {
                predicted.accuracy.as_ref().map(|one| (one.value.0, format!("{:.1} %", one.value.0)))
            }
            "rate" => {
                predicted.rate.as_ref().map(|one| (one.to.unwrap_or(one.value).0, one.value.to_string()))
            }
            _ => None,
        };
        // Plans have rounded numbers.
        let less = expected.filter(|(value, _)| *value < self.wanted_value * (1.0 - 1e-4));
        let Some((value, text)) = less else { return self };
        let by = 1.0 - value / self.wanted_value;
        Self { missed_by: Some(self.missed_by.map_or(by, |own| own.max(by))), planned: Some(text), ..self }
    }
}

impl Measured {
    /// Measures between two looks; `latencies` are the new ones at each sink: milliseconds and number of records,
    /// ascending.
    pub(crate) fn between(
        before: &Counters,
        now: &Counters,
        latencies: &BTreeMap<String, Vec<(f64, u64)>>,
        slo: &Slo,
        observer: &Observer,
        program: &Program,
    ) -> Self {
        let seconds = now.seconds - before.seconds;
        let sources = now.sources.iter().filter(|(_, given)| !given.has_ended).map(|(id, given)| {
            let earlier = before.sources.get(id).copied().unwrap_or_default();
            let records = given.records.saturating_sub(earlier.records);
            let source = program.sources.get(id);
            let asked = source.and_then(|source| source.rate_per_second);
            let rate = SourceRate {
                asked,
                given: records as f64 / seconds.max(1e-9),
                has_begun: given.records > 0,
                is_live: source.is_some_and(BoundSource::gives_what_comes),
            };
            (id.clone(), rate)
        });
        let scored = program.sinks.keys().filter_map(|sink| {
            let metrics = observer.sink(sink)?;
            // Sinks do not count truth that is still to come.
            let scored = Scored {
                correct: metrics.correct.load(Ordering::Relaxed),
                all: metrics.scored.load(Ordering::Relaxed),
                independent: metrics.independent.load(Ordering::Relaxed),
            };
            (scored.all > 0).then_some(scored)
        });
        let slowest = slo.latency.as_ref().and_then(|level| {
            let each = latencies.values().filter_map(|all| percentile_of(all, level.percentile.0));
            each.max_by(f64::total_cmp)
        });
        Self {
            seconds,
            sources: sources.collect(),
            delivered: now.delivery.since(&before.delivery).share(program.sinks.keys()),
            latency_ms: slowest,
            scored: scored.min_by(|a, b| a.percent().total_cmp(&b.percent())),
        }
    }

    /// Delivered records per second in the sense of the rate level: those of the slowest source. Sources keep their
    /// proportions: one with twice the slowest's required rate counts with half of its records. `None` without a running
    /// source.
    pub fn rate(&self) -> Option<f64> {
        let slowest = self.sources.values().filter_map(|source| source.asked).reduce(f64::min);
        let of = |source: &SourceRate| match (source.asked, slowest) {
            (Some(asked), Some(slowest)) if asked > 0.0 => source.given * slowest / asked,
            _ => source.given,
        };
        Some(self.sources.values().map(of).min_by(f64::total_cmp)? * self.delivered)
    }

    /// Percent of right answers.
    pub fn accuracy(&self) -> Option<f64> {
        self.scored.map(|scored| scored.percent())
    }

    /// Returns the service levels with these measurements.
    pub fn levels(&self, slo: &Slo) -> Vec<MeasuredLevel> {
        let mut all = Vec::new();
        if let Some(wanted) = &slo.rate {
            let value = self.rate();
            all.push(MeasuredLevel {
                level: "rate",
                wanted: format!("at least {}", wanted.value),
                wanted_value: wanted.0,
                value,
                text: value.map(rate),
                missed_by: value.map(|value| 1.0 - value / (wanted.0 * (1.0 - RATE_TOLERANCE))),
                planned: None,
            });
        }
        if let Some(wanted) = &slo.accuracy {
            let value = self.accuracy();
            all.push(MeasuredLevel {
                level: "accuracy",
                wanted: format!("at least {}", wanted.value),
                wanted_value: wanted.0,
                value,
                text: self.scored.map(|one| accuracy_text(one.correct, one.all, one.independent)),
                missed_by: value.map(|value| 1.0 - value / wanted.0.max(1e-9)),
                planned: None,
            });
        }
        if let Some(wanted) = &slo.latency {
            let below = wanted.below.0 as f64 / 1e6;
            let text = |ms: f64| format!("{} {}", wanted.percentile.value, milliseconds(ms));
            all.push(MeasuredLevel {
                level: "latency",
                wanted: format!("{} below {}", wanted.percentile.value, wanted.below.value),
                wanted_value: below,
                value: self.latency_ms,
                text: self.latency_ms.map(text),
                // The level is met only below this value.
                missed_by: self.latency_ms.map(|found| match found >= below {
                    true => (found / below - 1.0).max(1e-9),
                    false => found / below - 1.0,
                }),
                planned: None,
            });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::units::{Percent, Percentile, Rate, TimeSpan};
    use tidemill_spec::workflow::LatencySlo;

    fn slo() -> Slo {
        Slo {
            rate: Some(Rate(40.0).into()),
            accuracy: Some(Percent(80.0).into()),
            latency: Some(LatencySlo {
                percentile: Percentile(99.0).into(),
                below: TimeSpan(800_000_000).into(),
            }),
            survive: None,
        }
    }

    fn source(asked: Option<f64>, given: f64) -> SourceRate {
        SourceRate { asked, given, has_begun: true, is_live: false }
    }

    #[test]
    fn a_level_that_is_missed_is_told_with_by_how_much() {
        let measured = Measured {
            seconds: 10.0,
            sources: BTreeMap::from([
                ("a".into(), source(Some(40.0), 40.0)),
                ("b".into(), source(Some(80.0), 40.0)),
            ]),
            latency_ms: Some(400.0),
            scored: Some(Scored { correct: 70, all: 100, independent: 100 }),
            ..Measured::default()
        };
        let found = measured.levels(&slo());
        let of = |level: &str| found.iter().find(|one| one.level == level).cloned().unwrap();
        let rate = of("rate");
        assert_eq!(rate.text.as_deref(), Some("20.0 /s"));
        assert!((rate.missed_by.unwrap() - (1.0 - 20.0 / 39.2)).abs() < 1e-9);
        assert!((of("accuracy").missed_by.unwrap() - 0.125).abs() < 1e-9);
        assert!(of("latency").missed_by.unwrap() < 0.0);
        let late = Measured { latency_ms: Some(800.0), ..measured }.levels(&slo());
        assert!(late[2].missed_by.unwrap() > 0.0, "it is to be below");
        let unknown = Measured::default().levels(&slo());
        assert!(unknown.iter().all(|one| one.value.is_none() && one.missed_by.is_none()), "{unknown:?}");
    }

    /// Ten thousand characters of a few texts are no ten thousand samples.
    #[test]
    fn an_accuracy_is_as_uncertain_as_its_independent_samples() {
        let of = |independent| {
            let scored = Scored { correct: 8000, all: 10_000, independent };
            let found = Measured { scored: Some(scored), ..Measured::default() }.levels(&slo());
            (found[1].text.clone().unwrap(), scored.interval_percent().unwrap())
        };
        let (text, (low, high)) = of(20);
        assert_eq!(text, "80.0 % (58.4 to 91.9, n = 20)");
        assert!(low < 60.0 && high > 90.0);
        assert_eq!(of(10_000).0, "80.0 % (79.2 to 80.8, n = 10 000)");
    }

    #[test]
    fn a_plan_that_keeps_less_misses_the_level_before_anybody_measures_it() {
        let text = "version: 1\nworkflow: {name: w}\nworkers: [{id: a, tier: t, worker_type: s}]\nstages: [{id: rows, operator: rows, worker: a}]\nclasses: [{id: 0, share: 1, route: {rows: rows}}]\nedges: []\npredicted: {rate: {value: 40/s}, accuracy: {value: 72%}}\n";
        let plan = tidemill_spec::plan::Plan::parse(text, "plan.yaml").unwrap();
        let predicted = plan.predicted.unwrap();
        let found = Measured::default().levels(&slo()).into_iter().map(|level| level.beside(&predicted));
        let found: Vec<_> = found.map(|level| (level.planned, level.missed_by)).collect();
        assert_eq!(found[0], (None, None), "the rate is kept, as far as is known");
        assert_eq!(found[1].0.as_deref(), Some("72.0 %"));
        assert!((found[1].1.unwrap() - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_rate_is_that_of_the_slowest_source_less_what_is_lost() {
        let of = |sources: &[SourceRate], delivered: f64| {
            let sources = sources.iter().enumerate().map(|(at, one)| (at.to_string(), *one)).collect();
            Measured { sources, delivered, ..Measured::default() }.rate()
        };
        assert_eq!(of(&[], 1.0), None);
        assert_eq!(of(&[source(None, 30.0), source(None, 20.0)], 1.0), Some(20.0));
        // One whose own rate exceeds the level may emit less than its own rate.
        assert_eq!(of(&[source(Some(100.0), 50.0)], 1.0), Some(50.0));
        assert_eq!(of(&[source(Some(100.0), 50.0)], 0.5), Some(25.0));
    }
}
