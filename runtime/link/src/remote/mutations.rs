//! Bytes are changed in transit, anywhere: they are refused, or equal those that were sent.
//! `TIDEMILL_MUTATIONS=1000000` changes that number instead of three thousand.
use super::carrier::Carrier;
use super::ends::{Receiver, Sender};
use super::handshake::{GREETING, Incoming, words};
use super::{Greeting, Purpose, Role, messages};
use crate::frame::{Content, Frame, Header, WatermarkStep};
use crate::link::{LinkError, LinkReceiver, LinkSender};
use crate::transport::Socket;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tidemill_random::Random;

fn wanted() -> u64 {
    let wanted = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(3_000)
}

/// Bytes of memory of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Counts of changed inputs by result.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    refused: u64,
    equal: u64,
}

/// Passes changed messages to `take`, which returns whether it accepted one; it may do so only if the message equals
/// what was sent.
fn mutated(what: &str, seed: u64, mut take: impl FnMut(&mut Random) -> bool) {
    let (mut random, before) = (Random::of_seed(seed), resident());
    let mut outcome = Outcome::default();
    for _ in 0..wanted() {
        match take(&mut random) {
            true => outcome.equal += 1,
            false => outcome.refused += 1,
        }
    }
    println!(
        "{what}: {} changed, {} refused, {} taken as they were sent",
        wanted(),
        outcome.refused,
        outcome.equal
    );
    // Most changes hit something: a test that changes nothing would take all.
    assert!(outcome.refused > wanted() * 9 / 10, "{outcome:?}");
    assert!(resident() < before + (256 << 20), "memory grew");
}

/// Changes bytes once or a few times; they differ afterwards.
fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    loop {
        let mut changed = bytes.to_vec();
        for _ in 0..1 + random.below(3) {
            if changed.is_empty() {
                break;
            }
            let at = random.below(changed.len());
            let some = 1 + random.below(40);
            match random.below(8) {
                0..=3 => changed[at] ^= 1 << random.below(8),
                4 => changed[at] = random.draw() as u8,
                5 => changed.truncate(at),
                6 => drop(changed.splice(at..at, (0..some).map(|n| n as u8).collect::<Vec<_>>())),
                _ => drop(changed.drain(at..(at + some).min(changed.len()))),
            }
        }
        // A message that is missing as a whole does not show in the bytes: frames are counted, and messages come over
        // a carrier that loses none.
        if changed != bytes && !changed.is_empty() {
            return changed;
        }
    }
}

fn batch(rows: usize) -> RecordBatch {
    let fields = [Field::new("number", DataType::Int64, false), Field::new("text", DataType::Utf8, true)];
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from((0..rows as i64).collect::<Vec<_>>())),
        Arc::new(StringArray::from(vec!["three words here"; rows])),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns).unwrap()
}

fn frame(sequence: u64, content: Content) -> Frame {
    Frame { header: Header { incarnation: 3, sequence, sent_at: 11, cost: 5 }, content }
}

/// Three frames, and the bytes of each.
fn frames(second: Content) -> ([Frame; 3], [Vec<u8>; 3]) {
    let data = |epoch, rows| Content::Data { epoch, batch: batch(rows) };
    let frames = [frame(0, data(0, 2)), frame(1, second), frame(2, data(9, 3))];
    let (one, mut other) = UnixStream::pair().unwrap();
    let mut sender = Sender::new(plain(one), &batch(1).schema()).unwrap();
    let bytes = frames.clone().map(|frame| {
        let mut bytes = vec![0; sender.send(frame).unwrap() as usize];
        other.read_exact(&mut bytes).unwrap();
        bytes
    });
    (frames, bytes)
}

/// A side of a plain connection.
fn plain(socket: UnixStream) -> Carrier {
    Carrier::new(Box::new(Socket::new(socket.into()).unwrap()), None)
}

/// A side that receives these bytes and nothing more.
fn carrier(bytes: &[u8]) -> (Carrier, UnixStream) {
    let (one, mut other) = UnixStream::pair().unwrap();
    other.write_all(bytes).unwrap();
    other.shutdown(Shutdown::Write).unwrap();
    (plain(one), other)
}

#[test]
fn mutated_frames_are_refused_or_what_was_sent() {
    let steps = vec![WatermarkStep { epoch: 3, watermark: 70 }, WatermarkStep { epoch: 5, watermark: 80 }];
    let streams = [
        frames(Content::Data { epoch: 4, batch: batch(5) }),
        frames(Content::Frontier { epoch: 7, rows: 0, steps }),
        frames(Content::Elsewhere { from: 7, until: 90 }),
    ];
    mutated("frames", 1, |random| {
        let (frames, bytes) = &streams[random.below(3)];
        let changed = [&bytes[0][..], &mutate(&bytes[1], random), &bytes[2]].concat();
        let (carrier, _peer) = carrier(&changed);
        let mut receiver = Receiver::new(carrier, batch(1).schema());
        let mut taken = Vec::new();
        let end = loop {
            match receiver.receive() {
                Ok(Some(frame)) => taken.push(frame),
                Ok(None) => assert!(receiver.clear()),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, LinkError::Lost | LinkError::Damaged(_)), "{end}");
        assert_eq!(taken[..], frames[..taken.len()], "a frame that was not sent");
        assert!(!taken.is_empty(), "what came before is whole");
        taken.len() > 1
    });
}

#[test]
fn mutated_messages_are_refused_or_what_was_sent() {
    let sent: [&[u8]; 3] = [b"first", &[7; 300], b"third"];
    let (one, mut other) = UnixStream::pair().unwrap();
    let (writer, _reader) = messages::over(plain(one));
    let bytes = sent.map(|message| {
        writer.send(message).unwrap();
        let mut bytes = vec![0; 24 + message.len()];
        other.read_exact(&mut bytes).unwrap();
        bytes
    });
    mutated("messages", 2, |random| {
        let changed = [&bytes[0][..], &mutate(&bytes[1], random), &bytes[2]].concat();
        let (carrier, _peer) = carrier(&changed);
        let (_writer, mut reader) = messages::over(carrier);
        let mut taken = Vec::new();
        let end = loop {
            match reader.receive() {
                Ok(message) => taken.push(message),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, LinkError::Lost | LinkError::Damaged(_)), "{end}");
        assert!(!taken.is_empty() && taken.len() <= 3);
        assert!(taken.iter().zip(sent).all(|(taken, sent)| taken == sent), "a message that was not sent");
        taken.len() > 1
    });
}

#[test]
fn mutated_greetings_are_refused_or_what_was_sent() {
    let purposes = [
        Purpose::Channel { channel: 7, role: Role::Sender, incarnation: 2, schema: 0x5eed },
        Purpose::Control { host: "edge-1".to_owned() },
    ];
    let greetings = purposes.map(|purpose| Greeting { run: u128::MAX - 5, plan_version: 1, purpose });
    let (never, _held) = UnixStream::pair().unwrap();
    mutated("greetings", 3, |random| {
        let greeting = &greetings[random.below(2)];
        let bytes = words(GREETING, &serde_json::to_vec(greeting).unwrap());
        let (carrier, _peer) = carrier(&mutate(&bytes, random));
        match Incoming::hear(carrier, never.as_fd()) {
            Ok(incoming) => {
                assert_eq!(incoming.greeting, *greeting, "a greeting that was not sent");
                true
            }
            Err(_) => false,
        }
    });
}
