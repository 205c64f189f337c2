//! The client of servers that answer by HTTP/2 what no stock server of gRPC does.

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use tidemill_grpc::{Call, Code, Item, Peer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::shop::{Answer, answer};

const HELLO: &[u8] = b"\0\0\0\0\x05hello";

/// Answers one request; the last part of its path says what.
type Script = fn(&Request<RecvStream>, &str, &mut SendResponse<Bytes>) -> Result<(), h2::Error>;

/// A server that answers by a script and says when a connection is over. It says goodbye after as many calls as given.
async fn odd(script: Script, calls: usize) -> (Peer, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Peer::connect(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (sender, ended) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let mut left = calls;
            while let Some(request) = connection.accept().await {
                let Ok((request, mut respond)) = request else { break };
                let part = request.uri().path().rsplit('/').next().unwrap().to_owned();
                script(&request, &part, &mut respond).unwrap();
                left = left.saturating_sub(1);
                if left == 0 {
                    connection.graceful_shutdown();
                }
            }
            drop(connection);
            sender.send(()).unwrap();
        }
    });
    (peer, ended)
}

async fn asked(peer: &Peer, part: &str) -> Answer {
    answer(peer, Call::new(format!("/odd/{part}"), "")).await
}

fn head(status: u16) -> http::response::Builder {
    Response::builder().status(status).header("content-type", "application/grpc")
}

/// A message and a status.
fn hello(respond: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut body = respond.send_response(head(200).body(()).unwrap(), false)?;
    body.send_data(Bytes::from_static(HELLO), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    body.send_trailers(trailers)
}

#[tokio::test]
async fn answers_of_http_have_the_codes_that_the_protocol_gives_them() {
    let (peer, _ended) = odd(
        |_, part, respond| {
            respond.send_response(Response::builder().status(part).body(()).unwrap(), true).map(|_| ())
        },
        usize::MAX,
    )
    .await;
    let known = [
        ("200", Code::Unknown),
        ("400", Code::Internal),
        ("401", Code::Unauthenticated),
        ("403", Code::PermissionDenied),
        ("404", Code::Unimplemented),
        ("415", Code::Unknown),
        ("429", Code::Unavailable),
        ("502", Code::Unavailable),
        ("503", Code::Unavailable),
        ("504", Code::Unavailable),
    ];
    for (status, code) in known {
        assert_eq!(asked(&peer, status).await.status.code, code, "{status}");
    }
}

#[tokio::test]
async fn resets_have_the_codes_that_the_protocol_gives_them() {
    let (peer, _ended) = odd(
        |_, part, respond| {
            respond.send_reset(Reason::from(part.parse::<u32>().unwrap()));
            Ok(())
        },
        usize::MAX,
    )
    .await;
    let known = [
        (Reason::PROTOCOL_ERROR, Code::Internal),
        (Reason::INTERNAL_ERROR, Code::Internal),
        (Reason::REFUSED_STREAM, Code::Unavailable),
        (Reason::CANCEL, Code::Cancelled),
        (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
        (Reason::INADEQUATE_SECURITY, Code::PermissionDenied),
    ];
    for (reason, code) in known {
        assert_eq!(asked(&peer, &u32::from(reason).to_string()).await.status.code, code, "{reason}");
    }
}

#[tokio::test]
async fn damaged_answers_end_with_a_status_of_their_own() {
    let (peer, _ended) = odd(
        |_, part, respond| {
            if part == "encoding" {
                let response = head(200).header("grpc-encoding", "gzip").body(()).unwrap();
                return respond.send_response(response, true).map(|_| ());
            }
            if part == "status" {
                return respond
                    .send_response(head(200).header("grpc-status", "99").body(()).unwrap(), true)
                    .map(|_| ());
            }
            let mut body = respond.send_response(head(200).body(()).unwrap(), false)?;
            let bytes: &[u8] = match part {
                "none" => b"",
                "cut" => &HELLO[..8],
                "compressed" => b"\x01\0\0\0\0",
                _ => b"\0\xff\xff\xff\xff",
            };
            body.send_data(Bytes::from_static(bytes), true)
        },
        usize::MAX,
    )
    .await;
    let known = [
        ("encoding", Code::Internal),
        ("status", Code::Unknown),
        ("none", Code::Unknown),
        ("cut", Code::Internal),
        ("compressed", Code::Internal),
        ("long", Code::ResourceExhausted),
    ];
    for (part, code) in known {
        let ended = asked(&peer, part).await;
        assert_eq!((ended.status.code, ended.messages.len()), (code, 0), "{part}: {}", ended.status);
    }
}

#[tokio::test]
async fn a_refused_call_is_tried_again() {
    static REFUSED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let (peer, _ended) = odd(
        |_, _, respond| {
            if REFUSED.swap(true, std::sync::atomic::Ordering::Relaxed) {
                return hello(respond);
            }
            respond.send_reset(Reason::REFUSED_STREAM);
            Ok(())
        },
        usize::MAX,
    )
    .await;
    assert_eq!(asked(&peer, "x").await.messages, ["hello"]);
}

#[tokio::test]
async fn a_server_that_says_goodbye_after_each_call_answers_all() {
    let (peer, mut ended) = odd(|_, _, respond| hello(respond), 1).await;
    for _ in 0..10 {
        let answered = asked(&peer, "x").await;
        assert_eq!(answered.messages, ["hello"], "{}", answered.status);
        ended.recv().await.unwrap();
    }
}

#[tokio::test]
async fn headers_of_a_call_are_those_of_the_protocol() {
    let (peer, _ended) = odd(
        |request, _, respond| {
            let headers = request.headers();
            assert_eq!(
                (headers["te"].as_bytes(), headers["content-type"].as_bytes()),
                (&b"trailers"[..], &b"application/grpc"[..])
            );
            assert_eq!(headers["grpc-accept-encoding"], "identity");
            assert!(headers["user-agent"].to_str().unwrap().starts_with("tidemill-grpc/"));
            assert_eq!((request.method(), request.uri().scheme_str()), (&http::Method::POST, Some("http")));
            assert!(!headers.contains_key("grpc-timeout") && !headers.contains_key("grpc-encoding"));
            hello(respond)
        },
        usize::MAX,
    )
    .await;
    let items: Vec<Item> = {
        use futures_util::StreamExt;
        use tidemill_grpc::Calls;
        peer.call(Call::new("/odd/x", "")).await.unwrap().collect().await
    };
    assert_eq!(items, [Item::Leading(vec![]), Item::Message("hello".into()), Item::ok()]);
}
