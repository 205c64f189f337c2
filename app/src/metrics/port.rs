//! The port at which metrics are served.
use super::CONTENT_TYPE;
use crate::failure::{Failure, Kind};
use crate::run_figures::RunFigures;
use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_http::server::{
    Answers, Bytes, Full, HeaderValue, Incoming, Method, Peer, PeerActivity, Request, Response, StatusCode,
    header, plain, serve,
};
use tokio::runtime::Builder;

/// The served pages.
struct Pages {
    metrics: Box<dyn Fn() -> Result<String, fmt::Error> + Send>,
    figures: Box<dyn Fn() -> Vec<RunFigures> + Send>,
}

impl Pages {
    /// The type and the text of a page; none: there is no such page.
    fn get(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => {
                let text = (self.metrics)().map(|text| (CONTENT_TYPE, text));
                Some(text.map_err(|error| error.to_string()))
            }
            "/figures" => {
                let text = serde_json::to_string(&(self.figures)()).map(|text| ("application/json", text));
                Some(text.map_err(|error| error.to_string()))
            }
            _ => None,
        }
    }
}

/// A port that is bound already, so that a taken port is reported before any file is read.
pub struct MetricsPort {
    listener: TcpListener,
    /// The served pages; none: not yet.
    pages: Arc<Mutex<Option<Pages>>>,
}

impl fmt::Debug for MetricsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPort").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl MetricsPort {
    /// Takes the port.
    ///
    /// # Errors
    /// When the text is no address, or the port cannot be had.
    pub fn open(address: &str) -> Result<Self, Failure> {
        let not_one = || {
            Failure::new(Kind::Usage, format!("`{address}` is not an address for metrics"))
                .with_help("write an address and a port, such as `127.0.0.1:9464`")
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(|_| not_one())?.collect();
        let listener = TcpListener::bind(addresses.as_slice()).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("cannot serve metrics at {address}: {error}"))
                .with_help("choose another port, or 0 for any free one")
        })?;
        Ok(Self { listener, pages: Arc::default() })
    }

    /// Returns its address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers requests with these metrics and with the figures of these runs, until the process ends or this is called again.
    ///
    /// # Errors
    /// When the system gives no thread, or no second handle of the port.
    pub fn serve(
        &self,
        metrics: impl Fn() -> Result<String, fmt::Error> + Send + 'static,
        figures: impl Fn() -> Vec<RunFigures> + Send + 'static,
    ) -> std::io::Result<()> {
        let pages = Pages { metrics: Box::new(metrics), figures: Box::new(figures) };
        let answers = self.pages.lock().unwrap_or_else(PoisonError::into_inner).replace(pages).is_some();
        if answers {
            return Ok(());
        }
        let listener = self.listener.try_clone()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _in_runtime = runtime.enter();
            plain(listener)?
        };
        let desk = Arc::new(Desk(Arc::clone(&self.pages)));
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || runtime.block_on(serve(listener, desk)))?;
        Ok(())
    }
}

/// Answers requests with the pages of [`MetricsPort::serve`].
struct Desk(Arc<Mutex<Option<Pages>>>);

/// The type and the text of a page, or why it cannot be had.
type Page = Result<(&'static str, String), String>;

impl Answers for Desk {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>, _: &Peer, _: &PeerActivity) -> Response<Full<Bytes>> {
        let page = |path: &str| self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(path);
        let plain = "text/plain; charset=utf-8";
        let (status, kind, body) = match *request.method() {
            Method::GET | Method::HEAD => match page(request.uri().path()) {
                Some(Ok((kind, body))) => (StatusCode::OK, kind, body),
                Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, plain, error),
                None => {
                    let text = "metrics are at /metrics, figures at /figures\n";
                    (StatusCode::NOT_FOUND, plain, text.to_owned())
                }
            },
            _ => (StatusCode::METHOD_NOT_ALLOWED, plain, "only GET\n".to_owned()),
        };
        let mut answer = Response::new(Full::from(body));
        *answer.status_mut() = status;
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    /// A client on a busy machine: it connects, and its request comes in pieces, long after one another.
    #[test]
    fn a_client_that_pauses_is_answered_and_holds_up_no_other_one() {
        let port = MetricsPort::open("127.0.0.1:0").unwrap();
        let address = port.address().unwrap();
        port.serve(|| Ok("counted 7\n".to_owned()), Vec::new).unwrap();
        let ask = |pieces: [&str; 2], between: &dyn Fn()| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(pieces[0].as_bytes()).unwrap();
            between();
            stream.write_all(pieces[1].as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let whole = ["GET /metrics HTTP/1.1\r\n", "\r\n"];
        let slow = ask(whole, &|| {
            // The first piece is read by now, and another client gets its answer meanwhile.
            assert!(ask(whole, &|| {}).ends_with("\r\n\r\ncounted 7\n"));
            std::thread::sleep(Duration::from_millis(600));
        });
        assert!(slow.starts_with("HTTP/1.1 200 ") && slow.ends_with("\r\n\r\ncounted 7\n"), "{slow}");
    }
}
