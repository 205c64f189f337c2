//! `mqtt`: rows as messages of an MQTT 5 broker, one JSON object each.
//!
//! ```yaml
//! - id: alarms
//!   kind: mqtt
//!   input: hot
//!   options: {broker: "broker.local:1883", topic: "plant/{line}/alarms", columns: [sensor, celsius]}
//! ```
//! `{line}` in the topic is the value of that column; an empty value, and `+` and `#` in values, become `_`. Messages have
//! QoS 1. Those of an epoch are sent when it is complete, and it is committed when the broker has acknowledged all of them. So
//! a row that a sink of files would have is at the broker **at least once**; after a restart some come again, with the same
//! `_id` (`metadata: true`). While the broker cannot be reached the rows before the sink wait, and so do the sources. A row that makes
//! a message larger than the broker takes (`message_too_large`), or a topic of more than 65,535 bytes (`topic_too_long`), is a
//! dead letter.
use crate::broker::{Broker, PAUSES, Tls, Written, final_cause, spread, too_large_for};
use crate::topic::Topic;
use arrow_array::RecordBatch;
use rumqttc::{
    AsyncClient, BrokerSessionResumePolicy, Event, EventLoop, Incoming, PubAckReason, PublishNoticeError,
    PublishOptions, PublishResult, QoS,
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{BoundSink, CallOff, DeadLetter, OperatorError, Sink};
use tidemill_operators::kind::{EndContext, InputPort, TypedSinkKind};
use tidemill_operators::sinks::messages::Messages;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;

/// Messages on the way to the connection.
const AHEAD: usize = 256;
/// Interval at which a commit looks whether it is called off.
const LOOK: Duration = Duration::from_millis(100);
/// Seconds for which the broker keeps the session of a sink.
const SESSION: u32 = 3600;
/// Most bytes of a topic.
const TOPIC: usize = 65_535;
/// Most bytes of a packet, by the protocol.
const PACKET: u32 = 268_435_460;

/// The kind `mqtt`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Mqtt;

/// Options of the sink `mqtt`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Host and port of the broker: `broker.local:1883`.
    broker: Located<String>,
    /// Topic of the messages; `{COLUMN}` in it is the value of that column.
    topic: Located<String>,
    /// Whether the broker keeps the last message of each topic for later subscribers. Default: false.
    #[serde(default)]
    retained: bool,
    /// Columns to write, in this order. Default: all.
    #[serde(default)]
    columns: Option<Vec<Located<String>>>,
    /// Whether to write `_id` and `_time` (event time, microseconds) too. Default: false.
    #[serde(default)]
    metadata: bool,
    /// User at the broker. Default: none.
    #[serde(default)]
    user: Option<Located<String>>,
    /// Variable of the environment with the password.
    #[serde(default)]
    password_env: Option<Located<String>>,
    /// File with the password, relative to the workflow file; a line break at its end does not count.
    #[serde(default)]
    password_file: Option<Located<String>>,
    /// `true`, or `{ca_file: PATH}` with the authorities to trust: the connection is encrypted. Default: false.
    #[serde(default)]
    tls: Option<Located<Tls>>,
}

impl TypedSinkKind for Mqtt {
    type Options = Options;
    const KIND: &'static str = "mqtt";
    const SUMMARY: &'static str = "Rows as messages of an MQTT broker, one JSON object each.";
    const FACTS: SinkFacts = SinkFacts {
        publication: Publication::EachEpoch,
        writes: &[],
        reads: &["password_file", "ca_file"],
        ..SinkFacts::DEFAULT
    };

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let mut errors = Diagnostics::new();
        let written = Written {
            broker: &options.broker,
            user: options.user.as_ref(),
            password_env: options.password_env.as_ref(),
            password_file: options.password_file.as_ref(),
            tls: options.tls.as_ref(),
            client_id: None,
        };
        let broker = Broker::of(context, &written, &mut errors);
        let topic = Topic::parse(context.id, input, &options.topic).map_err(|error| errors.push(error)).ok();
        let messages = Messages::choose(context, input, options.columns.as_deref(), options.metadata)
            .map_err(|found| errors.append(found))
            .ok();
        errors.into_result(())?;
        let (Some(broker), Some(topic), Some(messages)) = (broker, topic, messages) else {
            return Err(Diagnostics::new());
        };
        let settings = Arc::new(Settings {
            id: context.id.value.clone(),
            broker,
            topic,
            messages,
            retained: options.retained,
        });
        let make = move || Ok(Box::new(MqttSink::open(&settings)?) as Box<dyn Sink>);
        Ok(context.sink(Self::KIND, input, Vec::new(), Arc::new(make)))
    }
}

struct Settings {
    id: String,
    broker: Broker,
    topic: Topic,
    messages: Messages,
    retained: bool,
}

struct Message {
    topic: String,
    payload: Vec<u8>,
    /// Its batch among those of the commit, and its row there.
    of: (usize, usize),
}

