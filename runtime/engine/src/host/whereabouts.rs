//! Where the coordinator of a run is. It may begin anew on another machine while its hosts go on.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_link::remote::{Address, MessageWriter};

/// See the module. Copies are of the same.
#[derive(Clone)]
pub struct Whereabouts(Arc<Mutex<Known>>);

struct Known {
    address: Address,
    /// The connection to it, and where that goes.
    connection: Option<(Address, MessageWriter)>,
}

impl From<Address> for Whereabouts {
    fn from(address: Address) -> Self {
        Self(Arc::new(Mutex::new(Known { address, connection: None })))
    }
}

impl std::fmt::Debug for Whereabouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Whereabouts({})", self.address())
    }
}

impl Whereabouts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is to be looked for.
    pub fn address(&self) -> Address {
        self.known().address.clone()
    }

    /// It is there from now on. A connection to where it was is ended: the machine that it was on may stand still and say nothing.
    pub fn moved(&self, address: Address) {
        let mut known = self.known();
        if let Some((_, writer)) = known.connection.take_if(|(to, _)| *to != address) {
            writer.close();
        }
        known.address = address;
    }

    /// A connection to it was made, at this address; false: it is elsewhere meanwhile, and the connection is ended.
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
