//! The links with the far end in another process, on this host or in a network namespace.
use super::{
    PATIENCE, ROUNDS_OF_PROCESSES, answer_pings, certificates, greeting, schema, send_all, send_pings,
    take_all,
};
use super::{raw_answer_pings, raw_send_all, raw_send_pings, raw_take_all, timely_exchange};
use crate::result::Measurement;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use tidemill_link::remote::{Address, Certificates, Listener, Role, Security, dial};

/// The measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    Pings,
    Volume,
}

/// Task of the far end: it listens, prints its address, and serves one connection.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    what: What,
    width: usize,
    /// `None`: a raw socket.
    link: Option<Protection>,
    /// An address of this host, or the path of a socket.
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Protection {
    None,
    Tls,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum At {
    Tcp(String),
    Unix(PathBuf),
}

/// Variable with the folder of both ends' certificates.
const CERTIFICATES: &str = "TIDEMILL_BENCH_CERTIFICATES";

fn security(folder: &Path, protection: Protection) -> anyhow::Result<Security> {
    if protection == Protection::None {
        return Ok(Security::none());
    }
    let read =
        |name: &str| std::fs::read(folder.join(name)).with_context(|| format!("no certificate {name}"));
    let files =
        Certificates { chain_pem: read("chain")?, key_pem: read("key")?, authority_pem: read("authority")? };
    Ok(Security::mutual(&files)?)
}

/// Does the work of the far end's process.
pub(crate) fn serve(task: &str) -> anyhow::Result<()> {
    let Task { what, width, link, at } = serde_json::from_str(task)?;
    let Some(protection) = link else {
        let At::Tcp(host) = at else { bail!("raw sockets are TCP") };
        let listener = TcpListener::bind(format!("{host}:0"))?;
        println!("{}", listener.local_addr()?);
        let stream = listener.accept()?.0;
        stream.set_nodelay(true)?;
        match what {
            What::Pings => raw_answer_pings(stream, width)?,
            What::Volume => raw_take_all(stream, width)?,
        }
        return Ok(());
    };
    let folder = PathBuf::from(std::env::var_os(CERTIFICATES).context("no folder of certificates")?);
    let security = security(&folder, protection)?;
    let address = match &at {
        At::Tcp(host) => Address::tcp(format!("{host}:0")),
        At::Unix(path) => Address::unix(path),
    };
    let (give, take) = sync_channel(1);
    let serving = Listener::bind(&address, &security)?.serve(move |incoming| {
        let _ = give.send(incoming.accept(&greeting(Role::Receiver)));
    })?;
    println!("{}", serving.address().place());
    let receiver = take.recv_timeout(PATIENCE)??.into_receiver(schema())?;
    match what {
        What::Pings => answer_pings(receiver),
        What::Volume => take_all(receiver, width),
    }
}

/// Place of the far end's process.
pub(super) struct Place {
    pub(super) name: &'static str,
    /// Its network namespace, where it has one.
    pub(super) namespace: Option<Namespace>,
    /// Address at which the far end listens.
    pub(super) far: String,
    /// Address for the near end.
    pub(super) near: String,
}

impl Place {
    /// Returns a command that starts this program at the far end's place.
    pub(super) fn command(&self, folder: &Path) -> anyhow::Result<Command> {
        let own = std::env::current_exe()?;
        let mut command = match &self.namespace {
            None => Command::new(own),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace.0]).arg(own);
                command
            }
        };
        command.env(CERTIFICATES, folder).stdout(Stdio::piped());
        Ok(command)
    }

    fn start(&self, folder: &Path, task: &Task) -> anyhow::Result<(Child, String)> {
        let mut command = self.command(folder)?;
        command.args(["remote-links-far-end", "--far-end", &serde_json::to_string(task)?]);
        let mut child = command.spawn()?;
        let mut line = String::new();
        let said = child.stdout.take().context("it says where it listens")?;
        BufReader::new(said).read_line(&mut line)?;
        ensure!(!line.trim().is_empty(), "the far end did not start");
        Ok((child, line.trim().to_owned()))
    }

    /// Measures the microseconds of each ping, or GB/s.
    fn measure(&self, folder: &Path, task: &Task) -> anyhow::Result<Vec<f64>> {
        let (mut child, said) = self.start(folder, task)?;
        let result = near_end(folder, task, said);
        if result.is_err() {
            let _ = child.kill();
        }
        let status = child.wait()?;
        let result = result?;
        ensure!(status.success(), "the far end ended with {status}");
        Ok(result)
    }
}

