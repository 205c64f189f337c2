//! Launchers and addresses of runs whose slots are processes of their own.
use super::exchange::{Exchange, Routed};
use super::reception::{Attendant, PlanOfRun, Reception, admit};
use super::workers::Workers;
use crate::failure::RunError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidemill_link::remote::{Address, Listener, RemoteError, Security, Serving};

/// Starts the processes of a run's hosts.
pub trait HostLauncher: Send {
    /// Starts the process of a worker, which joins the coordinator at `coordinator` (see [`crate::HostOptions`]).
    /// Called again when the process died and the run continues without it.
    ///
    /// # Errors
    /// Why it cannot be started, and how to fix it.
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String>;
    /// Returns workers whose processes have ended. Called regularly, for those that end before they have joined.
    fn ended(&mut self) -> Vec<String>;
    /// Returns how long a worker whose connection is lost may be silent until it counts as dead; it continues
    /// meanwhile ([`crate::HostOptions::patience`]). Zero, the default, where a lost connection is a process that
    /// died.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }
    /// Takes note that the connection of a worker that takes part in the run was lost just now. It comes before [`Self::grace`]
    /// is waited for, so that another plan can continue without the worker ([`crate::Stopper::stop_without`]). Must not block.
    /// The default does nothing.
    fn missing(&mut self, worker: &str) {
        let _ = worker;
    }
    /// Describes what became of the process of a worker whose connection was lost: `was killed by signal 9`.
    fn fate(&mut self, worker: &str) -> Option<String>;
    /// Waits, after the run, for all processes that were ordered to leave, and kills the others.
    fn end(&mut self);
}

/// Hosts that are processes of their own, one for each worker of the plan.
pub struct Hosts {
    /// Starts them.
    pub launcher: Box<dyn HostLauncher>,
    /// Secret number of the run; a host without it is refused.
    pub run: u128,
    /// Counts the plans of the run; a host with another one is refused.
    pub plan_version: u64,
    /// Where the coordinator listens for them.
    pub listen: Listen,
}

/// Where a coordinator listens for its hosts.
pub enum Listen {
    /// At an address of its own, with this protection.
    At(Address, Security),
    /// At an address that it shares with others.
    With(Arc<Exchange>),
    /// They are there already, with their models loaded.
    Ready(Ready),
}

/// Hosts that stand ready: the result of [`crate::Standby::into_hosts`], for the run.
pub struct Ready(pub(super) OpenReception);

/// Keeps the address open.
enum Door {
    Own { _serving: Serving },
    Shared { _routed: Routed },
}

/// A reception that can be reached as long as this lives.
pub(crate) struct OpenReception {
    pub(super) reception: Arc<Reception>,
    address: Address,
    _door: Door,
}

impl OpenReception {
    /// Opens a reception, or takes the open one. Returns it with the hosts that are present.
    pub(super) fn open(
        listen: Listen,
        of: PlanOfRun,
        workers: &Arc<Workers>,
        attendant: Arc<dyn Attendant>,
    ) -> Result<(Self, BTreeSet<usize>), RunError> {
        let (listen, security) = match listen {
            Listen::At(address, security) => (address, security),
            Listen::With(exchange) => {
                return Ok((Self::shared(&exchange, of, workers, attendant)?, BTreeSet::new()));
            }
            Listen::Ready(ready) => {
                let open = ready.0;
                if open.reception.of != of || open.reception.workers.names != workers.names {
                    return Err(RunError::System(
                        "the workers that stand ready are those of another plan".into(),
                    ));
                }
                let present = open.reception.attend(attendant);
                return Ok((open, present));
            }
        };
        let failed = |error: RemoteError| {
            RunError::System(format!("the coordinator cannot listen on {listen}: {error}"))
        };
        let reception = Reception::new(of, workers, attendant);
        let listener = Listener::bind(&listen, &security).map_err(failed)?;
        let address = listener.address().clone();
        let admitting = Arc::clone(&reception);
        let serving = listener.serve(move |incoming| admit(&admitting, incoming)).map_err(failed)?;
        Ok((Self { reception, address, _door: Door::Own { _serving: serving } }, BTreeSet::new()))
    }

    fn shared(
        exchange: &Exchange,
        of: PlanOfRun,
        workers: &Arc<Workers>,
        attendant: Arc<dyn Attendant>,
    ) -> Result<Self, RunError> {
        let reception = Reception::new(of, workers, attendant);
        let routed = exchange.route(of, Arc::clone(&reception))?;
        Ok(Self { reception, address: exchange.address().clone(), _door: Door::Shared { _routed: routed } })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }
}
