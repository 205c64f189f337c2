//! Limits open connections to the files of the process. Above the limit, the most silent one makes room, those of unauthenticated peers
//! first. Active connections precede idle ones, and known peers precede unknown ones: a peer that opens very many connections cannot end
//! the transfers of others.
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Connections where the system allows any number of files.
const MOST: usize = 8192;

pub(super) struct Connections {
    begun: Instant,
    most: usize,
    /// Open connections by number.
    held: Mutex<HashMap<u64, Held>>,
    made: AtomicU64,
    /// One has ended.
    ended: Notify,
}

struct Held {
    task: AbortHandle,
    heard: PeerActivity,
}

/// Notes that something comes over a connection, and that it is known who is at its other end.
#[derive(Clone)]
pub struct PeerActivity {
    begun: Instant,
    at: Arc<AtomicU64>,
    is_proved: Arc<AtomicBool>,
}

impl PeerActivity {
    /// Makes the state of a connection with traffic now. `begun`: when the first of all connections was made, or before.
    pub(super) fn new(begun: Instant) -> Self {
        let heard = Self { begun, at: Arc::default(), is_proved: Arc::default() };
        heard.now();
        heard
    }

    /// Something comes.
    pub(crate) fn now(&self) {
        let passed = self.begun.elapsed().as_micros();
        self.at.store(u64::try_from(passed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The peer has proved who it is, or has shown a token that counts.
    pub fn prove(&self) {
        self.is_proved.store(true, Ordering::Relaxed);
    }

    /// When something came last, from the beginning on.
    pub(super) fn last(&self) -> Duration {
        Duration::from_micros(self.at.load(Ordering::Relaxed))
    }

    /// Returns the sort key: the smallest makes room first.
    fn order(&self) -> (bool, Duration) {
        (self.is_proved.load(Ordering::Relaxed), self.last())
    }
}

impl Connections {
    /// Limits connections to half of the files that this process may open: requests need the others.
    pub(super) fn for_this_process() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::new(usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(16, MOST))
    }

    pub(super) fn new(most: usize) -> Self {
        Self {
            begun: Instant::now(),
            most,
            held: Mutex::default(),
            made: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection on a task of its own.
    pub(super) fn hold<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        serve: impl FnOnce(PeerActivity) -> F,
    ) {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let heard = PeerActivity::new(self.begun);
        let mut held = self.lock();
        if held.len() >= self.most
            && let Some(oldest) = held.iter().min_by_key(|(_, held)| held.heard.order()).map(|(n, _)| *n)
            && let Some(oldest) = held.remove(&oldest)
        {
            tracing::debug!(
                "{} connections are open: one of which nothing came for longest makes room",
                self.most
            );
            oldest.task.abort();
        }
        let served = serve(heard.clone());
        let all = Arc::clone(self);
        // It cannot end before it is held: the lock is.
        let task = tokio::spawn(async move {
            served.await;
            all.lock().remove(&number);
            all.ended.notify_one();
        });
        held.insert(number, Held { task: task.abort_handle(), heard });
    }

    /// Waits until no connection is open; there are no new ones.
    pub(super) async fn all_ended(&self) {
        while !self.lock().is_empty() {
            self.ended.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asked_nothing_for_longest_makes_room() {
        let connections = Arc::new(Connections::new(3));
        let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let mut all = Vec::new();
        for number in 0..5 {
            if number == 3 {
                // The first one asks, so the second one goes.
                let first: &PeerActivity = &all[0];
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

    /// A stranger who opens many connections only gets the room of strangers: transfers of known peers continue.
    #[tokio::test(start_paused = true)]
    async fn who_has_proved_nothing_makes_room_first() {
        let connections = Arc::new(Connections::new(3));
        let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..6 {
            let sender = sender.clone();
            connections.hold(|heard| {
                if number == 0 {
                    heard.prove();
                }
                async move {
                    let _ends = Ends(number, sender);
                    std::future::pending::<()>().await;
                }
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let gone = [ended.recv().await, ended.recv().await, ended.recv().await];
        assert_eq!(gone, [Some(1), Some(2), Some(3)]);
        assert_eq!(connections.lock().len(), 3);
    }

    struct Ends(u32, tokio::sync::mpsc::UnboundedSender<u32>);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }
}
