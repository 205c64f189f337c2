//! Files that lie on workers: workers dial the controller, so it requests a file in the answer to a heartbeat, and they send it. Bytes go
//! on to the caller as they come: nothing is stored, and a worker sends no faster than the caller reads.
use super::answering::{Answer, No, blocking, worker};
use super::{Shared, locked};
use crate::api::{FilePart, FilePartRefused};
use crate::clock::instant;
use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tidemill_http::server::{Peer, relayed};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

/// Largest number of requested files at once: a part of each is in memory.
const MOST: usize = 32;
/// Largest number of them for one person: slow readers of one do not keep others from theirs.
const MOST_EACH: usize = 8;
/// Time that a worker has to begin: less than the time limit of a request for results.
const PATIENCE: Duration = Duration::from_secs(50);
/// Time after which a file is requested again if the worker has not begun to send it.
const AGAIN: Duration = Duration::from_secs(25);
/// Time that a worker waits for the next request after a file.
const LINGER: Duration = Duration::from_secs(2);

/// The reason why a file is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PartError {
    #[error("too many transfers of files at the moment: try again")]
    Busy,
    #[error("worker {0} did not send it in time")]
    Late(String),
    #[error("worker {0}: {1}")]
    Refused(String, String),
}

/// The number of bytes of a file that come, and the body with them.
pub(super) struct Coming {
    pub(super) bytes: u64,
    pub(super) body: Body,
}

struct Open {
    worker: String,
    part: FilePart,
    given: Option<Instant>,
    answer: oneshot::Sender<Result<Coming, String>>,
    place: Place,
}

/// A share of [`MOST`], and of [`MOST_EACH`] of a person.
struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_person: OwnedSemaphorePermit,
}

struct All {
    /// Number of the last one. A worker skips numbers that it knows, also those of another controller and of this one before it was started
    /// again: the first is a random one.
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Free places of the people who have requested files.
    people: BTreeMap<String, Arc<Semaphore>>,
}

/// Numbers begin below this: they stay exact in programs that read numbers of JSON as floating point, 2^53.
const FIRST_BELOW: u64 = 1 << 52;

impl Default for All {
    fn default() -> Self {
        // The standard library has no other random numbers.
        let last = RandomState::new().build_hasher().finish() % FIRST_BELOW;
        Self { last, open: BTreeMap::new(), people: BTreeMap::new() }
    }
}

impl All {
    /// Returns the files that a worker is to send: new ones, and ones that it has not begun for [`AGAIN`].
    fn wanted(&mut self, worker: &str, now: Instant) -> Vec<FilePart> {
        let is_wanted = |open: &&mut Open| {
            let is_old = |given: Instant| now.saturating_duration_since(given) >= AGAIN;
            open.worker == worker && open.given.is_none_or(is_old)
        };
        let wanted = self.open.values_mut().filter(is_wanted).map(|open| {
            open.given = Some(now);
            open.part.clone()
        });
        wanted.collect()
    }
}

/// See the module.
pub(crate) struct Parts {
    all: Mutex<All>,
    places: Arc<Semaphore>,
    changed: Notify,
}

impl Default for Parts {
    fn default() -> Self {
        Self { all: Mutex::default(), places: Arc::new(Semaphore::new(MOST)), changed: Notify::new() }
    }
}

/// Removes a request when its caller is dropped.
struct Forgets<'a>(&'a Parts, u64);

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        locked(&self.0.all).open.remove(&self.1);
    }
}

