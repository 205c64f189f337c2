//! The measured controller: a process on a machine of its own, used through its API.
use super::now;
use super::work::Work;
use crate::network::Network;
use anyhow::{Context, bail, ensure};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use tidemill_cluster::api::{RunState, RunView, TokenAnswer, TokenRequest};
use tidemill_cluster::bundle;
use tidemill_cluster::client::Client;
use tidemill_identity::{AccessToken, JoinAddress};
use tidemill_machine::Process;

/// The controller's machine.
const MACHINE: &str = "hub-1";
/// Interval between two polls of a run.
const LOOK: Duration = Duration::from_millis(20);

/// Resources that a controller has used so far, or per second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spent {
    /// Seconds of processor time.
    pub(super) processor: f64,
    /// Received bytes.
    pub(super) came: f64,
    /// Sent bytes.
    pub(super) left: f64,
    /// Bytes of memory, at present.
    pub(super) memory: f64,
    /// Threads, at present.
    pub(super) threads: f64,
}

/// The controller, see the module; its process ends on drop.
pub(super) struct Controlled {
    process: Child,
    address: JoinAddress,
    client: Client,
}

impl Controlled {
    pub(super) fn start(network: &Network, binary: &Path, state: &Path) -> anyhow::Result<Self> {
        let own = network.address(MACHINE)?;
        let mut command = network.command(MACHINE, binary)?;
        command.args(["controller", "--name", own, "--state"]).arg(state);
        command.args(["--listen", &format!("{own}:7420"), "--listen-hosts", &format!("{own}:7421")]);
        let mut process = command.stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(process.stderr.take().context("it tells its address")?).lines();
        let mut told = String::new();
        let address: JoinAddress = loop {
            let Some(line) = lines.next().transpose()? else { bail!("the controller ended: {told}") };
            if let Some((_, address)) = line.split_once("controller at ") {
                break address.trim().parse()?;
            }
            told += &line;
        };
        std::thread::spawn(move || lines.for_each(drop));
        let path = state.join("admin.token");
        let begin = now();
        while !std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')) {
            ensure!(begin.elapsed() < Duration::from_secs(10), "no access token in {}", path.display());
            std::thread::sleep(LOOK);
        }
        let token = std::fs::read_to_string(&path)?;
        let token: AccessToken = token.trim().parse()?;
        let client = Client::new(&address, Some(token))?;
        Ok(Self { process, address, client })
    }

    pub(super) fn address(&self) -> &JoinAddress {
        &self.address
    }

    /// Creates a join token for this number of workers.
    pub(super) fn token(&self, uses: usize) -> anyhow::Result<String> {
        let request = TokenRequest { uses: Some(u32::try_from(uses)?), ..TokenRequest::default() };
        Ok(self.client.post::<TokenAnswer>("/v1/join-tokens", &request)?.token)
    }

    pub(super) fn spent(&self, network: &Network) -> anyhow::Result<Spent> {
        let process = Process::of(self.process.id());
        let carried = network.carried()?;
        Ok(Spent {
            processor: process.time().context("the controller is gone")?.as_secs_f64(),
            // Bytes that leave this machine arrive at the controller.
            came: carried.left as f64,
            left: carried.came as f64,
            memory: process.status().resident().unwrap_or_default() as f64,
            threads: process.threads() as f64,
        })
    }

    /// Measures the consumption per second over this time.
    pub(super) fn during(&self, network: &Network, time: Duration) -> anyhow::Result<Spent> {
        let (begin, before) = (now(), self.spent(network)?);
        std::thread::sleep(time);
        let (after, seconds) = (self.spent(network)?, begin.elapsed().as_secs_f64());
        Ok(Spent {
            processor: (after.processor - before.processor) / seconds,
            came: (after.came - before.came) / seconds,
            left: (after.left - before.left) / seconds,
            ..after
        })
    }

    /// Submits a run; returns the time until the answer, without the upload of files.
    pub(super) fn submit(&self, work: &Work) -> anyhow::Result<Duration> {
        let gathered = bundle::gather(&work.workflow)?;
        let digests: Vec<&String> = gathered.files.keys().collect();
        for digest in self.client.post::<Vec<String>>("/v1/blobs/missing", &digests)? {
            let path = gathered.files.get(&digest).context("the controller misses what nobody has")?;
            self.client.put(&format!("/v1/blobs/{digest}"), &std::fs::read(path)?)?;
        }
        let submission = json!({"name": work.name, "bundle": gathered.bundle, "plan": work.plan});
        let begin = now();
        self.client.post::<RunView>("/v1/runs", &submission)?;
        Ok(begin.elapsed())
    }

    /// Waits until records leave the sources of a run.
    pub(super) fn until_running(&self, run: &str, most: Duration) -> anyhow::Result<()> {
        let begin = now();
        loop {
            let view: RunView = self.client.get(&format!("/v1/runs/{run}"))?;
            match view.state {
                RunState::Running => return Ok(()),
                RunState::Starting | RunState::Waiting if begin.elapsed() < most => std::thread::sleep(LOOK),
                state => bail!("run {run} is {state} after {:?}: {:?}", begin.elapsed(), view.reason),
            }
        }
    }

    /// Cancels a run and waits until it is over.
    pub(super) fn cancel(&self, run: &str) -> anyhow::Result<()> {
        let mut view: RunView = self.client.delete(&format!("/v1/runs/{run}"))?;
        let begin = now();
        while !view.state.is_over() {
            ensure!(begin.elapsed() < super::HANG, "run {run} is not cancelled");
            std::thread::sleep(LOOK);
            view = self.client.get(&format!("/v1/runs/{run}"))?;
        }
        Ok(())
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
