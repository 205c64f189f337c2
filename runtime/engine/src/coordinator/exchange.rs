//! One address for the coordinators of many runs: who dials says which run it means.
use crate::failure::RunError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_link::remote::{Address, Incoming, Listener, Security, Serving};

type Route = Arc<dyn Fn(Incoming) + Send + Sync>;

#[derive(Default)]
struct Routes(Mutex<BTreeMap<u128, Route>>);

impl Routes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u128, Route>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens for the hosts of many runs.
pub struct Exchange {
    address: Address,
    routes: Arc<Routes>,
    _serving: Serving,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Exchange {
    /// Listens there. Hosts are told `announce`, where that is another address.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn listen(
        address: &Address,
        announce: Option<Address>,
        security: &Security,
    ) -> Result<Self, RunError> {
        let failed = |error: tidemill_link::remote::RemoteError| {
            RunError::System(format!("hosts cannot be listened for on {address}: {error}"))
        };
        let listener = Listener::bind(address, security).map_err(failed)?;
        let bound = listener.address().clone();
        let routes = Arc::new(Routes::default());
        let known = Arc::clone(&routes);
        let serving = listener
            .serve(move |incoming| {
                let route = known.lock().get(&incoming.greeting.run).cloned();
                match route {
                    Some(route) => route(incoming),
                    None => incoming.refuse("this run is not coordinated here now"),
                }
            })
            .map_err(failed)?;
        Ok(Self { address: announce.unwrap_or(bound), routes, _serving: serving })
    }

    /// Where hosts dial.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Hands on who means this run, until what is returned is dropped.
    pub(super) fn route(
        &self,
        run: u128,
        to: impl Fn(Incoming) + Send + Sync + 'static,
    ) -> Result<Routed, RunError> {
        let mut routes = self.routes.lock();
        if routes.contains_key(&run) {
            return Err(RunError::System("this run has a coordinator here already".into()));
        }
        routes.insert(run, Arc::new(to));
        Ok(Routed { routes: Arc::clone(&self.routes), run })
    }
}

/// Hosts of a run are handed on while this lives.
pub(super) struct Routed {
    routes: Arc<Routes>,
    run: u128,
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.run);
    }
}
