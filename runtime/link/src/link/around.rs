//! A receiving end around another one.
use super::{LinkError, LinkReceiver};
use crate::frame::{Control, Frame, Nanoseconds};
use std::os::fd::BorrowedFd;

/// A receiving end that changes some of what another one does, and leaves the rest to it.
pub trait AroundReceiver: Send {
    /// The other one.
    fn inner(&self) -> &dyn LinkReceiver;
    /// The other one, mutable.
    fn inner_mut(&mut self) -> &mut dyn LinkReceiver;
    /// See [`LinkReceiver::receive`].
    ///
    /// # Errors
    /// As there.
    fn receive_around(&mut self) -> Result<Option<Frame>, LinkError>;
    /// See [`LinkReceiver::received_bytes`].
    fn received_bytes_around(&self) -> u64 {
        self.inner().received_bytes()
    }
    /// See [`LinkReceiver::look`].
    fn look_around(&mut self) {
        self.inner_mut().look();
    }
    /// See [`LinkReceiver::held_until`].
    fn held_until_around(&self) -> Option<Nanoseconds> {
        self.inner().held_until()
    }
    /// See [`LinkReceiver::send_control`].
    ///
    /// # Errors
    /// As there.
    fn send_control_around(&mut self, control: Control) -> Result<(), LinkError> {
        self.inner_mut().send_control(control)
    }
}

impl<T: AroundReceiver> LinkReceiver for T {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        self.receive_around()
    }

    fn received_bytes(&self) -> u64 {
        self.received_bytes_around()
    }

    fn look(&mut self) {
        self.look_around();
    }

    fn held_until(&self) -> Option<Nanoseconds> {
        self.held_until_around()
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        self.send_control_around(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner().descriptor()
    }

    fn wants_writable(&self) -> bool {
        self.inner().wants_writable()
    }

    fn clear(&self) -> bool {
        self.inner().clear()
    }
}
