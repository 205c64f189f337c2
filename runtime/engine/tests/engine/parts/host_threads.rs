//! Hosts as threads, as they would be processes.
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_engine::{HostOptions, Program, RunError, serve_host};

/// How a host ended.
pub(crate) type HostEnd = Result<(), RunError>;

/// Hosts that were started, by name; of each the last one.
#[derive(Default)]
pub(crate) struct HostThreads(BTreeMap<String, JoinHandle<HostEnd>>);

impl HostThreads {
    /// Starts a host. One at a time of each name: it waits for the one before, as the lock of workers has it.
    pub(crate) fn start(&mut self, program: &Program, options: HostOptions) {
        self.start_after(Duration::ZERO, program, options);
    }

    /// The same; its process takes so long until it is there.
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

    /// Whether a host of this name is there and has not ended.
    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|thread| !thread.is_finished())
    }

    /// Those that have ended.
    pub(crate) fn ended(&self) -> Vec<String> {
        let ended = self.0.iter().filter(|(_, thread)| thread.is_finished());
        ended.map(|(name, _)| name.clone()).collect()
    }

    /// What became of a host whose connection is lost: waits for its end.
    pub(crate) fn fate(&mut self, name: &str) -> Option<String> {
        let ended = self.0.remove(name)?.join().expect("no panic");
        Some(format!("ended with {ended:?}"))
    }

    /// Waits for all; how each ended.
    pub(crate) fn end(&mut self) -> Vec<(String, HostEnd)> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(name, thread)| (name, thread.join().expect("no panic"))).collect()
    }
}
