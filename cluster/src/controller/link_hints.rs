//! Rates of links that follow from the traffic of machines, which their agents count: no bytes are sent for them.
//!
//! | question | module |
//! |---|---|
//! | what do others than runs use of a link now? | `load` |
//! | what would streams of runs get, and can a plan rely on it? | `history` |
//! | which rate does a link have by the file of machines? | `nominal` |
mod history;
mod load;
mod nominal;

pub(crate) use history::{Hint, Streams, choose, rate};
pub(crate) use nominal::Nominal;

use super::measured_links::{Place, Traffic};
use super::{Shared, locked};
use crate::api::{BundleFile, LinkHint};
use crate::clock::instant;
use crate::replanning::replanner::SEARCH;
use history::LinkHistory;
use load::{Machine, Machines};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_spec::infrastructure::Infrastructure;

/// Files of machines are not longer.
const LONGEST_FILE: u64 = 16 << 20;

/// Known facts of links between places. No other lock is taken while this one is held.
pub(crate) struct LinkHints {
    begun: Instant,
    links: BTreeMap<(Place, Place), LinkHistory>,
    /// Files of machines of the active runs, by digest; none: unreadable.
    files: BTreeMap<String, Option<Arc<Nominal>>>,
    /// Pairs of workers whose link needs no probe.
    shown: BTreeSet<(String, String)>,
}

/// Whose streams a rate is for.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// Streams of all runs together.
    Runs,
    /// Streams of a run, beside all others; none: a new one.
    Run(Option<&'a str>),
}

impl LinkHints {
    pub(crate) fn new() -> Self {
        Self { begun: instant(), links: BTreeMap::new(), files: BTreeMap::new(), shown: BTreeSet::new() }
    }

    /// Notes the traffic of machines, and compares it with the streams of runs on the links between these workers.
    fn look(
        &mut self,
        machines: &Machines,
        ways: &BTreeSet<(String, String)>,
        places: &BTreeMap<String, Place>,
        traffic: &Traffic,
        used: Duration,
        now: Duration,
    ) {
        let pairs: BTreeMap<(Place, Place), Vec<&(String, String)>> =
            ways.iter().fold(BTreeMap::new(), |mut pairs, way| {
                if let (Some(from), Some(to)) = (places.get(&way.0), places.get(&way.1))
                    && from != to
                {
                    pairs.entry((from.clone(), to.clone())).or_insert_with(Vec::new).push(way);
                }
                pairs
            });
        self.links.retain(|pair, _| pairs.contains_key(pair));
        self.shown.clear();
        for (pair, ways) in pairs {
            let history = self.links.entry(pair.clone()).or_default();
            history.sees(machines.load(&pair.0, &pair.1), now);
            let streams = traffic.streams(&pair.0, &pair.1, |_| true);
            let nominal =
                ways.iter().filter_map(|(from, to)| nominal(&self.files, from, to)).reduce(f64::min);
            let hint = nominal
                .and_then(|nominal| history.hint(nominal, &streams, &Streams::default(), used, now).ok());
            history.compares(hint.as_ref(), &streams, now);
            if hint.is_some_and(|hint| hint.verdict.is_ok()) {
                self.shown.extend(ways.into_iter().cloned());
            }
        }
    }

    /// Returns the rate of streams on the link between two places.
    ///
    /// # Errors
    /// The reason why it is not known, for people.
    fn hint(
        &self,
        (from, to): (&Place, &Place),
        nominal: Option<f64>,
        of: For<'_>,
        traffic: &Traffic,
        used: Duration,
    ) -> Result<Hint, String> {
        if from == to {
            return Err("both workers are at one place".to_owned());
        }
        let nominal = nominal.ok_or("no file of machines has its nominal rate (`submit --infra`)")?;
        let history = self.links.get(&(from.clone(), to.clone())).ok_or("its delay is not measured yet")?;
        let own = traffic.streams(from, to, |run| match of {
            For::Runs => true,
            For::Run(name) => name == Some(run),
        });
        let others = traffic.streams(from, to, |run| match of {
            For::Runs => false,
            For::Run(name) => name != Some(run),
        });
        history.hint(nominal, &own, &others, used, self.begun.elapsed())
    }
}

/// The least rate that files of machines give to a link.
fn nominal(files: &BTreeMap<String, Option<Arc<Nominal>>>, from: &str, to: &str) -> Option<f64> {
    files.values().flatten().filter_map(|file| file.rate(from, to)).reduce(f64::min)
}

/// Addresses at which others see a worker.
fn addresses(all: [Option<&str>; 2]) -> BTreeSet<IpAddr> {
    let address = |text: &str| {
        text.parse::<IpAddr>().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
    };
    all.into_iter().flatten().filter_map(address).collect()
}

