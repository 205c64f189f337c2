//! The known load of one link, and the rate that follows for streams of runs.
//!
//! The rate is what a fair network gives them (`tidemill_hints::estimate`), by the mean load of the last seconds. It is used for a plan
//! only if the load changes more rarely than the figures would be old at the end of the plan (`tidemill_hints::staleness`), and only as
//! long as streams that send as fast as they can get about that much.
use super::load::OtherLoad;
use crate::api::RateSource;
use crate::controller::measured_links::Sent;
use std::collections::VecDeque;
use std::time::Duration;
use tidemill_hints::changes::Changes;
use tidemill_hints::estimate::{Guarantee, Load, bandwidth};
use tidemill_hints::staleness::{Choice, Delays, decide};
use tidemill_spec::units::Bandwidth;

/// Time over which the load is averaged.
const AVERAGED: Duration = Duration::from_secs(5);
/// Time of which loads are kept.
const KEPT: Duration = Duration::from_secs(180);
/// Changes that are shorter than this are not looked for.
const STEP: Duration = Duration::from_secs(2);
/// Mean age of a report when it comes: half of the time between two heartbeats.
const REPORT: Duration = Duration::from_millis(crate::api::HEARTBEAT_MILLISECONDS / 2);
/// Time that a search for a plan takes, rounded up.
const COMPUTE: Duration = Duration::from_secs(1);
/// The part by which streams may differ from what they are said to get.
const TOLERATED: f64 = 0.25;
/// Looks one after another at which they differ, until that counts.
const LOOKS: u32 = 6;
/// Time after which hints that did not hold are tried again.
const AGAIN: Duration = Duration::from_secs(300);

/// Streams of runs on a link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Streams {
    /// Pairs of workers with traffic.
    pub(crate) pairs: usize,
    pub(crate) sent: Sent,
}

/// The rate that streams would get by the load of a link.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hint {
    pub(crate) bits_per_second: f64,
    /// The link without the streams in question, bits per second.
    pub(crate) load: Load,
    /// Use of it by others than runs.
    pub(crate) others: OtherLoad,
    /// Mean age of the figures.
    pub(crate) age: Duration,
    /// Mean time between changes of the load.
    pub(crate) between: Duration,
    /// Why it is good enough for a plan, or not.
    pub(crate) verdict: Result<String, String>,
}

/// See the module. Times are since any moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct LinkHistory {
    loads: VecDeque<(Duration, OtherLoad)>,
    /// Why nothing is known now.
    gone: Option<String>,
    misses: u32,
    /// Streams get something else, since when.
    disagrees: Option<(Duration, String)>,
}

impl LinkHistory {
    /// Notes the load now, or why it is not known.
    pub(crate) fn sees(&mut self, load: Result<OtherLoad, String>, now: Duration) {
        match load {
            Ok(load) => {
                self.loads.push_back((now, load));
                self.gone = None;
            }
            Err(why) => self.gone = Some(why),
        }
        self.loads.retain(|(at, _)| now.saturating_sub(*at) <= KEPT);
    }

    /// Compares what streams get with what the hint says. Only streams with waiting records send as fast as they can.
    pub(crate) fn compares(&mut self, hint: Option<&Hint>, streams: &Streams, now: Duration) {
        if self.disagrees.as_ref().is_some_and(|(since, _)| now.saturating_sub(*since) >= AGAIN) {
            self.disagrees = None;
        }
        let Some(hint) = hint else { return };
        let (get, said) = (streams.sent.bits_per_second, hint.bits_per_second);
        let is_more = get > said * (1.0 + TOLERATED);
        let is_less = streams.sent.is_waited_for && get < said * (1.0 - TOLERATED);
        if is_more || is_less {
            self.misses += 1;
        } else {
            self.misses = 0;
            if streams.sent.is_waited_for {
                self.disagrees = None;
            }
        }
        if self.misses >= LOOKS {
            let why = format!(
                "streams of runs get {} instead of the {} that follow from traffic",
                rate(get),
                rate(said)
            );
            self.disagrees = Some((now, why));
        }
    }

