//! Parts of files that lie on workers: workers dial the controller, so it announces a part, and they send it. A few at most are under way,
//! and nothing is stored.
use super::answering::{Answer, No, blocking, worker};
use super::tls::Peer;
use super::{Shared, locked};
use crate::api::{CHUNK, FilePart, FilePartRefused};
use crate::clock::instant;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, State};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Parts that are wanted at once: each is in memory once it is there.
const MOST: usize = 32;
/// Time that a worker has to send a part: less than the time limit of a request for results.
const PATIENCE: Duration = Duration::from_secs(50);
/// Silence of a worker's parts after which a part is requested again.
const AGAIN: Duration = Duration::from_secs(25);
/// Time that the transfer of a part should take; it sets the size.
const WAY: Duration = Duration::from_secs(5);
/// Bytes of the first part, before the rate of the link is known, and the least bytes of any.
const FIRST: u64 = 256 << 10;
const LEAST: u64 = 64 << 10;
/// Time that a worker waits for the next request after a part.
const LINGER: Duration = Duration::from_secs(2);

/// The reason why a part is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PartError {
    #[error("too many files are being fetched at the moment: try again")]
    Busy,
    #[error("worker {0} did not send it in time")]
    Late(String),
    #[error("worker {0}: {1}")]
    Refused(String, String),
}

struct Open {
    worker: String,
    part: FilePart,
    given: Option<Instant>,
    answer: oneshot::Sender<Result<Bytes, String>>,
}

/// The link from a worker.
#[derive(Default)]
struct Way {
    /// When a part of it came last.
    heard: Option<Instant>,
    /// Bytes of the next part; none: it is not known what fits.
    bytes: Option<u64>,
}

struct All {
    /// Number of the last one. A worker skips numbers that it knows, also those of another controller and of this one before it was started
    /// again: the first is a random one.
    last: u64,
    open: BTreeMap<u64, Open>,
    ways: BTreeMap<String, Way>,
}

/// Numbers begin below this: they stay exact in programs that read numbers of JSON as floating point, 2^53.
const FIRST_BELOW: u64 = 1 << 52;

impl Default for All {
    fn default() -> Self {
        // The standard library has no other random numbers.
        let last = RandomState::new().build_hasher().finish() % FIRST_BELOW;
        Self { last, open: BTreeMap::new(), ways: BTreeMap::new() }
    }
}

impl All {
    /// Returns the parts that a worker is to send: new ones, and ones that it dropped. Parts travel one after the other, in the order of
    /// the requests: while parts come, the others wait there and are not requested again.
    fn wanted(&mut self, worker: &str, now: Instant) -> Vec<FilePart> {
        let heard = self.ways.get(worker).and_then(|way| way.heard);
        let is_wanted = |open: &&mut Open| {
            let silent =
                |given: Instant| now.saturating_duration_since(heard.map_or(given, |heard| heard.max(given)));
            open.worker == worker && open.given.is_none_or(|given| silent(given) >= AGAIN)
        };
        let wanted = self.open.values_mut().filter(is_wanted).map(|open| {
            open.given = Some(now);
            open.part.clone()
        });
        wanted.collect()
    }

    /// A part has come: how large the next may be.
    fn came(&mut self, worker: &str, given: Option<Instant>, bytes: u64, now: Instant) {
        let way = self.ways.entry(worker.to_owned()).or_default();
        // Its transfer began with the request, or when the part before it came.
        let began = given.max(way.heard);
        way.heard = Some(now);
        let Some(took) = began.map(|began| now.saturating_duration_since(began)) else { return };
        if bytes >= LEAST {
            let fits = bytes as f64 * WAY.as_secs_f64() / took.as_secs_f64().max(1e-3);
            way.bytes = Some((fits as u64).clamp(LEAST, CHUNK));
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Parts {
    all: Mutex<All>,
    changed: Notify,
}

/// Removes a request when its caller is dropped.
struct Forgets<'a>(&'a Parts, u64);

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        locked(&self.0.all).open.remove(&self.1);
    }
}

