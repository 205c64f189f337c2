//! The process of a transport service, which a supervisor starts, restarts and replaces.
use crate::failure::{Failure, Kind};
use crate::processes::{CertificateTexts, follow_agent, refuse};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_collective::service::{Collectives, Options as GroupOptions};
use tidemill_collective::topology::Host;
use tidemill_engine::remote::{Address, Credentials, Security};
use tidemill_net::gateway::{Gateway, GrpcServer};
use tidemill_net::supervise::{FromChild, ToChild, is_beside, read, write};
use tidemill_net::{Options, Service, Upgrade};
use tidemill_session::Options as SessionOptions;

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
    pub host: Host,
    /// Where services of other machines reach it; none: groups are of this machine only.
    #[serde(default)]
    pub listen: Option<Address>,
    /// The service that introduces ranks; none: this one.
    #[serde(default)]
    pub conductor: Option<Address>,
    /// Certificates for that; none: it goes without.
    #[serde(default)]
    pub certificates: Option<CertificateTexts>,
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
                child.groups = None;
                let programs = child.service.take().map_or(0, |service| service.programs());
                say(&FromChild::Retired { programs });
            }
            Some(ToChild::Resume {}) => child.start()?,
            Some(ToChild::Upgraded(problem)) => {
                let waits = child.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
                waits.into_iter().for_each(|upgrade| upgrade.answer(problem.clone()));
            }
            None => {
                if let Some(credentials) = &child.credentials
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
        self.groups = Some(self.start_groups()?);
        let NetTask { socket, grpc, grpc_servers, .. } = &self.task;
        if grpc.is_some() || !grpc_servers.is_empty() {
            let gateway = Gateway::start(socket, *grpc, grpc_servers.clone());
            self.gateway = Some(gateway.map_err(|error| unavailable(&error))?);
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        say(&FromChild::Ready { public: service.public().cloned(), version });
        self.service = Some(service);
        Ok(())
    }

    fn start_groups(&self) -> Result<Collectives, Failure> {
        let unavailable = |error: &dyn std::fmt::Display| told(Kind::Unavailable, error.to_string());
        let GroupsPart { host, listen, conductor, certificates } = self.task.groups.clone();
        let name = if host.name.is_empty() { tidemill_machine::host_name() } else { host.name };
        let security = match &certificates {
            Some(texts) => Security::mutual(&texts.certificates()).map_err(|error| unavailable(&error))?,
            None => Security::none(),
        };
        let options = GroupOptions {
            listen,
            // The version before has the address until it retires.
            listen_later: is_beside(&self.task.socket),
            conductor,
            security,
            ..GroupOptions::new(self.task.socket.clone(), Host { name, ..host })
        };
        Collectives::start(options).map_err(|error| unavailable(&error))
    }
}
