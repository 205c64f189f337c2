//! Peers that send any bytes: this side neither panics nor keeps more than was sent, and returns the whole frames
//! before.
use crate::parts::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use tidemill_link::link::{LinkError, LinkReceiver};
use tidemill_link::remote::*;

thread_local! {
    /// One for all peers of a test: a million of them would use up the ports.
    static LISTENS: (Serving, std::sync::mpsc::Receiver<Incoming>) = serve(&tcp());
}

/// A receiver of this side, and the socket of a peer that speaks as it likes.
fn receiver() -> (Box<dyn LinkReceiver>, TcpStream) {
    LISTENS.with(|(serving, incoming)| receiver_of(serving, incoming))
}

fn receiver_of(
    serving: &Serving,
    incoming: &std::sync::mpsc::Receiver<Incoming>,
) -> (Box<dyn LinkReceiver>, TcpStream) {
    let host = serving.address().place();
    let mut peer = TcpStream::connect(host).expect("connects");
    peer.write_all(&hello(&greeting(Role::Sender))).expect("writes");
    let connection = accept(incoming, &greeting(Role::Receiver));
    let mut preamble = [0; 20];
    peer.read_exact(&mut preamble).expect("is answered");
    let length = u32::from_le_bytes(preamble[16..].try_into().expect("four bytes"));
    peer.read_exact(&mut vec![0; length as usize]).expect("is answered");
    (connection.into_receiver(schema()).expect("a link"), peer)
}

/// The bytes of a stream of frames, as a sender of this side makes them, and where each ends.
fn stream(frames: u64, width: usize) -> (Vec<u8>, Vec<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = Address::tcp(listener.local_addr().expect("bound").to_string());
    let peer = std::thread::spawn(move || {
        let mut peer = listener.accept().expect("a peer").0;
        let mut preamble = [0; 20];
        peer.read_exact(&mut preamble).expect("a greeting");
        let length = u32::from_le_bytes(preamble[16..].try_into().expect("four bytes"));
        peer.read_exact(&mut vec![0; length as usize]).expect("a greeting");
        peer.write_all(&hello(&greeting(Role::Receiver))).expect("writes");
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).expect("frames");
        bytes
    });
    let connection = dial(&address, &Security::none(), &greeting(Role::Sender), PATIENCE).expect("fits");
    let mut sender = connection.into_sender(schema()).expect("a link");
    let mut ends = Vec::new();
    for n in 0..frames {
        let bytes = sender.send(data(n, 2, width)).expect("the peer is there");
        ends.push(ends.last().unwrap_or(&0) + bytes as usize);
    }
    drop(sender);
    (peer.join().expect("does not panic"), ends)
}

/// Reads bytes as a receiver (`mutations.rs` has bytes changed in transit). Returns the number of frames, and the
/// error at the end.
fn take(bytes: &[u8]) -> (u64, LinkError) {
    let (mut receiver, mut peer) = receiver();
    let owned = bytes.to_vec();
    let write = std::thread::spawn(move || {
        // A receiver that has read enough closes.
        let _ = peer.write_all(&owned);
    });
    let mut frames = 0;
    let end = loop {
        match receive(None, receiver.as_mut()) {
            Ok(frame) => {
                assert!(frame == data(frames, 2, 100), "a frame that was not sent");
                frames += 1;
            }
            Err(error) => break error,
        }
    };
    drop(receiver);
    write.join().expect("does not panic");
    (frames, end)
}

#[test]
fn a_stream_that_ends_anywhere_is_lost_after_what_is_whole() {
    let (bytes, ends) = stream(4, 100);
    assert_eq!(bytes.len(), ends[3]);
    for length in (0..bytes.len()).step_by(37).chain(ends.iter().copied()) {
        let (frames, end) = take(&bytes[..length]);
        assert_eq!(frames as usize, ends.iter().filter(|end| **end <= length).count());
        assert!(matches!(end, LinkError::Lost), "{end}");
    }
}

#[test]
fn a_length_that_cannot_be_is_refused() {
    let (bytes, _) = stream(1, 100);
    for length in [1u64 << 63, u64::MAX, MAX_PAYLOAD + 1, MAX_PAYLOAD] {
        let mut forged = bytes.clone();
        forged[32..40].copy_from_slice(&length.to_le_bytes());
        // The peer knows the checksum, too.
        let checksum = crc32c::crc32c(&forged[..56]);
        forged[56..60].copy_from_slice(&checksum.to_le_bytes());
        let before = resident();
        let (frames, end) = take(&forged);
        assert_eq!(frames, 0);
        // One that may be is waited for, without the memory it claims.
        let lost = length == MAX_PAYLOAD;
        assert!(matches!(end, LinkError::Lost) == lost, "{end}");
        assert!(resident() < before + (64 << 20), "memory for what was only claimed");
    }
}

/// Bytes of memory of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

#[test]
fn a_stream_of_another_schema_is_refused() {
    use std::sync::Arc;
    let batch = arrow_array::RecordBatch::try_from_iter([(
        "other",
        Arc::new(arrow_array::Int64Array::from(vec![1])) as arrow_array::ArrayRef,
    )]);
    let batch = batch.unwrap();
    // A sender that lies about what it sends.
    let (sender, receiver) = pair(&tcp(), &greeting(Role::Sender), &greeting(Role::Receiver));
    let mut sender = sender.into_sender(batch.schema()).unwrap();
    let mut receiver = receiver.into_receiver(schema()).unwrap();
    let content = tidemill_link::frame::Content::Data { epoch: 0, batch };
    sender.send(frame(0, content)).unwrap();
    let error = receive(None, receiver.as_mut()).expect_err("another schema");
    assert!(matches!(&error, LinkError::Damaged(text) if text.contains("schema")), "{error}");
}

