//! Which provider each operator of a session was assigned to, as the library records it. The bindings have no safe function for
//! this, so all unsafe code of the crate is here.
#![expect(unsafe_code, reason = "functions of the library that the bindings declare only")]
use super::super::placement::{self, Placed};
use ort::session::Session;
use ort::{AsPointer, Error, api};
use std::ffi::{CStr, c_char};
use std::ptr;

/// Key of the session option that makes the library record it.
pub(super) const RECORD: &str = "session.record_ep_graph_assignment_info";

/// Counts the operators of a session by provider, those of the CPU last. Nothing for a file in the library's own format, whose
/// assignment it does not record.
pub(super) fn read(session: &Session) -> ort::Result<Vec<Placed>> {
    let (mut parts, mut count) = (ptr::null(), 0);
    // SAFETY: the session lives, and the library writes both results. It owns the parts, which live as long as the session.
    let parts = unsafe {
        Error::result_from_status((api().Session_GetEpGraphAssignmentInfo)(
            session.ptr(),
            &raw mut parts,
            &raw mut count,
        ))?;
        slice(parts, count)
    };
    let mut placement = Vec::new();
    for part in parts {
        let mut name: *const c_char = ptr::null();
        let (mut nodes, mut count) = (ptr::null(), 0);
        // SAFETY: the part is one of the session, and the library writes the results. The name ends with NUL.
        let name = unsafe {
            Error::result_from_status((api().EpAssignedSubgraph_GetEpName)(*part, &raw mut name))?;
            Error::result_from_status((api().EpAssignedSubgraph_GetNodes)(
                *part,
                &raw mut nodes,
                &raw mut count,
            ))?;
            CStr::from_ptr(name).to_string_lossy()
        };
        placement::add(&mut placement, &[Placed { provider: short(&name), operators: count }]);
    }
    placement.sort_by_key(|placed| placed.provider == "cpu");
    Ok(placement)
}

/// Makes a slice of an array of the library, whose pointer may be null where it is empty.
///
/// # Safety
/// The pointer is null or that of `count` elements, which live as long as the result.
unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

/// The name of a provider as users write it: `cuda` of `CUDAExecutionProvider`.
fn short(name: &str) -> String {
    name.strip_suffix("ExecutionProvider").unwrap_or(name).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_users_write() {
        let names =
            ["CPUExecutionProvider", "TensorrtExecutionProvider", "XnnpackExecutionProvider", "Plugin"];
        assert_eq!(names.map(short), ["cpu", "tensorrt", "xnnpack", "plugin"]);
    }
}
