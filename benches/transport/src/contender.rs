//! Interface of a contender. Its three sides are in three processes: the harness starts it, its servers serve, and
//! its clients call.
use crate::load::{Load, Outcome, Scenario};
use crate::process::{Child, Room};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// One contender.
pub trait Contender: Sync {
    /// Its name in tables, and on command lines of this program.
    fn name(&self) -> String;

    /// The versions of what it is made of, or why it cannot be measured here, such as `not installed`.
    ///
    /// # Errors
    /// The reason.
    fn ready(&self) -> Result<String, String>;

    /// Whether it can do this at all.
    fn covers(&self, scenario: &Scenario) -> bool;

    /// Harness: starts servers, services and proxies. All that it starts goes through [`Room`], so that its processor time
    /// counts and nothing stays behind.
    ///
    /// # Errors
    /// When something does not start.
    fn start(&self, scenario: &Scenario, room: &Room) -> anyhow::Result<Running>;

    /// Server process, started by [`Room::server`]: prints `listening ADDRESS` ([`listening`]) and serves for ever.
    ///
    /// # Errors
    /// When it cannot.
    fn serve(&self, order: &Serve) -> anyhow::Result<()>;

    /// Client process: connects, warms up, passes the gate, measures. Asynchronous contenders implement
    /// [`crate::drive::Caller`] and pass it to [`crate::drive::run`].
    ///
    /// # Errors
    /// When it cannot connect.
    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome>;
}

/// Processes that were started; all of them end when this is dropped.
pub struct Running {
    /// Address for clients, in the contender's own words.
    pub target: String,
    /// Servers, services and proxies.
    pub processes: Vec<Child>,
}

/// Order to a server process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Serve {
    /// Address to listen on, with port 0 for any; or a path.
    pub listen: String,
    /// The next service of a chain: calls are passed on to it.
    pub next: Option<String>,
    /// Anything else that the contender wants to say to its server.
    pub more: String,
}

/// Tells the harness where a server listens.
pub fn listening(address: impl std::fmt::Display) {
    println!("listening {address}");
    let _ = std::io::stdout().flush();
}

/// Keeps clients from measuring before the harness has read the processor times.
pub struct Gate(());

impl Gate {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Says that all is warm, and waits for the harness.
    ///
    /// # Errors
    /// When the harness is gone.
    pub fn pass(&mut self) -> anyhow::Result<()> {
        println!("ready");
        std::io::stdout().flush()?;
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).context("the harness is gone")?;
        if line.trim() != "go" {
            bail!("the harness is gone");
        }
        Ok(())
    }
}

/// Name and version of a package that this program was built with.
pub fn locked(package: &str) -> String {
    let name = format!("name = \"{package}\"\nversion = \"");
    let version =
        include_str!("../Cargo.lock").split_once(&name).and_then(|(_, rest)| rest.split('"').next());
    format!("{package} {}", version.unwrap_or("?"))
}
