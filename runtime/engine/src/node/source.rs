//! Emits the records of a source: by an open-loop schedule or as fast as the slot takes them. They are cut into epochs that
//! depend on the records, and for streams on the clock. The epochs are logged, so that a replay repeats them.
mod broken;
mod clocked;
mod columns;
mod live;
mod pool;
mod reader;
mod schedule;

pub(crate) use pool::ReaderPool;
pub(crate) use schedule::{BYTES_PER_EPOCH, RECORDS_PER_EPOCH, Schedule};

use self::broken::Broken;
use self::clocked::{Clock, Clocked};
use self::live::Live;
use self::reader::{Chunk, Reader};
use super::{Emit, Node};
use crate::alignment::Seat;
use crate::clock::Nanoseconds;
use crate::context::{Backpressure, Durable, QUOTA, SlotContext, StageContext};
use crate::cut::{Cuts, Hold};
use crate::executor::Notifier;
use crate::frame::{CLOSED, Epoch, WatermarkStep};
use crate::metrics::count;
use crate::routing::Selector;
use crate::store::{Cut, End, EpochLog};
use crate::watermark::Track;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_operators::api::{BoundSource, SourcePosition};
use tidemill_operators::record::{EventTime, batch_bytes, record_schema, source_id};
use tidemill_spec::routing::ClassTable;

/// Settings of a source stage.
pub(crate) struct SourceSettings {
    /// Number of the source in the workflow: the `_source` column.
    pub(crate) number: u32,
    pub(crate) bound: BoundSource,
    pub(crate) schedule: Schedule,
    pub(crate) classes: ClassTable,
    /// The classes of this stage, if the source has several stages.
    pub(crate) selector: Selector,
    /// Epochs by which emission may be ahead of the durable epoch.
    pub(crate) lead: u64,
    /// Allows it to be further ahead while a downstream edge is cut.
    pub(crate) cuts: Option<Arc<Cuts>>,
    /// Hold of downstream stages because an edge is cut.
    pub(crate) hold: Rc<Cell<Hold>>,
    /// Epochs of a former run to repeat.
    pub(crate) replay: Option<EpochLog>,
    /// Threads that read it.
    pub(crate) readers: Arc<ReaderPool>,
    /// Its seat if it is read by event time together with other sources: they cut the epochs.
    pub(crate) seat: Option<Seat>,
}

pub(crate) struct SourceNode {
    slot: Rc<SlotContext>,
    stage: StageContext,
    settings: SourceSettings,
    schema: SchemaRef,
    reader: Reader,
    chunk: Option<Chunk>,
    /// Records of the chunk already taken.
    taken: u64,
    /// Start of the previous chunk, and its number of records: the start of the next one.
    behind: Option<(SourcePosition, u64)>,
    sequence: u64,
    newest: EventTime,
    /// Watermark at the start of the epoch.
    watermark: EventTime,
    epoch: Epoch,
    /// Records and bytes in the current epoch, for schedules that count.
    in_epoch: (u64, usize),
    /// Records before this one belong to the current epoch, if the source has a seat.
    known: u64,
    /// Ends epochs by the clock, if there is no other rule and the time of the next record is unknown.
    clocked: Option<Clocked>,
    /// Its epochs are those of the run's clock, if it is live.
    live: Option<Live>,
    durable: Durable,
    backpressure: Backpressure,
    /// Records that a former incarnation has emitted.
    emitted_before: u64,
    /// Epochs before it are not emitted again after a restart.
    resume_at: Epoch,
    /// Set if it cannot be read any further.
    broken: Option<Broken>,
    track: Track,
    ended: bool,
    stop: Arc<AtomicBool>,
    index: usize,
}

impl Drop for SourceNode {
    fn drop(&mut self) {
        // The process may end before the thread of the reader does.
        if let Some(requests) = &self.settings.bound.requests {
            requests.end_reading();
        }
    }
}

