//! The port of a source of requests.
//!
//! | request | answer |
//! |---|---|
//! | its record has a row at the sink | 200, the row as JSON |
//! | it has none: a filter or a join left it out | 404 |
//! | it became a dead letter | 422, with reason and the first line of the detail |
//! | nobody answers requests of this source | 202, once the record waits for the run |
//! | no row in time | 504 |
//! | no JSON object with these columns, no picture or sound | 400, with line and column |
//! | too long | 413 |
//! | too many wait, or too many bytes, bodies that still arrive included | 429, with `Retry-After` |
//! | the run ends | 503, with `Retry-After` |
#![allow(clippy::result_large_err, reason = "an answer is made once, and sent")]
use crate::content::{Form, Refusal};
use crate::desk::{Desk, Outcome, Refused, Room};
use http_body_util::BodyExt;
use serde_json::json;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_http::server::{
    Answers, Bytes, Full, HeaderValue, Incoming, Method, Peer, PeerActivity, Request, Response, StatusCode,
    header, paced, plain, serve_until,
};
use tidemill_operators::record::EventTime;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Time for the last answers when the run ends.
const LAST_ANSWERS: Duration = Duration::from_secs(3);
/// Seconds after which a client that was refused may try again.
const RETRY: HeaderValue = HeaderValue::from_static("1");
/// The header with the key of a picture or sound.
const KEY: &str = "x-key";
/// Characters of the detail of a dead letter in an answer: the rest, such as paths of the code, is in the dead letter only.
const DETAIL: usize = 200;
/// Bytes of a key.
const KEY_BYTES: usize = 1024;

/// Settings of a port.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address and port.
    pub listen: String,
    /// The path of requests.
    pub path: String,
    /// Longest body.
    pub max_body: u64,
    /// Most requests that wait.
    pub max_waiting: usize,
    /// Most bytes of records that the run has not read, and of bodies that arrive.
    pub max_waiting_bytes: usize,
    /// Longest time for an answer.
    pub timeout: Duration,
}

/// A port that is open; closed when it is dropped.
pub(crate) struct Port {
    desk: Arc<Desk>,
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
}

impl Port {
    pub(crate) fn open(desk: &Arc<Desk>, form: &Arc<Form>, settings: &Settings) -> io::Result<Self> {
        let listener = TcpListener::bind(&settings.listen)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tm-http-serve")
            .enable_all()
            .build()?;
        let clerk = Clerk {
            desk: Arc::clone(desk),
            form: Arc::clone(form),
            settings: settings.clone(),
            numbers: AtomicU64::new(0),
        };
        let (stop, stopped) = watch::channel(false);
        let listener = {
            let _inside = runtime.enter();
            plain(listener)?
        };
        desk.open();
        let served = runtime.spawn(serve_until(listener, Arc::new(clerk), stopped));
        Ok(Self { desk: Arc::clone(desk), runtime: Some(runtime), stop, served })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.desk.close();
        self.stop.send_replace(true);
        let Some(runtime) = self.runtime.take() else { return };
        let served = &mut self.served;
        if runtime.block_on(async { tokio::time::timeout(LAST_ANSWERS, served).await }).is_err() {
            tracing::warn!("clients did not take the last answers");
        }
        runtime.shutdown_background();
    }
}

/// Microseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "clients follow no simulated time")]
fn arrival() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EventTime::try_from(since.as_micros()).unwrap_or(EventTime::MAX)
}

struct Clerk {
    desk: Arc<Desk>,
    form: Arc<Form>,
    settings: Settings,
    /// Keys of files without one.
    numbers: AtomicU64,
}

type Reply = Response<Full<Bytes>>;

