//! Measured links between workers: probes of agents, and traffic of runs.
//!
//! A probe sees the capacity that runs leave, and takes some of theirs. With a probe's rate `p` and the runs' rate `d` at that time, the
//! link carries `p + min(p, d)`, and `d` at least. If runs send less than half of the capacity, the probe gets the rest and the sum is
//! exact. If they send more, the probe gets as much as one of their streams, and the link carries twice that or more. The capacity is never
//! overestimated.
//!
//! Traffic of at least [`SHOWS`] of the known rate, with no record waiting, confirms the rate for at most [`CONFIRMED`]; probes then
//! measure only the delay. Traffic above the known rate replaces it.
use super::link_hints::{For, Streams, choose};
use super::{Shared, locked};
use crate::api::{LinkHint, LinkMeasurement, MeasuredLinkView, RateSource};
use crate::clock::instant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Fraction of the known rate with which traffic confirms it.
const SHOWS: f64 = 0.5;
/// Longest time that traffic confirms a rate without a probe.
const CONFIRMED: Duration = Duration::from_secs(300);
/// Age at which traffic no longer confirms anything.
const RECENT: Duration = Duration::from_secs(5);

/// Age at which figures are dropped.
pub(crate) const STALE: Duration = Duration::from_secs(600);

/// Tier and location of a worker.
pub(crate) type Place = (Option<String>, Option<String>);

/// Traffic on a link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sent {
    pub(crate) bits_per_second: f64,
    /// Records wait at a sender because the receiver has not taken earlier ones.
    pub(crate) is_waited_for: bool,
}

impl Sent {
    fn and(self, other: Self) -> Self {
        Self {
            bits_per_second: self.bits_per_second + other.bits_per_second,
            is_waited_for: self.is_waited_for || other.is_waited_for,
        }
    }
}

/// Traffic of a run from one worker of the cluster to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunTraffic {
    pub(crate) run: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) sent: Sent,
}

/// Current traffic of all runs. All workers of two places share one link, as in planning.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    all: Vec<RunTraffic>,
    places: BTreeMap<String, Place>,
}

impl Traffic {
    pub(crate) fn new(all: Vec<RunTraffic>, places: BTreeMap<String, Place>) -> Self {
        Self { all, places }
    }

    /// Streams from one place to another, of those runs that count.
    pub(crate) fn streams(&self, from: &Place, to: &Place, counts: impl Fn(&str) -> bool) -> Streams {
        let is_at = |name: &str, place: &Place| self.places.get(name) == Some(place);
        let on_it = self.all.iter().filter(|one| is_at(&one.from, from) && is_at(&one.to, to));
        let on_it = on_it.filter(|one| counts(&one.run) && one.sent.bits_per_second > 0.0);
        let mut pairs = BTreeSet::new();
        let sent = on_it.fold(Sent::default(), |sum, one| {
            pairs.insert((&one.run, &one.from, &one.to));
            sum.and(one.sent)
        });
        Streams { pairs: pairs.len(), sent }
    }

    /// Traffic on the link between two workers, of all runs except one.
    pub(crate) fn between(&self, from: &str, to: &str, except: Option<&str>) -> Sent {
        let place = |name: &str| self.places.get(name);
        let (own, other) = (place(from), place(to));
        let is_within = own == other || own.is_none() || other.is_none();
        let is_on_it = |one: &&RunTraffic| match is_within {
            true => one.from == from && one.to == to,
            false => place(&one.from) == own && place(&one.to) == other,
        };
        let all = self.all.iter().filter(is_on_it).filter(|one| Some(one.run.as_str()) != except);
        all.fold(Sent::default(), |sum, one| sum.and(one.sent))
    }
}

/// A rate and its source.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KnownRate {
    bits_per_second: f64,
    source: RateSource,
    /// Time of the last probe.
    probed: Instant,
    /// Time of the last confirmation by traffic.
    shown: Option<Instant>,
}

/// Measurements of the link from one worker to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MeasuredLink {
    round_trip_seconds: f64,
    probing: f64,
    came: Instant,
    rate: Option<KnownRate>,
}

impl MeasuredLink {
    /// Combines an agent's measurement with the traffic at that time.
    pub(crate) fn measured(
        before: Option<&Self>,
        figure: &LinkMeasurement,
        sent: Sent,
        now: Instant,
    ) -> Self {
        let rate = match figure.bits_per_second {
            _ if figure.only_delay => before.and_then(|before| before.rate),
            None => None,
            Some(probed) => Some(KnownRate {
                bits_per_second: (probed + probed.min(sent.bits_per_second)).max(sent.bits_per_second),
                source: RateSource::Probe,
                probed: now,
                shown: None,
            }),
        };
        Self { round_trip_seconds: figure.round_trip_seconds, probing: figure.probing, came: now, rate }
    }

    /// Updates the rate from current traffic.
    fn carries(&mut self, sent: Sent, now: Instant) {
        let Some(rate) = &mut self.rate else { return };
        if sent.bits_per_second > rate.bits_per_second {
            (rate.bits_per_second, rate.source) = (sent.bits_per_second, RateSource::Traffic);
        }
        if !sent.is_waited_for && sent.bits_per_second >= SHOWS * rate.bits_per_second {
            rate.shown = Some(now);
        }
    }