impl Parts {
    /// Takes a place for a transfer to a person.
    fn place(&self, person: &str) -> Result<Place, PartError> {
        let take = |free: &Arc<Semaphore>| Arc::clone(free).try_acquire_owned().map_err(|_| PartError::Busy);
        let mut all = locked(&self.all);
        all.people.retain(|_, free| free.available_permits() < MOST_EACH);
        let of_person =
            all.people.entry(person.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MOST_EACH)));
        Ok(Place { _of_person: take(of_person)?, _of_all: take(&self.places)? })
    }

    /// Gets a file from a worker for a person, or the requested part of it, and assigns its number.
    pub(super) async fn have(&self, worker: &str, part: FilePart, person: &str) -> Result<Coming, PartError> {
        let place = self.place(person)?;
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut all = locked(&self.all);
            all.last += 1;
            let number = all.last;
            let part = FilePart { number, ..part };
            all.open.insert(number, Open { worker: worker.to_owned(), part, given: None, answer, place });
            number
        };
        let _forgets = Forgets(self, number);
        self.changed.notify_waiters();
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(Ok(coming))) => Ok(coming),
            Ok(Ok(Err(reason))) => Err(PartError::Refused(worker.to_owned(), reason)),
            Ok(Err(_)) | Err(_) => Err(PartError::Late(worker.to_owned())),
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

    /// Takes the request with this number from the list; `None`: no caller waits for it any more.
    fn begun(&self, worker: &str, number: u64) -> Option<Open> {
        let mut all = locked(&self.all);
        all.open.get(&number).filter(|open| open.worker == worker)?;
        all.open.remove(&number)
    }

    /// Passes the bytes that a worker sends to the caller as they come.
    async fn sent(&self, worker: &str, number: u64, bytes: u64, body: Body) {
        let Some(open) = self.begun(worker, number) else { return };
        let (body, moves) = relayed(body);
        if open.answer.send(Ok(Coming { bytes, body: Body::new(body) })).is_ok() {
            moves.await;
        }
        drop(open.place);
    }

    /// Passes the reason of a worker that does not send a file to the caller.
    fn refused(&self, worker: &str, number: u64, why: String) {
        if let Some(open) = self.begun(worker, number) {
            let _ = open.answer.send(Err(why)); // the caller may be gone
        }
    }
}

async fn name_of(shared: &Arc<Shared>, peer: Peer) -> Result<String, No> {
    blocking(shared, move |shared| worker(shared, &peer).map(|(name, _)| name)).await
}

