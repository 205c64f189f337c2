//! The runner without a fuzzer: mutates a corpus by a seed and runs a target on each mutation. A panic, or an execution
//! with too much processor time (not wall time: the machine may be busy) or memory fails, and the input is printed.
use crate::Target;
use crate::mutation::mutated;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_machine::thread_time;
use tidemill_random::Random;

/// Limits of an execution.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Processor time of one execution.
    pub time: Duration,
    /// Additional bytes of memory of one execution.
    pub memory: usize,
}

impl Bounds {
    /// Returns the limits of a target: a second, and its memory.
    pub fn of(target: &Target) -> Self {
        Self { time: Duration::from_secs(1), memory: target.memory }
    }
}

/// Counts the memory of this process.
pub trait Memory {
    /// Returns the bytes in use; resets the peak.
    fn begin(&self) -> usize;
    /// Returns the peak since then, in bytes.
    fn most(&self) -> usize;
}

/// Result of all executions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of executions.
    pub executions: u64,
    /// Number of accepted inputs; the others were refused.
    pub accepted: u64,
    /// Bytes of the longest input.
    pub longest: usize,
    /// Peak memory of one execution.
    pub memory: usize,
    /// Largest processor time of one execution.
    pub slowest: Duration,
}

/// Silences caught panics, since parsers may catch those of libraries, a million times. The text of the last one is kept.
pub fn quiet() {
    std::panic::set_hook(Box::new(|panic| {
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    }));
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Runs a target on mutated inputs.
///
/// # Panics
/// An execution panics, or exceeds a limit. One that does not end at all ends the process, after its input was printed.
pub fn run(
    target: &Target,
    corpus: &[Vec<u8>],
    executions: u64,
    seed: u64,
    bounds: Bounds,
    memory: &dyn Memory,
) -> Outcome {
    let mut random = Random::of_seed(seed);
    let mut outcome = Outcome { executions, ..Outcome::default() };
    let watch = Watch::begin(target.name, bounds.time);
    for number in 0..executions {
        let input = &corpus[random.below(corpus.len())];
        let other = &corpus[random.below(corpus.len())];
        let input = mutated(input, other, target.words, &mut random);
        outcome.longest = outcome.longest.max(input.len());
        watch.reads(number, &input);
        let (begun, before) = (thread_time(), memory.begin());
        let read = catch_unwind(AssertUnwindSafe(|| (target.read)(&input)));
        let (took, bytes) = (thread_time().saturating_sub(begun), memory.most().saturating_sub(before));
        let case = || format!("{}, execution {number} of seed {seed}: {}", target.name, shown(&input));
        let fault = match read {
            Ok(is_taken) => {
                outcome.accepted += u64::from(is_taken);
                let is_slow = (took > bounds.time).then(|| format!("it took {took:?} of processor time"));
                is_slow.or((bytes > bounds.memory).then(|| format!("it took {bytes} bytes of memory")))
            }
            Err(_) => Some(LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        };
        if let Some(fault) = fault {
            // This panic must be printed.
            drop(std::panic::take_hook());
            panic!("{fault}\n{}", case());
        }
        outcome.memory = outcome.memory.max(bytes);
        outcome.slowest = outcome.slowest.max(took);
    }
    outcome
}

/// Formats an input for people; all of it is in a file.
fn shown(input: &[u8]) -> String {
    let name = format!("tidemill-input-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let place = match std::fs::write(&path, input) {
        Ok(()) => format!("in {}", path.display()),
        Err(error) => format!("not kept: {error}"),
    };
    let text: String = input.escape_ascii().to_string().chars().take(2_000).collect();
    format!("{} bytes, {place}\n{text}", input.len())
}

/// Watches whether an execution ends.
struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    number: AtomicU64,
    input: Mutex<Vec<u8>>,
    is_over: AtomicBool,
}

impl Watch {
    fn begin(name: &'static str, most: Duration) -> Self {
        let shared = Arc::new(Shared {
            number: AtomicU64::new(0),
            input: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let task = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        let thread = std::thread::spawn(move || {
            // The number of the execution, and the time of its thread when it was first seen.
            let mut seen = (u64::MAX, Duration::ZERO);
            while !watched.is_over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(100));
                let (number, time) = (watched.number.load(Ordering::Acquire), time_of(&task));
                if number != seen.0 {
                    seen = (number, time);
                } else if time.saturating_sub(seen.1) > most * 2 {
                    let input = watched.input.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    eprintln!("{name}, execution {number} does not end: {}", shown(&input));
                    std::process::abort();
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    fn reads(&self, number: u64, input: &[u8]) {
        input.clone_into(&mut self.shared.input.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.number.store(number, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join); // it does not panic
    }
}

/// Processor time of a thread of this process, in hundredths of a second; zero if the system does not report it.
fn time_of(task: &std::path::Path) -> Duration {
    let text =
        std::fs::read_to_string(std::path::Path::new("/proc").join(task).join("stat")).unwrap_or_default();
    // The name of the thread is in parentheses; `utime` and `stime` are fields 14 and 15 of all, counted from 1.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    let ticks: u64 = fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counts;

    impl Memory for Counts {
        fn begin(&self) -> usize {
            0
        }
        fn most(&self) -> usize {
            1_000
        }
    }

    fn target(read: fn(&[u8]) -> bool) -> Target {
        Target { name: "test", reads: "anything", read, samples: Vec::new, words: &[], memory: 1 << 20 }
    }

    fn runs(read: fn(&[u8]) -> bool, bounds: Bounds) -> Outcome {
        run(&target(read), &[b"begins: 1\n".to_vec()], 400, 3, bounds, &Counts)
    }

    fn fails(read: fn(&[u8]) -> bool, bounds: Bounds) -> String {
        let panic = catch_unwind(|| runs(read, bounds)).expect_err("it fails");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn a_target_that_fails_is_found_with_its_input() {
        let bounds = Bounds::of(&target(|_| true));
        let outcome = runs(|bytes| bytes.starts_with(b"begins"), bounds);
        assert!(outcome.accepted > 50 && outcome.accepted < 400, "{outcome:?}");
        assert!(outcome.longest > 10 && outcome.memory == 1_000, "{outcome:?}");
        let told = fails(
            |bytes| {
                assert!(!bytes.contains(&0xff));
                true
            },
            bounds,
        );
        assert!(told.contains("execution") && told.contains("\\xff"), "{told}");
        let told = fails(|_| true, Bounds { memory: 999, ..bounds });
        assert!(told.contains("1000 bytes of memory"), "{told}");
        let told = fails(|_| true, Bounds { time: Duration::ZERO, ..bounds });
        assert!(told.contains("of processor time"), "{told}");
    }

    #[test]
    fn the_time_of_a_thread_is_seen_from_outside() {
        let task = std::fs::read_link("/proc/thread-self").expect("Linux tells");
        let mut number = 1u64;
        while thread_time() < Duration::from_millis(200) {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        assert!(time_of(&task) >= Duration::from_millis(150), "{:?} {number}", time_of(&task));
    }
}
