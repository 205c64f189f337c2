//! Buffers: memory of a group.
use crate::arguments::Place;
use crate::group::{GROUPS, GroupHandle};
use crate::handles::Table;
use crate::status::{Fault, guarded};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tidemill_collective::client::Buffer;
use tidemill_collective::element::Element;

pub(crate) static BUFFERS: Table<Buffer> = Table::new("buffer");

/// `tidemill_buffer` of the header.
#[repr(C)]
pub struct BufferHandle {
    opaque: [u8; 0],
}

/// Types of elements, by their numbers in the header.
pub(crate) const ELEMENTS: [Element; 5] =
    [Element::F32, Element::F16, Element::Bf16, Element::I32, Element::I64];

/// Gets a buffer of elements.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_buffer_new(
    group: *mut GroupHandle,
    element: c_int,
    length: usize,
    buffer: *mut *mut BufferHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: by the caller.
        let place = unsafe { Place::new(buffer, "buffer")? };
        let group = GROUPS.get(group)?;
        let known = usize::try_from(element).ok().and_then(|element| ELEMENTS.get(element));
        let known = known.ok_or_else(|| Fault::invalid(format!("there is no type of elements {element}")))?;
        place.put(BUFFERS.add(group.buffer(*known, length)?));
        Ok(())
    })
}

/// Returns where the elements are; NULL: the handle is of no buffer.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_buffer_data(buffer: *mut BufferHandle) -> *mut c_void {
    let mut data = null_mut();
    guarded(|| {
        data = BUFFERS.get(buffer)?.start().as_ptr().cast();
        Ok(())
    });
    data
}

/// Frees a buffer.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_buffer_free(buffer: *mut BufferHandle) -> c_int {
    guarded(|| BUFFERS.free(buffer).map(drop))
}
