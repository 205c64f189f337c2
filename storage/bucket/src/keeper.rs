//! The only thread that talks to the service for a store: it writes the manifest, and renews the lease meanwhile.
use crate::document::{Document, random_name};
use crate::failure::{Doing, is_refused, told};
use crate::lease::{Lease, RENEWED_EVERY, TERM};
use crate::service::{Found, PATIENCE, PATIENCE_AT_FIRST, Service, Swap};
use crate::settings::Settings;
use bytes::Bytes;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tidemill_spec::bucket_address::Address;
use tidemill_state::{Holder, StoreError};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};

/// Receiver of an answer.
pub(crate) type Reply<T> = SyncSender<Result<T, StoreError>>;

/// Requests of a store. One without an answer is done before the next [`Command::Replace`] is answered, or makes that
/// fail.
pub(crate) enum Command {
    Put { name: String, bytes: Vec<u8> },
    Delete { name: String },
    Get { name: String, reply: Reply<Vec<u8>> },
    List { reply: Reply<Vec<String>> },
    Manifest { reply: Reply<Option<Vec<u8>>> },
    Replace { state: Option<Box<RawValue>>, reply: Reply<()> },
}

/// Mode of opening the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Alone,
    Looking,
}

/// Most concurrent requests.
const AT_ONCE: usize = 16;

/// Attempts of a write while the stored manifest is neither the expected one nor another process's.
const TRIES: usize = 4;

/// Longest wait of a process at its end.
const PATIENCE_AT_LAST: Duration = Duration::from_secs(10);

/// Interval of checking another machine's lease.
const LOOKED_EVERY: Duration = Duration::from_secs(1);

/// Schedule of lease renewals; the first is not immediate.
fn renewals() -> Interval {
    let mut renewals = interval_at(Instant::now() + RENEWED_EVERY, RENEWED_EVERY);
    renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    renewals
}

/// Serves a store, see the module.
pub(crate) struct Keeper {
    service: Service,
    access: Access,
    /// Name of the writer in all its documents.
    writer: String,
    /// Number of its writes.
    writes: u64,
    /// The last known manifest in the bucket: its ETag,
    tag: Option<String>,
    /// its content,
    document: Document,
    /// and its bytes, where this program cannot read them.
    unreadable: Option<Bytes>,
    /// Another process has taken it.
    lost: Option<Option<Holder>>,
    puts: JoinSet<Result<(), StoreError>>,
    deletes: JoinSet<()>,
    slots: Arc<Semaphore>,
}

