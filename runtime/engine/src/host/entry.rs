//! Entry of a process as a host: it dials the coordinator, loads its models beforehand if that is wanted, and waits
//! until its run begins. A host with loaded models survives the loss of its coordinator meanwhile: they are not
//! loaded twice.
use super::PreparedModels;
use super::coordinator_address::CoordinatorAddress;
use super::coordinator_sender::say;
use super::orders::HostPlan;
use super::process::{JOINING, LOOKING, hear};
use crate::clock::{Clock, ClockError, Nanoseconds, SharedClock, WallClock};
use crate::failure::RunError;
use crate::graph::{Graph, MetricsTable, Program};
use crate::protocol::{Beginning, Hello, Notice, Order};
use std::sync::Arc;
use std::time::Duration;
use tidemill_link::remote::{Address, Greeting, MessageReader, MessageWriter, Security, dial_to};

/// A process that joins as a host.
pub(super) struct Entry<'a> {
    pub(super) program: &'a Program,
    pub(super) graph: &'a Graph,
    pub(super) metrics: &'a MetricsTable,
    pub(super) name: &'a str,
    pub(super) coordinator: &'a CoordinatorAddress,
    pub(super) security: &'a Security,
    /// The required identity of the coordinator's certificate.
    pub(super) coordinator_identity: Option<&'a str>,
    pub(super) greeting: &'a Greeting,
    /// Its address for other hosts.
    pub(super) address: Option<&'a Address>,
    /// Time that it looks for another coordinator once its models are loaded.
    pub(super) patience: Duration,
    pub(super) clock_error: ClockError,
}

/// A host whose run begins.
pub(super) struct Entered {
    pub(super) writer: MessageWriter,
    pub(super) reader: MessageReader,
    pub(super) beginning: Beginning,
    /// Without the time of the run yet.
    pub(super) clock: Arc<SharedClock>,
    pub(super) prepared: Option<PreparedModels>,
}

/// Dilation of a run in real time.
const REAL_TIME: f64 = 1.0;

impl Entry<'_> {
    /// Joins and waits for the run; none: the host is not needed.
    pub(super) fn enter(&self) -> Result<Option<Entered>, RunError> {
        let unreachable =
            |error| RunError::System(format!("the coordinator at {}: {error}", self.coordinator.address()));
        let (mut writer, mut reader) = self.dial().map_err(unreachable)?;
        say(&writer, &self.hello())?;
        let mut loaded = None;
        let known = HostPlan::of(self.graph, self.name);
        loop {
            match hear(&mut reader, &known) {
                Ok(Order::Begin(beginning)) => {
                    // Models that were loaded for real time measure in real time.
                    let loaded = loaded.filter(|_| beginning.dilation == REAL_TIME);
                    let (prepared, clock) = loaded.unzip();
                    let clock = clock.unwrap_or_else(|| Arc::new(self.clock(beginning.dilation)));
                    return Ok(Some(Entered { writer, reader, beginning: *beginning, clock, prepared }));
                }
                Ok(Order::Prepare) => {
                    if loaded.is_none() {
                        match self.load() {
                            Ok(models) => loaded = Some(models),
                            Err(error) => {
                                say(&writer, &Notice::Prepared(Err(error.clone())))?;
                                return Err(error);
                            }
                        }
                    }
                    if let Err(error) = say(&writer, &Notice::Prepared(Ok(()))) {
                        tracing::debug!("{error}"); // found by who hears
                    }
                }
                Ok(Order::Leave) => return Ok(None),
                Ok(_) => {}
                Err(error) if loaded.is_some() => (writer, reader) = self.again(error)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Joins only to report why it cannot take part. Returns when the coordinator has read that, or when there is
    /// none.
    pub(super) fn decline(&self, why: &RunError) -> Result<(), RunError> {
        let (writer, mut reader) = self.dial().map_err(RunError::System)?;
        say(&writer, &self.hello())?;
        let known = HostPlan::of(self.graph, self.name);
        loop {
            match hear(&mut reader, &known)? {
                Order::Begin(_) => say(&writer, &Notice::Opened(Err(why.clone())))?,
                Order::Prepare => say(&writer, &Notice::Prepared(Err(why.clone())))?,
                Order::Leave => return Ok(()),
                _ => {}
            }
        }
    }

    fn dial(&self) -> Result<(MessageWriter, MessageReader), String> {
        let address = self.coordinator.address();
        let dialled = dial_to(&address, self.security, self.greeting, JOINING, self.coordinator_identity);
        let connection = dialled.map_err(|error| error.to_string())?;
        let (writer, reader) = connection.into_messages().map_err(|error| error.to_string())?;
        // If the coordinator is elsewhere meanwhile, the first message finds the connection ended.
        self.coordinator.connected(&address, &writer);
        Ok((writer, reader))
    }

    fn clock(&self, dilation: f64) -> SharedClock {
        SharedClock::new(WallClock::wrong(self.clock_error), dilation)
    }

    fn hello(&self) -> Notice {
        Notice::Hello(Hello { graph: self.graph.digest(), address: self.address.cloned(), standing: None })
    }

    fn load(&self) -> Result<(PreparedModels, Arc<SharedClock>), RunError> {
        let shared = Arc::new(self.clock(REAL_TIME));
        let clock = Arc::clone(&shared) as Arc<dyn Clock>;
        let models = PreparedModels::load(self.program, self.graph, self.name, self.metrics, &clock)?;
        Ok((models, shared))
    }

    /// Looks for another coordinator when the one that had the models loaded is gone.
    fn again(&self, why: RunError) -> Result<(MessageWriter, MessageReader), RunError> {
        let clock = WallClock::new();
        let patience = self.patience.as_nanos() as Nanoseconds;
        while clock.now() < patience {
            match self.dial() {
                Ok((writer, reader)) => {
                    if say(&writer, &self.hello()).is_ok() {
                        return Ok((writer, reader));
                    }
                }
                Err(error) => tracing::debug!("there is no coordinator yet: {error}"),
            }
            std::thread::sleep(LOOKING);
        }
        Err(why)
    }
}
