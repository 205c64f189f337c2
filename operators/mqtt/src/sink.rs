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
//! `_id` (`metadata: true`). While the broker cannot be reached the rows before the sink wait, and so do the sources.
use crate::broker::{Broker, PAUSES, Tls, Written, final_cause, spread};
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
use tidemill_operators::api::{BoundSink, CallOff, OperatorError, Sink};
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

/// Topic and payload.
type Message = (String, Vec<u8>);

#[derive(Default)]
struct Shared {
    /// Messages that the broker has acknowledged.
    acknowledged: u64,
    /// Messages that the library gave up with its session.
    given_up: Vec<Message>,
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
    /// Messages since the last commit.
    waiting: Vec<Message>,
    committed: u64,
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
            waiting: Vec::new(),
            committed: 0,
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
        let notice = match self.client.try_publish_tracked(message.0.clone(), message.1.clone(), options) {
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

    /// Waits until there is an answer, for a while; returns the number of acknowledged messages, and those to send again.
    fn wait(&self, before: u64) -> Result<(u64, Vec<Message>), OperatorError> {
        let waits = |shared: &mut Shared| {
            shared.acknowledged == before
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
            Ok(Event::Incoming(Incoming::ConnAck(_))) => (pause, is_told) = (PAUSES[0], false),
            Ok(_) => {}
            Err(rumqttc::ConnectionError::RequestsDone) => return,
            Err(error) => {
                if let Some(cause) = final_cause(&error, &broker.client_id) {
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
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let Self { settings, waiting, .. } = self;
        settings.messages.of(batch, |row, json| waiting.push((settings.topic.of(batch, row), json.to_vec())))
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        let mut messages = VecDeque::from(std::mem::take(&mut self.waiting));
        let all = self.committed + messages.len() as u64;
        while self.committed < all {
            while let Some(message) = messages.pop_front() {
                if let Some(message) = self.send(message)? {
                    messages.push_front(message);
                    break;
                }
            }
            let (acknowledged, again) = self.wait(self.committed)?;
            self.committed = acknowledged;
            messages.extend(again);
        }
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.waiting.clear();
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