impl Parts {
    /// Gets a part of a file from a worker, and assigns its number.
    pub(super) async fn have(&self, worker: &str, part: FilePart) -> Result<Bytes, PartError> {
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut all = locked(&self.all);
            if all.open.len() >= MOST {
                return Err(PartError::Busy);
            }
            all.last += 1;
            let number = all.last;
            let fits = all.ways.get(worker).and_then(|way| way.bytes).unwrap_or(FIRST);
            let part = FilePart { number, bytes: part.bytes.min(fits), ..part };
            all.open.insert(number, Open { worker: worker.to_owned(), part, given: None, answer });
            number
        };
        let _forgets = Forgets(self, number);
        self.changed.notify_waiters();
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(Ok(bytes))) => Ok(bytes),
            Ok(Ok(Err(reason))) => Err(PartError::Refused(worker.to_owned(), reason)),
            Ok(Err(_)) | Err(_) => {
                locked(&self.all).ways.entry(worker.to_owned()).or_default().bytes = Some(LEAST);
                Err(PartError::Late(worker.to_owned()))
            }
        }
    }

    /// Returns the parts that a worker is to send now.
    pub(super) fn wanted(&self, worker: &str) -> Vec<FilePart> {
        locked(&self.all).wanted(worker, instant())
    }

    /// Returns the parts that a worker is to send, after a short wait if there are none.
    async fn wanted_soon(&self, worker: &str) -> Vec<FilePart> {
        let until = tokio::time::Instant::now() + LINGER;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let wanted = self.wanted(worker);
            if !wanted.is_empty() || tokio::time::timeout_at(until, changed).await.is_err() {
                return wanted;
            }
        }
    }

    /// A worker sends what was wanted of it.
    fn sent(&self, worker: &str, number: u64, what: Result<Bytes, String>) {
        let mut all = locked(&self.all);
        if all.open.get(&number).is_some_and(|open| open.worker == worker)
            && let Some(open) = all.open.remove(&number)
        {
            let bytes = what.as_ref().map_or(0, |bytes| bytes.len() as u64);
            all.came(worker, open.given, bytes, instant());
            let _ = open.answer.send(what); // nobody waits for it any more
        }
    }
}

async fn take(
    shared: Arc<Shared>,
    peer: Peer,
    number: u64,
    what: Result<Bytes, String>,
) -> Answer<Vec<FilePart>> {
    let name = blocking(&shared, move |shared| worker(shared, &peer).map(|(name, _)| name)).await?;
    shared.parts.sent(&name, number, what);
    Ok(Json(shared.parts.wanted_soon(&name).await))
}

pub(super) async fn sent(
    State(shared): State<Arc<Shared>>,
    Path(number): Path<u64>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    bytes: Bytes,
) -> Answer<Vec<FilePart>> {
    take(shared, peer, number, Ok(bytes)).await
}

pub(super) async fn refused(
    State(shared): State<Arc<Shared>>,
    Path(number): Path<u64>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(FilePartRefused { error }): Json<FilePartRefused>,
) -> Answer<Vec<FilePart>> {
    take(shared, peer, number, Err(error)).await
}

