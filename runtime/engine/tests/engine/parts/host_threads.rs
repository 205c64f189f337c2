//! Hosts as threads, in place of processes.
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_engine::{HostOptions, Program, RunError, serve_host};

/// Result of a host.
pub(crate) type HostEnd = Result<(), RunError>;

/// Started hosts by name, the latest of each.
#[derive(Default)]
pub(crate) struct HostThreads(BTreeMap<String, JoinHandle<HostEnd>>);

impl HostThreads {
    /// Starts a host. One at a time of each name: it waits for the previous one, as workers do by their lock.
    pub(crate) fn start(&mut self, program: &Program, options: HostOptions) {
        self.start_after(Duration::ZERO, program, options);
    }

    /// Starts a host whose process takes `delay` to come up.
    pub(crate) fn start_after(&mut self, delay: Duration, program: &Program, options: HostOptions) {
        let (name, program) = (options.name.clone(), program.clone());
        let before = self.0.remove(&name);
        let host = move || {
            before.map(JoinHandle::join);
            std::thread::sleep(delay);
            serve_host(&program, options)
        };
        self.0.insert(name, std::thread::spawn(host));
    }

    /// Whether a host of this name is running.
    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|thread| !thread.is_finished())
    }

    /// Names of the ended hosts.
    pub(crate) fn ended(&self) -> Vec<String> {
        let ended = self.0.iter().filter(|(_, thread)| thread.is_finished());
        ended.map(|(name, _)| name.clone()).collect()
    }

    /// Result of a host whose connection is lost; waits for its end.
    pub(crate) fn fate(&mut self, name: &str) -> Option<String> {
        let ended = self.0.remove(name)?.join().expect("no panic");
        Some(format!("ended with {ended:?}"))
    }

    /// Waits for all; returns their results.
    pub(crate) fn end(&mut self) -> Vec<(String, HostEnd)> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(name, thread)| (name, thread.join().expect("no panic"))).collect()
    }
}
