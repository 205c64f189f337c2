//! A faulty link around any other, with counters.
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_engine::faults::{Faults, Point};
use tidemill_engine::frame::{Content, Control, Frame};
use tidemill_engine::link::{Link, LinkEnds, LinkError, LinkReceiver, LinkSender};
use tidemill_operators::record::batch_bytes;
use tidemill_spec::plan::PlanEdge;

/// Fault of frames in transit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// After every n data frames the sending end holds all frames until it was asked for control words or given frames n
    /// times. The held frames of a sender that dies are lost.
    Stall(u64),
    /// Data frame number n of each connection never arrives.
    Lose(u64),
    /// Data frame number n of each connection arrives after the next frame.
    Reorder(u64),
    /// Data frame number n of each connection is truncated, which the carrier notices.
    Truncate(u64),
}

/// Counters of all connections of a faulty link.
#[derive(Debug, Default)]
pub(crate) struct FaultCounts {
    /// Frames that were held for a while.
    pub(crate) stalled: AtomicU64,
    /// Frames held now.
    pub(crate) held: AtomicU64,
    /// Frames that never arrived: lost in transit, or held when the sender died.
    pub(crate) lost: AtomicU64,
    pub(crate) reordered: AtomicU64,
    pub(crate) truncated: AtomicU64,
    /// Data frames that cost less than they hold, or were sent without credit.
    pub(crate) wrong_credits: AtomicU64,
}

impl FaultCounts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames that did not arrive as they were sent.
    pub(crate) fn all(&self) -> u64 {
        [&self.stalled, &self.lost, &self.reordered, &self.truncated]
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }
}

/// A link over another one.
pub(crate) struct FaultyLink {
    pub(crate) inner: Arc<dyn Link>,
    pub(crate) fault: Fault,
    pub(crate) counts: Arc<FaultCounts>,
}

struct Sender {
    inner: Box<dyn LinkSender>,
    fault: Fault,
    counts: Arc<FaultCounts>,
    data: u64,
    kept_back: VecDeque<Frame>,
    /// Calls for which a stall continues.
    calls: u64,
    /// Bytes granted by the receiver and not used yet.
    granted: i64,
}

struct Receiver {
    inner: Box<dyn LinkReceiver>,
    fault: Fault,
    counts: Arc<FaultCounts>,
    data: u64,
}

impl Link for FaultyLink {
    fn connect(&self, schema: arrow_schema::SchemaRef) -> Result<LinkEnds, LinkError> {
        let (sender, receiver) = self.inner.connect(schema)?;
        let (fault, counts) = (self.fault, Arc::clone(&self.counts));
        let sender = Sender {
            inner: sender,
            fault,
            counts: Arc::clone(&counts),
            data: 0,
            kept_back: VecDeque::new(),
            calls: 0,
            granted: 0,
        };
        Ok((Box::new(sender), Box::new(Receiver { inner: receiver, fault, counts, data: 0 })))
    }
}

impl Sender {
    /// Sends the held frames once the stall is over.
    fn go_on(&mut self) -> Result<(), LinkError> {
        self.calls = self.calls.saturating_sub(1);
        if self.calls == 0 {
            while let Some(frame) = self.kept_back.pop_front() {
                self.counts.held.fetch_sub(1, Ordering::Relaxed);
                self.inner.send(frame)?;
            }
        }
        Ok(())
    }

    fn keep_back(&mut self, frame: Frame) {
        FaultCounts::add(&self.counts.held);
        self.kept_back.push_back(frame);
    }
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        let is_data = matches!(frame.content, Content::Data { .. });
        if is_data {
            self.data += 1;
            // It may send while any credit is left.
            if self.granted <= 0 {
                FaultCounts::add(&self.counts.wrong_credits);
            }
            self.granted -= frame.header.cost as i64;
        }
        let number = self.data;
        match self.fault {
            Fault::Lose(n) if is_data && number == n => {
                FaultCounts::add(&self.counts.lost);
                return Ok(0);
            }
            Fault::Reorder(n) if is_data && number == n => {
                FaultCounts::add(&self.counts.reordered);
                self.keep_back(frame);
                return Ok(0);
            }
            Fault::Reorder(_) => {
                let sent = self.inner.send(frame)?;
                self.calls = 0;
                return self.go_on().map(|()| sent);
            }
            Fault::Stall(every) if is_data && number.is_multiple_of(every) && self.kept_back.is_empty() => {
                FaultCounts::add(&self.counts.stalled);
                self.keep_back(frame);
                self.calls = every;
                return Ok(0);
            }
            _ => {}
        }
        if !self.kept_back.is_empty() {
            // In order, after those that wait.
            FaultCounts::add(&self.counts.stalled);
            self.keep_back(frame);
            return self.go_on().map(|()| 0);
        }
        self.inner.send(frame)
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        if matches!(self.fault, Fault::Stall(_)) && !self.kept_back.is_empty() {
            self.go_on()?;
        }
        let control = self.inner.receive_control()?;
        match control {
            // As in the engine: the first word opens a window of 4 MiB.
            Some(Control::Resume(_)) => self.granted = 4 << 20,
            Some(Control::Credit(bytes)) => self.granted += bytes as i64,
            _ => {}
        }
        Ok(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn clear(&self) -> bool {
        self.inner.clear()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let kept_back = self.kept_back.len() as u64;
        self.counts.held.fetch_sub(kept_back, Ordering::Relaxed);
        self.counts.lost.fetch_add(kept_back, Ordering::Relaxed);
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        let frame = self.inner.receive()?;
        let Some(Content::Data { batch, .. }) = frame.as_ref().map(|frame| &frame.content) else {
            return Ok(frame);
        };
        self.data += 1;
        if frame.as_ref().is_some_and(|frame| frame.header.cost < batch_bytes(batch) as u64) {
            FaultCounts::add(&self.counts.wrong_credits);
        }
        if self.fault == Fault::Truncate(self.data) {
            FaultCounts::add(&self.counts.truncated);
            return Err(LinkError::Damaged("fewer bytes than announced".to_owned()));
        }
        Ok(frame)
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        self.inner.send_control(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn clear(&self) -> bool {
        self.inner.clear()
    }
}

/// Puts a fault on every edge that one of the run's stages sends (all without a name), beside other faults.
pub(crate) struct OnEdges {
    pub(crate) fault: Fault,
    pub(crate) from: Option<&'static str>,
    pub(crate) counts: Arc<FaultCounts>,
    pub(crate) deaths: Arc<dyn Faults>,
}

impl Faults for OnEdges {
    fn dies(&self, slot: &str, incarnation: u32, point: Point<'_>) -> bool {
        self.deaths.dies(slot, incarnation, point)
    }

    fn carrier(&self, edge: &PlanEdge, link: Arc<dyn Link>) -> Arc<dyn Link> {
        match self.from {
            Some(from) if from != edge.from => link,
            _ => Arc::new(FaultyLink { inner: link, fault: self.fault, counts: Arc::clone(&self.counts) }),
        }
    }
}
