//! The register of the authority: who belongs to the cluster, and what was revoked.
use crate::controller::ControllerError;
use crate::facts::FactsError;
use std::sync::Arc;
use tidemill_identity::{IdentityError, Registry, StoreError};
use tidemill_postgres::{Change, Lead, PostgresError};

const KIND: &str = "authority";
const NAME: &str = "register";

/// See the module.
pub(in super::super) struct SharedRegister(pub(in super::super) Arc<Lead>);

impl Registry for SharedRegister {
    fn place(&self) -> String {
        self.0.place()
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.0.get(KIND, NAME).map_err(|error| error.to_string())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.0.write(&[Change::put(KIND, NAME, bytes)]).map_err(|error| error.to_string())
    }
}

impl ControllerError {
    /// Whether another try to lead may succeed: the shared store was unreachable, or another controller was faster.
    pub fn is_passing(&self) -> bool {
        let is_passing = |error: &PostgresError| error.is_passing() || error.is_end_of_lead();
        match self {
            Self::Shared(error) | Self::Facts(FactsError::Shared(error)) => is_passing(error),
            Self::Identity(IdentityError::Store(StoreError::Elsewhere { .. })) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_no_reason_to_end_a_controller_that_begins_to_lead() {
        let server = || PostgresError::Server { place: "a server".into(), reason: "gone".into() };
        let elsewhere = StoreError::Elsewhere { place: "a server".into(), why: "gone".into() };
        for passing in [
            ControllerError::Shared(server()),
            ControllerError::Shared(PostgresError::Lost { own: 1, reason: "gone".into() }),
            ControllerError::Facts(FactsError::Shared(PostgresError::Deposed { own: 1, found: 2 })),
            ControllerError::Identity(IdentityError::Store(elsewhere)),
        ] {
            assert!(passing.is_passing(), "{passing}");
        }
        let unfit = PostgresError::Unfit { place: "a server".into(), reason: "too old".into() };
        for lasting in [ControllerError::Shared(unfit), ControllerError::OnItsOwn("folder".into())] {
            assert!(!lasting.is_passing(), "{lasting}");
        }
    }
}
