//! Calls between programs, over one service and over two.
use crate::ends::Place;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_net::protocol::CallCounts;
use tidemill_rpc::schema::{FlatReader, FlatWriter, Invalid, Message};
use tidemill_rpc::{
    BoxFuture, Bytes, Channel, Code, Incoming, Net, Replies, Request, Response, Service, Serving, Status,
};
use tokio::sync::Notify;

const PROTO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; int64 number = 2; bytes data = 3; }
service Echo {
  rpc Say(Text) returns (Text);
  rpc Count(Text) returns (stream Text);
  rpc Hang(Text) returns (Text);
  rpc Get(Text) returns (Text) { option idempotency_level = NO_SIDE_EFFECTS; }
}
"#;

/// Compiles a schema. It stays as long as the test.
fn schema(text: &str) -> &'static [u8] {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("test.proto"), text).expect("it is written");
    let set = protox::compile(["test.proto"], [folder.path()]).expect("it is right");
    Box::leak(prost::Message::encode_to_vec(&set).into_boxed_slice())
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Text {
    text: String,
    number: i64,
    data: Bytes,
}

impl Message for Text {
    const NAME: &'static str = "test.Text";
    const FIELDS: usize = 3;

    fn write(&self, to: &mut FlatWriter<'_>) {
        to.implicit(0, &self.text);
        to.implicit(1, &self.number);
        to.implicit(2, &self.data);
    }

    fn read(from: &FlatReader<'_>) -> Result<Self, Invalid> {
        Ok(Self { text: from.implicit(0)?, number: from.implicit(1)?, data: from.implicit(2)? })
    }
}

fn text(text: &str) -> Text {
    Text { text: text.into(), ..Text::default() }
}

/// Answers with what it got.
#[derive(Clone)]
struct Echo {
    schema: &'static [u8],
    name: &'static str,
    /// Calls that hang.
    hanging: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

impl Echo {
    fn new(schema: &'static [u8], name: &'static str) -> Self {
        let (hanging, calls, changed) = Default::default();
        Self { schema, name, hanging, calls, changed }
    }

    async fn until(&self, is: impl Fn(usize) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is(self.hanging.load(Ordering::Acquire)) {
                return;
            }
            changed.await;
        }
    }
}

struct Hanging(Echo);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
        self.0.changed.notify_one();
    }
}

impl Service for Echo {
    fn name(&self) -> &'static str {
        "test.Echo"
    }

    fn descriptors(&self) -> &'static [u8] {
        self.schema
    }

    fn call(&self, method: u32, call: Incoming) -> BoxFuture<'static, ()> {
        let of = self.clone();
        of.calls.fetch_add(1, Ordering::AcqRel);
        Box::pin(async move {
            let request: Request<Text> = match call.request() {
                Ok(request) => request,
                Err(status) => return call.fail(status),
            };
            match method {
                0 | 3 => {
                    let reply = match request.message.text.as_str() {
                        "fail" => Err(Status::new(Code::NotFound, "no such thing")),
                        _ => {
                            let mut metadata = request.metadata;
                            metadata.add("served-by", of.name);
                            Ok(Response { message: request.message, metadata })
                        }
                    };
                    call.reply(reply).await;
                }
                1 => {
                    let replies: Replies<Text> = call.replies();
                    for number in 0..request.message.number {
                        if replies.send(Text { number, ..text("item") }).await.is_err() {
                            return;
                        }
                    }
                    call.end(Ok(()));
                }
                _ => {
                    of.hanging.fetch_add(1, Ordering::AcqRel);
                    let _hanging = Hanging(of.clone());
                    of.changed.notify_waiters();
                    of.changed.notify_one();
                    std::future::pending::<()>().await;
                }
            }
        })
    }
}

async fn say(channel: &Channel, message: Text) -> Result<Response<Text>, Status> {
    channel.unary(0, message.into()).await
}

/// Runs on one thread, as a program that wants short times does.
fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let late = "a call did not end";
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await.expect(late) });
}

async fn serve(host: &Place, echo: &Echo) -> Serving {
    let net = Net::connect_to(&host.socket(), "server").await.expect("it serves");
    net.serve(echo.clone()).await.expect("it is served")
}

async fn client(host: &Place, schema: &'static [u8]) -> Channel {
    let net = Net::connect_to(&host.socket(), "client").await.expect("it serves");
    net.bind("test.Echo", schema).await.expect("it is bound")
}

