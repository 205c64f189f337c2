//! Times of replies, by a proxy without a connection.
use super::*;
use crate::emulated::{Emulated, Profile};

/// Heads of the messages that a proxy wrote.
struct Written(Sender<Head>);

impl Outgoing for Written {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let head = parts[0].first_chunk().unwrap();
        self.0.send(Head::from_bytes(head).unwrap()).unwrap();
        Ok(parts.iter().map(|part| part.len()).sum())
    }
}

/// The time at the device in the reply to a flush that comes in an hour, and these calls come now.
fn at_device_after(calls: &[Op]) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let (limits, (written, heads)) = (Limits::default(), channel());
    let outgoing: Mutex<Box<dyn Outgoing>> = Mutex::new(Box::new(Written(written)));
    let (to, events) = channel();
    let arrivals = calls.iter().map(|op| (*op, now()));
    let flush = (Op::Flush, now() + Duration::from_secs(3600));
    for (sequence, (op, at)) in (1..).zip(arrivals.chain([flush])) {
        let (kind, numbers) = (op as u8, [1, 0, 0, 0]);
        let head = Head { kind, failed: false, placed: false, payload: 0, sequence, numbers };
        let message = Message { head, payload: bytes::Bytes::new(), placed: None, fate: Fate::Read };
        to.send(Event::Call(Arrived { message, at })).unwrap();
    }
    drop(to);
    let mut proxy = Proxy {
        device: Emulated::new(Profile::default()).open(&limits).unwrap(),
        limits,
        admission: &mut Everybody(limits),
        store: &mut Store::open(&folder.path().join("models"), 1 << 20).unwrap(),
        folder: folder.path(),
        outgoing: &outgoing,
        computation: &Computation::default(),
        runs: 0,
        refused: None,
        answer: channel().0,
        first_failure: None,
        first_arrival: None,
        queued: &AtomicU64::new(((calls.len() + 1) * HEAD) as u64),
        taken: 0,
        lent: None,
        handled: 0,
        reported: 0,
        models: 0,
        loaded: 0,
        ending: &Ending::default(),
        computed: Duration::ZERO,
    };
    proxy.serve(&events, &AtomicBool::new(false)).unwrap();
    let reply = heads.try_iter().filter(|head| head.kind == REPLY).last().unwrap();
    Duration::from_nanos(reply.numbers[1])
}

#[test]
fn the_time_at_the_device_begins_with_the_first_call_of_a_run() {
    assert!(at_device_after(&[Op::Load]) > Duration::ZERO, "it waits for what was posted before");
    // What frees the tensors of a run is posted at its end.
    assert_eq!(at_device_after(&[Op::Free, Op::Unload, Op::Report]), Duration::ZERO);
    assert_eq!(at_device_after(&[Op::Load, Op::Flush, Op::Free]), Duration::ZERO);
}
