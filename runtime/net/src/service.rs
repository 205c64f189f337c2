//! The service of a host: one thread that moves frames, and two for each connection of a program or a person.
use crate::keeping;
use crate::legs::{Dialled, Legs};
use crate::protocol::{Answer, Request};
use crate::switchboard::{Own, Switchboard};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;
use tidemill_link::remote::{
    Address, Connection, Greeting, Incoming, Listener, MessageReader, MessageWriter, Purpose, RemoteError,
    Security, Serving,
};
use tidemill_link::wake::Waker;

/// Token of the waker in epoll; those of channels are higher.
const OWN: u64 = 0;
/// Answers that wait for a program that does not read them.
const ANSWERS: usize = 256;
/// Bytes of a request.
const MOST: usize = 16 << 20;
/// Timeout of one try to reach another host.
const DIALING: std::time::Duration = std::time::Duration::from_secs(3);
/// The name that the service greets with.
const NAME: &str = "net";

/// How a service is made.
pub struct Options {
    /// The file of its socket, for programs and people of this host.
    pub socket: PathBuf,
    /// A folder for its files.
    pub folder: PathBuf,
    /// Where it listens for other hosts; none: it dials them, or joins programs of this host only.
    pub public: Option<Address>,
    /// How it and other hosts prove who they are.
    pub security: Security,
    /// Replaces the program that serves, where something can.
    pub on_upgrade: Option<OnUpgrade>,
    /// Called if the thread of the service panics: nothing is served after that.
    pub on_panic: Option<fn()>,
}

/// Calls a function if its thread panics.
struct OnPanic(Option<fn()>);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if let Some(call) = self.0.filter(|_| std::thread::panicking()) {
            call();
        }
    }
}

/// Replaces the program that serves.
pub type OnUpgrade = Arc<dyn Fn(Upgrade) + Send + Sync>;

/// A request for another version.
pub struct Upgrade {
    /// The path of its program.
    pub program: PathBuf,
    answers: Sender<Answer>,
}

impl Upgrade {
    /// Answers the person who asked: it is done, or why not.
    pub fn answer(self, problem: Option<String>) {
        // A person who is gone gets none.
        let _ = self.answers.try_send(problem.map_or(Answer::Done, Answer::Refused));
    }
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An address cannot be listened on.
    #[error("{0}: {1}")]
    Listen(String, RemoteError),
    /// The system has no thread or descriptor.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Policies of the service before cannot be read.
    #[error("{0}")]
    Kept(String),
}

/// An event for the thread of the service.
enum Event {
    Incoming(Box<Incoming>, Option<u32>),
    Asked { connection: u64, of: (u32, u128), request: Box<Request>, answers: Sender<Answer> },
    Gone(u64),
    Dialled(Box<Dialled>),
    Called(Box<crate::rpc::Dialled>),
}

/// A service that runs. It ends when this is dropped: channels through it wait for the next one.
pub struct Service {
    address: Address,
    public: Option<Address>,
    serving: Vec<Serving>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    /// Connections of programs.
    talks: Talks,
    programs: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// Connections of programs, by number, so that their programs learn when the service ends.
type Talks = Arc<Mutex<HashMap<u64, MessageWriter>>>;

impl Service {
    /// Starts a service.
    ///
    /// # Errors
    /// Its socket or address is taken, or the policies that it kept cannot be read.
    #[expect(clippy::disallowed_methods, reason = "policies work in real time")]
    pub fn start(options: Options) -> Result<Self, ServiceError> {
        let Options { socket, folder, public, security, on_upgrade, on_panic } = options;
        let address = Address::new("unix", socket.display().to_string());
        let kept = keeping::read(&folder).map_err(ServiceError::Kept)?;
        let (events, received) = unbounded();
        let (waker, stop) = (Arc::new(Waker::new()?), Arc::new(AtomicBool::new(false)));
        let post = {
            let waker = Arc::clone(&waker);
            move |event: Event| {
                let _ = events.send(event);
                waker.wake();
            }
        };
        let post: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(post);
        let mut serving = Vec::new();
        let mut reached = None;
        if let Some(place) = public {
            let failed = |error| ServiceError::Listen(place.to_string(), error);
            let listener = Listener::bind(&place, &security).map_err(failed)?;
            reached = Some(listener.address().clone());
            let post = Arc::clone(&post);
            let incoming = move |incoming| post(Event::Incoming(Box::new(incoming), None));
            serving.push(listener.serve(incoming).map_err(failed)?);
        }
        let failed = |error| ServiceError::Listen(address.to_string(), error);
        let listener = Listener::bind(&address, &Security::none()).map_err(failed)?;
        open_to_all(&socket)?;
        let talks = Talks::default();
        serving.push(listener.serve(local(Arc::clone(&post), Arc::clone(&talks))).map_err(failed)?);
        let programs = Arc::new(AtomicUsize::new(0));
        let tell = Arc::clone(&post);
        let calls_security = security.clone();
        let legs = Legs::new(security, Arc::new(move |dialled| tell(Event::Dialled(Box::new(dialled)))));
        let own = (folder, reached.clone(), kept, socket.clone());
        let dial = dial_for_calls(calls_security, Arc::clone(&post));
        let thread = {
            let (waker, stop) = (Arc::clone(&waker), Arc::clone(&stop));
            let programs = Arc::clone(&programs);
            let (ready, is_ready) = bounded(1);
            let work = move || {
                let _on_panic = OnPanic(on_panic);
                let (folder, public, kept, socket) = own;
                let user = rustix::process::geteuid().as_raw();
                let own = Own { user, folder, public, started: Instant::now() };
                match Work::new(own, (legs, &socket, dial), (received, waker, stop), (on_upgrade, programs)) {
                    Ok(mut work) => {
                        work.board.restore(kept);
                        let _ = ready.send(Ok(()));
                        work.run();
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            };
            let thread = Builder::new().name("tm-net".into()).spawn(work)?;
            is_ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
            thread
        };
        Ok(Self { address, public: reached, serving, stop, waker, talks, programs, thread: Some(thread) })
    }

    /// Where programs of this host reach it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Where other hosts reach it.
    pub fn public(&self) -> Option<&Address> {
        self.public.as_ref()
    }

    /// Returns the number of programs that are registered.
    pub fn programs(&self) -> usize {
        self.programs.load(Ordering::Acquire)
    }

    /// Returns whether it works.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.clear();
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported by the hook.
            let _ = thread.join();
        }
        for (_, talk) in self.talks.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            talk.close();
        }
    }
}

