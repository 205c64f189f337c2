//! A guard process beside an agent: if the agent is killed, it restores the original limits.
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use tidemill_app::listener::Listener;
use tidemill_elastic::record::Records;

/// The guard of this process; it ends with this.
pub(super) struct Guard {
    child: Child,
    input: Option<ChildStdin>,
}

impl Guard {
    /// Starts it for the record of this name.
    pub(super) fn start(name: &str) -> std::io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["elastic", "guard", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0) // Ctrl-C is for the agent
            .spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Waits for the end of the agent that started this process.
pub(super) fn guard(name: &str, terminal: &Terminal) -> anyhow::Result<Exit> {
    let _ = std::io::stdin().read_to_end(&mut Vec::new()); // whatever ends it: the agent is gone
    let records = Records::of_user();
    if let Some(record) = records.read(name)?.filter(|record| !record.is_alive()) {
        let (done, all) = (records.restore(&record), record.groups());
        terminal.note(&format!(
            "the agent was killed; restored the old limits of {done} of {all} containers of {name}"
        ));
    }
    Ok(Exit::Success)
}
