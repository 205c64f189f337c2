//! Stages and workers: records wait at their stage, batches wait at their worker, which takes them in order.
use super::{Record, StageCounts, World};
use crate::calendar::Event;
use crate::frontier::Epoch;
use crate::network::{Nanoseconds, Stage, nanoseconds};
use crate::times::ServiceTimes;
use std::collections::{BTreeMap, VecDeque};
use tidemill_spec::batching::{Batching, Load, Step};
use tidemill_spec::quota::Quota;

/// A stage.
#[derive(Debug)]
pub(crate) struct StageState {
    batching: Batching,
    /// Time of the next check.
    pub(super) wakes_at: Option<Nanoseconds>,
    is_ready: bool,
    /// Records with their time of arrival.
    queue: VecDeque<(Nanoseconds, Record)>,
    /// Batches with the worker.
    running: usize,
    /// Records that wait for their epoch, with their input and time of arrival.
    pub(super) pending: BTreeMap<Epoch, Vec<(u8, Nanoseconds, Record)>>,
    /// Records taken whose partners are missing, by group and key, with their input.
    pub(super) alone: BTreeMap<(u32, u64), Vec<(u8, Record)>>,
    pub(crate) counts: StageCounts,
}

impl StageState {
    pub(super) fn new(stage: &Stage<'_>) -> Self {
        Self {
            batching: Batching::new(stage.max_batch, stage.budget as i64),
            wakes_at: None,
            is_ready: false,
            queue: VecDeque::new(),
            running: 0,
            pending: BTreeMap::new(),
            alone: BTreeMap::new(),
            counts: StageCounts::default(),
        }
    }
}

/// A batch with its worker.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) stage: usize,
    pub(super) records: Vec<(Nanoseconds, Record)>,
    lasts: Nanoseconds,
    /// Whether the worker is the device of the stage.
    pub(super) is_on_device: bool,
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(super) queue: VecDeque<Call>,
    /// Its concurrent calls.
    calls: Vec<Option<Call>>,
    pub(crate) busy: Nanoseconds,
    quota: Quota,
    /// Time until which its quota is used by the started calls, as if it were granted evenly.
    quota_until: Nanoseconds,
    /// The stage of the newest call, and its end.
    newest: Option<(usize, Nanoseconds)>,
    /// Empty lists for reuse.
    spare: Vec<Vec<(Nanoseconds, Record)>>,
}

impl Worker {
    pub(super) fn new(calls: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            calls: (0..calls).map(|_| None).collect(),
            busy: 0,
            quota: Quota::default(),
            quota_until: 0,
            newest: None,
            spare: Vec::new(),
        }
    }
}

