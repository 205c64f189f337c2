//! The agent on a machine: joins the cluster, tells that it lives, and has the processes that the controller wants.
mod capacity;
mod hosts;
mod joining;

use crate::api::{Duties, Heartbeat, RenewRequest};
use crate::blobs::{BlobError, Blobs};
use crate::client::{Client, ClientError};
use hosts::Hosts;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_identity::{IdentityError, JoinAddress, Timestamp, WorkerFolder};
use tidemill_link::remote::{Credentials, RemoteError};

/// How an agent joins and what it says of its machine.
#[derive(Clone)]
pub struct AgentOptions {
    /// Its folder: identity, files, processes of runs.
    pub folder: PathBuf,
    /// Where the controller is.
    pub controller: JoinAddress,
    /// The token to join with, where it has not joined before.
    pub token: Option<String>,
    /// The name that it wants; none: that of the machine.
    pub name: Option<String>,
    /// Where it is.
    pub location: Option<String>,
    /// Its tier.
    pub tier: Option<String>,
    /// Type of machine, as in profiles and infrastructures.
    pub worker_type: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Where other workers reach this machine; none: the address that it has towards the controller.
    pub address: Option<IpAddr>,
    /// Other workers cannot reach it: it dials them.
    pub only_dials: bool,
    /// Bytes of files that are kept for later runs.
    pub cache_bytes: u64,
    /// The command that is a process of a run: it calls [`tidemill_app::processes::serve`].
    pub command: Vec<String>,
}

/// Why an agent cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Who it is.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The controller.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Files.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// TLS.
    #[error(transparent)]
    Link(#[from] RemoteError),
    /// The system.
    #[error("{0}")]
    System(String),
    /// It has not joined, and has no token.
    #[error("this machine has not joined yet: give it a join token, from `tidemill token create`")]
    NoToken,
}

/// Runs an agent until it is told to end; `joined` is told its name once it is known.
///
/// # Errors
/// It cannot join, or is no longer part of the cluster.
pub fn serve(
    options: &AgentOptions,
    end: &Arc<AtomicBool>,
    joined: impl FnOnce(&str),
) -> Result<(), AgentError> {
    let mut folder = WorkerFolder::open(&options.folder.join("identity"))?;
    joining::join(options, &mut folder)?;
    let Some(identity) = folder.current().cloned() else { return Err(AgentError::NoToken) };
    joined(identity.identity.worker().map_or("", |name| name.as_str()));
    let credentials = Credentials::new(&identity.certificates)?;
    let client = Arc::new(Client::of_worker(&options.controller, &credentials)?);
    let blobs = Arc::new(Blobs::open(&options.folder.join("files"))?);
    let address = match options.address {
        Some(address) => address,
        None => own_address(&options.controller)?,
    };
    let mut hosts = Hosts::new(options, address, &client, &blobs, identity.certificates)?;
    let mut is_heard = true;
    let pause = Duration::from_millis(crate::api::HEARTBEAT_MILLISECONDS);
    while !end.load(Ordering::Acquire) {
        renew_if_due(options, &mut folder, &client, &credentials, &mut hosts);
        match client.post::<Duties>("/v1/heartbeat", &heartbeat(options, &mut hosts)) {
            Ok(duties) => {
                if !std::mem::replace(&mut is_heard, true) {
                    tracing::info!("the controller is there again");
                }
                let needed = duties.assignments.iter().flat_map(|one| &one.bundle.files);
                let needed: BTreeSet<String> = needed.map(|file| file.digest.clone()).collect();
                hosts.follow(duties.assignments);
                blobs.shrink(options.cache_bytes, &needed);
            }
            Err(error) if error.is_refusal() => {
                hosts.end();
                return Err(error.into());
            }
            Err(error) => {
                if std::mem::replace(&mut is_heard, false) {
                    tracing::warn!("{error}; what runs here goes on, and the controller is looked for");
                }
            }
        }
        hosts.look(pause);
    }
    hosts.end();
    Ok(())
}

fn heartbeat(options: &AgentOptions, hosts: &mut Hosts) -> Heartbeat {
    Heartbeat {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: tidemill_machine::host_name(),
        worker_type: options.worker_type.clone(),
        capacity: capacity::look(),
        labels: options.labels.clone(),
        only_dials: options.only_dials,
        hosts: hosts.statuses(),
        logs: hosts.take_logs(),
    }
}

/// Asks for a new certificate once two thirds of the life of the present one are over.
fn renew_if_due(
    options: &AgentOptions,
    folder: &mut WorkerFolder,
    client: &Client,
    credentials: &Credentials,
    hosts: &mut Hosts,
) {
    let is_due = folder.current().is_some_and(|identity| Timestamp::now() >= identity.facts.renewal_due());
    if !is_due {
        return;
    }
    let renewed = folder.request().map_err(AgentError::from).and_then(|request_pem| {
        let issued = client.post("/v1/renew", &RenewRequest { request_pem })?;
        let identity = folder.install(&issued, options.controller.fingerprint())?;
        credentials.replace(&identity.certificates)?;
        hosts.renew(&identity.certificates);
        Ok(())
    });
    match renewed {
        Ok(()) => tracing::info!("the certificate of this worker is renewed"),
        Err(error) => tracing::warn!("the certificate of this worker cannot be renewed now: {error}"),
    }
}

/// The address that this machine has towards the controller.
fn own_address(controller: &JoinAddress) -> Result<IpAddr, AgentError> {
    let failed =
        |error: std::io::Error| AgentError::System(format!("{}: {error}", controller.host_and_port()));
    // Nothing is sent: the system only chooses a route.
    let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")).map_err(failed)?;
    let own = socket.connect(controller.host_and_port()).and_then(|()| socket.local_addr());
    match own {
        Ok(own) => Ok(own.ip().to_canonical()),
        Err(_) => {
            let socket = UdpSocket::bind("0.0.0.0:0").map_err(failed)?;
            let own = socket.connect(controller.host_and_port()).and_then(|()| socket.local_addr());
            Ok(own.map_err(failed)?.ip())
        }
    }
}
