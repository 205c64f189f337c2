//! Hosts that are processes of their own: how they join, report and are restarted.
use super::event::{Event, Joined};
use super::feeds::FeedOrders;
use super::hosts::{HostLauncher, Hosts, OpenReception};
use super::reception::{Attendant, Guest, PlanOfRun, send};
use super::samples::Questions;
use super::workers::Workers;
use crate::clock::{Clock, Nanoseconds};
use crate::failure::RunError;
use crate::feeds::OrderFeeds;
use crate::letters::Letters;
use crate::metrics::Figures;
use crate::protocol::{LostNotices, Notice, Order};
use crate::report::RunFacts;
use crate::samples::SampleMessage;
use crate::store::EpochLogs;
use crate::wire;
use crossbeam_channel::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tidemill_link::remote::{Address, MessageWriter};
use tidemill_operators::feeds::FeedOrder;

/// How often a host is reminded that records are being watched.
const SHOW_EVERY: Nanoseconds = 5_000_000_000;

/// State that the readers of all hosts share.
struct Shared {
    workers: Arc<Workers>,
    events: Sender<Event>,
    clock: Arc<dyn Clock>,
    letters: Arc<Letters>,
    epochs: Arc<EpochLogs>,
    /// By host: of processes that are gone, and of the present one.
    figures: Vec<Mutex<(Figures, Figures)>>,
    facts: OnceLock<Arc<RunFacts>>,
    questions: Questions,
    feed_orders: FeedOrders,
    /// When each host was last notified that records are being watched.
    shown: Mutex<BTreeMap<usize, Nanoseconds>>,
    /// Hosts that join now may leave at once.
    is_over: AtomicBool,
    /// Connections to hosts; none: they are left to another coordinator.
    writers: Mutex<Option<BTreeMap<(usize, u64), MessageWriter>>>,
}

/// The side of the coordinator.
pub(crate) struct RemoteHosts {
    shared: Arc<Shared>,
    launcher: Box<dyn HostLauncher>,
    address: Address,
    reception: Option<OpenReception>,
    /// Hosts that stood ready before the run began and were not taken yet.
    ready: BTreeSet<usize>,
    is_forsaken: bool,
}

/// Notices of the hosts of a run that are not for the coordinator's own thread.
pub(crate) struct Shown {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) letters: Arc<Letters>,
    pub(crate) epochs: Arc<EpochLogs>,
}

impl RemoteHosts {
    /// Listens for the processes of these workers.
    pub(crate) fn listen(
        hosts: Hosts,
        workers: Workers,
        shown: Shown,
        events: Sender<Event>,
    ) -> Result<Self, RunError> {
        let Hosts { launcher, run, plan_version, listen } = hosts;
        let Shown { clock, letters, epochs } = shown;
        let figures = workers.names.iter().map(|_| Mutex::default()).collect();
        let workers = Arc::new(workers);
        let shared = Arc::new(Shared {
            workers: Arc::clone(&workers),
            events,
            clock,
            letters,
            epochs,
            figures,
            facts: OnceLock::new(),
            questions: Questions::default(),
            feed_orders: FeedOrders::default(),
            shown: Mutex::default(),
            is_over: AtomicBool::new(false),
            writers: Mutex::new(Some(BTreeMap::new())),
        });
        let attendant = Arc::clone(&shared) as Arc<dyn Attendant>;
        let (open, ready) =
            OpenReception::open(listen, PlanOfRun { run, plan_version }, &workers, attendant)?;
        let address = open.address().clone();
        Ok(Self { shared, launcher, address, reception: Some(open), ready, is_forsaken: false })
    }