impl Message {
    /// Why it cannot be sent where packets have at most so many bytes: a reason and the finding.
    fn flaw(&self, largest: u32) -> Option<(&'static str, String)> {
        let (topic, payload) = (self.topic.len(), self.payload.len());
        if topic > TOPIC {
            return Some((
                "topic_too_long",
                format!("its topic has {topic} bytes, at most {TOPIC} are possible"),
            ));
        }
        // The lengths of the topic and of no properties, and the identifier.
        let rest = 2 + topic + 2 + 1 + payload;
        let length = 1 + [1 << 7, 1 << 14, 1 << 21].iter().filter(|bound| rest >= **bound).count();
        let size = 1 + length + rest;
        (size > largest as usize).then(|| {
            ("message_too_large", format!("the message has {size} bytes, the broker takes {largest} at most"))
        })
    }
}

#[derive(Default)]
struct Shared {
    /// Messages that the broker has acknowledged.
    acknowledged: u64,
    /// Messages that the library gave up with its session.
    given_up: Vec<Message>,
    /// Most bytes of a packet; known since the first connection.
    largest: Option<u32>,
    /// The cause for which no message will be acknowledged any more.
    failed: Option<String>,
    called_off: bool,
}

#[derive(Default)]
struct Account {
    shared: Mutex<Shared>,
    changed: Condvar,
}

impl Account {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, message: Message, answer: Result<PublishResult, PublishNoticeError>) {
        let mut shared = self.lock();
        match answer {
            Ok(PublishResult::Qos1(answer))
                if !matches!(answer.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers) =>
            {
                shared.failed.get_or_insert(format!("it refuses a message: {:?}", answer.reason));
            }
            Ok(_) => shared.acknowledged += 1,
            Err(PublishNoticeError::V5PubAck(PubAckReason::NoMatchingSubscribers)) => {
                shared.acknowledged += 1
            }
            Err(error @ (PublishNoticeError::V5PubAck(_) | PublishNoticeError::RetainNotSupported)) => {
                shared.failed.get_or_insert(format!("it refuses a message: {error}"));
            }
            // The session is another one.
            Err(_) => shared.given_up.push(message),
        }
        drop(shared);
        self.changed.notify_all();
    }

    fn fail(&self, cause: String) {
        self.lock().failed.get_or_insert(cause);
        self.changed.notify_all();
    }
}

struct MqttSink {
    settings: Arc<Settings>,
    client: AsyncClient,
    /// Runs on the thread of the connection.
    runtime: tokio::runtime::Handle,
    account: Arc<Account>,
    epoch: u64,
    /// Rows since the last commit, with their epochs.
    batches: Vec<(u64, RecordBatch)>,
    /// The messages of these rows.
    waiting: Vec<Message>,
    committed: u64,
    letters: Vec<(u64, DeadLetter)>,
}

impl MqttSink {
    fn open(settings: &Arc<Settings>) -> Result<Self, OperatorError> {
        let failed =
            |error: &dyn std::fmt::Display| OperatorError::new(format!("sink `{}`: {error}", settings.id));
        // Each sink has a session of its own: two of one name would end each other's connection.
        let mut broker = settings.broker.clone();
        broker.client_id = format!("{}-{:08x}", broker.client_id, number());
        let mut options = broker.options();
        options
            .set_clean_start(false)
            .set_session_expiry_interval(Some(SESSION))
            .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly);
        let (client, mut events) =
            AsyncClient::builder(options).capacity(AHEAD).try_build().map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let handle = runtime.handle().clone();
        let account = Arc::new(Account::default());
        let (told, id) = (Arc::clone(&account), settings.id.clone());
        std::thread::Builder::new()
            .name("tm-mqtt-sink".into())
            .spawn(move || runtime.block_on(keep(&id, &broker, &mut events, &told)))
            .map_err(|error| failed(&error))?;
        Ok(Self {
            settings: Arc::clone(settings),
            client,
            runtime: handle,
            account,
            epoch: 0,
            batches: Vec::new(),
            waiting: Vec::new(),
            committed: 0,
            letters: Vec::new(),
        })
    }

    fn failed(&self, cause: &str) -> OperatorError {
        OperatorError::new(format!(
            "sink `{}`, broker {}: {cause}",
            self.settings.id,
            self.settings.broker.place()
        ))
    }

    /// Hands a message to the library; returns it if there is no place.
    fn send(&self, message: Message) -> Result<Option<Message>, OperatorError> {
        let options = PublishOptions::new(QoS::AtLeastOnce).retain(self.settings.retained);
        let notice =
            match self.client.try_publish_tracked(message.topic.clone(), message.payload.clone(), options) {
                Ok(notice) => notice,
                Err(rumqttc::ClientError::RequestChannelFull(_)) => return Ok(Some(message)),
                Err(error) => return Err(self.failed(&error.to_string())),
            };
        let account = Arc::clone(&self.account);
        self.runtime.spawn(async move {
            let answer = notice.wait_async().await;
            account.answered(message, answer);
        });
        Ok(None)
    }

    /// Waits until there is an answer, or another limit, for a while; returns the number of acknowledged messages, and those to
    /// send again.
    fn wait(&self, before: u64, largest: Option<u32>) -> Result<(u64, Vec<Message>), OperatorError> {
        let waits = |shared: &mut Shared| {
            shared.acknowledged == before
                && shared.largest == largest
                && shared.given_up.is_empty()
                && shared.failed.is_none()
                && !shared.called_off
        };
        let waited = self.account.changed.wait_timeout_while(self.account.lock(), LOOK, waits);
        let mut shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        match &shared.failed {
            Some(cause) => Err(self.failed(cause)),
            None if shared.called_off => {
                Err(self.failed("it was called off while messages waited for the broker"))
            }
            None => Ok((shared.acknowledged, std::mem::take(&mut shared.given_up))),
        }
    }
}

