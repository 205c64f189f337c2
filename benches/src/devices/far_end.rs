//! Devices on threads of this process, and sessions with them over each kind of connection.
use super::relay::{Relay, Shape, exact_timers};
use anyhow::Context;
use std::io::Cursor;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{Artifact, Device, Limits, Loadable, ModelId, Opener};
use tidemill_device::emulated::{Emulated, ModelTimes, Profile, artifact_of};
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::session::Session;
use tidemill_device::store::Store;
use tidemill_link::remote::{Address, Greeting, Listener, Purpose, Security, Serving, dial};

const PATIENCE: Duration = Duration::from_secs(20);
/// Content of the emulated model.
const MODEL: &[u8] = b"a model";

/// A connection between a client and a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// A Unix socket between processes that share memory.
    Memory,
    /// A Unix socket.
    Socket,
    /// TCP over the loopback.
    Tcp,
    /// TCP through a relay.
    Link(Shape),
}

impl Way {
    /// Connections between processes of one host, with their names.
    pub(super) const ON_HOST: [(Self, &'static str); 3] =
        [(Self::Memory, "shared memory"), (Self::Socket, "Unix socket"), (Self::Tcp, "TCP")];
}

/// A host with a device and one model. Its files of models stay while it lives.
pub(super) struct Host {
    opener: Arc<dyn Opener>,
    artifact: Artifact,
    content: Vec<u8>,
    folder: tempfile::TempDir,
    sessions: AtomicU64,
}

impl Host {
    /// One with an emulated device whose runs take these milliseconds.
    pub(super) fn new(run_ms: f64) -> anyhow::Result<Self> {
        let others = ModelTimes { run_ms, ..ModelTimes::default() };
        let opener = Emulated::new(Profile { others, ..Profile::default() });
        Self::of(Arc::new(opener), artifact_of("model", MODEL, 1, 1), MODEL.to_vec())
    }

    /// One with this device and a model of one file.
    pub(super) fn of(opener: Arc<dyn Opener>, artifact: Artifact, content: Vec<u8>) -> anyhow::Result<Self> {
        Ok(Self { opener, artifact, content, folder: tempfile::tempdir()?, sessions: AtomicU64::new(0) })
    }

    /// The device in this process, with its model: what sessions are compared with.
    pub(super) fn here(&self) -> anyhow::Result<(Box<dyn Device>, ModelId)> {
        let mut device = self.opener.open(&Limits::default())?;
        let (model, path) = (ModelId(u64::MAX), self.folder.path().join(&self.artifact.files[0].name));
        std::fs::write(&path, &self.content)?;
        device.load(model, &Loadable { artifact: self.artifact.clone(), path })?;
        Ok((device, model))
    }

    /// A session with the device.
    pub(super) fn connect(&self, way: Way) -> anyhow::Result<Connected> {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let (models, place) =
            (self.folder.path().join("models"), self.folder.path().join(number.to_string()));
        let opener = Arc::clone(&self.opener);
        let device = move |carrier: Carrier| -> anyhow::Result<()> {
            exact_timers();
            let mut store = Store::open(&models, 1 << 30)?;
            serve(carrier, opener.as_ref(), &mut Everybody::default(), &mut store, &place)?;
            Ok(())
        };
        let (carrier, serving, relay, thread) = match way {
            Way::Memory | Way::Socket => {
                let (ours, theirs) = UnixStream::pair()?;
                let [ours, theirs] = [Carrier::of_socket(ours)?, Carrier::of_socket(theirs)?];
                let ours = if way == Way::Memory { ours } else { ours.without_memory() };
                (ours, None, None, spawn(move || device(theirs)))
            }
            Way::Tcp | Way::Link(_) => {
                let (give, take) = sync_channel(1);
                let listener = Listener::bind(&Address::tcp("127.0.0.1:0"), &Security::none())?;
                let serving = listener.serve(move |incoming| {
                    // It fails only after the client has failed.
                    let _ = give.send(incoming.accept(&greeting()));
                })?;
                let mut address = serving.address().clone();
                let relay = match way {
                    Way::Link(shape) => Some(Relay::start(address.place().parse()?, shape)?),
                    _ => None,
                };
                if let Some(relay) = &relay {
                    address = Address::tcp(relay.address().to_string());
                }
                let ours = dial(&address, &Security::none(), &greeting(), PATIENCE)?;
                let theirs = Carrier::of_stream(take.recv_timeout(PATIENCE)??.into_bytes());
                let ours = Carrier::of_stream(ours.into_bytes());
                (ours, Some(serving), relay, spawn(move || device(theirs)))
            }
        };
        let session = Session::open(carrier, "bench", "devices").context("no session")?;
        let model = session.load(&self.artifact, |_| Ok(Box::new(Cursor::new(self.content.clone()))))?;
        session.flush()?;
        Ok(Connected { session: Some(session), model, relay, _serving: serving, thread: Some(thread) })
    }
}

fn greeting() -> Greeting {
    Greeting {
        run: 1,
        plan_version: 1,
        purpose: Purpose::Device { client: "bench".to_owned(), tenant: None },
    }
}

/// A session, and the thread of its proxy.
pub(super) struct Connected {
    session: Option<Session>,
    /// The model.
    pub(super) model: ModelId,
    relay: Option<Relay>,
    _serving: Option<Serving>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl std::ops::Deref for Connected {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        drop(self.session.take());
        drop(self.relay.take());
        if let Some(thread) = self.thread.take() {
            // A session that was cut ends with an error.
            let _ = thread.join();
        }
    }
}
