//! A private broker for a test: Debian's mosquitto, in a folder that is removed with the test. It is a child of the starting
//! thread and ends with it in every case: the system signals it (`setpriv --pdeathsig`).
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// The broker, see the module; it ends when this is dropped.
pub(crate) struct Broker {
    process: Option<Child>,
    folder: TempDir,
    program: PathBuf,
    pub(crate) port: u16,
}

fn program() -> Option<PathBuf> {
    let in_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut folders = in_path.chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    folders.find_map(|folder| Some(folder.join("mosquitto")).filter(|program| program.is_file()))
}

/// A port below those that the system gives out, which stays free while the broker is down.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = || std::process::id().wrapping_mul(16).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let mut ports = (0..5_000).map(|_| 25_000 + (next() % 5_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
}

impl Broker {
    /// Starts one that lets everybody in, or with `login` this user alone; returns none, with a message, where the machine has no mosquitto.
    pub(crate) fn start(login: Option<(&str, &str)>) -> Option<Self> {
        Self::with(login, "")
    }

    /// The same with further lines of its configuration.
    pub(crate) fn with(login: Option<(&str, &str)>, more: &str) -> Option<Self> {
        let Some(program) = program() else {
            assert!(
                std::env::var("TIDEMILL_TEST_SERVERS").as_deref() != Ok("required"),
                "mosquitto is missing: scripts/test-servers.sh mqtt"
            );
            eprintln!("skipped: no mosquitto on this machine: scripts/test-servers.sh mqtt");
            return None;
        };
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let at = |name: &str| folder.path().join(name).display().to_string();
        let mut lines = vec![
            format!("listener {port} 127.0.0.1"),
            "persistence true".into(),
            format!("persistence_location {}/", folder.path().display()),
            "max_queued_messages 0".into(),
            format!("log_dest file {}", at("log")),
            more.into(),
        ];
        match login {
            None => lines.push("allow_anonymous true".into()),
            Some((user, password)) => {
                std::fs::write(at("passwords"), format!("{user}:{password}\n")).unwrap();
                let hashed =
                    Command::new("mosquitto_passwd").args(["-U", &at("passwords")]).status().unwrap();
                assert!(hashed.success());
                lines.extend(["allow_anonymous false".into(), format!("password_file {}", at("passwords"))]);
            }
        }
        if rustix::process::geteuid().is_root() {
            // It gives up the rights of root otherwise, and then cannot write here.
            lines.push("user root".into());
        }
        std::fs::write(folder.path().join("conf"), lines.join("\n") + "\n").unwrap();
        let mut broker = Self { process: None, folder, program, port };
        broker.restart();
        Some(broker)
    }

    /// Ends the broker in order, so that its sessions are on the disk, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.stop();
        let conf = self.folder.path().join("conf");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program).arg("-c").arg(&conf);
        let process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.process = Some(process);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "mosquitto has ended: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let id = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        process.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
