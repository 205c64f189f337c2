//! Connections of services with each other: they listen, and register at the one that introduces ranks.
use super::group::Event as GroupEvent;
use super::hints::Reports;
use super::outbox::converse;
use super::{Event, Handles, OnIncoming, Options, locked};
use crate::peers::{FromConductor, Key, ToConductor};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, select};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tidemill_link::remote::{
    Address, Connection, Greeting, GroupLane, Incoming, Listener, Purpose, RemoteError, Serving,
};

/// Pause before the conductor is dialled again, and before it is listened again.
const PAUSE: Duration = Duration::from_millis(200);

/// Services that are registered at a time.
const MOST_SERVICES: usize = 1024;

/// Disconnected when the service ends.
type Stop = Receiver<()>;

/// Waits before the next attempt. False: the service ends.
fn pauses(stop: &Stop) -> bool {
    stop.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout)
}

/// Takes connections of other hosts.
pub(super) fn incoming(
    events: Sender<Event>,
    handles: Handles,
    conductor: Option<Address>,
    reports: Option<Reports>,
) -> OnIncoming {
    // The first is that of this service with itself.
    let links = AtomicU64::new(1);
    let count = Arc::new(AtomicUsize::new(0));
    Arc::new(move |incoming: Incoming| {
        let Purpose::Group { group, lane, .. } = incoming.greeting.purpose.clone() else {
            return incoming.refuse("only services of groups connect here");
        };
        if lane == GroupLane::Registration {
            return match &conductor {
                Some(other) => {
                    incoming
                        .refuse(&format!("this service does not introduce ranks, the one at {other} does"));
                }
                None => match Place::of(&count) {
                    Some(place) => register(incoming, links.fetch_add(1, Ordering::Relaxed), &events, place),
                    None => {
                        incoming.refuse(&format!("{MOST_SERVICES} services are registered, no more can be"))
                    }
                },
            };
        }
        if group.is_empty() && lane == GroupLane::Control {
            return match &reports {
                Some(reports) => reports.take(incoming),
                None => incoming.refuse("this service takes no reports of other hosts"),
            };
        }
        let key = group
            .split_once('/')
            .and_then(|(user, name)| Some(Key { user: user.parse().ok()?, name: name.to_owned() }));
        let handle = key.and_then(|key| locked(&handles).get(&key).cloned());
        match handle {
            Some(handle) => handle.post(GroupEvent::Incoming(Box::new(incoming))),
            None => incoming.refuse("there is no such group here"),
        }
    })
}

/// The place of a service among those that are registered.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn of(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |count| (count < MOST_SERVICES).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn greeting(host: &str) -> Greeting {
    let lane = GroupLane::Registration;
    let purpose = Purpose::Group { host: host.to_owned(), group: String::new(), lane };
    Greeting { run: 0, plan_version: 0, purpose }
}

/// A service registers here.
fn register(incoming: Incoming, link: u64, events: &Sender<Event>, place: Place) {
    let connection = match incoming.accept(&greeting("")) {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!("a service was lost at once: {error}"),
    };
    // Its messages come after this one.
    let (told, tells) = crossbeam_channel::bounded::<()>(1);
    let tell = events.clone();
    let heard = move |message: Option<ToConductor>| {
        let _until_the_end = &place;
        let _ = tells.recv();
        let _ = tell.send(Event::OfService { link, message });
    };
    match converse(connection, heard) {
        Ok(outbox) => drop(events.send(Event::Registered { link, outbox })),
        Err(error) => tracing::error!("a service cannot register: {error}"),
    }
    drop(told);
}

/// A value that is known later.
pub(super) type Known<T> = Arc<Mutex<Option<T>>>;

/// Listens for other hosts, now or when the version before does not any more. Returns the thread that tries it.
pub(super) fn listen(
    options: &Options,
    incoming: OnIncoming,
    (address, serving): (&Known<Address>, &Known<Serving>),
    (stop, events): (&Stop, &Sender<Event>),
) -> Result<Option<JoinHandle<()>>, (Address, RemoteError)> {
    let Some(place) = options.listen.clone() else { return Ok(None) };
    let security = options.security.clone();
    let (address, serving) = (Arc::clone(address), Arc::clone(serving));
    let at = place.clone();
    let open = move || -> Result<(), RemoteError> {
        let listener = Listener::bind(&place, &security)?;
        let own = listener.address().clone();
        let incoming = Arc::clone(&incoming);
        *locked(&serving) = Some(listener.serve(move |connection| incoming(connection))?);
        *locked(&address) = Some(own);
        Ok(())
    };
    match open() {
        Ok(()) => Ok(None),
        Err(RemoteError::Io(error)) if options.listen_later && error.kind() == io::ErrorKind::AddrInUse => {
            let (stop, events) = (stop.clone(), events.clone());
            let wait = move || {
                while pauses(&stop) {
                    if open().is_ok() {
                        let _ = events.send(Event::Listens);
                        return;
                    }
                }
            };
            let thread = Builder::new().name("tm-group-listen".into()).spawn(wait);
            thread.map(Some).map_err(|error| (at, RemoteError::Io(error)))
        }
        Err(error) => Err((at, error)),
    }
}

