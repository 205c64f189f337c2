//! Makes an agent a worker of a cluster.
use super::{AgentError, AgentOptions};
use crate::client::{Client, ClientError};
use std::time::Duration;
use tidemill_identity::{Issued, JoinRequest, Name, NameError, WorkerFolder};

/// Between tries while the controller is not there.
const PAUSE: Duration = Duration::from_secs(1);
/// Limit of tries.
const MOST_TRIES: u32 = 30;

/// Joins, unless it has joined this cluster before.
pub(super) fn join(options: &AgentOptions, folder: &mut WorkerFolder) -> Result<(), AgentError> {
    let wanted = options.controller.fingerprint();
    if let Some(identity) = folder.current() {
        if identity.authority == wanted {
            return Ok(());
        }
        return Err(AgentError::System(format!(
            "this folder belongs to another cluster, with the fingerprint {}: give this agent another `--state`",
            identity.authority
        )));
    }
    let Some(token) = options.token.clone() else { return Err(AgentError::NoToken) };
    let client = Client::new(&options.controller, None)?;
    let name = |text: &Option<String>| -> Result<Option<Name>, AgentError> {
        let wrong = |error: NameError| AgentError::System(error.to_string());
        text.as_ref().map(|text| text.parse().map_err(wrong)).transpose()
    };
    // The name of a machine may not be one for a worker; then the authority gives one.
    let own_name = tidemill_machine::host_name().parse().ok();
    let request = JoinRequest {
        token,
        request_pem: folder.request()?,
        name: name(&options.name)?.or(own_name),
        location: name(&options.location)?,
        tier: name(&options.tier)?,
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
