//! Counters of the groups of a host: for metrics, and for groups that yield to others of the same host.
use super::{locked, now};
use crate::operation::Numbered;
use crate::peers::Key;
use crate::protocol::GroupCounts;
use crate::team::Gate;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time without a byte after which an operation counts as one that waits for a rank: others need not yield to it.
const STILL: Duration = Duration::from_millis(100);

/// The counters of a group, and a sign of its traffic.
pub(super) struct Shared {
    counts: Mutex<GroupCounts>,
    /// When bytes of its operation moved last, in microseconds since the service began; 0: none runs.
    moved_us: AtomicU64,
}

/// The groups of a host, by `USER/NAME`.
pub(super) struct Groups {
    begun: Instant,
    of: Mutex<BTreeMap<String, Arc<Shared>>>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { begun: now(), of: Mutex::default() }
    }
}

impl Groups {
    /// Begins to count a group.
    pub(super) fn begin(&self, key: &Key) -> Arc<Shared> {
        let counts = GroupCounts { name: key.name.clone(), user: key.user, ..GroupCounts::default() };
        let shared = Arc::new(Shared { counts: Mutex::new(counts), moved_us: AtomicU64::new(0) });
        locked(&self.of).insert(key.to_string(), Arc::clone(&shared));
        shared
    }

    /// Forgets a group, unless it has begun anew meanwhile.
    pub(super) fn end(&self, key: &Key, shared: &Arc<Shared>) {
        let mut groups = locked(&self.of);
        let name = key.to_string();
        if groups.get(&name).is_some_and(|of| Arc::ptr_eq(of, shared)) {
            groups.remove(&name);
        }
    }

    /// The counters now of the groups of a user, or of all.
    pub(super) fn counts(&self, user: Option<u32>) -> Vec<GroupCounts> {
        let all = locked(&self.of);
        let counts = all.values().map(|shared| locked(&shared.counts).clone());
        counts.filter(|counts| user.is_none_or(|user| user == counts.user)).collect()
    }

    fn now_us(&self) -> u64 {
        micros(now().saturating_duration_since(self.begun)).max(1)
    }

    /// Bytes of an operation of a group have moved, or it begins.
    pub(super) fn moved(&self, shared: &Shared) {
        shared.moved_us.store(self.now_us(), Ordering::Release);
    }

    /// Returns the gate of a group that yields to these.
    pub(super) fn gate(self: &Arc<Self>, first: &[String]) -> Option<Gate> {
        if first.is_empty() {
            return None;
        }
        let (groups, first) = (Arc::clone(self), first.to_vec());
        let still_us = STILL.as_micros() as u64;
        Some(Arc::new(move || {
            let now_us = groups.now_us();
            let of = locked(&groups.of);
            let sends = |shared: &Arc<Shared>| {
                let moved_us = shared.moved_us.load(Ordering::Acquire);
                moved_us > 0 && now_us.saturating_sub(moved_us) < still_us
            };
            first.iter().filter_map(|name| of.get(name)).any(sends)
        }))
    }
}

/// Whole microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Shared {
    /// No operation runs any more.
    pub(super) fn rests(&self) {
        self.moved_us.store(0, Ordering::Release);
    }

    /// Changes the counters.
    pub(super) fn count(&self, change: impl FnOnce(&mut GroupCounts)) {
        change(&mut locked(&self.counts));
    }

    /// An operation has ended.
    pub(super) fn ended(&self, numbered: &Numbered, took: Duration) {
        self.rests();
        self.count(|counts| {
            let ended = counts.ended.entry(numbered.operation.name().to_owned()).or_default();
            ended.operations += 1;
            ended.bytes += numbered.length.saturating_mul(numbered.element.bytes() as u64);
            ended.busy_us += micros(took);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_shut_while_bytes_of_a_group_that_goes_first_move() {
        let groups = Arc::new(Groups::default());
        let key = |name: &str| Key { user: 7, name: name.to_owned() };
        let (first, other) = (groups.begin(&key("first")), groups.begin(&key("other")));
        assert!(groups.gate(&[]).is_none());
        let gate = groups.gate(&["7/first".to_owned(), "7/none".to_owned()]).unwrap();
        assert!(!gate(), "none runs");
        groups.moved(&other);
        assert!(!gate(), "it yields to others");
        groups.moved(&first);
        assert!(gate());
        first.rests();
        assert!(!gate());
        groups.moved(&first);
        // Of a time before the service began to wait for it: long ago.
        first.moved_us.store(1, Ordering::Release);
        std::thread::sleep(STILL);
        assert!(!gate(), "it waits for a rank");
        groups.moved(&first);
        groups.end(&key("first"), &other);
        assert!(gate(), "another one has its name");
        groups.end(&key("first"), &first);
        assert!(!gate());
    }
}
