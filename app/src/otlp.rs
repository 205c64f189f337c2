//! Sends traces of records to an OpenTelemetry collector: OTLP over HTTP, as JSON.
//!
//! A separate thread collects the spans of runs and posts them. A collector that is away or slow delays no run: the queue
//! is bounded, the oldest spans are dropped first, and counted. Specification: OTLP 1.x, "OTLP/HTTP, JSON-encoded
//! payloads".
mod document;
#[cfg(feature = "otlp")]
mod post;

use crate::failure::{Failure, Kind};
use document::document;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_engine::clock::{Clock, Nanoseconds, WallClock};
use tidemill_engine::{Span, Traces};

/// Interval of collecting spans.
const EVERY: Duration = Duration::from_millis(300);
/// Spans in one request.
const MOST_SENT: usize = 1024;
/// Most spans that wait for the collector.
const MOST_WAITING: usize = 16_384;
/// Timeout of a request.
#[cfg(feature = "otlp")]
const PATIENCE: Duration = Duration::from_secs(3);
/// Shortest and longest pause after failed requests.
const PAUSES: [Nanoseconds; 2] = [1_000_000_000, 60_000_000_000];
/// Time for sending the last spans when the program ends.
const ENDING: Nanoseconds = 3_000_000_000;

/// Settings of the collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpOptions {
    /// The collector: `http://127.0.0.1:4318`. Without a path, `/v1/traces` is added.
    pub endpoint: String,
    /// Headers of each request, name and value, which authenticate the client.
    pub headers: Vec<(String, String)>,
}

impl OtlpOptions {
    /// Creates settings with headers as in the variable `OTEL_EXPORTER_OTLP_HEADERS` (`name=value,name=value`).
    ///
    /// # Errors
    /// The endpoint is no address of a web server, or a header has no value.
    pub fn new(endpoint: &str, headers: Option<&str>) -> Result<Self, Failure> {
        let wrong = |text: String, help: &str| Failure::new(Kind::Configuration, text).with_help(help);
        let Some((_, rest)) = endpoint.split_once("://").filter(|(scheme, rest)| {
            ["http", "https"].contains(scheme) && !rest.trim_matches('/').is_empty()
        }) else {
            let text = format!("`{endpoint}` is not an address of a collector");
            return Err(wrong(text, "write `http://127.0.0.1:4318`, or an address with `https://`"));
        };
        let has_path = rest.trim_end_matches('/').contains('/');
        let endpoint = match has_path {
            true => endpoint.to_owned(),
            false => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
        };
        let headers = headers.unwrap_or_default().split(',').filter(|header| !header.trim().is_empty());
        let headers = headers.map(|header| match header.split_once('=') {
            Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
            // The value may be a secret: it is not shown.
            None => Err(wrong(
                "OTEL_EXPORTER_OTLP_HEADERS has a part without `=`".to_owned(),
                "write `name=value`, and `,` between several",
            )),
        });
        Ok(Self { endpoint, headers: headers.collect::<Result<_, _>>()? })
    }
}

/// Result of a request.
#[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "what is built without it is tested as well"))]
#[derive(Debug, Clone, PartialEq, Eq)]
enum Posted {
    /// The collector has it.
    Taken,
    /// The collector refuses it permanently.
    Refused(String),
    /// The collector may accept it later.
    Away(String),
}

/// Posts documents.
trait Post: Send {
    fn post(&mut self, body: Vec<u8>) -> Posted;
}

/// A run whose traces are sent.
struct Followed {
    run: String,
    workflow: String,
    traces: Traces,
    /// Number of its spans without room.
    dropped: u64,
}

/// A span that waits to be sent.
struct Waiting {
    run: Arc<str>,
    workflow: Arc<str>,
    span: Span,
}

#[derive(Default)]
struct Shared {
    followed: Mutex<Vec<Followed>>,
    is_ending: AtomicBool,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module. Dropping it sends the remaining spans, for a few seconds at most.
pub struct Exporter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts to send; no run is followed yet.
    ///
    /// # Errors
    /// This program was built without it, the endpoint cannot be used, or the system has no thread left.
    #[cfg(feature = "otlp")]
    pub fn start(options: &OtlpOptions) -> Result<Self, Failure> {
        Self::with(Box::new(post::Http::new(options)?))
    }

