//! Ends of channels that wait for the other end.
use crate::switchboard::Key;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_link::link::LinkError;
use tidemill_link::remote::{
    Address, Connection, Greeting, Incoming, ParcelReceiver, ParcelSender, RemoteError, Role, Security,
    dial_to,
};

/// Time that an end waits for the other one. Programs wait 5 s for an answer, and dial again.
const PATIENCE: Duration = Duration::from_secs(4);
/// Timeout of one try to reach the other end.
const DIALING: Duration = Duration::from_secs(3);
/// Begins the reason of a refusal by a program whose channel goes through the service of its host: the address follows.
pub const MOVED: &str = "this channel is served at ";

/// An end of a channel.
pub(crate) enum Leg {
    /// It has greeted, and waits for an answer.
    Incoming(Box<Incoming>),
    /// It was dialled by the service.
    Dialled(Box<Connection>),
}

impl Leg {
    fn greeting(&self) -> &Greeting {
        match self {
            Self::Incoming(incoming) => &incoming.greeting,
            Self::Dialled(connection) => connection.peer(),
        }
    }

    fn connect(self, greeting: &Greeting) -> Result<Connection, RemoteError> {
        match self {
            Self::Incoming(incoming) => incoming.accept(greeting),
            Self::Dialled(connection) => Ok(*connection),
        }
    }
}

/// The other end of a channel that the service dials for an end here.
pub(crate) struct Dialling {
    pub(crate) key: Key,
    /// The role of the end here.
    pub(crate) role: Role,
    pub(crate) number: u64,
    /// Greeting of the end here.
    pub(crate) greeting: Greeting,
    pub(crate) address: Address,
    pub(crate) identity: Option<String>,
}

/// The outcome of dialling, for the thread of the service.
pub(crate) type Dialled = ((Key, Role, u64), Result<Connection, RemoteError>);

struct Waiting {
    leg: Leg,
    number: u64,
    since: Instant,
}

/// Both ends of a channel.
pub(crate) struct Both {
    sender: Leg,
    receiver: Leg,
}

impl Both {
    /// Greets each end in the name of the other one.
    pub(crate) fn connect(self) -> Result<(ParcelReceiver, ParcelSender), String> {
        let (of_sender, of_receiver) = (self.sender.greeting().clone(), self.receiver.greeting().clone());
        if of_sender.plan_version != of_receiver.plan_version {
            return Err("the ends work by different plans".to_owned());
        }
        let failed = |error: RemoteError| error.to_string();
        let sender = self.sender.connect(&of_receiver).map_err(failed)?;
        let receiver = self.receiver.connect(&of_sender).map_err(failed)?;
        let sink = receiver.into_parcel_sender().map_err(|error: LinkError| error.to_string())?;
        Ok((sender.into_parcel_receiver(), sink))
    }
}

/// Ends of channels that wait for the other end.
pub(crate) struct Legs {
    waiting: HashMap<(Key, Role), Waiting>,
    security: Security,
    tell: Arc<dyn Fn(Dialled) + Send + Sync>,
}

impl Legs {
    /// `tell` gets what was dialled, on any thread.
    pub(crate) fn new(security: Security, tell: Arc<dyn Fn(Dialled) + Send + Sync>) -> Self {
        Self { waiting: HashMap::new(), security, tell }
    }

    /// An end has come. It replaces one that waits.
    pub(crate) fn come(&mut self, key: Key, role: Role, leg: Leg, number: u64, now: Instant) {
        let waiting = Waiting { leg, number, since: now };
        if let Some(Waiting { leg: Leg::Incoming(before), .. }) = self.waiting.insert((key, role), waiting) {
            before.refuse("a newer one has come");
        }
    }

    fn has(&self, key: Key, role: Role) -> bool {
        self.waiting.contains_key(&(key, role))
    }

    /// Returns whether the end of this number still waits.
    pub(crate) fn is_current(&self, key: Key, role: Role, number: u64) -> bool {
        self.waiting.get(&(key, role)).is_some_and(|waiting| waiting.number == number)
    }

    /// Takes both ends, if they are there.
    pub(crate) fn take_both(&mut self, key: Key) -> Option<Both> {
        if !self.has(key, Role::Sender) || !self.has(key, Role::Receiver) {
            return None;
        }
        let sender = self.waiting.remove(&(key, Role::Sender))?.leg;
        let receiver = self.waiting.remove(&(key, Role::Receiver))?.leg;
        Some(Both { sender, receiver })
    }

    /// The ends that wait.
    pub(crate) fn waiting(&self) -> Vec<(Key, Role)> {
        self.waiting.keys().copied().collect()
    }

    /// Refuses an end that waits.
    pub(crate) fn refuse(&mut self, key: Key, role: Role, reason: &str) {
        if let Some(Waiting { leg: Leg::Incoming(incoming), .. }) = self.waiting.remove(&(key, role)) {
            incoming.refuse(reason);
        }
    }

    /// Refuses ends that have waited for too long. Returns when to look again.
    pub(crate) fn drop_old(&mut self, now: Instant) -> Option<Instant> {
        let is_old = |waiting: &Waiting| now.saturating_duration_since(waiting.since) >= PATIENCE;
        let old = self.waiting.iter().filter(|(_, of)| is_old(of)).map(|(end, _)| *end);
        for (key, role) in old.collect::<Vec<_>>() {
            self.refuse(key, role, "the other end has not come");
        }
        self.waiting.values().map(|waiting| waiting.since + PATIENCE).min()
    }

    /// Dials the other end on a thread of its own. If its host says that it is served elsewhere, it is dialled there.
    pub(crate) fn dial(&self, dialling: Dialling) {
        let Dialling { key, role, number, greeting, address, identity } = dialling;
        let (security, tell) = (self.security.clone(), Arc::clone(&self.tell));
        let work = move || {
            let dial =
                |address: &Address| dial_to(address, &security, &greeting, DIALING, identity.as_deref());
            let dialled = match dial(&address) {
                Err(RemoteError::Refused(reason)) if reason.starts_with(MOVED) => {
                    match reason[MOVED.len()..].parse::<Address>() {
                        Ok(moved) => dial(&moved),
                        Err(_) => Err(RemoteError::Refused(reason)),
                    }
                }
                dialled => dialled,
            };
            tell(((key, role, number), dialled));
        };
        if let Err(error) = std::thread::Builder::new().name("tm-net-dial".into()).spawn(work) {
            (self.tell)(((key, role, number), Err(RemoteError::Io(error))));
        }
    }
}
