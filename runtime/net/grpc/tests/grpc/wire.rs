//! Requests that no stock client sends, by HTTP/2 itself.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode};
use tidemill_grpc::Limits;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::shop::{Served, event, served};

struct Wire {
    server: Served,
    requests: SendRequest<Bytes>,
}

/// Headers of a response, its bytes, and its trailers; without trailers, the headers once more.
struct Response {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: HeaderMap,
}

impl Response {
    fn grpc_status(&self) -> &str {
        self.trailers.get("grpc-status").unwrap().to_str().unwrap()
    }
}

impl Wire {
    async fn new(limits: Limits) -> Wire {
        let server = served(limits).await;
        let stream = TcpStream::connect(server.uri.trim_start_matches("http://")).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Wire { server, requests }
    }

    /// Sends a request with other headers and a body.
    async fn send(&mut self, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.send_as(Method::POST, "Echo", headers, body).await
    }

    async fn send_as(
        &mut self,
        verb: Method,
        method: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let (response, mut stream) = self.open(verb, method, headers).await;
        // A server that answers before the end of a request resets it.
        let _ = stream.send_data(Bytes::copy_from_slice(body), true);
        let (head, mut body) = response.await.unwrap().into_parts();
        let mut bytes = Vec::new();
        while let Some(data) = body.data().await {
            bytes.extend_from_slice(&data.unwrap());
        }
        let trailers = body.trailers().await.unwrap().unwrap_or(head.headers.clone());
        Response { status: head.status, headers: head.headers, body: bytes, trailers }
    }

    async fn open(
        &mut self,
        verb: Method,
        method: &str,
        headers: &[(&str, &str)],
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let uri = format!("{}/test.Shop/{method}", self.server.uri);
        let mut request = Request::builder().method(verb).uri(uri).header("content-type", "application/grpc");
        for (name, value) in headers {
            request
                .headers_mut()
                .unwrap()
                .insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let mut requests = self.requests.clone().ready().await.unwrap();
        requests.send_request(request.body(()).unwrap(), false).unwrap()
    }
}

const HELLO: &[u8] = b"\0\0\0\0\x05hello";

#[tokio::test]
async fn a_plain_request_needs_no_te_and_gets_all_headers() {
    let mut wire = Wire::new(Limits::default()).await;
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc; charset=x"] {
        let response = wire.send(&[("content-type", kind), ("grpc-encoding", "identity")], HELLO).await;
        assert_eq!(
            (response.status, response.grpc_status(), response.body.as_slice()),
            (StatusCode::OK, "0", HELLO)
        );
        assert_eq!(response.headers["content-type"], "application/grpc");
        assert_eq!(response.headers["grpc-accept-encoding"], "identity");
        assert!(
            !response.headers.contains_key("grpc-status") && !response.trailers.contains_key("grpc-message")
        );
    }
}

