//! The receiving end of an emulated wire whose sender is on another host: data from the connection is held until the wire
//! has carried it.
//!
//! Everything is taken from the connection at once, so that frames of all edges are on the wire in the order of arrival;
//! the credit of the edge limits them.
use super::link::{Counted, EdgeMeter};
use super::wire::Wire;
use crate::clock::{Clock, Nanoseconds};
use crate::frame::Frame;
use crate::link::{AroundReceiver, LinkError, LinkReceiver};
use std::collections::VecDeque;
use std::sync::Arc;

/// The end of an edge's wire.
#[derive(Clone)]
pub(crate) struct WireEnd {
    wire: Arc<Wire>,
    meter: Arc<EdgeMeter>,
    clock: Arc<dyn Clock>,
}

impl WireEnd {
    pub(super) fn new(wire: Arc<Wire>, meter: Arc<EdgeMeter>, clock: Arc<dyn Clock>) -> Self {
        Self { wire, meter, clock }
    }

    /// Delays the frames of a connection until the wire has carried them.
    pub(crate) fn held_back(&self, inner: Box<dyn LinkReceiver>) -> Box<dyn LinkReceiver> {
        Box::new(Receiver { inner, end: self.clone(), under_way: VecDeque::new(), ended: None, received: 0 })
    }
}

/// A frame that has come over the connection and is still on the wire.
struct UnderWay {
    arrival: Nanoseconds,
    frame: Frame,
    bytes: u64,
}

struct Receiver {
    inner: Box<dyn LinkReceiver>,
    end: WireEnd,
    under_way: VecDeque<UnderWay>,
    /// Reason why nothing more comes; returned after the last frame.
    ended: Option<LinkError>,
    received: u64,
}

impl Receiver {
    /// Puts received frames on the wire.
    fn give(&mut self) -> Result<(), LinkError> {
        while let Some(frame) = self.inner.receive()? {
            let bytes = self.inner.received_bytes();
            self.end.meter.count(Counted::of(&frame), bytes, &self.end.wire);
            let arrival = self.end.wire.take(bytes, &*self.end.clock)?;
            self.under_way.push_back(UnderWay { arrival, frame, bytes });
        }
        Ok(())
    }
}

impl AroundReceiver for Receiver {
    fn inner(&self) -> &dyn LinkReceiver {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn LinkReceiver {
        &mut *self.inner
    }

    fn receive_around(&mut self) -> Result<Option<Frame>, LinkError> {
        self.look();
        match self.under_way.pop_front_if(|first| first.arrival <= self.end.clock.now()) {
            Some(UnderWay { frame, bytes, .. }) => {
                self.received = bytes;
                Ok(Some(frame))
            }
            None if self.under_way.is_empty() => self.ended.take().map_or(Ok(None), |error| {
                self.ended = Some(LinkError::Lost);
                Err(error)
            }),
            None => Ok(None),
        }
    }

    fn received_bytes_around(&self) -> u64 {
        self.received
    }

    fn look_around(&mut self) {
        if self.ended.is_none() {
            self.ended = self.give().err();
        }
    }

    fn held_until_around(&self) -> Option<Nanoseconds> {
        self.under_way.front().map(|first| first.arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::emulation::WireSpec;
    use crate::frame::{Content, Header};
    use crate::link::{AsBytes, Link};

    fn progress(sequence: u64) -> Frame {
        let header = Header { incarnation: 1, sequence, sent_at: 0, cost: 0 };
        Frame { header, content: Content::Frontier { epoch: sequence, rows: 0, steps: Vec::new() } }
    }

    #[test]
    fn what_comes_waits_for_its_wire_and_the_end_for_what_came() {
        let clock = Arc::new(ManualClock::new());
        // 8 Mbit/s: a byte is a microsecond. A frame without records is its header and the number of records before it.
        let spec = WireSpec {
            from: "edge".into(),
            to: "cloud".into(),
            bandwidth: Some(8_000_000),
            delay: 1_000_000,
        };
        let end =
            WireEnd::new(Arc::new(Wire::new(spec)), Arc::default(), Arc::clone(&clock) as Arc<dyn Clock>);
        let connect = || AsBytes.connect(Arc::new(arrow_schema::Schema::empty())).expect("descriptors");
        let ((mut first, of_first), (mut second, of_second)) = (connect(), connect());
        let (mut of_first, mut of_second) = (end.held_back(of_first), end.held_back(of_second));
        assert_eq!(first.send(progress(0)).expect("open"), 72);
        second.send(progress(7)).expect("open");
        of_first.look();
        of_second.look();
        drop(first);
        assert_eq!(of_first.held_until(), Some(1_072_000));
        assert_eq!(of_second.held_until(), Some(1_144_000), "behind the other edge");
        clock.advance(1_071_999);
        assert!(of_first.receive().expect("not yet the end").is_none());
        clock.advance(1);
        assert_eq!(of_first.receive().expect("it came"), Some(progress(0)));
        assert_eq!(of_first.received_bytes(), 72);
        assert!(matches!(of_first.receive(), Err(LinkError::Lost)));
        assert!(matches!(of_first.receive(), Err(LinkError::Lost)), "it stays so");
        assert!(of_second.receive().expect("open").is_none());
        clock.advance(72_000);
        assert_eq!(of_second.receive().expect("it came"), Some(progress(7)));
        assert_eq!((of_second.held_until(), of_second.receive().expect("open")), (None, None));
    }
}
