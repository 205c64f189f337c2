//! The client of stock servers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tidemill_grpc::{Call, Calls, Code, Item, Limits, Metadata, Peer, PeerLimits};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::shop::{Events, Shop, answer, event, served, served_by, some_metadata};
use crate::stock::StockServer;

fn call(method: &str, message: impl Into<Bytes>) -> Call {
    Call::new(format!("/test.Shop/{method}"), message)
}

fn timed(method: &str, timeout: Duration) -> Call {
    Call { timeout: Some(timeout), ..call(method, "") }
}

/// Metadata of the tests in an answer; a server may add its own and change the order of names.
pub(crate) fn assert_has_metadata(metadata: &Metadata) {
    let mut there: Metadata = metadata.iter().filter(|(name, _)| name.starts_with("x-")).cloned().collect();
    let mut sent = some_metadata();
    there.sort();
    sent.sort();
    assert_eq!(there, sent);
}

/// Makes calls with longer and longer times until one has its first message before its end: the server sees that end.
async fn late_after_a_message(peer: &Peer, events: &mut Events) {
    for exponent in 6.. {
        let message = format!("late{exponent}");
        let timeout = Some(Duration::from_millis(1 << exponent));
        let late = answer(peer, Call { timeout, ..call("Begin", message.clone()) }).await;
        assert_eq!(late.status.code, Code::DeadlineExceeded, "{}", late.status);
        if late.messages == ["first"] {
            event(events, &format!("dropped {message}")).await;
            return;
        }
    }
}

