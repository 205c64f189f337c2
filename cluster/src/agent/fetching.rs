//! Fetches files: from another worker that has them, from an object store, or from the controller, which names the source.
use crate::api::{Bundle, BundleFile, OBJECT_STORE, Source, SourceRequest};
use crate::blobs::{BlobError, Blobs};
use crate::client::{Client, ClientError};
use crate::clock::instant;
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_bucket::read_link;
use tidemill_link::remote::Credentials;

/// Tries with other workers before the controller must give the file.
const MOST_WORKERS: usize = 8;
/// Limit of consecutive requests without an answer.
const MOST_FAILURES: u32 = 5;
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
        let mut failures = 0;
        loop {
            let source = match self.client.post_again::<Source>(&path, &request) {
                Ok(source) => source,
                Err(error) if error.is_refusal() && !error.is_unproved() || failures >= MOST_FAILURES => {
                    return Err(error.to_string());
                }
                Err(error) => {
                    tracing::debug!("{error}");
                    failures += 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            match source {
                Source::Wait { milliseconds } => {
                    std::thread::sleep(Duration::from_millis(milliseconds.clamp(10, 10_000)));
                }
                Source::Worker { place } if request.failed.len() < MOST_WORKERS => {
                    let given = Client::of_peer(&place, &self.credentials)
                        .map_err(|error: ClientError| error.to_string())
                        .and_then(|peer| self.take(&peer, file).map_err(|error| error.to_string()));
                    let Err(reason) = given else { return Ok(()) };
                    tracing::info!("cannot fetch `{}` from {place}: {reason}", file.path);
                    request.failed.push(place);
                }
                Source::Store { link } => {
                    let given = read_link(&link).map_err(|error| error.to_string()).and_then(|from| {
                        // One byte more is enough to see that it is another file.
                        let from = from.take(file.bytes.saturating_add(1));
                        self.blobs.put(&file.digest, from).map_err(|error| error.to_string())
                    });
                    let Err(reason) = given else { return Ok(()) };
                    tracing::warn!("cannot fetch `{}` from the object store: {reason}", file.path);
                    *self.away() = Some(instant());
                    request.failed.push(OBJECT_STORE.to_owned());
                }
                Source::Worker { .. } | Source::Controller => match self.take(&self.client, file) {
                    Ok(()) => return Ok(()),
                    Err(error @ BlobError::Different { .. }) => return Err(error.to_string()),
                    Err(error) if failures >= MOST_FAILURES => return Err(error.to_string()),
                    Err(error) => {
                        tracing::debug!("{error}");
                        failures += 1;
                        std::thread::sleep(PAUSE);
                    }
                },
            }
        }
    }

    fn take(&self, from: &Client, file: &BundleFile) -> Result<(), BlobError> {
        self.blobs.put(&file.digest, from.blob(&file.digest, file.bytes))
    }
}
