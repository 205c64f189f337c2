//! A worker that passes a model on dies while the model arrives there.
use crate::place::{Place, until};
use crate::roll_out::{submission, until_there};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_cluster::agent::{self, AgentError};
use tidemill_cluster::api::{FetchView, RunView};
use tidemill_identity::JoinAddress;

/// Bytes that a connection carries from the controller before the gate is open.
const FREE: u64 = 2 << 20;
/// Bytes of the model that all have before one dies.
const PART: u64 = 1 << 20;
const WORKERS: usize = 4;
/// Time after which a worker without heartbeats is lost.
const SILENCE: Duration = Duration::from_secs(30);

/// Stands between the controller and an agent.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
    /// Bytes from the controller.
    carried: AtomicU64,
    is_cut: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Gate {
    /// Returns the address of the gate, too.
    fn before(controller: &JoinAddress) -> (Arc<Self>, JoinAddress) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (gate, to) = (Arc::new(Self::default()), (controller.host().to_owned(), controller.port()));
        let of = Arc::clone(&gate);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Ok(other) = TcpStream::connect((to.0.as_str(), to.1)) else { continue };
                if of.is_cut.load(Ordering::Acquire) {
                    continue;
                }
                of.streams.lock().unwrap().extend([stream.try_clone().unwrap(), other.try_clone().unwrap()]);
                let mut up = (stream.try_clone().unwrap(), other.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut up.0, &mut up.1);
                    let _ = up.1.shutdown(Shutdown::Both);
                });
                let gate = Arc::clone(&of);
                std::thread::spawn(move || gate.carry(other, stream));
            }
        });
        let text = controller.to_string().replace(&format!(":{}", controller.port()), &format!(":{port}"));
        (gate, text.parse().unwrap())
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let (mut carried, mut buffer) = (0, vec![0; 16 << 10]);
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            carried += count as u64;
            if carried > FREE {
                drop(self.changed.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
            self.carried.fetch_add(count as u64, Ordering::AcqRel);
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.streams.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        self.open();
    }

    fn carried(&self) -> u64 {
        self.carried.load(Ordering::Acquire)
    }
}

struct Agent {
    name: String,
    gate: Arc<Gate>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), AgentError>>>,
}

impl Agent {
    fn start(place: &Place, name: &str, token: &str) -> Self {
        let (gate, address) = Gate::before(&place.address);
        // Its processes end at once: here it is about files.
        let mut options = place.options(name, token, &["false"]);
        options.controller = address;
        let end = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&end);
        let thread = Some(std::thread::spawn(move || agent::serve(&options, &until, |_| {})));
        Self { name: name.to_owned(), gate, end, thread }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        self.gate.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn workers_behind_one_that_dies_have_the_rest_from_elsewhere() {
    // One that a busy machine keeps silent is not lost: its part of the run would move to another one, and stay there.
    let place = Place::that_waits_for_workers(SILENCE);
    let token = place.join_token(WORKERS as u32);
    let mut agents: Vec<Agent> =
        (0..WORKERS).map(|number| Agent::start(&place, &format!("w{number:02}"), &token)).collect();
    until_there(&place, WORKERS);
    let (model, submission) = submission(&place, WORKERS);
    let of_model = submission.bundle.files[2].digest.clone();
    place.admin.post::<RunView>("/v1/runs", &submission).unwrap();

    // The controller sends it to one, and the others have what has arrived there, from it or from each other.
    let fetches = || -> Vec<FetchView> {
        let run: RunView = place.admin.get("/v1/runs/chain").unwrap();
        run.fetching.into_iter().filter(|fetch| fetch.path == "model.bin").collect()
    };
    let mut head = None;
    until("a part of the model has reached all", || {
        let now = fetches();
        head = now.iter().find(|fetch| fetch.from.is_none()).map(|fetch| fetch.worker.clone());
        now.len() == WORKERS && now.iter().all(|fetch| fetch.bytes > PART)
    });
    let head = head.unwrap();
    agents.retain(|agent| agent.name != head);
    let carried = || agents.iter().map(|agent| agent.gate.carried()).sum::<u64>();
    agents.iter().for_each(|agent| agent.gate.open());

    let file = |name: &str| place.folder.path().join(name).join("files").join(&of_model);
    until("all others have the model", || agents.iter().all(|agent| file(&agent.name).is_file()));
    for agent in &agents {
        assert!(std::fs::read(file(&agent.name)).unwrap() == model, "{}", agent.name);
    }
    assert!(!file(&head).is_file(), "it died before it had all");
    // The rest comes once, to one of them.
    let (rest, all) = (carried(), model.len() as u64);
    assert!(rest > all - FREE - PART, "{rest} of {all} bytes");
    assert!(rest < all - PART / 2, "{rest} of {all} bytes: what was there is not fetched again");
}
