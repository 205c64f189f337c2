//! One address for the coordinators of many runs: who dials says which plan of which run it means.
use super::reception::{PlanOfRun, Reception, admit};
use crate::failure::RunError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tidemill_link::remote::{Address, Greeting, Incoming, Listener, Security, Serving};

/// Whether somebody may be the host that it says it is: its greeting, and who its certificate is of. An error is the reason why not.
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

    /// Hands on who has dialled.
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
        let serving = listener.serve(move |incoming| known.take(incoming)).map_err(failed)?;
        Ok(Self { address: announce.unwrap_or(bound), routes, _serving: serving })
    }

    /// Asks this of everybody who dials and knows a run that is coordinated here: whether it may be the host that it says it is, by its
    /// greeting and who its certificate is of. Asked once; a second one is not asked.
    pub fn admit_only(
        &self,
        may: impl Fn(&Greeting, Option<&str>) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let _ = self.routes.admission.set(Box::new(may));
    }

    /// Where hosts dial.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Ends the connections of all hosts whose certificate is of `identity`: it belongs to nothing any more. For their coordinators these
    /// hosts are lost. Whoever calls it has seen to it that they are refused when they dial again. How many connections there were.
    pub fn expel(&self, identity: &str) -> usize {
        let receptions: Vec<Arc<Reception>> = self.routes.lock().values().cloned().collect();
        receptions.iter().map(|reception| reception.expel(identity)).sum()
    }

    /// Hands on who means this plan of this run, until what is returned is dropped.
    pub(super) fn route(&self, of: PlanOfRun, to: Arc<Reception>) -> Result<Routed, RunError> {
        let mut routes = self.routes.lock();
        if routes.contains_key(&of) {
            return Err(RunError::System("this run has a coordinator here already".into()));
        }
        routes.insert(of, to);
        Ok(Routed { routes: Arc::clone(&self.routes), of })
    }
}

/// Hosts of a run are handed on while this lives.
pub(super) struct Routed {
    routes: Arc<Routes>,
    of: PlanOfRun,
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.of);
    }
}
