//! Readers of bytes from outside, for tests that send any bytes. Each function reads the bytes twice: as they are,
//! and with correct checksums, as an attacker would send them. It returns whether something was accepted the first
//! time.
use super::carrier::Carrier;
use super::ends::{Receiver, Sender};
use super::handshake::{GREETING, Incoming, words};
use super::{Greeting, Purpose, Role, inbound, messages};
use crate::frame::{Content, Control, Frame, Header, WatermarkStep};
use crate::link::{LinkError, LinkReceiver, LinkSender};
use crate::transport::Socket;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Bytes of an input that a socket takes without a reader; longer inputs are cut off.
pub const LONGEST: usize = 96 << 10;

fn schema() -> SchemaRef {
    let fields = [Field::new("number", DataType::Int64, false), Field::new("text", DataType::Utf8, true)];
    Arc::new(Schema::new(fields.to_vec()))
}

fn batch(rows: usize) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from((0..rows as i64).collect::<Vec<_>>())),
        Arc::new(StringArray::from(vec!["three words here"; rows])),
    ];
    RecordBatch::try_new(schema(), columns).expect("columns of the schema")
}

/// A side of a plain connection.
fn plain(socket: UnixStream) -> io::Result<Carrier> {
    Ok(Carrier::new(Box::new(Socket::new(socket.into())?), None))
}

/// A side that is sent these bytes and nothing more, and the other end.
fn carrier(bytes: &[u8]) -> io::Result<(Carrier, UnixStream)> {
    let (one, mut other) = UnixStream::pair()?;
    other.write_all(&bytes[..bytes.len().min(LONGEST)])?;
    other.shutdown(Shutdown::Write)?;
    Ok((plain(one)?, other))
}

fn with_carrier(bytes: &[u8], take: impl Fn(Carrier) -> bool) -> bool {
    let (carrier, _peer) = carrier(bytes).expect("a pair of sockets that takes so much");
    take(carrier)
}

fn is_end(error: &LinkError) {
    assert!(matches!(error, LinkError::Lost | LinkError::Damaged(_)), "{error}");
}

/// Reads frames of a channel, as the receiver of its records.
pub fn frames(bytes: &[u8]) -> bool {
    let take = |carrier| {
        let mut receiver = Receiver::new(carrier, schema());
        let mut taken = 0;
        loop {
            match receiver.receive() {
                Ok(Some(frame)) => {
                    taken += 1;
                    if let Content::Data { batch, .. } = frame.content {
                        assert_eq!(batch.schema(), schema(), "records of another type");
                    }
                }
                Ok(None) => assert!(receiver.clear()),
                Err(error) => {
                    is_end(&error);
                    return taken > 0;
                }
            }
        }
    };
    with_carrier(&inbound::sealed_anew(bytes), take);
    with_carrier(bytes, take)
}

/// Reads control words of a channel, as the sender of its records.
pub fn control_words(bytes: &[u8]) -> bool {
    let take = |carrier| {
        let Ok(mut sender) = Sender::new(carrier, &schema()) else { return false };
        let mut taken = 0;
        loop {
            match sender.receive_control() {
                Ok(Some(_)) => taken += 1,
                Ok(None) => assert!(sender.clear()),
                Err(error) => {
                    is_end(&error);
                    return taken > 0;
                }
            }
        }
    };
    with_carrier(&super::parcels::words_anew(bytes), take);
    with_carrier(bytes, take)
}

/// Messages of control between two hosts.
pub fn control_messages(bytes: &[u8]) -> bool {
    let take = |carrier| {
        let (_writer, mut reader) = messages::over(carrier);
        let mut taken = 0;
        loop {
            match reader.receive() {
                Ok(message) => {
                    taken += 1;
                    assert!(message.len() <= LONGEST, "more than was sent");
                }
                Err(error) => {
                    is_end(&error);
                    return taken > 0;
                }
            }
        }
    };
    with_carrier(&messages::sealed_anew(bytes), take);
    with_carrier(bytes, take)
}

