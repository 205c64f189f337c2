//! Files in a bucket, each called by its digest: written once, and read by whoever is given a link, without credentials.
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

/// Larger files go in parts of so many bytes, one after the other.
const PART: usize = 16 << 20;
/// A link gives up a service that does not answer, or says nothing more, for so long.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a link can be used that is used at once: the clock of this machine may be some minutes behind that of the service.
const OWN_LINK: Duration = Duration::from_secs(900);
/// How long a service may take to be reached.
const CONNECTING: Duration = Duration::from_secs(5);

/// See the module.
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

/// Waits for what is asynchronous, on any thread.
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
        // Also on a thread of another runtime, which must not wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A file that lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// What it is called.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

impl Files {
    /// For the files at this address. Nothing is asked of the service yet.
    ///
    /// # Errors
    /// The settings do not fit.
    pub fn open(address: &Address, settings: &Settings) -> io::Result<Self> {
        let service = Service::connect(address, settings, PATIENCE_AT_FIRST).map_err(io::Error::other)?;
        Ok(Self { service, runtime: Waiting::new()? })
    }

    /// Where they lie, for messages.
    pub fn place(&self) -> &str {
        self.service.place()
    }

    fn store(&self) -> &AmazonS3 {
        self.service.objects()
    }

    fn failed(&self, doing: &str, error: impl std::fmt::Display) -> io::Error {
        io::Error::other(format!("`{}` cannot be {doing}: {error}", self.place()))
    }

    /// All that lie there, and nothing of what lies in folders below.
    ///
    /// # Errors
    /// Those of the service.
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

    /// Puts a file there.
    ///
    /// # Errors
    /// It cannot be read, or those of the service.
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

    /// Puts these bytes there.
    ///
    /// # Errors
    /// Those of the service.
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
            // The service keeps parts that belong to nothing, and they cost.
            let _ = self.runtime.block_on(async { upload.abort().await });
        }
        sent.map(drop)
    }

    /// Reads a file; none: it is not there.
    ///
    /// # Errors
    /// Those of the service.
    pub fn get(&self, name: &str) -> io::Result<Option<Box<dyn Read + Send>>> {
        match read_link(&self.link(name, OWN_LINK)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(|error| self.failed("read", error)),
        }
    }

    /// Removes a file; one that is not there is fine.
    ///
    /// # Errors
    /// Those of the service.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = self.service.path(&[name]);
        match self.runtime.block_on(async { self.store().delete(&name).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("changed", error)),
        }
    }

    /// A link by which whoever has it can read a file for so long. It is signed: a secret.
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

/// The next bytes of a file, as many as a part has; fewer only at its end.
fn part(file: &mut File) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    file.take(PART as u64).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Reads what is behind a link. No error has the link in it.
///
/// # Errors
/// It leads nowhere, or the service refuses.
pub fn read_link(link: &str) -> io::Result<Box<dyn Read + Send>> {
    // Fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let failed = |error: reqwest::Error| io::Error::other(chain(&error.without_url()));
    let runtime = Waiting::new()?;
    let client = reqwest::Client::builder().connect_timeout(CONNECTING).read_timeout(SILENCE);
    let client = client.redirect(reqwest::redirect::Policy::none()).build().map_err(failed)?;
    let answer = runtime.block_on(async { client.get(link).send().await }).map_err(failed)?;
    if !answer.status().is_success() {
        let kind = if answer.status() == 404 { ErrorKind::NotFound } else { ErrorKind::Other };
        return Err(io::Error::new(kind, format!("the object store answers {}", answer.status())));
    }
    Ok(Box::new(Linked { answer, part: Bytes::new(), runtime }))
}

/// An error with what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

/// A file, read as it comes.
struct Linked {
    // Goes before what it waits with.
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
