//! Processes that the harness starts, their processor time, and that none of them stays behind.
use crate::contender::Serve;
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Remains that must go when the harness ends, however it ends.
#[derive(Default)]
struct Traces {
    processes: Vec<u32>,
    namespaces: Vec<String>,
    folder: Option<PathBuf>,
}

/// How long something that does nothing may take.
pub const PATIENCE: Duration = Duration::from_secs(8);

static TRACES: Mutex<Traces> =
    Mutex::new(Traces { processes: Vec::new(), namespaces: Vec::new(), folder: None });

fn traces() -> MutexGuard<'static, Traces> {
    TRACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prefix of files that iceoryx2 makes in /dev/shm, and of namespaces: one per harness.
pub fn prefix(harness: u32) -> String {
    format!("tmb{harness}_")
}

/// Removes everything. What is returned keeps others from starting anything more.
pub fn clean_up() -> impl Sized {
    let mut traces = traces();
    end(&std::mem::take(&mut traces.processes));
    for namespace in std::mem::take(&mut traces.namespaces) {
        let _ = Command::new("ip").args(["netns", "del", &namespace]).stderr(Stdio::null()).status();
    }
    if let Some(folder) = traces.folder.take() {
        let _ = std::fs::remove_dir_all(folder);
    }
    remove_shared_memory(std::process::id());
    traces
}

fn remove_shared_memory(harness: u32) {
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix(harness)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Removes what harnesses left that were killed so that they could not remove it.
pub fn clean_up_after_others() {
    let harness_of = |name: &str| name.strip_prefix("tmb")?.split('_').next()?.parse::<u32>().ok();
    let is_gone = |harness: &u32| !Path::new(&format!("/proc/{harness}")).exists();
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if harness_of(&name).as_ref().is_some_and(is_gone) {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if harness_of(&name).as_ref().is_some_and(is_gone) {
                let _ = std::fs::remove_file(entry.path()).or_else(|_| std::fs::remove_dir_all(entry.path()));
            }
        }
    }
}

/// Adds a namespace that goes with the harness.
pub fn remember_namespace(name: &str) {
    traces().namespaces.push(name.to_owned());
}

/// Asks processes to end, and kills those that do not.
fn end(processes: &[u32]) {
    let all = with_descendants(processes);
    let signal = |process: &u32, signal| {
        if let Some(process) = i32::try_from(*process).ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, signal);
        }
    };
    processes.iter().for_each(|process| signal(process, Signal::TERM));
    let deadline = Instant::now() + Duration::from_millis(500);
    while all.iter().any(|process| is_alive(*process)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    all.iter().filter(|process| is_alive(**process)).for_each(|process| signal(process, Signal::KILL));
}

/// State and parent of a process.
fn stat(process: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_alive(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != 'Z')
}

/// Processes and all that they started.
pub fn with_descendants(processes: &[u32]) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = numbers.filter_map(|process| Some((process, stat(process)?.1))).collect();
    let mut all = processes.to_vec();
    let mut next = 0;
    while next < all.len() {
        let parent = all[next];
        all.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        next += 1;
    }
    all
}

/// Processor time of processes in seconds, in steps of 10 ms each.
pub fn processor_time(processes: &[u32]) -> f64 {
    let times = processes.iter().filter_map(|process| tidemill_machine::Process::of(*process).time());
    times.map(|time| time.as_secs_f64()).sum()
}

/// A process that ends when this is dropped.
pub struct Child {
    child: std::process::Child,
    lines: mpsc::Receiver<String>,
}