/// Dials the services of other hosts for calls, each time on a thread of its own.
fn dial_for_calls(security: Security, post: Arc<dyn Fn(Event) + Send + Sync>) -> crate::rpc::Dial {
    Arc::new(move |lane, at, address: Address| {
        let (security, tell) = (security.clone(), Arc::clone(&post));
        let work = move || {
            let purpose = Purpose::Calls { host: NAME.into() };
            let greeting = Greeting { run: 0, plan_version: 0, purpose };
            let outcome = tidemill_link::remote::dial(&address, &security, &greeting, DIALING);
            tell(Event::Called(Box::new(crate::rpc::Dialled { lane, at, outcome })));
        };
        if let Err(error) = Builder::new().name("tm-net-dial".into()).spawn(work) {
            let outcome = Err(RemoteError::Io(error));
            post(Event::Called(Box::new(crate::rpc::Dialled { lane, at, outcome })));
        }
    })
}

/// All users may connect: what each of them may do depends on who it is.
pub(crate) fn open_to_all(socket: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))
}

/// Takes connections of programs and people of this host.
fn local(post: Arc<dyn Fn(Event) + Send + Sync>, talks: Talks) -> impl Fn(Incoming) + Send + Sync {
    let numbers = std::sync::atomic::AtomicU64::new(1);
    move |incoming| {
        let Some(user) = incoming.peer_user() else {
            return incoming.refuse("the system does not say which user this process is of");
        };
        match incoming.greeting.purpose {
            Purpose::Channel { .. } => post(Event::Incoming(Box::new(incoming), Some(user))),
            Purpose::Calls { .. } => incoming.refuse("programs of this host call by the other socket"),
            Purpose::Device { .. } => incoming.refuse("this is no device"),
            Purpose::Group { .. } => incoming.refuse("groups have a socket of their own"),
            Purpose::Control { .. } => {
                let own =
                    Greeting { purpose: Purpose::Control { host: NAME.into() }, ..incoming.greeting.clone() };
                let of = (user, incoming.greeting.run);
                let connection = numbers.fetch_add(1, Ordering::Relaxed);
                match incoming.accept(&own) {
                    Ok(talk) => converse(talk, connection, of, Arc::clone(&post), Arc::clone(&talks)),
                    Err(error) => tracing::debug!("a program was lost at once: {error}"),
                }
            }
        }
    }
}

/// Reads requests and writes answers, each on a thread of its own.
fn converse(
    talk: Connection,
    connection: u64,
    of: (u32, u128),
    post: Arc<dyn Fn(Event) + Send + Sync>,
    talks: Talks,
) {
    let Ok((writer, mut reader)) = talk.into_messages() else { return };
    let (answers, to_write) = bounded::<Answer>(ANSWERS);
    let of_program = writer.clone();
    let write = move || {
        for answer in to_write {
            let Ok(bytes) = serde_json::to_vec(&answer) else { break };
            if writer.send(&bytes).is_err() {
                break;
            }
        }
        writer.close();
    };
    let read = move || {
        while let Some(request) = next(&mut reader) {
            match request {
                Ok(request) => {
                    if let Request::Register(_) = request {
                        let mut talks = talks.lock().unwrap_or_else(PoisonError::into_inner);
                        talks.insert(connection, of_program.clone());
                    }
                    let (request, answers) = (Box::new(request), answers.clone());
                    post(Event::Asked { connection, of, request, answers });
                }
                Err(error) => {
                    if answers.try_send(Answer::Refused(error)).is_err() {
                        break;
                    }
                }
            }
        }
        talks.lock().unwrap_or_else(PoisonError::into_inner).remove(&connection);
        post(Event::Gone(connection));
    };
    let started = Builder::new().name("tm-net-answer".into()).spawn(write);
    // Without a thread the connection closes.
    let _ = started.and_then(|_| Builder::new().name("tm-net-ask".into()).spawn(read));
}

