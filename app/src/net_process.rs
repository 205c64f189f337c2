//! The process of a transport service, which a supervisor starts, restarts and replaces.
use crate::failure::{Failure, Kind};
use crate::processes::{CertificateTexts, follow_agent, refuse};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_collective::hints::Settings;
use tidemill_collective::service::{Collectives, Options as GroupOptions, StartError};
pub use tidemill_collective::topology::Host as GroupHost;
use tidemill_engine::remote::{Address, Credentials, Security};
use tidemill_net::gateway::{Gateway, GrpcServer};
use tidemill_net::supervise::{FromChild, ToChild, is_beside, read, write};
use tidemill_net::{Options, Service, Upgrade};
use tidemill_session::Options as SessionOptions;

/// File with the port that groups had last, where the system chooses one: others know it.
const PORT: &str = "groups.port";
/// Tries to have that port again, and the pause between two.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);
/// Characters of a line.
const MOST: u64 = 1 << 20;

/// Input of the process, as one line of JSON on its standard input. Lines of [`ToChild`] and of the agent follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetTask {
    /// The file of its socket.
    pub socket: PathBuf,
    /// A folder for its files.
    pub folder: PathBuf,
    /// How it serves other hosts; none: it joins programs of this host only.
    #[serde(default)]
    pub public: Option<PublicPart>,
    /// Where it serves gRPC clients; none: nowhere.
    #[serde(default)]
    pub grpc: Option<SocketAddr>,
    /// gRPC servers whose services programs of this host call.
    #[serde(default)]
    pub grpc_servers: Vec<GrpcServer>,
    /// How it takes part in groups.
    #[serde(default)]
    pub groups: GroupsPart,
}

/// How a transport service takes part in groups of programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupsPart {
    /// The machine. Without a name it has its host name.
    pub host: GroupHost,
    /// Where services of other machines reach it; none: groups are of this machine only.
    #[serde(default)]
    pub listen: Option<Address>,
    /// The service that introduces ranks; none: this one.
    #[serde(default)]
    pub conductor: Option<Address>,
    /// Certificates for that; none: the ones with which it serves other hosts, or none at all.
    #[serde(default)]
    pub certificates: Option<CertificateTexts>,
    /// The congestion control of connections between ranks; none: that of the system.
    #[serde(default)]
    pub congestion: Option<String>,
    /// How it counts the traffic of the machine, and who gets hints.
    #[serde(default)]
    pub hints: Settings,
}

/// A line of the agent: the service takes part in groups differently. Groups that run there end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regroup {
    /// How.
    pub groups: GroupsPart,
}

/// How a transport service serves other hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublicPart {
    /// Where it listens; none: it dials.
    pub listen: Option<Address>,
    /// The certificates of the worker.
    pub certificates: CertificateTexts,
    /// Serial numbers of certificates that are not believed any more, as hexadecimal digits.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// The paths of its machine.
    #[serde(default)]
    pub paths: SessionOptions,
}

