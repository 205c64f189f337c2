//! The C interface to groups of programs: `include/tidemill/group.h` describes each function, and this crate implements them over
//! [`tidemill_collective::client`].
//!
//! A handle is a number that looks like a pointer and is never dereferenced: one that was freed, or is none, is an error of the call.
#![expect(unsafe_code, reason = "C programs call these functions, and pass pointers")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod arguments;
pub mod buffer;
pub mod group;
mod handles;
pub mod operation;
pub mod pending;
pub mod status;

/// Version of the interface, as `TIDEMILL_GROUP_VERSION` of the header has it.
pub const VERSION: u32 = 2;

/// Returns the version of the interface that the library has.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_group_version() -> u32 {
    VERSION
}

#[cfg(test)]
mod header_tests;
