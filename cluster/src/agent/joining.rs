//! Makes an agent a worker of a cluster, and keeps its certificate valid.
use super::AgentError;
use crate::api::RenewRequest;
use crate::client::{Client, ClientError};
use std::time::Duration;
use tidemill_identity::{Issued, JoinAddress, JoinRequest, Name, NameError, WorkerFolder};
use tidemill_link::remote::{Certificates, Credentials};

/// Between tries while the controller is not there.
const PAUSE: Duration = Duration::from_secs(1);
/// Limit of tries.
const MOST_TRIES: u32 = 30;

/// Joins, unless it has joined this cluster before. The names: its own, its location, its tier.
pub(crate) fn join(
    controller: &JoinAddress,
    token: Option<&str>,
    [own, location, tier]: [Option<&str>; 3],
    folder: &mut WorkerFolder,
) -> Result<(), AgentError> {
    let wanted = controller.fingerprint();
    if let Some(identity) = folder.current() {
        if identity.authority == wanted {
            return Ok(());
        }
        return Err(AgentError::System(format!(
            "this folder belongs to another cluster, with the fingerprint {}: give this agent another `--state`",
            identity.authority
        )));
    }
    let Some(token) = token else { return Err(AgentError::NoToken) };
    let client = Client::new(controller, None)?;
    let name = |text: Option<&str>| -> Result<Option<Name>, AgentError> {
        let wrong = |error: NameError| AgentError::System(error.to_string());
        text.map(|text| text.parse().map_err(wrong)).transpose()
    };
    // The name of a machine may not be one for a worker; then the authority gives one.
    let own_name = tidemill_machine::host_name().parse().ok();
    let request = JoinRequest {
        token: token.to_owned(),
        request_pem: folder.request()?,
        name: name(own)?.or(own_name),
        location: name(location)?,
        tier: name(tier)?,
    };
    let mut tries = 0;
    let issued: Issued = loop {
        match client.post("/v1/join", &request) {
            Ok(issued) => break issued,
            Err(ClientError::Call(error)) if tries < MOST_TRIES => {
                if tries == 0 {
                    tracing::warn!("{error}; trying again");
                }
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    };
    folder.install(&issued, wanted)?;
    Ok(())
}

/// Renews the certificate over a connection that shows the present one; returns the new one, which later connections show.
pub(crate) fn renew(
    folder: &mut WorkerFolder,
    client: &Client,
    controller: &JoinAddress,
    credentials: &Credentials,
) -> Result<Certificates, AgentError> {
    let request_pem = folder.request()?;
    // The request is idempotent.
    let issued = client.post_again("/v1/renew", &RenewRequest { request_pem })?;
    let identity = folder.install(&issued, controller.fingerprint())?;
    credentials.replace(&identity.certificates)?;
    client.reconnect();
    Ok(identity.certificates.clone())
}
