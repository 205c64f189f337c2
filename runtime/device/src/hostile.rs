//! Peers that break the protocol, or stand still, on both sides.
use crate::call::{Head, Hello, MEMORY, Op, REPLY, VERSION};
use crate::carrier::{Carrier, Messages, Outgoing, share};
use crate::device::{Limits, Snapshot, TensorId};
use crate::emulated::{Clock, Emulated, Profile, artifact_of};
use crate::memory::{LEAST, Lent};
use crate::proxy::{Everybody, serve};
use crate::session::{CallError, Pending, Session};
use crate::store::Store;
use crate::value::{Element, write_head};
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_shm::descriptor::Descriptor;

fn send(socket: &mut UnixStream, head: Head, payload: &[u8]) {
    let head = Head { payload: payload.len() as u32, ..head }.to_bytes();
    // The other side may have hung up.
    let _ = Outgoing::send(socket, &mut [IoSlice::new(&head), IoSlice::new(payload)]);
}

/// A proxy, and the socket of a client that greets it by hand and has shared its first region.
fn proxy() -> (UnixStream, Lent, JoinHandle<std::io::Result<()>>) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let served = std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("models"), 1 << 20).unwrap();
        let emulated = Emulated::new(Profile::default());
        let carrier = Carrier::of_socket(theirs)?;
        let place = folder.path().join("session");
        serve(carrier, &emulated, &mut Everybody(Limits::default()), &mut store, &place)
    });
    let lent = share(&mut ours).unwrap();
    let hello = Hello { version: VERSION, tenant: "tests".into(), client: "hostile".into() };
    let hello = serde_json::to_vec(&hello).unwrap();
    send(&mut ours, Head { kind: Op::Hello as u8, sequence: 1, ..Head::default() }, &hello);
    (ours, lent, served)
}

/// Sends an upload with this place, and returns what a wait for it says: `done`, `failed`, or why the proxy ended.
fn upload(change: impl Fn(&mut Descriptor)) -> String {
    let (mut socket, mut lent, served) = proxy();
    let place = lent.place(&[1; LEAST]).unwrap();
    let mut place = Descriptor::from_bytes(&place);
    change(&mut place);
    let mut payload = place.to_bytes().to_vec();
    write_head(Element::Uint8, &[LEAST], &mut payload);
    let head =
        Head { kind: Op::Upload as u8, placed: true, sequence: 2, numbers: [9, 0, 0, 0], ..Head::default() };
    send(&mut socket, head, &payload);
    let flush = Head { kind: Op::Flush as u8, sequence: 3, numbers: [0, 0, 0, place.tag], ..Head::default() };
    send(&mut socket, flush, &[]);
    let mut messages = Messages::new(Carrier::of_socket(socket).unwrap().arriving, true);
    while let Ok(Some(message)) = messages.next() {
        if message.head.sequence == 3 {
            return if message.head.failed { "failed" } else { "done" }.to_owned();
        }
    }
    served.join().unwrap().unwrap_err().to_string()
}

#[test]
fn a_proxy_ends_with_a_client_that_names_a_wrong_place() {
    assert_eq!(upload(|_| {}), "done");
    for (expected, change) in [
        ("there is no region 1", (|place| place.region = 1) as fn(&mut Descriptor)),
        ("no descriptor has the kind 7", |place| place.kind = 7),
        ("in a region of", |place| place.offset = 16 << 20),
        ("no multiple of", |place| place.offset += 1),
        ("where the longest has", |place| place.length = u32::MAX),
        ("7 blocks of memory come back, of 0", |place| place.tag = 7),
    ] {
        let reason = upload(change);
        assert!(reason.contains(expected), "{reason:?} for {expected:?}");
    }
}

#[test]
fn a_length_that_is_not_that_of_the_shape_fails_one_call() {
    assert_eq!(upload(|place| place.length -= 64), "failed");
}

#[test]
fn a_proxy_maps_no_file_that_could_shrink_and_no_region_too_many() {
    let (mut socket, _, served) = proxy();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let head = Head { kind: MEMORY, ..Head::default() }.to_bytes();
    socket.send_file(&head, null.as_fd()).unwrap();
    assert!(served.join().unwrap().unwrap_err().to_string().contains("seals"));

    let (mut socket, _, served) = proxy();
    for _ in 0..4 {
        let mut other = Lent::new().unwrap();
        // It ends within them.
        let _ = socket.send_file(&head, other.grow().unwrap().as_fd());
    }
    assert!(served.join().unwrap().unwrap_err().to_string().contains("more than 4 regions"));
}

/// What comes between may lose descriptors: then nothing is shared, and everything else works.
#[test]
fn without_the_descriptor_nothing_is_shared() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let greeted = std::thread::spawn(move || Session::open(Carrier::of_socket(theirs).unwrap(), "t", "h"));
    let mut hello = [0; 48];
    ours.read_exact(&mut hello).unwrap();
    assert_eq!(hello[2], MEMORY);
    ours.read_exact(&mut hello).unwrap();
    send(&mut ours, Head { kind: MEMORY, ..Head::default() }, &[]);
    let facts = serde_json::to_vec(&Snapshot { window: 1 << 20, ..Snapshot::default() }).unwrap();
    send(&mut ours, Head { kind: REPLY, sequence: 1, ..Head::default() }, &facts);
    let session = greeted.join().unwrap().unwrap();
    session.lane().upload(Element::Uint8, &[LEAST], &[0; LEAST]).unwrap();
    assert_eq!((session.traffic().sent_in_memory, session.traffic().sent_over_connection), (0, 1));
}

