//! A channel whose two ends are joined by the service.
use crate::attached::{Attached, Looked};
use crate::edge_name::EdgeName;
use crate::passage::{Carried, Effects, Passage};
use crate::urgency::Urgency;
use arrow_array::RecordBatch;
use rustix::event::epoll;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;
use tidemill_link::frame::Control;
use tidemill_link::link::LinkError;
use tidemill_link::remote::{Parcel, ParcelReceiver, ParcelSender, Recoder};

/// Bytes that may wait for the receiver of a channel in this process; a sender with credit for more waits itself.
const WAITING: u64 = 8 << 20;
/// Frames of one channel before others have their turn.
const QUOTA: usize = 64;

/// Why a channel is not joined any more.
pub(crate) enum Parted {
    /// One of its ends is gone, or a policy cut it.
    Lost,
    /// A policy could not judge a frame: a pause is needed before the next try.
    Failed,
    /// An end sends what is no frame.
    Damaged(String),
}

impl From<LinkError> for Parted {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost => Self::Lost,
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// A frame that a policy holds.
struct Held {
    parcel: Parcel,
    batch: Option<RecordBatch>,
    effects: Effects,
    number: u64,
    /// The policy that holds it.
    at: usize,
    since: Instant,
    until: Instant,
}

/// A channel whose ends are joined.
pub(crate) struct Edge {
    pub(crate) name: EdgeName,
    channel: u64,
    source: ParcelReceiver,
    sink: ParcelSender,
    recoder: Recoder,
    pub(crate) policies: Vec<Rc<Attached>>,
    held: Option<Held>,
    /// Frames that were looked at.
    number: u64,
    /// Frames that were taken out, by which the numbers of later ones are lower.
    taken_out: u64,
    /// Rows that were taken out since the last frontier.
    uncounted: u64,
    /// Rows that were taken out.
    pub(crate) rejected: u64,
}

impl Edge {
    pub(crate) fn new(
        (name, channel): (EdgeName, u64),
        (source, sink): (ParcelReceiver, ParcelSender),
        policies: Vec<Rc<Attached>>,
    ) -> Self {
        Self {
            name,
            channel,
            source,
            sink,
            recoder: Recoder::default(),
            policies,
            held: None,
            number: 0,
            taken_out: 0,
            uncounted: 0,
            rejected: 0,
        }
    }

    /// Registers both ends with this token.
    pub(crate) fn watch(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let ends = [
            (self.source.descriptor(), self.source.wants_writable()),
            (self.sink.descriptor(), self.sink.wants_writable()),
        ];
        for (descriptor, wants_writable) in ends {
            let mut flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            if wants_writable {
                flags |= epoll::EventFlags::OUT;
            }
            epoll::add(epoll, descriptor, epoll::EventData::new_u64(token), flags)?;
        }
        Ok(())
    }

    /// Forgets both ends. A descriptor may outlive its end, in another process.
    pub(crate) fn unwatch(&self, epoll: BorrowedFd<'_>) {
        for descriptor in [self.source.descriptor(), self.sink.descriptor()] {
            let _ = epoll::delete(epoll, descriptor);
        }
    }

    /// Its descriptors were ready.
    pub(crate) fn ready(&self) {
        self.sink.clear();
        self.source.clear();
    }

    /// Returns when to look again at a frame that a policy holds.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.until)
    }

    /// Other policies look at its frames from now on. One that holds a frame and stays is asked again; else the first is.
    pub(crate) fn follow(&mut self, policies: Vec<Rc<Attached>>, now: Instant) {
        if let Some(held) = &mut self.held {
            let holder = self.policies.get(held.at);
            let same = |policy: &Rc<Attached>| holder.is_some_and(|holder| Rc::ptr_eq(policy, holder));
            held.at = policies.iter().position(same).unwrap_or(0);
            held.until = now;
        }
        self.policies = policies;
    }

    /// Moves what can be moved. Returns whether there is more to do at once.
    pub(crate) fn pump(&mut self, now: Instant, urgent: &mut Urgency) -> Result<bool, Parted> {
        for _ in 0..QUOTA {
            self.controls()?;
            let held = match self.held.take() {
                Some(held) if held.until > now => {
                    self.held = Some(held);
                    return Ok(false);
                }
                Some(held) => held,
                None => {
                    if self.sink.waiting() > WAITING {
                        return Ok(false);
                    }
                    let Some(parcel) = self.source.receive()? else { return Ok(false) };
                    if !parcel.has_records() {
                        self.pass_progress(parcel)?;
                        continue;
                    }
                    let (mut parcel, mut effects) = (parcel, Effects::default());
                    let batch = match self.recoder.must_read() {
                        // The schema can be read once, so what is read is what policies judge.
                        true => {
                            effects.copied += parcel.make_private()?;
                            Some(self.recoder.read(&parcel)?)
                        }
                        false => None,
                    };
                    self.number += 1;
                    let number = self.number;
                    Held { parcel, batch, effects, number, at: 0, since: now, until: now }
                }
            };
            self.judge(held, now, urgent)?;
        }
        Ok(true)
    }

    /// Control words go to the sender as they come.
    fn controls(&mut self) -> Result<(), Parted> {
        while let Some(control) = self.sink.receive_control()? {
            self.source.send_control(control)?;
        }
        Ok(())
    }

    fn pass_progress(&mut self, mut parcel: Parcel) -> Result<(), Parted> {
        if parcel.is_frontier() {
            parcel.uncount(std::mem::take(&mut self.uncounted))?;
        }
        self.send(parcel)
    }

    fn judge(&mut self, mut held: Held, now: Instant, urgent: &mut Urgency) -> Result<(), Parted> {
        let mut again = held.since < now;
        while let Some(policy) = self.policies.get(held.at) {
            let mut frame = Passage {
                edge: &self.name,
                channel: self.channel,
                now,
                number: held.number,
                waiting: self.sink.waiting(),
                carried: Carried::Frame(&mut held.parcel, &mut self.recoder),
                batch: &mut held.batch,
                effects: &mut held.effects,
                urgent,
            };
            match policy.look(&mut frame, again) {
                Looked::Pass => {
                    if again {
                        policy.held(held.since, now);
                    }
                    (held.at, held.since, again) = (held.at + 1, now, false);
                }
                Looked::Wait(time) => {
                    held.until = now + time;
                    self.held = Some(held);
                    return Ok(());
                }
                Looked::Cut => return Err(Parted::Lost),
                Looked::Failed => return Err(Parted::Failed),
            }
        }
        let Held { mut parcel, batch, effects, .. } = held;
        self.rejected += effects.rejected;
        self.uncounted += effects.rejected;
        match batch.filter(|_| effects.is_changed) {
            None => self.recoder.passes(),
            Some(batch) if batch.num_rows() == 0 && self.recoder.has_passed() => {
                self.taken_out += 1;
                // The receiver would give it back.
                let cost = parcel.header().cost;
                return Ok(self.source.send_control(Control::Credit(cost))?);
            }
            // Without rows, if it is the first: the schema travels with it.
            Some(batch) => parcel = self.recoder.write(&parcel, batch)?,
        }
        self.send(parcel)
    }

    fn send(&mut self, mut parcel: Parcel) -> Result<(), Parted> {
        if self.taken_out > 0 {
            let sequence = parcel.header().sequence;
            let lower = sequence.checked_sub(self.taken_out);
            parcel.renumber(lower.ok_or_else(|| Parted::Damaged("frames are numbered wrongly".into()))?);
        }
        self.sink.send(&parcel)?;
        Ok(())
    }

    /// Returns whether a policy holds a frame.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }
}
