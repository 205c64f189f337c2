//! Files of workflows in an object store: workers get them from there, by links that the controller signs.
//!
//! An unreachable store blocks no request: a thread looks for its contents again and again, and until they are known it counts as empty. A
//! prefix belongs to one cluster, whose fingerprint lies there: another cluster would remove files that this one needs.
use crate::blobs::{Beyond, is_digest};
use crate::clock::instant;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidemill_bucket::{Files, StoredFile};
use tidemill_identity::Timestamp;

/// Validity of a link: enough for a file of some GiB over a slow link.
const LINK: Duration = Duration::from_secs(3600);
/// Name of the file with the owner of the prefix.
const OWNER: &str = "cluster";
/// Bytes of that, at most.
const OWNER_BYTES: u64 = 1 << 10;
/// Time that a request for a file waits until the contents are known.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Between two looks at a store that does not answer.
const AGAIN: Duration = Duration::from_secs(10);
/// Tries of a file, and the pause between them: without the file its run would start again.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct ObjectStore {
    files: Arc<Files>,
    /// The store that controllers share without it, where there are several: they rely on the files here, and get files from before this
    /// store was set up from there.
    shared: Option<Box<dyn Beyond>>,
    begun: Instant,
    looked: Arc<Looked>,
}

#[derive(Default)]
struct Looked {
    known: Mutex<StoreContent>,
    changed: Condvar,
}

/// Known contents.
#[derive(Default)]
struct StoreContent {
    state: State,
    /// Only the controller that leads adds any.
    digests: BTreeSet<String>,
    /// Time of the last report that a file is there: it stays for a while after it, even if no run needs it yet.
    told: BTreeMap<String, Instant>,
}

impl StoreContent {
    /// Notes that the file is there and that a caller learns so.
    fn tell(&mut self, digest: &str) {
        self.digests.insert(digest.to_owned());
        self.told.insert(digest.to_owned(), instant());
    }

    fn forget(&mut self, digest: &str) {
        self.digests.remove(digest);
        self.told.remove(digest);
    }
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    NotYet,
    /// It did not answer.
    Away,
    /// They belong to another cluster, which this says.
    Foreign(String),
    Found,
}