impl SourceNode {
    #[expect(clippy::too_many_arguments, reason = "the parts of one stage, each of another kind")]
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        stage: StageContext,
        settings: SourceSettings,
        track: Track,
        notifier: Notifier,
        stop: Arc<AtomicBool>,
        durable: Durable,
        backpressure: Backpressure,
        index: usize,
    ) -> Self {
        let resume_at = durable.get();
        let restart = slot.epochs.restart(&stage.instance, resume_at);
        let schema = record_schema(&settings.bound.output);
        let emitted_before = slot.epochs.emitted(&stage.instance);
        let (epoch, cut) = restart.map_or((0, None), |(epoch, cut)| (epoch, Some(cut)));
        let processor = Arc::clone(&stage.metrics.processor);
        let rereads = settings.bound.rereads;
        let live = (settings.bound.live && settings.replay.is_none()).then(|| {
            let again = (rereads && cut.is_some()).then(|| slot.epochs.begun_after(&stage.instance, epoch));
            Live::new(&settings.schedule, again.map(|begun| (begun, emitted_before)))
        });
        let is_stream = settings.bound.is_stream() && live.is_none();
        let is_clocked = is_stream && settings.seat.is_none() && settings.replay.is_none();
        let clocked = is_clocked.then(|| {
            let begun = slot.epochs.begun_after(&stage.instance, epoch);
            let is_first = cut.is_none() && emitted_before == 0;
            Clocked::new(settings.schedule.tick, begun.iter(), is_first, notifier.clone())
        });
        if let Some(seat) = &settings.seat {
            seat.enter(notifier.clone());
        }
        let name = is_clocked.then_some(&*stage.instance);
        if let Some(requests) = &settings.bound.requests {
            let next = cut.as_ref().map_or(0, |cut| cut.sequence.saturating_sub(cut.skip));
            requests.begin_reading(settings.number, next);
        }
        let reader =
            Reader::start(&settings.bound, (cut.as_ref(), name), notifier, processor, &settings.readers);
        let behind =
            cut.as_ref().filter(|_| live.is_some() && rereads).map(|cut| (cut.position.clone(), cut.skip));
        let (sequence, newest, watermark) =
            cut.map_or((0, EventTime::MIN, EventTime::MIN), |cut| (cut.sequence, cut.newest, cut.watermark));
        // What an earlier incarnation emitted does not come again: other records have other numbers.
        let sequence = if live.is_some() && !rereads { sequence.max(emitted_before) } else { sequence };
        if watermark > EventTime::MIN {
            track.record(WatermarkStep { epoch, watermark });
        }
        Self {
            slot,
            stage,
            settings,
            schema,
            reader,
            chunk: None,
            taken: 0,
            behind,
            sequence,
            newest,
            watermark,
            epoch,
            in_epoch: (0, 0),
            known: 0,
            clocked,
            live,
            durable,
            backpressure,
            emitted_before,
            resume_at,
            broken: None,
            track,
            ended: false,
            stop,
            index,
        }
    }

    /// Event time of the next record, if the source has none of its own.
    fn synthetic_time(&self, sequence: u64) -> EventTime {
        self.settings.schedule.event_time(sequence)
    }

    /// Event time of the next record, if it is known and has one.
    fn next_time(&self) -> Option<EventTime> {
        let chunk = self.chunk.as_ref()?;
        let row = chunk.rows_between(self.taken, self.taken + 1).next()?;
        chunk.times.as_ref()?.get(row).copied()
    }

    /// The watermark before the next record, as far as this source alone knows. The next record is known by now and counts:
    /// with records in order, all older ones have arrived, and downstream stages need not wait for another epoch.
    fn own_watermark(&self) -> EventTime {
        self.watermark_after(self.next_time().map_or(self.newest, |next| self.newest.max(next)))
    }

    /// The watermark when nothing is newer than `newest`.
    fn watermark_after(&self, newest: EventTime) -> EventTime {
        match self.reader.has_times() {
            true => newest.saturating_sub(self.settings.bound.out_of_order_microseconds),
            false => self.synthetic_time(self.sequence),
        }
    }

    /// Ends the current epoch if the next record belongs to a later one, `last` at most.
    fn turn_epoch(&mut self, last: Epoch) {
        if self.live.is_some() {
            return; // by the clock: see `turn_live`
        }
        if let Some(log) = &self.settings.replay {
            let begun = log.cuts.range(self.epoch + 1..).take_while(|(_, cut)| cut.sequence <= self.sequence);
            let begun: Vec<_> = begun.map(|(epoch, cut)| (*epoch, cut.watermark)).collect();
            for (epoch, watermark) in begun {
                // Times from the schedule are those of this run.
                let watermark = if self.reader.has_times() { watermark } else { self.own_watermark() };
                self.begin_epoch(epoch, watermark);
            }
            return;
        }
        if let Some(seat) = &self.settings.seat {
            let place = seat.place(self.sequence, self.epoch);
            self.known = place.until;
            for (epoch, time) in place.begun.into_iter().take_while(|(epoch, _)| *epoch <= last) {
                let out_of_order = self.settings.bound.out_of_order_microseconds;
                let allowed = if self.reader.has_times() { out_of_order } else { 0 };
                self.begin_epoch(epoch, time.saturating_sub(allowed));
            }
            return;
        }
        self.begin_as_before();
        let next = self.epoch_of(self.sequence, self.in_epoch);
        if next > self.epoch {
            self.begin_epoch(next, self.own_watermark());
        }
    }

    /// Starts an epoch again that the clock started with the next record, or before it. The replay ends there, and the
    /// record need not be there yet.
    fn begin_as_before(&mut self) {
        let begun = self.clocked.as_mut().and_then(|clocked| clocked.begun_with(self.sequence, self.epoch));
        if let Some((epoch, watermark)) = begun {
            self.begin_epoch(epoch, watermark.unwrap_or_else(|| self.watermark_after(self.newest)));
        }
    }

    /// The epoch of a record, if the current one has these records and bytes before it.
    fn epoch_of(&self, sequence: u64, in_epoch: (u64, usize)) -> Epoch {
        let scheduled = self.settings.schedule.epoch(sequence, self.epoch, in_epoch);
        if self.clocked.is_none() || scheduled >= self.epoch {
            return scheduled;
        }
        // The clock moved it beyond its schedule, because its rate was not met: epochs end as those of a stream without a
        // rate.
        self.epoch + u64::from(in_epoch.0 >= RECORDS_PER_EPOCH || in_epoch.1 >= BYTES_PER_EPOCH)
    }

    fn begin_epoch(&mut self, epoch: Epoch, watermark: EventTime) {
        self.log_cut();
        if watermark > EventTime::MIN {
            self.track.record(WatermarkStep { epoch, watermark });
            self.watermark = watermark;
        }
        self.epoch = epoch;
        if let Some(requests) = &self.settings.bound.requests {
            requests.begin_epoch(epoch, self.sequence);
        }
        self.in_epoch = (0, 0);
        if let Some(clocked) = &mut self.clocked {
            clocked.begin();
        }
        self.log_cut();
    }

    /// Ends the current epoch if it has lasted long enough; returns whether something is to be emitted now.
    fn end_by_clock(&mut self) -> bool {
        // Before that, nothing is known of the input: not even whether it has times.
        if self.behind.is_some() && self.chunk.is_none() {
            self.begin_as_before();
        }
        let Some(clocked) = &mut self.clocked else { return true };
        let (epochs, durable) = (&self.slot.epochs, self.durable.get());
        let kept = || epochs.kept().min(durable);
        match clocked.turn(self.slot.now(), (self.epoch, self.sequence), kept) {
            Ok(None) => true,
            Ok(Some(epoch)) => {
                self.begin_epoch(epoch, self.watermark_after(self.newest));
                true
            }
            // The reader notifies.
            Err(None) => false,
            Err(Some(text)) => {
                self.stage.operator_failed(&self.slot, text);
                false
            }
        }
    }

    /// Logs the source's position in an epoch that is shared with others or started by the clock, even without a record of
    /// this source: a restart and a replay find its watermark there.
    fn log_cut(&self) {
        let is_logged = |log: &EpochLog| log.cuts.contains_key(&self.epoch);
        let is_shared = self.settings.seat.is_some() || self.settings.replay.as_ref().is_some_and(is_logged);
        let nowhere = SourcePosition::default();
        let place = match (&self.chunk, &self.behind) {
            (Some(chunk), _) => (&chunk.position, self.taken),
            (None, Some((position, records))) => (position, *records),
            (None, None) if self.live.is_some() => (&nowhere, 0),
            (None, None) => return,
        };
        if is_shared || self.clocked.is_some() || self.live.is_some() {
            self.slot.epochs.record(&self.stage.instance, self.epoch, self.cut(place));
        }
    }

    fn cut(&self, (position, skip): (&SourcePosition, u64)) -> Cut {
        Cut {
            position: position.clone(),
            skip,
            sequence: self.sequence,
            newest: self.newest,
            watermark: self.watermark,
        }
    }

    /// Publishes the records read to the other sources of the group, up to the end of the run.
    fn publish(&self, seat: &Seat, chunk: &Chunk) {
        let left = self.settings.schedule.records.map_or(u64::MAX, |most| most.saturating_sub(self.sequence));
        let records = self.taken..chunk.records.min(self.taken.saturating_add(left));
        let mut row = chunk.rows_between(0, self.taken).end;
        let mut newest = self.newest_with(chunk);
        let newest: Vec<(EventTime, usize)> = records
            .map(|record| {
                let bytes = chunk.bytes_of(record);
                let Some(times) = &chunk.times else {
                    return (self.synthetic_time(self.sequence + (record - self.taken)), bytes);
                };
                // An unreadable record has no row and no time.
                if row < times.len() && chunk.record_of(row) == record {
                    newest = newest.max(times[row]);
                    row += 1;
                }
                (newest, bytes)
            })
            .collect();
        seat.publish(self.sequence, &newest);
    }

    /// The newest event time with what the source stated in a chunk.
    fn newest_with(&self, chunk: &Chunk) -> EventTime {
        let out_of_order = self.settings.bound.out_of_order_microseconds;
        self.newest.max(chunk.stated.map_or(EventTime::MIN, |stated| stated.saturating_add(out_of_order)))
    }

    /// Ends the stream, in every incarnation and in a replay at one epoch: receivers may have passed it already.
    /// `complete`: the source itself has ended.
    fn end(&mut self, complete: bool) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.stage.metrics.ended.store(true, Ordering::Release);
        self.stage.metrics.behind.store(0, Ordering::Relaxed);
        let known_end = self.known_end();
        let limit = !complete && known_end.map_or(!self.stop.load(Ordering::Acquire), |end| end.limit);
        match known_end {
            Some(end) => {
                if self.settings.seat.is_some() || self.settings.replay.is_some() {
                    self.turn_epoch(end.epoch);
                }
                self.epoch = self.epoch.max(end.epoch);
            }
            // The others of its group may not have progressed enough to decide whether another epoch starts here.
            None if self.settings.seat.is_some() => {}
            None => self.turn_epoch(Epoch::MAX),
        }
        self.track.record(WatermarkStep { epoch: self.epoch + 1, watermark: EventTime::MAX });
        let end = End { sequence: self.sequence, epoch: self.epoch, limit };
        self.slot.epochs.end(&self.stage.instance, end);
        if let Some(seat) = &self.settings.seat {
            seat.leave(complete);
        }
    }

    /// Ends the stream at its limit. With a limit of records, it was cut short only if there are more: a file can
    /// answer that; a stream may stay silent and is not read further.
    fn end_at_limit(&mut self) {
        let is_asked = self.settings.schedule.has_given_all(self.sequence)
            && self.chunk.is_none()
            && !self.stop.load(Ordering::Acquire)
            && self.known_end().is_none()
            && self.settings.seat.is_none()
            && !self.settings.bound.is_stream();
        match is_asked.then(|| self.reader.next()) {
            // The reader notifies when it knows.
            Some(Ok(None)) => {}
            Some(Err(None)) => self.end(true),
            _ => self.end(false),
        }
    }

    /// The end of a former incarnation, or of the replayed run.
    fn known_end(&self) -> Option<End> {
        let replayed = self.settings.replay.as_ref().map(EpochLog::stop);
        replayed.or_else(|| self.slot.epochs.known_end(&self.stage.instance))
    }

    /// Returns whether the record `sequence` is beyond the end; `known_end` is [`Self::known_end`].
    fn ends_before(&self, sequence: u64, known_end: Option<End>, now: Nanoseconds) -> bool {
        if let Some(end) = known_end {
            return sequence >= end.sequence;
        }
        // Records of a former incarnation are emitted again, even if the run was stopped since.
        if sequence < self.emitted_before {
            return false;
        }
        self.stop.load(Ordering::Acquire) || self.settings.schedule.finished(sequence, now)
    }

    /// Emits due records and returns their bytes; an error when nothing more can be done now.
    fn step(&mut self, out: &mut Emit) -> Result<usize, ()> {
        if self.broken.is_some() {
            self.fail_when_durable();
            return Err(());
        }
        if self.ends_before(self.sequence, self.known_end(), self.slot.now()) {
            self.end_at_limit();
            return Err(());
        }
        if !self.end_by_clock() {
            return Err(());
        }
        self.turn_live();
        if self.chunk.is_none() {
            match self.reader.next() {
                Ok(Some(mut chunk)) => {
                    if let (Some(clocked), Some(marks)) = (&mut self.clocked, chunk.marks.take()) {
                        clocked.keep_in(marks);
                    }
                    // A restart or a repeated read starts in the middle of a chunk.
                    self.taken = chunk.skip;
                    if let Some(seat) = &self.settings.seat {
                        self.publish(seat, &chunk);
                    }
                    self.chunk = Some(chunk);
                }
                Ok(None) => {
                    // A silent source must not keep a limited run from ending.
                    match self.settings.schedule.ends_at() {
                        Some(end) if end <= self.slot.now() && self.sequence >= self.emitted_before => {
                            self.end(false)
                        }
                        Some(end) => self.slot.wake_at(end, self.index),
                        None => {}
                    }
                    let now = self.slot.now();
                    match self.clocked.as_ref().map(|clocked| clocked.look(now)) {
                        Some(Clock::EndsAt(end)) => self.slot.wake_at(end, self.index),
                        // The epoch ended since the check above.
                        Some(Clock::Ended) => self.slot.wake_at(now, self.index),
                        Some(Clock::Open) | None => {}
                    }
                    return Err(());
                }
                Err(None) => {
                    self.end(true);
                    return Err(());
                }
                Err(Some(error)) => {
                    self.break_off(error);
                    return Err(());
                }
            }
        }
        // Only now is it known whether the records carry event times of their own.
        self.turn_epoch(Epoch::MAX);
        if self.settings.seat.is_some() && self.known <= self.sequence {
            // The seat notifies when the others have published enough.
            if let Some(end) = self.settings.schedule.ends_at() {
                self.slot.wake_at(end, self.index);
            }
            return Err(());
        }
        let now = self.slot.now();
        let due = self.settings.schedule.due(self.sequence);
        if self.settings.schedule.is_open_loop() {
            self.stage.metrics.behind.store((now - due).max(0), Ordering::Relaxed);
        }
        let is_ahead = self.epoch > self.durable.get().saturating_add(self.settings.lead);
        if is_ahead && !self.goes_on() {
            self.slot.ahead.set(true);
            return Err(());
        }
        if !self.backpressure.may_take(self.slot.budget) {
            return Err(());
        }
        if due > now {
            self.slot.wake_at(due, self.index);
            return Err(());
        }
        Ok(self.emit_run(now, out))
    }

    /// Returns whether a downstream edge is cut, and the host keeps the output meanwhile.
    fn goes_on(&self) -> bool {
        let can_wait = self.backpressure.can_wait.get();
        let hold = self.settings.hold.get();
        self.settings.cuts.as_ref().is_some_and(|cuts| cuts.goes_on(hold, can_wait))
    }

    /// Emits the records from here on that are due and belong to the current epoch.
    fn emit_run(&mut self, now: i64, out: &mut Emit) -> usize {
        let Some(chunk) = self.chunk.take() else { return 0 };
        let replay_limit = self.settings.replay.as_ref().map(|log| {
            let next = log.cuts.range(self.epoch + 1..).next().map(|(_, cut)| cut.sequence);
            next.unwrap_or_else(|| log.stop().sequence)
        });
        let first_sequence = self.sequence;
        let first = self.taken;
        let mut last = first;
        let mut bytes = 0;
        let cut = self.cut((&chunk.position, self.taken));
        let next_begun = match (&self.clocked, &self.live) {
            (Some(clocked), _) => clocked.next_begun(),
            (None, live) => live.as_ref().map_or(u64::MAX, Live::next_begun),
        };
        // Looked up under a lock, so once for all records.
        let known_end = self.known_end();
        while last < chunk.records {
            let sequence = first_sequence + (last - first);
            let in_epoch = (self.in_epoch.0 + (last - first), self.in_epoch.1 + bytes);
            let belongs = match replay_limit {
                Some(limit) => sequence < limit,
                None if self.settings.seat.is_some() => sequence < self.known,
                None if sequence >= next_begun => false,
                None if self.live.is_some() => true,
                None => self.epoch_of(sequence, in_epoch) == self.epoch,
            };
            if last > first
                && (!belongs
                    || self.settings.schedule.due(sequence) > now
                    || self.ends_before(sequence, known_end, now))
            {
                break;
            }
            bytes += chunk.bytes_of(last);
            last += 1;
        }
        self.slot.epochs.record(&self.stage.instance, self.epoch, cut);
        self.newest = self.newest_with(&chunk);
        for (offset, letter) in &chunk.dead_letters {
            if (first..last).contains(offset) && self.epoch >= self.resume_at {
                let mut letter = letter.clone();
                let (number, sequence) = (self.settings.number, first_sequence + (offset - first));
                letter.id = Some(source_id(number, sequence));
                if let Some(tracer) = &self.slot.tracer {
                    let stage = (&*self.stage.instance, &*self.stage.operator);
                    tracer.unread(stage, (number, sequence), &mut letter, now);
                }
                self.stage.dead_letter(&self.slot, self.epoch, letter);
            }
        }
        let lag = now - self.settings.schedule.due(first_sequence);
        if self.settings.schedule.is_open_loop() {
            self.stage.metrics.schedule_lag.fetch_max(lag, Ordering::Relaxed);
        }
        let rows = chunk.rows_between(first, last);
        if !rows.is_empty() {
            let batch = self.with_metadata(&chunk, rows, first, now);
            self.stage.metrics.newest_time.fetch_max(self.newest.saturating_add(1), Ordering::Relaxed);
            if self.epoch >= self.resume_at
                && let Some(batch) = self.settings.selector.select(&batch)
            {
                count(&self.stage.metrics.records_out, batch.num_rows() as u64);
                if let Some(sampler) = &self.slot.sampler {
                    sampler.sent(&self.stage.operator, &batch);
                }
                if let Some(tracer) = &self.slot.tracer {
                    tracer.left(&self.stage.instance, &batch, now);
                }
                out.give(self.epoch, batch);
            }
        }
        self.in_epoch.0 += last - first;
        self.in_epoch.1 += bytes;
        self.sequence += last - first;
        self.slot.epochs.emit(&self.stage.instance, self.sequence);
        self.taken = last;
        let has_caught_up =
            last == chunk.records && chunk.has_caught_up && self.sequence >= self.emitted_before;
        if let Some(clocked) = &mut self.clocked {
            clocked.emitted(now, has_caught_up);
        }
        match last < chunk.records {
            true => self.chunk = Some(chunk),
            false => self.behind = Some((chunk.position, chunk.records)),
        }
        bytes.max(1)
    }
}

impl Node for SourceNode {
    fn receive(&mut self, _port: usize, _epoch: Epoch, _batch: RecordBatch, _out: &mut Emit) {}

    fn run(&mut self, _frontier: Epoch, out: &mut Emit) {
        let mut quota = QUOTA;
        while !self.ended {
            match self.step(out) {
                Ok(bytes) if bytes >= quota => {
                    // Lets other nodes of the slot run first.
                    self.slot.wake_at(self.slot.now(), self.index);
                    return;
                }
                Ok(bytes) => quota -= bytes,
                Err(()) => return,
            }
        }
    }

    fn hold(&self, _frontier: Epoch) -> Epoch {
        if self.ended { CLOSED } else { self.epoch }
    }
}

/// Bytes of one record of a batch, on average.
pub(crate) fn bytes_per_record(batch: &RecordBatch) -> usize {
    batch_bytes(batch).checked_div(batch.num_rows()).unwrap_or(0)
}
