//! The controller's own certificate: it issues itself a new one after two thirds of its life, and shows that from the next connection on.
//! Connections that are there go on. One that stands by does the same ([`super::stand_by`]).
use super::Shared;
use std::sync::Arc;
use std::time::Duration;
use tidemill_identity::{CertificateFacts, Timestamp};
use tidemill_link::remote::Credentials;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Looks after one that failed until the next try.
pub(super) const PATIENCE: u32 = 60;

/// Whether it is time for another certificate than the one that is shown.
pub(super) fn is_due(shown: &Credentials, now: Timestamp) -> bool {
    let facts = CertificateFacts::of_der(&shown.certificate());
    !facts.is_ok_and(|facts| now < facts.renewal_due())
}

/// Renews it whenever that is due, until the controller ends.
pub(super) fn watch(shared: &Arc<Shared>) {
    let mut waits = 0;
    while !shared.is_ending() {
        if waits > 0 {
            waits -= 1;
        } else if let Err(error) = shared.renew_if_due(Timestamp::now()) {
            tracing::warn!("the certificate of this controller cannot be renewed now: {error}");
            waits = PATIENCE;
        }
        std::thread::sleep(LOOK);
    }
}

impl Shared {
    fn renew_if_due(&self, now: Timestamp) -> Result<(), String> {
        if !is_due(&self.credentials, now) {
            return Ok(());
        }
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let issued = self.authority.issue_controller(&names, now).map_err(|error| error.to_string())?;
        self.credentials.replace(&issued).map_err(|error| error.to_string())?;
        tracing::info!("the certificate of this controller is renewed");
        Ok(())
    }
}
