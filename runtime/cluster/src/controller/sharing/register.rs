//! The register of the authority: who belongs to the cluster, and what was revoked.
use std::sync::Arc;
use tidemill_identity::Registry;
use tidemill_postgres::{Change, Lead};

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
