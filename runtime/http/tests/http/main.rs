//! The client and the server of this crate, over a real socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::io::{self, Cursor, Read};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use tidemill_http::server::{
    Answers, Channel, Incoming, Peer, PeerActivity, Request, Response, StatusCode, paced, plain, serve,
    streamed,
};
use tidemill_http::{Call, CallError, Caller, Payload, Place, Repeat, range};

const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: usize = 5 << 20;

fn content() -> Vec<u8> {
    (0..SIZE).map(|n| (n / 7) as u8).collect()
}

/// Gives a file, also from a byte on, and counts the bytes that are put.
struct Desk;

impl Answers for Desk {
    type Body = Channel;

    async fn answer(
        &self,
        request: Request<Incoming>,
        _: &Peer,
        heard: &PeerActivity,
    ) -> Response<Self::Body> {
        if request.uri().path() == "/file" {
            let first = range::first_wanted(request.headers()).unwrap_or(0);
            let rest = content().split_off(usize::try_from(first).unwrap());
            let length = rest.len() as u64;
            let mut answer = Response::new(streamed(Cursor::new(rest)));
            *answer.status_mut() = range::mark(answer.headers_mut(), first, length, Some(SIZE as u64));
            return answer;
        }
        let limit = (request.uri().path() == "/little").then_some(10);
        let (status, text) = match paced(request.into_body(), limit, heard.clone()).collect().await {
            Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string()),
            Err(error) => (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
        };
        let mut answer = Response::new(streamed(Cursor::new(text)));
        *answer.status_mut() = status;
        answer
    }
}

/// A caller of a server that runs until the test ends.
fn caller() -> Arc<Caller> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async { serve(plain(listener).unwrap(), Arc::new(Desk)).await });
    });
    Arc::new(Caller::new(Place::Tcp(address)))
}

#[test]
fn a_body_is_read_as_it_comes_and_continued_from_a_byte_on() {
    let (caller, whole) = (caller(), content());
    let mut reply = caller.open(&Call::get("/file"), PATIENCE, Repeat::Allowed).unwrap();
    assert_eq!((reply.status, reply.length), (200, Some(SIZE as u64)));
    let mut begin = vec![0; 1 << 20];
    reply.read_exact(&mut begin).unwrap();
    drop(reply); // a cut
    let from = begin.len() as u64;
    let mut reply = caller.open(&Call { from, ..Call::get("/file") }, PATIENCE, Repeat::Allowed).unwrap();
    assert_eq!((reply.status, reply.length), (206, Some(SIZE as u64 - from)));
    let range = format!("bytes {from}-{}/{SIZE}", SIZE - 1);
    assert_eq!((reply.header("Content-Range"), reply.header("x-none")), (Some(range.as_str()), None));
    reply.read_to_end(&mut begin).unwrap();
    assert!(begin == whole);
    // One connection ended with the cut, and the other one stays.
    assert_eq!(caller.connections(), 2);
    let answer = caller.send(&Call::get("/file"), PATIENCE, Repeat::Allowed).unwrap();
    assert!(answer.body == whole);
    assert_eq!(caller.connections(), 2);
}

#[test]
fn a_body_is_sent_as_it_is_read() {
    let caller = caller();
    let call = Call { method: "PUT", ..Call::get("/any") };
    let put = |from: &mut dyn Read, length: u64, path: &str| {
        caller.upload(&Call { path, ..call }, Payload { from, length }, PATIENCE)
    };
    let answer = put(&mut Cursor::new(content()), SIZE as u64, "/any").unwrap();
    assert_eq!((answer.status, answer.body), (200, SIZE.to_string().into_bytes()));
    let answer = put(&mut Cursor::new(content()), 11, "/little").unwrap();
    assert_eq!(answer.status, 413, "{}", String::from_utf8_lossy(&answer.body));
    // A file that has become shorter is no whole one for the peer.
    let short = put(&mut Cursor::new(b"short"), 6, "/any").unwrap_err();
    assert!(matches!(short, CallError::Broken { .. }), "{short}");
}

/// Nothing is sent twice that may not be, but a connection that ended while it was idle is replaced.
#[test]
fn a_connection_that_ended_meanwhile_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = Arc::new(Caller::new(Place::Tcp(listener.local_addr().unwrap().to_string())));
    let peer = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        }
    });
    for made in 1..=2 {
        let answer = caller.send(&Call::get("/"), PATIENCE, Repeat::Allowed).unwrap();
        assert_eq!((answer.body.as_slice(), caller.connections()), (&b"ok"[..], made));
    }
    peer.join().unwrap();
}