fn counts(host: &Place) -> CallCounts {
    host.listing().calls
}

#[test]
fn calls_of_one_host_are_marshalled_four_times_and_nothing_is_copied() {
    run(async {
        let host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        for number in 0..100 {
            let message = Text { number, ..text("hello") };
            let reply = say(&channel, message.clone()).await.expect("a reply");
            assert_eq!(reply.message, message);
            assert_eq!(reply.metadata.get("served-by"), Some(&b"one"[..]));
        }
        let of = counts(&host);
        assert_eq!((of.calls, of.failed, of.marshalled, of.copied), (100, 0, 400, 0));

        // Long bytes, from memory of the service and from elsewhere.
        let mut room = channel.room(1 << 20).await.expect("there is room");
        room.fill(7);
        let data = room.freeze();
        let reply = say(&channel, Text { data: data.clone(), ..text("large") }).await.expect("a reply");
        assert_eq!(reply.message.data, data);
        let data = Bytes::from(vec![3; 5 << 20]);
        let reply = say(&channel, Text { data: data.clone(), ..text("larger") }).await.expect("a reply");
        assert_eq!(reply.message.data, data);
        let status = say(&channel, Text { data: vec![0; 17 << 20].into(), ..text("") }).await;
        assert_eq!(status.expect_err("too long").code, Code::ResourceExhausted);

        let status = say(&channel, text("fail")).await.expect_err("it fails");
        assert_eq!((status.code, status.message.as_str()), (Code::NotFound, "no such thing"));
        let mut request = Request::new(text("with metadata"));
        request.metadata.add("trace", "7");
        let reply: Response<Text> = channel.unary(0, request).await.expect("a reply");
        assert_eq!(reply.metadata.get("trace"), Some(&b"7"[..]));
        assert_eq!(counts(&host).copied, 0);
    });
}

#[test]
fn memory_comes_back_and_calls_wait_for_it() {
    run(async {
        let host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        // More at once than the 128 MiB of each side hold, in blocks of 2 MiB.
        let data = Bytes::from(vec![7; 1 << 20]);
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..192 {
            let (channel, data) = (channel.clone(), data.clone());
            calls.spawn(async move {
                let message = Text { number, data, ..text("") };
                let reply = say(&channel, message.clone()).await.expect("a reply");
                assert!(reply.message == message);
            });
        }
        while let Some(call) = calls.join_next().await {
            call.expect("it has not panicked");
        }
        assert_eq!(counts(&host).calls, 192);
    });
}