    /// Shows the figures of the hosts in these facts.
    pub(crate) fn show_in(&self, facts: &Arc<RunFacts>) {
        let _ = self.shared.facts.set(Arc::clone(facts));
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        facts.feeds.set_away(shared);
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// Starts the process of a host, if it does not stand ready.
    pub(crate) fn launch_first(&mut self, host: usize) -> Result<(), RunError> {
        if self.ready.remove(&host) { Ok(()) } else { self.launch(host) }
    }

    pub(crate) fn launch(&mut self, host: usize) -> Result<(), RunError> {
        let name = &self.shared.workers.names[host];
        let launched = self.launcher.launch(name, &self.address);
        launched.map_err(|text| {
            RunError::System(format!("the process of worker '{name}' cannot be started: {text}"))
        })
    }

    /// Handles the loss of a host's connection; its counts stay. Returns what became of its process, in words.
    pub(crate) fn lost(&mut self, host: usize) -> Option<String> {
        let mut figures = self.shared.figures[host].lock().unwrap_or_else(PoisonError::into_inner);
        let (before, last) = &mut *figures;
        let last = std::mem::take(last);
        before.add(&last);
        self.launcher.fate(&self.shared.workers.names[host])
    }

    /// Ends the connections to a host, which may still be there.
    pub(crate) fn close(&self, host: usize) {
        let writers = self.shared.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let of_host = writers.iter().flat_map(|all| all.range((host, 0)..=(host, u64::MAX)));
        of_host.for_each(|(_, writer)| writer.close());
    }

    /// Tells the launcher that the connection of a host was lost.
    pub(crate) fn missing(&mut self, host: usize) {
        self.launcher.missing(&self.shared.workers.names[host]);
    }

    /// Returns the workers whose processes have ended.
    pub(crate) fn ended(&mut self) -> Vec<String> {
        self.launcher.ended()
    }

    /// Lets hosts that join from now on leave at once.
    pub(crate) fn is_over(&self) {
        self.shared.is_over.store(true, Ordering::Release);
    }

    /// Leaves the hosts to another coordinator, without a message to them.
    pub(crate) fn forsake(mut self) {
        self.is_forsaken = true;
        let writers = self.shared.writers.lock().unwrap_or_else(PoisonError::into_inner).take();
        writers.iter().flatten().for_each(|(_, writer)| writer.close());
        self.reception = None;
    }

    /// Waits until requests for records are answered.
    pub(crate) fn wait_for_samples(&self) {
        self.shared.questions.wait();
    }

    /// Returns how long a silent host may take to come back.
    pub(crate) fn grace(&self) -> Duration {
        self.launcher.grace()
    }

    pub(crate) fn end(&mut self) {
        self.reception = None;
        self.launcher.end();
    }
}

impl Drop for RemoteHosts {
    fn drop(&mut self) {
        if !self.is_forsaken {
            self.end();
        }
    }
}

impl Attendant for Shared {
    fn joined(&self, host: usize, guest: &Guest) {
        match self.writers.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(writers) => drop(writers.insert((host, guest.process), guest.writer.clone())),
            None => return guest.writer.close(),
        }
        let joined = Joined {
            orders: guest.orders(),
            hello: guest.hello.clone(),
            identity: guest.identity.clone(),
            process: guest.process,
        };
        let _ = self.events.send(Event::HostJoined { host, joined });
        // The run may have ended before the coordinator handles the event.
        if self.is_over.load(Ordering::Acquire) {
            send(&guest.writer, &Order::Leave);
        }
    }

    fn heard(&self, host: usize, writer: &MessageWriter, notice: Notice) {
        match notice {
            Notice::Ping(number) => {
                let now = self.clock.now();
                send(writer, &Order::Pong { number, now });
                if self.is_to_show(host, now) {
                    send(writer, &Order::ShowSamples);
                }
            }
            Notice::Letter { operator, epoch, letter } => drop(self.letters.add(&operator, epoch, letter)),
            Notice::Epoch { source, entry } => self.epochs.add(&source, entry),
            Notice::Figures(figures) => show(self, host, *figures),
            Notice::Sample(message) => sample(self, host, *message),
            Notice::Spans(spans) => {
                if let Some(tracer) = self.facts.get().and_then(|facts| facts.tracer.as_ref()) {
                    spans.into_iter().for_each(|span| tracer.add(span));
                }
            }
            Notice::LostNotices(not_told) => self.not_told(host, not_told),
            Notice::FeedAnswered { number, answer } => self.feed_orders.answered(host, number, answer),
            Notice::SourcesFound { number, sources } => {
                if let Some(sampler) = self.facts.get().and_then(|facts| facts.sampler.as_ref()) {
                    self.questions.found(sampler, host, number, &sources);
                }
            }
            notice => drop(self.events.send(Event::Notice { host, notice })),
        }
    }

