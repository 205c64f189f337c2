//! The cameras of a source: which there are, and the thread that drives them while there is a reader.
use crate::board::{Board, Place};
use crate::camera::{Camera, Origin, Settings, Via, Wish, drive};
use futures_util::FutureExt;
use retina::client::SessionGroup;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus, Feeds};
use tidemill_random::Random;
use tokio::sync::{mpsc, watch};

/// Longest time for farewells to cameras.
const FAREWELL: Duration = Duration::from_secs(1);
/// Wait after a defect in the task of a camera.
const AFTER_DEFECT: Duration = Duration::from_secs(10);

/// Kind of the feeds of a hub.
#[derive(Clone, Copy)]
pub(crate) struct FeedKind {
    /// Its name in messages: camera, microphone.
    pub(crate) noun: &'static str,
    /// Reads the address in an order; the error has no secrets.
    pub(crate) parse: fn(&str) -> Result<Origin, String>,
    /// Most records of a feed that wait.
    pub(crate) keeps: usize,
}

/// See the module.
pub(crate) struct Hub {
    board: Arc<Board>,
    kind: FeedKind,
    settings: Arc<Settings>,
    via: Via,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    cameras: BTreeMap<String, Wanted>,
    running: Option<Running>,
    /// Readers so far.
    readers: u64,
}

struct Wanted {
    origin: Origin,
    place: Place,
    /// Kept by the task of the camera, which ends when this is dropped.
    wish: watch::Sender<Wish>,
}

struct Running {
    commands: mpsc::UnboundedSender<(Camera, watch::Receiver<Wish>)>,
    thread: JoinHandle<()>,
    group: Arc<SessionGroup>,
    reader: u64,
}

/// Cameras that run; dropping it ends them.
pub(crate) struct Run {
    hub: Arc<Hub>,
    reader: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        let running = {
            let mut inner = self.hub.lock();
            let is_mine = inner.running.as_ref().is_some_and(|running| running.reader == self.reader);
            let running = if is_mine { inner.running.take() } else { None };
            if running.is_some() {
                inner.rest();
            }
            running
        };
        if let Some(running) = running {
            running.end();
        }
    }
}

impl Running {
    fn end(self) {
        drop(self.commands);
        let _ = self.thread.join();
    }
}

impl Inner {
    /// Ends the tasks of all cameras.
    fn rest(&mut self) {
        for wanted in self.cameras.values_mut() {
            let wish = *wanted.wish.borrow();
            // The sender of the tasks is dropped.
            wanted.wish = watch::Sender::new(wish);
            wanted.place.turn(if wish.is_paused { FeedState::Paused } else { FeedState::Connecting });
        }
    }
}

impl Hub {
    pub(crate) fn new(
        kind: FeedKind,
        feeds: impl IntoIterator<Item = (String, Origin)>,
        settings: Settings,
        via: Via,
    ) -> Self {
        let board = Arc::new(Board::keeping(kind.keeps));
        let wanted = |(name, origin): (String, Origin)| {
            let place = board.add(&name, settings.most, FeedState::Connecting);
            (name, Wanted { origin, place, wish: watch::Sender::new(Wish::default()) })
        };
        let cameras = feeds.into_iter().map(wanted).collect();
        let inner = Mutex::new(Inner { cameras, running: None, readers: 0 });
        Self { board, kind, settings: Arc::new(settings), via, inner }
    }

