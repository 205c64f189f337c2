//! A link inside one process whose frames pass as bytes, as they do between processes. Nothing relies on pointer identity, and what
//! travels can be counted.
use super::codec::{Decoder, Encoder, HEADER_BYTES, WireHeader};
use super::pipe::{Reader, Writer, pipe};
use super::{Link, LinkEnds, LinkError, LinkReceiver, LinkSender};
use crate::frame::{Control, Frame};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::SchemaRef;
use std::os::fd::{AsFd, BorrowedFd};

/// Connects two slots of one process by bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct AsBytes;

struct Sender {
    encoder: Encoder,
    frames: Writer<(WireHeader, Buffer)>,
    control: Reader<Control>,
}

struct Receiver {
    decoder: Decoder,
    frames: Reader<(WireHeader, Buffer)>,
    control: Writer<Control>,
    /// Bytes of the last frame.
    received: u64,
}

impl Link for AsBytes {
    fn connect(&self, schema: SchemaRef) -> Result<LinkEnds, LinkError> {
        let (frame_writer, frame_reader) = pipe()?;
        let (control_writer, control_reader) = pipe()?;
        let encoder = Encoder::new(&schema)?;
        Ok((
            Box::new(Sender { encoder, frames: frame_writer, control: control_reader }),
            Box::new(Receiver {
                decoder: Decoder::default(),
                frames: frame_reader,
                control: control_writer,
                received: 0,
            }),
        ))
    }
}

fn bytes_of(wire: &WireHeader) -> u64 {
    HEADER_BYTES as u64 + wire.length
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        let (wire, payload) = self.encoder.encode(&frame)?;
        let mut bytes = MutableBuffer::with_capacity(wire.length as usize);
        payload.iter().for_each(|part| bytes.extend_from_slice(part));
        self.frames.push((wire, bytes.into())).map(|()| bytes_of(&wire))
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        self.control.pop()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.control.waker().as_fd()
    }

    fn clear(&self) -> bool {
        self.control.waker().clear()
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        let Some((wire, payload)) = self.frames.pop()? else { return Ok(None) };
        self.received = bytes_of(&wire);
        self.decoder.decode(&wire, payload).map(Some)
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        self.control.push(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.frames.waker().as_fd()
    }

    fn clear(&self) -> bool {
        self.frames.waker().clear()
    }
}
