//! A subscription as a stream of lines.
//!
//! One thread keeps the connection, one writes messages into a pipe, and one acknowledges: at once without a journal, else
//! when the journal has the message on the disk. The broker sends at most `in_flight` messages that are not acknowledged;
//! so many wait here at most, each as a line that is cut beyond `max_line`. While they are more than [`WAITING`] bytes, the
//! connection is not read.
//!
//! The broker sends again what was not acknowledged when a connection broke off. A message whose acknowledgement has not
//! left this process is known by its packet identifier, which the broker cannot have given to another one, and is not
//! written again.
use crate::broker::{Broker, PAUSES, final_cause, monotonic, spread};
use crate::line;
use rumqttc::{
    AckMode, AsyncClient, BrokerSessionResumePolicy, ConnectionError, Event, EventLoop, Incoming, ManualAck,
    Outgoing, PubAck, Publish, QoS, StateError, SubscribeFilterInput, SubscribeReasonCode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_journal::Journal;
use tidemill_operators::api::Unread;
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus, Feeds};
use tidemill_operators::sources::received::LineStream;
use tokio::sync::Notify;

/// Interval at which a thread that waits looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes by which a packet may be larger than `max_line`. The broker leaves out larger ones.
const BEYOND: usize = 1 << 20;
/// Bytes of lines that wait, without the last one.
const WAITING: u64 = 64 << 20;

/// Settings of a subscription.
pub(crate) struct Settings {
    /// The source.
    pub(crate) source: String,
    pub(crate) broker: Broker,
    /// Topic filters.
    pub(crate) topics: Vec<String>,
    /// The column that gets the topic.
    pub(crate) topic_column: Option<String>,
    /// Messages that are not acknowledged, at most.
    pub(crate) in_flight: u16,
    /// Seconds for which the broker keeps the session without a connection.
    pub(crate) session: u32,
    /// Longest line; a longer one is cut just beyond it, so that the reader notices.
    pub(crate) limit: usize,
}

/// See the module.
pub(crate) struct Subscription {
    settings: Settings,
    shared: Mutex<Shared>,
    /// Notified when the state of a journal becomes known.
    changed: Condvar,
    resumed: Notify,
    /// Notified when lines were written.
    written: Notify,
}

#[derive(Default)]
struct Shared {
    state: Option<(FeedState, Instant)>,
    detail: String,
    connects: u64,
    received: u64,
    emitted: u64,
    /// Messages that were sent without a guarantee and found no place.
    overflowed: u64,
    waiting: u64,
    /// Bytes of the lines that wait.
    bytes: u64,
    /// Number of the connection, if there is one.
    connection: Option<u64>,
    /// Messages whose acknowledgement has not left, by packet identifier.
    taken: HashMap<u16, Taken>,
    /// The journal, with the place at which its part of the pipe begins.
    journal: Option<(Arc<Journal>, u64)>,
    /// Whether the reader has gone.
    over: bool,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Number of the message.
    number: u64,
    /// Connection on which it came last.
    connection: u64,
    /// Whether it may be acknowledged.
    settled: bool,
    /// Whether the library has its acknowledgement.
    handed: bool,
}

/// A message on its way into the pipe. Without a number it is not acknowledged.
struct Message {
    identifier: u16,
    line: Vec<u8>,
    number: Option<u64>,
}

