//! Machines in network namespaces of this host, and links of a rate and a delay between their sites; made by
//! `benches/experiments/cluster_network.py`, and removed on drop.
use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = "benches/experiments/cluster_network.py";
/// This process's machine.
const HERE: &str = "here";

#[derive(Debug, Deserialize)]
struct Machine {
    /// None: this process's namespace.
    namespace: Option<String>,
    address: String,
    device: String,
}

#[derive(Debug, Deserialize)]
struct MachinesReply {
    machines: BTreeMap<String, Machine>,
}

/// The network, see the module.
pub(crate) struct Network {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    machines: BTreeMap<String, Machine>,
}

/// Bytes received and sent by this process's machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    pub(crate) came: u64,
    pub(crate) left: u64,
}

impl Network {
    /// Creates machines at each site, for example `edge:1,hub:1,cloud:1`. This process is one more, at the hub.
    pub(crate) fn up(machines: &str) -> anyhow::Result<Self> {
        let mut process = Command::new("python3")
            .args([SCRIPT, "--here", "--machines", machines])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start python3 {SCRIPT}; run this in the repository"))?;
        let input = process.stdin.take();
        let mut output = BufReader::new(process.stdout.take().context("it tells its machines")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line.is_empty() {
            let status = process.wait()?;
            anyhow::bail!(
                "no network of namespaces here ({status}): that needs root, `ip`, `tc` and /dev/net/tun"
            );
        }
        let MachinesReply { machines } = serde_json::from_str(&line)?;
        Ok(Self { process, input, output, machines })
    }

    fn machine(&self, name: &str) -> anyhow::Result<&Machine> {
        self.machines.get(name).with_context(|| format!("there is no machine `{name}`"))
    }

    /// Returns the address of a machine.
    pub(crate) fn address(&self, machine: &str) -> anyhow::Result<&str> {
        Ok(&self.machine(machine)?.address)
    }

    /// Returns the address of this process's machine.
    pub(crate) fn here(&self) -> anyhow::Result<&str> {
        self.address(HERE)
    }

    /// Returns a command for a program on a machine.
    pub(crate) fn command(&self, machine: &str, program: &Path) -> anyhow::Result<Command> {
        let Some(namespace) = &self.machine(machine)?.namespace else { return Ok(Command::new(program)) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        Ok(command)
    }

    /// Reads the traffic of this process's machine.
    pub(crate) fn carried(&self) -> anyhow::Result<Carried> {
        let device = &self.machine(HERE)?.device;
        let bytes = |what: &str| -> anyhow::Result<u64> {
            let path = format!("/sys/class/net/{device}/statistics/{what}_bytes");
            Ok(std::fs::read_to_string(&path).context(path)?.trim().parse()?)
        };
        Ok(Carried { came: bytes("rx")?, left: bytes("tx")? })
    }

    /// Returns the bytes carried by each link between sites, by direction: `edge->hub`.
    pub(crate) fn bytes_of_links(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        let answer = self.tell("bytes")?;
        Ok(serde_json::from_value(answer["bytes"].clone())?)
    }

    fn tell(&mut self, order: &str) -> anyhow::Result<Value> {
        let input = self.input.as_mut().context("the network is down")?;
        writeln!(input, "{order}")?;
        input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line)?;
        ensure!(answer.get("error").is_none(), "{order}: {answer}");
        Ok(answer)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.input = None; // it ends with its input
        let _ = self.process.wait();
    }
}
