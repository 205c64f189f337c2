//! Watches the length of a file to measure when readers saw new rows.
use super::now;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Watches one file until it is dropped.
pub(super) struct Watch {
    /// Times at which the file exceeded its previous largest length.
    growths: Arc<Mutex<Vec<Instant>>>,
    count: Arc<AtomicU64>,
    longest: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn of(path: PathBuf) -> Self {
        let (growths, count) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
        let (longest, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, counted, until) = (Arc::clone(&growths), Arc::clone(&count), Arc::clone(&ended));
        let known = Arc::clone(&longest);
        let look = move || {
            while !until.load(Ordering::Acquire) {
                let length = std::fs::metadata(&path).map_or(0, |file| file.len());
                if length > known.load(Ordering::Relaxed) {
                    known.store(length, Ordering::Release);
                    seen.lock().unwrap().push(now());
                    counted.fetch_add(1, Ordering::Release);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Self { growths, count, longest, ended, thread: Some(std::thread::spawn(look)) }
    }

    /// Number of times that the file has grown.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The largest length.
    pub(super) fn longest(&self) -> u64 {
        self.longest.load(Ordering::Acquire)
    }

    /// Milliseconds from `begin` to the first new row after the longest pause in this time; `None` if no row came. The
    /// pause may have started before, because rows in transit at a kill do not count.
    pub(super) fn until_new(&self, begin: Instant, end: Instant) -> Option<f64> {
        let growths = self.growths.lock().unwrap();
        let before = growths.iter().rev().find(|at| **at <= begin).copied();
        let within: Vec<Instant> = growths.iter().filter(|at| **at > begin && **at <= end).copied().collect();
        let starts = before.or(Some(begin)).into_iter().chain(within.iter().copied());
        let longest = starts.zip(&within).max_by_key(|(from, to)| to.duration_since(*from))?;
        Some(longest.1.duration_since(begin).as_secs_f64() * 1e3)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
