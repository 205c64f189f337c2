//! How a device is reached: by a proxy that this process starts, or at an address.
use crate::{certificate, own_program};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidemill_device::carrier::Carrier;
use tidemill_device::dial;
use tidemill_device::session::{CallError, Session};
use tidemill_inference::backend::registered;
use tidemill_link::remote::{Address, RemoteError, Security};

/// A device as plans name it.
///
/// ```
/// use tidemill_remote::reach::Place;
/// assert_eq!("proxy:rten".parse(), Ok(Place::Own { backend: Some("rten".into()) }));
/// assert!("device:tcp://hub:7440".parse::<Place>().is_ok());
/// assert!(matches!("device:tls://hub:7440".parse(), Ok(Place::At { tls: true, .. })));
/// assert!("device:".parse::<Place>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// `proxy` or `proxy:BACKEND`: a process that the executor starts on its own host. Back ends such as `torch` have a program of
    /// their own, see [`own_program`].
    Own {
        /// The only back end that it has; none: all of the host.
        backend: Option<String>,
    },
    /// `device:ADDRESS`: where `tidemill device serve` listens.
    At {
        /// The address, without `tls://`.
        address: Address,
        /// Whether both sides show certificates: `tls://HOST:PORT`.
        tls: bool,
    },
}

/// Begins addresses of devices with TLS.
const TLS: &str = "tls://";