/// The greeting of who dials.
pub fn greeting(bytes: &[u8]) -> bool {
    let take = |carrier| {
        let (never, _held) = UnixStream::pair().expect("a pair of sockets");
        let heard = Incoming::hear(carrier, never.as_fd());
        heard.is_ok_and(|incoming| {
            let again = serde_json::to_vec(&incoming.greeting).expect("plain data");
            let again: Greeting = serde_json::from_slice(&again).expect("what was written");
            assert_eq!(again, incoming.greeting);
            true
        })
    };
    // Bytes after a greeting belong to its next reader.
    let body = bytes.get(super::handshake::PREAMBLE..bytes.len().saturating_sub(4)).unwrap_or(bytes);
    with_carrier(&words(GREETING, body), take);
    with_carrier(bytes, take)
}

/// Returns what a side of this version sends, by the function that reads it.
///
/// # Errors
/// The system gives no sockets.
pub fn samples() -> io::Result<Vec<(&'static str, Vec<u8>)>> {
    let steps = vec![WatermarkStep { epoch: 3, watermark: 70 }, WatermarkStep { epoch: 5, watermark: 80 }];
    let contents = [
        Content::Data { epoch: 0, batch: batch(2) },
        Content::Elsewhere { from: 5, until: 7 },
        Content::Frontier { epoch: 7, rows: 0, steps },
        Content::Data { epoch: 9, batch: batch(5) },
    ];
    let (one, mut other) = UnixStream::pair()?;
    let failed = |error: LinkError| io::Error::other(error.to_string());
    let mut sender = Sender::new(plain(one)?, &schema()).map_err(failed)?;
    let mut frames = Vec::new();
    for (sequence, content) in contents.into_iter().enumerate() {
        let header = Header { incarnation: 3, sequence: sequence as u64, sent_at: 11, cost: 5 };
        let mut bytes = vec![0; sender.send(Frame { header, content }).map_err(failed)? as usize];
        other.read_exact(&mut bytes)?;
        frames.append(&mut bytes);
    }
    let controls = [
        Control::Resume(3),
        Control::Credit(65_536),
        Control::Durable(2),
        Control::Ahead(1_000),
        Control::Delivers(9),
    ];
    let words_of_control = controls.into_iter().flat_map(super::parcels::word_of).collect();
    let (one, mut other) = UnixStream::pair()?;
    let (writer, _reader) = messages::over(plain(one)?);
    let mut messages = Vec::new();
    for message in [&b"first"[..], &[7; 300]] {
        writer.send(message).map_err(failed)?;
        let mut bytes = vec![0; messages::HEADER + message.len()];
        other.read_exact(&mut bytes)?;
        messages.append(&mut bytes);
    }
    let mut samples =
        vec![("frames", frames), ("control_words", words_of_control), ("control_messages", messages)];
    let purposes = [
        Purpose::Channel { channel: 7, role: Role::Sender, incarnation: 2, schema: 0x5eed },
        Purpose::Control { host: "edge-1".to_owned() },
    ];
    for purpose in purposes {
        let greeting = Greeting { run: u128::MAX - 5, plan_version: 1, purpose };
        samples.push(("greeting", words(GREETING, &serde_json::to_vec(&greeting)?)));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_taken_and_their_like_with_new_checksums() {
        for (name, bytes) in samples().unwrap() {
            let (is_heard, anew) = match name {
                "frames" => (frames(&bytes), inbound::sealed_anew(&bytes)),
                "control_words" => (control_words(&bytes), super::super::parcels::words_anew(&bytes)),
                "control_messages" => (control_messages(&bytes), messages::sealed_anew(&bytes)),
                _ => (greeting(&bytes), bytes.clone()),
            };
            assert!(is_heard, "{name}");
            assert_eq!(anew, bytes, "{name}: checksums made anew are what they were");
            let mut damaged = bytes.clone();
            damaged[8] ^= 1;
            let is_heard = match name {
                "frames" => frames(&damaged),
                "control_words" => control_words(&damaged),
                "control_messages" => control_messages(&damaged),
                _ => greeting(&damaged),
            };
            assert!(!is_heard, "{name}");
        }
    }
}
