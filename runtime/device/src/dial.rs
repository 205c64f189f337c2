//! Connections to devices that a daemon serves.
use crate::carrier::Carrier;
use crate::session::{CallError, Session};
use std::time::Duration;
use tidemill_link::remote::{self, Address, Greeting, Purpose, RemoteError, Security};

/// How long the host of a device may take to accept a connection.
const CONNECTING: Duration = Duration::from_secs(5);

/// The greeting of a client: sessions with devices belong to no run.
fn greeting(tenant: &str, client: &str) -> Greeting {
    let purpose = Purpose::Device { client: client.to_owned(), tenant: Some(tenant.to_owned()) };
    Greeting { run: 0, plan_version: 0, purpose }
}

/// Connects to a device that listens at the address. Unix sockets are without TLS. The session must be opened for the same tenant.
///
/// # Errors
/// [`CallError::Refused`] with the reason of the device, or [`CallError::Lost`] if it cannot be reached.
pub fn connect(
    address: &Address,
    security: &Security,
    tenant: &str,
    client: &str,
) -> Result<Carrier, CallError> {
    dial(address, security, tenant, client).map_err(|error| match error {
        RemoteError::Refused(reason) => CallError::Refused(reason),
        other => CallError::Lost { sequence: 0, may_have_run: false, reason: other.to_string() },
    })
}

/// Connects as [`connect`], for callers that explain what went wrong with TLS.
///
/// # Errors
/// [`RemoteError`].
pub fn dial(
    address: &Address,
    security: &Security,
    tenant: &str,
    client: &str,
) -> Result<Carrier, RemoteError> {
    let none = Security::none();
    let security = if address.scheme() == "unix" { &none } else { security };
    let connection = remote::dial(address, security, &greeting(tenant, client), CONNECTING)?;
    match connection.into_bytes().into_socket() {
        Ok(socket) => Ok(socket.and_then(Carrier::of_descriptor)?),
        Err(stream) => Ok(Carrier::of_stream(stream)),
    }
}

/// Opens a session with a device that listens at the address.
///
/// # Errors
/// As [`connect`] and [`Session::open`].
pub fn open(
    address: &Address,
    security: &Security,
    tenant: &str,
    client: &str,
) -> Result<Session, CallError> {
    Session::open(connect(address, security, tenant, client)?, tenant, client)
}
