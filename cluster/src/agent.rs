//! The agent on a machine: joins the cluster, sends heartbeats, and starts the processes that the controller assigns.
mod backends;
mod capacity;
mod counting;
mod fetching;
pub(crate) mod folders;
mod giving;
pub(crate) mod health;
mod hosts;
mod joining;
mod limits;
mod measuring;
mod metrics;
mod out_of_memory;
mod parts;
mod policies;
mod probing;
mod relay;
pub(crate) mod tasks;
mod transport;

pub(crate) use joining::{join, renew};

use self::transport::Transport;
use crate::api::{Duties, Fetching, Health, Heartbeat};
use crate::blobs::{BlobError, Blobs};
use crate::client::{Client, ClientError};
use crate::clock::instant;
use backends::Backends;
use capacity::Capacities;
pub use capacity::GivenCapacity;
use counting::Counting;
pub use counting::{LEAST_PERIOD, PERIOD, TrafficOptions};
use fetching::Fetcher;
use folders::Folders;
use giving::Giver;
use hosts::Hosts;
use measuring::Meter;
use metrics::Counts;
use parts::Parts;
use policies::Policies;
use probing::Prober;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tasks::Tasks;
use tidemill_app::metrics::MetricsPort;
pub use tidemill_hints::collect::Prefix;
use tidemill_identity::{IdentityError, JoinAddress, Serial, Timestamp, WorkerFolder};
use tidemill_link::remote::{Credentials, RemoteError};
use tidemill_service::{Host, Supervisor};

/// Number of the most recently used files that a worker reports as held.
const MOST_HELD: usize = 1_000;

/// Settings of an agent: how it joins, and the facts about its machine.
#[derive(Clone)]
pub struct AgentOptions {
    /// Its folder: identity, files, processes of runs.
    pub folder: PathBuf,
    /// Address of the controller.
    pub controller: JoinAddress,
    /// The token to join with, where it has not joined before.
    pub token: Option<String>,
    /// The name that it wants; none: that of the machine.
    pub name: Option<String>,
    /// Its location.
    pub location: Option<String>,
    /// Its tier.
    pub tier: Option<String>,
    /// Type of machine, as in profiles and infrastructures.
    pub worker_type: Option<String>,
    /// Its price in $/h.
    pub price: Option<f64>,
    /// The capacity that the machine gives to runs, where it is not detected.
    pub capacity: GivenCapacity,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Address at which other workers reach this machine; none: the address that it has towards the controller.
    pub address: Option<IpAddr>,
    /// Other workers cannot reach it: it dials them.
    pub only_dials: bool,
    /// Its paths to other hosts.
    pub paths: tidemill_session::Options,
    /// How the traffic of the machine is counted.
    pub traffic: TrafficOptions,
    /// Bytes of files that are kept for later runs.
    pub cache_bytes: u64,
    /// The port on which other workers fetch files from this one; 0: one that the system chooses.
    pub files_port: u16,
    /// Folders whose files are given as results where a sink names them by an absolute path.
    pub results: Vec<PathBuf>,
    /// The command that is a process of a run: it calls [`tidemill_app::processes::serve`].
    pub command: Vec<String>,
    /// The command that is the machine's transport service: it calls [`tidemill_app::net_process::serve`]. Empty: the machine has
    /// none.
    pub net_command: Vec<String>,
    /// The command that is the process of a task: it calls [`crate::task_process::serve`]. Its first word is the program of this worker.
    pub task_command: Vec<String>,
    /// Port for metrics.
    pub metrics: Option<Arc<MetricsPort>>,
}

/// The reason why an agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The controller.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Files.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// TLS.
    #[error(transparent)]
    Link(#[from] RemoteError),
    /// The system.
    #[error("{0}")]
    System(String),
    /// It has not joined, and has no token.
    #[error("this machine has not joined yet: give it a join token, from `tidemill token`")]
    NoToken,
}

/// Time limit of the answer to a heartbeat. It bounds how long a link that was cut and restored stays unnoticed.
const HEARD: Duration = Duration::from_secs(5);

/// Time that the first heartbeat waits for the list of backends.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Heartbeats that are refused one after another are sent again after twice as long each, but no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Least pause before the next heartbeat, whatever the controller asks for.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// Returns the pause before the next heartbeat, after a number of refusals.
fn pause_after(refusals: u32) -> Duration {
    let pause = Duration::from_millis(crate::api::HEARTBEAT_MILLISECONDS);
    pause.saturating_mul(1 << refusals.min(8)).min(LONGEST_PAUSE)
}

/// Pause after a failed renewal of the certificate.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);

/// Returns the pause before the next renewal, for a certificate that is valid for `left`: several tries fit into it.
pub(crate) fn renewal_pause(left: Duration) -> Duration {
    match left.is_zero() {
        true => RENEWAL_PAUSE,
        false => (left / 8).clamp(Duration::from_secs(1), RENEWAL_PAUSE),
    }
}

