//! Files in a bucket, named by their digests: written once, and readable with a signed link, without credentials.
use crate::service::{PATIENCE_AT_FIRST, Service};
use crate::settings::Settings;
use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::path::Path as Name;
use object_store::signer::Signer;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use reqwest::Method;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::Duration;
use tidemill_spec::bucket_address::Address;
use tokio::runtime::Runtime;

/// Larger files are sent in parts of this many bytes, one after the other.
const PART: usize = 16 << 20;
/// Silence of the service after which reading a link fails.
const SILENCE: Duration = Duration::from_secs(30);
/// Lifetime of a link for immediate use: the clock of this machine may differ from the service's by some minutes.
const OWN_LINK: Duration = Duration::from_secs(900);
/// Time limit for connecting to the service.
const CONNECTING: Duration = Duration::from_secs(5);

/// Files in a bucket, see the module.
///
/// ```no_run
/// use std::time::Duration;
/// use tidemill_bucket::{Files, Settings};
///
/// let files = Files::open(&"s3://models/tidemill".parse()?, &Settings::of_environment())?;
/// files.put("9f86d081", std::path::Path::new("detector.onnx"))?;
/// let link = files.link("9f86d081", Duration::from_secs(900))?;
/// let mut file = tidemill_bucket::read_link(&link)?; // on another machine, which knows nothing of the bucket
/// std::io::copy(&mut file, &mut std::io::sink())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Files {
    service: Service,
    runtime: Waiting,
}

/// Runs asynchronous work from any thread.
struct Waiting(Option<Runtime>);

impl Waiting {
    fn new() -> io::Result<Self> {
        tokio::runtime::Builder::new_current_thread().enable_all().build().map(|runtime| Self(Some(runtime)))
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.as_ref().expect("it is there until it is dropped").block_on(future)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Also on a thread of another runtime, which must not block.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A stored file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Time of writing, in seconds since 1970.
    pub since: u64,
}

impl Files {
    /// Opens the files at this address, without a request to the service.
    ///
    /// # Errors
    /// Invalid settings.
    pub fn open(address: &Address, settings: &Settings) -> io::Result<Self> {
        let service = Service::connect(address, settings, PATIENCE_AT_FIRST).map_err(io::Error::other)?;
        Ok(Self { service, runtime: Waiting::new()? })
    }

    /// Returns the place, for messages.
    pub fn place(&self) -> &str {
        self.service.place()
    }

    fn store(&self) -> &AmazonS3 {
        self.service.objects()
    }

    fn failed(&self, doing: &str, error: impl std::fmt::Display) -> io::Error {
        io::Error::other(format!("`{}` cannot be {doing}: {error}", self.place()))
    }

    /// Lists all files, without those in folders below.
    ///
    /// # Errors
    /// Errors of the service.
    pub fn list(&self) -> io::Result<Vec<StoredFile>> {
        let folder = self.service.path(&[]);
        let listed = self.runtime.block_on(async { self.store().list_with_delimiter(Some(&folder)).await });
        let listed = listed.map_err(|error| self.failed("listed", error))?;
        let file = |found: object_store::ObjectMeta| {
            let since = u64::try_from(found.last_modified.timestamp()).unwrap_or(0);
            Some(StoredFile { name: found.location.filename()?.to_owned(), bytes: found.size, since })
        };
        Ok(listed.objects.into_iter().filter_map(file).collect())
    }

    /// Uploads a file.
    ///
    /// # Errors
    /// It cannot be read, or errors of the service.
    pub fn put(&self, name: &str, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let name = self.service.path(&[name]);
        let first = part(&mut file)?;
        let sent = match first.len() < PART {
            true => self
                .runtime
                .block_on(async { self.store().put(&name, PutPayload::from(first)).await })
                .map(drop),
            false => return self.put_in_parts(&name, first, file),
        };
        sent.map_err(|error| self.failed("written", error))
    }

    /// Uploads these bytes.
    ///
    /// # Errors
    /// Errors of the service.
    pub fn put_bytes(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let name = self.service.path(&[name]);
        let sent = self.runtime.block_on(async { self.store().put(&name, PutPayload::from(bytes)).await });
        sent.map(drop).map_err(|error| self.failed("written", error))
    }

