//! The hosts of a plan that is to follow another one of the same run. They start and load their models while the old
//! plan runs, so that the change only has to open files and continue.
use super::event::Orders;
use super::hosts::{HostLauncher, Hosts, Listen, OpenReception, Ready};
use super::reception::{Attendant, Guest, PlanOfRun};
use super::workers::Workers;
use crate::failure::RunError;
use crate::graph::{Program, build_checked};
use crate::protocol::{Notice, Order};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::sync::Arc;
use std::time::Duration;
use tidemill_link::remote::{Address, MessageWriter};

/// Interval of checks of processes that have not joined.
const LOOK: Duration = Duration::from_millis(20);

/// Progress of a host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Away,
    Loading,
    Ready,
}

enum News {
    Joined { host: usize, orders: Orders, graph: u64, is_standing: bool },
    Prepared { host: usize, result: Result<(), RunError> },
    Lost { host: usize, why: String },
}

/// Passes on the notices of the hosts.
struct Waiting(Sender<News>);

impl Attendant for Waiting {
    fn joined(&self, host: usize, guest: &Guest) {
        let Guest { hello, .. } = guest;
        let (graph, is_standing) = (hello.graph, hello.standing.is_some());
        let _ = self.0.send(News::Joined { host, orders: guest.orders(), graph, is_standing });
    }

    fn heard(&self, host: usize, _: &MessageWriter, notice: Notice) {
        if let Notice::Prepared(result) = notice {
            let _ = self.0.send(News::Prepared { host, result });
        }
    }

    fn lost(&self, host: usize, _: u64, why: String) {
        let _ = self.0.send(News::Lost { host, why });
    }
}

/// See the module. If it is dropped before it is handed on, it ends its hosts.
pub struct Standby {
    names: Vec<String>,
    of: PlanOfRun,
    /// Digest of the graph, which the hosts must have computed, too.
    graph: u64,
    news: Receiver<News>,
    phases: Vec<Phase>,
    /// None once they are handed on.
    hosts: Option<(Box<dyn HostLauncher>, OpenReception)>,
}

impl Standby {
    /// Starts the processes of all workers of a plan, which load their models.
    ///
    /// # Errors
    /// The plan is not sound, or a process cannot be started.
    pub fn start(program: &Program, hosts: Hosts) -> Result<Self, RunError> {
        let graph = build_checked(program)?;
        let workers = Arc::new(Workers::of(program, &graph)?);
        let Hosts { launcher, run, plan_version, listen } = hosts;
        let of = PlanOfRun { run, plan_version };
        let (sender, news) = unbounded();
        let (open, _) = OpenReception::open(listen, of, &workers, Arc::new(Waiting(sender)))?;
        let address = open.address().clone();
        let phases = workers.names.iter().map(|_| Phase::Away).collect();
        let mut standby = Self {
            names: workers.names.clone(),
            of,
            graph: graph.digest(),
            news,
            phases,
            hosts: Some((launcher, open)),
        };
        standby.launch(&address)?;
        Ok(standby)
    }

    fn launch(&mut self, address: &Address) -> Result<(), RunError> {
        let Some((launcher, _)) = &mut self.hosts else { return Ok(()) };
        for name in &self.names {
            launcher.launch(name, address).map_err(|text| {
                RunError::System(format!("the process of worker '{name}' cannot be started: {text}"))
            })?;
        }
        Ok(())
    }

    /// Waits up to `timeout` until all hosts stand ready. Returns whether they do.
    ///
    /// # Errors
    /// A model cannot be loaded, or a process has ended. The hosts will not stand ready then.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<bool, RunError> {
        let mut left = timeout;
        loop {
            match self.news.recv_timeout(left.min(LOOK)) {
                Ok(news) => self.follow(news)?,
                Err(RecvTimeoutError::Timeout) => {
                    self.look_at_processes()?;
                    left = left.saturating_sub(LOOK);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RunError::System(
                        "the workers of the new plan have no coordinator any more".into(),
                    ));
                }
            }
            while let Ok(news) = self.news.try_recv() {
                self.follow(news)?;
            }
            let is_ready = self.phases.iter().all(|phase| *phase == Phase::Ready);
            if is_ready || left.is_zero() {
                return Ok(is_ready);
            }
        }
    }

    /// Returns the names of the hosts that do not stand ready.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.names.iter().zip(&self.phases).filter(|(_, phase)| **phase != Phase::Ready);
        missing.map(|(name, _)| name.clone()).collect()
    }

    fn follow(&mut self, news: News) -> Result<(), RunError> {
        match news {
            News::Joined { host, orders, graph, is_standing } => {
                if graph != self.graph {
                    return Err(RunError::Plan(format!(
                        "worker '{}' makes something else of the plan than its coordinator: both need the same version of \
                         this program",
                        self.names[host]
                    )));
                }
                if is_standing {
                    orders(Order::Leave);
                    return Ok(());
                }
                self.phases[host] = Phase::Loading;
                orders(Order::Prepare);
                Ok(())
            }
            News::Prepared { host, result } => {
                let told = |error: RunError| format!("worker '{}' is not ready: {error}", self.names[host]);
                result.map_err(|error| RunError::System(told(error)))?;
                self.phases[host] = Phase::Ready;
                Ok(())
            }
            News::Lost { host, why } => Err(self.lost(host, &why)),
        }
    }

    fn lost(&mut self, host: usize, why: &str) -> RunError {
        let name = &self.names[host];
        let fate = self.hosts.as_mut().and_then(|(launcher, _)| launcher.fate(name));
        let fate = fate.unwrap_or_else(|| format!("is lost ({why})"));
        RunError::System(format!("the process of worker '{name}' {fate}"))
    }

    fn look_at_processes(&mut self) -> Result<(), RunError> {
        let Some((launcher, _)) = &mut self.hosts else { return Ok(()) };
        let ended = launcher.ended();
        let ended = self.names.iter().position(|name| ended.contains(name));
        ended.map_or(Ok(()), |host| Err(self.lost(host, "it had not joined")))
    }

    /// Returns the hosts for the run of their plan, which begins with their present state. From now on the run
    /// restarts lost ones.
    ///
    /// # Errors
    /// They are handed on already.
    pub fn into_hosts(mut self) -> Result<Hosts, RunError> {
        let Some((launcher, open)) = self.hosts.take() else {
            return Err(RunError::System("the workers that stood ready are handed on already".into()));
        };
        let PlanOfRun { run, plan_version } = self.of;
        Ok(Hosts { launcher, run, plan_version, listen: Listen::Ready(Ready(open)) })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        if let Some((mut launcher, open)) = self.hosts.take() {
            open.reception.attend(Arc::new(Dismissal));
            drop(open);
            launcher.end();
        }
    }
}

/// Dismisses all hosts, also those that join later.
struct Dismissal;

impl Attendant for Dismissal {
    fn joined(&self, _: usize, guest: &Guest) {
        (guest.orders())(Order::Leave);
    }

    fn heard(&self, _: usize, _: &MessageWriter, _: Notice) {}

    fn lost(&self, _: usize, _: u64, _: String) {}
}
