//! The transport service of this machine, in a process of its own: edges of runs go through it where policies are attached, and programs
//! of several workers form groups by it.
use super::AgentOptions;
use super::hosts::{place_of, texts};
use crate::api::GroupDuties;
use crate::metrics::{NET_RESTARTS, NET_SERVES};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_app::net_process::{GroupHost, GroupsPart, NetTask, PublicPart, Regroup};
use tidemill_engine::remote::Address;
use tidemill_link::remote::Certificates;
use tidemill_net::supervise::{Supervision, Supervisor};
use tidemill_service::{Figure, Host, HostService};
use tidemill_session::Options as SessionOptions;

/// The name of the service, and of its folder.
pub(super) const NAME: &str = "net";
/// File with the duties in groups, in the folder of the agent.
const DUTIES: &str = "groups.json";
/// Bytes that the path of a socket may have.
const LONGEST: usize = 100;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the socket of the service of an agent with this folder.
pub(super) fn socket(folder: &Path) -> PathBuf {
    let usual = folder.join("services").join(NAME).join("net.sock");
    if usual.as_os_str().len() <= LONGEST {
        return usual;
    }
    // The paths of sockets are short, and folders of states may have long ones.
    let hash = xxhash_rust::xxh3::xxh3_64(usual.as_os_str().as_encoded_bytes());
    std::env::temp_dir().join(format!("tidemill-net-{hash:016x}.sock"))
}

/// The part of a worker in groups, as the controller wants it.
fn with(part: GroupsPart, duties: GroupDuties) -> GroupsPart {
    let host = GroupHost { rack: duties.rack, pod: duties.pod, ..part.host };
    GroupsPart { host, conductor: duties.conductor.map(Address::tcp), ..part }
}

struct Shared {
    command: Vec<String>,
    socket: PathBuf,
    /// What a process that starts now has to know about other hosts.
    public: Mutex<PublicPart>,
    /// How a process that starts now takes part in groups.
    groups: Mutex<GroupsPart>,
    options: AgentOptions,
    address: IpAddr,
    child: Mutex<Child>,
    /// It knows who introduces ranks. A group that begins before ends when it learns that.
    is_introduced: AtomicBool,
}

/// The process of the service.
#[derive(Default)]
struct Child {
    supervisor: Option<Supervisor>,
    /// News since it starts: its first line may lack them.
    early: Vec<String>,
}

/// The agent's side of the service.
#[derive(Clone)]
pub(super) struct Transport(Arc<Shared>);

impl Transport {
    pub(super) fn new(
        options: &AgentOptions,
        address: IpAddr,
        name: &str,
        certificates: &Certificates,
    ) -> Self {
        let public = PublicPart {
            listen: None,
            certificates: texts(certificates),
            revoked: Vec::new(),
            paths: options.paths.clone(),
        };
        // It has to know the conductor before the controller answers: another one ends groups that run.
        let duties = std::fs::read(options.folder.join(DUTIES)).ok();
        let duties = duties.and_then(|json| serde_json::from_slice::<GroupDuties>(&json).ok());
        let listen = Address::tcp(SocketAddr::new(address, 0).to_string());
        let groups = GroupsPart {
            host: GroupHost { name: name.to_owned(), ..GroupHost::default() },
            listen: (!options.only_dials).then_some(listen),
            ..GroupsPart::default()
        };
        let is_introduced = AtomicBool::new(duties.is_some());
        let groups = with(groups, duties.unwrap_or_default());
        Self(Arc::new(Shared {
            groups: Mutex::new(groups),
            command: options.net_command.clone(),
            socket: socket(&options.folder),
            public: Mutex::new(public),
            options: options.clone(),
            address,
            child: Mutex::default(),
            is_introduced,
        }))
    }

    /// The service, which is not started yet; none: the agent has no command for it.
    pub(super) fn service(&self) -> Option<Box<dyn HostService>> {
        let is_there = !self.0.command.is_empty();
        is_there.then(|| Box::new(Serving(self.clone())) as Box<dyn HostService>)
    }

