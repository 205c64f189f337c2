//! `webhook`: rows as POST requests to a server of others.
//!
//! ```yaml
//! - id: alarms
//!   kind: webhook
//!   input: hot
//!   options:
//!     url: https://alerts.example/plant          # or {env: VARIABLE}, {secret_file: PATH}
//!     headers: {Authorization: {env: ALERTS_TOKEN, prefix: "Bearer "}}
//! ```
//! Each row is a request with a JSON object; with `body: array` or `body: lines` a request has up to `max_rows` rows of an epoch.
//! The requests of an epoch are sent when it is complete, up to `in_flight` at a time, and it is committed when the receiver has
//! answered all of them. While it cannot, the rows before the sink wait, and so do the sources.
//!
//! | answer | |
//! |---|---|
//! | 2xx | taken |
//! | none, 408, 425, 429, 5xx | sent again, after 0.2 to 30 s, or later if `Retry-After` asks for that, an hour at most; with `retry` for so long, then a dead letter (`undelivered`) |
//! | any other | a dead letter (`refused`) with the status and the answer; redirections are not followed |
//!
//! **At least once.** A request has the header `Idempotency-Key`: the run and the record. It is the same when the request is sent
//! again, also by a process that continues the run from its state. A receiver that keeps the keys it knows takes each row once. The
//! key of several rows is of all of them; a process that continues may put rows into other requests if their epochs end by the
//! clock, and then only `_id` (`metadata: true`) tells rows apart.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_web::register(&mut registry);
//! let stream = StreamType::new([Column::new("label", ColumnType::Text)]);
//! let port = InputPort { from: "classify".into(), stream, span: Span::nowhere() };
//! let id = "alarms".into();
//! let context = EndContext::new(&id, std::path::Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "url: http://127.0.0.1:9/in")).unwrap();
//! let sink = registry.sink("webhook").unwrap().bind(&context, &port, &options).unwrap();
//! assert!(sink.repeats);
//! ```
use crate::delivery::{Delivery, Fate, Job, Settings};
use crate::endpoint::{Endpoint, Trusted};
use crate::hidden::{Headers, Hidden};
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::{BoundSink, CallOff, DeadLetter, MakeDurableSink, OperatorError, Sink};
use tidemill_operators::kind::{EndContext, InputPort, TypedSinkKind};
use tidemill_operators::record::{Metadata, RecordId};
use tidemill_operators::sinks::messages::Messages;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::Value;

/// Most requests at a time.
const IN_FLIGHT: u64 = 64;
/// Bytes of rows after which a request with several gets no further one.
const BODY: usize = 1 << 20;

/// The kind `webhook`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Webhook;

/// Body of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// A row as a JSON object.
    #[default]
    Object,
    /// Rows as a JSON array.
    Array,
    /// Rows as JSON objects, one per line.
    Lines,
}

/// Options of the sink `webhook`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Address of the receiver: `https://alerts.example/plant`, or where it is if it has a secret: `{env: VARIABLE}`,
    /// `{secret_file: PATH}`.
    #[schemars(with = "Hidden")]
    url: Value,
    /// Further headers, by name: a text, or where it is if it is a secret: `{env: VARIABLE}`, `{secret_file: PATH}`, with a
    /// `prefix` such as `"Bearer "`.
    #[serde(default)]
    #[schemars(with = "Option<BTreeMap<String, Hidden>>")]
    headers: Option<Value>,
    /// `object`: each row is a request; `array`: a request has several rows as a JSON array; `lines`: as JSON objects, one
    /// per line. Default: object.
    #[serde(default)]
    body: Form,
    /// Most rows of a request with several. Default: 500.
    #[serde(default)]
    max_rows: Option<Located<u64>>,
    /// Columns to write, in this order. Default: all.
    #[serde(default)]
    columns: Option<Vec<Located<String>>>,
    /// Whether to write `_id` and `_time` (event time, microseconds) too. Default: false.
    #[serde(default)]
    metadata: bool,
    /// Requests at a time, up to 64. With 1 they are sent in the order of the rows. Default: 4.
    #[serde(default)]
    in_flight: Option<Located<u64>>,
    /// Longest time for an answer. Default: 10s.
    #[serde(default)]
    timeout: Option<Located<TimeSpan>>,
    /// Time for which a request is sent again; then its rows are dead letters. Default: for ever.
    #[serde(default)]
    retry: Option<TimeSpan>,
    /// `{ca_file: PATH}` with the authorities to trust for `https`. Default: those that the machine trusts.
    #[serde(default)]
    tls: Option<Trusted>,
}

