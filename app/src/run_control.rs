//! Control of a run from another program of the same user: shows the feeds of its live sources and changes them, and
//! [shows records](taps).
//!
//! A run listens at an abstract Unix socket, `tidemill/run/PID`: it has no file, so nothing is left behind when the run is
//! killed, and the kernel names the user at the other end. A question and its answer are a line of JSON each.
pub mod taps;

use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_engine::{FeedTable, Observer};
use tidemill_operators::feeds::FeedOrder;

/// Beginning of the names of the sockets.
const PREFIX: &str = "tidemill/run/";
/// Time for a question or an answer: an order to a worker of a run in several processes takes up to ten seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause after a question that could not be accepted.
const AFTER_ERROR: Duration = Duration::from_millis(200);
/// Longest line.
const MOST: u64 = 1 << 20;

/// A question to a run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Question {
    /// Its workflow and feeds.
    Feeds,
    /// A change of the feeds of a source.
    Order { source: String, order: FeedOrder },
    /// The records that pass a source or an operator, until one side ends.
    Tap { edge: String },
}

/// A run on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalRun {
    /// Its process.
    pub process: u32,
    /// The name of its workflow.
    pub workflow: String,
    /// The feeds of its live sources.
    pub feeds: FeedTable,
    /// Its sources and operators.
    #[serde(default)]
    pub edges: Vec<String>,
}

type Answer<T> = Result<T, String>;

/// The socket of a run; ends when it is dropped.
pub struct RunControl {
    name: String,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    taps: TapThreads,
}

/// The threads of the taps.
type TapThreads = Arc<Mutex<Vec<JoinHandle<()>>>>;

impl RunControl {
    fn name_of(process: u32) -> String {
        format!("{PREFIX}{process}")
    }

    /// Listens for the questions about a run.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn listen(workflow: &str, observer: Observer) -> io::Result<Self> {
        let process = std::process::id();
        let name = Self::name_of(process);
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let taps = TapThreads::default();
        let run = Served {
            process,
            workflow: workflow.to_owned(),
            observer,
            is_over: Arc::clone(&is_over),
            taps: Arc::clone(&taps),
        };
        let serve = move || {
            loop {
                let accepted = listener.accept();
                if run.is_over.load(Ordering::Acquire) {
                    return;
                }
                let Ok((stream, _)) = accepted else {
                    // For instance, all descriptors are in use.
                    std::thread::sleep(AFTER_ERROR);
                    continue;
                };
                if let Err(error) = run.answer(stream) {
                    tracing::debug!("a question about the run was not answered: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("run-control".into()).spawn(serve)?;
        Ok(Self { name, is_over, thread: Some(thread), taps })
    }
}

impl Drop for RunControl {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread.
        drop(connect(&self.name));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // They tell the last records and that the run is over.
        let taps = std::mem::take(&mut *self.taps.lock().unwrap_or_else(PoisonError::into_inner));
        taps.into_iter().for_each(|tap| drop(tap.join()));
    }
}

fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Whether the other end belongs to this user, or to root.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = socket_peercred(stream)?.uid;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

fn limited(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn line_of(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(MOST)).read_line(&mut line)?;
    Ok(line)
}

fn say(mut stream: &UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// A run as others see it.
struct Served {
    process: u32,
    workflow: String,
    observer: Observer,
    is_over: Arc<AtomicBool>,
    taps: TapThreads,
}

impl Served {
    fn answer(&self, stream: UnixStream) -> io::Result<()> {
        if !is_trusted(&stream)? {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it came from another user"));
        }
        limited(&stream)?;
        let changed = match serde_json::from_str(&line_of(&stream)?)? {
            Question::Feeds => Ok(()),
            Question::Order { source, order } => self.observer.order_feeds(&source, &order),
            Question::Tap { edge } => return self.tap(stream, &edge),
        };
        let now = || LocalRun {
            process: self.process,
            workflow: self.workflow.clone(),
            feeds: self.observer.feeds(),
            edges: self.observer.edges(),
        };
        say(&stream, &changed.map(|()| now()))
    }

    fn tap(&self, stream: UnixStream, edge: &str) -> io::Result<()> {
        let tap = match self.observer.tap(edge) {
            Ok(tap) => tap,
            Err(error) => return say(&stream, &Answer::<taps::Begun>::Err(error.to_string())),
        };
        let begun = taps::Begun {
            process: self.process,
            workflow: self.workflow.clone(),
            stream: tap.stream().clone(),
        };
        say(&stream, &Answer::Ok(begun))?;
        let is_over = Arc::clone(&self.is_over);
        let serve = move || {
            if let Err(error) = taps::serve(&stream, &tap, &is_over) {
                tracing::debug!("a tap has ended: {error}");
            }
        };
        let mut threads = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(std::thread::Builder::new().name("tap".into()).spawn(serve)?);
        Ok(())
    }
}

/// Returns the processes of runs on this machine that can be asked, of all users.
///
/// # Errors
/// The system does not list sockets.
pub fn processes() -> io::Result<Vec<u32>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let marked = format!("@{PREFIX}");
    let found = table.lines().filter_map(|line| line.rsplit_once(&marked)?.1.parse().ok());
    let mut found: Vec<u32> = found.collect();
    // A listening socket and its connections have one name.
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn ask(process: u32, question: &Question) -> io::Result<Answer<LocalRun>> {
    let stream = connect(&RunControl::name_of(process))?;
    if !is_trusted(&stream)? {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    limited(&stream)?;
    say(&stream, question)?;
    Ok(serde_json::from_str(&line_of(&stream)?)?)
}

/// Returns the runs of this user on this machine; those that end meanwhile are left out.
///
/// # Errors
/// The system does not list sockets.
pub fn runs() -> io::Result<Vec<LocalRun>> {
    let asked = processes()?.into_iter().filter_map(|process| ask(process, &Question::Feeds).ok()?.ok());
    Ok(asked.collect())
}

/// Changes the feeds of a source of a run on this machine; returns the run afterwards.
///
/// # Errors
/// The run does not answer, or rejects the order: the inner error says why.
pub fn order(process: u32, source: &str, order: &FeedOrder) -> io::Result<Answer<LocalRun>> {
    ask(process, &Question::Order { source: source.to_owned(), order: order.clone() })
}
