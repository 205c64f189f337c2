//! Sends requests until each is taken or refused: several at a time, with pauses between attempts.
use crate::endpoint::Endpoint;
use crate::hidden::{Headers, redacted};
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tidemill_http::{Call, CallError, Caller, HeaderName, HeaderValue, Repeat};
use tidemill_operators::api::OperatorError;

/// First and longest pause between attempts. A receiver that asks for a longer one gets it.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];
/// Longest pause that a receiver can ask for.
const LONGEST: Duration = Duration::from_secs(3600);
/// Bytes of an answer that are read, to say why it refuses.
const ANSWER: u64 = 4096;
/// Characters of an answer that are shown.
const SHOWN: usize = 200;

#[allow(clippy::disallowed_methods, reason = "receivers follow no simulated time")]
fn monotonic() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "receivers follow no simulated time")]
fn system() -> SystemTime {
    SystemTime::now()
}

/// A request.
#[derive(Debug)]
pub(crate) struct Job {
    /// The same each time that it is sent.
    pub(crate) key: String,
    pub(crate) body: Vec<u8>,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    Taken,
    /// It will never be taken: a stable reason, and the finding.
    Refused(&'static str, String),
}

/// Settings of a delivery.
pub(crate) struct Settings {
    /// The sink.
    pub(crate) id: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) headers: Headers,
    pub(crate) content_type: &'static str,
    /// Longest time for an answer.
    pub(crate) timeout: Duration,
    /// Time after which a request is given up; none: never.
    pub(crate) retry: Option<Duration>,
    /// Requests at a time.
    pub(crate) in_flight: usize,
}

/// Ends all waiting.
#[derive(Default)]
pub(crate) struct CallOffSign {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl CallOffSign {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Waits; returns whether it is called off.
    fn wait(&self, pause: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), pause, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// See the module.
pub(crate) struct Delivery {
    settings: Arc<Settings>,
    /// One for each request at a time: each keeps a connection.
    callers: Vec<Arc<Caller>>,
    sign: Arc<CallOffSign>,
    /// Whether a warning that it cannot deliver is the newest news.
    is_told: AtomicBool,
}

/// Result of an attempt.
enum Attempt {
    Settled(Fate),
    /// Another one may help: why, and after how long at the earliest.
    Again(String, Option<Duration>),
}

impl Delivery {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        let caller = || Arc::new(Caller::new(settings.endpoint.place()));
        let callers = (0..settings.in_flight).map(|_| caller()).collect();
        Self { settings, callers, sign: Arc::default(), is_told: AtomicBool::new(false) }
    }

    pub(crate) fn sign(&self) -> Arc<CallOffSign> {
        Arc::clone(&self.sign)
    }

    fn failed(&self, text: &str) -> OperatorError {
        OperatorError::new(format!("sink `{}`, {}: {text}", self.settings.id, self.settings.endpoint.shown))
    }

