//! Tests of internals: which bytes are copied.
use super::carrier::Carrier;
use super::ends::{Receiver, Sender};
use super::inbound::Inbound;
use super::outgoing::Outgoing;
use super::pool::LARGE;
use crate::frame::{Content, Frame, Header};
use crate::link::codec::Encoder;
use crate::link::{LinkReceiver, LinkSender};
use crate::transport::{LocalSocket, Socket};
use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

fn carriers() -> (Carrier, Carrier) {
    let (one, other) = UnixStream::pair().unwrap();
    let plain = |socket: UnixStream| Carrier::new(Box::new(Socket::new(socket.into()).unwrap()), None);
    (plain(one), plain(other))
}

/// Over which descriptors may go.
fn local_carriers() -> (Carrier, Carrier) {
    let (one, other) = UnixStream::pair().unwrap();
    let local = |socket: UnixStream| Carrier::new(Box::new(LocalSocket::new(socket.into()).unwrap()), None);
    (local(one), local(other))
}

fn batch(width: usize) -> RecordBatch {
    let fields = [Field::new("n", DataType::Int64, false), Field::new("b", DataType::Binary, false)];
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(vec![4])), Arc::new(BinaryArray::from(vec![&vec![9u8; width][..]]))];
    RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns).unwrap()
}

fn frame(sequence: u64, batch: &RecordBatch) -> Frame {
    let header = Header { incarnation: 1, sequence, sent_at: 0, cost: 0 };
    Frame { header, content: Content::Data { epoch: 0, batch: batch.clone() } }
}

fn bytes_of(batch: &RecordBatch) -> &[u8] {
    batch.column(1).as_any().downcast_ref::<BinaryArray>().unwrap().value(0)
}

fn lies_in(inner: &[u8], outer: &[u8]) -> bool {
    let (inner, outer) = (inner.as_ptr_range(), outer.as_ptr_range());
    outer.start <= inner.start && inner.end <= outer.end
}

/// The socket writes from the memory of the records.
#[test]
fn sending_copies_no_payload() {
    for width in [LARGE, 1 << 20] {
        let batch = batch(width);
        let (header, payload) = Encoder::new(&batch.schema()).unwrap().encode(&frame(0, &batch)).unwrap();
        let mut outgoing = Outgoing::default();
        outgoing.push(&header.to_bytes(), &payload);
        let shared = outgoing.parts().filter(|part| lies_in(bytes_of(&batch), part)).count();
        assert_eq!(shared, 1);
        let copied: usize = outgoing.parts().map(Buffer::len).sum::<usize>() - width;
        assert!(copied < 4096, "{copied} bytes beside the payload");
    }
}

/// The socket reads into the memory of the records.
#[test]
fn receiving_copies_no_payload() {
    let (one, mut other) = carriers();
    let first = batch(LARGE);
    let mut sender = Sender::new(one, &first.schema()).unwrap();
    let mut inbound = Inbound::default();
    let mut decoder = crate::link::codec::Decoder::default();
    for sequence in 0..20 {
        let sent = batch(LARGE + sequence as usize * 100_000);
        sender.send(frame(sequence, &sent)).unwrap();
        let parcel = loop {
            match inbound.next(&mut other).unwrap() {
                Some(frame) => break frame,
                None => assert!(sender.clear()),
            }
        };
        let memory = parcel.payload[0].clone();
        assert_eq!(memory.as_ptr().align_offset(64), 0);
        let Content::Data { batch, .. } = decoder.open(parcel).unwrap().content else { panic!("no data") };
        assert_eq!(batch, sent);
        assert!(lies_in(bytes_of(&batch), &memory), "the records are a copy of what was read");
        let numbers = batch.column(0).to_data().buffers()[0].clone();
        assert!(lies_in(&numbers, &memory));
        if sequence == 0 {
            // The beginning of the first came with its header, because its size was not known yet.
            assert!(inbound.copied() <= 16 << 10);
        }
    }
    let after_first = inbound.copied();
    assert!(after_first <= 16 << 10, "{after_first} bytes were copied");
}

/// A stream of large frames after small ones: at most the stage is copied at each change.
#[test]
fn copies_happen_only_where_small_frames_end() {
    let (one, other) = carriers();
    let (small, large) = (batch(10), batch(1 << 20));
    let mut sender = Sender::new(one, &small.schema()).unwrap();
    let mut receiver = Receiver::new(other, small.schema());
    for sequence in 0..30u64 {
        let sent = if sequence % 3 == 0 { &small } else { &large };
        sender.send(frame(sequence, sent)).unwrap();
        let received = loop {
            match receiver.receive().unwrap() {
                Some(frame) => break frame,
                None => assert!(sender.clear() && receiver.clear()),
            }
        };
        assert_eq!(received, frame(sequence, sent));
    }
    assert!(receiver.copied() <= 10 * (16 << 10), "{} bytes were copied", receiver.copied());
}

