//! The connection of a program with the service of its host.
use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::protocol::{MOST_CALLS, ToService, socket_of};
use crate::server::Service;
use crate::{Code, Status, usual_socket};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How long a call waits for a service that is started again, and the pauses between tries.
const RETRIES: u32 = 20;
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause of somebody who serves.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The connection of a program with the service of its host. It connects again when the service was started again; clones share it.
#[derive(Clone)]
pub struct Net(Arc<Inner>);

struct Inner {
    socket: PathBuf,
    program: String,
    current: RwLock<Option<Arc<Endpoint>>>,
    connecting: tokio::sync::Mutex<()>,
    calls: Arc<Semaphore>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(endpoint) = self.current.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            endpoint.leave();
        }
    }
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").field("socket", &self.0.socket).finish_non_exhaustive()
    }
}

impl Net {
    /// Connects to the usual service of this host (see [`usual_socket`]), under the name of this program's file.
    ///
    /// # Errors
    /// [`crate::Code::Unavailable`] when no service answers there.
    pub async fn connect() -> Result<Self, Status> {
        let program = std::env::args_os().next().map(PathBuf::from);
        let name = program.as_deref().and_then(Path::file_stem).and_then(|name| name.to_str());
        Self::connect_to(&usual_socket(), name.unwrap_or("program")).await
    }

    /// Connects to the service with this socket, under this name, which policies may name.
    ///
    /// # Errors
    /// As [`Net::connect`].
    pub async fn connect_to(socket: &Path, program: &str) -> Result<Self, Status> {
        let inner = Inner {
            socket: socket.to_owned(),
            program: program.to_owned(),
            current: RwLock::default(),
            connecting: tokio::sync::Mutex::default(),
            calls: Arc::new(Semaphore::new(MOST_CALLS)),
        };
        let net = Self(Arc::new(inner));
        net.dial_patiently(false).await?;
        Ok(net)
    }

    fn unreachable(&self, error: &std::io::Error) -> Status {
        let socket = self.0.socket.display();
        Status::unavailable(format!(
            "no transport service answers at {socket}: {error}; start one with `tidemill net serve --socket {socket}`"
        ))
    }