/// The next request; none at the end.
fn next(reader: &mut MessageReader) -> Option<Result<Request, String>> {
    let bytes = reader.receive().ok()?;
    if bytes.len() > MOST {
        return None;
    }
    Some(serde_json::from_slice(&bytes).map_err(|error| format!("this is no request: {error}")))
}

/// The thread of the service.
struct Work {
    board: Switchboard,
    epoll: std::os::fd::OwnedFd,
    events: Receiver<Event>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    folder: PathBuf,
    on_upgrade: Option<OnUpgrade>,
    programs: Arc<AtomicUsize>,
}

#[expect(clippy::disallowed_methods, reason = "policies work in real time")]
fn now() -> Instant {
    Instant::now()
}

impl Work {
    fn new(
        own: Own,
        (legs, socket, dial): (Legs, &std::path::Path, crate::rpc::Dial),
        (events, waker, stop): (Receiver<Event>, Arc<Waker>, Arc<AtomicBool>),
        (on_upgrade, programs): (Option<OnUpgrade>, Arc<AtomicUsize>),
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, waker.as_fd(), epoll::EventData::new_u64(OWN), flags)?;
        let folder = own.folder.clone();
        let calls = crate::rpc::Calls::new(epoll.try_clone()?, (own.user, own.started), socket, dial)?;
        let board = Switchboard::new(own, epoll.try_clone()?, legs, calls);
        Ok(Self { board, epoll, events, waker, stop, folder, on_upgrade, programs })
    }

    fn run(&mut self) {
        let mut ready = Vec::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            self.waker.clear();
            while let Ok(event) = self.events.try_recv() {
                self.follow(event);
            }
            self.programs.store(self.board.programs(), Ordering::Release);
            let timeout = self.board.look(now());
            ready.clear();
            let timeout = timeout.map(|time| Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(time.subsec_nanos()),
            });
            let now_only = Timespec { tv_sec: 0, tv_nsec: 0 };
            let wait = match timeout {
                // `epoll_wait` rounds up to milliseconds, and `ppoll` does not. Ended early by a signal, it is looked at again.
                Some(timeout) => {
                    let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
                    Some(&now_only)
                }
                None => None,
            };
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), wait);
            let now = now();
            for event in &ready {
                let token = event.data.u64();
                if token != OWN {
                    let over = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                    let flags = event.flags;
                    self.board.ready(token, flags.intersects(over), now);
                }
            }
        }
    }

    fn follow(&mut self, event: Event) {
        let now = now();
        match event {
            Event::Incoming(incoming, user) => self.board.incoming(*incoming, user, now),
            Event::Dialled(dialled) => self.board.dialled(dialled.0, dialled.1, now),
            Event::Called(dialled) => self.board.calls.dialled(*dialled, now),
            Event::Gone(connection) => self.board.gone(connection, now),
            Event::Asked { connection, of: (user, run), request, answers } => {
                let answer = match *request {
                    Request::Register(program) => {
                        match self.board.register(connection, (user, run), *program, answers.clone(), now) {
                            // The routes are the answer.
                            Ok(()) => return,
                            Err(error) => Answer::Refused(error),
                        }
                    }
                    Request::Peers(peers) => return self.board.peers(connection, peers),
                    Request::Counts(counts) => Answer::Rejected(self.board.counts(connection, counts)),
                    Request::List => Answer::Listing(Box::new(self.board.list(user, now))),
                    Request::Attach(spec) => self.changed(|board| board.attach(*spec, user, now)),
                    Request::Set { id, options } => self.changed(|board| board.set(&id, options, user, now)),
                    Request::Detach { id } => self.changed(|board| board.detach(&id, user, now)),
                    Request::Upgrade { .. } if !self.board.is_trusted(user) => {
                        Answer::Refused("only the user of the service or root upgrades it".into())
                    }
                    Request::Upgrade { program } => match &self.on_upgrade {
                        Some(upgrade) => return upgrade(Upgrade { program, answers }),
                        None => Answer::Refused("this service is part of a run, and ends with it".into()),
                    },
                };
                // One that does not read its answers gets none.
                let _ = answers.try_send(answer);
            }
        }
    }

    /// Changes policies, and keeps those that users attached.
    fn changed(&mut self, change: impl FnOnce(&mut Switchboard) -> Result<(), String>) -> Answer {
        let changed = change(&mut self.board).and_then(|()| keeping::write(&self.folder, &self.board.kept()));
        changed.map_or_else(Answer::Refused, |()| Answer::Done)
    }
}
