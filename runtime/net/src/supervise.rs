//! The process that looks after that of the service: restarts it, and replaces it by another version.
//!
//! The service runs in a process of its own, its *child*. Both talk in lines of JSON over the child's standard input and output. An
//! upgrade starts the new version beside the old one, and moves the socket to it. The old one keeps standing by until the new
//! one has taken over all programs; if it does not, the old one serves again.
use crate::client::Client;
use crate::protocol::{Answer, Request};
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tidemill_link::remote::Address;
use tidemill_rpc::protocol::socket_of;

/// Time in which a child says that it serves.
const STARTING: Duration = Duration::from_secs(10);
/// Time in which a child lets go of its socket.
const RETIRING: Duration = Duration::from_secs(5);
/// Time in which a new version has to take over all programs, and for which it must not fail.
const PROBATION: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(8));
/// Interval of looks at a new version.
const LOOK: Duration = Duration::from_millis(200);
/// Pauses before a child that failed is started again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Time after which a child that served counts as one that works.
const SETTLED: Duration = Duration::from_secs(30);
/// Characters of a line.
const MOST: usize = 1 << 20;

/// A line to the child, beside its first one and news that the supervisor does not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToChild {
    /// Let go of the socket and of all channels, and stand by.
    Retire {},
    /// Serve again.
    Resume {},
    /// The outcome of an upgrade that was asked for: none, or why it failed.
    Upgraded(Option<String>),
}

/// A line of the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromChild {
    /// It serves.
    Ready {
        /// Where other hosts reach it.
        public: Option<Address>,
        /// Where services of other hosts reach it for groups.
        #[serde(default)]
        groups: Option<Address>,
        /// Its version.
        version: String,
    },
    /// It has let go of the socket. The number of programs that it had.
    Retired {
        /// Programs.
        programs: usize,
    },
    /// A person wants another version: the program that serves.
    Upgrade {
        /// Its path.
        program: PathBuf,
    },
    /// It cannot serve, and why.
    Failed(String),
}

/// How a service is run.
pub struct Supervision {
    /// The command that serves, which is given [`Supervision::task`] as its first line.
    pub command: Vec<String>,
    /// The first line for a child that serves at this socket.
    pub task: Box<dyn Fn(&Path) -> String + Send>,
    /// The socket.
    pub socket: PathBuf,
}

/// State of the service, for others.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Why it does not serve now.
    pub problem: Option<String>,
    /// Where other hosts reach it.
    pub public: Option<Address>,
    /// Where services of other hosts reach it for groups.
    pub groups: Option<Address>,
    /// Version and process that serve.
    pub serves: Option<(String, u32)>,
    /// How often it was started again after it failed.
    pub restarts: u64,
}

enum Event {
    Line(u64, FromChild),
    Ended(u64),
    News(String),
    Stop,
}

/// Looks after a service. It ends when this is dropped.
pub struct Supervisor {
    events: Sender<Event>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "processes live in real time")]
fn now() -> Instant {
    Instant::now()
}

impl Supervisor {
    /// Starts the service, and returns when it serves or has failed for the first time.
    ///
    /// # Errors
    /// It does not serve, and why; or the system has no thread.
    pub fn start(supervision: Supervision) -> io::Result<Self> {
        let (events, received) = unbounded();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut work = Work {
            supervision,
            events: events.clone(),
            received,
            seen: Arc::clone(&seen),
            child: None,
            next: 1,
        };
        let command = work.supervision.command.clone();
        let socket = work.supervision.socket.clone();
        let first = work.spawn(&command, &socket).and_then(|child| work.ready(child));
        work.child = Some(first.map_err(io::Error::other)?);
        let thread = Builder::new().name("tm-net-watch".into()).spawn(move || work.run())?;
        Ok(Self { events, seen, thread: Some(thread) })
    }

    /// Passes a line on to the child. A child that is started later learns it from its first line.
    pub fn news(&self, line: String) {
        let _ = self.events.send(Event::News(line));
    }

    /// Returns whether it works.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// The state of the service.
    pub fn seen(&self) -> Seen {
        locked(&self.seen).clone()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported by the hook.
            let _ = thread.join();
        }
    }
}

/// A process that serves. It is killed when this is dropped.
struct Serving {
    number: u64,
    process: Child,
    input: Option<ChildStdin>,
    since: Instant,
}

impl Serving {
    fn say(&mut self, line: &str) {
        if let Some(input) = &mut self.input
            && writeln!(input, "{line}").and_then(|()| input.flush()).is_err()
        {
            // Its end is reported by the thread that reads its output.
            self.input = None;
        }
    }

