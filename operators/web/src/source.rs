//! `http`: requests as records.
//!
//! ```yaml
//! sources:
//! - {id: requests, kind: http, options: {listen: 127.0.0.1:8080, columns: {text: text}}}
//! sinks:
//! - {id: answers, kind: http, input: classify, options: {answers: requests}}
//! ```
//! A request is `POST /` with a JSON object of the declared `columns` (fields as those of `jsonl`), or with `body: image`
//! or `body: audio` a picture or a sound: its records are then `{key, image}` or `{key, audio}`, where the
//! key is the header `X-Key`, else the number of the request. The event time is the arrival.
//!
//! **With a sink `http`** that `answers` it, the workflow is a service: each request waits for the rows of its record; see
//! [`crate::sink`] and, for all answers, [`crate::server`]. **Without one** records are pushed: the answer is 202 when the
//! record waits for the run. A record that was taken is lost if the process dies: at most once.
//!
//! At most `max_waiting` requests wait; more get 429 with `Retry-After`. So do bodies beyond 64 MiB, or four times
//! `max_body`, of records that the run has not read and bodies that still arrive. A request that got 504, or whose client is
//! gone, does not count, and its record is dropped if the run has not read it. There is neither encryption nor authentication:
//! listen where only authorised clients reach it, or behind a gateway.
//!
//! ```
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_web::register(&mut registry);
//! let id = "requests".into();
//! let context = EndContext::new(&id, std::path::Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "listen: 127.0.0.1:8080\nbody: image")).unwrap();
//! let requests = registry.source("http").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(requests.output.to_string(), "{key: text, image: image}");
//! ```
use crate::content::Form;
use crate::desk::Desk;
use crate::reader::Reader;
use crate::server::Settings;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_operators::api::{BoundSource, MakeSource, OperatorError};
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_operators::record::payload_schema;
use tidemill_operators::sources::objects::{ColumnsOption, Objects, declared_columns};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Largest accepted `max_body`.
const BODY_LIMIT: u64 = 256 << 20;
/// Bytes of records that wait, as a multiple of the largest body.
const BODIES_WAITING: u64 = 4;
/// Least limit of bytes of records that wait.
const LEAST_WAITING: u64 = 64 << 20;

/// The kind `http`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Http;

/// Options of `http`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Address and port for requests, on the machine that reads the source: `127.0.0.1:8080`, `0.0.0.0:8080`.
    listen: Located<String>,
    /// Path of requests. Default: `/`.
    #[serde(default)]
    path: Option<Located<String>>,
    /// Columns to read from JSON objects, each with its type: int64, float64, text or bool.
    #[serde(default)]
    #[schemars(with = "Option<ColumnsOption>")]
    columns: Option<Value>,
    /// `image`: a picture; `audio`: a sound, both in any format that models read. Instead of `columns`.
    #[serde(default)]
    body: Option<Body>,
    /// Largest picture, in pixels (width times height). Default: 64000000.
    #[serde(default = "default_pixels")]
    max_pixels: u64,
    /// Longest body, up to 256MiB. Default: 16MiB.
    #[serde(default = "default_body")]
    max_body: Located<Bytes>,
    /// Most requests that wait at once; others are refused with 429. Default: 1024.
    #[serde(default = "default_waiting")]
    max_waiting: Located<u32>,
    /// Longest time for an answer; then the answer is 504. Default: 30s.
    #[serde(default = "default_timeout")]
    timeout: Located<TimeSpan>,
}

/// Files in bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Body {
    /// A picture.
    Image,
    /// A sound.
    Audio,
}

fn default_pixels() -> u64 {
    64_000_000
}

fn default_body() -> Located<Bytes> {
    Located::from(Bytes(16 << 20))
}

fn default_waiting() -> Located<u32> {
    Located::from(1024)
}

fn default_timeout() -> Located<TimeSpan> {
    Located::from(TimeSpan(30_000_000_000))
}

fn wrong(text: impl Into<String>, help: &str) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

