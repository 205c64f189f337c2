//! Memory of a group, as a program uses it.
use super::Error;
use super::connection::Connection;
use crate::element::Element;
use crate::number::Number;
use crate::protocol::ToService;
use std::sync::Arc;
use tidemill_shm::region::SharedRegion;

/// Bytes that are converted at once.
const CHUNK: usize = 16 << 10;

/// Memory of a group. Only one thread should use a range at a time, and none while an operation works with it: it would see
/// or write some of the bytes.
#[derive(Debug)]
pub struct Buffer {
    pub(super) connection: Arc<Connection>,
    pub(super) region: SharedRegion,
    pub(super) id: u64,
    pub(super) element: Element,
    pub(super) length: usize,
}

impl Buffer {
    /// The type of its elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn check<T: Number>(&self, at: usize, count: usize) -> Result<u64, Error> {
        if T::ELEMENT != self.element {
            let text = format!("the buffer has elements of type {:?}, not {:?}", self.element, T::ELEMENT);
            return Err(Error::Refused(text));
        }
        if at.checked_add(count).is_none_or(|end| end > self.length) {
            let text = format!("{count} elements from {at} are not in a buffer of {}", self.length);
            return Err(Error::Refused(text));
        }
        Ok((at * self.element.bytes()) as u64)
    }

    /// Copies elements into it, from element `at` on.
    ///
    /// # Errors
    /// [`Error::Refused`] where they are of another type or do not fit.
    pub fn write<T: Number>(&self, at: usize, from: &[T]) -> Result<(), Error> {
        let mut offset = self.check::<T>(at, from.len())?;
        let mut bytes = [0; CHUNK];
        for part in from.chunks(CHUNK / self.element.bytes()) {
            let bytes = &mut bytes[..part.len() * self.element.bytes()];
            T::to_bytes(part, bytes);
            self.region.copy_in(offset, bytes)?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies elements out of it, from element `at` on.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn read<T: Number>(&self, at: usize, into: &mut [T]) -> Result<(), Error> {
        let mut offset = self.check::<T>(at, into.len())?;
        let mut bytes = [0; CHUNK];
        for part in into.chunks_mut(CHUNK / self.element.bytes()) {
            let bytes = &mut bytes[..part.len() * self.element.bytes()];
            self.region.copy_out(offset, bytes)?;
            T::from_bytes(bytes, part);
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// All its elements.
    ///
    /// # Errors
    /// [`Error::Refused`] where they are of another type.
    pub fn to_vec<T: Number>(&self) -> Result<Vec<T>, Error> {
        let mut all = vec![T::default(); self.length];
        self.read(0, &mut all)?;
        Ok(all)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A service that is gone has freed it.
        let _ = self.connection.send(&ToService::Free { id: self.id }, &[]);
    }
}
