//! A policy in a library of its own: of the records with the same value of a column (or of all), every n-th passes.
//!
//! It needs nothing of Tidemill but the layout of `tidemill_policy.h`. See README.md.
#![expect(unsafe_code, reason = "functions that a C interface calls")]
mod abi;

use abi::{ArrowArray, Decision, ErrorBuffer, Frame, Table};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

struct EveryNth {
    n: u64,
    /// The column whose values are counted apart.
    by: Option<String>,
    /// Records so far, by value.
    seen: BTreeMap<String, u64>,
}

impl EveryNth {
    fn new(options: &[u8]) -> Result<Self, String> {
        let options: Value = serde_json::from_slice(options).map_err(|error| error.to_string())?;
        let n =
            options["n"].as_u64().filter(|n| *n > 0).ok_or("write a whole number from 1 on: {\"n\": 3}")?;
        let by = match &options["by"] {
            Value::Null => None,
            Value::String(name) => Some(name.clone()),
            _ => return Err("`by` is the name of a column: {\"n\": 3, \"by\": \"camera\"}".to_owned()),
        };
        Ok(Self { n, by, seen: BTreeMap::new() })
    }

    /// Counts a record. Returns whether it passes: the first of `n` does.
    fn count(&mut self, value: &str) -> bool {
        if !self.seen.contains_key(value) {
            self.seen.insert(value.to_owned(), 0);
        }
        self.seen.get_mut(value).is_none_or(|seen| {
            *seen += 1;
            (*seen - 1) % self.n == 0
        })
    }
}

/// Returns the text in a row; an empty one where there is none.
///
/// # Safety
/// The column is one of texts (format `u`), and has this row.
unsafe fn text(column: &ArrowArray, row: usize) -> &str {
    let row = row + column.offset as usize;
    // SAFETY: by the Arrow C data interface such a column has three buffers: bits of what is there (or NULL if all is), one
    // end more than rows, and the bytes of the texts, which are UTF-8.
    unsafe {
        let (bits, ends) = ((*column.buffers).cast::<u8>(), (*column.buffers.add(1)).cast::<i32>());
        if !bits.is_null() && *bits.add(row / 8) >> (row % 8) & 1 == 0 {
            return "";
        }
        let (start, end) = (*ends.add(row) as usize, *ends.add(row + 1) as usize);
        if start == end {
            return ""; // the bytes may be NULL
        }
        let bytes = (*column.buffers.add(2)).cast::<u8>().add(start);
        std::str::from_utf8_unchecked(std::slice::from_raw_parts(bytes, end - start))
    }
}

/// Says why something failed. Returns what `look` and `restore` return then.
fn fail(error: *mut ErrorBuffer, reason: &str) -> i32 {
    // SAFETY: the service gives a place for the reason, of that capacity.
    unsafe {
        let len = reason.len().min((*error).capacity);
        (*error).text.copy_from_nonoverlapping(reason.as_ptr(), len);
    }
    1
}

/// Writes bytes if there is room for them. Returns how many there are.
fn fill(bytes: &[u8], buffer: *mut u8, capacity: usize) -> usize {
    if !bytes.is_empty() && capacity >= bytes.len() {
        // SAFETY: the buffer has room for `capacity` bytes.
        unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    bytes.len()
}

/// # Safety
/// The service passes an instance that `make` returned, to one function at a time.
unsafe fn this<'a>(instance: *mut c_void) -> &'a mut EveryNth {
    // SAFETY: as above.
    unsafe { &mut *instance.cast::<EveryNth>() }
}

unsafe extern "C" fn make(options: *const u8, len: usize, error: *mut ErrorBuffer) -> *mut c_void {
    // SAFETY: the options have `len` bytes.
    match EveryNth::new(unsafe { std::slice::from_raw_parts(options, len) }) {
        Ok(made) => Box::into_raw(Box::new(made)).cast(),
        Err(reason) => {
            fail(error, &reason);
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn columns(instance: *mut c_void, names: *mut u8, capacity: usize) -> usize {
    // SAFETY: an instance.
    let by = unsafe { this(instance) }.by.as_ref();
    by.map_or(0, |by| fill(format!("{by}\0").as_bytes(), names, capacity))
}

unsafe extern "C" fn look(
    instance: *mut c_void,
    frame: *const Frame,
    decision: *mut Decision,
    error: *mut ErrorBuffer,
) -> i32 {
    // SAFETY: an instance, a frame with the columns that `columns` named, and a decision with a byte for each row.
    unsafe {
        let (this, frame) = (this(instance), &*frame);
        let column = if frame.columns_len == 0 { None } else { Some(&*frame.columns) };
        if column.is_some() && CStr::from_ptr((*frame.schemas).format) != c"u" {
            return fail(error, "`by` names a column that is no text");
        }
        for row in 0..frame.rows as usize {
            let passes = this.count(column.map_or("", |column| text(column, row)));
            *(*decision).keep.add(row) = u8::from(passes);
        }
    }
    0
}

/// The state begins with the version of its format.
const FORMAT: u64 = 1;

unsafe extern "C" fn state(instance: *mut c_void, bytes: *mut u8, capacity: usize) -> usize {
    // SAFETY: an instance.
    let state = serde_json::json!([FORMAT, unsafe { this(instance) }.seen]);
    fill(state.to_string().as_bytes(), bytes, capacity)
}

unsafe extern "C" fn restore(
    instance: *mut c_void,
    bytes: *const u8,
    len: usize,
    error: *mut ErrorBuffer,
) -> i32 {
    // SAFETY: an instance, and a state of `len` bytes.
    let (this, bytes) = unsafe { (this(instance), std::slice::from_raw_parts(bytes, len)) };
    let state: Value = serde_json::from_slice(bytes).unwrap_or_default();
    match state[1].as_object() {
        Some(seen) if state[0] == FORMAT => {
            this.seen =
                seen.iter().map(|(value, seen)| (value.clone(), seen.as_u64().unwrap_or(0))).collect();
            0
        }
        _ => fail(error, "the state has another format: detach the policy, and attach it again"),
    }
}

unsafe extern "C" fn drop(instance: *mut c_void) {
    // SAFETY: `make` made it, and this is the last call.
    std::mem::drop(unsafe { Box::from_raw(instance.cast::<EveryNth>()) });
}

static TABLE: Table =
    Table { abi_version: 1, name: c"every_nth".as_ptr(), make, columns, look, state, restore, drop };

/// The one function that the service looks for.
// SAFETY: no other function of a process has this name: libraries are loaded apart from each other.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_policy_v1() -> *const Table {
    &TABLE
}
