//! An answer whose body is read as it comes.
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderMap, RETRY_AFTER};
use tokio::time::{Instant, timeout_at};

use crate::call::{Answer, CallError, as_io, broken, timed_out};
use crate::caller::{Caller, Idle, runtime};

/// Bytes that a whole answer may have; one that is read as it comes may have any number.
pub const ANSWER_BYTES: u64 = 64 << 20;
/// Bytes per second that a body must have, on average, once it has taken longer than the answer was to be waited for.
const SLOWEST: u64 = 64 << 10;

/// See the module. The connection is kept for the next call where the body was read to its end.
pub struct Reply {
    /// The status of HTTP: 200 is good.
    pub status: u16,
    /// Bytes of the body, where the peer says how many there are.
    pub length: Option<u64>,
    /// The header `Retry-After`, where there is one: seconds, or a date.
    pub retry_after: Option<String>,
    headers: HeaderMap,
    caller: Arc<Caller>,
    idle: Option<Idle>,
    body: Incoming,
    part: Bytes,
    begun: Instant,
    patience: Duration,
    received: u64,
}

impl Reply {
    pub(crate) fn new(
        caller: Arc<Caller>,
        idle: Idle,
        response: Response<Incoming>,
        begun: Instant,
        patience: Duration,
    ) -> Self {
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.map(str::to_owned);
        let (head, body) = response.into_parts();
        let (status, headers) = (head.status.as_u16(), head.headers);
        let (length, part) = (body.size_hint().exact(), Bytes::new());
        Self {
            status,
            length,
            retry_after,
            headers,
            caller,
            idle: Some(idle),
            body,
            part,
            begun,
            patience,
            received: 0,
        }
    }

    /// Returns a header of the answer, where there is one that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the body to its end.
    ///
    /// # Errors
    /// The connection breaks or takes too long; there are more bytes than [`ANSWER_BYTES`].
    pub fn whole(mut self) -> Result<Answer, CallError> {
        let (mut body, place) = (Vec::new(), self.caller.address().to_owned());
        (&mut self).take(ANSWER_BYTES + 1).read_to_end(&mut body).map_err(|error| broken(&place, error))?;
        match body.len() as u64 > ANSWER_BYTES {
            true => Err(CallError::Malformed { place, why: "its body is too long".to_owned() }),
            false => Ok(Answer { status: self.status, body }),
        }
    }
}

impl Read for Reply {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            let Some(idle) = self.idle.take() else { return Ok(0) };
            let frame = runtime()?.block_on(async {
                let pauses = Instant::now() + self.patience;
                let in_time = self.begun + self.patience + Duration::from_secs(self.received / SLOWEST);
                timeout_at(pauses.min(in_time), self.body.frame()).await
            });
            match frame {
                Ok(None) => {
                    self.caller.keep(idle);
                    return Ok(0);
                }
                Ok(Some(Ok(frame))) => {
                    self.part = frame.into_data().unwrap_or_default();
                    self.received += self.part.len() as u64;
                    // Where the length is known, the last part is known, too: the connection is free before the end is read.
                    match self.body.is_end_stream() {
                        true => self.caller.keep(idle),
                        false => self.idle = Some(idle),
                    }
                }
                Ok(Some(Err(error))) => return Err(as_io(&error)),
                Err(_) => return Err(timed_out()),
            }
        }
        let count = self.part.len().min(into.len());
        self.part.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}
