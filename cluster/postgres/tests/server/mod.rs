//! A private PostgreSQL server for a test: the programs of the machine's package, in a folder that is removed with the
//! test.
//!
//! It is a child of the starting thread and ends with it in every case: the system signals it (`setpriv --pdeathsig`).
//! A shell in its own process group removes the folder of a killed test: it waits until the other end of its input is
//! gone.
#![allow(dead_code, reason = "each test program uses a part of it")]
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// The server, see the module; it ends when this is dropped.
pub(crate) struct Server {
    process: Mutex<Option<Child>>,
    folder: TempDir,
    /// Removes the folder if nothing else has.
    guardian: Child,
    programs: PathBuf,
    port: u16,
}

/// Debian has a folder for each version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    let in_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut all = folders.into_iter().rev().chain(in_path);
    all.find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

/// The server refuses to run as the machine's superuser: then it runs as its package's own user.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == "postgres").then_some(())?;
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
        Some((number(fields.nth(1))?, number(fields.next())?))
    })
}

/// The rest of a killed test is removed as soon as no process writes there any more.
const GUARDIAN: &str = "cat > /dev/null; for try in $(seq 600); do rm -rf \"$0\" && exit; sleep 0.1; done";

/// A port below those that the system gives out, which stays free while the server is down. It follows from the number of this
/// process.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = || std::process::id().wrapping_mul(16).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let mut ports = (0..5_000).map(|_| 20_000 + (next() % 5_000) as u16);
    ports.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
}

fn guardian(folder: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", GUARDIAN]).arg(folder).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Server {
    /// Starts one; returns none, with a message, where the machine has no PostgreSQL.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("skipped: no PostgreSQL on this machine: apt-get install postgresql");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        // Sockets need short paths, and the server's user must have access.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = free_port();
        let guardian = guardian(folder.path());
        let server = Self { process: Mutex::default(), folder, guardian, programs, port };
        if let Some((user, group)) = user() {
            chown(server.folder.path(), Some(user), Some(group)).unwrap();
        }
        let status = server
            .command("initdb", "KILL")
            .args(["--auth=trust", "--username=tidemill", "--no-sync", "--encoding=UTF8", "-D"])
            .arg(server.data())
            .status()
            .unwrap();
        assert!(status.success(), "initdb: {status}\n{}", server.said());
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nfsync = off\n\
             dynamic_shared_memory_type = mmap\n",
            server.folder.path().display()
        );
        let file = server.data().join("postgresql.conf");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, before + &settings).unwrap();
        server.up();
        Some(server)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("out")).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program of the package, as a permitted user, that is signalled when the starting thread ends.
    fn command(&self, program: &str, signal: &str) -> Command {
        let mut command = Command::new("setpriv");
        if let Some((user, group)) = user() {
            command.args([
                format!("--reuid={user}"),
                format!("--regid={group}"),
                "--clear-groups".to_owned(),
            ]);
        }
        let log = self.folder.path().join("out");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        command
            .arg(format!("--pdeathsig={signal}"))
            .arg(self.programs.join(program))
            .current_dir(self.folder.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        command
    }

    /// Starts it, also after [`Server::down`].
    #[track_caller]
    pub(crate) fn up(&self) {
        // On this signal it ends its own processes, and leaves nothing.
        let mut process = self.command("postgres", "QUIT").arg("-D").arg(self.data()).spawn().unwrap();
        for _ in 0..600 {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("postgres: {status}\n{}", self.said());
            }
            // The line with its progress.
            let message = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
            let own = message.lines().next().is_some_and(|line| line == process.id().to_string());
            if own && message.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
                *self.process() = Some(process);
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        end(&mut process, rustix::process::Signal::QUIT);
        panic!("postgres is not ready within 30 s\n{}", self.said());
    }

    /// Ends it, and all its connections.
    pub(crate) fn down(&self) {
        if let Some(mut process) = self.process().take() {
            end(&mut process, rustix::process::Signal::INT);
        }
    }

    /// Process number of the server.
    pub(crate) fn process_number(&self) -> u32 {
        self.process().as_ref().map_or(0, Child::id)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The default database.
    pub(crate) fn address(&self) -> String {
        format!("postgres://tidemill@127.0.0.1:{}/postgres", self.port)
    }
}

fn end(process: &mut Child, signal: rustix::process::Signal) {
    if let Some(number) = i32::try_from(process.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(number, signal); // it may have ended
    }
    let _ = process.wait();
}

impl Drop for Server {
    fn drop(&mut self) {
        self.down();
        let _ = std::fs::remove_dir_all(self.folder.path()); // else the guardian does it
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}