/// A device that cannot be reached by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// The name is none.
    #[error(
        "'{device}' names no device: {reason}; write `proxy`, `proxy:BACKEND`, `device:tcp://HOST:PORT`, `device:tls://HOST:PORT`, `device:unix:///PATH` or `device:session://PLACES`"
    )]
    Name {
        /// The name.
        device: String,
        /// The reason.
        reason: String,
    },
    /// `proxy:BACKEND` with a back end that this build does not know.
    #[error("there is no back end `{name}`, so `proxy:{name}` computes nothing; there are: {known}")]
    BackEnd {
        /// Its name.
        name: String,
        /// Names of all back ends.
        known: String,
    },
    /// No process can be started.
    #[error("no proxy can be started: {0}")]
    Start(String),
    /// Nothing answers, or it refuses.
    #[error(
        "nothing answers at {place}: {reason}; start `tidemill device serve` there, or name another `device`"
    )]
    Unreachable {
        /// The device.
        place: String,
        /// The reason.
        reason: String,
    },
    /// This process has no certificate.
    #[error(
        "the device at {place} wants a certificate, and this process has none: write `--device-certificate FILE`, `--device-key FILE` and `--device-authority FILE`"
    )]
    NoCertificate {
        /// The device.
        place: String,
    },
    /// The device has no TLS.
    #[error(
        "the device at {place} has no TLS: start it with `--certificate`, `--key` and `--authority`, or write `tcp://` in its address"
    )]
    NoTls {
        /// The device.
        place: String,
    },
    /// The device closes connections without TLS.
    #[error(
        "the device at {place} has TLS, or closed the connection before it answered, as one with TLS does: write `tls://HOST:PORT` as its address"
    )]
    WantsTls {
        /// The device.
        place: String,
    },
    /// The sides do not trust each other.
    #[error(
        "no TLS with the device at {place}: {reason}; each side needs a certificate of the authority that the other one names: `--device-authority` here, `--authority` there"
    )]
    Untrusted {
        /// The device.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The session could not be opened.
    #[error(transparent)]
    Session(#[from] CallError),
}

impl std::str::FromStr for Place {
    type Err = ReachError;

    fn from_str(device: &str) -> Result<Self, ReachError> {
        let (scheme, rest) =
            device.split_once(':').map_or((device, None), |(scheme, rest)| (scheme, Some(rest)));
        let wrong = |reason: String| ReachError::Name { device: device.to_owned(), reason };
        match (scheme, rest) {
            ("proxy", None) => Ok(Self::Own { backend: None }),
            ("proxy", Some(backend)) if !backend.is_empty() => {
                Ok(Self::Own { backend: Some(backend.to_owned()) })
            }
            ("device", Some(address)) => Self::at(address).map_err(|error| match error {
                ReachError::Name { reason, .. } => wrong(reason),
                other => other,
            }),
            _ => Err(wrong("it has no address".to_owned())),
        }
    }
}

/// A session, and the process behind it if it is ours. The session ends first.
pub struct Reached {
    /// The session.
    pub session: Session,
    /// The proxy.
    pub own: Option<Own>,
}

/// A proxy of this process. Dropping it ends the proxy.
pub struct Own(Child);

impl Own {
    /// Its process.
    pub fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    /// A device at an address; one without a scheme is `HOST:PORT`.
    ///
    /// # Errors
    /// [`ReachError::Name`].
    pub fn at(address: &str) -> Result<Self, ReachError> {
        let wrong = |reason: String| ReachError::Name { device: address.to_owned(), reason };
        let secured = address.strip_prefix(TLS);
        let place = match secured {
            Some(place) => format!("tcp://{place}"),
            None if address.contains("://") => address.to_owned(),
            None => format!("tcp://{address}"),
        };
        let parsed = place.parse().map_err(|error| wrong(format!("{error}")))?;
        Ok(Self::At { address: parsed, tls: secured.is_some() })
    }

    /// Opens a session. `libraries`: from where a proxy that starts here looks for the libraries of back ends. `client`: a name
    /// for lists of sessions.
    ///
    /// # Errors
    /// [`ReachError`].
    pub fn reach(&self, libraries: &Path, tenant: &str, client: &str) -> Result<Reached, ReachError> {
        match self {
            Self::Own { backend } => own(backend.as_deref(), libraries, tenant, client),
            Self::At { address, tls } => {
                let carrier = dialled(address, *tls, tenant, client)?;
                Ok(Reached { session: Session::open(carrier, tenant, client)?, own: None })
            }
        }
    }
}

fn dialled(address: &Address, tls: bool, tenant: &str, client: &str) -> Result<Carrier, ReachError> {
    let none = Security::none();
    let (place, security) = match (tls, certificate::get()) {
        (false, _) => (address.to_string(), &none),
        (true, Some(security)) => (format!("{TLS}{}", address.place()), security),
        (true, None) => {
            return Err(ReachError::NoCertificate { place: format!("{TLS}{}", address.place()) });
        }
    };
    dial::dial(address, security, tenant, client).map_err(|error| explained(&error, place, tls))
}

/// Says what to write where only one side has TLS.
fn explained(error: &RemoteError, place: String, tls: bool) -> ReachError {
    match error {
        // A device without TLS answers with words of its own.
        RemoteError::Tls(reason) if tls && reason.contains("InvalidContentType") => {
            ReachError::NoTls { place }
        }
        RemoteError::Tls(reason) => ReachError::Untrusted { place, reason: reason.clone() },
        RemoteError::NoCertificates => ReachError::WantsTls { place },
        RemoteError::Io(error)
            if !tls && matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
        {
            ReachError::WantsTls { place }
        }
        other => ReachError::Unreachable { place, reason: other.to_string() },
    }
}

fn own(backend: Option<&str>, libraries: &Path, tenant: &str, client: &str) -> Result<Reached, ReachError> {
    backend.map_or(Ok(()), check_name)?;
    let start = |error: std::io::Error| ReachError::Start(error.to_string());
    let (ours, theirs) = UnixStream::pair().map_err(start)?;
    let of_backend = match backend.map(own_program::of) {
        Some(Some(program)) => Some(program?),
        _ => None,
    };
    let program = of_backend.map_or_else(std::env::current_exe, Ok).map_err(start)?;
    let mut command = Command::new(program);
    command.arg("device-proxy");
    // A workflow in the current folder has an empty one.
    let libraries = if libraries.as_os_str().is_empty() { Path::new(".") } else { libraries };
    command.arg("--libraries").arg(libraries);
    if let Some(backend) = backend {
        command.args(["--backend", backend]);
    }
    // Ctrl-C goes to the whole group of this process, which still needs the proxy for what has begun.
    command.process_group(0);
    let child =
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn().map_err(start)?;
    // The command holds the other end of the socket: without it, the end of the process ends the session.
    drop(command);
    let own = Own(child);
    let session = Session::open(Carrier::of_socket(ours).map_err(start)?, tenant, client)?;
    Ok(Reached { session, own: Some(own) })
}

/// Checks the name of a back end before a process is started that would only say the same.
fn check_name(name: &str) -> Result<(), ReachError> {
    let known: Vec<&str> = std::iter::once("auto").chain(registered().map(|backend| backend.name)).collect();
    if known.contains(&name) {
        return Ok(());
    }
    Err(ReachError::BackEnd { name: name.to_owned(), known: known.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_end_that_does_not_exist_starts_no_process() {
        own_program::register();
        let reached = "proxy:nix".parse::<Place>().unwrap().reach(Path::new("."), "tests", "reach");
        let told = reached.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.starts_with("there is no back end `nix`") && told.contains("rten"), "{told}");
        assert_eq!((check_name("rten"), check_name("torch"), check_name("auto")), (Ok(()), Ok(()), Ok(())));
    }

    #[test]
    fn an_error_says_which_side_lacks_tls() {
        let told = |error: RemoteError, tls: bool| explained(&error, "hub:7440".to_owned(), tls).to_string();
        let end = || std::io::Error::from(ErrorKind::UnexpectedEof);
        assert!(told(end().into(), false).contains("write `tls://HOST:PORT`"));
        assert!(told(RemoteError::NoCertificates, false).contains("write `tls://HOST:PORT`"));
        assert!(told(end().into(), true).contains("nothing answers"));
        let corrupt = "received corrupt message of type InvalidContentType";
        assert!(told(RemoteError::Tls(corrupt.into()), true).contains("write `tcp://`"));
        assert!(told(RemoteError::Tls("UnknownIssuer".into()), true).contains("`--device-authority`"));
        assert!(told(RemoteError::Timeout, false).contains("nothing answers"));
    }

    #[test]
    fn a_process_without_a_certificate_reaches_no_device_with_tls() {
        let place: Place = "device:tls://127.0.0.1:1".parse().unwrap();
        let error = place.reach(Path::new("."), "me", "test").err().unwrap().to_string();
        assert!(
            error.contains("tls://127.0.0.1:1") && error.contains("--device-certificate FILE"),
            "{error}"
        );
        let wrong = "device:tls://hub".parse::<Place>().unwrap_err().to_string();
        assert!(wrong.contains("device:tls://hub"), "{wrong}");
    }
}