#[test]
fn a_client_loses_a_proxy_that_names_a_wrong_place() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let greeted = std::thread::spawn(move || Session::open(Carrier::of_socket(theirs).unwrap(), "t", "h"));
    share(&mut ours).unwrap();
    let place = Descriptor { offset: 16 << 20, length: 64, ..Descriptor::default() };
    send(&mut ours, Head { kind: REPLY, placed: true, sequence: 1, ..Head::default() }, &place.to_bytes());
    match greeted.join().unwrap() {
        Err(CallError::Lost { reason, .. }) => assert!(reason.contains("in a region of"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// A device that greets and then does nothing: what a process is that was stopped, or a network that drops everything. It hears how many
/// bytes a client has sent, until it is to read no more.
fn silent(reads: bool) -> (Session, UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut device = ours.try_clone().unwrap();
    let greeted = std::thread::spawn(move || {
        let carrier = Carrier::of_socket(theirs).unwrap().without_memory();
        Session::open(carrier, "tests", "waits").unwrap()
    });
    let mut messages = Messages::new(Carrier::of_socket(ours.try_clone().unwrap()).unwrap().arriving, false);
    messages.next().unwrap().unwrap();
    let facts = serde_json::to_vec(&Snapshot { window: 1 << 30, ..Snapshot::default() }).unwrap();
    send(&mut device, Head { kind: REPLY, sequence: 1, ..Head::default() }, &facts);
    let session = greeted.join().unwrap();
    let reader =
        std::thread::spawn(move || while reads && messages.next().is_ok_and(|read| read.is_some()) {});
    (session, ours, reader)
}

/// A clock whose waits end with a word.
struct Word(Mutex<Receiver<()>>);

impl Clock for Word {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait_until(&self, _: Duration) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// Posts a run that ends with a word.
fn slow() -> (Session, Pending, Sender<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (word, comes) = channel();
    std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("models"), 1 << 20).unwrap();
        let emulated = Emulated::new(Profile::default()).with_clock(Arc::new(Word(Mutex::new(comes))));
        let carrier = Carrier::of_socket(theirs).unwrap();
        let place = folder.path().join("session");
        // It ends with its client.
        let _ = serve(carrier, &emulated, &mut Everybody::default(), &mut store, &place);
    });
    let session = Session::open(Carrier::of_socket(ours).unwrap(), "tests", "slow").unwrap();
    let model = session.load(&artifact_of("m", b"m", 1, 1), |_| Ok(Box::new(&b"m"[..]))).unwrap();
    let mut lane = session.lane();
    let input = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    let outputs = lane.run(model, &[input], &[0]).unwrap();
    let pending = lane.read(outputs[0]).unwrap();
    drop(lane);
    (session, pending, word)
}

#[test]
fn a_device_that_stands_still_is_lost_and_one_that_computes_as_long_is_not() {
    let (computes, computed, word) = slow();
    let computed = std::thread::spawn(move || computed.wait());
    let (session, ours, reader) = silent(true);
    let mut lane = session.lane();
    let read = lane.read(TensorId(1)).unwrap();
    lane.send().unwrap();
    let held = lane.read(TensorId(1)).unwrap();
    match read.wait() {
        Err(CallError::Lost { may_have_run: true, reason, .. }) => {
            assert!(reason.contains("no sign of life"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(held.wait(), Err(CallError::Lost { may_have_run: false, .. })));
    drop(lane);
    assert!(session.is_stalled() && !session.is_dismissed() && session.lost().is_some());
    // The device notices the end.
    reader.join().unwrap();
    drop(ours);
    assert!(!computed.is_finished() && computes.lost().is_none());
    word.send(()).unwrap();
    assert_eq!(computed.join().unwrap().unwrap().value().unwrap().shape(), [1]);
    assert!(!computes.is_stalled());
}

#[test]
fn a_device_that_reads_no_more_is_lost() {
    let (session, ours, reader) = silent(false);
    // More than a socket holds.
    let bytes = vec![0; 64 << 20];
    match session.lane().upload(Element::Uint8, &[bytes.len()], &bytes) {
        Err(CallError::Lost { may_have_run: false, reason, .. }) => {
            assert!(reason.contains("no sign of life"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(session.is_stalled());
    reader.join().unwrap();
    drop(ours);
}

#[test]
fn a_long_payload_is_refused_before_it_is_read() {
    // Nothing but the head comes: a wait for the rest would have no end.
    for (op, expected) in [(Op::Free, "uploads no tensor"), (Op::Store, "uploads no tensor")] {
        let (mut socket, _, served) = proxy();
        let head = Head { kind: op as u8, payload: 1 << 30, sequence: 2, ..Head::default() };
        socket.send(&mut [IoSlice::new(&head.to_bytes())]).unwrap();
        let reason = served.join().unwrap().unwrap_err().to_string();
        assert!(reason.contains(expected), "{reason}");
    }
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let served = std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), 1 << 20).unwrap();
        let emulated = Emulated::new(Profile::default());
        let carrier = Carrier::of_socket(theirs).unwrap();
        serve(carrier, &emulated, &mut Everybody::default(), &mut store, folder.path())
    });
    let head = Head { kind: Op::Hello as u8, payload: 1 << 20, ..Head::default() };
    ours.send(&mut [IoSlice::new(&head.to_bytes())]).unwrap();
    assert!(served.join().unwrap().unwrap_err().to_string().contains("a greeting of 1048576 bytes"));
}