#[test]
fn streams_go_as_fast_as_they_are_read_and_end_where_they_are_dropped() {
    run(async {
        let host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        let request = Text { number: 1000, ..Text::default() };
        let mut stream = channel.streaming::<_, Text>(1, request.into()).await.expect("a stream");
        let mut expected = 0;
        while let Some(item) = stream.next().await.expect("no error") {
            assert_eq!(item.number, expected);
            expected += 1;
        }
        assert_eq!(expected, 1000);
        let request = Text { number: i64::MAX, ..Text::default() };
        let mut stream = channel.streaming::<_, Text>(1, request.into()).await.expect("a stream");
        assert_eq!(stream.next().await.expect("no error").expect("an item").number, 0);
        drop(stream);
        for _ in 0..1000 {
            if host.listing().services.iter().all(|of| of.waiting == 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the stream goes on: {:?}", host.listing().services);
    });
}

#[test]
fn deadlines_and_dropped_calls_reach_the_server() {
    run(async {
        let host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        let request = Request::new(text("")).within(Duration::from_millis(20));
        let status = channel.unary::<_, Text>(2, request).await.expect_err("too late");
        assert_eq!(status.code, Code::DeadlineExceeded);
        echo.until(|hanging| hanging == 0).await;
        let call = tokio::spawn({
            let channel = channel.clone();
            async move { channel.unary::<_, Text>(2, text("").into()).await }
        });
        echo.until(|hanging| hanging == 1).await;
        call.abort();
        echo.until(|hanging| hanging == 0).await;
        assert_eq!(echo.calls.load(Ordering::Acquire), 2);
    });
}

#[test]
fn two_services_marshal_four_times_together_and_a_lost_one_is_unavailable() {
    run(async {
        let (here, there) = (Place::new(), Place::public());
        let echo = Echo::new(schema(PROTO), "far");
        let serving = serve(&there, &echo).await;
        let net = Net::connect_to(&here.socket(), "client").await.expect("it serves");
        let at = there.address();
        let channel = net.bind_at("test.Echo", echo.schema, &[&at]).await.expect("it is bound");
        for number in 0..100 {
            let data = vec![number as u8; (number as usize % 7) * 3000].into();
            let message = Text { number, data, ..text("far away") };
            let reply = say(&channel, message.clone()).await.expect("a reply");
            assert!(reply.message == message);
        }
        let (of, other) = (counts(&here), counts(&there));
        assert_eq!((of.marshalled, other.marshalled, of.copied + other.copied), (200, 200, 0));
        let request = Text { number: 300, ..Text::default() };
        let mut stream = channel.streaming::<_, Text>(1, request.into()).await.expect("a stream");
        let mut count = 0;
        while stream.next().await.expect("no error").is_some() {
            count += 1;
        }
        assert_eq!(count, 300);
        let status = say(&channel, text("fail")).await.expect_err("it fails");
        assert_eq!(status.code, Code::NotFound);

        let hanging = tokio::spawn({
            let channel = channel.clone();
            async move { channel.unary::<_, Text>(2, text("").into()).await }
        });
        echo.until(|hanging| hanging == 1).await;
        drop(serving);
        let status = say(&channel, text("")).await.expect_err("nobody serves");
        assert_eq!(status.code, Code::Unavailable, "{status}");
        drop(there);
        let status = hanging.await.expect("no panic").expect_err("it is lost");
        assert_eq!(status.code, Code::Unavailable, "{status}");
    });
}

#[test]
fn after_a_new_service_calls_go_on_and_those_that_may_be_repeated_are() {
    run(async {
        let mut host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        say(&channel, text("before")).await.expect("a reply");
        let hanging = tokio::spawn({
            let channel = channel.clone();
            async move { channel.unary::<_, Text>(2, text("").into()).await }
        });
        echo.until(|hanging| hanging == 1).await;
        host.stop();
        let status = hanging.await.expect("no panic").expect_err("its service is gone");
        assert_eq!(status.code, Code::Unavailable, "{status}");
        echo.until(|hanging| hanging == 0).await;
        host.start();
        for _ in 0..1000 {
            match channel.unary::<_, Text>(3, text("after").into()).await {
                Ok(reply) => {
                    assert_eq!(reply.message.text, "after");
                    return;
                }
                Err(status) => assert_eq!(status.code, Code::Unavailable, "{status}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it is not served again");
    });
}

#[test]
fn older_clients_are_served_and_others_refused() {
    run(async {
        let host = Place::new();
        let newer = PROTO
            .replace("int64 number = 2;", "int64 number = 2; string note = 9; repeated double more = 4;")
            .replace("rpc Say", "rpc New(Text) returns (Text);\n  rpc Say");
        let echo = Echo::new(schema(PROTO), "older");
        let serving = serve(&host, &echo).await;
        // The client knows more: what the server does not is left out.
        let channel = client(&host, schema(&newer)).await;
        let status = channel.unary::<Text, Text>(0, text("").into()).await.expect_err("it is not there");
        assert_eq!(status.code, Code::Unimplemented);
        let net = Net::connect_to(&host.socket(), "client").await.expect("it serves");
        let other = PROTO.replace("string text = 1", "double text = 1");
        let status = net.bind("test.Echo", schema(&other)).await.expect_err("another type");
        assert_eq!(status.code, Code::FailedPrecondition);
        assert!(status.message.contains("text"), "{status}");
        let status =
            net.bind("test.Other", schema(&PROTO.replace("Echo", "Other"))).await.expect_err("nobody");
        assert_eq!(status.code, Code::Unavailable);
        assert!(status.message.contains("test.Echo"), "{status}");
        drop(serving);
    });
}

#[test]
fn policies_look_at_calls_and_read_a_copy() {
    run(async {
        let host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        host.attach_to(
            "* -> test.Echo/Say",
            "deny",
            "acl",
            r#"{"deny_if": "text == 'forbidden' || number > 9"}"#,
        )
        .expect("it is attached");
        say(&channel, text("allowed")).await.expect("it may");
        for message in [text("forbidden"), Text { number: 10, ..text("allowed") }] {
            let status = say(&channel, message).await.expect_err("it may not");
            assert_eq!(status.code, Code::PermissionDenied);
            assert!(status.message.contains("deny"), "{status}");
        }
        assert_eq!(echo.calls.load(Ordering::Acquire), 1);
        assert!(counts(&host).copied > 0, "what is judged is copied");
        let error = host.attach_to("client -> test.Echo/*", "wrong", "acl", r#"{"deny_if": "no_field > 1"}"#);
        assert!(error.expect_err("no such field").to_string().contains("no_field"));
        host.detach("deny");
        say(&channel, text("forbidden")).await.expect("it may now");

        host.attach_to(
            "client -> */*",
            "cap",
            "rate_limit",
            r#"{"rps": 0.001, "burst": 2, "excess": "reject"}"#,
        )
        .expect("it is attached");
        say(&channel, text("")).await.expect("the first");
        say(&channel, text("")).await.expect("the second");
        let status = say(&channel, text("")).await.expect_err("too many");
        assert_eq!(status.code, Code::ResourceExhausted, "{status}");
        host.detach("cap");

        // A call that waits goes as soon as nothing holds it.
        host.attach_to("client -> */*", "wait", "rate_limit", r#"{"rps": 0.001, "burst": 1}"#)
            .expect("it is attached");
        say(&channel, text("")).await.expect("the first");
        let waits = tokio::spawn({
            let channel = channel.clone();
            async move { say(&channel, text("held")).await }
        });
        let request = Request::new(text("")).within(Duration::from_millis(30));
        let status = channel.unary::<_, Text>(0, request).await.expect_err("it is held, too");
        assert_eq!(status.code, Code::DeadlineExceeded);
        host.detach("wait");
        assert_eq!(waits.await.expect("no panic").expect("it goes").message.text, "held");
    });
}

#[test]
fn calls_are_balanced_between_servers() {
    run(async {
        let host = Place::new();
        let (one, two) = (Echo::new(schema(PROTO), "one"), Echo::new(schema(PROTO), "two"));
        let (_one, second) = (serve(&host, &one).await, serve(&host, &two).await);
        let channel = client(&host, one.schema).await;
        let calls = |of: &Echo| of.calls.load(Ordering::Acquire);
        for _ in 0..20 {
            say(&channel, text("")).await.expect("a reply");
        }
        assert_eq!((calls(&one), calls(&two)), (10, 10));
        host.attach_to("* -> test.Echo/*", "first", "balance", r#"{"by": "first"}"#).expect("it is attached");
        for _ in 0..10 {
            say(&channel, text("")).await.expect("a reply");
        }
        assert_eq!((calls(&one), calls(&two)), (20, 10));
        drop(second);
        host.detach("first");
        for _ in 0..1000 {
            if host.listing().services.iter().filter(|of| of.serves).count() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..10 {
            say(&channel, text("")).await.expect("a reply");
        }
        assert_eq!((calls(&one), calls(&two)), (30, 10));
    });
}

#[test]
fn what_hostile_programs_do_ends_their_own_connection_only() {
    run(async {
        let host = Place::new();
        let echo = Echo::new(schema(PROTO), "one");
        let _serving = serve(&host, &echo).await;
        let channel = client(&host, echo.schema).await;
        say(&channel, text("before")).await.expect("a reply");
        let socket = tidemill_rpc::protocol::socket_of(&host.socket());
        for packet in [
            "",
            "{}",
            r#"{"hello":{"version":1}}"#,
            r#"{"bind":{"id":1,"service":"x","schema":"y","at":[]}}"#,
        ] {
            use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, send, socket as make};
            let end = make(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
            connect(&end, &SocketAddrUnix::new(&socket).expect("short")).expect("it listens");
            send(&end, packet.as_bytes(), rustix::net::SendFlags::NOSIGNAL).expect("it takes it");
            say(&channel, text("still")).await.expect("a reply");
        }
        // Flat messages that are none: the caller learns it, and the server sees nothing.
        let before = echo.calls.load(Ordering::Acquire);
        for bytes in [vec![0; 3], vec![255; 32], vec![1; 64]] {
            let request = Request::new(vec![Bytes::from(bytes)]);
            let status = channel.unary_flat(0, request).await.expect_err("no message");
            assert_eq!(status.code, Code::InvalidArgument, "{status}");
        }
        assert_eq!(echo.calls.load(Ordering::Acquire), before);
        let status = channel.unary::<Text, Text>(17, text("").into()).await.expect_err("no method");
        assert_eq!(status.code, Code::Unimplemented);
    });
}
