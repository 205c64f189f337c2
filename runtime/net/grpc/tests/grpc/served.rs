//! A stock client of the server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidemill_grpc::{Limits, Peer};
use tokio::sync::mpsc;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request};

use crate::shop::{Served, event, served, served_by, some_metadata};
use crate::stock::{Client, StockServer};

fn request(message: impl Into<Bytes>) -> Request<Bytes> {
    Request::new(message.into())
}

fn with_code(message: &str, code: usize) -> Request<Bytes> {
    let mut request = request(message.to_owned());
    request.metadata_mut().insert("code", code.to_string().parse().unwrap());
    request.metadata_mut().insert_bin("x-detail-bin", MetadataValue::from_bytes(&[0, 255]));
    request
}

fn with_metadata(mut request: Request<Bytes>) -> Request<Bytes> {
    for (name, value) in some_metadata() {
        let name: &'static str = name.leak();
        if name.ends_with("-bin") {
            request.metadata_mut().append_bin(name, MetadataValue::from_bytes(&value));
        } else {
            request.metadata_mut().append(name, MetadataValue::try_from(value.as_slice()).unwrap());
        }
    }
    request
}

fn assert_has_metadata(metadata: &MetadataMap) {
    assert_eq!(metadata.get("x-one").unwrap(), "a, b");
    let two: Vec<_> = metadata.get_all("x-two").iter().collect();
    assert_eq!(two, ["1", "2"]);
    let some: Vec<_> =
        metadata.get_all_bin("x-some-bin").iter().map(|value| value.to_bytes().unwrap()).collect();
    assert_eq!(some, [&[0, 1, 254, 255, 10][..], b"z"]);
}

