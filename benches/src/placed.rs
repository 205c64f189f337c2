//! Runs a plan whose workers are in this process, in processes of this host, or on machines in network namespaces.
use crate::network::Network;
use crate::remote_links::certificates;
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tidemill_app::levels;
use tidemill_app::listener::Silent;
use tidemill_app::preparation::{PlanFrom, Prepared, prepare_here};
use tidemill_app::processes::{in_words, secret_number};
use tidemill_app::run_options::run_options;
use tidemill_engine::{HostLauncher, Hosts, Listen, Run, RunReport};
use tidemill_link::remote::{Address, Certificates, Security};

/// The place of a plan's workers.
pub(crate) enum Place<'a> {
    /// Slots of this process.
    Here,
    /// A process of this host for each, as with `run --processes`.
    Processes,
    /// A process for each, on the machine of that name, connected by TLS as in a cluster.
    Machines(&'a Network, BTreeMap<String, String>),
}

/// Time limit for the end of a process.
const ENDING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// Reads a workflow and a plan, and runs it; each source ends after this number of records.
pub(crate) fn run(
    workflow: &Path,
    plan: &Path,
    records: u64,
    binary: &Path,
    place: &Place<'_>,
) -> anyhow::Result<RunReport> {
    let mut prepared = prepare_here(workflow, PlanFrom::File(plan), &Silent)?;
    let _ = levels::settle(&mut prepared, None, &Silent);
    let mut options = run_options(&prepared, None, None)?;
    options.records = Some(records);
    options.hosts = hosts((workflow, plan), &prepared, binary, place)?;
    let report = Run::start(prepared.program, options)?.wait()?;
    ensure!(report.complete, "the run of {} is not complete", workflow.display());
    Ok(report)
}

fn hosts(
    (workflow, plan): (&Path, &Path),
    prepared: &Prepared,
    binary: &Path,
    place: &Place<'_>,
) -> anyhow::Result<Option<Hosts>> {
    let run = secret_number()?;
    let rates: BTreeMap<_, _> =
        prepared.program.sources.iter().map(|(id, source)| (id, source.rate_per_second)).collect();
    let task = json!({
        "workflow": std::path::absolute(workflow)?,
        "plan": prepared.program.plan,
        "rates": rates,
        "run": format!("{run:032x}"),
        "parent": std::process::id(),
        "lock": null,
    });
    let mut launcher = Launcher { task, worker: Worker::Local(binary.to_owned()), children: BTreeMap::new() };
    let listen = match place {
        Place::Here => return Ok(None),
        Place::Processes => Listen::At(Address::tcp("127.0.0.1:0"), Security::none()),
        Place::Machines(network, machines) => {
            let made = certificates();
            let mut commands = BTreeMap::new();
            for (worker, machine) in machines {
                let mut command = network.command(machine, binary)?;
                command.arg("worker-process");
                commands.insert(worker.clone(), (command, format!("{}:0", network.address(machine)?)));
            }
            let address = Address::tcp(format!("{}:0", network.here()?));
            let security = Security::mutual(&made)?;
            let kept = std::path::absolute(plan.with_extension("kept"))?;
            launcher.worker = Worker::Placed { commands, certificates: texts(&made), kept };
            Listen::At(address, security)
        }
    };
    Ok(Some(Hosts { launcher: Box::new(launcher), run, plan_version: 0, listen }))
}

fn texts(certificates: &Certificates) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({
        "chain": text(&certificates.chain_pem),
        "key": text(&certificates.key_pem),
        "authority": text(&certificates.authority_pem),
    })
}

/// Start of the workers' processes.
enum Worker {
    Local(PathBuf),
    /// By worker: its command, and the address at which it listens.
    Placed {
        commands: BTreeMap<String, (Command, String)>,
        certificates: Value,
        /// Folder for the files that a cluster keeps of a run: next to the plan.
        kept: PathBuf,
    },
}

struct Launcher {
    /// The task of all processes.
    task: Value,
    worker: Worker,
    children: BTreeMap<String, Child>,
}

impl Launcher {
    fn start(&mut self, worker: &str, coordinator: &Address) -> anyhow::Result<Child> {
        let mut task = self.task.clone();
        task["worker"] = json!(worker);
        task["coordinator"] = json!(coordinator);
        let mut local;
        let command = match &mut self.worker {
            Worker::Local(binary) => {
                local = Command::new(binary);
                local.arg("worker-process");
                &mut local
            }
            Worker::Placed { commands, certificates, kept } => {
                let (command, listen) = commands.get_mut(worker).context("it has no machine")?;
                let listen = Address::tcp(listen.clone());
                task["cluster"] = json!({
                    "certificates": certificates, "listen": listen, "patience_seconds": 0, "kept": kept,
                });
                command
            }
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let mut input = child.stdin.take().context("it reads its task")?;
        writeln!(input, "{task}")?;
        // Left open: it carries further certificates.
        child.stdin = Some(input);
        Ok(child)
    }
}

impl HostLauncher for Launcher {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let child =
            self.start(worker, coordinator).map_err(|error| format!("worker '{worker}': {error:#}"))?;
        self.children.insert(worker.to_owned(), child);
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        for (worker, child) in &mut self.children {
            if matches!(child.try_wait(), Ok(Some(_))) {
                ended.push(worker.clone());
            }
        }
        ended
    }

    fn fate(&mut self, worker: &str) -> Option<String> {
        let mut child = self.children.remove(worker)?;
        Some(end(&mut child).map_or_else(|| "did not end".to_owned(), in_words))
    }

    fn end(&mut self) {
        for (_, mut child) in std::mem::take(&mut self.children) {
            end(&mut child);
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        HostLauncher::end(self);
    }
}

/// Waits for the end of a process, and kills it after the time limit.
fn end(child: &mut Child) -> Option<ExitStatus> {
    for _ in 0..ENDING.as_millis() / LOOK.as_millis() {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(LOOK);
    }
    let _ = child.kill();
    child.wait().ok()
}
