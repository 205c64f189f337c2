//! Connections to devices that a daemon serves.
use crate::carrier::Carrier;
use crate::session::{CallError, Session};
use std::time::Duration;
use tidemill_link::remote::{self, Address, Greeting, Purpose, RemoteError, Security};

/// How long the host of a device may take to accept a connection.
const CONNECTING: Duration = Duration::from_secs(5);

/// The greeting of a client: sessions with devices belong to no run.
fn greeting(client: &str) -> Greeting {
    Greeting { run: 0, plan_version: 0, purpose: Purpose::Device { client: client.to_owned() } }
}

/// Connects to a device that listens at the address. Unix sockets are without TLS.
///
/// # Errors
/// [`CallError::Refused`] with the reason of the device, or [`CallError::Lost`] if it cannot be reached.
pub fn connect(address: &Address, security: &Security, client: &str) -> Result<Carrier, CallError> {
    let none = Security::none();
    let security = if address.scheme() == "unix" { &none } else { security };
    let lost = |reason: String| CallError::Lost { sequence: 0, may_have_run: false, reason };
    let connection =
        remote::dial(address, security, &greeting(client), CONNECTING).map_err(|error| match error {
            RemoteError::Refused(reason) => CallError::Refused(reason),
            other => lost(other.to_string()),
        })?;
    match connection.into_bytes().into_socket() {
        Ok(socket) => socket.and_then(Carrier::of_descriptor).map_err(|error| lost(error.to_string())),
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
    Session::open(connect(address, security, client)?, tenant, client)
}
