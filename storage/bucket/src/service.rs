//! Requests to the service, each repeated until it is served or patience ends.
use crate::failure::{Doing, told};
use crate::settings::Settings;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};
use std::time::Duration;
use tidemill_spec::bucket_address::Address;
use tidemill_state::{StoreError, is_object_name};
use tokio::time::timeout;

/// Time of repeating a request before it fails: an outage of a minute fails nothing.
pub const PATIENCE: Duration = Duration::from_secs(75);

/// Before a run has started nothing can be lost, and a wrong address is reported soon.
pub(crate) const PATIENCE_AT_FIRST: Duration = Duration::from_secs(10);

/// Time after which the user is warned that a request is repeated.
const TOLD_AFTER: Duration = Duration::from_secs(5);

const MANIFEST: &str = "manifest.json";
const OBJECTS: &str = "objects";

/// The manifest in the bucket.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) tag: String,
    pub(crate) bytes: Bytes,
}

/// Result of a conditional write.
pub(crate) enum Swap {
    /// It is written, with this ETag.
    Done(String),
    /// Another manifest is there, or none.
    Other,
}

/// A bucket and the prefix of a state. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Service {
    place: String,
    prefix: String,
    patience: Duration,
    /// For the manifest, which is small.
    manifest: AmazonS3,
    /// For objects, which may be large.
    objects: AmazonS3,
}

impl Service {
    pub(crate) fn connect(
        address: &Address,
        settings: &Settings,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        // Fails only if one is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let place = address.to_string();
        let client = |seconds: u64| {
            let backoff = BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            };
            let retry = RetryConfig { backoff, max_retries: usize::MAX, retry_timeout: patience };
            let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
            settings
                .builder()
                .with_bucket_name(address.bucket())
                .with_retry(retry)
                .with_config(timeout, format!("{seconds} seconds"))
                // Some services do not support deleting many objects at once.
                .with_disable_bulk_delete(true)
                .build()
                .map_err(|error| told(&place, Doing::Read, error))
        };
        let (manifest, objects) = (client(10)?, client(600)?);
        Ok(Self { place, prefix: address.prefix().to_owned(), patience, manifest, objects })
    }

    /// Place of the state, for messages.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// For objects, which may be large.
    pub(crate) fn objects(&self) -> &AmazonS3 {
        &self.objects
    }

    pub(crate) fn path(&self, parts: &[&str]) -> Path {
        let prefix = self.prefix.split('/').filter(|part| !part.is_empty());
        prefix.chain(parts.iter().copied()).collect()
    }

    fn object(&self, name: &str) -> Path {
        self.path(&[OBJECTS, name])
    }

    fn place_of(&self, name: &str) -> String {
        format!("{}/{OBJECTS}/{name}", self.place)
    }

    /// The manifest; none: there is none.
    pub(crate) async fn manifest(&self) -> Result<Option<Found>, StoreError> {
        let path = self.path(&[MANIFEST]);
        let request = async {
            let result = self.manifest.get(&path).await?;
            let tag = result.meta.e_tag.clone();
            Ok((tag, result.bytes().await?))
        };
        match self.telling(request).await {
            Ok((Some(tag), bytes)) => Ok(Some(Found { tag, bytes })),
            Ok((None, _)) => Err(StoreError::Denied {
                place: self.place.clone(),
                doing: "used",
                reason: "the service gives no ETag, without which two runs could write over each other; use another \
                         service or a folder"
                    .to_owned(),
            }),
            Err(error) if is_no_bucket(&error) => Err(told(&self.place, Doing::Read, error)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(told(&self.place, Doing::Read, error)),
        }
    }

    /// Replaces the manifest if it still has this ETag; none: if there is none.
    pub(crate) async fn swap(&self, before: Option<&str>, bytes: Vec<u8>) -> Result<Swap, Error> {
        let mode = match before {
            None => PutMode::Create,
            Some(tag) => PutMode::Update(UpdateVersion { e_tag: Some(tag.to_owned()), version: None }),
        };
        let (path, options) = (self.path(&[MANIFEST]), PutOptions::from(mode));
        match self.telling(self.manifest.put_opts(&path, PutPayload::from(bytes), options)).await {
            Ok(result) => Ok(result.e_tag.map_or(Swap::Other, Swap::Done)),
            Err(error) if is_no_bucket(&error) => Err(error),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {
                Ok(Swap::Other)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), StoreError> {
        let path = self.object(name);
        let written = self.telling(self.objects.put(&path, PutPayload::from(bytes))).await;
        written.map(drop).map_err(|error| told(&self.place_of(name), Doing::Write, error))
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.object(name);
        let request = async { self.objects.get(&path).await?.bytes().await };
        match self.telling(request).await {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) if is_no_bucket(&error) => Err(told(&self.place, Doing::Read, error)),
            Err(Error::NotFound { .. }) => {
                Err(StoreError::Missing { place: self.place.clone(), name: name.to_owned() })
            }
            Err(error) => Err(told(&self.place_of(name), Doing::Read, error)),
        }
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        let path = self.object(name);
        match self.telling(self.objects.delete(&path)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(told(&self.place_of(name), Doing::Remove, error)),
        }
    }

    /// The names of all objects.
    pub(crate) async fn names(&self) -> Result<Vec<String>, StoreError> {
        let path = self.path(&[OBJECTS]);
        let listed = self.telling(self.objects.list(Some(&path)).try_collect::<Vec<_>>()).await;
        let listed = listed.map_err(|error| told(&self.place, Doing::Read, error))?;
        let names = listed.iter().filter_map(|meta| meta.location.filename());
        Ok(names.filter(|name| is_object_name(name)).map(str::to_owned).collect())
    }

    /// An object under the prefix that belongs to no state.
    pub(crate) async fn foreign(&self) -> Result<Option<String>, StoreError> {
        let path = self.path(&[]);
        let listed = self.telling(self.manifest.list_with_delimiter(Some(&path))).await;
        let listed = listed.map_err(|error| told(&self.place, Doing::Read, error))?;
        let folders = listed.common_prefixes.iter().filter_map(Path::filename);
        let files = listed.objects.iter().filter_map(|meta| meta.location.filename());
        let mut foreign =
            folders.filter(|name| *name != OBJECTS).chain(files.filter(|name| *name != MANIFEST));
        if let Some(name) = foreign.next() {
            return Ok(Some(name.to_owned()));
        }
        let objects = self.telling(self.manifest.list_with_delimiter(Some(&self.path(&[OBJECTS])))).await;
        let objects = objects.map_err(|error| told(&self.place, Doing::Read, error))?;
        let names = objects.objects.iter().filter_map(|meta| meta.location.filename());
        let folders = objects.common_prefixes.iter().filter_map(Path::filename);
        let foreign = names.filter(|name| !is_object_name(name)).chain(folders).next();
        Ok(foreign.map(|name| format!("{OBJECTS}/{name}")))
    }

    /// Waits, with a warning if it takes long.
    async fn telling<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut request = std::pin::pin!(request);
        if let Ok(result) = timeout(TOLD_AFTER, &mut request).await {
            return result;
        }
        let (place, patience) = (&self.place, self.patience);
        tracing::warn!(
            "{place} has not served a request for {TOLD_AFTER:?}: it is repeated for {patience:?}"
        );
        let result = request.await;
        if result.is_ok() {
            tracing::warn!("{place} serves requests again");
        }
        result
    }
}

/// Whether the bucket is missing, not an object in it.
fn is_no_bucket(error: &Error) -> bool {
    matches!(error, Error::NotFound { source, .. } if source.to_string().contains("NoSuchBucket"))
}
