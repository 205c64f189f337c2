//! Messages to another service: those who send never wait for it.
use crossbeam_channel::{Sender, bounded};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::thread::Builder;
use tidemill_link::remote::{Connection, MessageWriter};

/// Messages that wait for a service that does not read.
const MOST: usize = 4096;
/// Bytes of a message.
const MOST_BYTES: usize = 16 << 20;

/// The way to another service. What was sent before it is dropped still arrives.
#[derive(Debug)]
pub(super) struct Outbox(Sender<Vec<u8>>);

impl Outbox {
    /// Sends a message. False: the other service is gone, or does not read.
    pub(super) fn send(&self, message: &impl Serialize) -> bool {
        serde_json::to_vec(message).is_ok_and(|bytes| self.0.try_send(bytes).is_ok())
    }
}

fn write(writer: &MessageWriter, lines: crossbeam_channel::Receiver<Vec<u8>>) {
    for line in lines {
        if writer.send(&line).is_err() {
            break;
        }
    }
    writer.close();
}

/// Turns a connection into an outbox; `heard` gets each message, and none at the end, on a thread of its own.
///
/// # Errors
/// The system has no thread left.
pub(super) fn converse<T: DeserializeOwned>(
    connection: Connection,
    heard: impl Fn(Option<T>) + Send + 'static,
) -> io::Result<Outbox> {
    let (writer, mut reader) = connection.into_messages().map_err(io::Error::other)?;
    let (outbox, lines) = bounded(MOST);
    let to_close = writer.clone();
    Builder::new().name("tm-group-write".into()).spawn(move || write(&writer, lines))?;
    let read = move || {
        while let Ok(bytes) = reader.receive_at_most(MOST_BYTES) {
            match serde_json::from_slice(&bytes) {
                Ok(message) => heard(Some(message)),
                Err(error) => {
                    tracing::warn!("a service says what it should not: {error}");
                    break;
                }
            }
        }
        to_close.close();
        heard(None);
    };
    Builder::new().name("tm-group-read".into()).spawn(read)?;
    Ok(Outbox(outbox))
}