#[test]
fn control_words_that_are_none_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp(listener.local_addr().unwrap().to_string());
    let peer = std::thread::spawn(move || {
        let mut peer = listener.accept().unwrap().0;
        peer.write_all(&hello(&greeting(Role::Receiver))).unwrap();
        peer.write_all(&[7; 160]).unwrap();
        peer
    });
    let connection = dial(&address, &Security::none(), &greeting(Role::Sender), PATIENCE).unwrap();
    let mut sender = connection.into_sender(schema()).unwrap();
    let error = hear(sender.as_mut()).expect_err("no control word");
    assert!(matches!(&error, LinkError::Damaged(text) if text.contains("control word")), "{error}");
    assert!(sender.send(data(0, 1, 1)).is_err());
    peer.join().unwrap();
}

/// Messages of control are as careful.
#[test]
fn messages_that_are_none_are_refused() {
    for header in [[b'x'; 24].to_vec(), {
        let mut header = [b"TMSG".as_slice(), &[0; 4], &(1u64 << 63).to_le_bytes()].concat();
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header
    }] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::tcp(listener.local_addr().unwrap().to_string());
        let peer = std::thread::spawn(move || {
            let mut peer = listener.accept().unwrap().0;
            peer.write_all(&[hello(&control("evil")), header].concat()).unwrap();
            peer
        });
        let connection = dial(&address, &Security::none(), &control("good"), PATIENCE).unwrap();
        let (_writer, mut reader) = connection.into_messages().unwrap();
        assert!(matches!(reader.receive(), Err(LinkError::Damaged(_))));
        peer.join().unwrap();
    }
}

/// A change of a stream.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let index = any::<prop::sample::Index>;
    let one = prop_oneof![
        4 => (index(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        1 => index().prop_map(Mutation::Cut),
        1 => (index(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, b)| Mutation::Insert(at, b)),
        1 => (index(), 1usize..40).prop_map(|(at, n)| Mutation::Remove(at, n)),
    ];
    prop::collection::vec(one, 1..4)
}

fn mutate(bytes: &mut Vec<u8>, mutations: &[Mutation]) {
    for mutation in mutations {
        if bytes.is_empty() {
            return;
        }
        match mutation {
            Mutation::Flip(at, bit) => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Mutation::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Mutation::Remove(at, n) => {
                let at = at.index(bytes.len());
                bytes.drain(at..(at + n).min(bytes.len()));
            }
        }
    }
}

/// Random bytes, as a greeting and as frames.
#[test]
fn random_bytes_are_refused() {
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    proptest!(config, |(bytes in prop::collection::vec(any::<u8>(), 64..2000))| {
        let (frames, end) = take(&bytes);
        prop_assert_eq!(frames, 0);
        prop_assert!(matches!(end, LinkError::Damaged(_)));
    });
    let (serving, incoming) = serve(&tcp());
    let host = serving.address().place();
    proptest!(config_of(100), |(bytes in prop::collection::vec(any::<u8>(), 20..2000))| {
        let mut peer = TcpStream::connect(host).expect("connects");
        peer.write_all(&bytes).expect("writes");
        // It is refused, or reset because it said more than was read.
        let _ = peer.read_to_end(&mut Vec::new());
    });
    assert!(incoming.try_recv().is_err());
}

fn config_of(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

/// A peer that knows the checksums, and lies in what they are of: Arrow's messages.
#[test]
fn forged_records_with_right_checksums_do_no_harm() {
    let (bytes, ends) = stream(2, 100);
    let before = resident();
    proptest!(config_of(3000), |(mutations in mutations(), frame in 0usize..2, grow in any::<bool>())| {
        let start = if frame == 0 { 0 } else { ends[0] };
        let mut payload = bytes[start + 64..ends[frame]].to_vec();
        if grow {
            // The metadata of Arrow is in front of the records: lies there do more.
            let mut metadata = payload[..256].to_vec();
            mutate(&mut metadata, &mutations);
            payload.splice(..256, metadata);
        } else {
            mutate(&mut payload, &mutations);
        }
        let mut forged = bytes[..start + 64].to_vec();
        forged[start + 32..start + 40].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        forged[start + 40..start + 44].copy_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
        let checksum = crc32c::crc32c(&forged[start..start + 56]);
        forged[start + 56..start + 60].copy_from_slice(&checksum.to_le_bytes());
        forged.extend_from_slice(&payload);
        let (mut receiver, mut peer) = receiver();
        peer.write_all(&forged).expect("little enough to be taken at once");
        drop(peer);
        // It may look like records, or not; nothing else may happen.
        while receive(None, receiver.as_mut()).is_ok() {}
    });
    assert!(resident() < before + (256 << 20), "memory grew");
}

/// A host that is present but takes nothing for that time counts as gone: the kernel of the sender gives it up.
#[test]
fn a_peer_that_takes_nothing_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp(listener.local_addr().unwrap().to_string());
    let peer = std::thread::spawn(move || {
        let mut peer = listener.accept().unwrap().0;
        peer.write_all(&hello(&greeting(Role::Receiver))).unwrap();
        peer
    });
    let connection = dial(&address, &Security::none(), &greeting(Role::Sender), PATIENCE).unwrap();
    let peer = peer.join().unwrap();
    let mut sender = connection.into_sender(schema()).unwrap();
    for n in 0..32 {
        sender.send(data(n, 1, 1 << 20)).unwrap();
    }
    assert!(matches!(hear(sender.as_mut()), Err(LinkError::Lost)));
    drop(peer);
}
