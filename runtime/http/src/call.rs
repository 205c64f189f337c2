//! A request, its answer, and why there is none.
use std::error::Error;
use std::io::{self, ErrorKind};

use bytes::Bytes;
use hyper::Request;
use hyper::header::{self, HeaderName, HeaderValue};
use rustls::{CertificateError, OtherError};
use zeroize::Zeroizing;

/// A request.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// `GET`, `POST`, `PUT`, `DELETE`.
    pub method: &'a str,
    /// Path and query; it begins with `/`.
    pub path: &'a str,
    /// The access token of a person; workers show certificates.
    pub token: Option<&'a str>,
    /// The first byte of the answer's body that is wanted.
    pub from: u64,
    /// JSON or bytes; empty if there is none.
    pub body: &'a [u8],
    /// Further headers, which replace those of their names; values marked as sensitive are not shown.
    pub headers: &'a [(HeaderName, HeaderValue)],
}

impl<'a> Call<'a> {
    /// Asks for what is at a path.
    pub const fn get(path: &'a str) -> Self {
        Self { method: "GET", path, token: None, from: 0, body: b"", headers: &[] }
    }

    /// The request with any body. The bytes of the token are overwritten once the request has been sent.
    pub(crate) fn request<B>(&self, host: &str, body: B, length: u64) -> Result<Request<B>, CallError> {
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let odd = |text: &str| CallError::Request(text.chars().take(100).collect());
        if let Some(text) = [self.method, self.path, host].into_iter().find(|text| !is_plain(text)) {
            return Err(odd(text));
        }
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, length);
        if self.from > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", self.from));
        }
        if let Some(token) = self.token {
            let shown = Zeroizing::new(format!("Bearer {token}").into_bytes());
            let mut shown =
                HeaderValue::from_maybe_shared(Bytes::from_owner(shown)).map_err(|_| odd("a token"))?;
            shown.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, shown);
        }
        let mut request = request.body(body).map_err(|_| odd(self.path))?;
        for (name, value) in self.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP: 200 is good.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The address is not reached.
    #[error("{place} cannot be reached: {source}")]
    Unreachable {
        /// Host and port, or the socket.
        place: String,
        /// Why not.
        source: io::Error,
    },
    /// The peer is not the one that is meant.
    #[error("{place}: {}", .reason.0)]
    Stranger {
        /// Host and port.
        place: String,
        /// Says what is wrong with its certificate.
        reason: OtherError,
    },
    /// TLS failed otherwise.
    #[error("{place}: TLS: {reason}")]
    Tls {
        /// Host and port.
        place: String,
        /// Says what is wrong.
        reason: rustls::Error,
    },
    /// The connection broke, or took too long.
    #[error("{place} did not answer: {source}")]
    Broken {
        /// Host and port, or the socket.
        place: String,
        /// Says what happened.
        source: io::Error,
    },
    /// The answer is no HTTP.
    #[error("{place} answered with something that is no HTTP that is understood here: {why}")]
    Malformed {
        /// Host and port, or the socket.
        place: String,
        /// Says what is wrong.
        why: String,
    },
    /// The method or the path would break the request.
    #[error("{0:?} cannot stand in the first line of a request")]
    Request(String),
}

pub(crate) fn timed_out() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "it took too long")
}

/// A connection failed: TLS says more than the socket.
pub(crate) fn broken(place: &str, error: io::Error) -> CallError {
    let place = place.to_owned();
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(reason))) => {
            CallError::Stranger { place, reason: reason.clone() }
        }
        Some(reason) => CallError::Tls { place, reason: reason.clone() },
        None => CallError::Broken { place, source: error },
    }
}

/// A request or an answer failed.
pub(crate) fn failed(place: &str, error: &hyper::Error) -> CallError {
    if error.is_parse() {
        return CallError::Malformed { place: place.to_owned(), why: error.to_string() };
    }
    broken(place, as_io(error))
}

/// Returns the error of the socket, or of TLS, that an error of hyper is about.
pub(crate) fn io_within(error: &hyper::Error) -> Option<&io::Error> {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(found) = inner.downcast_ref() {
            return Some(found);
        }
        source = inner.source();
    }
    None
}

/// An error of hyper as one of the system: callers tell by its kind what may be tried again.
pub(crate) fn as_io(error: &hyper::Error) -> io::Error {
    if let Some(inner) = io_within(error) {
        let tls = inner.get_ref().and_then(|tls| tls.downcast_ref::<rustls::Error>());
        return match tls {
            Some(reason) => io::Error::new(inner.kind(), reason.clone()),
            None => io::Error::new(inner.kind(), inner.to_string()),
        };
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return io::Error::new(
            ErrorKind::UnexpectedEof,
            "the connection was closed before the answer was whole",
        );
    }
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_what_is_wanted() {
        let call = Call { method: "POST", token: Some("tma_1"), from: 7, body: b"{}", ..Call::get("/join") };
        let request = call.request("hub:1", (), 2).unwrap();
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/join"));
        let header = |name: &str| request.headers()[name].to_str().unwrap();
        assert_eq!((header("host"), header("content-length"), header("range")), ("hub:1", "2", "bytes=7-"));
        assert_eq!(header("authorization"), "Bearer tma_1");
        assert!(!format!("{request:?}").contains("tma_1"));
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))];
        let request = Call { headers: &headers, ..call }.request("hub:1", (), 2).unwrap();
        assert_eq!(request.headers().get_all("content-type").iter().count(), 1);
        assert_eq!(request.headers()["content-type"], "text/plain");
        for (path, host) in [("/a b", "hub:1"), ("/\r\nx:", "hub:1"), ("/", "a\nb"), ("", "hub:1")] {
            let refused = Call::get(path).request(host, (), 0);
            assert!(matches!(refused, Err(CallError::Request(_))), "{path} {host}");
        }
    }
}