/// Serves until the input ends.
///
/// # Errors
/// Its task is wrong, or its socket or address cannot be listened on. The supervisor is told, too.
pub fn serve(mut input: impl BufRead) -> Result<(), Failure> {
    // Its addresses are those of sessions.
    tidemill_session::install().map_err(|error| told(Kind::Unavailable, error.to_string()))?;
    let mut line = String::new();
    let begun = (&mut input).take(MOST).read_line(&mut line).map_err(|error| error.to_string());
    let task = begun.and_then(|_| serde_json::from_str::<NetTask>(&line).map_err(|error| error.to_string()));
    let task =
        task.map_err(|error| told(Kind::Configuration, format!("the task of a transport service: {error}")))?;
    let mut child = NetChild::of(task)?;
    child.start()?;
    loop {
        line.clear();
        match (&mut input).take(MOST).read_line(&mut line) {
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
        match read(line.trim_end()) {
            Some(ToChild::Retire {}) => {
                child.gateway = None;
                child.groups.take().into_iter().for_each(Collectives::retire);
                let programs = child.service.take().map_or(0, |service| service.programs());
                say(&FromChild::Retired { programs });
            }
            Some(ToChild::Resume {}) => child.start()?,
            Some(ToChild::Upgraded(problem)) => {
                let waits = child.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
                waits.into_iter().for_each(|upgrade| upgrade.answer(problem.clone()));
            }
            None => {
                if let Ok(Regroup { groups }) = serde_json::from_str(&line) {
                    child.regroup(groups)?;
                } else if let Some(credentials) = &child.credentials
                    && let Err(error) = follow_agent(&line, credentials, |_| {})
                {
                    tracing::error!("cannot follow the message of the agent: {error}");
                }
            }
        }
    }
}

/// A supervisor that is gone ends this process by the end of its input.
fn say(line: &FromChild) {
    let _ = write(line);
}

fn told(kind: Kind, text: String) -> Failure {
    say(&FromChild::Failed(text.clone()));
    Failure::new(kind, text)
}

struct NetChild {
    task: NetTask,
    credentials: Option<Credentials>,
    /// The person who wants another version.
    upgrade: Arc<Mutex<Option<Upgrade>>>,
    gateway: Option<Gateway>,
    groups: Option<Collectives>,
    service: Option<Service>,
}

impl NetChild {
    fn of(task: NetTask) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| {
            told(Kind::Configuration, format!("the certificates of this worker: {error}"))
        };
        tidemill_session::install().map_err(|error| told(Kind::Unavailable, error.to_string()))?;
        let credentials = match &task.public {
            None => None,
            Some(public) => {
                let credentials =
                    Credentials::new(&public.certificates.certificates()).map_err(|error| wrong(&error))?;
                refuse(&credentials, &public.revoked);
                if let Some(sessions) = tidemill_session::sessions() {
                    sessions.configure(public.paths.clone());
                }
                Some(credentials)
            }
        };
        Ok(Self { task, credentials, upgrade: Arc::default(), gateway: None, groups: None, service: None })
    }

    fn start(&mut self) -> Result<(), Failure> {
        let unavailable = |error: &dyn std::fmt::Display| told(Kind::Unavailable, error.to_string());
        let security = match &self.credentials {
            Some(credentials) => Security::with(credentials).map_err(|error| unavailable(&error))?,
            None => Security::none(),
        };
        let waits = Arc::clone(&self.upgrade);
        let on_upgrade = move |upgrade: Upgrade| {
            let mut waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
            if waits.is_some() {
                return upgrade.answer(Some("another upgrade is on its way".to_owned()));
            }
            let program = upgrade.program.clone();
            *waits = Some(upgrade);
            say(&FromChild::Upgrade { program });
        };
        let options = Options {
            socket: self.task.socket.clone(),
            folder: self.task.folder.clone(),
            public: self.task.public.as_ref().and_then(|public| public.listen.clone()),
            security,
            on_upgrade: Some(Arc::new(on_upgrade)),
            // The supervisor starts another process.
            on_panic: Some(|| std::process::exit(70)),
        };
        let service = Service::start(options).map_err(|error| unavailable(&error))?;
        let groups = self.start_groups()?;
        let NetTask { socket, grpc, grpc_servers, .. } = &self.task;
        if grpc.is_some() || !grpc_servers.is_empty() {
            let gateway = Gateway::start(socket, *grpc, grpc_servers.clone());
            self.gateway = Some(gateway.map_err(|error| unavailable(&error))?);
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (public, of_groups) = (service.public().cloned(), self.groups_at(&groups));
        say(&FromChild::Ready { public, groups: of_groups, version });
        (self.service, self.groups) = (Some(service), Some(groups));
        Ok(())
    }

    /// Changes how it takes part in groups.
    fn regroup(&mut self, groups: GroupsPart) -> Result<(), Failure> {
        self.task.groups = groups;
        let Some(service) = &self.service else { return Ok(()) };
        let public = service.public().cloned();
        // Its address is free then.
        self.groups = None;
        let groups = self.start_groups()?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        say(&FromChild::Ready { public, groups: self.groups_at(&groups), version });
        self.groups = Some(groups);
        Ok(())
    }

    fn start_groups(&self) -> Result<Collectives, Failure> {
        let unavailable = |error: &dyn std::fmt::Display| told(Kind::Unavailable, error.to_string());
        let GroupsPart { host, listen, conductor, certificates, congestion, hints } =
            self.task.groups.clone();
        let name = if host.name.is_empty() { tidemill_machine::host_name() } else { host.name };
        let security = match (&certificates, &self.credentials) {
            (Some(texts), _) => Security::mutual(&texts.certificates()),
            (None, Some(credentials)) => Security::with(credentials),
            (None, None) => Ok(Security::none()),
        };
        let security = security.map_err(|error| unavailable(&error))?;
        let is_free = listen.as_ref().is_some_and(|at| at.place().ends_with(":0"));
        let before = listen.as_ref().filter(|_| is_free).and_then(|at| self.same_port(at));
        let options = GroupOptions {
            listen: before.clone().or_else(|| listen.clone()),
            // The version before has the address until it retires.
            listen_later: is_beside(&self.task.socket),
            conductor,
            security,
            congestion,
            hints,
            ..GroupOptions::new(self.task.socket.clone(), GroupHost { name, ..host })
        };
        let mut started = Collectives::start(options.clone());
        for _ in 0..TRIES {
            if before.is_none() || !matches!(started, Err(StartError::Listen(..))) {
                break;
            }
            // A process before that has not ended yet.
            std::thread::sleep(PAUSE);
            started = Collectives::start(options.clone());
        }
        let started = match started {
            Err(StartError::Listen(at, error)) if before.is_some() => {
                tracing::warn!("groups have another address than before: {at}: {error}");
                Collectives::start(GroupOptions { listen, ..options })
            }
            started => started,
        };
        let groups = started.map_err(|error| unavailable(&error))?;
        if let Some(address) = groups.address().filter(|_| is_free)
            && let Some((_, number)) = address.place().rsplit_once(':')
            && let Err(error) = std::fs::write(self.task.folder.join(PORT), number)
        {
            tracing::warn!("groups have another address after a restart: {PORT}: {error}");
        }
        Ok(groups)
    }

    /// Where services of other machines reach it, also where it waits until the version before does not listen any more.
    fn groups_at(&self, groups: &Collectives) -> Option<Address> {
        let listen = self.task.groups.listen.as_ref()?;
        groups.address().or_else(|| self.same_port(listen)).or_else(|| Some(listen.clone()))
    }

    /// The address with the port that it had last.
    fn same_port(&self, listen: &Address) -> Option<Address> {
        let port: u16 = std::fs::read_to_string(self.task.folder.join(PORT)).ok()?.trim().parse().ok()?;
        let (host, _) = listen.place().rsplit_once(':')?;
        Some(Address::tcp(format!("{host}:{port}")))
    }
}