    /// Sends all; returns their fates in the same order.
    pub(crate) fn send(&self, jobs: &[Job]) -> Result<Vec<Fate>, OperatorError> {
        let threads = self.callers.len().min(jobs.len());
        let next = AtomicUsize::new(0);
        let take = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(at).map(|job| (at, job))
        };
        let work = |caller: &Arc<Caller>| {
            let mut fates = Vec::new();
            while let Some((at, job)) = take() {
                fates.push((at, self.deliver(caller, job)?));
            }
            Ok::<_, OperatorError>(fates)
        };
        let work = &work;
        let parts = match threads {
            0 => return Ok(Vec::new()),
            1 => vec![work(&self.callers[0])],
            _ => std::thread::scope(|scope| {
                let started: Vec<_> = self.callers[..threads]
                    .iter()
                    .map(|caller| {
                        std::thread::Builder::new()
                            .name("tm-webhook".into())
                            .spawn_scoped(scope, move || work(caller))
                            .map_err(|error| self.failed(&format!("no thread to send with: {error}")))
                    })
                    .collect();
                let ended = started.into_iter().map(|started| match started?.join() {
                    Ok(fates) => fates,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                ended.collect()
            }),
        };
        let mut all = parts.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        all.sort_by_key(|(at, _)| *at);
        Ok(all.into_iter().map(|(_, fate)| fate).collect())
    }

    /// Sends one until its fate is known.
    fn deliver(&self, caller: &Arc<Caller>, job: &Job) -> Result<Fate, OperatorError> {
        let Settings { id, endpoint, retry, .. } = &*self.settings;
        let begun = monotonic();
        let mut pause = PAUSES[0];
        loop {
            let (why, asked) = match self.attempt(caller, job)? {
                Attempt::Settled(fate) => {
                    if fate == Fate::Taken && self.is_told.swap(false, Ordering::AcqRel) {
                        tracing::info!("sink `{id}`: {} takes rows again", endpoint.shown);
                    }
                    return Ok(fate);
                }
                Attempt::Again(why, asked) => (why, asked),
            };
            let wait = spread(pause).max(asked.unwrap_or_default().min(LONGEST));
            pause = (2 * pause).min(PAUSES[1]);
            if retry.is_some_and(|retry| begun.elapsed() + wait > retry) {
                return Ok(Fate::Refused("undelivered", why));
            }
            if !self.is_told.swap(true, Ordering::AcqRel) {
                tracing::warn!("sink `{id}`: {why}; trying again");
            }
            if self.sign.wait(wait) {
                return Err(self.failed("it was called off while rows waited to be sent"));
            }
        }
    }

    fn attempt(&self, caller: &Arc<Caller>, job: &Job) -> Result<Attempt, OperatorError> {
        let Settings { endpoint, headers, content_type, timeout, .. } = &*self.settings;
        let key = HeaderValue::from_str(&job.key).map_err(|error| self.failed(&error.to_string()))?;
        let mut all = headers.all.clone();
        all.push((HeaderName::from_static("content-type"), HeaderValue::from_static(content_type)));
        all.push((HeaderName::from_static("idempotency-key"), key));
        let target = endpoint.target();
        let call = Call { method: "POST", body: &job.body, headers: &all, ..Call::get(&target) };
        let mut reply = match caller.open(&call, *timeout, Repeat::Allowed) {
            Ok(reply) => reply,
            Err(CallError::Request(_)) => return Err(self.failed("its path cannot stand in a request")),
            Err(error) => {
                return Ok(Attempt::Again(format!("{}: {}", endpoint.shown, without_place(&error)), None));
            }
        };
        let status = reply.status;
        let mut answer = Vec::new();
        // Read to its end, so that the connection can be used again; a longer one ends it, as does one that breaks off.
        let _ = (&mut reply).take(ANSWER).read_to_end(&mut answer);
        if (200..300).contains(&status) {
            return Ok(Attempt::Settled(Fate::Taken));
        }
        let mut said = String::from_utf8_lossy(&answer).split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some((end, _)) = said.char_indices().nth(SHOWN) {
            said.truncate(end);
        }
        let secrets: Vec<String> = headers.secrets.iter().chain(&endpoint.secrets).cloned().collect();
        let said = match said.is_empty() {
            true => String::new(),
            false => format!(": {}", redacted(said, &secrets)),
        };
        let why = format!("{} answered {status}{said}", endpoint.shown);
        Ok(match status {
            408 | 425 | 429 | 500.. => {
                Attempt::Again(why, reply.retry_after.as_deref().and_then(|after| pause_of(after, system())))
            }
            _ => Attempt::Settled(Fate::Refused("refused", why)),
        })
    }
}

/// The error without the address, which is shown already.
fn without_place(error: &CallError) -> String {
    match error {
        CallError::Unreachable { source, .. } => format!("no connection: {source}"),
        CallError::Broken { source, .. } => format!("no answer: {source}"),
        CallError::Tls { reason, .. } => format!("TLS: {reason}"),
        CallError::Stranger { reason, .. } => format!("TLS: {}", reason.0),
        CallError::Malformed { why, .. } => format!("the answer is no HTTP: {why}"),
        CallError::Request(_) => "no request".to_owned(),
    }
}

/// The pause that `Retry-After` asks for: seconds, or a date.
fn pause_of(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(text.trim()).ok()?.duration_since(now).ok()
}

/// Half of a pause to all of it: senders that lost the same receiver do not return at once.
fn spread(pause: Duration) -> Duration {
    let random = std::hash::RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (random >> 11) as f64 / (1u64 << 54) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_say_when_to_come_again() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(pause_of(" 7 ", now), Some(Duration::from_secs(7)));
        assert_eq!(pause_of("Sun, 06 Nov 1994 08:50:37 GMT", now), Some(Duration::from_secs(60)));
        assert_eq!(pause_of("Sun, 06 Nov 1994 08:00:00 GMT", now), None, "it is over");
        assert_eq!(pause_of("soon", now), None);
    }

    #[test]
    fn pauses_differ_within_their_bounds() {
        let pauses: Vec<Duration> = (0..50).map(|_| spread(Duration::from_secs(2))).collect();
        assert!(pauses.iter().all(|pause| (1..=2).contains(&pause.as_secs())), "{pauses:?}");
        assert!(pauses.windows(2).any(|two| two[0] != two[1]));
    }
}