/// Keeps a connection with the conductor.
pub(super) fn follow(
    conductor: Address,
    options: &Options,
    events: Sender<Event>,
    told: (Stop, Known<String>),
) -> io::Result<JoinHandle<()>> {
    let (security, host, at) = (options.security.clone(), options.host.name.clone(), conductor.clone());
    let dial = move || super::dialing::dial(&at, &security, &greeting(&host), None);
    keep(dial, conductor, events, told)
}

/// Dials on a thread of its own: what never answers is waited for there, and not by a service that ends. None: it ends.
fn dialled(
    dial: &Arc<impl Fn() -> Result<Connection, RemoteError> + Send + Sync + 'static>,
    stop: &Stop,
) -> Option<Result<Connection, RemoteError>> {
    let (tell, told) = crossbeam_channel::bounded(1);
    let dial = Arc::clone(dial);
    let work = move || drop(tell.send(dial()));
    if let Err(error) = Builder::new().name("tm-group-dial".into()).spawn(work) {
        return Some(Err(error.into()));
    }
    select! {
        recv(told) -> outcome => outcome.ok(),
        recv(stop) -> _ => None,
    }
}

/// Keeps a connection that is made by `dial`.
fn keep(
    dial: impl Fn() -> Result<Connection, RemoteError> + Send + Sync + 'static,
    conductor: Address,
    events: Sender<Event>,
    (stop, problem): (Stop, Known<String>),
) -> io::Result<JoinHandle<()>> {
    let dial = Arc::new(dial);
    let work = move || {
        let mut was_reached = true;
        // Why this service was turned away the last time: it is said once.
        let turned = Known::<String>::default();
        loop {
            let Some(outcome) = dialled(&dial, &stop) else { return };
            match outcome {
                Ok(connection) => {
                    was_reached = true;
                    let (ended, ends) = crossbeam_channel::bounded::<()>(1);
                    let (tell, why) = (events.clone(), Arc::clone(&problem));
                    let said = Arc::clone(&turned);
                    let heard = move |message: Option<FromConductor>| match message {
                        // Registered under the name of another one, it tries again.
                        Some(FromConductor::Turned { reason }) => {
                            *locked(&why) = Some(reason.clone());
                            let is_new = locked(&said).replace(reason.clone()).as_ref() != Some(&reason);
                            if is_new {
                                let _ = tell.send(Event::Heard(FromConductor::Turned { reason }));
                            }
                            let _ = ended.try_send(());
                        }
                        Some(message) => {
                            *locked(&said) = None;
                            let _ = tell.send(Event::Heard(message));
                        }
                        None => drop(ended.try_send(())),
                    };
                    if let Ok(outbox) = converse(connection, heard) {
                        *locked(&problem) = None;
                        let _ = events.send(Event::Conductor(Some(outbox)));
                        select! {
                            recv(ends) -> _ => {}
                            recv(stop) -> _ => {}
                        }
                        let _ = events.send(Event::Conductor(None));
                    }
                }
                Err(error) => {
                    *locked(&turned) = None;
                    let is_new = locked(&problem).replace(error.to_string()) != Some(error.to_string());
                    if is_new || was_reached {
                        tracing::warn!(
                            "the service at {conductor}, which introduces ranks, is not reached: {error}"
                        );
                    }
                    was_reached = false;
                }
            }
            if !pauses(&stop) {
                return;
            }
        }
    };
    Builder::new().name("tm-group-conduct".into()).spawn(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{bounded, unbounded};

    #[test]
    fn a_service_ends_while_what_it_dials_never_answers() {
        let (begins, begun) = bounded(0);
        let (answer, never) = bounded::<()>(0);
        let dial = move || {
            begins.send(()).unwrap();
            let _ = never.recv();
            Err(RemoteError::Timeout)
        };
        let (events, _received) = unbounded();
        let (stop, stopped) = bounded(0);
        let thread = keep(dial, Address::tcp("10.0.0.1:7470"), events, (stopped, Known::default())).unwrap();
        begun.recv().unwrap();
        drop(stop);
        thread.join().unwrap();
        // It is not answered before.
        drop(answer);
    }
}