/// Runs an agent until `end` or an error ends it; calls `joined` with its name once that is known.
///
/// # Errors
/// It cannot join, or is no longer part of the cluster.
pub fn serve(
    options: &AgentOptions,
    end: &Arc<AtomicBool>,
    joined: impl FnOnce(&str),
) -> Result<(), AgentError> {
    tidemill_session::install().map_err(RemoteError::from)?;
    let mut folder = WorkerFolder::open(&options.folder.join("identity"))?;
    let names = [&options.name, &options.location, &options.tier].map(Option::as_deref);
    join(&options.controller, options.token.as_deref(), names, &mut folder)?;
    let Some(identity) = folder.current().cloned() else { return Err(AgentError::NoToken) };
    joined(identity.identity.worker().map_or("", |name| name.as_str()));
    let backends = Backends::new(&options.folder);
    let credentials = Credentials::new(&identity.certificates)?;
    let client = Arc::new(Client::of_worker(&options.controller, &credentials)?);
    let blobs = Arc::new(Blobs::with_limit(&options.folder.join("files"), options.cache_bytes)?);
    let folders = Folders::open(options.folder.join("runs"));
    let address = match options.address {
        Some(address) => address,
        None => own_address(&options.controller)?,
    };
    let system = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| AgentError::System(format!("{what}: {error}"))
    };
    // An agent that cannot be dialled gives no files.
    let giver =
        (!options.only_dials).then(|| Giver::start(address, options.files_port, &blobs, &credentials));
    let giver = giver.and_then(|giver| {
        giver
            .map_err(|error| {
                tracing::warn!("other workers cannot fetch files from this one: {address}: {error}")
            })
            .ok()
    });
    let files_at = giver.as_ref().map(|giver| SocketAddr::new(address, giver.port()).to_string());
    let parts = Parts::new(Client::of_worker(&options.controller, &credentials)?, &folders, &options.results);
    let fetcher = Fetcher::new(&client, &blobs, &credentials);
    let meter = Meter::default();
    let host = Host {
        folder: options.folder.join("services"),
        worker: identity.identity.worker().map_or_else(String::new, ToString::to_string),
        address,
        only_dials: options.only_dials,
        credentials: credentials.clone(),
    };
    let transport = Transport::new(options, address, &host.worker, &identity.certificates);
    let groups = transport.clone();
    let mut services = vec![(tidemill_service::LINKS, meter.service())];
    services.extend(transport.service().map(|service| (transport::NAME, service)));
    services.extend(tidemill_service::registered().iter().map(|of| (of.name, (of.make)())));
    let services =
        Arc::new(Supervisor::start(services, &host).map_err(system("cannot start the thread for services"))?);
    let files = options.folder.join("files");
    let counts = Arc::new(Counts::new(files, identity.facts.not_after, &services));
    if let Some(port) = &options.metrics {
        let told = Arc::clone(&counts);
        port.serve(move || metrics::text(&told), Vec::new)
            .map_err(system("cannot start the thread for metrics"))?;
    }
    let certificates = (identity.certificates, transport);
    let hosts = Hosts::new(options, address, &fetcher, &blobs, &folders, certificates)?;
    let health = health::first(files_at, hosts.no_control_groups());
    let settings = tasks::Settings {
        root: options.folder.join("jobs"),
        command: options.task_command.clone(),
        worker: host.worker.clone(),
        confinement: hosts.confinement(),
        transport: groups.clone(),
    };
    let tasks = Tasks::open(settings, &client, &fetcher, &blobs).map_err(AgentError::System)?;
    let session = tidemill_app::processes::secret_number().map_err(system("/dev/urandom"))?;
    let mut agent = Agent {
        capacities: Capacities::new(&options.capacity),
        backends,
        hosts,
        options,
        credentials,
        blobs,
        folders,
        tasks,
        // Exact in programs that read numbers of JSON as floating point.
        session: u64::try_from(session % (1 << 52)).unwrap_or(0) + 1,
        parts,
        prober: Prober::default(),
        meter,
        counting: Counting::start(&options.traffic),
        policies: Policies::start(transport::socket(&options.folder)),
        groups,
        services,
        health,
        held: None,
        lost_files: 0,
        of_hosts: BTreeSet::new(),
        follows: None,
        term: 0,
        renews_at: None,
    };
    let beats = Client::of_worker(&options.controller, &agent.credentials)?.with_patience(HEARD).at_once();
    let mut is_heard = true;
    let mut refusals = 0_u32;
    let mut soon = None;
    // Without a list of backends the controller may assign work that cannot run here.
    agent.backends.wait(FIRST_LOOK);
    while !end.load(Ordering::Acquire) {
        agent.renew_if_due(&mut folder, &beats, &client);
        let heartbeat = agent.heartbeat();
        let asked_at = tasks::asked_at();
        // A heartbeat may arrive twice.
        let answer = beats.post_again::<Duties>("/v1/heartbeat", &heartbeat);
        let expires = folder.current().map(|identity| identity.facts.not_after);
        counts.asked(answer.is_ok(), heartbeat.hosts.clone(), expires);
        match answer {
            Ok(duties) => {
                refusals = 0;
                soon = duties.pause_milliseconds.map(Duration::from_millis);
                if !std::mem::replace(&mut is_heard, true) {
                    tracing::info!("the controller is reachable again");
                }
                let place = beats.place();
                agent.was_heard(heartbeat);
                if !agent.follow(duties, &place, asked_at) {
                    tracing::warn!(
                        "{place} no longer leads, but does not know it: asking another controller"
                    );
                    beats.turn_from(&place);
                }
            }
            Err(error) if error.is_revocation() => {
                agent.tasks.end();
                agent.hosts.end();
                return Err(error.into());
            }
            Err(error) => {
                if error.is_refusal() {
                    refusals = refusals.saturating_add(1);
                }
                let is_of_task = |line: &crate::api::LogLine| line.run.starts_with(tasks::PREFIX);
                let (of_tasks, of_hosts) = heartbeat.logs.into_iter().partition(is_of_task);
                agent.tasks.log_again(of_tasks);
                agent.hosts.log_again(of_hosts);
                if std::mem::replace(&mut is_heard, false) {
                    tracing::warn!(
                        "{error}; the processes here continue, and the agent looks for the controller"
                    );
                }
            }
        }
        // Not while the controller is away.
        let soon = soon.take().filter(|_| refusals == 0).map(|pause| pause.max(LEAST_PAUSE));
        agent.hosts.look(soon.unwrap_or(pause_after(refusals)));
    }
    agent.tasks.end();
    agent.hosts.end();
    Ok(())
}