fn near_end(folder: &Path, task: &Task, said: String) -> anyhow::Result<Vec<f64>> {
    let Some(protection) = task.link else {
        let stream = TcpStream::connect(said)?;
        stream.set_nodelay(true)?;
        return match task.what {
            What::Pings => raw_send_pings(stream, task.width),
            What::Volume => Ok(vec![raw_send_all(stream, task.width)?]),
        };
    };
    let address = match task.at {
        At::Tcp(_) => Address::tcp(said),
        At::Unix(_) => Address::unix(said),
    };
    let connection = dial(&address, &security(folder, protection)?, &greeting(Role::Sender), PATIENCE)?;
    let sender = connection.into_sender(schema())?;
    match task.what {
        What::Pings => send_pings(sender, task.width),
        What::Volume => Ok(vec![send_all(sender, task.width)?]),
    }
}

/// A network namespace connected with this one; removed on drop.
pub(super) struct Namespace(String);

const NEAR: &str = "10.213.77.1";
const FAR: &str = "10.213.77.2";

impl Namespace {
    fn new() -> anyhow::Result<Self> {
        let name = format!("tidemill-{}", std::process::id());
        let (here, there) = (format!("tm{}a", std::process::id()), format!("tm{}b", std::process::id()));
        ip(&["netns", "add", &name])?;
        let namespace = Self(name.clone());
        ip(&["link", "add", &here, "type", "veth", "peer", "name", &there, "netns", &name])?;
        ip(&["addr", "add", &format!("{NEAR}/30"), "dev", &here])?;
        ip(&["link", "set", &here, "up"])?;
        ip(&["-n", &name, "addr", "add", &format!("{FAR}/30"), "dev", &there])?;
        ip(&["-n", &name, "link", "set", &there, "up"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Also removes the devices.
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run `ip`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

/// Measures everything with the far end in another process.
pub(super) fn measure() -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let made = certificates();
    for (name, bytes) in [("chain", made.chain_pem), ("key", made.key_pem), ("authority", made.authority_pem)]
    {
        std::fs::write(folder.path().join(name), bytes)?;
    }
    let loopback = "127.0.0.1".to_owned();
    let mut places =
        vec![Place { name: "two processes", namespace: None, far: loopback.clone(), near: loopback }];
    match Namespace::new() {
        Ok(namespace) => places.push(Place {
            name: "two network namespaces",
            namespace: Some(namespace),
            far: FAR.to_owned(),
            near: NEAR.to_owned(),
        }),
        Err(error) => println!("not measured between network namespaces: {error:#}"),
    }
    let mut measurements = Vec::new();
    for place in &places {
        for (what, name, width) in [
            (What::Pings, "1 KB and an answer", 1 << 10),
            (What::Pings, "64 KB and an answer", 64 << 10),
            (What::Volume, "64 KB a record", 64 << 10),
            (What::Volume, "1 MB a record", 1 << 20),
        ] {
            measurements.extend(compare(place, folder.path(), (what, name, width))?);
        }
    }
    Ok(measurements)
}

fn compare(
    place: &Place,
    folder: &Path,
    (what, name, width): (What, &str, usize),
) -> anyhow::Result<Vec<Measurement>> {
    let tcp = || At::Tcp(place.far.clone());
    let mut kinds = vec![
        ("raw TCP socket", Task { what, width, link: None, at: tcp() }),
        ("tcp", Task { what, width, link: Some(Protection::None), at: tcp() }),
        ("tcp with TLS", Task { what, width, link: Some(Protection::Tls), at: tcp() }),
    ];
    if place.namespace.is_none() {
        let at = At::Unix(folder.join("link.sock"));
        kinds.push(("unix", Task { what, width, link: Some(Protection::None), at }));
    }
    let mut samples = vec![Vec::new(); kinds.len()];
    let mut exchanged = Vec::new();
    for _ in 0..ROUNDS_OF_PROCESSES {
        for (at, (_, task)) in kinds.iter().enumerate() {
            samples[at].extend(place.measure(folder, task)?);
        }
        if what == What::Volume {
            exchanged.push(timely_exchange::measure(place, folder, width)?);
        }
    }
    let unit = if what == What::Pings { "us" } else { "GB/s" };
    let told = |kind: &str| format!("{}: {name}, {kind}", place.name);
    let mut measurements: Vec<Measurement> = kinds
        .iter()
        .zip(samples)
        .map(|((kind, task), samples)| {
            let measurement = Measurement::new(told(kind), unit, samples);
            if task.link.is_none() { measurement.baseline() } else { measurement }
        })
        .collect();
    if !exchanged.is_empty() {
        measurements.push(Measurement::new(told("exchange of timely"), unit, exchanged));
    }
    Ok(measurements)
}
