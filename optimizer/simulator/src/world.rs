//! The simulation itself: its state and its events.
mod counts;
mod device;
mod join;
mod service;

pub(crate) use counts::{SinkCounts, StageCounts};

use crate::arrivals::Arrivals;
use crate::calendar::{Calendar, Event};
use crate::emission::Group;
use crate::frontier::{Epoch, Frontiers, Progress};
use crate::network::{LocationLink, Nanoseconds, Network, Out, Slot, nanoseconds};
use crate::options::Options;
use service::{Call, StageState, Worker};
use std::cmp::Reverse;
use std::collections::VecDeque;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Solution;
use tidemill_random::{Random, mixed};
use tidemill_spec::emission;

/// Most records that a group emits in one event: limits are checked between events.
const MOST_AT_ONCE: u64 = 1 << 12;

/// Bytes of a progress message: the header of its frame, and the watermark of one epoch.
const PROGRESS_BYTES: f64 = 88.0;

/// A record in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Record {
    /// Due time at its source; for a pair: the latest of its records.
    born: Nanoseconds,
    key: u64,
    group: u32,
    class: u32,
    epoch: Epoch,
    /// A random number that decides whether an operator makes records of it: two operators that receive the record and
    /// make equally many records make them from the same ones, so that these can meet again.
    chance: u32,
    /// Epochs until the last record of its event time.
    ahead: u32,
}

/// An item on a connection that takes time.
#[derive(Debug)]
enum OnTheWay {
    /// A record, to an input of a stage.
    Record(u32, u8, Record),
    Progress(Progress),
}

/// State of a connection that takes time, or of the engine's path to one stage: items stay in order.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    waiting: VecDeque<(Nanoseconds, OnTheWay)>,
    free_at: Nanoseconds,
    pub(crate) bytes: f64,
    pub(crate) busy: Nanoseconds,
    pub(crate) records: u64,
    pub(crate) longest_wait: Nanoseconds,
}