/// The state of an agent that has joined.
struct Agent<'a> {
    options: &'a AgentOptions,
    capacities: Capacities,
    backends: Backends,
    credentials: Credentials,
    blobs: Arc<Blobs>,
    folders: Arc<Folders>,
    tasks: Tasks,
    /// Number of this process, by which the controller knows that tasks of an earlier one have ended.
    session: u64,
    hosts: Hosts,
    parts: Parts,
    prober: Prober,
    meter: Meter,
    counting: Counting,
    policies: Policies,
    groups: Transport,
    services: Arc<Supervisor>,
    health: Health,
    /// Digests that the controller knows this worker to hold.
    held: Option<BTreeSet<String>>,
    /// Number of kept files that are gone and not yet reported to the controller.
    lost_files: u64,
    /// Digests of the files of the assignments that are followed.
    of_hosts: BTreeSet<String>,
    /// Digest of the assignments that are followed.
    follows: Option<String>,
    /// The last term of a controller that was followed.
    term: i64,
    /// When a renewal of the certificate is tried again that has failed.
    renews_at: Option<Instant>,
}

impl Agent<'_> {
    fn heartbeat(&mut self) -> Heartbeat {
        let lost = self.blobs.forget_missing() as u64;
        if lost > 0 {
            tracing::warn!(
                "{lost} kept files are missing in the folder of this worker: fetching the needed ones again"
            );
        }
        self.lost_files += lost;
        let held: BTreeSet<String> = self.blobs.held(MOST_HELD).into_iter().collect();
        let is_known = self.held.as_ref() == Some(&held);
        let (hosts, active) = (self.hosts.statuses(), self.hosts.runs());
        Heartbeat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: tidemill_machine::host_name(),
            worker_type: self.options.worker_type.clone(),
            price: self.options.price,
            capacity: self.capacities.look(),
            backends: self.backends.look(),
            labels: self.options.labels.clone(),
            only_dials: self.options.only_dials,
            paths: self.options.paths.paths.iter().map(|path| path.id.clone()).collect(),
            hosts,
            logs: self.hosts.take_logs().into_iter().chain(self.tasks.take_logs()).collect(),
            health: Some(health::now(&self.health, &self.options.folder, self.services.states())),
            held: (!is_known).then(|| held.into_iter().collect()),
            folders: self.folders.told(&active),
            probed: self.prober.found(),
            measured_at: self.meter.address().map(|address| address.to_string()),
            ways: self.meter.take(),
            traffic: self.counting.report(),
            follows: self.follows.clone(),
            lost_files: self.lost_files,
            net: self.policies.report(),
            fetching: Some(self.fetching()),
            groups_at: self.groups.groups_at(),
            session: self.session,
            tasks: out_of_memory::explained(self.tasks.statuses(), self.hosts.confinement().as_ref()),
        }
    }

    fn fetching(&self) -> Vec<Fetching> {
        let arriving = self.blobs.arriving().into_iter();
        arriving.map(|one| Fetching { digest: one.digest, bytes: one.bytes, from: one.from }).collect()
    }

    fn was_heard(&mut self, heartbeat: Heartbeat) {
        self.lost_files = self.lost_files.saturating_sub(heartbeat.lost_files);
        if let Some(held) = heartbeat.held {
            self.held = Some(held.into_iter().collect());
        }
        if let Some(probed) = heartbeat.probed {
            self.prober.was_told(probed.number);
        }
    }

    /// Does what the controller at this place says; false: it is not the one that leads any more.
    fn follow(&mut self, duties: Duties, place: &str, asked_at: u64) -> bool {
        if duties.term < self.term {
            return false;
        }
        self.term = duties.term;
        let revoked = duties.revoked.iter().filter_map(|serial| serial.parse::<Serial>().ok());
        self.credentials.revoked().replace(revoked);
        self.hosts.refuse(&duties.revoked);
        self.hosts.drain_paths(duties.drained_paths);
        self.policies.follow(duties.net_policies);
        self.groups.take_part(duties.groups);
        if duties.tell_held {
            self.held = None;
        }
        if !duties.is_same {
            let needed = duties.assignments.iter().flat_map(|one| &one.bundle.files);
            self.of_hosts = needed.map(|file| file.digest.clone()).collect();
        }
        let of_tasks = self.tasks.needed(duties.jobs.as_ref());
        self.blobs.need(self.of_hosts.union(&of_tasks).cloned().collect());
        if let Some(jobs) = duties.jobs {
            self.tasks.follow(jobs, asked_at);
        }
        if !duties.is_same {
            self.hosts.follow(duties.assignments, &duties.unsettled);
            self.follows = Some(duties.digest).filter(|digest| !digest.is_empty());
        }
        self.hosts.are_led_from(place.rsplit_once(':').map_or(place, |(host, _)| host));
        self.folders.remove(&duties.remove, &self.hosts.runs());
        self.parts.give(duties.parts);
        self.meter.follow(duties.measure);
        if let Some(probe) = duties.probe {
            self.prober.begin(probe, &self.credentials);
        }
        true
    }

    /// Asks for a new certificate once two thirds of the life of the present one are over, over the connection of heartbeats, which wait for the
    /// answer. Connections of `other` show it from then on, too.
    fn renew_if_due(&mut self, folder: &mut WorkerFolder, beats: &Client, other: &Client) {
        let (now, present) = (Timestamp::now(), folder.current().map(|identity| identity.facts.clone()));
        let Some(present) = present.filter(|facts| now >= facts.renewal_due()) else { return };
        if self.renews_at.is_some_and(|at| instant() < at) {
            return;
        }
        match renew(folder, beats, &self.options.controller, &self.credentials) {
            Ok(certificates) => {
                other.reconnect();
                self.hosts.renew(&certificates);
                self.renews_at = None;
                tracing::info!("renewed the certificate of this worker");
            }
            Err(error) => {
                self.renews_at = Some(instant() + renewal_pause(present.not_after.since(now)));
                tracing::warn!("cannot renew the certificate of this worker now: {error}");
            }
        }
    }
}

