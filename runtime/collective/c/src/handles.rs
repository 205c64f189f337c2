//! Handles: numbers of things that C programs have, which look like pointers.
//!
//! A number is never used twice, and each kind has a table of its own. So a handle that was freed, or that is of another kind, is not
//! found, and one that is freed by a thread stays as long as another thread works with it.
use crate::status::Fault;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// The things of one kind.
pub(crate) struct Table<T> {
    kind: &'static str,
    things: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, things: RwLock::new(BTreeMap::new()) }
    }

    /// Adds one, and returns its number.
    pub(crate) fn add(&self, thing: T) -> usize {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.things.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(thing));
        number
    }

    fn unknown(&self, number: usize) -> Fault {
        Fault::invalid(match number {
            0 => format!("the {} is NULL", self.kind),
            _ => format!("no {} has this handle: it was freed, or is something else", self.kind),
        })
    }

    /// Returns the one with this handle.
    pub(crate) fn get<H>(&self, handle: *const H) -> Result<Arc<T>, Fault> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle.addr()))
    }

    /// Frees a handle. NULL is none.
    pub(crate) fn free<H>(&self, handle: *const H) -> Result<Option<Arc<T>>, Fault> {
        if handle.is_null() {
            return Ok(None);
        }
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        let thing = things.remove(&handle.addr());
        // No caller waits for what its drop does.
        drop(things);
        thing.map(Some).ok_or_else(|| self.unknown(handle.addr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::INVALID;
    use std::ptr::{null, without_provenance};

    static NAMES: Table<&str> = Table::new("name");
    static OTHERS: Table<&str> = Table::new("other");

    #[test]
    fn handles_of_nothing_are_errors() {
        let one: *const u8 = without_provenance(NAMES.add("one"));
        let other: *const u8 = without_provenance(OTHERS.add("other"));
        assert_eq!(*NAMES.get(one).unwrap(), "one");
        for wrong in [null(), other, without_provenance(usize::MAX)] {
            assert_eq!(NAMES.get(wrong).unwrap_err().code, INVALID);
        }
        assert!(NAMES.free(null::<u8>()).unwrap().is_none());
        assert_eq!(NAMES.free(other).unwrap_err().code, INVALID);
        let used = NAMES.get(one).unwrap();
        assert!(NAMES.free(one).unwrap().is_some());
        assert_eq!(*used, "one", "whoever has it keeps it");
        assert_eq!((NAMES.get(one).unwrap_err().code, NAMES.free(one).unwrap_err().code), (INVALID, INVALID));
        assert_ne!(NAMES.add("two"), one.addr(), "numbers are not used again");
    }
}