/// Reads a number from 1 to `most`.
fn number(
    name: &str,
    written: Option<&Located<u64>>,
    (default, most): (u64, u64),
    errors: &mut Diagnostics,
) -> usize {
    let found = written.map_or(default, |written| written.value);
    if !(1..=most).contains(&found) {
        let text = format!("`{name}: {found}` is out of range");
        let place = written.map_or_else(Span::nowhere, |written| written.span.clone());
        errors.push(
            Diagnostic::error("E0606", text).at(place).with_help(format!("write a number from 1 to {most}")),
        );
    }
    found as usize
}

impl TypedSinkKind for Webhook {
    type Options = Options;
    const KIND: &'static str = "webhook";
    const SUMMARY: &'static str = "Rows as POST requests to a server, as JSON.";
    const FACTS: SinkFacts = SinkFacts {
        publication: Publication::EachEpoch,
        writes: &[],
        reads: &["tls"],
        free: &["headers", "in_flight", "timeout", "retry"],
        ..SinkFacts::DEFAULT
    };

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let mut errors = Diagnostics::new();
        let endpoint = Endpoint::of(context, &options.url, ["http", "https"], options.tls.as_ref());
        let endpoint = endpoint.map_err(|found| errors.append(found)).ok().flatten();
        let headers = Headers::of(context, options.headers.as_ref(), &mut errors);
        let in_flight = number("in_flight", options.in_flight.as_ref(), (4, IN_FLIGHT), &mut errors);
        let max_rows = number("max_rows", options.max_rows.as_ref(), (500, 100_000), &mut errors);
        if let (Form::Object, Some(rows)) = (options.body, &options.max_rows) {
            let error = Diagnostic::error("E0606", "`max_rows` has no effect on requests of one row each");
            errors.push(error.at(rows.span.clone()).with_help("write `body: array` too, or leave it out"));
        }
        let timeout = match &options.timeout {
            None => Duration::from_secs(10),
            Some(written) if written.value.0 == 0 => {
                let error = Diagnostic::error("E0606", "`timeout: 0s` leaves no time for an answer");
                errors.push(error.at(written.span.clone()).with_help("write a time such as `10s`"));
                Duration::ZERO
            }
            Some(written) => Duration::from_nanos(written.value.0),
        };
        let messages = Messages::choose(context, input, options.columns.as_deref(), options.metadata)
            .map_err(|found| errors.append(found))
            .ok();
        errors.into_result(())?;
        let Some(messages) = messages else { return Err(Diagnostics::new()) };
        let id = context.id.value.clone();
        let content_type = match options.body {
            Form::Object | Form::Array => "application/json",
            Form::Lines => "application/x-ndjson",
        };
        let retry = options.retry.map(|retry| Duration::from_nanos(retry.0));
        let settings = endpoint.map(|endpoint| {
            Arc::new(Settings { id, endpoint, headers, content_type, timeout, retry, in_flight })
        });
        let form = (options.body, max_rows);
        let durable: MakeDurableSink = Arc::new(move |token| {
            let settings =
                settings.clone().ok_or_else(|| OperatorError::new("it was checked, but not opened here"))?;
            Ok(Box::new(Sender::open(settings, messages.clone(), form, token)?) as Box<dyn Sink>)
        });
        let make = Arc::clone(&durable);
        let bound = context.sink(Self::KIND, input, Vec::new(), Arc::new(move || make(None)));
        Ok(BoundSink { durable: Some(durable), repeats: true, ..bound })
    }
}

/// A row that waits for its commit.
struct Waiting {
    /// Epoch, and place among the batches.
    of: (u64, usize),
    row: usize,
    id: RecordId,
    json: Vec<u8>,
}

struct Sender {
    messages: Messages,
    form: (Form, usize),
    delivery: Delivery,
    /// Name of the run, which its keys begin with: numbers of records begin again with the next run.
    run: String,
    /// Rows of all processes of the run: the state is another one after each commit with rows.
    given: u64,
    epoch: u64,
    batches: Vec<RecordBatch>,
    waiting: Vec<Waiting>,
    letters: Vec<(u64, DeadLetter)>,
}