impl Keeper {
    /// Takes the state, or opens it for reading.
    pub(crate) async fn open(
        address: &Address,
        settings: &Settings,
        access: Access,
    ) -> Result<Self, StoreError> {
        let service = Service::connect(address, settings, PATIENCE_AT_FIRST)?;
        let mut keeper = Self {
            service,
            access,
            writer: random_name(),
            writes: 0,
            tag: None,
            document: Document::new(),
            unreadable: None,
            lost: None,
            puts: JoinSet::new(),
            deletes: JoinSet::new(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
        };
        match access {
            Access::Alone => {
                keeper.take().await?;
                keeper.service = Service::connect(address, settings, PATIENCE)?;
            }
            Access::Looking => {
                let Some(found) = keeper.service.manifest().await? else {
                    return Err(StoreError::NoState { place: address.to_string() });
                };
                keeper.know(found);
            }
        }
        Ok(keeper)
    }

    /// Serves a store until it is dropped, then gives the state back.
    pub(crate) async fn serve(mut self, mut commands: UnboundedReceiver<Command>) {
        let mut renewals = renewals();
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => {
                        let writes = self.writes;
                        self.serve_one(command).await;
                        if self.writes > writes {
                            renewals.reset();
                        }
                    }
                    None => break,
                },
                _ = renewals.tick() => self.renew().await,
            }
        }
        let end = async {
            while self.puts.join_next().await.is_some() {}
            while self.deletes.join_next().await.is_some() {}
            if self.has_it() {
                let released = self.write(|document| document.lease = None).await;
                if let Err(error) = released {
                    tracing::debug!("the lease could not be given back: {error}");
                }
            }
        };
        let _ = timeout(PATIENCE_AT_LAST, end).await;
    }

    async fn serve_one(&mut self, command: Command) {
        let (service, slots) = (self.service.clone(), Arc::clone(&self.slots));
        // If an answer cannot be sent, its receiver is gone.
        match command {
            Command::Put { name, bytes } => {
                self.puts.spawn(async move {
                    let _slot = slots.acquire().await;
                    service.put(&name, bytes).await
                });
            }
            Command::Delete { name } => {
                self.deletes.spawn(async move {
                    let _slot = slots.acquire().await;
                    if let Err(error) = service.delete(&name).await {
                        tracing::debug!("an object stays until the state is opened again: {error}");
                    }
                });
            }
            Command::Get { name, reply } => {
                tokio::spawn(async move { drop(reply.send(service.get(&name).await)) });
            }
            Command::List { reply } => {
                tokio::spawn(async move { drop(reply.send(service.names().await)) });
            }
            Command::Manifest { reply } => {
                let unreadable = self.unreadable.as_ref().map(|bytes| bytes.to_vec());
                let state = self.document.state.as_ref().map(|state| state.get().as_bytes().to_vec());
                drop(reply.send(Ok(unreadable.or(state))));
            }
            Command::Replace { state, reply } => drop(reply.send(self.replace(state).await)),
        }
        while self.deletes.try_join_next().is_some() {}
    }

    fn has_it(&self) -> bool {
        self.access == Access::Alone && self.lost.is_none() && self.unreadable.is_none()
    }

    fn know(&mut self, found: Found) {
        self.tag = Some(found.tag);
        match Document::decode(&found.bytes) {
            Some(document) => (self.document, self.unreadable) = (document, None),
            None => self.unreadable = Some(found.bytes),
        }
    }

    /// Takes a free state, or one whose holder has ended.
    async fn take(&mut self) -> Result<(), StoreError> {
        let (mut watched, mut looks) = (None, 0);
        let mut failures = 0;
        loop {
            match self.service.manifest().await? {
                Some(found) => self.know(found),
                None => {
                    if let Some(found) = self.service.foreign().await? {
                        let place = self.service.place().to_owned();
                        return Err(StoreError::Foreign { place, found });
                    }
                    (self.tag, self.document) = (None, Document::new());
                }
            }
            if self.unreadable.is_some() || self.document.writer == self.writer {
                return Ok(());
            }
            if let Some(lease) = &self.document.lease {
                let is_watched = lease.is_alive().is_none();
                let is_renewed = watched.is_some() && watched != self.tag;
                if lease.is_alive() == Some(true) || is_watched && is_renewed {
                    let (place, holder) = (self.service.place().to_owned(), Some(lease.holder.clone()));
                    return Err(StoreError::Locked { place, holder });
                }
                if is_watched && LOOKED_EVERY * looks < TERM {
                    if looks == 0 {
                        let place = self.service.place();
                        tracing::warn!(
                            "{place} is in use by {}: waiting up to {TERM:?} to see whether it is still active",
                            lease.holder
                        );
                    }
                    (watched, looks) = (self.tag.clone(), looks + 1);
                    sleep(LOOKED_EVERY).await;
                    continue;
                }
            }
            let next = self.document.clone().taken(&self.writer, Lease::of_this_process());
            match self.service.swap(self.tag.as_deref(), self.encoded(&next)?).await {
                Ok(Swap::Done(tag)) => {
                    (self.tag, self.document) = (Some(tag), next);
                    return Ok(());
                }
                // Another process was first, or the answer was lost: check again.
                Ok(Swap::Other) if failures < TRIES => failures += 1,
                Ok(Swap::Other) => return Err(self.not_conditional()),
                Err(error) if !is_refused(&error) && failures < TRIES => failures += 1,
                Err(error) => return Err(told(self.service.place(), Doing::Write, error)),
            }
        }
    }

    fn not_conditional(&self) -> StoreError {
        StoreError::Denied {
            place: self.service.place().to_owned(),
            doing: "used",
            reason: "the service refuses to replace what was not changed (If-Match); use another service or a folder"
                .to_owned(),
        }
    }

    fn encoded(&self, document: &Document) -> Result<Vec<u8>, StoreError> {
        document.encode().map_err(|error| StoreError::Service {
            place: self.service.place().to_owned(),
            doing: "written",
            reason: error.to_string(),
        })
    }

    /// Replaces the state's manifest, after all objects are stored.
    async fn replace(&mut self, state: Option<Box<RawValue>>) -> Result<(), StoreError> {
        let mut renewals = renewals();
        let mut failed = None;
        while !self.puts.is_empty() {
            tokio::select! {
                Some(put) = self.puts.join_next() => {
                    let gone = |error: tokio::task::JoinError| StoreError::Service {
                        place: self.service.place().to_owned(),
                        doing: "written",
                        reason: error.to_string(),
                    };
                    failed = failed.or(put.map_err(gone).and_then(|result| result).err());
                }
                _ = renewals.tick() => self.renew().await,
            }
        }
        match failed {
            Some(error) => Err(error),
            None => self.write(move |document| document.state.clone_from(&state)).await,
        }
    }

    /// Renews the lease. Failures are retried in time.
    async fn renew(&mut self) {
        if !self.has_it() {
            return;
        }
        match timeout(RENEWED_EVERY, self.write(|_| ())).await {
            Ok(Err(error @ StoreError::TakenOver { .. })) => tracing::warn!("{error}"),
            Ok(Err(error)) => tracing::debug!("the lease was not renewed: {error}"),
            Ok(Ok(())) | Err(_) => {}
        }
    }

    /// Writes a changed document, unless another process has written since.
    async fn write(&mut self, change: impl Fn(&mut Document)) -> Result<(), StoreError> {
        self.still_has_it()?;
        let first = self.writes + 1;
        let mut unanswered = None;
        for _ in 0..TRIES {
            let mut next = match self.unreadable {
                Some(_) => Document::new().taken(&self.writer, Lease::of_this_process()),
                None => self.document.clone(),
            };
            self.writes += 1;
            next.write = self.writes;
            change(&mut next);
            match self.service.swap(self.tag.as_deref(), self.encoded(&next)?).await {
                Ok(Swap::Done(tag)) => {
                    (self.tag, self.document, self.unreadable) = (Some(tag), next, None);
                    return Ok(());
                }
                Ok(Swap::Other) => {}
                Err(error) => {
                    let is_refused = is_refused(&error);
                    let error = told(self.service.place(), Doing::Write, error);
                    if is_refused && unanswered.is_none() {
                        return Err(error);
                    }
                    unanswered = Some(error.to_string());
                }
            }
            // Another process's, this one's by an earlier attempt whose answer was lost, or unchanged.
            let there = match self.service.manifest().await {
                Ok(there) => there,
                Err(error) => return Err(self.unanswered(error.to_string())),
            };
            let there = there.map(|found| (found.tag, Document::decode(&found.bytes)));
            match there {
                Some((tag, Some(there))) if there.writer == self.writer => {
                    let is_written = there.write >= first;
                    (self.tag, self.document, self.unreadable) = (Some(tag), there, None);
                    if is_written {
                        return Ok(());
                    }
                }
                Some((tag, None)) if self.unreadable.is_some() && self.tag.as_ref() == Some(&tag) => {}
                there => {
                    let lease = there.and_then(|(_, document)| document?.lease);
                    self.lost = Some(lease.map(|lease| lease.holder));
                    self.still_has_it()?;
                }
            }
        }
        Err(match unanswered {
            Some(reason) => self.unanswered(reason),
            None => self.not_conditional(),
        })
    }

    fn unanswered(&self, reason: String) -> StoreError {
        StoreError::Unanswered { place: self.service.place().to_owned(), reason }
    }

    fn still_has_it(&self) -> Result<(), StoreError> {
        match &self.lost {
            None => Ok(()),
            Some(holder) => {
                let (place, holder) = (self.service.place().to_owned(), holder.clone());
                Err(StoreError::TakenOver { place, holder })
            }
        }
    }
}