/// The system is set to notice a host that is gone: with unacknowledged data, and in silence.
#[test]
fn the_system_watches_the_peer() {
    use crate::transport::{PEER_TIMEOUT, configure};
    use rustix::net::sockopt;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
    configure(&socket).unwrap();
    assert!(sockopt::tcp_nodelay(&socket).unwrap());
    assert!(sockopt::socket_keepalive(&socket).unwrap());
    assert_eq!(u128::from(sockopt::tcp_user_timeout(&socket).unwrap()), PEER_TIMEOUT.as_millis());
    let probes = sockopt::tcp_keepintvl(&socket).unwrap() * sockopt::tcp_keepcnt(&socket).unwrap();
    assert!(sockopt::tcp_keepidle(&socket).unwrap() + probes <= PEER_TIMEOUT);
    assert!(PEER_TIMEOUT < std::time::Duration::from_secs(10));
}

/// Between processes of one host large payloads are read where the sender put them, and that place is used again.
#[test]
fn large_payloads_lie_in_shared_memory_and_are_not_copied() {
    let (one, other) = local_carriers();
    let large = batch(3 << 20);
    let mut sender = Sender::new(one, &large.schema()).unwrap();
    let mut receiver = Receiver::new(other, large.schema());
    for sequence in 0..50u64 {
        // Five at once are more than the memory holds: the fifth goes over the socket.
        for part in 0..5 {
            sender.send(frame(sequence * 5 + part, &large)).unwrap();
        }
        for part in 0..5 {
            let received = loop {
                match receiver.receive().unwrap() {
                    Some(frame) => break frame,
                    None => assert!(sender.clear() && receiver.clear()),
                }
            };
            assert_eq!(received, frame(sequence * 5 + part, &large));
        }
        // The records are gone: their places go back.
        assert!(receiver.clear() && sender.clear());
        assert!(sender.receive_control().unwrap().is_none());
        assert_eq!(sender.lent(), 0);
    }
    assert_eq!(receiver.taken_from_memory(), 200);
}

/// Whether the first column of a frame lies in a memory file that this process can only read.
fn is_mapped(frame: &Frame) -> bool {
    let Content::Data { batch, .. } = &frame.content else { return false };
    let at = batch.column(0).to_data().buffers()[0].as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|text| usize::from_str_radix(text, 16).unwrap());
        (begin..end).contains(&at) && rest.starts_with("r--s") && rest.contains("memfd")
    })
}

/// Records in shared memory occupy their place until they are dropped, and outlive both ends.
#[test]
fn records_in_shared_memory_outlive_the_link() {
    let (one, other) = local_carriers();
    let large = batch(3 << 20);
    let mut sender = Sender::new(one, &large.schema()).unwrap();
    let mut receiver = Receiver::new(other, large.schema());
    sender.send(frame(0, &large)).unwrap();
    let kept = loop {
        if let Some(frame) = receiver.receive().unwrap() {
            break frame;
        }
        assert!(sender.clear() && receiver.clear());
    };
    assert!(receiver.clear() && sender.clear());
    assert!(sender.receive_control().unwrap().is_none());
    assert!(sender.lent() > 0 && is_mapped(&kept));
    drop((sender, receiver));
    assert_eq!(kept, frame(0, &large));
}

/// Descriptors of a peer that are no sealed memory are not mapped: it could take the pages away.
#[test]
fn a_descriptor_that_is_no_sealed_memory_is_refused() {
    use super::inbound::new_region;
    use crate::link::LinkError;
    use std::os::fd::AsFd;
    let (pipe, _writer) = std::io::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    for descriptor in [Some(pipe.as_fd()), Some(file.as_fd()), None] {
        let (mut one, other) = local_carriers();
        let mut receiver = Receiver::new(other, batch(1).schema());
        match descriptor {
            Some(descriptor) => one.descriptors().unwrap().pass(&new_region(), descriptor).unwrap(),
            None => one.write(&[std::io::IoSlice::new(&new_region())]).unwrap(),
        };
        assert!(matches!(receiver.receive(), Err(LinkError::Damaged(_))));
    }
}
