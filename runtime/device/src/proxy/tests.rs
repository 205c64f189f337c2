//! Times of replies, by a proxy without a connection; and limits and the end of a session.
use super::handles::MOST_HANDLES;
use super::*;
use crate::emulated::{Emulated, Profile, artifact_of};
use crate::session::{CallError, Session};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

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
        handles: Handles::default(),
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

/// A session with an emulated device, and the end of its proxy.
fn session(ending: &Ending) -> (Session, JoinHandle<io::Result<()>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ending = ending.clone();
    let served = std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("models"), 1 << 20).unwrap();
        let (emulated, place) = (Emulated::new(Profile::default()), folder.path().join("session"));
        serve_until(
            Carrier::of_socket(theirs)?,
            &emulated,
            &mut Everybody::default(),
            &mut store,
            &place,
            &ending,
        )
    });
    (Session::open(Carrier::of_socket(ours).unwrap(), "tests", "proxy").unwrap(), served)
}

/// Why the calls until now failed.
fn failure(session: &Session) -> String {
    match session.flush() {
        Err(CallError::Failed(failure)) => failure.error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn handles_without_bytes_have_a_limit() {
    let (session, served) = session(&Ending::default());
    let artifact = artifact_of("m", b"m", 1, 1);
    let load = || session.load(&artifact, |_| Ok(Box::new(&b"m"[..]))).unwrap();
    let model = load();
    // The model, and as many tensors as there may be beside it.
    let mut tensors = Vec::new();
    for at in 1..MOST_HANDLES {
        let mut lane = session.lane();
        tensors.push(match at % 2 {
            0 => lane.create(Element::Float32, &[0]).unwrap(),
            _ => lane.upload(Element::Text, &[0, 3], &[]).unwrap(),
        });
    }
    session.flush().unwrap();
    let limit = format!("at most {MOST_HANDLES}");
    session.lane().create(Element::Uint8, &[0]).unwrap();
    assert!(failure(&session).contains(&limit));
    session.lane().upload(Element::Uint8, &[0], &[]).unwrap();
    assert!(failure(&session).contains(&limit));
    session.lane().run(model, &[tensors[0]], &[0]).unwrap();
    assert!(failure(&session).contains(&limit));
    load();
    assert!(failure(&session).contains(&limit));
    // What is freed makes room.
    session.lane().free(&tensors[..1]).unwrap();
    let outputs = session.lane().run(model, &[tensors[1]], &[0]).unwrap();
    session.flush().unwrap();
    session.lane().free(&outputs).unwrap();
    session.lane().unload(model).unwrap();
    session.lane().unload(model).unwrap();
    load();
    session.lane().create(Element::Uint8, &[0]).unwrap();
    session.flush().unwrap();
    session.lane().create(Element::Uint8, &[0]).unwrap();
    assert!(failure(&session).contains(&limit));
    drop(session);
    served.join().unwrap().unwrap();
}

#[test]
fn a_goodbye_says_whether_the_device_is_drained() {
    for is_drained in [false, true] {
        let ending = Ending::default();
        let (session, served) = session(&ending);
        // The word alone decides nothing.
        let reason = if is_drained { "enough for today" } else { "the session is drained" };
        if is_drained {
            ending.drain(reason)
        } else {
            ending.end(reason)
        }
        served.join().unwrap().unwrap();
        assert_eq!(session.lost().as_deref(), Some(reason));
        assert_eq!((session.is_dismissed(), session.is_drained()), (true, is_drained));
    }
}

/// A connection that ends with calls that nobody has read is reset by some systems, and what was sent before is lost with it.
#[test]
fn a_proxy_reads_until_its_client_has_read_the_goodbye() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut socket = ours.try_clone().unwrap();
    let ending = Ending::default();
    let ends = ending.clone();
    let (finished, ended) = channel();
    let served = std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("models"), 1 << 20).unwrap();
        let (emulated, place) = (Emulated::new(Profile::default()), folder.path().join("session"));
        let carrier = Carrier::of_socket(theirs).unwrap().without_memory();
        let served = serve_until(carrier, &emulated, &mut Everybody::default(), &mut store, &place, &ends);
        finished.send(()).unwrap();
        served
    });
    let mut messages = Messages::new(Carrier::of_socket(ours).unwrap().arriving, false);
    let mut send = |op: Op, sequence, payload: &[u8]| {
        let head = Head { kind: op as u8, payload: payload.len() as u32, sequence, ..Head::default() };
        Outgoing::send(&mut socket, &mut [IoSlice::new(&head.to_bytes()), IoSlice::new(payload)])
    };
    let hello = Hello { version: VERSION, tenant: "tests".into(), client: "proxy".into() };
    send(Op::Hello, 1, &serde_json::to_vec(&hello).unwrap()).unwrap();
    assert_eq!(messages.next().unwrap().unwrap().head.kind, REPLY);
    ending.end("enough");
    let goodbye = messages.next().unwrap().unwrap();
    assert_eq!((goodbye.head.kind, &goodbye.payload[..]), (crate::call::GOODBYE, &b"enough"[..]));
    // Many calls that were under way meet no end of the connection, and have no answers.
    (2..1000).for_each(|sequence| send(Op::Flush, sequence, &[0; 1000]).unwrap());
    assert!(ended.try_recv().is_err(), "it waits for the client");
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    served.join().unwrap().unwrap();
}
