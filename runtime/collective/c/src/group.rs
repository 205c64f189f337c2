//! Groups: joining, members, continuing, leaving.
use crate::arguments::{self, Options, Place};
use crate::handles::Table;
use crate::status::{Fault, guarded};
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use tidemill_collective::client::{self, DEADLINE, Group, WAIT};
use tidemill_collective::topology::Priority;

pub(crate) static GROUPS: Table<Group> = Table::new("group");

/// `tidemill_group` of the header.
#[repr(C)]
pub struct GroupHandle {
    opaque: [u8; 0],
}

/// `struct tidemill_join_options` of the header.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct JoinOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// The socket of the service; NULL: the usual one.
    pub service: *const c_char,
    /// Time until all ranks must have joined, in milliseconds; 0: as usual.
    pub deadline_ms: u64,
    /// Which groups have paths first: -1, 0 or 1.
    pub priority: c_int,
    /// Time in which the service must be there, in milliseconds; 0: as usual; negative: none.
    pub wait_ms: i64,
}

// SAFETY: it is `repr(C)`, its size comes first, and it has numbers and a pointer.
unsafe impl Options for JoinOptions {}

/// Returns a time in milliseconds; 0: as usual.
pub(crate) fn deadline(milliseconds: u64) -> Duration {
    match milliseconds {
        0 => DEADLINE,
        _ => Duration::from_millis(milliseconds),
    }
}

/// Joins a group.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_group_join(
    name: *const c_char,
    rank: u32,
    size: u32,
    options: *const JoinOptions,
    group: *mut *mut GroupHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: by the caller.
        let (place, name, given) = unsafe {
            let place = Place::new(group, "group")?;
            (place, arguments::text(name, "name of the group")?, arguments::options(options)?)
        };
        let name = name.to_str().map_err(|_| Fault::invalid("the name of the group is not UTF-8"))?;
        let mut options = client::JoinOptions::new(name, rank, size);
        if let Some(given) = given {
            options.deadline = deadline(given.deadline_ms);
            options.wait = match given.wait_ms {
                0 => WAIT,
                milliseconds => Duration::from_millis(milliseconds.try_into().unwrap_or(0)),
            };
            options.priority = match given.priority {
                -1 => Priority::Bulk,
                0 => Priority::Normal,
                1 => Priority::High,
                other => return Err(Fault::invalid(format!("priority {other}: it is -1, 0 or 1"))),
            };
            if !given.service.is_null() {
                // SAFETY: by the caller.
                let service = unsafe { arguments::text(given.service, "service")? };
                options.service = OsStr::from_bytes(service.to_bytes()).into();
            }
        }
        place.put(GROUPS.add(Group::join(&options)?));
        Ok(())
    })
}

/// Writes the ranks that take part, and how many they are.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_group_members(
    group: *mut GroupHandle,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        let members = GROUPS.get(group)?.members();
        if ranks.is_null() && capacity > 0 {
            return Err(Fault::invalid("the place for the ranks is NULL, and its capacity is not 0"));
        }
        for (index, rank) in members.iter().enumerate().take(capacity) {
            // SAFETY: by the caller, there is room for `capacity` ranks.
            unsafe { ranks.add(index).write(*rank) };
        }
        // SAFETY: by the caller.
        unsafe { arguments::write(count, members.len(), "number of members") }
    })
}

/// Writes the number of the strategy with which this formation of the group began.
///
/// # Safety
/// The pointers are as the header says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_group_epoch(group: *mut GroupHandle, epoch: *mut u64) -> c_int {
    guarded(|| {
        let group = GROUPS.get(group)?;
        // SAFETY: by the caller.
        unsafe { arguments::write(epoch, group.epoch(), "epoch") }
    })
}

/// Continues with the ranks that are left.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_group_shrink(group: *mut GroupHandle, deadline_ms: u64) -> c_int {
    guarded(|| Ok(GROUPS.get(group)?.shrink(deadline(deadline_ms))?))
}

/// Leaves a group, and frees its handle.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_group_leave(group: *mut GroupHandle) -> c_int {
    guarded(|| {
        if let Some(group) = GROUPS.free(group)? {
            group.leave();
        }
        Ok(())
    })
}
