//! Simulated workers. Each has an identity of its own and speaks the protocol of agents; the hosts of its runs are
//! threads instead of processes. Several workers share a process.
use super::control::Controlled;
use super::now;
use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_app::listener::Silent;
use tidemill_app::preparation::{Judge, PlanFrom, Scope, load, prepare};
use tidemill_cluster::api::{Assignment, Capacity, Duties, HEARTBEAT_MILLISECONDS, Heartbeat, HostStatus};
use tidemill_cluster::blobs::Blobs;
use tidemill_cluster::client::Client;
use tidemill_engine::{HostOptions, serve_host};
use tidemill_identity::{Issued, JoinAddress, JoinRequest, WorkerFolder};
use tidemill_link::remote::{Address, Credentials, Security};

/// Workers per process: each needs some files, and threads for every source.
const TOGETHER: usize = 40;
/// Number of the plan of each run: no plan is changed here.
const FIRST_PLAN: u64 = 1;
/// Time for which a host continues without its coordinator.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns the name of a worker.
pub(super) fn name(number: usize) -> String {
    format!("w{number:03}")
}

/// The task of a process with workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    controller: String,
    token: String,
    folder: PathBuf,
    /// Address at which hosts listen.
    address: String,
    first: usize,
    count: usize,
}

/// The process's report at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Account {
    heartbeats: u64,
    failed: u64,
    slowest_milliseconds: u64,
}

/// Processes with simulated workers.
pub(super) struct Crowd {
    processes: Vec<(Child, Option<ChildStdin>, BufReader<std::process::ChildStdout>)>,
}

impl Crowd {
    /// Starts processes one after the other until this many workers have joined.
    pub(super) fn join(
        controller: &Controlled,
        address: &str,
        folder: &Path,
        count: usize,
    ) -> anyhow::Result<Self> {
        let mut crowd = Self { processes: Vec::new() };
        let token = controller.token(count)?;
        for first in (0..count).step_by(TOGETHER) {
            let task = Task {
                controller: controller.address().to_string(),
                token: token.clone(),
                folder: folder.to_owned(),
                address: address.to_owned(),
                first,
                count: TOGETHER.min(count - first),
            };
            let mut process = Command::new(std::env::current_exe()?)
                .args(["cluster-scale-workers", "--far-end", &serde_json::to_string(&task)?])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let input = process.stdin.take();
            let mut output = BufReader::new(process.stdout.take().context("it tells that all have joined")?);
            let mut line = String::new();
            output.read_line(&mut line)?;
            crowd.processes.push((process, input, output));
            ensure!(line.trim() == "joined", "workers from {first} on did not join: {line}");
        }
        Ok(crowd)
    }

    /// Ends all of them, and checks that all their heartbeats were answered.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        for (process, input, output) in &mut self.processes {
            *input = None;
            let mut line = String::new();
            output.read_line(&mut line)?;
            process.wait()?;
            let account: Account = serde_json::from_str(&line).context("a process with workers has died")?;
            println!("{account:?}");
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (process, ..) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Runs the workers of a process until its input ends.
pub(crate) fn serve(task: &str) -> anyhow::Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum })?;
    let workers: Vec<Worker> =
        (task.first..task.first + task.count).map(|n| Worker::join(&task, n)).collect::<Result<_, _>>()?;
    let end = Arc::new(AtomicBool::new(false));
    let counts = Arc::new(Counts::default());
    let period = Duration::from_millis(HEARTBEAT_MILLISECONDS);
    for (number, mut worker) in workers.into_iter().enumerate() {
        let (end, counts) = (Arc::clone(&end), Arc::clone(&counts));
        // Spread the heartbeats over the period.
        let wait = period.mul_f64(number as f64 / task.count as f64);
        std::thread::Builder::new().name(worker.name.clone()).spawn(move || {
            std::thread::sleep(wait);
            while !end.load(Ordering::Acquire) {
                let begin = now();
                worker.beat(&counts);
                std::thread::sleep(period.saturating_sub(begin.elapsed()));
            }
        })?;
    }
    println!("joined");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    end.store(true, Ordering::Release);
    println!("{}", serde_json::to_string(&counts.account())?);
    // Ends the threads of hosts with unfinished runs.
    std::process::exit(0)
}

#[derive(Default)]
struct Counts {
    heartbeats: AtomicU64,
    failed: AtomicU64,
    slowest: AtomicU64,
}

impl Counts {
    fn account(&self) -> Account {
        Account {
            heartbeats: self.heartbeats.load(Ordering::Acquire),
            failed: self.failed.load(Ordering::Acquire),
            slowest_milliseconds: self.slowest.load(Ordering::Acquire),
        }
    }
}

type Key = (String, String);
/// The error of a host that has ended; none: it runs.
type Ended = Arc<Mutex<Option<String>>>;

struct Worker {
    name: String,
    folder: PathBuf,
    address: String,
    controller: JoinAddress,
    client: Arc<Client>,
    credentials: Credentials,
    blobs: Arc<Blobs>,
    hosts: BTreeMap<Key, (u64, Ended)>,
    follows: Option<String>,
}

