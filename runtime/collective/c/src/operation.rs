//! The five operations.
use crate::arguments::{self, Options, Place};
use crate::buffer::{BUFFERS, BufferHandle};
use crate::group::{GROUPS, GroupHandle, deadline};
use crate::pending::{self, PendingHandle};
use crate::status::{Fault, guarded};
use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;
use tidemill_collective::client;
use tidemill_collective::element::Reduction;
use tidemill_collective::operation::Operation;
use tidemill_collective::type_name::{MOST, TypeName};

/// `TIDEMILL_AFTER` of the header.
pub(crate) const AFTER: u32 = 1;
/// `TIDEMILL_READABLE` of the header.
pub(crate) const READABLE: u32 = 2;
/// Reductions, by their numbers in the header.
pub(crate) const REDUCTIONS: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

/// `struct tidemill_call_options` of the header.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// Time until the operation must have ended, in milliseconds; 0: as usual.
    pub deadline_ms: u64,
    /// `TIDEMILL_AFTER` and `TIDEMILL_READABLE`.
    pub flags: u32,
    /// The descriptor of `TIDEMILL_AFTER`.
    pub after: c_int,
    /// The type of elements that are only moved; NULL: that of the buffer.
    pub type_name: *const c_char,
}

// SAFETY: it is `repr(C)`, its size comes first, and it has numbers and a pointer.
unsafe impl Options for CallOptions {}

/// Calls an operation, and waits for its end where no place for its handle is given.
///
/// # Safety
/// The pointers are as the header says.
unsafe fn call(
    (group, buffer): (*mut GroupHandle, *mut BufferHandle),
    operation: impl FnOnce() -> Result<Operation, Fault>,
    options: *const CallOptions,
    pending: *mut *mut PendingHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: by the caller.
        let (place, given) = unsafe {
            let place = (!pending.is_null()).then(|| Place::new(pending, "pending operation"));
            (place.transpose()?, arguments::options(options)?)
        };
        let (group, buffer) = (GROUPS.get(group)?, BUFFERS.get(buffer)?);
        let mut options = client::CallOptions::default();
        if let Some(given) = given {
            if given.flags & !(AFTER | READABLE) != 0 {
                return Err(Fault::invalid(format!(
                    "this library does not know all flags of {:#x}",
                    given.flags
                )));
            }
            options.deadline = deadline(given.deadline_ms);
            options.readable = given.flags & READABLE != 0;
            if given.flags & AFTER != 0 {
                // SAFETY: by the caller, it is open as long as this function runs.
                options.after = Some(unsafe { descriptor(given.after)? });
            }
            if !given.type_name.is_null() {
                // SAFETY: by the caller.
                let name = unsafe { arguments::text(given.type_name, "name of the type")? };
                let name = name.to_str().ok().and_then(TypeName::new);
                options.type_name = name.ok_or_else(|| {
                    Fault::invalid(format!("the name of a type has at most {MOST} visible letters of ASCII"))
                })?;
            }
        }
        let called = group.call(&buffer, operation()?, &options)?;
        match place {
            Some(place) => place.put(pending::add(called)),
            None => called.wait()?,
        }
        Ok(())
    })
}

/// Returns a descriptor that is open.
///
/// # Safety
/// If it is open, it stays so as long as the result is used.
unsafe fn descriptor<'a>(number: c_int) -> Result<BorrowedFd<'a>, Fault> {
    let closed = || Fault::invalid(format!("descriptor {number} is not open"));
    if number < 0 {
        return Err(closed());
    }
    // SAFETY: it is not negative, and only asked for its flags before it is known to be open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(descriptor).map_err(|_| closed())?;
    Ok(descriptor)
}

fn reduction(number: c_int) -> Result<Reduction, Fault> {
    let known = usize::try_from(number).ok().and_then(|number| REDUCTIONS.get(number));
    known.copied().ok_or_else(|| Fault::invalid(format!("there is no reduction {number}")))
}

/// Gives the buffer of one rank to all.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_broadcast(
    group: *mut GroupHandle,
    buffer: *mut BufferHandle,
    root: u32,
    options: *const CallOptions,
    pending: *mut *mut PendingHandle,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { call((group, buffer), || Ok(Operation::Broadcast { root }), options, pending) }
}

/// Combines the buffers of all ranks, and gives the result to all.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_all_reduce(
    group: *mut GroupHandle,
    buffer: *mut BufferHandle,
    reduction: c_int,
    options: *const CallOptions,
    pending: *mut *mut PendingHandle,
) -> c_int {
    let operation = || self::reduction(reduction).map(|reduction| Operation::AllReduce { reduction });
    // SAFETY: by the caller.
    unsafe { call((group, buffer), operation, options, pending) }
}

/// Combines the buffers of all ranks, and gives each its part.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_reduce_scatter(
    group: *mut GroupHandle,
    buffer: *mut BufferHandle,
    reduction: c_int,
    options: *const CallOptions,
    pending: *mut *mut PendingHandle,
) -> c_int {
    let operation = || self::reduction(reduction).map(|reduction| Operation::ReduceScatter { reduction });
    // SAFETY: by the caller.
    unsafe { call((group, buffer), operation, options, pending) }
}

/// Gives the part of each rank to all.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_all_gather(
    group: *mut GroupHandle,
    buffer: *mut BufferHandle,
    options: *const CallOptions,
    pending: *mut *mut PendingHandle,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { call((group, buffer), || Ok(Operation::AllGather), options, pending) }
}

/// Exchanges parts between all ranks.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_all_to_all(
    group: *mut GroupHandle,
    buffer: *mut BufferHandle,
    options: *const CallOptions,
    pending: *mut *mut PendingHandle,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { call((group, buffer), || Ok(Operation::AllToAll), options, pending) }
}
