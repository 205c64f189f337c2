//! A link whose frames arrive when the wire between the two places has carried them.
//!
//! Meanwhile the frames are in another link, so the data in transit is limited by the credits of the edge. Control words
//! return without delay: credits are larger than the content of a wire of common bandwidth and delay.
use super::WireSpec;
use super::alarm::Alarm;
use super::wire::Wire;
use crate::clock::{Clock, Nanoseconds};
use crate::frame::{Content, Control, Frame};
use crate::link::{Link, LinkEnds, LinkError, LinkReceiver, LinkSender};
use crate::wake::Waker;
use arrow_schema::SchemaRef;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_operators::record::batch_bytes;

/// Data sent by one edge.
#[derive(Debug, Default)]
pub(crate) struct EdgeMeter {
    pub(super) records: AtomicU64,
    pub(super) record_bytes: AtomicU64,
    pub(super) data_bytes: AtomicU64,
}

/// The counted part of a frame.
pub(super) enum Counted {
    Data { records: u64, record_bytes: u64 },
    Progress,
}

impl Counted {
    pub(super) fn of(frame: &Frame) -> Self {
        match &frame.content {
            Content::Data { batch, .. } => {
                Self::Data { records: batch.num_rows() as u64, record_bytes: batch_bytes(batch) as u64 }
            }
            Content::Frontier { .. } | Content::Elsewhere { .. } => Self::Progress,
        }
    }
}

impl EdgeMeter {
    /// Counts a frame of `bytes` bytes.
    pub(super) fn count(&self, counted: Counted, bytes: u64, wire: &Wire) {
        let add = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        match counted {
            Counted::Data { records, record_bytes } => {
                add(&wire.data_bytes, bytes);
                add(&self.records, records);
                add(&self.record_bytes, record_bytes);
                add(&self.data_bytes, bytes);
            }
            Counted::Progress => add(&wire.progress_bytes, bytes),
        }
    }
}

/// Connects through another link and holds its frames back until a wire has carried them.
pub struct EmulatedLink {
    inner: Arc<dyn Link>,
    wire: Arc<Wire>,
    meter: Arc<EdgeMeter>,
    alarm: Arc<Alarm>,
    clock: Arc<dyn Clock>,
}

impl EmulatedLink {
    /// Connects over a separate wire.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub fn over(wire: WireSpec, inner: Arc<dyn Link>, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let alarm = Arc::new(Alarm::start(&clock)?);
        Ok(Self::new(inner, Arc::new(Wire::new(wire)), Arc::default(), alarm, clock))
    }

    /// Connects over a shared wire.
    pub(crate) fn new(
        inner: Arc<dyn Link>,
        wire: Arc<Wire>,
        meter: Arc<EdgeMeter>,
        alarm: Arc<Alarm>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { inner, wire, meter, alarm, clock }
    }
}

/// Frames in transit.
#[derive(Default)]
struct UnderWay {
    /// Arrival time of each frame in the inner link, in order.
    arrivals: VecDeque<Nanoseconds>,
    sender_gone: bool,
}

/// Between the two ends.
struct Between {
    under_way: Mutex<UnderWay>,
    /// Wakes the receiver.
    waker: Arc<Waker>,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Sender {
    /// `None` only while it is dropped.
    inner: Option<Box<dyn LinkSender>>,
    between: Arc<Between>,
    wire: Arc<Wire>,
    meter: Arc<EdgeMeter>,
    alarm: Arc<Alarm>,
    clock: Arc<dyn Clock>,
}

struct Receiver {
    inner: Box<dyn LinkReceiver>,
    between: Arc<Between>,
    clock: Arc<dyn Clock>,
}

impl Link for EmulatedLink {
    fn connect(&self, schema: SchemaRef) -> Result<LinkEnds, LinkError> {
        let (sender, receiver) = self.inner.connect(schema)?;
        let between = Arc::new(Between { under_way: Mutex::default(), waker: Arc::new(Waker::new()?) });
        Ok((
            Box::new(Sender {
                inner: Some(sender),
                between: Arc::clone(&between),
                wire: Arc::clone(&self.wire),
                meter: Arc::clone(&self.meter),
                alarm: Arc::clone(&self.alarm),
                clock: Arc::clone(&self.clock),
            }),
            Box::new(Receiver { inner: receiver, between, clock: Arc::clone(&self.clock) }),
        ))
    }
}

impl Sender {
    fn inner(&self) -> &dyn LinkSender {
        self.inner.as_deref().expect("it is taken only when this is dropped")
    }
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        let counted = Counted::of(&frame);
        let Some(inner) = &mut self.inner else { return Err(LinkError::Lost) };
        let bytes = inner.send(frame)?;
        self.meter.count(counted, bytes, &self.wire);
        let arrival = self.wire.take(bytes, &*self.clock)?;
        self.between.lock().arrivals.push_back(arrival);
        self.alarm.set(arrival, &self.between.waker);
        Ok(bytes)
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        self.inner.as_mut().map_or(Err(LinkError::Lost), |inner| inner.receive_control())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner().descriptor()
    }

    fn clear(&self) -> bool {
        self.inner().clear()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.inner = None;
        self.between.lock().sender_gone = true;
        self.between.waker.wake();
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        {
            let mut under_way = self.between.lock();
            match under_way.arrivals.front() {
                Some(arrival) if *arrival > self.clock.now() => return Ok(None),
                Some(_) => drop(under_way.arrivals.pop_front()),
                // A frame may be in the inner link, without a known time of arrival yet.
                None if !under_way.sender_gone => return Ok(None),
                None => {}
            }
        }
        self.inner.receive()
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        self.inner.send_control(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.between.waker.as_fd()
    }

    fn clear(&self) -> bool {
        self.between.waker.clear()
    }
}
