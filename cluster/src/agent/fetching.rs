//! Fetches files: from another worker that has them, from an object store, or from the controller, which names the source.
use crate::api::{Bundle, BundleFile, OBJECT_STORE, Source, SourceRequest};
use crate::blobs::{BlobError, Blobs};
use crate::client::Client;
use crate::clock::instant;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_bucket::read_link_from;
use tidemill_link::remote::Credentials;

/// Tries with other workers before the controller must give the file.
const MOST_WORKERS: usize = 8;
/// Limit of consecutive tries with the controller in which nothing comes.
const MOST_FAILURES: u32 = 5;
/// Time without an answer of the controller after which it counts as gone. What is here stays meanwhile, and others read it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between such questions.
const PAUSE: Duration = Duration::from_millis(500);
/// Time without requests to an object store that failed, so that not each file of a run waits for it.
const AWAY: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Fetcher {
    client: Arc<Client>,
    blobs: Arc<Blobs>,
    credentials: Credentials,
    /// Digests that are being fetched: a second thread that wants one waits for it.
    open: Mutex<BTreeSet<String>>,
    done: Condvar,
    /// When the object store gave nothing.
    away: Mutex<Option<Instant>>,
}

impl Fetcher {
    pub(super) fn new(client: &Arc<Client>, blobs: &Arc<Blobs>, credentials: &Credentials) -> Arc<Self> {
        Arc::new(Self {
            client: Arc::clone(client),
            blobs: Arc::clone(blobs),
            credentials: credentials.clone(),
            open: Mutex::default(),
            done: Condvar::new(),
            away: Mutex::default(),
        })
    }

    fn away(&self) -> MutexGuard<'_, Option<Instant>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all files of a bundle here.
    pub(super) fn fetch(&self, bundle: &Bundle) -> Result<(), String> {
        for file in &bundle.files {
            {
                let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
                while open.contains(&file.digest) {
                    open = self.done.wait(open).unwrap_or_else(PoisonError::into_inner);
                }
                if self.blobs.has(&file.digest) {
                    continue;
                }
                open.insert(file.digest.clone());
            }
            let fetched = self.one(file);
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&file.digest);
            self.done.notify_all();
            fetched.map_err(|reason| format!("cannot fetch `{}`: {reason}", file.path))?;
        }
        Ok(())
    }

    fn one(&self, file: &BundleFile) -> Result<(), String> {
        let path = format!("/v1/blobs/{}/source", file.digest);
        let mut request = SourceRequest::default();
        if self.away().is_some_and(|since| since.elapsed() < AWAY) {
            request.failed.push(OBJECT_STORE.to_owned());
        }
        let begin = || self.blobs.arrive(&file.digest, file.bytes).map_err(|error| error.to_string());
        let mut arriving = begin()?;
        let (mut failures, mut silent_since) = (0, None);
        // A worker that sent nothing in time: it may wait itself, and it may be cut off from here.
        let mut slow: Option<String> = None;
        loop {
            let source = match self.client.post_again::<Source>(&path, &request) {
                Ok(source) => source,
                Err(error) if error.is_refusal() && !error.is_unproved() => return Err(error.to_string()),
                Err(error) => {
                    if silent_since.get_or_insert_with(instant).elapsed() >= PATIENCE {
                        return Err(error.to_string());
                    }
                    tracing::debug!("{error}");
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            silent_since = None;
            let is_other = matches!(&source, Source::Worker { .. }) && request.failed.len() < MOST_WORKERS;
            let (begun_at, mut is_slow) = (arriving.bytes(), false);
            let (name, taken) = match &source {
                Source::Wait { milliseconds } => {
                    std::thread::sleep(Duration::from_millis((*milliseconds).clamp(10, 10_000)));
                    continue;
                }
                Source::Worker { place } if is_other => {
                    let peer = Client::of_peer(place, &self.credentials).map_err(|error| error.to_string());
                    let taken = peer.and_then(|peer| {
                        let from = peer.blob_from(&file.digest, file.bytes, begun_at);
                        let taken = arriving.take(Some(place), from);
                        is_slow = taken.as_ref().is_err_and(BlobError::is_slow);
                        taken.map_err(|error| error.to_string())
                    });
                    (place.as_str(), taken)
                }
                Source::Store { link } => {
                    let taken = read_link_from(link, begun_at)
                        .map_err(|error| error.to_string())
                        .and_then(|from| arriving.take(None, from).map_err(|error| error.to_string()));
                    (OBJECT_STORE, taken)
                }
                Source::Worker { .. } | Source::Controller => {
                    let from = self.client.blob_from(&file.digest, file.bytes, begun_at);
                    ("the controller", arriving.take(None, from).map_err(|error| error.to_string()))
                }
            };
            let reason = match taken {
                Err(reason) => reason,
                Ok(()) => match arriving.keep() {
                    Ok(()) => return Ok(()),
                    // Of several sources any may have been wrong, and a part of a process before, too.
                    Err(error @ BlobError::Different { .. }) => {
                        if matches!(source, Source::Controller) && begun_at == 0 {
                            return Err(error.to_string());
                        }
                        arriving = begin()?;
                        error.to_string()
                    }
                    Err(error) => return Err(error.to_string()),
                },
            };
            let here = arriving.bytes();
            let text =
                format!("cannot fetch `{}` from {name}, {here} of {} bytes are here", file.path, file.bytes);
            match source {
                Source::Worker { place } if is_other => {
                    tracing::info!("{text}: {reason}");
                    match is_slow && slow.as_ref() != Some(&place) {
                        true => slow = Some(place),
                        false => request.failed.push(place),
                    }
                }
                Source::Store { .. } => {
                    tracing::warn!("{text}: {reason}");
                    *self.away() = Some(instant());
                    request.failed.push(OBJECT_STORE.to_owned());
                }
                _ if failures >= MOST_FAILURES => return Err(reason),
                _ => {
                    tracing::debug!("{text}: {reason}");
                    // A source that sends bytes is no failure.
                    failures = if here > begun_at { 1 } else { failures + 1 };
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}
