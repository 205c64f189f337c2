//! `heartbeat`: a service of each host that writes a file every second, so that other programs there see that the worker lives.
//!
//! The file `beat` in the folder of the service has the name of the worker and a number that grows. A reader finds it whole at any time.
//!
//! ```
//! use tidemill_extension::heartbeat::REGISTRATION;
//! assert!(tidemill_service::register(REGISTRATION));
//! assert!(tidemill_service::registered().iter().any(|service| service.name == "heartbeat"));
//! ```
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tidemill_service::{Figure, Host, HostService, Needs, Registration};

/// Time between two beats.
const EVERY: Duration = Duration::from_secs(1);

/// The registration of `heartbeat`; see the module.
pub const REGISTRATION: Registration =
    Registration { name: "heartbeat", needs: Needs::NONE, make: || Box::new(Heartbeat::default()) };

#[derive(Default)]
struct Heartbeat {
    beats: Arc<AtomicU64>,
    running: Option<Running>,
}

/// The thread that writes.
struct Running {
    /// Its end ends the thread.
    end: Sender<()>,
    thread: JoinHandle<Result<(), String>>,
}

/// The file of a worker.
struct Beat {
    path: PathBuf,
    worker: String,
    beats: Arc<AtomicU64>,
}

impl Beat {
    fn write(&self) -> Result<(), String> {
        let number = self.beats.fetch_add(1, Ordering::Relaxed) + 1;
        let next = self.path.with_extension("next");
        std::fs::write(&next, format!("{} {number}\n", self.worker))
            .and_then(|()| std::fs::rename(&next, &self.path))
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

impl Heartbeat {
    fn begin(&mut self, folder: &Path, worker: &str, every: Duration) -> Result<(), String> {
        let (path, worker, beats) = (folder.join("beat"), worker.to_owned(), Arc::clone(&self.beats));
        let beat = Beat { path, worker, beats };
        beat.write()?;
        let (end, ended) = channel();
        let write = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                beat.write()?;
            }
            Ok(())
        };
        let thread = Builder::new().name("heartbeat".to_owned()).spawn(write);
        let thread = thread.map_err(|error| format!("no thread: {error}"))?;
        self.running = Some(Running { end, thread });
        Ok(())
    }
}

impl HostService for Heartbeat {
    fn start(&mut self, host: &Host) -> Result<(), String> {
        self.begin(&host.folder, &host.worker, EVERY)
    }

    fn stop(&mut self) {
        if let Some(Running { end, thread }) = self.running.take() {
            drop(end);
            let _ = thread.join(); // a failure was reported as its health
        }
    }

    fn health(&mut self) -> Result<(), String> {
        match self.running.take_if(|running| running.thread.is_finished()) {
            Some(ended) => ended.thread.join().unwrap_or_else(|_| Err("it panicked".to_owned())),
            None => Ok(()),
        }
    }

    fn metrics(&self) -> Vec<Figure> {
        let value = self.beats.load(Ordering::Relaxed) as f64;
        vec![Figure { name: "tidemill_heartbeat_beats", help: "Beats since the worker started", value }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heart_beats_until_it_cannot() {
        let (folder, mut heart) = (tempfile::tempdir().unwrap(), Heartbeat::default());
        let own = folder.path().join("own");
        assert!(heart.begin(&own, "edge", EVERY).unwrap_err().contains("own/beat"), "there is no folder");
        std::fs::create_dir(&own).unwrap();
        heart.begin(&own, "edge", Duration::from_millis(1)).unwrap();
        assert!(std::fs::read_to_string(own.join("beat")).unwrap().starts_with("edge "));
        while heart.metrics()[0].value < 4.0 {
            std::thread::yield_now();
        }
        assert_eq!(heart.health(), Ok(()));
        std::fs::rename(&own, folder.path().join("elsewhere")).unwrap();
        let problem = std::iter::repeat_with(|| heart.health()).inspect(|_| std::thread::yield_now());
        assert!(problem.filter_map(Result::err).next().unwrap().contains("own/beat"));
        std::fs::create_dir(&own).unwrap();
        heart.begin(&own, "edge", EVERY).unwrap();
        heart.stop();
        assert!(heart.running.is_none());
    }
}