#[tokio::test]
async fn what_is_no_grpc_gets_an_answer_of_http() {
    let mut wire = Wire::new(Limits::default()).await;
    for kind in ["text/plain", "application/grpc-web", "application/grpc+json", "application/json", ""] {
        let response = wire.send(&[("content-type", kind)], HELLO).await;
        assert_eq!(response.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
    }
    let response = wire.send_as(Method::GET, "Echo", &[], HELLO).await;
    assert_eq!(
        (response.status, &response.headers["allow"]),
        (StatusCode::METHOD_NOT_ALLOWED, &"POST".parse().unwrap())
    );
}

#[tokio::test]
async fn faults_of_the_protocol_have_the_codes_it_gives_them() {
    let mut wire = Wire::new(Limits::default()).await;
    let two = [HELLO, HELLO].concat();
    let faults: &[(&str, &str, &[u8], &str)] = &[
        ("grpc-encoding", "gzip", HELLO, "12"),
        ("grpc-encoding", "gzip", b"\x01\0\0\0\0", "12"),
        ("x-a", "", b"\x01\0\0\0\0", "13"),
        ("x-a", "", b"", "12"),
        ("x-a", "", &two, "12"),
        ("x-a", "", b"\0\0\0", "13"),
        ("x-a", "", b"\0\0\0\0\x06hello", "13"),
        ("x-a", "", b"\0\xff\xff\xff\xff", "8"),
        ("grpc-timeout", "soon", HELLO, "13"),
        ("grpc-timeout", "0n", HELLO, "4"),
        ("x-a-bin", "!", HELLO, "13"),
    ];
    for (name, value, body, code) in faults {
        let response = wire.send(&[(name, value)], body).await;
        assert_eq!(
            (response.status, response.grpc_status()),
            (StatusCode::OK, *code),
            "{name}: {value}, {body:?}"
        );
        assert_eq!(response.headers["grpc-accept-encoding"], "identity");
        assert_eq!(response.headers["grpc-status"], *code, "an error without messages is in the headers");
    }
    assert_eq!(wire.send(&[], HELLO).await.grpc_status(), "0");
}

#[tokio::test]
async fn a_time_ends_a_call_that_nobody_answers() {
    let mut wire = Wire::new(Limits::default()).await;
    // The callee may not even have started by then.
    let response = wire.send_as(Method::POST, "Wait", &[("grpc-timeout", "50m")], HELLO).await;
    assert_eq!((response.status, &response.headers["grpc-status"]), (StatusCode::OK, &"4".parse().unwrap()));
}

#[tokio::test]
async fn base64_comes_back_without_padding_however_it_was_sent() {
    let mut wire = Wire::new(Limits::default()).await;
    for value in ["YQ", "YQ=="] {
        assert_eq!(wire.send(&[("x-a-bin", value)], HELLO).await.trailers["x-a-bin"], "YQ");
    }
}

#[tokio::test]
async fn headers_beyond_the_limit_are_refused() {
    let mut wire = Wire::new(Limits { headers: 1000, ..Limits::default() }).await;
    let response = wire.send(&[("x-a", &"a".repeat(2000))], HELLO).await;
    assert_eq!(response.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(wire.send(&[], HELLO).await.grpc_status(), "0");
}

#[tokio::test]
async fn a_request_that_does_not_arrive_ends() {
    let mut wire = Wire::new(Limits { arrival: Duration::from_millis(50), ..Limits::default() }).await;
    let (response, mut stream) = wire.open(Method::POST, "Echo", &[]).await;
    stream.send_data(Bytes::from_static(HELLO), false).unwrap();
    assert_eq!(response.await.unwrap().headers()["grpc-status"], "4");
}

#[tokio::test]
async fn a_client_that_vanishes_ends_its_calls() {
    let mut wire = Wire::new(Limits::default()).await;
    let stream = TcpStream::connect(wire.server.uri.trim_start_matches("http://")).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let uri = format!("{}/test.Shop/Wait", wire.server.uri);
    let request = Request::post(uri).header("content-type", "application/grpc").body(()).unwrap();
    let (_response, mut body) = requests.ready().await.unwrap().send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(HELLO), true).unwrap();
    event(&mut wire.server.events, "Wait hello").await;
    connection.abort();
    event(&mut wire.server.events, "dropped hello").await;
}

#[tokio::test]
async fn connections_beyond_the_limit_and_silent_ones_are_closed() {
    let limits = Limits { connections: 1, arrival: Duration::from_millis(50), ..Limits::default() };
    let mut wire = Wire::new(limits).await;
    assert_eq!(wire.send(&[], HELLO).await.grpc_status(), "0");
    let address = wire.server.uri.trim_start_matches("http://").to_owned();
    let mut other = TcpStream::connect(&address).await.unwrap();
    assert_eq!(other.read(&mut [0]).await.unwrap_or(0), 0, "closed at once");

    let Wire { server, requests } = wire;
    drop(requests);
    // The first connection is gone some time after this, and then one that says nothing is closed later than one too many.
    let mut bytes = [0; 1];
    loop {
        let mut silent = TcpStream::connect(&address).await.unwrap();
        if silent.read(&mut bytes).await.unwrap_or(0) == 1 {
            break; // the settings of the server: the connection was accepted
        }
    }
    drop(server);
}

#[tokio::test]
async fn a_connection_without_calls_is_closed() {
    let server = served(Limits { idle: Duration::from_millis(50), ..Limits::default() }).await;
    let stream = TcpStream::connect(server.uri.trim_start_matches("http://")).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    connection.await.unwrap();
    assert!(requests.ready().await.is_err());
}
