//! The elements of a buffer, without a copy.
#![expect(unsafe_code, reason = "memory that the service writes during operations is a slice between them")]
use super::{Buffer, Error};
use crate::number::Number;
use std::ptr::NonNull;

impl Buffer {
    /// Returns its elements themselves, to compute in place. Waits first until no operation works with the buffer; while the slice
    /// is there, none can be called.
    ///
    /// The service has the same memory. It is trusted to write only what is the result of an operation, as it is trusted with the
    /// results themselves: it runs as the same user or as root.
    ///
    /// ```no_run
    /// # use tidemill_collective::client::{Buffer, Error, Group};
    /// # use tidemill_collective::element::Reduction;
    /// # fn example(group: &Group, buffer: &mut Buffer) -> Result<(), Error> {
    /// for (index, value) in buffer.elements_mut::<f32>()?.iter_mut().enumerate() {
    ///     *value = index as f32;
    /// }
    /// let pending = group.all_reduce(buffer, Reduction::Sum)?;
    /// // Waits for the end of the operation.
    /// let sum: f32 = buffer.elements_mut::<f32>()?.iter().sum();
    /// pending.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] where elements are of another type. [`Error::Broken`]: the program has lost the service or left the group
    /// while an operation worked with the buffer. That the operation failed is no error here.
    pub fn elements_mut<T: Number>(&mut self) -> Result<&mut [T], Error> {
        self.check::<T>(0, self.length)?;
        let id = self.id;
        self.connection.wait(|state| state.running.values().all(|of| *of != id).then_some(()))?;
        let start = self.start().cast::<T>();
        // SAFETY: the region begins at a page, has `length` elements (`Group::buffer` has checked its size), all bits of which are
        // numbers, and lives as long as `self`. No other reference into it is there: those of `read` and `write` end with them, and
        // they, like calls of operations, need the buffer that is borrowed here. The service, which has the only other mapping,
        // writes from a call until it has said that it ended, which it has for all calls with this buffer.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.length) })
    }

    /// Returns where its elements begin, for programs in other languages. The memory is there as long as the buffer, and aligned for
    /// all types of elements. Who uses it leaves it alone while an operation works with the buffer, and while
    /// [`Buffer::elements_mut`] lends it.
    pub fn start(&self) -> NonNull<u8> {
        self.region.start()
    }
}