    fn lost(&self, host: usize, process: u64, why: String) {
        if let Some(writers) = self.writers.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            writers.remove(&(host, process));
        }
        self.questions.lost(host);
        self.feed_orders.lost(host);
        self.facts.get().iter().for_each(|facts| facts.feeds.forget(host));
        let _ = self.events.send(Event::HostLost { host, process, why });
    }
}

impl OrderFeeds for Shared {
    fn order(&self, source: &str, order: &FeedOrder) -> Result<(), String> {
        let Some(facts) = self.facts.get() else { return Err("the run has not started".into()) };
        let stages = facts.program.plan.stages.iter().filter(|stage| stage.operator == source);
        let workers: BTreeSet<&str> = stages.map(|stage| stage.worker.as_str()).collect();
        let hosts = self.workers.names.iter().enumerate();
        let hosts: Vec<_> = hosts.filter(|(_, name)| workers.contains(name.as_str())).collect();
        if hosts.is_empty() {
            return Err(format!("the run has no source `{source}`"));
        }
        let sent: Vec<_> = hosts
            .into_iter()
            .map(|(host, name)| {
                let (order, sent) = self.feed_orders.ask(host, source, order);
                if !self.give(host, &order) {
                    self.feed_orders.unsent(&sent);
                }
                (sent, name)
            })
            .collect();
        let answers: Vec<_> = sent.iter().map(|(sent, name)| self.feed_orders.wait(sent, name)).collect();
        answers.into_iter().collect()
    }
}

impl Shared {
    /// Sends an order to a host; `false` if it is away.
    fn give(&self, host: usize, order: &Order) -> bool {
        let writer = {
            let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
            let of_host =
                writers.as_ref().and_then(|all| all.range((host, 0)..=(host, u64::MAX)).next_back());
            of_host.map(|(_, writer)| writer.clone())
        };
        writer.and_then(|writer| writer.send(&wire::encode(order).ok()?).ok()).is_some()
    }

    /// Counts notices that a host could not keep.
    fn not_told(&self, host: usize, LostNotices { letters, spans }: LostNotices) {
        if letters > 0 {
            let name = &self.workers.names[host];
            tracing::warn!(
                "up to {letters} dead letters of worker '{name}' are not told: more came than it keeps while nobody hears it"
            );
            self.letters.lose(letters);
        }
        if let Some(tracer) = self.facts.get().and_then(|facts| facts.tracer.as_ref()) {
            tracer.lose(spans);
        }
    }

    /// Returns whether records are being watched and the host was not notified recently.
    fn is_to_show(&self, host: usize, now: Nanoseconds) -> bool {
        let sampler = self.facts.get().and_then(|facts| facts.sampler.as_ref());
        if sampler.is_none_or(|sampler| !sampler.is_looked_at(now)) {
            return false;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shown.insert(host, now);
        let is_known = before.is_some_and(|before| now - before < SHOW_EVERY);
        if is_known {
            shown.extend(before.map(|before| (host, before)));
        }
        !is_known
    }
}

fn show(shared: &Shared, host: usize, figures: Figures) {
    let mut held = shared.figures[host].lock().unwrap_or_else(PoisonError::into_inner);
    // Later parts add to it, also while no attendant looks.
    let mut told = held.1.take(figures);
    let Some(facts) = shared.facts.get() else { return };
    told.add(&held.0);
    if let (Some(emulated), Some(report)) = (&facts.emulated, told.emulation.take()) {
        emulated.show(host, report);
    }
    if let Some(clock) = told.clock.take() {
        facts.clocks.lock().unwrap_or_else(PoisonError::into_inner).insert(host, clock);
    }
    facts.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(host, facts.clock.now());
    let paths = std::mem::take(&mut told.paths);
    facts.paths.lock().unwrap_or_else(PoisonError::into_inner).insert(host, paths);
    facts.feeds.report(host, std::mem::take(&mut told.feeds));
    told.show(&facts.metrics, &facts.slots, &shared.workers.own[host]);
}

/// Keeps a record that a host has kept, and requests its origins from other hosts.
fn sample(shared: &Shared, host: usize, message: SampleMessage) {
    let Some(facts) = shared.facts.get() else { return };
    let Some(sampler) = &facts.sampler else { return };
    let hosts = (host, &shared.workers.names[..]);
    for (host, order) in shared.questions.heard(sampler, hosts, &facts.program, message) {
        if !shared.give(host, &order) {
            shared.questions.lost(host);
        }
    }
}
