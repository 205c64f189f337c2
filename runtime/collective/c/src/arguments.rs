//! Arguments that are pointers, checked for NULL.
use crate::status::Fault;
use std::ffi::{CStr, c_char};
use std::ptr::{NonNull, null_mut, without_provenance_mut};

/// The place where a function puts a handle.
pub(crate) struct Place<H>(NonNull<*mut H>);

impl<H> Place<H> {
    /// Checks it, and puts NULL there, which stays if the function fails.
    ///
    /// # Safety
    /// It is NULL, or a pointer can be written there as long as the function runs.
    pub(crate) unsafe fn new(place: *mut *mut H, name: &str) -> Result<Self, Fault> {
        let place =
            NonNull::new(place).ok_or_else(|| Fault::invalid(format!("the place for the {name} is NULL")))?;
        // SAFETY: by the caller.
        unsafe { place.write(null_mut()) };
        Ok(Self(place))
    }

    pub(crate) fn put(self, number: usize) {
        // SAFETY: `new` was promised it.
        unsafe { self.0.write(without_provenance_mut(number)) };
    }
}

/// Writes a value where the caller wants it.
///
/// # Safety
/// The place is NULL, or a value can be written there.
pub(crate) unsafe fn write<T>(place: *mut T, value: T, name: &str) -> Result<(), Fault> {
    let place =
        NonNull::new(place).ok_or_else(|| Fault::invalid(format!("the place for the {name} is NULL")))?;
    // SAFETY: by the caller.
    unsafe { place.write(value) };
    Ok(())
}

/// Returns a text.
///
/// # Safety
/// The pointer is NULL, or points to bytes with a NUL at their end that stay as long as the function runs.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a CStr, Fault> {
    if text.is_null() {
        return Err(Fault::invalid(format!("the {name} is NULL")));
    }
    // SAFETY: by the caller.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Options, whose first member is their size.
///
/// # Safety
/// Implementors are `repr(C)`, begin with a `usize`, and all bits are valid for their members.
pub(crate) unsafe trait Options: Copy {}

/// Returns the options; NULL: none.
///
/// # Safety
/// The pointer is NULL, or points to as many bytes as the size at their beginning says.
pub(crate) unsafe fn options<T: Options>(options: *const T) -> Result<Option<T>, Fault> {
    let Some(options) = NonNull::new(options.cast_mut()) else { return Ok(None) };
    // SAFETY: the size comes first. A program that was built with another header may have fewer members.
    let size = unsafe { options.cast::<usize>().read() };
    if size != size_of::<T>() {
        let text = format!(
            "options with size {size}, and those of this library have {}: set `size` to sizeof, and build with the header of this library",
            size_of::<T>()
        );
        return Err(Fault::invalid(text));
    }
    // SAFETY: there are as many bytes, and all bits are valid.
    Ok(Some(unsafe { options.read() }))
}