impl Worker {
    fn join(task: &Task, number: usize) -> anyhow::Result<Self> {
        let name = name(number);
        let folder = task.folder.join(&name);
        std::fs::create_dir_all(&folder)?;
        let controller: JoinAddress = task.controller.parse()?;
        let mut own = WorkerFolder::open(&folder.join("identity"))?;
        let request = JoinRequest {
            token: task.token.clone(),
            request_pem: own.request()?,
            name: Some(name.parse()?),
            location: Some("edge".parse()?),
            tier: Some("edge".parse()?),
        };
        let issued: Issued = Client::new(&controller, None)?.post("/v1/join", &request)?;
        let identity = own.install(&issued, controller.fingerprint())?;
        let credentials = Credentials::new(&identity.certificates)?;
        let client = Arc::new(Client::of_worker(&controller, &credentials)?);
        let blobs = Arc::new(Blobs::open(&folder.join("files"))?);
        let address = format!("{}:0", task.address);
        let (hosts, follows) = (BTreeMap::new(), None);
        Ok(Self { name, folder, address, controller, client, credentials, blobs, hosts, follows })
    }

    fn beat(&mut self, counts: &Counts) {
        let begin = now();
        let statuses = self.hosts.iter().map(|((run, role), (generation, ended))| HostStatus {
            run: run.clone(),
            role: role.clone(),
            generation: *generation,
            plan_version: FIRST_PLAN,
            ended: ended.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        });
        let heartbeat = Heartbeat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.name.clone(),
            capacity: Capacity { processors: 2.0, memory_bytes: 4 << 30, ..Capacity::default() },
            hosts: statuses.collect(),
            // Nothing answers there; finding the workers to measure and sending the result costs the same.
            measured_at: Some(format!("{}:9", self.address.trim_end_matches(":0"))),
            follows: self.follows.clone(),
            ..Heartbeat::default()
        };
        counts.heartbeats.fetch_add(1, Ordering::AcqRel);
        match self.client.post_again::<Duties>("/v1/heartbeat", &heartbeat) {
            Ok(duties) if duties.is_same => {}
            Ok(duties) => {
                self.follow(duties.assignments);
                self.follows = Some(duties.digest).filter(|digest| !digest.is_empty());
            }
            Err(error) => {
                eprintln!("{}: {error}", self.name);
                counts.failed.fetch_add(1, Ordering::AcqRel);
            }
        }
        let took = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        counts.slowest.fetch_max(took, Ordering::AcqRel);
    }

    fn follow(&mut self, wanted: Vec<Assignment>) {
        let key = |assignment: &Assignment| (assignment.run.clone(), assignment.role.clone());
        self.hosts.retain(|known, (generation, _)| {
            wanted.iter().any(|one| key(one) == *known && one.generation == *generation)
        });
        for assignment in wanted {
            let key = key(&assignment);
            if self.hosts.contains_key(&key) {
                continue;
            }
            let ended = Ended::default();
            self.hosts.insert(key, (assignment.generation, Arc::clone(&ended)));
            let folder = self.folder.join("runs").join(&assignment.run);
            let (client, blobs) = (Arc::clone(&self.client), Arc::clone(&self.blobs));
            let (credentials, address) = (self.credentials.clone(), self.address.clone());
            let host = self.controller.host().to_owned();
            let work = move || {
                let result = run(&assignment, &folder, (&client, &blobs), &credentials, (&host, address));
                let how = match result {
                    Ok(()) => "ended with exit code 0".to_owned(),
                    Err(error) => format!("{error:#}"),
                };
                *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
            };
            if let Err(error) = std::thread::Builder::new().name("host".into()).spawn(work) {
                eprintln!("{}: no thread for a host: {error}", self.name);
            }
        }
    }
}

/// Does the work of a host's process, on a thread.
fn run(
    assignment: &Assignment,
    folder: &Path,
    (client, blobs): (&Client, &Blobs),
    credentials: &Credentials,
    (controller, address): (&str, String),
) -> anyhow::Result<()> {
    for file in assignment.bundle.files.iter().filter(|file| !blobs.has(&file.digest)) {
        blobs.put(&file.digest, client.blob(&file.digest, file.bytes))?;
    }
    blobs.lay_out(&assignment.bundle, folder)?;
    let workflow = folder.join(&assignment.bundle.workflow);
    let lookup = |name: &str| assignment.bundle.variables.get(name).cloned();
    let workflow = load(&workflow, &lookup, Scope::Manifests, &Silent)?;
    let scope = Scope::Worker(&assignment.role, Judge::Elsewhere);
    let mut prepared = prepare(workflow, PlanFrom::Given(&assignment.plan), scope, &Silent)?;
    for (id, source) in &mut prepared.program.sources {
        if let Some(rate) = assignment.rates.get(id) {
            source.rate_per_second = *rate;
        }
    }
    let number = u128::from_str_radix(&assignment.secret, 16)?;
    let coordinator = Address::tcp(format!("{controller}:{}", assignment.coordinator_port));
    let mut options = HostOptions::local(&assignment.role, number, coordinator);
    options.security = Security::with(credentials)?;
    options.listen = Some(Address::tcp(address));
    options.patience = PATIENCE;
    options.plan_version = assignment.plan_version;
    serve_host(&prepared.program, options)?;
    Ok(())
}