    fn tell(&mut self, line: &ToChild) {
        if let Ok(line) = serde_json::to_string(line) {
            self.say(&line);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The end of its input ends it in order.
        self.input = None;
        let until = now() + Duration::from_secs(2);
        while now() < until {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The thread of the supervisor.
struct Work {
    supervision: Supervision,
    events: Sender<Event>,
    received: Receiver<Event>,
    seen: Arc<Mutex<Seen>>,
    child: Option<Serving>,
    next: u64,
}

impl Work {
    fn spawn(&mut self, command: &[String], socket: &Path) -> Result<Serving, String> {
        let [program, arguments @ ..] = command else { return Err("no command is given".to_owned()) };
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"));
        let mut process = started?;
        let number = self.next;
        self.next += 1;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let mut serving = Serving { number, process, input, since: now() };
        let events = self.events.clone();
        let read = move || {
            let lines = output.into_iter().flat_map(|output| BufReader::with_capacity(MOST, output).lines());
            for line in lines.map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(line) => drop(events.send(Event::Line(number, line))),
                    Err(_) => {
                        tracing::warn!("the transport service says what it should not: {line:.200}");
                        break;
                    }
                }
            }
            let _ = events.send(Event::Ended(number));
        };
        Builder::new().name("tm-net-read".into()).spawn(read).map_err(|error| error.to_string())?;
        serving.say(&(self.supervision.task)(socket));
        Ok(serving)
    }

    /// Waits until a child serves.
    fn ready(&mut self, child: Serving) -> Result<Serving, String> {
        let ready = self.wait(child.number, STARTING, |line| match line {
            FromChild::Ready { public, groups, version } => Some(Ok((public, groups, version))),
            FromChild::Failed(reason) => Some(Err(reason)),
            _ => None,
        });
        let (public, groups, version) = ready.and_then(|ready| ready)?;
        let mut seen = locked(&self.seen);
        (seen.public, seen.groups, seen.problem) = (public, groups, None);
        seen.serves = Some((version, child.process.id()));
        drop(seen);
        Ok(child)
    }

    /// Waits for a line of a child. News are for it and later ones: both know them from their first lines or read them later.
    fn wait<T>(
        &mut self,
        number: u64,
        time: Duration,
        mut wanted: impl FnMut(FromChild) -> Option<T>,
    ) -> Result<T, String> {
        let until = now() + time;
        let mut later = Vec::new();
        let result = loop {
            match self.received.recv_timeout(until.saturating_duration_since(now())) {
                Ok(Event::Line(of, line)) if of == number => {
                    if let Some(found) = wanted(line) {
                        break Ok(found);
                    }
                }
                Ok(Event::Ended(of)) if of == number => break Err("it ended".to_owned()),
                Ok(event) => later.push(event),
                Err(_) => break Err(format!("it did not answer within {} s", time.as_secs())),
            }
        };
        later.into_iter().for_each(|event| drop(self.events.send(event)));
        result
    }

    fn run(mut self) {
        let mut failures = 0_u32;
        while let Ok(event) = self.received.recv() {
            match event {
                Event::Stop => break,
                Event::News(line) => self.child.iter_mut().for_each(|child| child.say(&line)),
                Event::Line(of, FromChild::Upgrade { program }) if self.is_current(of) => {
                    // The version that was replaced has answered before it ended.
                    if let Err(reason) = self.upgrade(&program) {
                        tracing::error!("the transport service stays as it is: {reason}");
                        let failed = ToChild::Upgraded(Some(reason));
                        self.child.iter_mut().for_each(|child| child.tell(&failed));
                    }
                }
                // It has changed how it takes part in groups.
                Event::Line(of, FromChild::Ready { groups, .. }) if self.is_current(of) => {
                    locked(&self.seen).groups = groups;
                }
                Event::Ended(of) if self.is_current(of) => {
                    let served = self.child.take().map(|child| now() - child.since).unwrap_or_default();
                    failures = if served >= SETTLED { 0 } else { failures.saturating_add(1) };
                    locked(&self.seen).problem = Some("it ended, and is started again".to_owned());
                    if !self.restart(&mut failures) {
                        break;
                    }
                }
                Event::Line(..) | Event::Ended(_) => {}
            }
        }
        self.child = None;
        remove(&self.supervision.socket);
    }

    fn is_current(&self, number: u64) -> bool {
        self.child.as_ref().is_some_and(|child| child.number == number)
    }

    /// Starts the service again, as often as it takes. Returns false when it is to stop.
    fn restart(&mut self, failures: &mut u32) -> bool {
        loop {
            // At once the first time: channels wait for it.
            if *failures > 1 {
                let pause = PAUSES.0.saturating_mul(1 << (*failures).min(10)).min(PAUSES.1);
                let until = now() + pause;
                while let Ok(event) = self.received.recv_timeout(until.saturating_duration_since(now())) {
                    if let Event::Stop = event {
                        return false;
                    }
                }
            }
            locked(&self.seen).restarts += 1;
            let (command, socket) = (self.supervision.command.clone(), self.supervision.socket.clone());
            match self.spawn(&command, &socket).and_then(|child| self.ready(child)) {
                Ok(child) => {
                    tracing::warn!("the transport service was started again");
                    self.child = Some(child);
                    return true;
                }
                Err(reason) => {
                    tracing::error!("the transport service cannot be started again: {reason}");
                    locked(&self.seen).problem = Some(reason);
                    *failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Replaces the version that serves by another one, or has the present one serve again.
    fn upgrade(&mut self, program: &Path) -> Result<(), String> {
        let Some(mut old) = self.child.take() else { return Err("nothing serves now".to_owned()) };
        let before = self.seen_before();
        let mut command = self.supervision.command.clone();
        if let Some(first) = command.first_mut() {
            *first = program.display().to_string();
        }
        let beside = beside(&self.supervision.socket);
        let started = self.spawn(&command, &beside).and_then(|child| self.ready(child));
        let new = match started {
            Ok(new) => new,
            Err(reason) => {
                remove(&beside);
                self.child = Some(old);
                *locked(&self.seen) = before;
                return Err(format!("{} does not serve: {reason}", program.display()));
            }
        };
        old.tell(&ToChild::Retire {});
        let retired = self.wait(old.number, RETIRING, |line| match line {
            FromChild::Retired { programs } => Some(programs),
            _ => None,
        });
        let moved = retired.and_then(|programs| {
            let of_calls = (socket_of(&beside), socket_of(&self.supervision.socket));
            std::fs::rename(of_calls.0, of_calls.1).map_err(|error| error.to_string())?;
            let of_groups = (groups_of(&beside), groups_of(&self.supervision.socket));
            if of_groups.0.exists() {
                std::fs::rename(of_groups.0, of_groups.1).map_err(|error| error.to_string())?;
            }
            std::fs::rename(&beside, &self.supervision.socket).map_err(|error| error.to_string())?;
            self.takes_over(&new, programs)
        });
        match moved {
            Ok(()) => {
                old.tell(&ToChild::Upgraded(None));
                self.supervision.command = command;
                self.child = Some(new);
                // Its answer leaves before its input ends.
                std::thread::sleep(LOOK);
                drop(old);
                Ok(())
            }
            Err(reason) => {
                drop(new);
                remove(&beside);
                remove(&self.supervision.socket);
                old.tell(&ToChild::Resume {});
                let serves = self.ready(old);
                let reason = format!("{} was tried, and did not take over: {reason}", program.display());
                match serves {
                    Ok(old) => self.child = Some(old),
                    // Its end is an event that starts it again.
                    Err(error) => {
                        let mut failures = 0;
                        self.restart(&mut failures);
                        return Err(format!("{reason}; the version before had to be started again: {error}"));
                    }
                }
                Err(reason)
            }
        }
    }

    fn seen_before(&self) -> Seen {
        locked(&self.seen).clone()
    }

    /// Waits until a new version has all programs of the one before, and looks whether it stays.
    fn takes_over(&mut self, new: &Serving, programs: usize) -> Result<(), String> {
        let begun = now();
        let mut has = Err("nobody could ask it".to_owned());
        loop {
            let ended = self.wait(new.number, LOOK, |line| match line {
                FromChild::Failed(reason) => Some(reason),
                _ => None,
            });
            match ended {
                Ok(reason) => return Err(reason),
                Err(reason) if reason == "it ended" => return Err(reason),
                Err(_) => {}
            }
            has = count(&self.supervision.socket).map_err(|error| format!("{error}; before: {has:?}"));
            let time = now() - begun;
            match has {
                Ok(count) if count >= programs && time >= PROBATION.0 => return Ok(()),
                Ok(count) if time >= PROBATION.1 => {
                    return Err(format!("{count} of {programs} programs have registered with it"));
                }
                Err(reason) if time >= PROBATION.1 => return Err(reason),
                _ => {}
            }
        }
    }
}

/// The socket of groups of a service, beside its own: `tidemill_collective` has it there.
fn groups_of(socket: &Path) -> PathBuf {
    socket.with_extension("groups")
}

/// Removes the sockets of a version that serves no more, where it has not done so itself.
fn remove(socket: &Path) {
    for socket in [socket, &socket_of(socket), &groups_of(socket)] {
        let _ = std::fs::remove_file(socket);
    }
}

/// Returns whether a socket is that of a version that is not in charge yet.
pub fn is_beside(socket: &Path) -> bool {
    socket.extension().is_some_and(|extension| extension == "next")
}

/// The socket of a version that is not in charge yet.
fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".next");
    path.into()
}

/// Programs that are registered at a service.
fn count(socket: &Path) -> Result<usize, String> {
    let asked = Client::connect(socket, 0).and_then(|mut client| client.ask(&Request::List));
    match asked.map_err(|error| error.to_string())? {
        Answer::Listing(listing) => Ok(listing.programs),
        _ => Err("it answers something else".to_owned()),
    }
}

/// Reads a line of the supervisor; none: it is news of another kind.
pub fn read(line: &str) -> Option<ToChild> {
    serde_json::from_str(line).ok()
}

/// Writes a line to the supervisor.
///
/// # Errors
/// It is gone.
pub fn write(line: &FromChild) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line).map_err(io::Error::other)?)?;
    out.flush()
}