impl Sender {
    fn open(
        settings: Arc<Settings>,
        messages: Messages,
        form: (Form, usize),
        token: Option<&[u8]>,
    ) -> Result<Self, OperatorError> {
        let (run, given) = match token.map(String::from_utf8_lossy) {
            None => (name().map_err(|error| OperatorError::new(error.to_string()))?, 0),
            Some(token) => {
                let parts = token
                    .split_once(' ')
                    .and_then(|(run, given)| Some((run.to_owned(), given.parse().ok()?)));
                parts.ok_or_else(|| OperatorError::new("the state of this sink is damaged"))?
            }
        };
        Ok(Self {
            messages,
            form,
            delivery: Delivery::new(settings),
            run,
            given,
            epoch: 0,
            batches: Vec::new(),
            waiting: Vec::new(),
            letters: Vec::new(),
        })
    }

    /// The requests, each with its number of rows.
    fn jobs(&self) -> (Vec<Job>, Vec<usize>) {
        let (form, max_rows) = self.form;
        let of_epochs = self.waiting.chunk_by(|one, other| one.of.0 == other.of.0);
        let mut groups = Vec::new();
        for rows in of_epochs {
            let mut rest = rows;
            while !rest.is_empty() {
                let mut bytes = 0;
                let fits = |row: &&Waiting| {
                    let is_first = bytes == 0;
                    bytes += row.json.len() + 1;
                    is_first || bytes <= BODY
                };
                let most = if form == Form::Object { 1 } else { max_rows };
                let (group, after) = rest.split_at(rest.iter().take(most).take_while(fits).count());
                groups.push(group);
                rest = after;
            }
        }
        let jobs = groups.iter().map(|rows| Job { key: self.key(rows), body: body(form, rows) }).collect();
        (jobs, groups.iter().map(|rows| rows.len()).collect())
    }

    /// The key of a request.
    fn key(&self, rows: &[Waiting]) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let first = rows.first().map(|row| hex(&row.id)).unwrap_or_default();
        match rows.len() {
            0 | 1 => format!("{}-{first}", self.run),
            _ => {
                let ids: Vec<u8> = rows.iter().flat_map(|row| row.id).collect();
                format!("{}-{first}-{:016x}", self.run, xxhash_rust::xxh3::xxh3_64(&ids))
            }
        }
    }
}

fn body(form: Form, rows: &[Waiting]) -> Vec<u8> {
    let rows: Vec<&[u8]> = rows.iter().map(|row| row.json.as_slice()).collect();
    match form {
        Form::Object => rows.concat(),
        Form::Array => [b"[".as_slice(), &rows.join(&b','), b"]"].concat(),
        Form::Lines => [rows.join(&b'\n').as_slice(), b"\n"].concat(),
    }
}

impl Sink for Sender {
    fn at_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let (of, metadata) = ((self.epoch, self.batches.len()), Metadata::of(batch));
        let waiting = &mut self.waiting;
        self.messages.of(batch, |row, json| {
            waiting.push(Waiting { of, row, id: metadata.id(row), json: json.to_vec() });
        })?;
        self.batches.push(batch.clone());
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        let (jobs, lengths) = self.jobs();
        let fates = self.delivery.send(&jobs)?;
        self.given += self.waiting.len() as u64;
        let mut rows = self.waiting.drain(..);
        for (fate, length) in fates.into_iter().zip(lengths) {
            for Waiting { of: (epoch, batch), row, .. } in rows.by_ref().take(length) {
                if let Fate::Refused(reason, detail) = &fate {
                    let letter = DeadLetter::of_row(&self.batches[batch], row, *reason, detail.clone());
                    self.letters.push((epoch, letter));
                }
            }
        }
        drop(rows);
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
        self.rollback()
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(Some(format!("{} {}", self.run, self.given).into_bytes()))
    }

    fn exactly_once(&self) -> bool {
        false
    }

    fn call_off(&self) -> Option<CallOff> {
        let sign = self.delivery.sign();
        Some(Arc::new(move || sign.give()))
    }
}

/// A name that no other run has.
fn name() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
