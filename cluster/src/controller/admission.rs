//! Checks that the certificate shown for a worker of a plan is that of the worker of the cluster that has its role.
use super::Shared;
use tidemill_engine::remote::{Greeting, Purpose};
use tidemill_identity::PeerIdentity;

/// Checks that the owner of the certificate of `identity` may be the host that its greeting names.
pub(super) fn may_be(shared: &Shared, greeting: &Greeting, identity: Option<&str>) -> Result<(), String> {
    let Purpose::Control { host: role } = &greeting.purpose else {
        return Err("this is a controller, not a worker".to_owned());
    };
    let is_meant = |secret: &str| u128::from_str_radix(secret, 16) == Ok(greeting.run);
    let placed = shared.facts.look(|document| {
        let run = document.runs.values().find(|run| is_meant(&run.secret))?;
        run.roles_of(greeting.plan_version)?.get(role)?.worker.clone()
    });
    let Some(placed) = placed else {
        return Err(format!("'{role}' of this run is on no worker now"));
    };
    let shown = identity.and_then(|identity| identity.parse::<PeerIdentity>().ok());
    match shown.as_ref().and_then(PeerIdentity::worker) {
        Some(worker) if worker.as_str() == placed => Ok(()),
        _ => {
            let shown = shown.map_or_else(|| "somebody unknown".to_owned(), |shown| shown.for_people());
            Err(format!("'{role}' of this run is on worker `{placed}`, but the certificate is of {shown}"))
        }
    }
}
