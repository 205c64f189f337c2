//! How a device is reached: by a proxy that this process starts, or at an address.
use crate::own_program;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidemill_device::carrier::Carrier;
use tidemill_device::dial;
use tidemill_device::session::{CallError, Session};
use tidemill_inference::backend::registered;
use tidemill_link::remote::{Address, Security};

/// A device as plans name it.
///
/// ```
/// use tidemill_remote::reach::Place;
/// assert_eq!("proxy:rten".parse(), Ok(Place::Own { backend: Some("rten".into()) }));
/// assert!("device:tcp://hub:7400".parse::<Place>().is_ok());
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
    At(Address),
}

/// A device that cannot be reached by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// The name is none.
    #[error(
        "'{device}' names no device: {reason}; write `proxy`, `proxy:BACKEND`, `device:tcp://HOST:PORT` or `device:unix:///PATH`"
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
        let with_scheme =
            if address.contains("://") { address.to_owned() } else { format!("tcp://{address}") };
        let wrong = |reason: String| ReachError::Name { device: address.to_owned(), reason };
        Ok(Self::At(with_scheme.parse().map_err(|error| wrong(format!("{error}")))?))
    }

    /// Opens a session. `libraries`: from where a proxy that starts here looks for the libraries of back ends. `client`: a name
    /// for lists of sessions.
    ///
    /// # Errors
    /// [`ReachError`].
    pub fn reach(&self, libraries: &Path, tenant: &str, client: &str) -> Result<Reached, ReachError> {
        match self {
            Self::Own { backend } => own(backend.as_deref(), libraries, tenant, client),
            Self::At(address) => {
                let carrier = dial::connect(address, &Security::none(), client).map_err(|error| {
                    let place = address.to_string();
                    match error {
                        CallError::Lost { reason, .. } => ReachError::Unreachable { place, reason },
                        other => ReachError::Unreachable { place, reason: other.to_string() },
                    }
                })?;
                Ok(Reached { session: Session::open(carrier, tenant, client)?, own: None })
            }
        }
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
}
