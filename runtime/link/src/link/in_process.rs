//! A link inside one process: record batches pass as shared pointers.
use super::pipe::{Reader, Writer, pipe};
use super::{Link, LinkEnds, LinkError, LinkReceiver, LinkSender};
use crate::frame::{Control, Frame};
use arrow_schema::SchemaRef;
use std::os::fd::{AsFd, BorrowedFd};

/// Connects two slots of one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

struct Sender {
    frames: Writer<Frame>,
    control: Reader<Control>,
}

struct Receiver {
    frames: Reader<Frame>,
    control: Writer<Control>,
}

impl Link for InProcess {
    fn connect(&self, _schema: SchemaRef) -> Result<LinkEnds, LinkError> {
        let (frame_writer, frame_reader) = pipe()?;
        let (control_writer, control_reader) = pipe()?;
        Ok((
            Box::new(Sender { frames: frame_writer, control: control_reader }),
            Box::new(Receiver { frames: frame_reader, control: control_writer }),
        ))
    }
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        self.frames.push(frame).map(|()| 0)
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
        self.frames.pop()
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
