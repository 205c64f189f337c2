//! The processes of aggregators.
//!
//! Each has a file in the folder of the master, which it locks as long as it lives, with its number. It ends when the file is taken away. So a
//! master that was started again knows which aggregators are there.
use super::MasterError;
use crate::aggregator::Aggregator;
use crate::naming::service_of;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidemill_rpc::Net;
use tokio::time::Instant;

/// The lock of the master.
pub(super) const MASTER: &str = "master.lock";
/// The secret that master and aggregators share.
const SECRET: &str = "secret";
/// Interval of looks.
const LOOK: Duration = Duration::from_millis(100);
/// Time until a new aggregator serves.
const STARTING: Duration = Duration::from_secs(20);
/// Time in which aggregators end.
const ENDING: Duration = Duration::from_secs(5);
/// How long a lock of this folder may be taken by somebody who only looks.
const LOOKING: Duration = Duration::from_secs(1);

fn lock_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.lock"))
}

/// The options of the process of an aggregator.
#[derive(Debug, Clone)]
pub struct AggregatorOptions {
    /// Its name.
    pub name: String,
    /// The socket of the transport service.
    pub socket: PathBuf,
    /// The folder of the master.
    pub folder: PathBuf,
    /// How long it stays without a master.
    pub orphaned: Duration,
}

/// Serves as an aggregator until its file is taken away, `stop` says so, or there has been no master for long.
///
/// # Errors
/// The transport service is not reached, or the folder is not that of a master.
pub fn run_aggregator(options: &AggregatorOptions, stop: impl Fn() -> bool) -> Result<(), MasterError> {
    let path = lock_of(&options.folder, &options.name);
    let mut file = File::create(&path).map_err(|error| MasterError::file(&path, error))?;
    file.try_lock().map_err(|error| MasterError::file(&path, error.into()))?;
    write!(file, "{}", std::process::id()).map_err(|error| MasterError::file(&path, error))?;
    let secret = options.folder.join(SECRET);
    let secret = std::fs::read_to_string(&secret).map_err(|error| MasterError::file(&secret, error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| MasterError::file(&options.folder, error))?;
    runtime.block_on(async {
        let net = Net::connect_to(&options.socket, &format!("aggregator-{}", options.name)).await?;
        let _serving = Aggregator::new(net, &options.name, &secret).serve().await?;
        let mut alone: Option<Instant> = None;
        while path.exists() && !stop() {
            alone = if has_holder(&options.folder.join(MASTER)) {
                None
            } else {
                alone.or_else(|| Some(Instant::now()))
            };
            if alone.is_some_and(|alone| alone.elapsed() > options.orphaned) {
                tracing::warn!("{} ends: there has been no master for {:?}", options.name, options.orphaned);
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok::<(), MasterError>(())
    })?;
    // The master may have taken it.
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// Whether a process holds the lock of a file.
fn has_holder(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Takes a lock that others only look at for moments.
pub(super) fn lock(path: &Path) -> Result<Option<File>, MasterError> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|error| MasterError::file(path, error))?;
    #[allow(clippy::disallowed_methods, reason = "the time of this machine, not of events")]
    let began = std::time::Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOOKING => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(MasterError::file(path, error)),
        }
    }
}

/// The secret of a folder; a new one where there is none.
pub(super) fn secret(folder: &Path) -> Result<String, MasterError> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(SECRET);
    match std::fs::read_to_string(&path) {
        Ok(secret) if !secret.is_empty() => return Ok(secret),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(MasterError::file(&path, error)),
    }
    let mut random = [0u8; 32];
    let mut source = File::open("/dev/urandom").map_err(|error| MasterError::file(&path, error))?;
    std::io::Read::read_exact(&mut source, &mut random).map_err(|error| MasterError::file(&path, error))?;
    let secret: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(secret.as_bytes()))
        .map_err(|error| MasterError::file(&path, error))?;
    Ok(secret)
}

/// The processes that a master has started.
#[derive(Debug)]
pub(super) struct Processes {
    folder: PathBuf,
    socket: PathBuf,
    command: Vec<String>,
    children: Vec<Child>,
}

impl Processes {
    pub(super) fn new(folder: &Path, socket: &Path, command: &[String]) -> Self {
        Self {
            folder: folder.to_owned(),
            socket: socket.to_owned(),
            command: command.to_vec(),
            children: Vec::new(),
        }
    }

    /// Starts an aggregator, and waits until it serves.
    pub(super) async fn start(&mut self, name: &str, net: &Net) -> Result<(), MasterError> {
        let log = self.folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(|error| MasterError::file(&log, error))?;
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| MasterError::Start(name.to_owned(), "no command".into()))?;
        let mut command = Command::new(program);
        command.args(arguments).args(["--name", name]).arg("--socket").arg(&self.socket);
        command.arg("--state").arg(&self.folder);
        // Ctrl-C of a terminal is for the master, which ends its aggregators in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child =
            command.spawn().map_err(|error| MasterError::Start(name.to_owned(), error.to_string()))?;
        self.children.push(child);
        let began = Instant::now();
        loop {
            if net.discover(&service_of(name)).await.is_ok() {
                return Ok(());
            }
            let ended = self.children.last_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || began.elapsed() > STARTING {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let reason = said.lines().last().unwrap_or("it does not serve").to_owned();
                self.end(name);
                return Err(MasterError::Start(name.to_owned(), reason));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether an aggregator lives.
    pub(super) fn lives(&self, name: &str) -> bool {
        has_holder(&lock_of(&self.folder, name))
    }

    /// The aggregators that have a file.
    pub(super) fn known(&self) -> Result<Vec<String>, MasterError> {
        let entries =
            std::fs::read_dir(&self.folder).map_err(|error| MasterError::file(&self.folder, error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let locks = names
            .filter(|name| name != MASTER)
            .filter_map(|name| name.strip_suffix(".lock").map(str::to_owned));
        Ok(locks.collect())
    }

    /// Makes an aggregator end in order.
    pub(super) fn end(&mut self, name: &str) {
        for file in [lock_of(&self.folder, name), self.folder.join(format!("{name}.log"))] {
            // It may have taken it away itself.
            let _ = std::fs::remove_file(file);
        }
    }

    /// Ends an aggregator that does not answer.
    pub(super) fn kill(&self, name: &str) {
        let path = lock_of(&self.folder, name);
        // While the lock is held, the number is that of its holder.
        if has_holder(&path)
            && let Ok(text) = std::fs::read_to_string(&path)
            && let Some(pid) = text.trim().parse::<i32>().ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Collects those that have ended.
    pub(super) fn reap(&mut self) {
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Waits until all that have to end have ended.
    pub(super) fn wait(&mut self) {
        #[allow(clippy::disallowed_methods, reason = "the time of this machine, not of events")]
        let began = std::time::Instant::now();
        while !self.children.is_empty() && began.elapsed() < ENDING {
            self.reap();
            std::thread::sleep(Duration::from_millis(5));
        }
        for child in &mut self.children {
            // It hangs.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }
}