/// The address that this machine has towards the controller: the first one, of several, whose name is known.
fn own_address(controller: &JoinAddress) -> Result<IpAddr, AgentError> {
    let mut told = None;
    for place in controller.places() {
        match own_address_towards(&place) {
            Ok(address) => return Ok(address),
            Err(error) => drop(told.get_or_insert(AgentError::System(format!("{place}: {error}")))),
        }
    }
    Err(told.unwrap_or_else(|| AgentError::System(format!("{controller} does not name a controller"))))
}

fn own_address_towards(place: &str) -> std::io::Result<IpAddr> {
    // Nothing is sent: the system only chooses a route.
    let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
    match socket.connect(place).and_then(|()| socket.local_addr()) {
        Ok(own) => Ok(own.ip().to_canonical()),
        Err(_) => {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(place).and_then(|()| socket.local_addr()).map(|own| own.ip())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_heartbeats_come_less_and_less_often_and_never_end() {
        let pauses = [0, 1, 2, 3, 4, 5, u32::MAX].map(|refusals| pause_after(refusals).as_millis());
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
    }

    #[test]
    fn a_renewal_that_fails_is_tried_again_after_a_while_and_before_the_end() {
        let pause = |left: u64| renewal_pause(Duration::from_secs(left)).as_secs();
        assert_eq!([864_000, 480, 80, 4, 0].map(pause), [60, 60, 10, 1, 60]);
    }
}
