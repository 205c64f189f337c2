//! A panic in a library is an error of the model or of the record, never the end of the program.
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`caught`].
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls a library that may panic. A panic is returned as text and not printed: the caller's error names the model and the
/// backend, which the message of the default hook cannot. Values borrowed by `call` must be usable after a panic.
///
/// # Errors
/// The text of a panic.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    quiet();
    let before = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(before);
    result.map_err(|payload| format!("its library ended in a panic: {}", text(payload.as_ref())))
}

/// Wraps the hook of the process once; only panics inside of [`caught`] are hidden from it.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                before(info);
            }
        }));
    });
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("it has no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_text() {
        assert_eq!(caught(|| 5), Ok(5));
        let failed = caught(|| -> u8 { panic!("wrong size {}", 3) });
        assert_eq!(failed, Err("its library ended in a panic: wrong size 3".to_owned()));
        assert!(!INSIDE.get(), "other panics are printed again");
    }
}
