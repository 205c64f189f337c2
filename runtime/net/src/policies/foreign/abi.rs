//! The interface to libraries, as `include/tidemill_policy.h` has it. The header says what each member means.
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use std::ffi::{c_char, c_void};

/// The one function that a library exports.
pub(super) const SYMBOL: &str = "tidemill_policy_v1";
/// The version of the interface.
pub(super) const VERSION: u32 = 1;

pub(super) const PASS: u32 = 0;
pub(super) const WAIT: u32 = 1;
pub(super) const CUT: u32 = 2;

/// A text without a NUL at its end.
#[repr(C)]
pub(super) struct Text {
    pub(super) bytes: *const u8,
    pub(super) len: usize,
}

impl Text {
    /// It is valid as long as `text`.
    pub(super) fn of(text: &str) -> Self {
        Self { bytes: text.as_ptr(), len: text.len() }
    }
}

/// The place for the reason of a failure.
#[repr(C)]
pub(super) struct ErrorBuffer {
    pub(super) text: *mut u8,
    pub(super) capacity: usize,
}

/// A frame that is looked at.
#[repr(C)]
pub(super) struct Frame {
    pub(super) size: usize,
    pub(super) now: u64,
    pub(super) channel: u64,
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) waiting: u64,
    pub(super) workflow: Text,
    pub(super) from: Text,
    pub(super) to: Text,
    pub(super) columns_len: usize,
    pub(super) columns: *mut FFI_ArrowArray,
    pub(super) schemas: *mut FFI_ArrowSchema,
}

/// The decision about it.
#[repr(C)]
pub(super) struct Decision {
    pub(super) size: usize,
    pub(super) verdict: u32,
    pub(super) wait: u64,
    pub(super) keep: *mut u8,
}

/// The table of a policy. Every function may be absent: a library may have forgotten one.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) abi_version: u32,
    pub(super) name: *const c_char,
    pub(super) make: Option<unsafe extern "C" fn(*const u8, usize, *mut ErrorBuffer) -> *mut c_void>,
    pub(super) columns: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize>,
    pub(super) look:
        Option<unsafe extern "C" fn(*mut c_void, *const Frame, *mut Decision, *mut ErrorBuffer) -> i32>,
    pub(super) state: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize>,
    pub(super) restore: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut ErrorBuffer) -> i32>,
    pub(super) drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// The exported function.
pub(super) type Export = unsafe extern "C" fn() -> *const Table;

// The header has the same numbers in its test, so that neither side changes alone.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Frame>() == 136);
    assert!(size_of::<Decision>() == 32);
    assert!(size_of::<Table>() == 64);
};