/// A message in the pipe: its packet identifier, its number and the end of its line.
type Written = (u16, u64, u64);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscription {
    pub(crate) fn of(settings: Settings) -> Arc<Handle> {
        Arc::new(Handle(Arc::new(Self {
            settings,
            shared: Mutex::default(),
            changed: Condvar::new(),
            resumed: Notify::new(),
            written: Notify::new(),
        })))
    }

    fn tell(&self, state: FeedState, detail: &str) {
        let mut shared = lock(&self.shared);
        let since =
            shared.state.filter(|(known, _)| *known == state).map_or_else(monotonic, |(_, since)| since);
        shared.state = Some((state, since));
        detail.clone_into(&mut shared.detail);
    }

    fn is_over(&self) -> bool {
        lock(&self.shared).over
    }

    fn end(&self) {
        lock(&self.shared).over = true;
        self.changed.notify_all();
        self.resumed.notify_one();
        self.written.notify_one();
    }

    /// Waits while too many bytes wait. The broker may end the connection meanwhile, and then sends again.
    async fn make_room(&self) {
        while lock(&self.shared).bytes > WAITING && !self.is_over() {
            self.written.notified().await;
        }
    }

    /// Keeps the connection until the reader has gone.
    async fn keep(&self, client: &AsyncClient, events: &mut EventLoop, messages: &Sender<Message>) {
        let Settings { source, broker, .. } = &self.settings;
        let place = broker.place();
        let (mut attempts, mut pause, mut is_told, mut is_refused) = (0u64, PAUSES[0], false, None);
        while !self.is_over() {
            let error = match events.poll().await {
                Ok(event) => {
                    match self.take(client, event, messages) {
                        Seen::Subscribed => {
                            (pause, is_told) = (PAUSES[0], false);
                            tracing::info!("source `{source}`: subscribed at {place}");
                        }
                        Seen::Refused(cause) => is_refused = Some(cause),
                        Seen::Other => {}
                    }
                    self.make_room().await;
                    if is_refused.is_none() {
                        continue;
                    }
                    None
                }
                Err(error) => Some(error),
            };
            self.disconnected();
            let lasting = is_refused
                .take()
                .or_else(|| final_cause(error.as_ref()?, &broker.client_id))
                .or_else(|| self.too_large(error.as_ref()?));
            if let Some(cause) = lasting {
                tracing::warn!("source `{source}`: {cause}; `tidemill source resume` tries again");
                self.tell(FeedState::Failed, &cause);
                events.clean();
                self.resumed.notified().await;
                self.tell(FeedState::Connecting, "");
                continue;
            }
            let Some(error) = error else { continue };
            if self.is_over() {
                return;
            }
            let cause = cause(&error);
            self.tell(FeedState::Connecting, &cause);
            if !is_told {
                tracing::warn!("source `{source}`: no connection to {place}; trying again: {cause}");
                is_told = true;
            }
            attempts += 1;
            tokio::time::sleep(spread(pause, attempts)).await;
            pause = (2 * pause).min(PAUSES[1]);
        }
    }

    /// The cause that a broker sends larger messages than it was told, which it would send again.
    fn too_large(&self, error: &ConnectionError) -> Option<String> {
        let ConnectionError::MqttState(
            StateError::IncomingPacketTooLarge { .. }
            | StateError::Deserialization(rumqttc::Error::PayloadSizeLimitExceeded { .. }),
        ) = error
        else {
            return None;
        };
        let largest = self.settings.limit + BEYOND;
        Some(format!(
            "the broker sends a message of more than {largest} bytes, 1 MiB above `max_line`: raise it"
        ))
    }

    /// The line of a message. Just beyond the limit it is cut, so that no more is kept.
    fn line(&self, publish: &Publish) -> Vec<u8> {
        let mut line = Vec::new();
        let topic = String::from_utf8_lossy(&publish.topic);
        let topic = self.settings.topic_column.as_deref().map(|column| (column, &*topic));
        line::append(&mut line, &publish.payload, topic);
        line.truncate(self.settings.limit + 1);
        line.push(b'\n');
        line.shrink_to_fit();
        line
    }

    fn disconnected(&self) {
        let mut shared = lock(&self.shared);
        shared.connection = None;
        // It is not known whether these acknowledgements have left: the broker may use their identifiers again.
        shared.taken.retain(|_, taken| !taken.handed);
    }

    /// Processes an event of the connection.
    fn take(&self, client: &AsyncClient, event: Event, messages: &Sender<Message>) -> Seen {
        match event {
            Event::Incoming(Incoming::ConnAck(answer)) => {
                let mut shared = lock(&self.shared);
                shared.connects += 1;
                shared.connection = Some(shared.connects);
                if !answer.session_present {
                    // Its identifiers begin again.
                    shared.taken.clear();
                }
                drop(shared);
                // Also in a session that continues: the topics may be others than those of its start.
                let filters = self
                    .settings
                    .topics
                    .iter()
                    .map(|topic| SubscribeFilterInput::new(topic.as_str(), QoS::AtLeastOnce));
                if let Err(error) = client.try_subscribe_many(filters) {
                    return Seen::Refused(format!("the topics cannot be subscribed to: {error}"));
                }
                Seen::Other
            }
            Event::Incoming(Incoming::SubAck(answer)) => {
                let codes = self.settings.topics.iter().zip(&answer.return_codes);
                let refused =
                    codes.into_iter().find(|(_, code)| !matches!(code, SubscribeReasonCode::Success(_)));
                match refused {
                    None => {
                        self.tell(FeedState::Live, "");
                        Seen::Subscribed
                    }
                    Some((topic, SubscribeReasonCode::NotAuthorized)) => {
                        Seen::Refused(format!("the broker does not let this user read `{topic}`"))
                    }
                    Some((topic, code)) => {
                        Seen::Refused(format!("the broker refuses the topic `{topic}`: {code:?}"))
                    }
                }
            }
            Event::Incoming(Incoming::Publish(publish)) => {
                self.receive(client, &publish, messages);
                Seen::Other
            }
            Event::Outgoing(Outgoing::PubAck(identifier)) => {
                lock(&self.shared).taken.remove(&identifier);
                Seen::Other
            }
            _ => Seen::Other,
        }
    }

    fn receive(&self, client: &AsyncClient, publish: &Publish, messages: &Sender<Message>) {
        let mut shared = lock(&self.shared);
        let number = if publish.qos == QoS::AtMostOnce {
            shared.received += 1;
            if shared.waiting >= u64::from(self.settings.in_flight) {
                shared.overflowed += 1;
                return;
            }
            None
        } else {
            let connection = shared.connection.unwrap_or_default();
            if let Some(taken) = shared.taken.get_mut(&publish.pkid) {
                taken.connection = connection;
                if taken.settled {
                    taken.handed = true;
                    acknowledge(client, publish.pkid);
                }
                return;
            }
            shared.received += 1;
            let number = shared.received;
            shared.taken.insert(publish.pkid, Taken { number, connection, settled: false, handed: false });
            Some(number)
        };
        shared.waiting += 1;
        drop(shared);
        let line = self.line(publish);
        lock(&self.shared).bytes += line.len() as u64;
        // The other end is open until the reader has gone.
        let _ = messages.send(Message { identifier: publish.pkid, line, number });
    }

    /// Acknowledges a message, at once if it came on the present connection.
    fn settle(&self, client: &AsyncClient, identifier: u16, number: u64) {
        let mut shared = lock(&self.shared);
        let connection = shared.connection;
        let Some(taken) = shared.taken.get_mut(&identifier).filter(|taken| taken.number == number) else {
            return;
        };
        taken.settled = true;
        if Some(taken.connection) == connection {
            taken.handed = true;
            acknowledge(client, identifier);
        }
    }

    /// Writes messages into the pipe until its reader has gone.
    fn write(
        &self,
        mut pipe: PipeWriter,
        messages: &Receiver<Message>,
        settled: &Sender<Written>,
    ) -> io::Result<()> {
        let mut end = 0;
        loop {
            let Message { identifier, line, number } = match messages.recv_timeout(LOOK) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) if is_read(&pipe) && !self.is_over() => continue,
                Err(_) => return Ok(()),
            };
            pipe.write_all(&line)?;
            end += line.len() as u64;
            let mut shared = lock(&self.shared);
            shared.waiting -= 1;
            shared.emitted += 1;
            shared.bytes -= line.len() as u64;
            drop(shared);
            self.written.notify_one();
            if let Some(number) = number {
                let _ = settled.send((identifier, number, end));
            }
        }
    }

    /// Acknowledges messages when the journal has them; without one at once.
    fn settle_all(&self, client: &AsyncClient, is_journalled: bool, written: &Receiver<Written>) {
        let journal = if is_journalled { self.journal() } else { None };
        for (identifier, number, end) in written {
            if let Some((journal, begin)) = &journal {
                while !journal.wait_for(begin + end, LOOK) {
                    if self.is_over() {
                        return;
                    }
                }
            }
            self.settle(client, identifier, number);
        }
    }

    /// Waits for the journal; `None` if the reader has gone.
    fn journal(&self) -> Option<(Arc<Journal>, u64)> {
        let shared = lock(&self.shared);
        let waits = |shared: &mut Shared| shared.journal.is_none() && !shared.over;
        self.changed.wait_while(shared, waits).unwrap_or_else(PoisonError::into_inner).journal.clone()
    }
}