/// The mutable state.
pub(crate) struct World<'a> {
    pub(crate) network: &'a Network<'a>,
    pub(crate) options: &'a Options,
    pub(crate) arrivals: &'a Arrivals,
    tick: Nanoseconds,
    /// The counted time.
    pub(crate) window: (Nanoseconds, Nanoseconds),
    pub(crate) now: Nanoseconds,
    /// Without progress messages: a plan with many classes is expected to have as many as one with few.
    pub(crate) events: u64,
    /// All events and emitted records, as a measure of computing time.
    pub(crate) work: u64,
    calendar: Calendar,
    /// Stages that may start a batch once all events of this time are processed: like the engine's, they consider all
    /// records that arrived together, not only the first.
    ready: Vec<usize>,
    pub(crate) groups: Vec<Group>,
    frontiers: Frontiers,
    pub(crate) stages: Vec<StageState>,
    pub(crate) workers: Vec<Worker>,
    /// Batches between their stages and their devices.
    away: Vec<Option<Call>>,
    /// Connections between locations, then one to each stage without a link.
    pub(crate) links: Vec<LinkState>,
    pub(crate) sinks: Vec<SinkCounts>,
    /// Records by edge.
    pub(crate) sent: Vec<u64>,
    /// Records in flight, and their maximum.
    pub(crate) on_the_way: u64,
    pub(crate) most_on_the_way: u64,
    /// Number of late groups, the time since when one is, and the total late time.
    late_groups: u32,
    late_since: Nanoseconds,
    pub(crate) late: Nanoseconds,
    /// Records that never met a partner.
    pub(crate) unmatched: u64,
    /// Ticks for which joins keep records without a partner.
    patience: Epoch,
    chances: Random,
    draws: Random,
    /// Draws for progress messages: separate, so that they do not change the times of calls.
    progress_draws: Random,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        problem: &Problem,
        solution: &Solution,
        network: &'a Network<'a>,
        arrivals: &'a Arrivals,
        options: &'a Options,
    ) -> Self {
        let end = nanoseconds(options.seconds);
        let tick = nanoseconds(problem.limits.tick_seconds).max(1);
        let groups = network.groups.iter().zip(0u64..).map(|(sources, number)| {
            let sources: Vec<(usize, f64)> =
                sources.iter().map(|source| (*source, network.sources[*source].rate)).collect();
            Group::new(&sources, number, options.seed, options.aligned)
        });
        // Records of sources with different rates share a key for the interval of the slower one.
        let spans = network.groups.iter().map(|sources| {
            let rates = sources.iter().map(|source| network.sources[*source].rate);
            let slowest = rates.clone().fold(f64::INFINITY, f64::min);
            if rates.into_iter().any(|rate| rate > slowest) { 1e9 / slowest / tick as f64 } else { 0.0 }
        });
        let patience = spans.fold(0.0, f64::max).ceil().min(1e6) as Epoch + 2;
        let mut world = Self {
            network,
            options,
            arrivals,
            tick,
            window: (nanoseconds(options.warm_up).min(end), end),
            now: 0,
            events: 0,
            work: 0,
            calendar: Calendar::default(),
            ready: Vec::new(),
            groups: groups.collect(),
            frontiers: Frontiers::new(problem, solution, network, &options.sinks),
            stages: network.stages.iter().map(StageState::new).collect(),
            workers: (0..network.workers).map(|_| Worker::new(options.calls_at_once.max(1))).collect(),
            away: Vec::new(),
            links: (0..network.links.len() + network.stages.len()).map(|_| LinkState::default()).collect(),
            sinks: options
                .sinks
                .iter()
                .map(|sink| SinkCounts::new(sink, options, network.classes()))
                .collect(),
            sent: vec![0; problem.edges.len()],
            on_the_way: 0,
            most_on_the_way: 0,
            late_groups: 0,
            late_since: 0,
            late: 0,
            unmatched: 0,
            patience,
            chances: Random::of_seed(mixed(options.seed ^ 0xC4A9)),
            draws: Random::of_seed(mixed(options.seed ^ 0xD2A5)),
            progress_draws: Random::of_seed(mixed(options.seed ^ 0xF207)),
        };
        world.plan_first();
        world
    }

    fn plan_first(&mut self) {
        for group in 0..self.groups.len() {
            for position in 0..self.groups[group].sources.len() {
                self.groups[group].plan_next(position, self.arrivals, self.window.1);
                let emitter = &self.groups[group].sources[position];
                let (source, to) = (emitter.source, emitter.due.map(|due| self.epoch(due)));
                self.frontiers.source_moves(source, None, to);
            }
            if let Some((_, due)) = self.groups[group].next() {
                self.calendar.enter(due, Event::Due(group as u32));
            }
        }
        self.settle();
    }

    /// Length of a tick in seconds.
    pub(crate) fn tick_seconds(&self) -> f64 {
        self.tick as f64 / 1e9
    }

    fn epoch(&self, time: Nanoseconds) -> Epoch {
        emission::epoch(time, self.tick)
    }

    /// Processes the next event; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some((time, event)) = self.calendar.next() else { return false };
        self.now = time;
        self.events += u64::from(!matches!(event, Event::Arrives(_)));
        self.work += 1;
        match event {
            Event::Due(group) => self.emit(group as usize),
            Event::Arrives(link) => self.arrives(link as usize),
            Event::Ends(worker, call) => self.ends(worker as usize, call as usize),
            Event::Reaches(place) => self.reaches(place),
            Event::Returns(place) => self.returns(place),
            Event::Fills(stage) => {
                let state = &mut self.stages[stage as usize];
                if state.wakes_at == Some(time) {
                    state.wakes_at = None;
                    self.look_at(stage as usize);
                }
            }
        }
        self.settle();
        if self.calendar.time() != Some(time) {
            self.start_batches();
        }
        true
    }

    /// Advances frontiers as far as possible; stateful stages take the epochs that this completes, sinks publish them.
    /// Messages over links are sent afterwards, following the records that this produced.
    fn settle(&mut self) {
        let (mut advanced, mut said) = (Vec::new(), Vec::new());
        while self.frontiers.step(&mut advanced, &mut said) {
            for node in advanced.drain(..) {
                if let Some(sink) = self.frontiers.sink(node) {
                    self.sinks[sink].publish(self.frontiers.input(node), self.now);
                } else if self.network.stages[node].is_stateful {
                    self.take_epochs(node);
                }
            }
        }
        // Only the last position of a frontier that moved several times is sent.
        said.sort_unstable_by_key(|progress| (progress.channel, Reverse(progress.epoch)));
        said.dedup_by_key(|progress| progress.channel);
        for progress in said {
            self.say(progress);
        }
    }

    /// Sends a progress message over its link: as in the engine, with the bandwidth and the delay of the records.
    fn say(&mut self, progress: Progress) {
        let engine = self.network.stages[progress.to].engine;
        let frame = engine.map_or(0.0, |engine| engine.frame.at(self.progress_draws.unit()));
        let (arrival, _) = self.occupy(progress.link, PROGRESS_BYTES);
        self.will_arrive(progress.link, arrival + nanoseconds(frame), OnTheWay::Progress(progress));
    }

    /// Emits the due records of a group of sources.
    fn emit(&mut self, index: usize) {
        let begin = self.work;
        loop {
            let Some((position, due)) = self.groups[index].next() else {
                self.is_in_time(index);
                return;
            };
            if due > self.now {
                self.is_in_time(index);
                self.calendar.enter(due, Event::Due(index as u32));
                return;
            }
            // At extreme rates an unlimited number is due at one time.
            if self.work - begin >= MOST_AT_ONCE || self.on_the_way >= self.options.most_records {
                self.calendar.enter(self.now, Event::Due(index as u32));
                return;
            }
            let epoch = self.epoch(due);
            let group = &mut self.groups[index];
            if group.must_wait(epoch, Epoch::from(self.options.lead_ticks)) || self.now >= self.window.1 {
                group.is_held_back = self.now < self.window.1;
                if group.late_since.is_none() {
                    group.late_since = Some(due);
                    if self.late_groups == 0 {
                        self.late_since = self.now;
                    }
                    self.late_groups += 1;
                }
                if self.now >= self.window.1 {
                    self.end_sources(index);
                }
                return;
            }
            let (source, key) = (group.sources[position].source, group.sources[position].key);
            let last = group.last_of_time(position, self.network.sources[source].at_one_time, self.arrivals);
            group.sources[position].number += 1;
            group.sources[position].early += u64::from(due < self.window.0);
            self.work += 1;
            group.plan_next(position, self.arrivals, self.window.1);
            let next = group.sources[position].due;
            let class = self.network.class_of(index, key);
            let record = Record {
                born: due,
                key,
                group: index as u32,
                class,
                epoch,
                chance: self.chance_of(index, key),
                ahead: last.map_or(0, |last| u32::try_from(self.epoch(last) - epoch).unwrap_or(u32::MAX)),
            };
            let from = Slot { location: self.network.origin(class, source), worker: None };
            let network = self.network;
            for out in &network.sources[source].outs {
                self.send(from, true, out, record);
            }
            let next = next.map(|due| self.epoch(due));
            self.frontiers.source_moves(source, Some(epoch), next);
            // A later stage may be free again before the next of several records of one time.
            self.settle();
        }
    }

    /// Ends a group that waits at the end of the simulation: it emits nothing more.
    fn end_sources(&mut self, index: usize) {
        for position in 0..self.groups[index].sources.len() {
            let emitter = &mut self.groups[index].sources[position];
            let (source, due) = (emitter.source, emitter.due.take());
            let from = due.map(|due| self.epoch(due));
            self.frontiers.source_moves(source, from, None);
        }
    }

    fn is_in_time(&mut self, index: usize) {
        if self.groups[index].late_since.take().is_some() {
            self.late_groups -= 1;
            if self.late_groups == 0 {
                self.late += self.now.min(self.window.1).saturating_sub(self.late_since.max(self.window.0));
            }
        }
    }

    /// The time in which at least one group was late, up to now.
    pub(crate) fn late_time(&self) -> Nanoseconds {
        let goes_on = self.late_groups > 0;
        let since = self.late_since.max(self.window.0);
        self.late + if goes_on { self.now.min(self.window.1).saturating_sub(since) } else { 0 }
    }

    /// Records of one key have equal chances at all sources, as otherwise partners in a join would not meet.
    fn chance_of(&self, group: usize, key: u64) -> u32 {
        (mixed(key ^ mixed(self.options.seed ^ ((group as u64) << 32))) >> 32) as u32
    }

    /// Sends copies of a record along an edge, by the edge's ratio.
    fn send(&mut self, from: Slot, is_source: bool, out: &Out, record: Record) {
        let network = self.network;
        let to = network.stage(record.class, out.to);
        let (copies, mut record) = self.copies(record, out.ratio);
        for copy in 0..copies {
            if copy > 0 {
                record.chance = (self.chances.draw() >> 32) as u32;
            }
            if self.counts() {
                self.sent[out.edge] += 1;
            }
            let way = network.way(from.location, network.stages[to].slot.location);
            let engine = self.engine_time(from, is_source, to, out.bytes, way);
            match way {
                LocationLink::Free if engine == 0 => {
                    self.hold(to, &record);
                    self.deliver(to, out.input, record);
                }
                LocationLink::Free => {
                    self.begin(&record);
                    self.frontiers.comes(to, record.epoch);
                    let arriving = OnTheWay::Record(to as u32, out.input, record);
                    self.will_arrive(network.links.len() + to, self.now + engine, arriving);
                }
                LocationLink::Link(link) => {
                    self.begin(&record);
                    self.frontiers.comes(to, record.epoch);
                    self.transfer(link, to, out, record, engine);
                }
            }
        }
    }

    /// The engine's overhead until the stage `to` has a record and, with a model, can call it.
    fn engine_time(
        &mut self,
        from: Slot,
        is_source: bool,
        to: usize,
        bytes: f64,
        way: LocationLink,
    ) -> Nanoseconds {
        let stage = &self.network.stages[to];
        let Some(engine) = stage.engine else { return 0 };
        let mut seconds = if is_source { engine.source.at(self.draws.unit()) } else { 0.0 };
        seconds += match way {
            LocationLink::Link(_) => engine.frame.at(self.draws.unit()) + engine.seconds_per_byte * bytes,
            LocationLink::Free if from != stage.slot => engine.hand_over.at(self.draws.unit()),
            LocationLink::Free => 0.0,
        };
        seconds += engine.call.as_ref().map_or(0.0, |call| call.at(self.draws.unit()));
        nanoseconds(seconds)
    }

    fn transfer(&mut self, index: usize, to: usize, out: &Out, record: Record, engine: Nanoseconds) {
        let (arrival, waited) = self.occupy(index, out.bytes);
        if self.counts() {
            let link = &mut self.links[index];
            link.bytes += out.bytes;
            link.records += 1;
            link.longest_wait = link.longest_wait.max(waited);
        }
        self.will_arrive(index, arrival + engine, OnTheWay::Record(to as u32, out.input, record));
    }

    /// Occupies a link with a number of bytes, after earlier ones; returns the arrival time and the wait.
    fn occupy(&mut self, index: usize, bytes: f64) -> (Nanoseconds, Nanoseconds) {
        let facts = &self.network.links[index];
        let link = &mut self.links[index];
        let begin = link.free_at.max(self.now);
        link.free_at = begin + facts.bytes_per_second.map_or(0, |bandwidth| nanoseconds(bytes / bandwidth));
        let (from, until) = self.window;
        link.busy += link.free_at.clamp(from, until) - begin.clamp(from, until);
        (link.free_at + facts.delay, begin - self.now)
    }

    /// Schedules an arrival at a stage, not before earlier items.
    fn will_arrive(&mut self, index: usize, arrival: Nanoseconds, arriving: OnTheWay) {
        let waiting = &mut self.links[index].waiting;
        let arrival = waiting.back().map_or(arrival, |(before, _)| arrival.max(*before));
        waiting.push_back((arrival, arriving));
        if waiting.len() == 1 {
            self.calendar.enter(arrival, Event::Arrives(index as u32));
        }
    }

    fn arrives(&mut self, index: usize) {
        let link = &mut self.links[index];
        let Some((_, arriving)) = link.waiting.pop_front() else { return };
        if let Some((next, _)) = link.waiting.front() {
            self.calendar.enter(*next, Event::Arrives(index as u32));
        }
        match arriving {
            OnTheWay::Record(stage, input, record) => {
                self.events += 1;
                self.frontiers.arrives(stage as usize, record.epoch);
                self.deliver(stage as usize, input, record);
            }
            OnTheWay::Progress(progress) => self.frontiers.comes_to_know(progress),
        }
    }

    /// A record arrives at a stage.
    fn deliver(&mut self, stage: usize, input: u8, record: Record) {
        if self.network.stages[stage].is_stateful {
            self.wait_for_epoch(stage, input, record);
        } else {
            self.take(stage, record);
        }
    }

    /// Number of records made from one, and the remainder of its chance.
    fn copies(&self, mut record: Record, ratio: f64) -> (u32, Record) {
        let whole = (ratio + 1e-9).floor();
        let part = ratio - whole;
        if part < 1e-9 {
            return (whole as u32, record);
        }
        let chance = f64::from(record.chance) / 2f64.powi(32);
        let more = chance < part;
        // The remainder is again uniformly distributed.
        let left = if more { chance / part } else { (chance - part) / (1.0 - part) };
        record.chance = (left * 2f64.powi(32)) as u32;
        (whole as u32 + u32::from(more), record)
    }

    /// A record enters the system.
    fn begin(&mut self, record: &Record) {
        self.on_the_way += 1;
        self.most_on_the_way = self.most_on_the_way.max(self.on_the_way);
        self.groups[record.group as usize].on_the_way.add(record.epoch);
    }

    /// A record is in a stage.
    fn hold(&mut self, stage: usize, record: &Record) {
        self.begin(record);
        self.frontiers.hold(stage, record.epoch);
    }

    /// A record has left a stage.
    fn release(&mut self, stage: usize, record: &Record) {
        self.on_the_way -= 1;
        self.frontiers.release(stage, record.epoch);
        let group = &mut self.groups[record.group as usize];
        if group.on_the_way.remove(record.epoch) && group.is_held_back {
            group.is_held_back = false;
            self.calendar.enter(self.now, Event::Due(record.group));
        }
    }

    /// Whether the present time is counted.
    fn counts(&self) -> bool {
        (self.window.0..self.window.1).contains(&self.now)
    }
}
