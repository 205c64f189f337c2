//! Plans the trees by which files reach workers: a rack has a file sent to it once, and passes it on while it arrives. Pure: workers ask
//! one by one, and each answer is a branch of the tree.
//!
//! Within a rack the branches are a chain, unless measured links say otherwise: each worker then sends a file once, so all have it after
//! about the time of one copy. A worker whose source fails asks again; its own takers notice nothing.
use crate::api::Fetching;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Copies of a file that the controller sends at the same time.
const MOST_COPIES: usize = 2;
/// Workers that have files from one worker at the same time.
const MOST_TAKERS: usize = 2;
/// Time after which a silent taker has given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a file that all have counts as rolled out: workers of one run do not ask at the same time.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// Rates of links without a measurement, within a rack and to another one, bits per second.
const USUAL: (f64, f64) = (1e9, 1e8);

/// Source of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Controller,
    Store,
    Worker(String),
}

/// Answer to a worker that asks for a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    From(Origin),
    /// All sources are busy.
    Wait,
}

/// A worker that asks for a file.
pub(super) struct Asker<'a> {
    pub(super) worker: &'a str,
    pub(super) rack: &'a str,
    pub(super) digest: &'a str,
    /// The file is in an object store that answers.
    pub(super) has_store: bool,
}

/// Another worker that is alive, and that the asker can dial.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a str,
    pub(super) rack: String,
    pub(super) is_complete: bool,
    /// It gives the first part of a file while the rest arrives.
    pub(super) gives_parts: bool,
}

/// A worker that is fetching a file.
#[derive(Debug)]
pub(super) struct Taker {
    pub(super) worker: String,
    pub(super) from: Origin,
    heard: Instant,
    /// Bytes that are there, as it said.
    pub(super) bytes: u64,
    /// Expected rate, bits per second.
    rate: f64,
    /// Workers between it and the source of its rack.
    depth: usize,
    /// It has said that it fetches the file.
    is_told: bool,
}

/// A file on its path to workers.
#[derive(Debug)]
pub(super) struct RollOut {
    begun: Instant,
    heard: Instant,
    /// When all who asked for it had it.
    ended: Option<Instant>,
    pub(super) takers: Vec<Taker>,
    /// Workers that have taken it, before their next heartbeat says so.
    done: BTreeSet<String>,
    /// Workers that have asked for it, and are alive.
    pub(super) workers: BTreeSet<String>,
    pub(super) racks: BTreeSet<String>,
    /// Copies that were sent to racks from outside, also incomplete ones.
    pub(super) copies: usize,
}

impl RollOut {
    fn new(now: Instant) -> Self {
        Self {
            begun: now,
            heard: now,
            ended: None,
            takers: Vec::new(),
            done: BTreeSet::new(),
            workers: BTreeSet::new(),
            racks: BTreeSet::new(),
            copies: 0,
        }
    }

    /// Time until all had it.
    pub(super) fn took(&self) -> Duration {
        self.ended.map_or(Duration::ZERO, |ended| ended.duration_since(self.begun))
    }

    fn taker(&self, worker: &str) -> Option<&Taker> {
        self.takers.iter().find(|one| one.worker == worker)
    }

    /// Whether what a worker has of the file comes from `source`, over any number of others.
    fn descends(&self, worker: &str, source: &str) -> bool {
        let mut at = worker;
        for _ in 0..=self.takers.len() {
            match self.taker(at).map(|taker| &taker.from) {
                _ if at == source => return true,
                Some(Origin::Worker(from)) => at = from,
                _ => return false,
            }
        }
        true
    }
}

/// An offer of a candidate to the asker.
struct Offer<'a> {
    name: &'a str,
    is_near: bool,
    is_complete: bool,
    busy: usize,
    rate: f64,
    depth: usize,
}

/// All files on their paths to workers, by digest.
#[derive(Debug, Default)]
pub(crate) struct RollOuts(pub(super) BTreeMap<String, RollOut>);

impl RollOuts {
    /// Drops takers that have their file, are lost or say nothing.
    pub(super) fn tidy(
        &mut self,
        holds: impl Fn(&str, &str) -> bool,
        is_alive: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        for (digest, roll_out) in &mut self.0 {
            roll_out.workers.retain(|worker| is_alive(worker));
            roll_out.takers.retain(|one| {
                let is_silent = now.duration_since(one.heard) >= PATIENCE;
                !is_silent && is_alive(&one.worker) && !holds(&one.worker, digest)
            });
        }
        self.0.retain(|_, of| !of.takers.is_empty() || now.duration_since(of.heard) < PATIENCE);
    }

    /// Removes and returns files that all who asked for them have had for a while.
    pub(super) fn finished(
        &mut self,
        holds: impl Fn(&str, &str) -> bool,
        now: Instant,
    ) -> Vec<(String, RollOut)> {
        let is_over = |digest: &String, of: &mut RollOut| {
            if !of.takers.is_empty() || !of.workers.iter().all(|worker| holds(worker, digest)) {
                of.ended = None;
                return false;
            }
            now.duration_since(*of.ended.get_or_insert(now)) >= QUIET
        };
        self.0.extract_if(.., is_over).collect()
    }