/// Meaning of an event.
enum Seen {
    Subscribed,
    /// It does not help to try again.
    Refused(String),
    Other,
}

fn acknowledge(client: &AsyncClient, identifier: u16) {
    // There is a place for each message in flight. The broker sends it again if there is no connection any more.
    if let Err(error) = client.try_manual_ack(ManualAck::PubAck(PubAck::new(identifier, None))) {
        tracing::debug!("an acknowledgement is left out: {error}");
    }
}

/// The cause of a lost connection, without what only the library knows.
fn cause(error: &ConnectionError) -> String {
    match error {
        ConnectionError::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Whether the other end of a pipe is open.
fn is_read(pipe: &PipeWriter) -> bool {
    // The write end of a pipe signals an error when the read end is closed, whatever is polled for.
    let mut looked = [PollFd::new(pipe, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !(poll(&mut looked, Some(&now)).is_ok() && looked[0].revents().intersects(PollFlags::ERR))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// A subscription that its threads share.
pub(crate) struct Handle(Arc<Subscription>);

impl LineStream for Handle {
    fn in_words(&self) -> String {
        let Settings { broker, topics, .. } = &self.0.settings;
        format!("`{}` of the broker `{}`", topics.join("`, `"), broker.place())
    }

    fn open(&self, is_journalled: bool) -> io::Result<File> {
        let settings = &self.0.settings;
        let (reader, writer) = io::pipe()?;
        let mut options = settings.broker.options();
        options
            .set_clean_start(false)
            .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
            .set_session_expiry_interval(Some(settings.session))
            .set_receive_maximum(Some(settings.in_flight))
            .set_ack_mode(AckMode::Manual)
            .set_max_packet_size(u32::try_from(settings.limit + BEYOND).ok());
        let capacity = usize::from(settings.in_flight) + 16;
        let (client, mut events) =
            AsyncClient::builder(options).capacity(capacity).try_build().map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (messages, to_write) = channel();
        let (written, to_settle) = channel();
        self.0.tell(FeedState::Connecting, "");
        let (subscription, keeper) = (Arc::clone(&self.0), client.clone());
        spawn("tm-mqtt", move || {
            runtime.block_on(async {
                subscription.keep(&keeper, &mut events, &messages).await;
                // The broker is told, so that it does not wait for a client that is gone.
                if keeper.try_disconnect().is_ok() {
                    let goodbye = async { while events.poll().await.is_ok() {} };
                    let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
                }
            });
        })?;
        let (subscription, waker) = (Arc::clone(&self.0), client.clone());
        spawn("tm-mqtt-lines", move || {
            if let Err(error) = subscription.write(writer, &to_write, &written)
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                tracing::warn!("source `{}`: cannot pass on messages: {error}", subscription.settings.source);
            }
            subscription.end();
            // It wakes the connection.
            let _ = waker.try_disconnect();
        })?;
        let subscription = Arc::clone(&self.0);
        spawn("tm-mqtt-acks", move || subscription.settle_all(&client, is_journalled, &to_settle))?;
        Ok(File::from(OwnedFd::from(reader)))
    }

    fn journalled(&self, journal: &Arc<Journal>) {
        lock(&self.0.shared).journal = Some((Arc::clone(journal), journal.extent().end));
        self.0.changed.notify_all();
    }

    fn unread(&self) -> Unread {
        Unread::IsSentAgain
    }
}

impl Feeds for Handle {
    fn status(&self) -> Vec<FeedStatus> {
        let shared = lock(&self.0.shared);
        let (state, seconds) = match shared.state {
            Some((state, since)) => (state, since.elapsed().as_secs_f64()),
            None => (FeedState::Connecting, 0.0),
        };
        let drops = (shared.overflowed > 0).then(|| ("queue_full".to_owned(), shared.overflowed));
        vec![FeedStatus {
            feed: self.0.settings.source.clone(),
            state,
            seconds,
            detail: shared.detail.clone(),
            connects: shared.connects,
            received: shared.received,
            emitted: shared.emitted,
            drops: drops.into_iter().collect::<BTreeMap<_, _>>(),
            waiting: shared.waiting,
        }]
    }

    fn order(&self, order: &FeedOrder) -> Result<(), String> {
        let own = &self.0.settings.source;
        match order {
            FeedOrder::Resume { feed } if feed == own => {
                if self.status()[0].state == FeedState::Failed {
                    self.0.resumed.notify_one();
                }
                Ok(())
            }
            FeedOrder::Resume { feed } => Err(format!("there is no feed `{feed}`: the only one is `{own}`")),
            _ => {
                Err("a subscription can only be resumed after it has failed: its topics are in the workflow"
                    .into())
            }
        }
    }
}