/// Checks of the client against any server.
pub(crate) async fn calls_as_a_stock_client(peer: &Peer, events: &mut Events) {
    let echoed = answer(peer, Call { metadata: some_metadata(), ..call("Echo", "hello") }).await;
    assert_eq!((echoed.status.code, echoed.messages), (Code::Ok, vec!["hello".into()]));
    assert_has_metadata(&echoed.leading.unwrap());
    assert_has_metadata(&echoed.trailing);

    let large = Bytes::from(vec![7; 1 << 20]);
    assert_eq!(answer(peer, call("Echo", large.clone())).await.messages, [large]);
    assert_eq!(answer(peer, call("Echo", "")).await.messages, [Bytes::new()]);

    let counted = answer(peer, call("Count", "1000")).await;
    let numbers: Vec<Bytes> = (0..1000).map(|number: u32| number.to_string().into()).collect();
    assert_eq!((counted.status.code, counted.messages), (Code::Ok, numbers));
    let none = answer(peer, call("Count", "0")).await;
    assert_eq!((none.status.code, none.messages.len()), (Code::Ok, 0));

    for code in &Code::ALL[1..] {
        let mut metadata = some_metadata();
        metadata.push(("code".to_owned(), code.number().to_string().into_bytes()));
        let failed = answer(peer, Call { metadata, ..call("Fail", "50 % of Größe\n") }).await;
        assert_eq!((failed.status.code, failed.status.message.as_str()), (*code, "50 % of Größe\n"));
        assert_has_metadata(&failed.trailing);
    }
    assert_eq!(answer(peer, call("Missing", "")).await.status.code, Code::Unimplemented);
    assert_eq!(answer(peer, Call::new("/other.Shop/Echo", "")).await.status.code, Code::Unimplemented);

    for method in ["Wait", "Begin"] {
        let late = answer(peer, timed(method, Duration::from_millis(100))).await;
        assert_eq!(late.status.code, Code::DeadlineExceeded, "{method}: {}", late.status);
    }
    late_after_a_message(peer, events).await;

    // A call that is dropped before its first message, and one after it.
    let calling = peer.clone();
    let waiting = tokio::spawn(async move { calling.call(call("Wait", "left")).await.map(|_| ()) });
    event(events, "Wait left").await;
    waiting.abort();
    event(events, "dropped left").await;
    let mut items = peer.call(call("Begin", "begun")).await.unwrap();
    assert!(matches!(items.next().await.unwrap(), Item::Leading(_)));
    assert_eq!(items.next().await.unwrap(), Item::Message("first".into()));
    drop(items);
    event(events, "dropped begun").await;

    let calls = (0..200).map(|number: u32| {
        let peer = peer.clone();
        tokio::spawn(async move {
            let message = Bytes::from(number.to_string().repeat(100));
            assert_eq!(answer(&peer, call("Echo", message.clone())).await.messages, [message]);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_server_answers() {
    let mut server = StockServer::any().await;
    let peer = Peer::connect(&server.uri()).unwrap();
    calls_as_a_stock_client(&peer, &mut server.events).await;
    let text = answer(&peer, timed("Timeout", Duration::from_secs(90))).await.messages[0].clone();
    // Rounded up in the unit that has room for it, less what it took to get there.
    let left: u64 = std::str::from_utf8(&text).unwrap().strip_suffix('u').unwrap().parse().unwrap();
    assert!((1..=90_000_000).contains(&left), "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_own_server_answers() {
    let mut server = served(Limits::default()).await;
    calls_as_a_stock_client(&Peer::connect(&server.uri).unwrap(), &mut server.events).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_than_a_server_wants_wait_for_each_other() {
    let server = served(Limits { streams: 3, ..Limits::default() }).await;
    let peer = Peer::connect(&server.uri).unwrap();
    let calls = (0..50).map(|_| {
        let peer = peer.clone();
        tokio::spawn(async move { answer(&peer, call("Echo", "x")).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let echoed = call.await.unwrap();
        assert_eq!(echoed.messages, ["x"], "{}", echoed.status);
    }
}

#[tokio::test]
async fn a_long_answer_is_refused() {
    let server = served(Limits::default()).await;
    let limits = PeerLimits { message: 10, ..PeerLimits::default() };
    let peer = Peer::with_limits(&server.uri, limits).unwrap();
    assert_eq!(answer(&peer, call("Echo", "0123456789")).await.status.code, Code::Ok);
    assert_eq!(answer(&peer, call("Echo", "0123456789a")).await.status.code, Code::ResourceExhausted);
}

#[tokio::test]
async fn what_headers_cannot_hold_is_refused_here() {
    let peer = Peer::connect("http://127.0.0.1:1").unwrap();
    for path in ["", "no slash", "/a b/c"] {
        assert_eq!(answer(&peer, Call::new(path, "")).await.status.code, Code::Internal, "{path}");
    }
    let metadata = vec![("Upper".to_owned(), Vec::new())];
    assert_eq!(answer(&peer, Call { metadata, ..call("Echo", "") }).await.status.code, Code::Internal);
}

/// Quick attempts to connect, as these tests wait for them.
fn impatient(uri: &str) -> Peer {
    let limits = PeerLimits {
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(10),
        ..PeerLimits::default()
    };
    Peer::with_limits(uri, limits).unwrap()
}

/// Calls until there is an answer.
async fn works_again(peer: &Peer) {
    loop {
        let echoed = answer(peer, call("Echo", "again")).await;
        if echoed.status.code == Code::Ok {
            assert_eq!(echoed.messages, ["again"]);
            return;
        }
        assert_eq!(echoed.status.code, Code::Unavailable, "{}", echoed.status);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_a_call_is_unavailable_until_it_is_back() {
    let mut server = StockServer::any().await;
    let (address, uri) = (server.address, server.uri());
    let peer = impatient(&uri);
    let mut items = peer.call(call("Begin", "")).await.unwrap();
    assert!(matches!(items.next().await.unwrap(), Item::Leading(_)));
    assert_eq!(items.next().await.unwrap(), Item::Message("first".into()));
    let calling = peer.clone();
    let waiting = tokio::spawn(async move { answer(&calling, call("Wait", "")).await });
    event(&mut server.events, "Wait ").await;

    drop(server);
    let Some(Item::End { status, .. }) = items.next().await else { panic!("the stream ends") };
    assert_eq!(status.code, Code::Unavailable);
    assert!(items.next().await.is_none());
    assert_eq!(waiting.await.unwrap().status.code, Code::Unavailable);
    assert_eq!(answer(&peer, call("Echo", "")).await.status.code, Code::Unavailable);

    let _server = StockServer::start(address).await;
    works_again(&peer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_an_address_is_unavailable_and_comes_later() {
    // The port of a listener that is gone.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let peer = impatient(&format!("http://{address}"));
    for _ in 0..5 {
        assert_eq!(answer(&peer, call("Echo", "")).await.status.code, Code::Unavailable);
    }
    let _server = StockServer::start(address).await;
    works_again(&peer).await;
}

#[tokio::test]
async fn a_pause_after_a_failure_fails_calls_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limits = PeerLimits {
        first_pause: Duration::from_secs(1000),
        longest_pause: Duration::from_secs(1000),
        ..PeerLimits::default()
    };
    let peer = Peer::with_limits(&format!("http://{}", listener.local_addr().unwrap()), limits).unwrap();
    let accepting = tokio::spawn(async move {
        drop(listener.accept().await.unwrap());
        listener
    });
    assert_eq!(answer(&peer, call("Echo", "")).await.status.code, Code::Unavailable);
    let listener = accepting.await.unwrap();
    assert_eq!(answer(&peer, call("Echo", "")).await.status.code, Code::Unavailable);
    let again = futures_util::FutureExt::now_or_never(listener.accept());
    assert!(again.is_none(), "the second call made no connection");
}

#[tokio::test]
async fn a_server_that_never_answers_ends_with_the_time_of_the_call() {
    // It accepts connections and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Peer::connect(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    // More than the window of a stream, which stays closed then.
    let message = Bytes::from(vec![1; 1 << 20]);
    let late = Call { timeout: Some(Duration::from_millis(50)), ..call("Echo", message) };
    assert_eq!(answer(&peer, late).await.status.code, Code::DeadlineExceeded);
    let _ = listener.accept().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_of_many_small_messages_gets_them_all() {
    let (sender, events) = mpsc::unbounded_channel();
    let server = served_by(Arc::new(Shop { events: sender }), events, Limits::default()).await;
    let peer = Peer::connect(&server.uri).unwrap();
    let mut slow = peer.call(call("Count", "200000")).await.unwrap();
    assert!(matches!(slow.next().await.unwrap(), Item::Leading(_)));
    // Meanwhile the connection takes what comes, and serves others.
    for _ in 0..100 {
        assert_eq!(answer(&peer, call("Echo", "x")).await.messages, ["x"]);
    }
    let mut count = 0;
    while let Some(item) = slow.next().await {
        match item {
            Item::Message(_) => count += 1,
            end => assert_eq!(end, Item::ok()),
        }
    }
    assert_eq!(count, 200_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_not_read_hold_up_no_others() {
    let server = served(Limits::default()).await;
    let peer = Peer::connect(&server.uri).unwrap();
    let mut unread = Vec::new();
    for _ in 0..20 {
        let mut items = peer.call(call("Large", "20")).await.unwrap();
        assert!(matches!(items.next().await.unwrap(), Item::Leading(_)));
        assert!(matches!(items.next().await.unwrap(), Item::Message(_)));
        unread.push(items);
        assert_eq!(answer(&peer, call("Echo", "x")).await.messages, ["x"]);
    }
    for items in unread {
        let rest: Vec<Item> = items.collect().await;
        assert_eq!((rest.len(), rest.last()), (20, Some(&Item::ok())));
    }
}