    fn put_in_parts(&self, name: &Name, first: Bytes, mut file: File) -> io::Result<()> {
        let failed = |error: Error| self.failed("written", error);
        let mut upload =
            self.runtime.block_on(async { self.store().put_multipart(name).await }).map_err(failed)?;
        let mut send = |upload: &mut Box<dyn MultipartUpload>| {
            let mut next = first.clone();
            while !next.is_empty() {
                self.runtime
                    .block_on(async { upload.put_part(PutPayload::from(next)).await })
                    .map_err(failed)?;
                next = part(&mut file)?;
            }
            self.runtime.block_on(async { upload.complete().await }).map_err(failed)
        };
        let sent = send(&mut upload);
        if sent.is_err() {
            // The service keeps orphaned parts, and they cost money.
            let _ = self.runtime.block_on(async { upload.abort().await });
        }
        sent.map(drop)
    }

    /// Reads a file; none: it does not exist.
    ///
    /// # Errors
    /// Errors of the service.
    pub fn get(&self, name: &str) -> io::Result<Option<Box<dyn Read + Send>>> {
        match read_link(&self.link(name, OWN_LINK)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(|error| self.failed("read", error)),
        }
    }

    /// Removes a file; a missing one is fine.
    ///
    /// # Errors
    /// Errors of the service.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = self.service.path(&[name]);
        match self.runtime.block_on(async { self.store().delete(&name).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("changed", error)),
        }
    }

    /// Returns a link that allows reading a file for this time. It is signed: a secret.
    ///
    /// # Errors
    /// The settings have no credentials.
    pub fn link(&self, name: &str, lasts: Duration) -> io::Result<String> {
        let name = self.service.path(&[name]);
        let signed =
            self.runtime.block_on(async { self.store().signed_url(Method::GET, &name, lasts).await });
        signed.map(String::from).map_err(|error| self.failed("signed for", error))
    }
}

/// The next bytes of a file, a full part except at its end.
fn part(file: &mut File) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    file.take(PART as u64).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Reads from a link. No error contains the link.
///
/// # Errors
/// The file does not exist, or the service rejects the request.
pub fn read_link(link: &str) -> io::Result<Box<dyn Read + Send>> {
    read_link_from(link, 0)
}

/// Reads from a link, from a byte on.
///
/// # Errors
/// As [`read_link`].
pub fn read_link_from(link: &str, from: u64) -> io::Result<Box<dyn Read + Send>> {
    // Fails only if one is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let failed = |error: reqwest::Error| io::Error::other(chain(&error.without_url()));
    let runtime = Waiting::new()?;
    let client = reqwest::Client::builder().connect_timeout(CONNECTING).read_timeout(SILENCE);
    let client = client.redirect(reqwest::redirect::Policy::none()).build().map_err(failed)?;
    let mut request = client.get(link);
    if from > 0 {
        request = request.header("range", format!("bytes={from}-"));
    }
    let answer = runtime.block_on(async { request.send().await }).map_err(failed)?;
    if !answer.status().is_success() {
        let kind = if answer.status() == 404 { ErrorKind::NotFound } else { ErrorKind::Other };
        return Err(io::Error::new(kind, format!("the object store answers {}", answer.status())));
    }
    let is_part = answer.status() == 206;
    let mut linked = Linked { answer, part: Bytes::new(), runtime };
    if !is_part {
        // A service without ranges gives all of it.
        io::copy(&mut (&mut linked).take(from), &mut io::sink())?;
    }
    Ok(Box::new(linked))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

/// A file, read as it arrives.
struct Linked {
    // Dropped before the runtime that it needs.
    answer: reqwest::Response,
    part: Bytes,
    runtime: Waiting,
}

impl Read for Linked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            let next = self.runtime.block_on(async { self.answer.chunk().await });
            match next.map_err(|error| io::Error::other(chain(&error.without_url())))? {
                Some(part) => self.part = part,
                None => return Ok(0),
            }
        }
        let count = into.len().min(self.part.len());
        into[..count].copy_from_slice(&self.part.split_to(count));
        Ok(count)
    }
}