impl SourceKind for Http {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn summary(&self) -> &'static str {
        "Requests: the workflow is an HTTP service, or records are pushed to it."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { reads: &[], listens: &["listen"], ..SourceFacts::DEFAULT }
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        check(&options, &mut errors);
        let form = match (&options.columns, options.body) {
            (Some(columns), None) => match declared_columns(columns) {
                Ok(columns) => Some(Form::Object(Objects::new(columns))),
                Err(found) => {
                    errors.append(found);
                    None
                }
            },
            (None, Some(Body::Image)) => Some(Form::Image(options.max_pixels)),
            (None, Some(Body::Audio)) => Some(Form::Audio),
            _ => {
                let text = format!("source `{}` needs either `columns` or `body`", context.id);
                let help = "write `columns: {text: text}` for JSON objects, or `body: image` for pictures";
                errors.push(wrong(text, help).at(context.id.span.clone()));
                None
            }
        };
        let Some(form) = form.filter(|_| !errors.has_errors()) else {
            return Err(errors);
        };
        let max_waiting_bytes = (BODIES_WAITING * options.max_body.value.0).max(LEAST_WAITING);
        let settings = Settings {
            listen: options.listen.value.clone(),
            path: options.path.map_or_else(|| "/".to_owned(), |path| path.value),
            max_body: options.max_body.value.0,
            max_waiting: options.max_waiting.value as usize,
            max_waiting_bytes: usize::try_from(max_waiting_bytes).unwrap_or(usize::MAX),
            timeout: Duration::from_nanos(options.timeout.value.0),
        };
        let (output, form) = (form.output(), Arc::new(form));
        let schema = payload_schema(&output);
        let desk = Desk::of(context.base, context.id);
        let stream = format!("requests to `{}`", options.listen);
        let (shared, name, taken) = (Arc::clone(&desk), stream.clone(), AtomicBool::new(false));
        let make: MakeSource = Arc::new(move || {
            if taken.swap(true, Ordering::AcqRel) {
                return Err(OperatorError::new(format!(
                    "{name} can be read only once, but are needed a second time (after a restart, or by a plan \
                     with several stages of the source)"
                )));
            }
            Ok(Box::new(Reader::start(&shared, &form, &schema, &settings)?))
        });
        Ok(BoundSource {
            has_event_times: true,
            stream: Some(stream),
            feeds: Some(Arc::clone(&desk) as _),
            requests: Some(desk),
            ..context.source("http", output, make)
        })
    }
}

/// Checks the options that are numbers and addresses.
fn check(options: &Options, errors: &mut Diagnostics) {
    let has_port = options.listen.rsplit_once(':').is_some_and(|(host, port)| {
        // The port chosen by the system would be unknown to clients.
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !has_port {
        let text = format!("`{}` is not an address with a port", options.listen);
        let help =
            "write `127.0.0.1:8080` for programs of the same machine, `0.0.0.0:8080` for all that reach it";
        errors.push(wrong(text, help).at(options.listen.span.clone()));
    }
    let is_path = |path: &str| path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    if let Some(path) = options.path.as_ref().filter(|path| !is_path(path) || path.contains(['?', '#'])) {
        let text = format!("`{path}` is not the path of an address");
        errors.push(wrong(text, "write a path such as `/classify`").at(path.span.clone()));
    }
    if !(1..=BODY_LIMIT).contains(&options.max_body.value.0) {
        let text = format!("`max_body: {}` is not possible", options.max_body);
        errors.push(wrong(text, "write 1B to 256MiB").at(options.max_body.span.clone()));
    }
    if options.max_waiting.value == 0 {
        let help = "write how many requests may wait at once, such as 1024";
        errors.push(wrong("`max_waiting: 0` takes no request", help).at(options.max_waiting.span.clone()));
    }
    if options.timeout.value.0 < 1_000_000 {
        let text = format!("`timeout: {}` is not possible", options.timeout);
        errors.push(wrong(text, "write 1ms or more").at(options.timeout.span.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::{span::SourceFile, yaml};

    #[test]
    fn wrong_options_are_refused_with_what_to_write() {
        for (text, message, place) in [
            ("listen: 8080\ncolumns: {t: text}", "expected", None),
            ("listen: ':8080'\ncolumns: {t: text}", "`:8080` is not an address with a port", Some((1, 9))),
            ("listen: a:0\ncolumns: {t: text}", "not an address with a port", Some((1, 9))),
            ("listen: a:1", "needs either `columns` or `body`", None),
            ("listen: a:1\ncolumns: {t: text}\nbody: image", "needs either `columns` or `body`", None),
            ("listen: a:1\nbody: audio\npath: classify", "not the path of an address", Some((3, 7))),
            ("listen: a:1\nbody: audio\nmax_body: 1GiB", "`max_body: 1GiB` is not possible", Some((3, 11))),
            ("listen: a:1\nbody: audio\nmax_waiting: 0", "takes no request", Some((3, 14))),
            ("listen: a:1\nbody: audio\ntimeout: 0s", "`timeout: 0s` is not possible", Some((3, 10))),
        ] {
            let id = "requests".into();
            let context = EndContext::new(&id, std::path::Path::new("."));
            let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
            let errors = Http.bind(&context, &options).err().expect(text);
            assert!(errors.to_string().contains(message), "{text}: {errors}");
            let found = errors.iter().next().unwrap();
            if let Some((line, column)) = place {
                assert_eq!((found.line(), found.column()), (Some(line), Some(column)), "{text}: {errors}");
            }
        }
    }
}
