//! Processor time of the threads of a run. Each thread adds its time when it is about to wait or has done a piece of work,
//! so the system's list of threads need not be searched.
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_machine::thread_time;

/// Total time of the threads with one task, all their incarnations together.
#[derive(Debug, Default)]
pub struct ProcessorTime(AtomicU64);

impl ProcessorTime {
    /// Seconds of processor time, user and system.
    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets another process's count.
    pub(crate) fn set(&self, time: Duration) {
        self.0.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Adds the time of a thread or another process.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Adds the time of the calling thread, when it looks and at its end. The clock is the thread's own, so this stays on it.
pub(crate) struct ThreadMeter {
    total: Arc<ProcessorTime>,
    seen: Duration,
    on_this_thread: PhantomData<*const ()>,
}

impl ThreadMeter {
    /// Starts measuring the calling thread.
    pub(crate) fn begin(total: Arc<ProcessorTime>) -> Self {
        Self { total, seen: thread_time(), on_this_thread: PhantomData }
    }

    /// Adds the thread's time since the last look. A system call: not for every record.
    pub(crate) fn look(&mut self) {
        let now = thread_time();
        self.total.add(now.saturating_sub(self.seen));
        self.seen = now;
    }

    /// Adds another thread's time on behalf of this one.
    pub(crate) fn add_of_others(&self, time: Duration) {
        self.total.add(time);
    }
}

impl Drop for ThreadMeter {
    fn drop(&mut self) {
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_of_the_thread_itself_counts() {
        let total = Arc::new(ProcessorTime::default());
        let spin = |wanted: Duration| {
            let begun = thread_time();
            while thread_time() - begun < wanted {}
        };
        let measured = Arc::clone(&total);
        let thread = std::thread::spawn(move || {
            let mut meter = ThreadMeter::begin(measured);
            spin(Duration::from_millis(20));
            meter.look();
            spin(Duration::from_millis(20));
        });
        spin(Duration::from_millis(60));
        thread.join().expect("it only counts");
        let seconds = total.seconds();
        assert!((0.040..0.060).contains(&seconds), "{seconds}");
        ThreadMeter::begin(Arc::clone(&total)).add_of_others(Duration::from_secs(2));
        assert!(total.seconds() > 2.0);
    }
}
