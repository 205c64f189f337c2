//! Connections that are open: so many that the process still has files, and where there are more, the one that asked nothing for longest
//! makes room. Who asks is served before who only holds on.
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Connections where the system allows any number of files.
const MOST: usize = 8192;

pub(super) struct Connections {
    begun: Instant,
    most: usize,
    /// By number.
    held: Mutex<HashMap<u64, Held>>,
    made: AtomicU64,
}

struct Held {
    task: AbortHandle,
    heard: Arc<AtomicU64>,
}

/// Notes that a connection asks something.
#[derive(Clone)]
pub(super) struct Heard {
    begun: Instant,
    at: Arc<AtomicU64>,
}

impl Heard {
    pub(super) fn now(&self) {
        let passed = self.begun.elapsed().as_micros();
        self.at.store(u64::try_from(passed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Connections {
    /// Half of the files that this process may open: the others are for what it does for who asks.
    pub(super) fn for_this_process() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::new(usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(16, MOST))
    }

    pub(super) fn new(most: usize) -> Self {
        Self { begun: Instant::now(), most, held: Mutex::default(), made: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection on a task of its own.
    pub(super) fn hold<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        serve: impl FnOnce(Heard) -> F,
    ) {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let heard = Heard { begun: self.begun, at: Arc::default() };
        heard.now();
        let mut held = self.lock();
        if held.len() >= self.most
            && let Some(oldest) =
                held.iter().min_by_key(|(_, held)| held.heard.load(Ordering::Relaxed)).map(|(n, _)| *n)
            && let Some(oldest) = held.remove(&oldest)
        {
            tracing::debug!(
                "{} connections are open: one that asked nothing for longest makes room",
                self.most
            );
            oldest.task.abort();
        }
        let (at, served) = (Arc::clone(&heard.at), serve(heard));
        let all = Arc::clone(self);
        // It cannot end before it is held: the lock is.
        let task = tokio::spawn(async move {
            served.await;
            all.lock().remove(&number);
        });
        held.insert(number, Held { task: task.abort_handle(), heard: at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn who_asked_nothing_for_longest_makes_room() {
        let connections = Arc::new(Connections::new(3));
        let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let mut all = Vec::new();
        for number in 0..5 {
            if number == 3 {
                // The first one asks, so the second one goes.
                let first: &Heard = &all[0];
                first.now();
            }
            let (sender, slot) = (sender.clone(), &mut all);
            connections.hold(|heard| {
                slot.push(heard.clone());
                async move {
                    let _ends = Ends(number, sender);
                    std::future::pending::<()>().await;
                }
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!((ended.recv().await, ended.recv().await), (Some(1), Some(2)));
        assert_eq!(connections.lock().len(), 3);
        // One that ends by itself is forgotten.
        connections.hold(|_| async {});
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(connections.lock().len(), 2);
    }

    struct Ends(u32, tokio::sync::mpsc::UnboundedSender<u32>);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }
}