    /// Whether traffic confirms its rate, so that no probe is needed.
    fn is_shown(&self, now: Instant) -> bool {
        let Some(rate) = &self.rate else { return false };
        let is_recent = rate.shown.is_some_and(|shown| now.duration_since(shown) < RECENT);
        is_recent && now.duration_since(rate.probed) < CONFIRMED
    }
}

/// Measured links from a worker, by destination.
#[derive(Debug, Clone, Default)]
pub(crate) struct MeasuredLinks(BTreeMap<String, MeasuredLink>);

impl MeasuredLinks {
    /// Records measurements, with the traffic at that time. Drops workers that have left the cluster, and stale figures.
    pub(crate) fn learn(
        &mut self,
        figures: &[LinkMeasurement],
        sent: impl Fn(&str) -> Sent,
        is_there: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        for figure in figures.iter().filter(|figure| is_there(&figure.to)) {
            let way = MeasuredLink::measured(self.0.get(&figure.to), figure, sent(&figure.to), now);
            self.0.insert(figure.to.clone(), way);
        }
        self.0.retain(|to, way| now.duration_since(way.came) < STALE && is_there(to));
    }

    /// Drops a worker that has left the cluster.
    pub(crate) fn forget(&mut self, to: &str) {
        self.0.remove(to);
    }

    /// Rate of the link to a worker, bits per second, if known.
    pub(crate) fn rate(&self, to: &str) -> Option<f64> {
        self.0.get(to)?.rate.map(|rate| rate.bits_per_second)
    }

    /// Largest known rate of the links to some workers, bits per second.
    pub(crate) fn best(&self, is_meant: impl Fn(&str) -> bool) -> Option<f64> {
        self.0.keys().filter(|to| is_meant(to)).filter_map(|to| self.rate(to)).max_by(f64::total_cmp)
    }

    /// Workers that it is measured to.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Whether traffic confirms the rate of the link to a worker.
    pub(crate) fn is_shown(&self, to: &str) -> bool {
        self.0.get(to).is_some_and(|way| way.is_shown(instant()))
    }
}

