//! One address for the coordinators of many runs: a connecting host names the plan and the run.
use super::reception::{PlanOfRun, Reception, admit};
use crate::failure::RunError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tidemill_link::remote::{Address, Greeting, Incoming, Listener, Security, Serving};

/// Checks a host by its greeting and the identity in its certificate; an error is the reason for a rejection.
type Admission = Box<dyn Fn(&Greeting, Option<&str>) -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct Routes {
    of: Mutex<BTreeMap<PlanOfRun, Arc<Reception>>>,
    admission: OnceLock<Admission>,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PlanOfRun, Arc<Reception>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on a connection.
    fn take(&self, incoming: Incoming) {
        let Greeting { run, plan_version, .. } = incoming.greeting;
        let Some(reception) = self.lock().get(&PlanOfRun { run, plan_version }).cloned() else {
            return incoming.refuse("this run is not coordinated here now");
        };
        let name = incoming.peer_name();
        let may = self.admission.get().map_or(Ok(()), |may| may(&incoming.greeting, name.as_deref()));
        match may {
            Ok(()) => admit(&reception, incoming),
            Err(reason) => {
                tracing::warn!("a host is turned away: {reason}");
                incoming.refuse(&reason);
            }
        }
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
    /// Listens at an address. Hosts get `announce`, if that is another one.
    ///
    /// # Errors
    /// When the address is in use or not of this host.
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
        let serving = listener.serve(move |incoming| known.take(incoming)).map_err(failed)?;
        Ok(Self { address: announce.unwrap_or(bound), routes, _serving: serving })
    }

    /// Sets a check of every connecting host of a run that is coordinated here, by its greeting and the identity in its
    /// certificate. Only the first call counts.
    pub fn admit_only(
        &self,
        may: impl Fn(&Greeting, Option<&str>) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let _ = self.routes.admission.set(Box::new(may));
    }

    /// The address for hosts.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Closes the connections of all hosts with a certificate of `identity`, which no longer belongs to the cluster. Their
    /// coordinators count these hosts as lost. The caller must make sure that they are rejected when they connect again.
    /// Returns the number of connections.
    pub fn expel(&self, identity: &str) -> usize {
        let receptions: Vec<Arc<Reception>> = self.routes.lock().values().cloned().collect();
        receptions.iter().map(|reception| reception.expel(identity)).sum()
    }

    /// Routes hosts of this plan of this run, until the result is dropped.
    pub(super) fn route(&self, of: PlanOfRun, to: Arc<Reception>) -> Result<Routed, RunError> {
        let mut routes = self.routes.lock();
        if routes.contains_key(&of) {
            return Err(RunError::System("this run has a coordinator here already".into()));
        }
        routes.insert(of, to);
        Ok(Routed { routes: Arc::clone(&self.routes), of })
    }
}

/// Routes hosts of a run while it lives.
pub(super) struct Routed {
    routes: Arc<Routes>,
    of: PlanOfRun,
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.of);
    }
}
