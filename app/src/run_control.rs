//! Control of a run from another program of the same user: shows the feeds of its live sources and changes them.
//!
//! A run listens at an abstract Unix socket, `tidemill/run/PID`: it has no file, so nothing is left behind when the run is
//! killed, and the kernel names the user at the other end. A question and its answer are a line of JSON each.
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
}

type Answer = Result<LocalRun, String>;

/// The socket of a run; ends when it is dropped.
pub struct RunControl {
    name: String,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RunControl {
    /// Listens for the questions about a run.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn listen(workflow: &str, observer: Observer) -> io::Result<Self> {
        let process = std::process::id();
        let name = format!("{PREFIX}{process}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, workflow) = (Arc::clone(&is_over), workflow.to_owned());
        let serve = move || {
            loop {
                let accepted = listener.accept();
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok((stream, _)) = accepted else {
                    // For instance, all descriptors are in use.
                    std::thread::sleep(AFTER_ERROR);
                    continue;
                };
                if let Err(error) = answer(&stream, process, &workflow, &observer) {
                    tracing::debug!("a question about the run was not answered: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("run-control".into()).spawn(serve)?;
        Ok(Self { name, is_over, thread: Some(thread) })
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

fn answer(stream: &UnixStream, process: u32, workflow: &str, observer: &Observer) -> io::Result<()> {
    if !is_trusted(stream)? {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it came from another user"));
    }
    limited(stream)?;
    let question: Question = serde_json::from_str(&line_of(stream)?)?;
    let changed = match question {
        Question::Feeds => Ok(()),
        Question::Order { source, order } => observer.order_feeds(&source, &order),
    };
    let now = || LocalRun { process, workflow: workflow.to_owned(), feeds: observer.feeds() };
    say(stream, &changed.map(|()| now()))
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

fn ask(process: u32, question: &Question) -> io::Result<Answer> {
    let stream = connect(&format!("{PREFIX}{process}"))?;
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
pub fn order(process: u32, source: &str, order: &FeedOrder) -> io::Result<Answer> {
    ask(process, &Question::Order { source: source.to_owned(), order: order.clone() })
}