impl World<'_> {
    /// A record may be served now: a filter before the operator drops some.
    pub(super) fn take(&mut self, index: usize, record: Record) {
        let gain = self.network.stages[index].gain;
        let (copies, record) = self.copies(record, gain);
        for copy in 0..copies {
            let mut record = record;
            if copy > 0 {
                record.chance = (self.chances.draw() >> 32) as u32;
                self.hold(index, &record);
            }
            self.serve(index, record);
        }
        if copies == 0 {
            self.release(index, &record);
        }
    }

    fn serve(&mut self, index: usize, record: Record) {
        let counts = self.counts();
        let (now, window) = (self.now, self.window);
        let state = &mut self.stages[index];
        state.counts.taken += u64::from(counts);
        if self.network.stages[index].worker.is_none() {
            state.counts.served += u64::from(counts);
            self.leave(index, record);
            return;
        }
        state.batching.arrived(now as i64, 1);
        state.queue.push_back((now, record));
        state.counts.queue.change(1, now, window);
        self.look_at(index);
    }

    /// Marks a stage that may have a batch to start.
    pub(super) fn look_at(&mut self, index: usize) {
        if !std::mem::replace(&mut self.stages[index].is_ready, true) {
            self.ready.push(index);
        }
    }

    /// Starts batches of the marked stages.
    pub(super) fn start_batches(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        for index in ready.drain(..) {
            self.stages[index].is_ready = false;
            self.start_what_is_due(index);
        }
        self.ready = ready;
    }

    /// Gives batches to the worker as the engine's inference node does.
    fn start_what_is_due(&mut self, index: usize) {
        let Some(worker) = self.network.stages[index].worker else { return };
        loop {
            let state = &mut self.stages[index];
            let Some((oldest, _)) = state.queue.front() else { return };
            let load = Load {
                waiting: state.queue.len(),
                since: *oldest as i64,
                running: state.running,
                in_flight: state.running,
                copies: 1,
            };
            match state.batching.step(load, self.now as i64) {
                Step::Nothing => return,
                Step::Wait(until) => {
                    let until = until as Nanoseconds;
                    if state.wakes_at != Some(until) {
                        state.wakes_at = Some(until);
                        self.calendar.enter(until, Event::Fills(index as u32));
                    }
                    return;
                }
                Step::Start(size) => {
                    state.running += 1;
                    let mut records = self.workers[worker].spare.pop().unwrap_or_default();
                    records.extend(state.queue.drain(..size));
                    self.workers[worker].queue.push_back(Call {
                        stage: index,
                        records,
                        lasts: 0,
                        is_on_device: false,
                    });
                    self.begin_calls(worker);
                }
            }
        }
    }

    /// Starts waiting calls, up to the worker's limit.
    pub(super) fn begin_calls(&mut self, index: usize) {
        loop {
            let worker = &mut self.workers[index];
            let Some(free) = worker.calls.iter().position(Option::is_none) else { return };
            let Some(mut call) = worker.queue.pop_front() else { return };
            let state = &mut self.stages[call.stage];
            let size = call.records.len();
            let part = self.draws.unit();
            let facts = &self.network.stages[call.stage];
            let times = match call.is_on_device {
                true => facts.remote.as_ref().and_then(|remote| remote.times),
                false => facts.times,
            };
            // After another stage's call or a pause the processor's caches are cold.
            let follows = worker.newest == Some((call.stage, self.now));
            let pause = if follows { 0.0 } else { times.map_or(0.0, |times| times.longer_after_pause(part)) };
            let needed = nanoseconds(times.map_or(0.0, |times| times.at(size as u32, part)) + pause);
            let (from, to) = self.window;
            let (end, busy) = match times.and_then(ServiceTimes::share) {
                None => {
                    let end = self.now + needed;
                    (end, end.clamp(from, to) - self.now.clamp(from, to))
                }
                Some(share) => {
                    let end = worker.quota.end(self.now as i64, needed as i64, share) as Nanoseconds;
                    // The used part of the quota: a short call leaves the rest of a period usable.
                    let begin = worker.quota_until.max(self.now);
                    worker.quota_until = begin + (needed as f64 / share) as Nanoseconds;
                    (end, worker.quota_until.clamp(from, to) - begin.clamp(from, to))
                }
            };
            call.lasts = end - self.now;
            worker.newest = Some((call.stage, end));
            worker.busy += busy;
            if !call.is_on_device {
                state.counts.busy += busy;
                state.counts.queue.change(-(size as i64), self.now, self.window);
            }
            if !call.is_on_device && (from..to).contains(&self.now) {
                state.counts.batches += 1;
                state.counts.called += size as u64;
                call.records.iter().for_each(|(came, _)| state.counts.waiting.add(self.now - came));
            }
            worker.calls[free] = Some(call);
            self.calendar.enter(end, Event::Ends(index as u32, free as u32));
        }
    }

    /// A call has ended.
    pub(super) fn ends(&mut self, worker: usize, place: usize) {
        let Some(call) = self.workers[worker].calls[place].take() else { return };
        if call.is_on_device {
            self.begin_calls(worker);
            self.send_back(call);
            return;
        }
        let state = &mut self.stages[call.stage];
        state.running -= 1;
        state.batching.served(call.lasts as i64);
        // The next one is already with the worker.
        self.begin_calls(worker);
        let stage = call.stage;
        match self.network.stages[stage].remote {
            Some(_) => self.send_to_device(call),
            None => self.leave_all(call),
        }
        self.look_at(stage);
    }

    /// The records of a batch have been served.
    pub(super) fn leave_all(&mut self, mut call: Call) {
        if self.counts() {
            self.stages[call.stage].counts.served += call.records.len() as u64;
        }
        for (_, record) in call.records.drain(..) {
            self.leave(call.stage, record);
        }
        if let Some(worker) = self.network.stages[call.stage].worker {
            self.workers[worker].spare.push(call.records);
        }
    }

    /// A record has been served: forwards it to sinks and later stages.
    fn leave(&mut self, index: usize, record: Record) {
        let network = self.network;
        let stage = &network.stages[index];
        for (sink, ratio) in &stage.sinks {
            for _ in 0..self.copies(record, *ratio).0 {
                self.sinks[*sink].record((record.born, record.class, record.epoch), self.now, self.window);
            }
        }
        for out in &stage.outs {
            self.send(stage.slot, false, out, record);
        }
        self.release(index, &record);
    }
}

#[cfg(test)]
mod tests;