impl Shared {
    /// Current traffic of all runs.
    pub(crate) fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&locked(&self.traffic))
    }

    /// Replaces the current traffic of all runs.
    pub(crate) fn sees_traffic(&self, traffic: Traffic) {
        let traffic = Arc::new(traffic);
        *locked(&self.traffic) = Arc::clone(&traffic);
        if traffic.all.is_empty() {
            return;
        }
        let now = instant();
        for (from, worker) in locked(&self.workers).iter_mut() {
            for (to, way) in &mut worker.ways.0 {
                way.carries(traffic.between(from, to, None), now);
            }
        }
    }

    /// Measured links between workers.
    pub(crate) fn way_views(&self) -> Vec<MeasuredLinkView> {
        let (traffic, places) = (self.traffic(), self.places());
        let mut all: Vec<MeasuredLinkView> = Vec::new();
        for (from, worker) in locked(&self.workers).iter() {
            all.extend(worker.ways.0.iter().map(|(to, way)| {
                let sent = traffic.between(from, to, None);
                MeasuredLinkView {
                    from: from.clone(),
                    to: to.clone(),
                    delay_seconds: way.round_trip_seconds / 2.0,
                    bits_per_second: way.rate.map(|rate| rate.bits_per_second),
                    shown_by: way.rate.map(|rate| match way.is_shown(instant()) {
                        true => RateSource::Traffic,
                        false => rate.source,
                    }),
                    sent_bits_per_second: sent.bits_per_second,
                    age_seconds: way.came.elapsed().as_secs_f64(),
                    probing: way.probing,
                    is_waited_for: sent.is_waited_for,
                    nominal_bits_per_second: None,
                    hint: None,
                    planned_bits_per_second: None,
                    planned_by: None,
                    planned_because: String::new(),
                }
            }));
        }
        for view in &mut all {
            let Some(ends) = places.get(&view.from).zip(places.get(&view.to)) else { continue };
            view.nominal_bits_per_second = self.nominal_rate(None, &view.from, &view.to);
            let hint = self.link_hint(ends, view.nominal_bits_per_second, For::Runs, &traffic);
            let chosen = choose(view.nominal_bits_per_second, &hint, view.bits_per_second.zip(view.shown_by));
            view.hint = hint.ok().map(|hint| LinkHint::from(&hint));
            (view.planned_bits_per_second, view.planned_by) = (chosen.bits_per_second, chosen.by);
            view.planned_because = chosen.why;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: f64 = 1e6;

    fn sent(megabits: f64, is_waited_for: bool) -> Sent {
        Sent { bits_per_second: megabits * MEGABIT, is_waited_for }
    }

    fn probed(megabits: f64) -> LinkMeasurement {
        LinkMeasurement {
            to: "hub".into(),
            round_trip_seconds: 0.01,
            bits_per_second: Some(megabits * MEGABIT),
            only_delay: false,
            probing: 0.001,
        }
    }

    fn rate(way: &MeasuredLink) -> f64 {
        way.rate.map_or(0.0, |rate| rate.bits_per_second / MEGABIT)
    }

    /// Rate of a probe beside one stream of a run: the rest of the capacity, or half of it.
    fn seen_by_a_probe(carries: f64, run: f64) -> f64 {
        (carries - run).max(carries / 2.0)
    }

    #[test]
    fn a_way_is_as_wide_as_it_was_whatever_a_run_sends_over_it() {
        let now = instant();
        for run in [0.0, 1.0, 4.0, 5.0, 6.0, 8.0, 9.5, 10.0] {
            let figure = probed(seen_by_a_probe(10.0, run));
            let way = MeasuredLink::measured(None, &figure, sent(run, false), now);
            assert!((rate(&way) - 10.0).abs() < 1e-9, "{} with {run} of a run", rate(&way));
        }
        // A probe is one of many streams; the run's rate counts in any case.
        let way = MeasuredLink::measured(None, &probed(1.0), sent(9.0, false), now);
        assert!(rate(&way) >= 9.0 && rate(&way) <= 10.0, "{}", rate(&way));
    }

    #[test]
    fn traffic_that_goes_well_saves_probes_for_a_while() {
        let now = instant();
        let later = |seconds: u64| now + Duration::from_secs(seconds);
        let mut way = MeasuredLink::measured(None, &probed(10.0), sent(0.0, false), now);
        way.carries(sent(4.0, false), later(1));
        assert!(!way.is_shown(later(1)), "less than half says nothing");
        way.carries(sent(6.0, true), later(2));
        assert!(!way.is_shown(later(2)), "records wait: it may have become slower");
        way.carries(sent(6.0, false), later(3));
        assert!(way.is_shown(later(4)));
        assert!(!way.is_shown(later(9)), "nobody sends any more");
        let only_delay = LinkMeasurement { bits_per_second: None, only_delay: true, ..probed(0.0) };
        let mut way = MeasuredLink::measured(Some(&way), &only_delay, sent(6.0, false), later(20));
        assert!((rate(&way) - 10.0).abs() < 1e-9);
        way.carries(sent(6.0, false), later(299));
        assert!(way.is_shown(later(299)) && !way.is_shown(later(301)), "probed again after five minutes");
    }

    #[test]
    fn traffic_that_is_more_than_the_rate_is_the_rate() {
        let now = instant();
        let mut way = MeasuredLink::measured(None, &probed(10.0), sent(0.0, false), now);
        way.carries(sent(14.0, false), now);
        assert!((rate(&way) - 14.0).abs() < 1e-9);
        assert!(way.rate.is_some_and(|rate| rate.source == RateSource::Traffic));
        // The link has become slower, and a run waits for it.
        let way = MeasuredLink::measured(Some(&way), &probed(0.5), sent(0.5, true), now);
        assert!((rate(&way) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn ways_to_workers_that_are_gone_are_forgotten() {
        let now = instant();
        let mut ways = MeasuredLinks::default();
        let to = |name: &str| LinkMeasurement { to: name.into(), ..probed(10.0) };
        let nothing = |_: &str| Sent::default();
        ways.learn(&[to("hub"), to("cloud"), to("spare")], nothing, |_| true, now);
        assert_eq!(ways.0.len(), 3);
        ways.forget("cloud");
        // A measurement from before the revocation arrives late.
        ways.learn(&[to("cloud")], nothing, |name| name != "cloud", now);
        assert_eq!(ways.0.keys().collect::<Vec<_>>(), ["hub", "spare"]);
        ways.learn(&[to("hub")], nothing, |_| true, now + STALE);
        assert_eq!(ways.0.keys().collect::<Vec<_>>(), ["hub"], "the other one is not measured any more");
    }

    #[test]
    fn one_way_leads_from_a_place_to_another() {
        let place = |tier: &str| (Some(tier.to_owned()), None);
        let places = [("edge-1", "edge"), ("edge-2", "edge"), ("hub-1", "hub"), ("hub-2", "hub")];
        let places = places.into_iter().map(|(name, tier)| (name.to_owned(), place(tier))).collect();
        let one = |run: &str, from: &str, to: &str, megabits: f64| RunTraffic {
            run: run.into(),
            from: from.into(),
            to: to.into(),
            sent: sent(megabits, run == "b"),
        };
        let all = vec![
            one("a", "edge-1", "hub-1", 3.0),
            one("b", "edge-2", "hub-2", 2.0),
            one("a", "edge-1", "edge-2", 7.0),
            one("a", "hub-1", "edge-1", 9.0),
        ];
        let traffic = Traffic::new(all, places);
        assert_eq!(traffic.between("edge-1", "hub-2", None), sent(5.0, true));
        assert_eq!(traffic.between("edge-1", "hub-2", Some("b")), sent(3.0, false));
        assert_eq!(traffic.between("edge-1", "edge-2", None), sent(7.0, false));
        assert_eq!(traffic.between("edge-2", "edge-1", None), sent(0.0, false));
        assert_eq!(traffic.between("edge-1", "nobody", None), sent(0.0, false));
    }
}
