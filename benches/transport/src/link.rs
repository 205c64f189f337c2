//! A link of 200 Mbit/s between two network namespaces. Only root can make it.
use crate::load::Link;
use crate::process::{prefix, remember_namespace};
use anyhow::{Context, ensure};
use std::process::Command;

fn ip(words: &str) -> anyhow::Result<()> {
    run("ip", words)
}

fn run(program: &str, words: &str) -> anyhow::Result<()> {
    let output = Command::new(program).args(words.split_whitespace()).output();
    let output = output.with_context(|| format!("{program} is not installed"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {words}: {}", why.trim());
    Ok(())
}

/// Shape of the traffic of the two ends.
pub const SHAPE: &str = "tbf rate 200mbit burst 64kb latency 50ms";

/// Makes it; it goes with the harness.
///
/// # Errors
/// Why there is none here.
pub fn make() -> anyhow::Result<Link> {
    ensure!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let prefix = prefix(std::process::id());
    let (client, server) = (format!("{prefix}client"), format!("{prefix}server"));
    for namespace in [&client, &server] {
        ip(&format!("netns add {namespace}"))?;
        remember_namespace(namespace);
    }
    ip(&format!("-n {client} link add tmb0 type veth peer name tmb0 netns {server}"))?;
    for (namespace, address) in [(&client, "10.231.7.1"), (&server, "10.231.7.2")] {
        ip(&format!("-n {namespace} addr add {address}/24 dev tmb0"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!("-n {namespace} link set tmb0 up"))?;
        run("tc", &format!("-n {namespace} qdisc add dev tmb0 root {SHAPE}"))?;
    }
    Ok(Link { client, server, address: "10.231.7.2".into() })
}