impl Child {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// When it ends before that, or prints none within this time: one that hangs must not stop all the others.
    pub fn line(&mut self, within: Duration) -> anyhow::Result<String> {
        match self.lines.recv_timeout(within) {
            Ok(line) => Ok(line),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("nothing came within {within:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("it ended: {:?}", self.child.try_wait()),
        }
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(self
            .child
            .stdin
            .as_mut()
            .context("it reads nothing")?
            .write_all(format!("{line}\n").as_bytes())?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        end(&[self.number()]);
        let _ = self.child.wait();
        traces().processes.retain(|process| *process != self.child.id());
    }
}

/// Where contenders start processes and have files.
pub struct Room {
    folder: PathBuf,
    command: Option<PathBuf>,
    next_file: std::cell::Cell<usize>,
}

impl Room {
    /// Makes it.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub fn new(command: Option<PathBuf>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix(&prefix(std::process::id())).tempdir()?.keep();
        traces().folder = Some(folder.clone());
        Ok(Self { folder, command, next_file: std::cell::Cell::new(0) })
    }

    /// The product's command, if there is one.
    #[allow(dead_code, reason = "for the rows of the product, which come later")]
    pub fn tidemill(&self) -> Option<&Path> {
        self.command.as_deref()
    }

    /// A path for a file that goes with the harness.
    pub fn path(&self, name: &str) -> PathBuf {
        self.next_file.set(self.next_file.get() + 1);
        self.folder.join(format!("{}-{name}", self.next_file.get()))
    }

    /// Starts a program, in a network namespace if one is named. It ends with the harness, even if that is killed.
    ///
    /// # Errors
    /// When it does not start.
    pub fn spawn(&self, program: &str, arguments: &[&str], namespace: Option<&str>) -> anyhow::Result<Child> {
        let own = std::env::current_exe()?;
        let own = own.to_str().context("the path of this program is no text")?;
        let mut command = Command::new(if namespace.is_some() { "ip" } else { own });
        if let Some(namespace) = namespace {
            command.args(["netns", "exec", namespace, own]);
        }
        command.args(["bound", program]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        command.stderr(std::fs::File::create(self.path("stderr"))?);
        let mut traces = traces();
        let mut child = command.spawn().with_context(|| format!("{program} does not start"))?;
        traces.processes.push(child.id());
        let (line, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // It ends with the process.
            std::thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|text| line.send(text))
            });
        }
        Ok(Child { child, lines })
    }

    /// Starts this program as a server of a contender and returns where it listens.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn server(
        &self,
        name: &str,
        order: &Serve,
        namespace: Option<&str>,
    ) -> anyhow::Result<(Child, String)> {
        let mut child = self.own(&["serve", name, &serde_json::to_string(order)?], namespace)?;
        let line =
            child.line(PATIENCE).with_context(|| format!("server of {name}; {}", self.last_words()))?;
        match line.strip_prefix("listening ") {
            Some(address) => Ok((child, address.to_owned())),
            None => bail!("a server said {line:?}"),
        }
    }

    /// Starts this program.
    ///
    /// # Errors
    /// When it does not start.
    pub fn own(&self, arguments: &[&str], namespace: Option<&str>) -> anyhow::Result<Child> {
        let own = std::env::current_exe()?;
        self.spawn(own.to_str().context("the path of this program is no text")?, arguments, namespace)
    }

    /// The end of what processes wrote to stderr lately.
    pub fn last_words(&self) -> String {
        let mut words = Vec::new();
        for number in (1..=self.next_file.get()).rev().take(12) {
            let text =
                std::fs::read_to_string(self.folder.join(format!("{number}-stderr"))).unwrap_or_default();
            words.extend(text.lines().rev().take(3).map(str::to_owned));
        }
        words.join("; ")
    }

    /// A port of loopback that is free now.
    ///
    /// # Errors
    /// When there is none.
    pub fn port(&self) -> anyhow::Result<u16> {
        Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
    }
}

/// Becomes another program that ends when the harness does, even if that is killed.
///
/// # Errors
/// When the program is not there.
pub fn become_bound(program: &str, arguments: &[String]) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Err(Command::new(program).args(arguments).exec()).with_context(|| format!("{program} does not start"))
}

/// Waits until something listens there.
///
/// # Errors
/// When nothing does within 5 seconds.
pub fn wait_for(address: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while let Err(error) = std::net::TcpStream::connect(address) {
        ensure!(Instant::now() < deadline, "nothing listens on {address}: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
