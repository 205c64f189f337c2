//! Accepts the connections of the hosts of one plan and passes their notices to the attendant: a standby while they
//! load their models, then the coordinator of the run. The hosts do not notice the change.
use super::event::Orders;
use super::workers::Workers;
use crate::protocol::{Hello, Notice, Order};
use crate::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tidemill_link::remote::{Greeting, Incoming, MessageReader, MessageWriter, Purpose};

/// The run and the plan that hosts must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlanOfRun {
    /// Secret number of the run.
    pub(crate) run: u128,
    /// Counts its plans.
    pub(crate) plan_version: u64,
}

/// Attends to hosts. Notices of one host come in order; `joined` and `lost` are called one at a time.
pub(super) trait Attendant: Send + Sync {
    /// A host has identified itself. Also called for each present host when the attendant takes over.
    fn joined(&self, host: usize, guest: &Guest);
    /// Any other notice of a host.
    fn heard(&self, host: usize, writer: &MessageWriter, notice: Notice);
    /// Its connection is gone.
    fn lost(&self, host: usize, process: u64, why: String);
}

/// A host that has identified itself.
#[derive(Clone)]
pub(super) struct Guest {
    /// Numbers the processes of one host from 1.
    pub(super) process: u64,
    pub(super) writer: MessageWriter,
    pub(super) hello: Hello,
    /// The identity of its certificate, if it has one.
    pub(super) identity: Option<String>,
}

impl Guest {
    /// Returns the sender of its orders.
    pub(super) fn orders(&self) -> Orders {
        let writer = self.writer.clone();
        Arc::new(move |order: Order| send(&writer, &order))
    }
}

/// Sends a host an order. The reader reports a host that cannot be reached.
pub(super) fn send(writer: &MessageWriter, order: &Order) {
    let sent = wire::encode(order).map(|bytes| writer.send(&bytes));
    if !matches!(sent, Ok(Ok(()))) {
        tracing::debug!("an order cannot be sent");
    }
}

#[derive(Default)]
struct Guests {
    present: BTreeMap<usize, Guest>,
    processes: BTreeMap<usize, u64>,
    /// By host and process, all that are connected, also those that have not identified themselves: the identity of
    /// their certificate.
    connected: BTreeMap<(usize, u64), (Option<String>, MessageWriter)>,
}

/// See the module.
pub(crate) struct Reception {
    /// The hosts, and their parts of the plan.
    pub(super) workers: Arc<Workers>,
    pub(super) of: PlanOfRun,
    guests: Mutex<Guests>,
    attendant: RwLock<Arc<dyn Attendant>>,
}

impl Reception {
    pub(super) fn new(of: PlanOfRun, workers: &Arc<Workers>, attendant: Arc<dyn Attendant>) -> Arc<Self> {
        let (guests, attendant) = (Mutex::default(), RwLock::new(attendant));
        Arc::new(Self { workers: Arc::clone(workers), of, guests, attendant })
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attendant(&self) -> Arc<dyn Attendant> {
        Arc::clone(&self.attendant.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the attendant of the hosts. Returns the hosts that are present.
    pub(super) fn attend(&self, attendant: Arc<dyn Attendant>) -> BTreeSet<usize> {
        let guests = self.guests();
        *self.attendant.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&attendant);
        guests.present.iter().for_each(|(host, guest)| attendant.joined(*host, guest));
        guests.present.keys().copied().collect()
    }

    fn joined(&self, host: usize, guest: Guest) {
        let mut guests = self.guests();
        guests.present.insert(host, guest.clone());
        self.attendant().joined(host, &guest);
    }

    fn lost(&self, host: usize, process: u64, why: String) {
        let mut guests = self.guests();
        guests.connected.remove(&(host, process));
        if guests.present.get(&host).is_some_and(|guest| guest.process == process) {
            guests.present.remove(&host);
        }
        self.attendant().lost(host, process, why);
    }

    /// Registers a process that has connected. Returns its number.
    fn connected(&self, host: usize, identity: Option<&str>, writer: &MessageWriter) -> u64 {
        let mut guests = self.guests();
        let process = guests.processes.entry(host).or_default();
        *process += 1;
        let process = *process;
        guests.connected.insert((host, process), (identity.map(str::to_owned), writer.clone()));
        process
    }

    /// Ends the connections of processes whose certificate has `identity`. Returns their number.
    pub(super) fn expel(&self, identity: &str) -> usize {
        let writers: Vec<MessageWriter> = {
            let guests = self.guests();
            let connected = guests.connected.values();
            let of_it = connected.filter(|(shown, _)| shown.as_deref() == Some(identity));
            of_it.map(|(_, writer)| writer.clone()).collect()
        };
        // The reader of the connection finds it ended and reports the loss.
        writers.iter().for_each(MessageWriter::close);
        writers.len()
    }
}

/// Accepts a process that has dialled.
pub(super) fn admit(reception: &Arc<Reception>, incoming: Incoming) {
    let Purpose::Control { host } = &incoming.greeting.purpose else {
        return incoming.refuse("this is a coordinator, not a host");
    };
    let PlanOfRun { run, plan_version } = reception.of;
    if incoming.greeting.run != run {
        return incoming.refuse("this coordinator has another run");
    }
    if incoming.greeting.plan_version != plan_version {
        let text = format!("this coordinator has plan {plan_version} of the run");
        return incoming.refuse(&text);
    }
    let Some(number) = reception.workers.names.iter().position(|name| name == host) else {
        let text = format!("the plan has no worker '{host}'");
        return incoming.refuse(&text);
    };
    let own = Greeting { run, ..incoming.greeting.clone() };
    let identity = incoming.peer_name();
    let Ok((writer, reader)) =
        incoming.accept(&own).map_err(drop).and_then(|c| c.into_messages().map_err(drop))
    else {
        return;
    };
    let reception = Arc::clone(reception);
    let listening = move || listen_to(&reception, (number, identity), &writer, reader);
    // Without a thread the connection is dropped, and the host finds that the coordinator is gone.
    let _ = std::thread::Builder::new().name("tm-notices".into()).spawn(listening);
}

fn listen_to(
    reception: &Reception,
    (host, identity): (usize, Option<String>),
    writer: &MessageWriter,
    mut reader: MessageReader,
) {
    let process = reception.connected(host, identity.as_deref(), writer);
    let why = loop {
        let notice = match reader.receive().map(|bytes| wire::decode(&bytes)) {
            Ok(Ok(notice)) => notice,
            Ok(Err(error)) => break error,
            Err(error) => break error.to_string(),
        };
        if let Err(text) = reception.workers.check(host, &notice) {
            let name = &reception.workers.names[host];
            tracing::error!(
                "ignoring worker '{name}' from now on, because its reports are impossible: {text}"
            );
            break text;
        }
        match notice {
            Notice::Hello(hello) => {
                let (writer, identity) = (writer.clone(), identity.clone());
                reception.joined(host, Guest { process, writer, hello, identity });
            }
            notice => {
                let hear = || reception.attendant().heard(host, writer, notice);
                // Otherwise no thread would read from this host any more, nor report its loss.
                if catch_unwind(AssertUnwindSafe(hear)).is_err() {
                    break "what it says cannot be taken in".to_owned();
                }
            }
        }
    };
    writer.close();
    reception.lost(host, process, why);
}