    /// Returns the rate of streams (`own`) on a link of this nominal rate, beside those of other runs.
    ///
    /// # Errors
    /// The reason why it is not known, for people.
    pub(crate) fn hint(
        &self,
        nominal: f64,
        own: &Streams,
        other_runs: &Streams,
        used: Duration,
        now: Duration,
    ) -> Result<Hint, String> {
        if let Some(why) = &self.gone {
            return Err(why.clone());
        }
        let last = self.loads.back().ok_or("no worker has reported its traffic yet")?.0;
        let late = self.loads.iter().rev().take_while(|(at, _)| last.saturating_sub(*at) < AVERAGED);
        let (first, others) = (late.clone().last(), OtherLoad::mean(late.map(|(_, load)| *load)));
        let others = others.unwrap_or_default();
        let span = last.saturating_sub(first.map_or(last, |(at, _)| *at));
        let age = REPORT + span / 2 + now.saturating_sub(last);
        // A share of what is not TCP cannot be had.
        let total = (nominal - others.stays).max(0.0);
        let taken = others.yields + other_runs.sent.bits_per_second;
        let load = Load {
            total,
            residual: (total - taken).max(0.0),
            sharers: others.flows + other_runs.pairs as f64,
        };
        let between = self.between_changes(nominal);
        let decision = decide(Delays { collect: age, compute: COMPUTE, used }, between);
        let verdict = match (&self.disagrees, decision.choice) {
            (Some((_, why)), _) => Err(why.clone()),
            (None, Choice::Loads) => Ok(decision.reason),
            (None, _) => Err(decision.reason),
        };
        let bits_per_second = bandwidth(load, own.pairs.max(1) as f64, Guarantee::None);
        Ok(Hint { bits_per_second, load, others, age, between: between.unwrap_or_default(), verdict })
    }

    /// Returns the mean time between changes of what others leave of a total, of which only means of [`STEP`] count.
    fn between_changes(&self, total: f64) -> Option<Duration> {
        let begin = self.loads.front()?.0;
        let step = |at: Duration| at.saturating_sub(begin).as_nanos() / STEP.as_nanos();
        let mut changes = Changes::default();
        let (mut present, mut number) = (Vec::new(), 0);
        let mut observe = |loads: &[OtherLoad], number: u128| {
            if let Some(mean) = OtherLoad::mean(loads.iter().copied()) {
                let residual = (total - mean.stays - mean.yields).max(0.0);
                let after = Duration::from_nanos(
                    u64::try_from(number).unwrap_or(u64::MAX).saturating_mul(STEP.as_nanos() as u64),
                );
                changes.observe(&[Load { total, residual, sharers: mean.flows }], after);
            }
        };
        for (at, load) in &self.loads {
            if step(*at) != number {
                observe(&present, number);
                present.clear();
                number = step(*at);
            }
            present.push(*load);
        }
        observe(&present, number);
        changes.between()
    }
}

/// The rate of a link that plans use, and why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chosen {
    /// None: nothing is known.
    pub(crate) bits_per_second: Option<f64>,
    pub(crate) by: Option<RateSource>,
    pub(crate) why: String,
}

/// Chooses the rate of a link: by hint where that is fresh, else by a probe (or traffic that shows it), else the nominal one.
pub(crate) fn choose(
    nominal: Option<f64>,
    hint: &Result<Hint, String>,
    probe: Option<(f64, RateSource)>,
) -> Chosen {
    let why = match hint.as_ref().map(|hint| (hint, &hint.verdict)) {
        Ok((hint, Ok(why))) => {
            let (used, flows) = (rate(hint.others.yields + hint.others.stays), hint.others.flows);
            let why = format!("others use {used} in {flows:.1} flows, {why}");
            return Chosen { bits_per_second: Some(hint.bits_per_second), by: Some(RateSource::Hint), why };
        }
        Ok((_, Err(why))) | Err(why) => why,
    };
    let (known, by, why) = match (probe, nominal) {
        (Some((rate, by)), _) => (Some(rate), Some(by), why.clone()),
        (None, Some(nominal)) => {
            (Some(nominal), Some(RateSource::Nominal), format!("{why}, and it is not probed yet"))
        }
        (None, None) => (None, None, why.clone()),
    };
    Chosen { bits_per_second: known, by, why }
}

/// Writes a rate with three digits or more.
pub(crate) fn rate(bits_per_second: f64) -> String {
    let step = 10_f64.powf((bits_per_second.max(1.0).log10().floor() - 2.0).max(0.0));
    Bandwidth(((bits_per_second / step).round() * step) as u64).to_string()
}

#[cfg(test)]
mod tests;
