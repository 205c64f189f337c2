//! Services of a host: what runs once per host beside the agent of a cluster, such as a daemon that shares the host's devices.
//!
//! A program registers a service with one call, before it starts:
//!
//! ```
//! use tidemill_service::{Host, HostService, Needs, Registration, register};
//!
//! struct Echo;
//!
//! impl HostService for Echo {
//!     fn start(&mut self, host: &Host) -> Result<(), String> {
//!         std::fs::write(host.folder.join("address"), host.address.to_string()).map_err(|error| error.to_string())
//!     }
//! }
//!
//! let echo = Registration {
//!     name: "echo",
//!     needs: Needs { ports: &[7900], ..Needs::NONE },
//!     make: || Box::new(Echo),
//! };
//! assert!(register(echo));
//! assert!(!register(echo), "each name once");
//! assert!(!register(Registration { name: "links", ..echo }), "the agent has that one");
//! ```
//!
//! The agent of each host makes its own instance and has [`Supervisor`] start it, restart it after a failure and stop it. The worker's
//! health and `/metrics` show it, and `tidemill deploy` opens its ports and mounts its files. The folder of a service lies within the
//! worker's state, which every deployment keeps.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

#[cfg(test)]
#[path = "../../link/tests/remote/authority.rs"]
mod authority;
mod supervisor;

pub use supervisor::{Supervisor, Watched};

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use tidemill_link::remote::Credentials;

/// The host that a service runs on.
#[derive(Debug, Clone)]
pub struct Host {
    /// The folder of the service, which is there before it starts and stays over restarts.
    pub folder: PathBuf,
    /// The name of the worker.
    pub worker: String,
    /// The address at which other hosts reach this one.
    pub address: IpAddr,
    /// Other hosts cannot dial this one: it dials them.
    pub only_dials: bool,
    /// The certificates of the worker, with which it proves to other hosts of the cluster who it is. They are renewed in place.
    pub credentials: Credentials,
}

/// A service. It is started again after it was stopped, and dropped after its last stop.
pub trait HostService: Send {
    /// Starts it. It returns as soon as the service works, and continues on its own threads.
    ///
    /// # Errors
    /// Says why it cannot start, for people. It is tried again after a while.
    fn start(&mut self, host: &Host) -> Result<(), String>;

    /// Stops it, so that it can be started again.
    fn stop(&mut self) {}

    /// Checks that it works. It answers at once.
    ///
    /// # Errors
    /// Says why it does not, for people. It is restarted then.
    fn health(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Its figures now, for `/metrics` of the worker.
    fn metrics(&self) -> Vec<Figure> {
        Vec::new()
    }
}

/// A figure of a service: a gauge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its name as a metric, with its unit: `tidemill_echo_bytes`.
    pub name: &'static str,
    /// Says what it is, for people.
    pub help: &'static str,
    /// Its value.
    pub value: f64,
}

/// Requirements of a service on a deployment, besides its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// TCP ports of the host at which others reach it.
    pub ports: &'static [u16],
    /// Absolute paths of files and folders of the host that it reads.
    pub files: &'static [&'static str],
    /// Absolute paths of devices of the host that it opens.
    pub devices: &'static [&'static str],
}

impl Needs {
    /// Nothing.
    pub const NONE: Self = Self { ports: &[], files: &[], devices: &[] };
}

/// How a service is found.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// Its name: small letters, digits and dashes.
    pub name: &'static str,
    /// Says what a deployment gives it.
    pub needs: Needs,
    /// Makes an instance, which is not started yet.
    pub make: fn() -> Box<dyn HostService>,
}

/// The name of the service that measures links to other workers, which every agent has.
pub const LINKS: &str = "links";

/// Services that this program added.
static ADDED: RwLock<Vec<Registration>> = RwLock::new(Vec::new());

/// Adds a service to this process, before an agent starts or a deployment is written. Whether it did: the first service of a name stays,
/// and a name that is [`LINKS`] or cannot be that of a folder is refused.
pub fn register(service: Registration) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = !service.name.is_empty()
        && service.name != LINKS
        && service.name.bytes().all(is_plain)
        && added.iter().all(|other| other.name != service.name);
    if is_new {
        added.push(service);
    }
    is_new
}

/// All services that were registered, in this order.
pub fn registered() -> Vec<Registration> {
    ADDED.read().unwrap_or_else(PoisonError::into_inner).clone()
}