fn reply(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// An answer that is an error, for programs (`reason`) and people (`detail`).
fn refuse(status: StatusCode, reason: &str, detail: &str) -> Reply {
    reply(status, json!({"error": reason, "detail": detail}).to_string() + "\n")
}

fn later(status: StatusCode, reason: &str, detail: &str) -> Reply {
    let mut reply = refuse(status, reason, detail);
    reply.headers_mut().insert(header::RETRY_AFTER, RETRY);
    reply
}

fn refused(why: Refused) -> Reply {
    match why {
        Refused::Busy => {
            let detail = "as many requests wait as may: try again later";
            later(StatusCode::TOO_MANY_REQUESTS, "busy", detail)
        }
        Refused::Ended => ended(),
    }
}

fn too_long(most: u64) -> Reply {
    refuse(StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", &format!("a body has at most {most} bytes"))
}

impl Clerk {
    /// Reads a body; its bytes count until the room is dropped.
    async fn body(&self, request: Request<Incoming>, heard: &PeerActivity) -> Result<(Bytes, Room), Reply> {
        let most = self.settings.max_body;
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok());
        let length = length.and_then(|text| text.parse::<u64>().ok());
        if length.is_some_and(|length| length > most) {
            return Err(too_long(most));
        }
        let mut room = Room::new(&self.desk, self.settings.max_waiting_bytes);
        room.expect(length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0)).map_err(refused)?;
        let mut body = std::pin::pin!(paced(request.into_body(), Some(most), heard.clone()));
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => too_long(most),
                io::ErrorKind::TimedOut => {
                    refuse(StatusCode::REQUEST_TIMEOUT, "body_too_slow", &error.to_string())
                }
                _ => refuse(StatusCode::BAD_REQUEST, "body_broken", &error.to_string()),
            })?;
            if let Ok(part) = frame.into_data() {
                room.take(part.len()).map_err(refused)?;
                whole.extend_from_slice(&part);
            }
        }
        Ok((whole.into(), room))
    }

    async fn serve(&self, request: Request<Incoming>, heard: &PeerActivity) -> Result<Reply, Reply> {
        let path = request.uri().path();
        if path != self.settings.path {
            let detail = format!("send requests to `{}`", self.settings.path);
            return Err(refuse(StatusCode::NOT_FOUND, "unknown_path", &detail));
        }
        if request.method() != Method::POST {
            let mut refused =
                refuse(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "send records with POST");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
            return Err(refused);
        }
        let key = request.headers().get(KEY).cloned();
        let (body, room) = self.body(request, heard).await?;
        let key = match key.as_ref().map(|key| key.to_str()) {
            Some(Ok(key)) if key.len() <= KEY_BYTES => Some(key.to_owned()),
            Some(_) => {
                return Err(refuse(StatusCode::BAD_REQUEST, "bad_key", "`X-Key` is no short plain text"));
            }
            None => None,
        };
        let number = || self.numbers.fetch_add(1, Ordering::Relaxed).to_string();
        let content = self.form.read(body, || key.unwrap_or_else(number)).map_err(|refusal| {
            let Refusal { reason, detail, place } = refusal;
            let mut body = json!({"error": reason, "detail": detail});
            if let Some((line, column)) = place {
                body["line"] = line.into();
                body["column"] = column.into();
            }
            reply(StatusCode::BAD_REQUEST, body.to_string() + "\n")
        })?;
        drop(room); // from now on the bytes of the record count
        let Settings { max_waiting, max_waiting_bytes, timeout, .. } = self.settings;
        let outcome = match self.desk.add(content, arrival(), (max_waiting, max_waiting_bytes)) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(reply(StatusCode::ACCEPTED, Bytes::new())),
            Err(why) => return Err(refused(why)),
        };
        let outcome = tokio::time::timeout(timeout, outcome).await.map_err(|_| {
            let detail = format!("no result after {} s", timeout.as_secs_f64());
            refuse(StatusCode::GATEWAY_TIMEOUT, "timeout", &detail)
        })?;
        match outcome {
            Ok(Outcome::Rows(mut rows)) if rows.len() == 1 => {
                let mut row = rows.remove(0);
                row.push(b'\n');
                Ok(reply(StatusCode::OK, row))
            }
            Ok(Outcome::Rows(rows)) if rows.is_empty() => {
                let detail = "the workflow gives no result for this record: a filter or a join left it out";
                Err(refuse(StatusCode::NOT_FOUND, "no_result", detail))
            }
            Ok(Outcome::Rows(rows)) => Ok(reply(StatusCode::OK, list(&rows))),
            Ok(Outcome::Dead(reason, detail)) => {
                let line: String = detail.lines().next().unwrap_or_default().chars().take(DETAIL).collect();
                Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, &reason, &line))
            }
            Ok(Outcome::Ended) | Err(_) => Err(ended()),
        }
    }
}

fn ended() -> Reply {
    later(StatusCode::SERVICE_UNAVAILABLE, "ended", "the workflow ends: ask again when it runs")
}

/// Rows as a JSON array.
fn list(rows: &[Vec<u8>]) -> Vec<u8> {
    [b"[".as_slice(), &rows.join(&b','), b"]\n"].concat()
}

impl Answers for Clerk {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>, _: &Peer, heard: &PeerActivity) -> Reply {
        match self.serve(request, heard).await {
            Ok(reply) | Err(reply) => reply,
        }
    }
}
