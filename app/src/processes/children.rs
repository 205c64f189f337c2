//! Start and end of the processes of workers.
use super::{LOOK, LineListener, TOKEN_VARIABLE, WorkerTask};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::HostLauncher;
use tidemill_engine::remote::Address;

/// Time that a process may take to leave.
const LEAVING: Duration = Duration::from_secs(10);
/// Time limit to learn the end of a process whose connection is lost.
const ENDING: Duration = Duration::from_secs(2);

/// The processes of a run.
pub(super) struct Processes {
    task: WorkerTask,
    command: Vec<String>,
    tell: LineListener,
    children: BTreeMap<String, Child>,
}

impl Processes {
    /// No process yet. Each will be started by `command`.
    pub(super) fn new(task: WorkerTask, command: Vec<String>, tell: LineListener) -> Self {
        Self { task, command, tell, children: BTreeMap::new() }
    }
}

impl HostLauncher for Processes {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let own = self.task.plan.stages.iter().filter(|stage| stage.worker == worker);
        let warm_ups = own.filter_map(|stage| self.task.warm_ups.get_key_value(&stage.id));
        let task = WorkerTask {
            worker: worker.to_owned(),
            coordinator: coordinator.clone(),
            warm_ups: warm_ups.map(|(stage, records)| (stage.clone(), records.clone())).collect(),
            ..self.task.clone()
        };
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err("no command is given".to_owned());
        };
        // A group of its own: Ctrl-C is for the process that coordinates, which ends the others in order.
        let mut child = Command::new(program)
            // Otherwise its library writes a file about the session even with telemetry off.
            .env("ORT_DISABLE_TELEMETRY", "1")
            .args(arguments)
            .env_remove(TOKEN_VARIABLE)
            .process_group(0)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        if let Some(errors) = child.stderr.take() {
            let (tell, worker) = (Arc::clone(&self.tell), worker.to_owned());
            let relay = move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    tell(&worker, &line);
                }
            };
            std::thread::Builder::new()
                .name("tm-relay".into())
                .spawn(relay)
                .map_err(|error| format!("cannot start the thread for its output: {error}"))?;
        }
        let line = serde_json::to_string(&task).map_err(|error| error.to_string())? + "\n";
        let written = child.stdin.take().map(|mut input| input.write_all(line.as_bytes()));
        self.children.insert(worker.to_owned(), child);
        match written {
            // It says itself why it ended before it has read its task.
            Some(Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn fate(&mut self, worker: &str) -> Option<String> {
        let mut child = self.children.remove(worker)?;
        match ended_within(&mut child, ENDING) {
            Some(status) => Some(in_words(status)),
            None => {
                end_now(&mut child);
                Some("stopped answering and was killed".to_owned())
            }
        }
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

    fn end(&mut self) {
        for (_, mut child) in std::mem::take(&mut self.children) {
            if ended_within(&mut child, LEAVING).is_none() {
                end_now(&mut child);
            }
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.children.values_mut().for_each(end_now);
    }
}

fn ended_within(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    for _ in 0..time.as_millis() / LOOK.as_millis() {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// A process that is gone already needs no end.
fn end_now(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Describes the end of a process: `was killed by signal 9`.
pub fn in_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_words() {
        let status = |script: &str| Command::new("sh").args(["-c", script]).status().unwrap();
        assert_eq!(in_words(status("exit 69")), "ended with exit code 69");
        assert_eq!(in_words(status("kill -9 $$")), "was killed by signal 9");
    }
}
