//! A controller in a folder of its own, and workers that have joined it.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tidemill_cluster::agent::{self, AgentError, AgentOptions};
use tidemill_cluster::api::{Bundle, BundleFile, Quota, Replan, Submission, TokenAnswer, TokenRequest};
use tidemill_cluster::blobs::digest;
use tidemill_cluster::client::Client;
use tidemill_cluster::controller::{Controller, ControllerOptions, Detection, Keeping, StoredFiles};
use tidemill_identity::{AccessToken, JoinAddress, Lifetimes};

/// Rows of a file into another one.
pub(crate) const ROWS: &str = "version: 1
name: rows
sources:
  - {id: rows, kind: csv, options: {path: rows.csv, columns: {n: int64}}}
sinks:
  - {id: kept, kind: jsonl, input: rows, options: {path: kept.jsonl}}
";

pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) admin: Client,
    pub(crate) address: JoinAddress,
    pub(crate) token: AccessToken,
    controller: Option<Controller>,
    end: Arc<AtomicBool>,
    agents: Vec<JoinHandle<Result<(), AgentError>>>,
}

impl Place {
    /// A submission of a workflow that reads `rows.csv`, its files sent.
    pub(crate) fn submission(&self, name: &str, workflow: &str) -> Submission {
        let mut bundle = Bundle { workflow: "workflow.yaml".into(), ..Bundle::default() };
        for (path, bytes) in [("workflow.yaml", workflow.as_bytes()), ("rows.csv", b"n\n1\n2\n")] {
            let file = BundleFile { path: path.into(), digest: digest(bytes), bytes: bytes.len() as u64 };
            self.admin.put(&format!("/v1/blobs/{}", file.digest), bytes).unwrap();
            bundle.files.push(file);
        }
        Submission {
            name: name.into(),
            bundle,
            plan: None,
            planning: None,
            replan: Replan::Off,
            quota: Quota::default(),
            records: None,
            sent_from: None,
            again: false,
        }
    }

    pub(crate) fn new() -> Self {
        Self::with(None)
    }

    /// With an object store for files.
    pub(crate) fn with(files: Option<StoredFiles>) -> Self {
        Self::made(files, Lifetimes::default(), Detection::default())
    }

    /// Sets the lifetimes of certificates.
    pub(crate) fn that_lives(lifetimes: Lifetimes) -> Self {
        Self::made(None, lifetimes, Detection::default())
    }

    /// Sets the time after which a silent worker is lost.
    pub(crate) fn that_waits_for_workers(time: Duration) -> Self {
        Self::made(None, Lifetimes::default(), Detection { time, phi: None })
    }

    fn made(files: Option<StoredFiles>, lifetimes: Lifetimes, detection: Detection) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ControllerOptions {
            lifetimes,
            detection,
            replan_pace: 1.0,
            metrics: None,
            folder: folder.path().join("controller"),
            listen: "127.0.0.1:0".to_owned(),
            listen_hosts: "127.0.0.1:0".to_owned(),
            names: vec!["127.0.0.1".to_owned()],
            traced: None,
            files,
            keeping: Keeping::default(),
            jobs: Default::default(),
        };
        let controller = Controller::start(&options).unwrap();
        let token = controller.first_admin(|_| Ok(())).unwrap().unwrap();
        let address = controller.address().clone();
        let text: String = token.reveal().to_string();
        let admin = Client::new(&address, Some(text.parse().unwrap())).unwrap();
        let (end, agents) = (Arc::new(AtomicBool::new(false)), Vec::new());
        Self { folder, admin, address, token, controller: Some(controller), end, agents }
    }

    /// Returns a token for `uses` workers.
    pub(crate) fn join_token(&self, uses: u32) -> String {
        let request = TokenRequest { uses: Some(uses), ..TokenRequest::default() };
        self.admin.post::<TokenAnswer>("/v1/join-tokens", &request).unwrap().token
    }

    /// Starts an agent whose processes are this command.
    pub(crate) fn agent(&mut self, name: &str, token: &str, command: &[&str]) {
        let options = self.options(name, token, command);
        self.agent_with(options);
    }

    /// Starts an agent.
    pub(crate) fn agent_with(&mut self, options: AgentOptions) {
        let end = Arc::clone(&self.end);
        self.agents.push(std::thread::spawn(move || agent::serve(&options, &end, |_| {})));
    }

    /// Settings of such an agent.
    pub(crate) fn options(&self, name: &str, token: &str, command: &[&str]) -> AgentOptions {
        AgentOptions {
            paths: Default::default(),
            traffic: Default::default(),
            capacity: Default::default(),
            metrics: None,
            folder: self.folder.path().join(name),
            controller: self.address.clone(),
            token: Some(token.to_owned()),
            name: Some(name.to_owned()),
            location: None,
            tier: None,
            worker_type: None,
            price: None,
            labels: BTreeMap::new(),
            address: Some([127, 0, 0, 1].into()),
            only_dials: false,
            cache_bytes: 1 << 30,
            files_port: 0,
            results: Vec::new(),
            command: command.iter().map(|part| (*part).to_owned()).collect(),
            net_command: Vec::new(),
            task_command: Vec::new(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        for agent in self.agents.drain(..) {
            let _ = agent.join();
        }
        if let Some(controller) = self.controller.take() {
            controller.end();
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{what}: not within 50 s");
}