    /// Workers that have files from this one, besides the asker. One that fetches many files in a row counts once.
    fn busy(&self, name: &str, asker: &str) -> usize {
        let takers = self.0.values().flat_map(|of| &of.takers).filter(|one| one.worker != asker);
        let there = takers.filter(|one| matches!(&one.from, Origin::Worker(from) if from == name));
        there.map(|one| one.worker.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// Chooses the source for a worker. `rate` is the measured rate of the link from a worker to the asker, bits per second.
    pub(super) fn choose(
        &mut self,
        asker: &Asker<'_>,
        workers: &[Candidate<'_>],
        rate: impl Fn(&str) -> Option<f64>,
        now: Instant,
    ) -> Choice {
        for (digest, of) in &mut self.0 {
            // A worker that asks for the next file has the previous one. If it fetches several, its next heartbeat says so.
            if of.taker(asker.worker).is_some() && digest != asker.digest {
                of.done.insert(asker.worker.to_owned());
            }
            of.takers.retain(|one| one.worker != asker.worker);
        }
        self.0.entry(asker.digest.to_owned()).or_insert_with(|| RollOut::new(now));
        let Some(of) = self.0.get(asker.digest) else { return Choice::Wait };
        let mut offers = Vec::new();
        let mut comes_later = false;
        for worker in workers {
            let is_near = worker.rack == asker.rack;
            let (flow, depth) = match of.taker(worker.name) {
                _ if worker.is_complete || of.done.contains(worker.name) => (f64::INFINITY, 0),
                None => continue,
                Some(_) if of.descends(worker.name, asker.worker) => continue,
                Some(taker) if worker.gives_parts => (taker.rate, taker.depth),
                Some(_) => {
                    comes_later |= is_near;
                    continue;
                }
            };
            let busy = self.busy(worker.name, asker.worker);
            let link = rate(worker.name).unwrap_or(if is_near { USUAL.0 } else { USUAL.1 });
            let rate = flow.min(link / (busy + 1) as f64);
            let is_complete = worker.is_complete || of.done.contains(worker.name);
            offers.push(Offer { name: worker.name, is_near, is_complete, busy, rate, depth });
        }
        let best = |is_meant: &dyn Fn(&Offer<'_>) -> bool| {
            let free = offers.iter().filter(|one| one.busy < MOST_TAKERS && is_meant(one));
            free.max_by(|a, b| {
                let (more, less) = (a.rate.total_cmp(&b.rate), b.busy.cmp(&a.busy));
                more.then(less).then(b.depth.cmp(&a.depth)).then(b.name.cmp(a.name))
            })
        };
        let of_controller = of.takers.iter().filter(|one| one.from == Origin::Controller).count();
        let near = best(&|one| one.is_near);
        if near.is_none() && (comes_later || offers.iter().any(|one| one.is_near)) {
            return Choice::Wait;
        }
        let offer = near.or_else(|| best(&|one| one.is_complete));
        let offer = match offer {
            Some(offer) => Some(offer),
            None if asker.has_store || of_controller < MOST_COPIES => None,
            None => match best(&|_| true) {
                Some(offer) => Some(offer),
                None => return Choice::Wait,
            },
        };
        let (from, rate, depth, is_near) = match offer {
            Some(one) => {
                let depth = if one.is_near && !one.is_complete { one.depth + 1 } else { 0 };
                (Origin::Worker(one.name.to_owned()), one.rate, depth, one.is_near)
            }
            None if asker.has_store => (Origin::Store, USUAL.1, 0, false),
            None => (Origin::Controller, USUAL.1, 0, false),
        };
        let worker = asker.worker.to_owned();
        let taker = Taker { worker, from: from.clone(), heard: now, bytes: 0, rate, depth, is_told: false };
        if let Some(of) = self.0.get_mut(asker.digest) {
            of.takers.push(taker);
            of.workers.insert(asker.worker.to_owned());
            of.racks.insert(asker.rack.to_owned());
            of.copies += usize::from(!is_near);
            of.heard = now;
        }
        Choice::From(from)
    }

    /// A worker says what it is fetching. This process may be new, and learns it from that. `name` is the worker at a place; none: it was
    /// not heard since this process began, and the next report says it. Until then nobody gets a file from a worker whose source is not
    /// known: that one may wait for who asks.
    pub(super) fn told(
        &mut self,
        (worker, rack): (&str, &str),
        fetching: &[Fetching],
        name: impl Fn(&str) -> Option<String>,
        now: Instant,
    ) {
        for (digest, of) in &mut self.0 {
            let is_said = fetching.iter().any(|one| one.digest == *digest);
            of.takers.retain(|one| one.worker != worker || !one.is_told || is_said);
        }
        for one in fetching {
            let of = self.0.entry(one.digest.clone()).or_insert_with(|| RollOut::new(now));
            of.heard = now;
            if let Some(taker) = of.takers.iter_mut().find(|taker| taker.worker == worker) {
                (taker.heard, taker.bytes, taker.is_told) = (now, one.bytes, true);
                continue;
            }
            let from = match one.from.as_deref().map(&name) {
                None => Origin::Controller,
                Some(Some(from)) => Origin::Worker(from),
                Some(None) => continue,
            };
            of.workers.insert(worker.to_owned());
            of.racks.insert(rack.to_owned());
            of.takers.push(Taker {
                worker: worker.to_owned(),
                from,
                heard: now,
                bytes: one.bytes,
                rate: USUAL.1,
                depth: 0,
                is_told: true,
            });
        }
    }

    /// The controller sends a file to a worker now.
    pub(super) fn heard(&mut self, digest: &str, worker: &str, now: Instant) {
        let takers = self.0.get_mut(digest).into_iter().flat_map(|of| &mut of.takers);
        takers.filter(|one| one.worker == worker).for_each(|one| one.heard = now);
    }
}

#[cfg(test)]
mod tests;