/// Keeps the connection until the sink is closed.
async fn keep(id: &str, broker: &Broker, events: &mut EventLoop, account: &Account) {
    let (mut attempts, mut pause, mut is_told) = (0, PAUSES[0], false);
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Incoming::ConnAck(answer))) => {
                let largest = answer.properties.and_then(|properties| properties.max_packet_size);
                account.lock().largest = Some(largest.unwrap_or(PACKET));
                account.changed.notify_all();
            }
            // A broker that ends each connection for what is sent there is asked less and less often.
            Ok(Event::Incoming(Incoming::PubAck(_) | Incoming::PingResp)) => {
                (pause, is_told) = (PAUSES[0], false);
            }
            Ok(_) => {}
            Err(rumqttc::ConnectionError::RequestsDone) => return,
            Err(error) => {
                if let Some(cause) = final_cause(&error, &broker.client_id).or_else(|| too_large_for(&error))
                {
                    account.fail(cause);
                    return;
                }
                if !is_told {
                    tracing::warn!("sink `{id}`: no connection to {}; trying again: {error}", broker.place());
                    is_told = true;
                }
                attempts += 1;
                tokio::time::sleep(spread(pause, attempts)).await;
                pause = (2 * pause).min(PAUSES[1]);
            }
        }
    }
}

impl Sink for MqttSink {
    fn at_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let Self { settings, waiting, batches, epoch, .. } = self;
        settings.messages.of(batch, |row, json| {
            let of = (batches.len(), row);
            waiting.push(Message { topic: settings.topic.of(batch, row), payload: json.to_vec(), of });
        })?;
        batches.push((*epoch, batch.clone()));
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        let mut messages = VecDeque::from(std::mem::take(&mut self.waiting));
        let mut all = self.committed + messages.len() as u64;
        while self.committed < all {
            let limit = self.account.lock().largest;
            while let Some(largest) = limit
                && let Some(message) = messages.pop_front()
            {
                if let Some((reason, detail)) = message.flaw(largest) {
                    let (epoch, batch) = &self.batches[message.of.0];
                    self.letters.push((*epoch, DeadLetter::of_row(batch, message.of.1, reason, detail)));
                    all -= 1;
                } else if let Some(message) = self.send(message)? {
                    messages.push_front(message);
                    break;
                }
            }
            if self.committed < all {
                let (acknowledged, again) = self.wait(self.committed, limit)?;
                self.committed = acknowledged;
                messages.extend(again);
            }
        }
        self.batches.clear();
        Ok(())
    }

    fn take_dead_letters(&mut self) -> Vec<(u64, DeadLetter)> {
        std::mem::take(&mut self.letters)
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.waiting.clear();
        self.batches.clear();
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.waiting.clear();
        let _ = self.client.try_disconnect(); // its thread ends with it
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        false
    }

    fn call_off(&self) -> Option<CallOff> {
        let account = Arc::clone(&self.account);
        Some(Arc::new(move || {
            account.lock().called_off = true;
            account.changed.notify_all();
        }))
    }
}

impl Drop for MqttSink {
    fn drop(&mut self) {
        let _ = self.client.try_disconnect_now();
    }
}

/// A number that other sinks hardly have.
fn number() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those of the library.
    #[test]
    fn a_message_is_too_large_by_one_byte() {
        for payload in [1, 115, 116, 16_371, 16_372, 2_097_139, 2_097_140] {
            let mut packet = rumqttc::Publish::new("abcde", QoS::AtLeastOnce, vec![b'x'; payload], None);
            packet.pkid = 7;
            let size = packet.size() as u32;
            let message = Message { topic: "abcde".into(), payload: vec![b'x'; payload], of: (0, 0) };
            assert_eq!(message.flaw(size), None, "{payload}");
            assert_eq!(message.flaw(size - 1).map(|found| found.0), Some("message_too_large"), "{payload}");
        }
        let mut message = Message { topic: "x".repeat(65_535), payload: Vec::new(), of: (0, 0) };
        assert_eq!(message.flaw(PACKET), None);
        message.topic.push('x');
        assert_eq!(message.flaw(PACKET).map(|found| found.0), Some("topic_too_long"));
    }
}