    /// The socket for processes of runs, if there is a service.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        (!self.0.command.is_empty()).then(|| self.0.socket.clone())
    }

    /// Uses other certificates from now on; `line`: for the process.
    pub(super) fn renew(&self, certificates: &Certificates, line: &str) {
        locked(&self.0.public).certificates = texts(certificates);
        self.say(line);
    }

    /// Believes these certificates no more.
    pub(super) fn refuse(&self, revoked: Vec<String>, line: &str) {
        locked(&self.0.public).revoked = revoked;
        self.say(line);
    }

    /// Leaves these paths while another one works.
    pub(super) fn drain(&self, paths: &[String], line: &str) {
        let mut public = locked(&self.0.public);
        public.paths = SessionOptions { drained: paths.to_vec(), ..public.paths.clone() };
        drop(public);
        self.say(line);
    }

    /// Where other workers reach it for groups, `HOST:PORT`.
    pub(super) fn groups_at(&self) -> Option<String> {
        let seen = locked(&self.0.child).supervisor.as_ref().map(Supervisor::seen)?;
        seen.groups.map(|address| address.place().to_owned())
    }

    /// The reason why programs here cannot join groups over all workers yet; none: they can, or there is no service.
    pub(super) fn not_in_groups(&self) -> Option<String> {
        if self.0.command.is_empty() {
            return None;
        }
        let seen = locked(&self.0.child).supervisor.as_ref().map(Supervisor::seen).unwrap_or_default();
        match (seen.serves, self.0.is_introduced.load(Ordering::Acquire)) {
            _ if seen.problem.is_some() => seen.problem,
            (None, _) => Some("the transport service has not started yet".to_owned()),
            (_, false) => Some("no worker introduces the ranks of groups yet".to_owned()),
            _ => None,
        }
    }

    /// Takes part in groups as the controller says; none: as before.
    pub(super) fn take_part(&self, duties: Option<GroupDuties>) {
        let Some(duties) = duties else { return };
        self.0.is_introduced.store(true, Ordering::Release);
        let mut groups = locked(&self.0.groups);
        let next = with(groups.clone(), duties.clone());
        if next == *groups {
            return;
        }
        *groups = next.clone();
        drop(groups);
        let kept = serde_json::to_vec(&duties).map_err(std::io::Error::other);
        if let Err(error) = kept.and_then(|json| std::fs::write(self.0.options.folder.join(DUTIES), json)) {
            tracing::warn!("cannot keep how this worker takes part in groups: {error}");
        }
        if let Ok(line) = serde_json::to_string(&Regroup { groups: next }) {
            self.say(&line);
        }
    }

    fn say(&self, line: &str) {
        let mut child = locked(&self.0.child);
        match &child.supervisor {
            Some(supervisor) => supervisor.news(line.to_owned()),
            None if self.0.command.is_empty() => {}
            None => child.early.push(line.to_owned()),
        }
    }
}

struct Serving(Transport);

impl HostService for Serving {
    fn start(&mut self, host: &Host) -> Result<(), String> {
        let shared = Arc::clone(&self.0.0);
        let folder = host.folder.clone();
        // Its first line is written after this, and has them.
        locked(&shared.child).early.clear();
        let task = move |socket: &Path| {
            let mut public = locked(&shared.public).clone();
            let place = place_of(&shared.options, shared.address);
            public.listen = (!shared.options.only_dials).then(|| tidemill_session::address(place));
            let task = NetTask {
                socket: socket.into(),
                folder: folder.clone(),
                public: Some(public),
                grpc: None,
                grpc_servers: Vec::new(),
                groups: locked(&shared.groups).clone(),
            };
            serde_json::to_string(&task).unwrap_or_default()
        };
        let supervision = Supervision {
            command: self.0.0.command.clone(),
            task: Box::new(task),
            socket: self.0.0.socket.clone(),
        };
        let supervisor = Supervisor::start(supervision).map_err(|error| error.to_string())?;
        let mut child = locked(&self.0.0.child);
        child.early.drain(..).for_each(|line| supervisor.news(line));
        child.supervisor = Some(supervisor);
        Ok(())
    }

    fn stop(&mut self) {
        let supervisor = locked(&self.0.0.child).supervisor.take();
        drop(supervisor);
    }

    fn health(&mut self) -> Result<(), String> {
        // The supervisor starts a process that failed again by itself, and sooner.
        match &locked(&self.0.0.child).supervisor {
            Some(supervisor) if supervisor.is_alive() => Ok(()),
            _ => Err("its supervisor has ended".to_owned()),
        }
    }

    fn metrics(&self) -> Vec<Figure> {
        let seen = locked(&self.0.0.child).supervisor.as_ref().map(Supervisor::seen).unwrap_or_default();
        vec![
            Figure {
                name: NET_SERVES.name,
                help: NET_SERVES.help,
                value: f64::from(u8::from(seen.problem.is_none() && seen.serves.is_some())),
            },
            Figure { name: NET_RESTARTS.name, help: NET_RESTARTS.help, value: seen.restarts as f64 },
        ]
    }
}
