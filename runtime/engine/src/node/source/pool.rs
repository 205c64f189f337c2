//! Threads that read sources ahead. Files share a few of them; a source that may block for a long time has its own.
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// More than one thread for each processor, since a thread may wait for the disk.
const THREADS_PER_PROCESSOR: usize = 2;

/// Work that is done in turns. A turn must not panic.
pub(super) trait Turns: Send {
    /// One turn; gives itself back where it wants another one at once.
    fn turn(self: Box<Self>) -> Option<Box<dyn Turns>>;
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<dyn Turns>>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that wait for work.
    idle: usize,
    /// Threads that are in a turn.
    busy: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes turns, the longest waiting first, so that fast work does not starve the rest.
    fn work(&self) {
        let mut queue = self.lock();
        while !queue.closed {
            let Some(next) = queue.waiting.pop_front() else {
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                continue;
            };
            queue.busy += 1;
            drop(queue);
            let again = next.turn();
            queue = self.lock();
            queue.busy -= 1;
            queue.waiting.extend(again);
        }
    }
}

/// A few threads that share the work of many. They start when there is work and end with the pool; a blocked one (a file
/// system that does not answer) ends after its turn, without being waited for.
pub(crate) struct ReaderPool {
    shared: Arc<Shared>,
    name: String,
    most: usize,
}

impl ReaderPool {
    /// Creates a pool for short waits: at most two threads per processor.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(THREADS_PER_PROCESSOR * processors)
    }

    fn with_threads(most: usize) -> Self {
        Self { shared: Arc::default(), name: "tm-read".to_owned(), most }
    }

    /// Creates one thread, for work that may wait for ever.
    pub(super) fn of_one(name: &str) -> Self {
        Self { shared: Arc::default(), name: format!("tm-read-{name}"), most: 1 }
    }

    /// Submits work.
    ///
    /// # Errors
    /// When there is no thread and none can be started.
    pub(super) fn submit(&self, work: Box<dyn Turns>) -> std::io::Result<()> {
        let mut queue = self.shared.lock();
        if queue.idle <= queue.waiting.len() && queue.threads.len() < self.most {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.work()) {
                Ok(thread) => queue.threads.push(thread),
                Err(error) if queue.threads.is_empty() => return Err(error),
                Err(error) => tracing::debug!("no further thread to read with: {error}"),
            }
        }
        queue.waiting.push_back(work);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let (threads, left) = (std::mem::take(&mut queue.threads), std::mem::take(&mut queue.waiting));
        let busy = queue.busy;
        drop(queue);
        self.shared.changed.notify_all();
        drop(left);
        for thread in threads.into_iter().filter(|_| busy == 0) {
            // A turn does not panic; if one did, its work is lost, with no receiver for the error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Sends its name at each turn.
    struct Caller {
        name: usize,
        turns: usize,
        heard: Sender<usize>,
    }

    impl Turns for Caller {
        fn turn(mut self: Box<Self>) -> Option<Box<dyn Turns>> {
            let _ = self.heard.send(self.name);
            self.turns -= 1;
            if self.turns > 0 { Some(self) } else { None }
        }
    }

    /// Blocks a thread until it is released.
    struct Gate(Receiver<()>);

    impl Turns for Gate {
        fn turn(self: Box<Self>) -> Option<Box<dyn Turns>> {
            let _ = self.0.recv();
            None
        }
    }

    #[test]
    fn work_that_always_wants_another_turn_keeps_nothing_waiting() {
        let pool = ReaderPool::with_threads(1);
        let (heard, calls) = unbounded();
        let (open, gate) = bounded(1);
        pool.submit(Box::new(Gate(gate))).expect("a thread");
        for name in 0..3 {
            let turns = [1000, 3, 1000][name];
            pool.submit(Box::new(Caller { name, turns, heard: heard.clone() })).expect("a thread");
        }
        open.send(()).expect("it waits");
        let first: Vec<usize> = calls.iter().take(11).collect();
        assert_eq!(first, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2]);
        assert_eq!(calls.iter().take(2003 - 11).filter(|name| *name == 0).count(), 996);
    }

    #[test]
    fn threads_start_as_they_are_needed_and_end_with_the_pool() {
        struct Counted(Arc<AtomicUsize>);
        impl Turns for Counted {
            fn turn(self: Box<Self>) -> Option<Box<dyn Turns>> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Some(self)
            }
        }
        let pool = ReaderPool::with_threads(3);
        assert_eq!(pool.shared.lock().threads.len(), 0);
        let turns = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            pool.submit(Box::new(Counted(Arc::clone(&turns)))).expect("a thread");
        }
        assert_eq!(pool.shared.lock().threads.len(), 3);
        while turns.load(Ordering::Relaxed) < 1000 {
            std::thread::yield_now();
        }
        drop(pool);
        while Arc::strong_count(&turns) > 1 {
            std::thread::yield_now(); // the turns that go on
        }
    }
}