impl Looked {
    fn known(&self) -> MutexGuard<'_, StoreContent> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectStore {
    /// For the cluster of this fingerprint. What lies there is looked for on a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn open(
        files: &Arc<Files>,
        cluster: &str,
        shared: Option<Box<dyn Beyond>>,
    ) -> io::Result<Self> {
        let looked = Arc::<Looked>::default();
        let (kept, told, cluster) = (Arc::clone(files), Arc::downgrade(&looked), cluster.to_owned());
        let look = move || look_until_it_answers(&kept, &told, &cluster);
        std::thread::Builder::new().name("tm-object-store".into()).spawn(look)?;
        Ok(Self { files: Arc::clone(files), shared, begun: instant(), looked })
    }

    /// Whether a file lies there.
    fn lies_there(&self, digest: &str) -> bool {
        let mut known = self.known();
        let has = known.digests.contains(digest);
        if has {
            known.tell(digest);
        }
        has
    }

    /// Returns the known contents, or their absence after too long a wait.
    fn known(&self) -> MutexGuard<'_, StoreContent> {
        let known = self.looked.known();
        let left = (self.begun + FIRST_LOOK).saturating_duration_since(instant());
        let waits = |known: &mut StoreContent| known.state == State::NotYet;
        let waited = self.looked.changed.wait_timeout_while(known, left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Looks for the contents until they are known or no caller is left.
fn look_until_it_answers(files: &Files, looked: &Weak<Looked>, cluster: &str) {
    let mut is_told = false;
    loop {
        let found = owner(files, cluster).and_then(|other| Ok((other, ours(files)?)));
        let Some(looked) = looked.upgrade() else { return };
        let mut known = looked.known();
        let is_done = match found {
            Ok((None, found)) => {
                known.digests.extend(found.into_iter().map(|file| file.name));
                known.state = State::Found;
                true
            }
            Ok((Some(other), _)) => {
                tracing::warn!("{}: workers fetch files from the controller", foreign(files, &other));
                known.state = State::Foreign(other);
                true
            }
            Err(error) => {
                if !is_told {
                    tracing::warn!("{error}; workers fetch files from the controller until it answers");
                }
                is_told = true;
                known.state = State::Away;
                false
            }
        };
        drop(known);
        looked.changed.notify_all();
        drop(looked);
        if is_done {
            return;
        }
        std::thread::sleep(AGAIN);
    }
}

/// Returns the owner of the files, if it is another cluster; the first cluster to ask becomes the owner.
fn owner(files: &Files, cluster: &str) -> io::Result<Option<String>> {
    let mut text = String::new();
    match files.get(OWNER)? {
        Some(found) => found.take(OWNER_BYTES).read_to_string(&mut text)?,
        None => {
            files.put_bytes(OWNER, cluster.as_bytes().to_vec())?;
            return Ok(None);
        }
    };
    let found = text.trim();
    Ok((found != cluster).then(|| found.to_owned()))
}

fn foreign(files: &Files, other: &str) -> String {
    format!(
        "`{}` contains the files of another cluster, with the fingerprint {other}: give each cluster its \
         own prefix with `--files`, or remove `{OWNER}` there if that cluster is gone",
        files.place()
    )
}

/// Returns the files named by a digest; other files are left alone.
fn ours(files: &Files) -> io::Result<Vec<StoredFile>> {
    let mut found = files.list()?;
    found.retain(|file| is_digest(&file.name));
    Ok(found)
}

impl Beyond for ObjectStore {
    fn has(&self, digest: &str) -> bool {
        self.lies_there(digest) || self.shared.as_ref().is_some_and(|shared| shared.has(digest))
    }

    fn put(&self, digest: &str, path: &Path) -> io::Result<()> {
        if self.lies_there(digest) {
            return Ok(());
        }
        // Does not wait for a silent store, and puts nothing among the files of another cluster.
        let why = match &self.known().state {
            State::Found => None,
            State::Foreign(other) => Some(foreign(&self.files, other)),
            State::NotYet | State::Away => Some(format!("`{}` does not answer", self.files.place())),
        };
        if let Some(why) = why {
            return Err(io::Error::other(why));
        }
        self.files.put(digest, path)?;
        self.known().tell(digest);
        Ok(())
    }

    fn is_relied_on(&self) -> bool {
        self.shared.is_some()
    }

    fn get(&self, digest: &str) -> io::Result<Option<Box<dyn Read>>> {
        let mut tries = 1;
        let found = loop {
            match self.files.get(digest) {
                Err(_) if tries < TRIES => std::thread::sleep(PAUSE),
                found => break found,
            }
            tries += 1;
        };
        if matches!(found, Ok(None)) {
            // Removed from outside.
            self.known().forget(digest);
        }
        let of_before = || self.shared.as_ref().map_or(Ok(None), |shared| shared.get(digest));
        match found {
            Ok(Some(file)) => Ok(Some(file)),
            Ok(None) => of_before(),
            Err(error) => Ok(Some(of_before()?.ok_or(error)?)),
        }
    }

    fn link(&self, digest: &str) -> Option<String> {
        if !self.lies_there(digest) {
            return None;
        }
        let link = self.files.link(digest, LINK);
        link.inspect_err(|error| tracing::warn!("workers fetch files from the controller: {error}")).ok()
    }

    fn sweep(&self, wanted: &BTreeSet<String>, age: Duration) -> io::Result<()> {
        if let Some(shared) = &self.shared {
            shared.sweep(wanted, age)?;
        }
        if self.known().state != State::Found {
            return Ok(());
        }
        let now = Timestamp::now().as_unix();
        for file in ours(&self.files)? {
            if wanted.contains(&file.name) || now.saturating_sub(file.since) < age.as_secs() {
                continue;
            }
            {
                let mut known = self.known();
                if known.told.get(&file.name).is_some_and(|told| told.elapsed() < age) {
                    continue;
                }
                known.forget(&file.name);
            }
            self.files.remove(&file.name)?;
        }
        Ok(())
    }
}