pub(super) async fn sent(
    State(shared): State<Arc<Shared>>,
    Path(number): Path<u64>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Vec<FilePart>> {
    let name = name_of(&shared, peer).await?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length =
        length.ok_or_else(|| No(StatusCode::LENGTH_REQUIRED, "the length of the body is missing".into()))?;
    shared.parts.sent(&name, number, length, body).await;
    Ok(Json(shared.parts.wanted_soon(&name).await))
}

pub(super) async fn refused(
    State(shared): State<Arc<Shared>>,
    Path(number): Path<u64>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(FilePartRefused { error }): Json<FilePartRefused>,
) -> Answer<Vec<FilePart>> {
    let name = name_of(&shared, peer).await?;
    shared.parts.refused(&name, number, error);
    Ok(Json(shared.parts.wanted_soon(&name).await))
}

impl From<PartError> for No {
    fn from(error: PartError) -> Self {
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
    use axum::body::to_bytes;

    fn part(path: &str) -> FilePart {
        let (run, id, role) = ("night".to_owned(), "1".to_owned(), "edge".to_owned());
        FilePart { number: 0, run, id, role, path: path.to_owned(), offset: 0, bytes: 8 }
    }

    type Wait = tokio::task::JoinHandle<Result<Vec<u8>, PartError>>;

    /// Requests a file of `edge` and returns its content.
    fn wants(parts: &Arc<Parts>, path: &'static str) -> Wait {
        wants_for("ada", parts, path)
    }

    fn wants_for(person: &str, parts: &Arc<Parts>, path: &'static str) -> Wait {
        let (parts, person) = (Arc::clone(parts), person.to_owned());
        tokio::spawn(async move {
            let Coming { bytes, body } = parts.have("edge", part(path), &person).await?;
            let read = to_bytes(body, 1 << 20).await.unwrap().to_vec();
            assert_eq!(read.len() as u64, bytes);
            Ok(read)
        })
    }

    #[tokio::test]
    async fn a_file_goes_from_the_worker_that_has_it_to_who_wants_it() {
        let parts = Arc::new(Parts::default());
        let waits = wants(&parts, "a");
        let wanted = parts.wanted_soon("edge").await;
        assert_eq!((wanted.len(), wanted[0].path.as_str()), (1, "a"));
        assert!(parts.wanted("edge").is_empty(), "it is given once");
        // Another worker cannot answer it, and an answer counts once.
        parts.sent("hub", wanted[0].number, 10, Body::from("of another")).await;
        parts.sent("edge", wanted[0].number, 5, Body::from("right")).await;
        parts.sent("edge", wanted[0].number, 5, Body::from("again")).await;
        assert_eq!(waits.await.unwrap(), Ok(b"right".to_vec()));
        assert_eq!(parts.places.available_permits(), MOST);
        let waits = wants(&parts, "../b");
        let wanted = parts.wanted_soon("edge").await;
        parts.refused("edge", wanted[0].number, "is not in the folder of the run".to_owned());
        let refused = waits.await.unwrap().unwrap_err().to_string();
        assert_eq!(refused, "worker edge: is not in the folder of the run");
    }

    /// A worker skips the numbers that it knows.
    #[tokio::test]
    async fn no_two_controllers_give_a_file_the_same_number() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let parts = Arc::new(Parts::default());
            for _ in 0..3 {
                let waits = wants(&parts, "a");
                let wanted = parts.wanted_soon("edge").await;
                parts.sent("edge", wanted[0].number, 0, Body::empty()).await;
                assert_eq!(waits.await.unwrap(), Ok(Vec::new()));
                assert!(wanted[0].number < 1 << 53);
                assert!(seen.insert(wanted[0].number), "{}", wanted[0].number);
            }
        }
    }

    /// The answer with which a worker would have known of it was lost.
    #[tokio::test]
    async fn a_file_that_is_not_begun_is_wanted_again_after_a_while() {
        let parts = Arc::new(Parts::default());
        let waits = wants(&parts, "a");
        let wanted = parts.wanted_soon("edge").await;
        let number = |after: Duration| {
            let wanted = locked(&parts.all).wanted("edge", instant() + after);
            wanted.first().map(|one| one.number)
        };
        assert_eq!(number(AGAIN / 2), None);
        assert_eq!(number(2 * AGAIN), Some(wanted[0].number));
        assert_eq!(number(2 * AGAIN), None);
        waits.abort();
        assert!(waits.await.is_err());
        assert!(locked(&parts.all).open.is_empty());
    }

    #[tokio::test]
    async fn no_more_than_a_few_are_on_their_way_and_none_is_left() {
        let parts = Arc::new(Parts::default());
        let people = ["ada", "ben", "cleo", "dan"];
        let waits: Vec<_> =
            (0..MOST).map(|number| wants_for(people[number % people.len()], &parts, "a")).collect();
        while locked(&parts.all).open.len() < MOST {
            tokio::task::yield_now().await;
        }
        assert_eq!(parts.have("edge", part("a"), "eve").await.err(), Some(PartError::Busy));
        for wait in &waits {
            wait.abort();
        }
        for wait in waits {
            assert!(wait.await.is_err());
        }
        assert!(locked(&parts.all).open.is_empty());
        assert_eq!(parts.places.available_permits(), MOST);
    }

    #[tokio::test]
    async fn slow_readers_of_one_person_keep_no_other_person_from_a_file() {
        let parts = Arc::new(Parts::default());
        let slow: Vec<_> = (0..MOST_EACH).map(|_| wants_for("ada", &parts, "a")).collect();
        while locked(&parts.all).open.len() < MOST_EACH {
            tokio::task::yield_now().await;
        }
        assert_eq!(parts.have("edge", part("a"), "ada").await.err(), Some(PartError::Busy));
        let known: Vec<u64> = parts.wanted("edge").iter().map(|part| part.number).collect();
        let other = wants_for("ben", &parts, "b");
        let wanted = parts.wanted_soon("edge").await;
        assert!(known.len() == MOST_EACH && !known.contains(&wanted[0].number));
        parts.sent("edge", wanted[0].number, 5, Body::from("right")).await;
        assert_eq!(other.await.unwrap(), Ok(b"right".to_vec()));
        slow.iter().for_each(tokio::task::JoinHandle::abort);
        for wait in slow {
            assert!(wait.await.is_err());
        }
        assert!(parts.place("ada").is_ok());
    }
}