impl Shared {
    /// The least time for which a plan is used.
    fn plan_time(&self) -> Duration {
        Duration::from_secs_f64(SEARCH / self.replan_pace.max(0.01))
    }

    /// Looks at what the agents have counted.
    pub(crate) fn look_at_hints(&self) {
        let (machines, ways) = {
            let workers = locked(&self.workers);
            if workers.values().all(|worker| worker.traffic.is_none()) {
                return;
            }
            let alive = || workers.iter().filter(|(_, worker)| worker.is_alive);
            let machines: Vec<Machine> = alive()
                .map(|(name, worker)| {
                    let (report, silent) = match &worker.traffic {
                        Some((at, report)) => (Some(report.clone()), at.elapsed()),
                        None => (None, Duration::ZERO),
                    };
                    let own = worker.heartbeat.measured_at.as_deref();
                    let addresses = addresses([Some(&worker.address), own]);
                    Machine { name: name.clone(), place: Place::default(), addresses, report, silent }
                })
                .collect();
            let ways = workers.iter().flat_map(|(from, worker)| {
                worker.ways.destinations().map(|to| (from.clone(), to.clone())).collect::<Vec<_>>()
            });
            (machines, ways.collect::<BTreeSet<_>>())
        };
        let places = self.places();
        let located = machines.into_iter().filter_map(|machine| {
            let place = places.get(&machine.name)?.clone();
            Some(Machine { place, ..machine })
        });
        let machines = Machines::of(located.collect());
        let (traffic, used) = (self.traffic(), self.plan_time());
        self.read_files();
        let mut hints = locked(&self.hints);
        let now = hints.begun.elapsed();
        hints.look(&machines, &ways, &places, &traffic, used, now);
    }

    /// The places of workers.
    pub(crate) fn places(&self) -> BTreeMap<String, Place> {
        self.facts.look(|document| {
            let workers = document.workers.iter();
            workers.map(|(name, of)| (name.clone(), (of.tier.clone(), of.location.clone()))).collect()
        })
    }

    /// Reads files of machines of active runs that are new.
    pub(crate) fn read_files(&self) {
        let active: BTreeMap<String, BundleFile> = self.facts.look(|document| {
            let active = document.runs.values().filter(|run| !run.state.is_over());
            let files = active.filter_map(|run| run.planned.planning.as_ref()?.infrastructure.clone());
            files.map(|file| (file.digest.clone(), file)).collect()
        });
        let new: Vec<BundleFile> = {
            let mut hints = locked(&self.hints);
            hints.files.retain(|digest, _| active.contains_key(digest));
            active.into_values().filter(|file| !hints.files.contains_key(&file.digest)).collect()
        };
        for file in new {
            let read = self.blobs.open_at(&file.digest, 0).ok().flatten().and_then(|(bytes, _)| {
                let mut text = String::new();
                bytes.take(LONGEST_FILE).read_to_string(&mut text).ok()?;
                Infrastructure::parse(&text, &file.path).ok()
            });
            let nominal = read.map(|file| Arc::new(Nominal::of(&file)));
            locked(&self.hints).files.insert(file.digest, nominal);
        }
    }

    /// Returns the nominal rate of the link from one worker to another: that of a file, else the least by the files of active runs.
    pub(crate) fn nominal_rate(&self, file: Option<&Nominal>, from: &str, to: &str) -> Option<f64> {
        match file {
            Some(file) => file.rate(from, to),
            None => nominal(&locked(&self.hints).files, from, to),
        }
    }

    /// Returns the rate of streams on the link between two places.
    ///
    /// # Errors
    /// The reason why it is not known, for people.
    pub(crate) fn link_hint(
        &self,
        ends: (&Place, &Place),
        nominal: Option<f64>,
        of: For<'_>,
        traffic: &Traffic,
    ) -> Result<Hint, String> {
        locked(&self.hints).hint(ends, nominal, of, traffic, self.plan_time())
    }

    /// Workers whose link from this one needs no bytes of probes.
    pub(crate) fn shown_by_hints(&self, from: &str) -> BTreeSet<String> {
        let hints = locked(&self.hints);
        let shown = hints.shown.iter().filter(|(one, _)| one == from);
        shown.map(|(_, to)| to.clone()).collect()
    }
}

impl From<&Hint> for LinkHint {
    fn from(of: &Hint) -> Self {
        Self {
            bits_per_second: of.bits_per_second,
            residual_bits_per_second: of.load.residual,
            others_bits_per_second: of.others.yields + of.others.stays,
            other_flows: of.others.flows,
            age_seconds: of.age.as_secs_f64(),
            between_changes_seconds: of.between.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests;
