//! `websocket`: JSON objects that a server sends over a websocket, one per message.
//!
//! ```yaml
//! - id: prices
//!   kind: websocket
//!   options:
//!     url: wss://feed.example/prices            # or {env: VARIABLE}, {secret_file: PATH}
//!     headers: {Authorization: {env: FEED_TOKEN, prefix: "Bearer "}}
//!     send: ['{"subscribe": "prices"}']         # after each connection
//!     columns: {symbol: text, price: float64}
//! ```
//! Columns, `event_time`, `time_unit`, `time_zone`, `out_of_order`, `max_jump` and dead letters are those of `jsonl`; a
//! message, of text or of bytes, is a line. The source connects again whenever the connection ends, with pauses of up to 5 s. A
//! server that is silent is asked after 15 s whether it is still there, and is left after 30 s. An answer 401, 403, 404 or
//! 410 is final: the source is `failed` until `tidemill source resume`.
//!
//! **At most once.** A websocket knows no acknowledgement: what the server sends while there is no connection does not come. With
//! a `journal`, which a run with a state needs, a killed process loses nothing that its journal has on the disk. While the run has
//! no time, the server waits.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, Step};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_web::register(&mut registry);
//! let id = "prices".into();
//! // Checked, not connected.
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let text = "url: wss://feed.example/prices?token=abc\ncolumns: {price: float64}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
//! let prices = registry.source("websocket").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(prices.stream.unwrap(), "messages of `wss://feed.example/prices` for `prices`");
//! ```
use crate::endpoint::{Endpoint, Trusted};
use crate::hidden::{Headers, Hidden};
use crate::subscription::{Settings, Subscription};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_operators::api::BoundSource;
use tidemill_operators::feeds::Feeds;
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_operators::sources::received::{self, DeclaredType, LineOptions, MaxJump, TimeUnit};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Largest accepted `max_line`.
pub(crate) const LINE_LIMIT: u64 = 64 << 20;

/// The kind `websocket`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Websocket;

/// Options of the source `websocket`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Address of the server: `wss://feed.example/prices`, or where it is if it has a secret: `{env: VARIABLE}`,
    /// `{secret_file: PATH}`.
    #[schemars(with = "Hidden")]
    url: Value,
    /// Further headers, by name: a text, or where it is if it is a secret: `{env: VARIABLE}`, `{secret_file: PATH}`, with a
    /// `prefix` such as `"Bearer "`.
    #[serde(default)]
    #[schemars(with = "Option<BTreeMap<String, Hidden>>")]
    headers: Option<Value>,
    /// Texts to send after each connection, such as subscriptions. Default: none.
    #[serde(default)]
    send: Vec<String>,
    /// Columns to read, each with its type: int64, float64, text, bool or a tensor such as "tensor<float32>[8]".
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    columns: Value,
    /// `{ca_file: PATH}` with the authorities to trust for `wss`. Default: those that the machine trusts.
    #[serde(default)]
    tls: Option<Trusted>,
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

fn default_max_line() -> Bytes {
    Bytes(1 << 20)
}

impl SourceKind for Websocket {
    fn kind(&self) -> &'static str {
        "websocket"
    }

    fn summary(&self) -> &'static str {
        "JSON objects from a websocket, one per message."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { reads: &["tls"], ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "has its secrets and certificates"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let read: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        let endpoint = Endpoint::of(context, &read.url, ["ws", "wss"], read.tls.as_ref());
        let endpoint = endpoint.map_err(|found| errors.append(found)).ok().flatten();
        let headers = Headers::of(context, read.headers.as_ref(), &mut errors);
        errors.into_result(())?;
        let max_line = Bytes(read.max_line.0.clamp(1, LINE_LIMIT));
        let subscription = Subscription::of(Settings {
            source: context.id.value.clone(),
            endpoint,
            headers,
            send: read.send,
            limit: max_line.0 as usize,
        });
        let lines = LineOptions {
            place: context.id.clone(),
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