    fn current(&self) -> Option<Arc<Endpoint>> {
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|endpoint| !endpoint.is_gone()).map(Arc::clone)
    }

    async fn dial(&self) -> std::io::Result<Arc<Endpoint>> {
        let _one_at_a_time = self.0.connecting.lock().await;
        if let Some(endpoint) = self.current() {
            return Ok(endpoint);
        }
        let endpoint = Endpoint::connect(&socket_of(&self.0.socket), &self.0.program).await?;
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&endpoint));
        Ok(endpoint)
    }

    /// The endpoint, a new one where the last is gone.
    pub(crate) async fn endpoint(&self) -> Result<Arc<Endpoint>, Status> {
        if let Some(endpoint) = self.current() {
            return Ok(endpoint);
        }
        self.dial_patiently(true).await
    }

    /// Dials as long as a service takes that is started again; `was_there`: one was there before.
    async fn dial_patiently(&self, was_there: bool) -> Result<Arc<Endpoint>, Status> {
        let mut tries = 0;
        loop {
            match self.dial().await {
                Ok(endpoint) => return Ok(endpoint),
                // Its socket is there, so it is between two processes.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && tries < RETRIES => {}
                Err(error) if !was_there || tries >= RETRIES => return Err(self.unreachable(&error)),
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
            tries += 1;
        }
    }

    /// Returns whether the service was started a moment ago, or is gone.
    pub(crate) fn is_young(&self) -> bool {
        self.current().is_none_or(|endpoint| endpoint.is_young())
    }

    /// A binding is not used any more.
    pub(crate) fn leave(&self, endpoint: u64, lane: u32) {
        if let Some(endpoint) = self.current().filter(|current| current.id == endpoint) {
            endpoint.unbind(lane);
        }
    }

    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = Arc::clone(&self.0.calls).acquire_owned().await;
        permit.map_err(|_| Status::unavailable("the connection with the transport service is closed"))
    }

    /// Binds to a service of this host.
    ///
    /// # Errors
    /// [`crate::Code::Unavailable`] when nobody serves it; [`crate::Code::FailedPrecondition`] when its schema does not fit.
    pub async fn bind(&self, service: &str, schema: &'static [u8]) -> Result<Channel, Status> {
        self.bind_at(service, schema, &[]).await
    }

    /// Binds to a service at these places: addresses of the transport services of other hosts, `tcp://HOST:PORT`. Calls are balanced between
    /// several.
    ///
    /// # Errors
    /// As [`Net::bind`].
    pub async fn bind_at(
        &self,
        service: &str,
        schema: &'static [u8],
        at: &[&str],
    ) -> Result<Channel, Status> {
        Channel::bind(self.clone(), service, schema.into(), at).await
    }

    /// Binds to a service of this host whose schema this program does not have: it gets the one of whoever serves it.
    ///
    /// # Errors
    /// [`crate::Code::Unavailable`] when nobody serves it.
    pub async fn discover(&self, service: &str) -> Result<(Channel, tidemill_schema::Schema), Status> {
        let bytes = loop {
            let endpoint = self.endpoint().await?;
            match endpoint.describe(service).await {
                Err(status) if status.code == Code::Unavailable && endpoint.is_young() => {}
                described => break described?,
            }
            tokio::time::sleep(PAUSE).await;
        };
        let schema = tidemill_schema::Schema::from_bytes(&bytes)
            .map_err(|error| Status::internal(format!("the schema of {service}: {error}")))?;
        Ok((Channel::bind(self.clone(), service, bytes, &[]).await?, schema))
    }

    /// Serves a service until the result is dropped; again where the transport service is started again.
    ///
    /// # Errors
    /// The transport service refuses it: another schema of the same service is served here, for example.
    pub async fn serve(&self, service: impl Service) -> Result<Serving, Status> {
        let service: Arc<dyn Service> = Arc::new(service);
        let first = self.serve_once(&service).await?;
        let (stop, mut stopped) = watch::channel(());
        let net = self.clone();
        tokio::spawn(async move {
            let (mut endpoint, mut lane) = first;
            loop {
                tokio::select! {
                    () = endpoint.gone() => {}
                    _ = stopped.changed() => return endpoint.unbind(lane),
                }
                tracing::warn!(
                    "the transport service went away; {} is served again as soon as it is back",
                    service.name()
                );
                let mut pause = PAUSE;
                loop {
                    let again = tokio::select! {
                        again = net.serve_once(&service) => again,
                        _ = stopped.changed() => return,
                    };
                    match again {
                        Ok(again) => {
                            (endpoint, lane) = again;
                            tracing::info!("{} is served again", service.name());
                            break;
                        }
                        Err(status) => {
                            tracing::debug!("{} is not served again yet: {status}", service.name());
                            tokio::time::sleep(pause).await;
                            pause = (2 * pause).min(LONGEST_PAUSE);
                        }
                    }
                }
            }
        });
        Ok(Serving { _stop: stop })
    }

    async fn serve_once(&self, service: &Arc<dyn Service>) -> Result<(Arc<Endpoint>, u32), Status> {
        let endpoint = self.endpoint().await?;
        let digest = tidemill_schema::Hash::of(service.descriptors()).to_string();
        let make = |id| ToService::Serve { id, service: service.name().to_owned(), schema: digest.clone() };
        let schema = bytes::Bytes::copy_from_slice(service.descriptors());
        let lane = endpoint.ask(make, &schema, Some(Arc::clone(service))).await?;
        Ok((endpoint, lane))
    }
}

/// A service that is served as long as this lives.
#[derive(Debug)]
pub struct Serving {
    _stop: watch::Sender<()>,
}
