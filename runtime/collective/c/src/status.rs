//! Status codes, and why the last function that failed in a thread did.
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidemill_collective::client::Error;
use tidemill_collective::protocol::FailureKind;

/// It is done.
pub const OK: c_int = 0;
/// An argument is wrong.
pub const INVALID: c_int = 1;
/// No service answers.
pub const UNREACHABLE: c_int = 2;
/// The service does not do it.
pub const REFUSED: c_int = 3;
/// The connection with the service has ended.
pub const GONE: c_int = 4;
/// A program, a service or a host of the group is gone.
pub const LOST: c_int = 5;
/// The operation has not ended by its deadline.
pub const DEADLINE: c_int = 6;
/// The ranks call different operations.
pub const DIFFERS: c_int = 7;
/// The call is wrong at all ranks.
pub const WRONG: c_int = 8;
/// The system has no memory or no descriptors.
pub const MEMORY: c_int = 9;
/// The operation has not ended yet.
pub const TIMEOUT: c_int = 10;
/// The library has a bug.
pub const INTERNAL: c_int = 11;

/// Why a function failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) code: c_int,
    text: String,
    rank: Option<u32>,
    host: String,
}

impl Fault {
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), rank: None, host: String::new() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(INVALID, text)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Failed(failure) => {
                let code = match failure.kind {
                    FailureKind::Lost => LOST,
                    FailureKind::Deadline => DEADLINE,
                    FailureKind::Differs => DIFFERS,
                    FailureKind::Wrong => WRONG,
                };
                Self { code, text, rank: failure.rank, host: failure.host }
            }
            Error::Unreachable { .. } => Self::new(UNREACHABLE, text),
            Error::Refused(_) => Self::new(REFUSED, text),
            Error::Broken(_) => Self::new(GONE, text),
            Error::Memory(_) => Self::new(MEMORY, text),
        }
    }
}

/// The last fault of a thread, as C reads it.
#[derive(Default)]
struct Last {
    text: CString,
    host: CString,
    rank: Option<u32>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Returns a text for C, which ends at the first NUL.
fn terminated(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default()
}

/// Does the work of a function, and returns its status. No panic leaves it: unwinding into C is undefined.
pub(crate) fn guarded(act: impl FnOnce() -> Result<(), Fault>) -> c_int {
    let fault = match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => return OK,
        Ok(Err(fault)) => fault,
        Err(panic) => Fault::new(INTERNAL, format!("a bug of the library: {}", words(&*panic))),
    };
    // A thread that ends has no text any more, and the code says enough.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() =
            Last { text: terminated(&fault.text), host: terminated(&fault.host), rank: fault.rank };
    });
    fault.code
}

/// Returns the text of the last function that failed in this thread.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the rank that caused it; -1: none did.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_error_rank() -> i64 {
    LAST.try_with(|last| last.borrow().rank.map_or(-1, i64::from)).unwrap_or(-1)
}

/// Returns the host of the cause; empty: unknown.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_error_host() -> *const c_char {
    LAST.try_with(|last| last.borrow().host.as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> String {
        // SAFETY: the text lives until the next function of this thread fails.
        unsafe { CStr::from_ptr(tidemill_error_text()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn panics_become_a_status_and_each_thread_has_its_own_text() {
        assert_eq!(text(), "");
        assert_eq!(guarded(|| panic!("number {}", 7)), INTERNAL);
        assert_eq!(text(), "a bug of the library: number 7");
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
        assert_eq!(guarded(|| Ok(())), OK);
        assert_eq!(text(), "a bug of the library: number 7", "it stays until the next failure");
        assert_eq!(guarded(|| Err(Fault::invalid("a\0b"))), INVALID);
        assert_eq!((text().as_str(), tidemill_error_rank()), ("a b", -1));
    }

    #[test]
    fn failures_keep_their_rank_and_host() {
        let kinds = [
            (FailureKind::Lost, LOST),
            (FailureKind::Deadline, DEADLINE),
            (FailureKind::Differs, DIFFERS),
            (FailureKind::Wrong, WRONG),
        ];
        for (kind, code) in kinds {
            let failure = tidemill_collective::protocol::Failure {
                kind,
                rank: Some(3),
                host: "hub".to_owned(),
                text: "rank 3 is gone".to_owned(),
            };
            assert_eq!(guarded(|| Err(Error::Failed(failure).into())), code);
            // SAFETY: as in `text`.
            let host = unsafe { CStr::from_ptr(tidemill_error_host()) };
            assert_eq!((text().as_str(), tidemill_error_rank(), host), ("rank 3 is gone", 3, c"hub"));
        }
    }
}