    pub(crate) fn board(&self) -> &Arc<Board> {
        &self.board
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts all cameras, for a new reader. An earlier reader has none from then on.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<Run> {
        let before = {
            let mut inner = self.lock();
            inner.rest();
            inner.running.take()
        };
        if let Some(before) = before {
            before.end();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (commands, received) = mpsc::unbounded_channel();
        let group = Arc::new(SessionGroup::default());
        let kept = Arc::clone(&group);
        let run = move || runtime.block_on(run(received, &kept));
        let thread = std::thread::Builder::new().name("cameras".into()).spawn(run)?;
        let mut inner = self.lock();
        inner.readers += 1;
        let reader = inner.readers;
        let running = Running { commands, thread, group, reader };
        for wanted in inner.cameras.values() {
            self.begin(wanted, &running);
        }
        inner.running = Some(running);
        Ok(Run { hub: Arc::clone(self), reader })
    }

    fn begin(&self, wanted: &Wanted, running: &Running) {
        let camera = Camera {
            place: wanted.place.clone(),
            origin: wanted.origin.clone(),
            settings: Arc::clone(&self.settings),
            via: self.via.clone(),
            group: Arc::clone(&running.group),
        };
        // The thread ends after this sender only.
        let _ = running.commands.send((camera, wanted.wish.subscribe()));
    }

    fn turn(&self, feed: &str, is_paused: bool) -> Result<(), String> {
        let inner = self.lock();
        let Some(wanted) = inner.cameras.get(feed) else { return Err(self.unknown(feed, &inner)) };
        // The order shows at once; the task of the camera follows it, and reports its state again.
        wanted.place.follow(is_paused);
        wanted.wish.send_modify(|wish| *wish = Wish { is_paused, orders: wish.orders + 1 });
        Ok(())
    }

    fn unknown(&self, feed: &str, inner: &Inner) -> String {
        let names: Vec<&str> = inner.cameras.keys().map(String::as_str).collect();
        let known = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
        format!("there is no {} `{feed}`: name one of the source ({known})", self.kind.noun)
    }
}

impl Feeds for Hub {
    fn status(&self) -> Vec<FeedStatus> {
        self.board.status()
    }

    fn order(&self, order: &FeedOrder) -> Result<(), String> {
        match order {
            FeedOrder::Add { feed, address } => {
                let noun = self.kind.noun;
                if feed.is_empty() {
                    return Err(format!("the {noun} has no name: write one, such as `gate`"));
                }
                let origin = (self.kind.parse)(address)
                    .map_err(|error| format!("the address of `{feed}`: {error}"))?;
                let mut inner = self.lock();
                if inner.cameras.contains_key(feed) {
                    return Err(format!(
                        "there is a {noun} `{feed}` already: choose another name, or remove it before"
                    ));
                }
                let place = self.board.add(feed, self.settings.most, FeedState::Connecting);
                let wanted = Wanted { origin, place, wish: watch::Sender::new(Wish::default()) };
                if let Some(running) = &inner.running {
                    self.begin(&wanted, running);
                }
                inner.cameras.insert(feed.clone(), wanted);
                Ok(())
            }
            FeedOrder::Remove { feed } => {
                let mut inner = self.lock();
                if inner.cameras.remove(feed).is_none() {
                    return Err(self.unknown(feed, &inner));
                }
                self.board.remove(feed);
                Ok(())
            }
            FeedOrder::Pause { feed } => self.turn(feed, true),
            FeedOrder::Resume { feed } => self.turn(feed, false),
        }
    }
}

/// Drives cameras until no more can be added; all of them have been ordered to end by then.
async fn run(mut received: mpsc::UnboundedReceiver<(Camera, watch::Receiver<Wish>)>, group: &SessionGroup) {
    let mut tasks = tokio::task::JoinSet::new();
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut seed = u64::from(std::process::id());
    loop {
        tokio::select! {
            camera = received.recv() => {
                let Some((camera, wishes)) = camera else { break };
                seed = tidemill_random::mixed(seed);
                tasks.spawn(keep(camera, wishes, Random::of_seed(seed)));
            }
            Some(ended) = tasks.join_next() => {
                threads.retain(|thread| !thread.is_finished());
                threads.extend(ended.into_iter().flatten());
            }
        }
    }
    while let Some(ended) = tasks.join_next().await {
        threads.extend(ended.into_iter().flatten());
    }
    // Some servers send on for a minute unless they are told.
    let _ = tokio::time::timeout(FAREWELL, group.await_teardown()).await;
    for thread in threads {
        let _ = thread.join();
    }
}

/// Drives a camera, and again after a panic.
async fn keep(camera: Camera, mut wishes: watch::Receiver<Wish>, mut random: Random) -> Vec<JoinHandle<()>> {
    loop {
        let driven = AssertUnwindSafe(drive(camera.clone(), &mut wishes, &mut random)).catch_unwind().await;
        match driven {
            Ok(threads) => return threads,
            Err(_) => {
                // The text of the panic may have anything.
                tracing::error!(
                    camera = camera.place.feed(),
                    "a defect ended its connection; it is made again"
                );
                camera.place.turn(FeedState::Connecting);
                let rest = tokio::time::sleep(AFTER_DEFECT);
                tokio::pin!(rest);
                loop {
                    tokio::select! {
                        () = &mut rest => break,
                        changed = wishes.changed() => if changed.is_err() { return Vec::new() },
                    }
                }
            }
        }
    }
}
