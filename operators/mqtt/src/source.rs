//! `mqtt`: JSON objects that a broker of MQTT 5 sends, one per message.
//!
//! ```yaml
//! - id: readings
//!   kind: mqtt
//!   journal: {}
//!   options:
//!     broker: broker.local:1883
//!     topics: [plant/+/temperature]
//!     columns: {topic: text, celsius: float64}
//!     topic_column: topic
//!     user: viewer
//!     password_env: BROKER_PASSWORD         # or password_file
//!     tls: true                             # or {ca_file: broker.pem}
//! ```
//! Columns, `event_time`, `time_unit`, `time_zone`, `out_of_order`, `max_jump` and dead letters are those of `jsonl`; a
//! message is a line. The subscription has QoS 1 and a session that outlives the connection: what is published
//! meanwhile comes later, as long as the broker keeps it. It connects again by itself, with pauses of up to 5 s, and subscribes
//! again.
//!
//! **At least once.** With a `journal`, which a run with a state needs, a message is acknowledged when the journal has it on
//! the disk: a killed process loses none, and its next one continues where its state ends. Without a journal it is
//! acknowledged when the reader gets it. The broker sends again what was not acknowledged when a connection or the process
//! broke off, and a few of these messages may have been read before. `distinct` by an identifier in the messages removes
//! them. Messages that were published with QoS 0 come at most once, and are counted as dropped (`queue_full`) where
//! `in_flight` of them wait.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, Step};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_mqtt::register(&mut registry);
//! let id = "readings".into();
//! // Checked, not connected.
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let text = "broker: broker.local:1883\ntopics: [plant/#]\ncolumns: {celsius: float64}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
//! let readings = registry.source("mqtt").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(readings.stream.unwrap(), "`plant/#` of the broker `broker.local:1883`");
//! ```
use crate::broker::{Broker, Tls, Written};
use crate::subscription::{Settings, Subscription};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_operators::api::BoundSource;
use tidemill_operators::feeds::Feeds;
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_operators::sources::received::{self, DeclaredType, LineOptions, MaxJump, TimeUnit};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Largest accepted `max_line`.
const LINE_LIMIT: u64 = 64 << 20;
/// Default of `session`: a day.
const SESSION: TimeSpan = TimeSpan(24 * 3_600 * 1_000_000_000);

/// The kind `mqtt`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Mqtt;

/// Options of the source `mqtt`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Host and port of the broker: `broker.local:1883`.
    broker: Located<String>,
    /// Topics to subscribe to; `+` stands for one level, `#` at the end for all further ones.
    topics: Vec<Located<String>>,
    /// Columns to read, each with its type: int64, float64, text, bool or a tensor such as "tensor<float32>[8]".
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    columns: Value,
    /// Column of `columns`, of type text, that gets the topic of the message. Default: none.
    #[serde(default)]
    topic_column: Option<Located<String>>,
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
    /// Name of the session at the broker, which must be the same in each run and no other client may use. Default: made
    /// from the name of the source and the folder of the workflow.
    #[serde(default)]
    client_id: Option<Located<String>>,
    /// Time for which the broker keeps the session and its messages while nobody is connected. Default: 1d.
    #[serde(default = "default_session")]
    session: TimeSpan,
    /// Messages that are sent and not acknowledged, at most. Default: 1000.
    #[serde(default = "default_in_flight")]
    in_flight: u16,
    /// Column with the event time, of type int64 or float64, or of type text with times such as `2026-03-29T01:59:59Z`. Default: none;
    /// record number i has the time i / `rate`, or i milliseconds without a rate.
    #[serde(default)]
    event_time: Option<Located<String>>,
    /// Unit of event times that are numbers, counted from 1970: s, ms, us or ns. Default: ms.
    #[serde(default)]
    time_unit: Option<Located<TimeUnit>>,
    /// Zone of event times in text without a zone: an offset such as `+01:00`, or `Z` for UTC. Default: none; a time
    /// without a zone is a dead letter.
    #[serde(default)]
    time_zone: Option<Located<String>>,
    /// Longest time by which a record may be older than the newest event time. Default: 0s.
    #[serde(default)]
    out_of_order: TimeSpan,
    /// How far ahead of the newest event time so far a record may be if the next good record does not confirm it; a
    /// record that is further ahead is a dead letter. At least `out_of_order`. `none`: any. Default: 365d.
    #[serde(default)]
    max_jump: MaxJump,
    /// Longest message, up to 64MiB; longer ones are dead letters. Default: 1MiB.
    #[serde(default = "default_max_line")]
    max_line: Bytes,
}