    /// Starts to send; no run is followed yet.
    ///
    /// # Errors
    /// This program was built without it.
    #[cfg(not(feature = "otlp"))]
    pub fn start(options: &OtlpOptions) -> Result<Self, Failure> {
        let text = format!("cannot send traces to {}: this build has no exporter", options.endpoint);
        let help = "build the command with `cargo build -p tidemill --features otlp`";
        Err(Failure::new(Kind::Unavailable, text).with_help(help))
    }

    #[cfg_attr(
        not(feature = "otlp"),
        allow(dead_code, reason = "what is built without it is tested as well")
    )]
    fn with(post: Box<dyn Post>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let sender =
            Sender { post, waiting: VecDeque::new(), lost: 0, pause: 0, again_at: 0, is_away: false };
        let thread = std::thread::Builder::new().name("tm-otlp".into()).spawn(move || sender.run(&of_thread));
        let thread = thread.map_err(|error| {
            Failure::new(Kind::Unavailable, format!("cannot start the thread that sends traces: {error}"))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sends the traces of a run, until this is their only owner.
    pub fn follow(&self, run: &str, workflow: &str, traces: Traces) {
        let (run, workflow) = (run.to_owned(), workflow.to_owned());
        locked(&self.shared.followed).push(Followed { run, workflow, traces, dropped: 0 });
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // what it panicked of was told
        }
    }
}

struct Sender {
    post: Box<dyn Post>,
    waiting: VecDeque<Waiting>,
    /// Number of lost spans.
    lost: u64,
    pause: Nanoseconds,
    again_at: Nanoseconds,
    is_away: bool,
}

impl Sender {
    fn run(mut self, shared: &Shared) {
        let clock = WallClock::new();
        while !shared.is_ending.load(Ordering::Acquire) {
            self.take(shared);
            self.send(shared, clock.now(), false);
            std::thread::park_timeout(EVERY);
        }
        let until = clock.now() + ENDING;
        self.take(shared);
        while !self.waiting.is_empty() && clock.now() < until && self.send(shared, clock.now(), true) {}
        self.lost += self.waiting.len() as u64;
        if self.lost > 0 {
            tracing::warn!("{} spans of traces were not sent to the collector", self.lost);
        }
    }

    fn take(&mut self, shared: &Shared) {
        let mut followed = locked(&shared.followed);
        for of in followed.iter_mut() {
            // All present ones: the last ones must be taken together.
            let spans = of.traces.take(usize::MAX);
            let dropped = of.traces.dropped();
            self.lost += dropped - std::mem::replace(&mut of.dropped, dropped);
            let (run, workflow): (Arc<str>, Arc<str>) = (of.run.as_str().into(), of.workflow.as_str().into());
            for span in spans {
                self.waiting.push_back(Waiting {
                    run: Arc::clone(&run),
                    workflow: Arc::clone(&workflow),
                    span,
                });
            }
        }
        followed.retain(|of| !of.traces.is_last());
        while self.waiting.len() > MOST_WAITING {
            self.waiting.pop_front();
            self.lost += 1;
        }
    }

    /// Sends waiting spans, and those that arrive meanwhile, unless the collector was away just now; false if it is away.
    fn send(&mut self, shared: &Shared, now: Nanoseconds, is_last: bool) -> bool {
        if now < self.again_at && !is_last {
            return false;
        }
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(MOST_SENT);
            let body =
                document(self.waiting.iter().take(count).map(|one| (&*one.run, &*one.workflow, &one.span)));
            match self.post.post(body.to_string().into_bytes()) {
                Posted::Taken => {
                    if std::mem::take(&mut self.is_away) {
                        tracing::warn!("the collector accepts traces again");
                    }
                    self.pause = 0;
                }
                Posted::Refused(why) => {
                    tracing::warn!("the collector rejects {count} spans of traces, which are dropped: {why}");
                    self.lost += count as u64;
                }
                Posted::Away(why) => {
                    if !std::mem::replace(&mut self.is_away, true) {
                        tracing::warn!("cannot send traces; keeping up to {MOST_WAITING} spans: {why}");
                    }
                    self.pause = (2 * self.pause).clamp(PAUSES[0], PAUSES[1]);
                    self.again_at = now + self.pause;
                    return false;
                }
            }
            self.waiting.drain(..count);
            // A request may take seconds: new spans of runs have more room here than there.
            self.take(shared);
        }
        true
    }
}

#[cfg(test)]
mod tests;