/// Checks of the server, with the service in it or elsewhere.
async fn answers_as_a_stock_server(server: &mut Served) {
    let client = Client::new(&server.uri).await;

    let response = client.unary("Echo", with_metadata(request("hello"))).await.unwrap();
    assert_eq!(response.get_ref(), "hello");
    // tonic puts trailing metadata of a unary call to its leading metadata.
    assert_eq!(response.metadata().get("x-one").unwrap(), "a, b");
    let mut stream = client.streaming("Echo", with_metadata(request(""))).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap(), "");
    assert_eq!(stream.message().await.unwrap(), None);
    assert_has_metadata(&stream.trailers().await.unwrap().unwrap());

    let large = Bytes::from(vec![7; 1 << 20]);
    assert_eq!(client.unary("Echo", request(large.clone())).await.unwrap().into_inner(), large);

    let mut stream = client.streaming("Count", request("1000")).await.unwrap();
    for number in 0..1000 {
        assert_eq!(stream.message().await.unwrap().unwrap(), number.to_string());
    }
    assert_eq!(stream.message().await.unwrap(), None);
    let mut none = client.streaming("Count", request("0")).await.unwrap();
    assert_eq!(none.message().await.unwrap(), None);

    for code in 1..17 {
        let failed = client.unary("Fail", with_code("50 % of Größe\n", code)).await.unwrap_err();
        assert_eq!((failed.code() as usize, failed.message()), (code, "50 % of Größe\n"));
        let detail = failed.metadata().get_bin("x-detail-bin").unwrap();
        assert_eq!(detail.to_bytes().unwrap(), &[0, 255][..]);
    }
    assert_eq!(client.unary("Missing", request("")).await.unwrap_err().code(), Code::Unimplemented);

    // The end of a time that tonic watches too, and calls CANCELLED if it sees it first.
    let mut late = request("");
    late.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let code = client.unary("Wait", late).await.unwrap_err().code();
    assert!(matches!(code, Code::DeadlineExceeded | Code::Cancelled), "{code:?}");

    // A call that is cancelled before its first message, and one after it.
    let calling = client.clone();
    let waiting = tokio::spawn(async move { calling.unary("Wait", request("left")).await });
    event(&mut server.events, "Wait left").await;
    waiting.abort();
    event(&mut server.events, "dropped left").await;
    let mut stream = client.streaming("Begin", request("begun")).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap(), "first");
    drop(stream);
    event(&mut server.events, "dropped begun").await;

    let calls = (0..200).map(|number: u32| {
        let client = client.clone();
        tokio::spawn(async move {
            let message = Bytes::from(number.to_string().repeat(100));
            assert_eq!(client.unary("Echo", request(message.clone())).await.unwrap().into_inner(), message);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_client_gets_what_the_service_says() {
    answers_as_a_stock_server(&mut served(Limits::default()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_client_reaches_a_stock_server_through_both_ends() {
    let mut behind = StockServer::any().await;
    let events = std::mem::replace(&mut behind.events, mpsc::unbounded_channel().1);
    let peer = Arc::new(Peer::connect(&behind.uri()).unwrap());
    answers_as_a_stock_server(&mut served_by(peer, events, Limits::default()).await).await;
}

#[tokio::test]
async fn the_time_of_the_client_reaches_the_service() {
    let server = served(Limits::default()).await;
    let client = Client::new(&server.uri).await;
    assert_eq!(client.unary("Timeout", request("")).await.unwrap().get_ref(), "none");
    let mut timed = request("");
    timed.set_timeout(Duration::from_secs(90));
    let left = client.unary("Timeout", timed).await.unwrap().into_inner();
    let left: u64 = std::str::from_utf8(&left).unwrap().parse().unwrap();
    assert!((1..=90_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_time_ends_a_stream_after_its_first_message() {
    let mut server = served(Limits::default()).await;
    let client = Client::new(&server.uri).await;
    // Longer and longer times, until one is enough for the first message.
    for exponent in 6.. {
        let message = format!("late{exponent}");
        let mut timed = request(message.clone());
        timed.metadata_mut().insert("grpc-timeout", format!("{}m", 1 << exponent).parse().unwrap());
        let Ok(mut stream) = client.streaming("Begin", timed).await else { continue };
        if let Ok(Some(first)) = stream.message().await {
            assert_eq!(first, "first");
            assert_eq!(stream.message().await.unwrap_err().code(), Code::DeadlineExceeded);
            event(&mut server.events, &format!("dropped {message}")).await;
            return;
        }
    }
}

#[tokio::test]
async fn requests_of_no_or_several_messages_and_long_ones_are_refused() {
    let server = served(Limits { message: 10, ..Limits::default() }).await;
    let client = Client::new(&server.uri).await;
    for requests in [vec![], vec![Bytes::new(), Bytes::new()]] {
        assert_eq!(client.requests("Echo", requests).await.unwrap_err().code(), Code::Unimplemented);
    }
    assert_eq!(client.requests("Echo", vec!["one".into()]).await.unwrap().get_ref(), "one");
    assert_eq!(client.unary("Echo", request("0123456789")).await.unwrap().get_ref(), "0123456789");
    // More in all than what a connection accepts unread: refused bytes make room for others.
    for length in std::iter::repeat_n([11, 1 << 20], 20).flatten() {
        let refused = client.unary("Echo", request(vec![1; length])).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    }
    assert_eq!(client.unary("Echo", request("again")).await.unwrap().get_ref(), "again");
}

#[tokio::test]
async fn a_panic_of_the_service_ends_its_call_only() {
    let server = served(Limits::default()).await;
    let client = Client::new(&server.uri).await;
    assert_eq!(client.unary("Panic", request("")).await.unwrap_err().code(), Code::Internal);
    assert_eq!(client.unary("Echo", request("on")).await.unwrap().get_ref(), "on");
}

#[tokio::test]
async fn health_is_served_without_the_service() {
    let server = served(Limits::default()).await;
    let client = Client::new(&server.uri).await;
    let check =
        async |message: &'static [u8]| client.unary("/grpc.health.v1.Health/Check", request(message)).await;
    assert_eq!(check(b"").await.unwrap().get_ref(), &b"\x08\x01"[..]);
    assert_eq!(check(b"\x0a\x09test.Shop").await.unwrap().get_ref(), &b"\x08\x01"[..]);
    assert_eq!(check(b"\x0a\x04Shop").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(check(b"\xff").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_server_that_stops_lets_its_calls_end() {
    let mut server = served(Limits { drain: crate::shop::PATIENCE, ..Limits::default() }).await;
    let client = Client::new(&server.uri).await;
    let mut stream = client.streaming("Begin", request("")).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap(), "first");
    event(&mut server.events, "Begin ").await;
    server.stop.send(()).unwrap();
    // The port is closed, but the call continues, and the server ends with it.
    let address = server.uri.trim_start_matches("http://").to_owned();
    while tokio::net::TcpStream::connect(&address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.task.is_finished());
    drop(stream);
    event(&mut server.events, "dropped ").await;
    server.task.await.unwrap();
}

#[tokio::test]
async fn a_server_that_stops_drops_calls_that_do_not_end() {
    let mut server = served(Limits { drain: Duration::from_millis(50), ..Limits::default() }).await;
    let client = Client::new(&server.uri).await;
    let mut stream = client.streaming("Begin", request("")).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap(), "first");
    server.stop.send(()).unwrap();
    server.task.await.unwrap();
    event(&mut server.events, "dropped ").await;
    assert!(stream.message().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_than_a_connection_may_have_wait_for_each_other() {
    let server = served(Limits { streams: 3, ..Limits::default() }).await;
    let client = Client::new(&server.uri).await;
    // A stock client may send more than the server wants as long as it does not know how many that is.
    client.unary("Echo", request("x")).await.unwrap();
    let calls = (0..50).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.unary("Echo", request("x")).await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().get_ref(), "x");
    }
}
