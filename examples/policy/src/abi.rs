//! The interface, as `tidemill_policy.h` has it: what this policy needs of it. The header says what each member means.
use std::ffi::{c_char, c_void};

#[repr(C)]
pub struct Text {
    pub bytes: *const u8,
    pub len: usize,
}

#[repr(C)]
pub struct ErrorBuffer {
    pub text: *mut u8,
    pub capacity: usize,
}

/// A column, by the Arrow C data interface.
#[repr(C)]
pub struct ArrowArray {
    pub length: i64,
    pub null_count: i64,
    pub offset: i64,
    pub n_buffers: i64,
    pub n_children: i64,
    pub buffers: *const *const c_void,
    pub children: *mut *mut ArrowArray,
    pub dictionary: *mut ArrowArray,
    pub release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    pub private_data: *mut c_void,
}

/// Its type and name, by the Arrow C data interface.
#[repr(C)]
pub struct ArrowSchema {
    pub format: *const c_char,
    pub name: *const c_char,
    pub metadata: *const c_char,
    pub flags: i64,
    pub n_children: i64,
    pub children: *mut *mut ArrowSchema,
    pub dictionary: *mut ArrowSchema,
    pub release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    pub private_data: *mut c_void,
}

#[repr(C)]
pub struct Frame {
    pub size: usize,
    pub now: u64,
    pub channel: u64,
    pub number: u64,
    pub epoch: u64,
    pub rows: u64,
    pub bytes: u64,
    pub waiting: u64,
    pub workflow: Text,
    pub from: Text,
    pub to: Text,
    pub columns_len: usize,
    pub columns: *mut ArrowArray,
    pub schemas: *mut ArrowSchema,
}

#[repr(C)]
pub struct Decision {
    pub size: usize,
    pub verdict: u32,
    pub wait: u64,
    pub keep: *mut u8,
}

#[repr(C)]
pub struct Table {
    pub abi_version: u32,
    pub name: *const c_char,
    pub make: unsafe extern "C" fn(*const u8, usize, *mut ErrorBuffer) -> *mut c_void,
    pub columns: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize,
    pub look: unsafe extern "C" fn(*mut c_void, *const Frame, *mut Decision, *mut ErrorBuffer) -> i32,
    pub state: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize,
    pub restore: unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut ErrorBuffer) -> i32,
    pub drop: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: it has functions and a constant text, which never change.
unsafe impl Sync for Table {}