fn default_session() -> TimeSpan {
    SESSION
}

fn default_in_flight() -> u16 {
    1000
}

fn default_max_line() -> Bytes {
    Bytes(1 << 20)
}

fn wrong(text: impl Into<String>, help: &str) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

impl SourceKind for Mqtt {
    fn kind(&self) -> &'static str {
        "mqtt"
    }

    fn summary(&self) -> &'static str {
        "JSON objects from an MQTT broker, one per message."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { reads: &["password_file", "ca_file"], connects: &["broker"], ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "has its password and certificates"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let read: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        let written = Written {
            broker: &read.broker,
            user: read.user.as_ref(),
            password_env: read.password_env.as_ref(),
            password_file: read.password_file.as_ref(),
            tls: read.tls.as_ref(),
            client_id: read.client_id.as_ref(),
        };
        let broker = Broker::of(context, &written, &mut errors);
        check_topics(&read, &mut errors);
        check_topic_column(&read, &mut errors);
        if read.in_flight == 0 {
            errors.push(
                wrong(
                    "`in_flight: 0` would let no message come",
                    "write a number from 1 to 65535, or leave it out",
                )
                .at(options.span.clone()),
            );
        }
        errors.into_result(())?;
        let Some(broker) = broker else { return Err(Diagnostics::new()) };
        let max_line = Bytes(read.max_line.0.clamp(1, LINE_LIMIT));
        let seconds = read.session.0 / 1_000_000_000;
        let subscription = Subscription::of(Settings {
            source: context.id.value.clone(),
            broker,
            topics: read.topics.into_iter().map(|topic| topic.value).collect(),
            topic_column: read.topic_column.map(|column| column.value),
            in_flight: read.in_flight,
            // The greatest number stands for ever.
            session: u32::try_from(seconds).unwrap_or(u32::MAX),
            limit: max_line.0 as usize,
        });
        let lines = LineOptions {
            place: read.broker,
            columns: read.columns,
            event_time: read.event_time,
            time_unit: read.time_unit,
            time_zone: read.time_zone,
            out_of_order: read.out_of_order,
            max_jump: read.max_jump,
            max_line,
        };
        let feeds: Arc<dyn Feeds> = subscription.clone();
        let bound = received::bind(self.kind(), context, options, lines, subscription)?;
        Ok(BoundSource { feeds: Some(feeds), ..bound })
    }
}

fn check_topics(options: &Options, errors: &mut Diagnostics) {
    if options.topics.is_empty() {
        errors.push(
            wrong("there is no topic", "write one: `topics: [plant/+/temperature]`")
                .at(options.broker.span.clone()),
        );
    }
    for topic in &options.topics {
        if rumqttc::ValidatedTopicFilter::new(topic.value.as_str()).is_err() {
            let help = "`+` stands for a whole level, `#` for all further levels and only at the end: `plant/+/temperature`, `plant/#`";
            errors.push(
                wrong(format!("`{topic}` is not a topic to subscribe to"), help).at(topic.span.clone()),
            );
        }
    }
}

fn check_topic_column(options: &Options, errors: &mut Diagnostics) {
    let Some(column) = &options.topic_column else { return };
    let found = options.columns.get(column).and_then(Value::as_str);
    if found != Some("text") {
        let text = format!("`topic_column: {column}` is not a column of type text");
        let help = format!("add it to the columns: `columns: {{{column}: text, ...}}`");
        errors.push(wrong(text, &help).at(column.span.clone()));
    }
}