impl From<PartError> for No {
    fn from(error: PartError) -> Self {
        use axum::http::StatusCode;
        let status = match &error {
            PartError::Busy | PartError::Late(_) => StatusCode::SERVICE_UNAVAILABLE,
            PartError::Refused(..) => StatusCode::NOT_FOUND,
        };
        Self(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(path: &str) -> FilePart {
        let (run, id, role) = ("night".to_owned(), "1".to_owned(), "edge".to_owned());
        FilePart { number: 0, run, id, role, path: path.to_owned(), offset: 0, bytes: 8 }
    }

    #[tokio::test]
    async fn a_part_goes_from_the_worker_that_has_it_to_who_wants_it() {
        let parts = Arc::new(Parts::default());
        let wants = Arc::clone(&parts);
        let waits = tokio::spawn(async move { wants.have("edge", part("a")).await });
        let wanted = parts.wanted_soon("edge").await;
        assert_eq!((wanted.len(), wanted[0].path.as_str()), (1, "a"));
        assert!(parts.wanted("edge").is_empty(), "it is given once");
        // Another worker cannot answer it, and an answer counts once.
        parts.sent("hub", wanted[0].number, Ok(Bytes::from_static(b"of another")));
        parts.sent("edge", wanted[0].number, Ok(Bytes::from_static(b"right")));
        parts.sent("edge", wanted[0].number, Ok(Bytes::from_static(b"again")));
        assert_eq!(waits.await.unwrap(), Ok(Bytes::from_static(b"right")));
        let wants = Arc::clone(&parts);
        let waits = tokio::spawn(async move { wants.have("edge", part("../b")).await });
        let wanted = parts.wanted_soon("edge").await;
        parts.sent("edge", wanted[0].number, Err("is not in the folder of the run".to_owned()));
        let refused = waits.await.unwrap().unwrap_err().to_string();
        assert_eq!(refused, "worker edge: is not in the folder of the run");
    }

    /// A worker skips the numbers that it knows.
    #[tokio::test]
    async fn no_two_controllers_give_a_part_the_same_number() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let parts = Arc::new(Parts::default());
            for _ in 0..3 {
                let wants = Arc::clone(&parts);
                let waits = tokio::spawn(async move { wants.have("edge", part("a")).await });
                let wanted = parts.wanted_soon("edge").await;
                parts.sent("edge", wanted[0].number, Ok(Bytes::new()));
                assert_eq!(waits.await.unwrap(), Ok(Bytes::new()));
                assert!(wanted[0].number < 1 << 53);
                assert!(seen.insert(wanted[0].number), "{}", wanted[0].number);
            }
        }
    }

    #[test]
    fn a_slow_way_gets_small_parts_and_is_asked_once() {
        let mut all = All::default();
        let begin = instant();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let open = |number: u64| {
            let (answer, _) = oneshot::channel();
            Open { worker: "edge".into(), part: FilePart { number, ..part("a") }, given: None, answer }
        };
        all.open.extend([(1, open(1)), (2, open(2))]);
        assert_eq!(all.wanted("edge", at(0.0)).len(), 2);
        // The first takes 20 s, and the second waits after it for as long: no part is requested again.
        assert!(all.wanted("edge", at(19.0)).is_empty());
        all.came("edge", Some(at(0.0)), FIRST, at(20.0));
        all.open.remove(&1);
        assert_eq!(all.ways["edge"].bytes, Some(LEAST));
        assert!(all.wanted("edge", at(39.0)).is_empty());
        // Its answer, with which the second would have come, was lost.
        assert_eq!(all.wanted("edge", at(46.0)).iter().map(|one| one.number).collect::<Vec<_>>(), [2]);
        assert!(all.wanted("edge", at(47.0)).is_empty());
        // The link is faster now, by the time of a part that followed another.
        all.came("edge", Some(at(46.0)), LEAST, at(46.5));
        assert_eq!(all.ways["edge"].bytes, Some(10 * LEAST));
        all.came("edge", Some(at(46.0)), 10 * LEAST, at(46.6));
        assert_eq!(all.ways["edge"].bytes, Some(CHUNK));
        // The end of a file does not measure the link.
        all.came("edge", Some(at(50.0)), 10, at(60.0));
        assert_eq!(all.ways["edge"].bytes, Some(CHUNK));
    }

    #[tokio::test]
    async fn no_more_than_a_few_are_under_way_and_none_is_left() {
        let parts = Arc::new(Parts::default());
        let waits: Vec<_> = (0..MOST)
            .map(|_| {
                let wants = Arc::clone(&parts);
                tokio::spawn(async move { wants.have("edge", part("a")).await })
            })
            .collect();
        while locked(&parts.all).open.len() < MOST {
            tokio::task::yield_now().await;
        }
        assert_eq!(parts.have("edge", part("a")).await, Err(PartError::Busy));
        for wait in &waits {
            wait.abort();
        }
        for wait in waits {
            assert!(wait.await.is_err());
        }
        assert!(locked(&parts.all).open.is_empty());
    }
}
