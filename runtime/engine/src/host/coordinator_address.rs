//! Address of a run's coordinator, which may be replaced on another machine while its hosts continue.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_link::remote::{Address, MessageWriter};

/// See the module. Copies share the address.
#[derive(Clone)]
pub struct CoordinatorAddress(Arc<Mutex<AddressState>>);

struct AddressState {
    address: Address,
    /// The connection to it, and its address.
    connection: Option<(Address, MessageWriter)>,
}

impl From<Address> for CoordinatorAddress {
    fn from(address: Address) -> Self {
        Self(Arc::new(Mutex::new(AddressState { address, connection: None })))
    }
}

impl std::fmt::Debug for CoordinatorAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CoordinatorAddress({})", self.address())
    }
}

impl CoordinatorAddress {
    fn known(&self) -> MutexGuard<'_, AddressState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present address.
    pub fn address(&self) -> Address {
        self.known().address.clone()
    }

    /// Sets a new address. A connection to the old one is closed: that machine may be suspended and silent.
    pub fn moved(&self, address: Address) {
        let mut known = self.known();
        if let Some((_, writer)) = known.connection.take_if(|(to, _)| *to != address) {
            writer.close();
        }
        known.address = address;
    }

    /// Records a connection to this address; false if it has moved meanwhile, and the connection is closed.
    pub(super) fn connected(&self, to: &Address, writer: &MessageWriter) -> bool {
        let mut known = self.known();
        if known.address != *to {
            writer.close();
            return false;
        }
        known.connection = Some((to.clone(), writer.clone()));
        true
    }
}
