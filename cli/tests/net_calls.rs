//! Calls between programs through the transport service, as users start it: gRPC programs, policies, its death and its upgrade.
use crate::command::{command, free_port, tidemill};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_grpc::{Call, Calls, Item, Limits, Peer};
use tidemill_net::Client;
use tidemill_net::protocol::{Answer, Listing, Request as Asked};
use tidemill_rpc::{
    BoxFuture as Future, Bytes, Channel, Code, Incoming, Net, Request, Response, Service, Status,
};
use tokio::sync::watch;

const PROTO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; int64 number = 2; }
service Echo {
  rpc Say(Text) returns (Text);
  rpc Hang(Text) returns (Text);
  rpc Get(Text) returns (Text) { option idempotency_level = NO_SIDE_EFFECTS; }
  rpc Count(Text) returns (stream Text);
}
"#;

/// Numbers of the methods.
const SAY: u32 = 0;
const HANG: u32 = 1;
const GET: u32 = 2;

/// `Text { text }` as protobuf.
fn proto(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x0a, u8::try_from(text.len()).unwrap()];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// `tidemill net serve`, which ends with this.
struct Served {
    folder: tempfile::TempDir,
    process: Child,
}

impl Served {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("test.proto"), PROTO).unwrap();
        let socket = folder.path().join("net.sock");
        let mut arguments = vec!["net", "serve", "--socket", socket.to_str().unwrap()];
        arguments.extend(more);
        let process = command(&arguments).spawn().unwrap();
        let served = Self { folder, process };
        served.listing();
        served
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    fn listing(&self) -> Listing {
        for _ in 0..1500 {
            let asked = Client::connect(&self.socket(), 0).and_then(|mut client| client.ask(&Asked::List));
            if let Ok(Answer::Listing(listing)) = asked {
                return *listing;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not serve");
    }

    fn net(&self, arguments: &[&str]) -> String {
        tidemill(&[&["net"], arguments, &["--socket", self.socket().to_str().unwrap()]].concat())
            .expect(0)
            .stdout
    }

    fn schema(&self) -> Vec<u8> {
        tidemill_stub::compile(&[self.folder.path().join("test.proto")], &[self.folder.path()]).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().unwrap();
        let ended = self.process.wait().unwrap();
        if !std::thread::panicking() {
            assert_eq!(ended.code(), Some(130), "it ends in order");
            for left in ["net.sock", "net.rpc", "net.sock.next", "net.sock.rpc"] {
                assert!(!self.folder.path().join(left).exists(), "{left} is left behind");
            }
        }
    }
}

/// Answers with what it got.
#[derive(Clone)]
struct Echo {
    schema: Arc<Vec<u8>>,
    calls: Arc<AtomicUsize>,
    /// Calls that hang; those of `Get` hang while this says so.
    hanging: watch::Sender<usize>,
    hangs: watch::Sender<bool>,
}

impl Echo {
    fn new(schema: Vec<u8>) -> Self {
        let (hanging, hangs) = (watch::Sender::new(0), watch::Sender::new(false));
        Self { schema: Arc::new(schema), calls: Arc::default(), hanging, hangs }
    }

    async fn until_hanging(&self, count: usize) {
        self.hanging.subscribe().wait_for(|of| *of >= count).await.unwrap();
    }
}

impl Service for Echo {
    fn name(&self) -> &str {
        "test.Echo"
    }

    fn descriptors(&self) -> &[u8] {
        &self.schema
    }

    fn call(&self, method: u32, call: Incoming) -> Future<'static, ()> {
        let of = self.clone();
        Box::pin(async move {
            of.calls.fetch_add(1, Ordering::AcqRel);
            if method == HANG || method == GET && *of.hangs.borrow() {
                of.hanging.send_modify(|hanging| *hanging += 1);
                std::future::pending::<()>().await;
            }
            let Request { message, metadata, .. } = call.flat();
            call.reply_flat(Ok(Response { message: vec![message], metadata })).await;
        })
    }
}

async fn say(channel: &Channel, method: u32, flat: Vec<Bytes>) -> Result<Bytes, Status> {
    channel.unary_flat(method, Request::new(flat)).await.map(|reply| reply.message)
}

fn run(work: impl std::future::Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(120), work).await.expect("a call did not end")
    });
}

async fn ask(peer: &Peer, path: &str, message: Vec<u8>) -> Result<Vec<u8>, tidemill_grpc::Status> {
    let mut items = peer.call(Call::new(path, message)).await?;
    let mut reply = Vec::new();
    while let Some(item) = items.next().await {
        match item {
            Item::Leading(_) => {}
            Item::Message(message) => reply = message.to_vec(),
            Item::End { status, .. } if status.code == tidemill_grpc::Code::Ok => return Ok(reply),
            Item::End { status, .. } => return Err(status),
        }
    }
    panic!("no end");
}

#[test]
fn grpc_programs_call_programs_of_this_machine_and_policies_look_at_them() {
    let address = format!("127.0.0.1:{}", free_port());
    let served = Served::start(&["--grpc", &address]);
    run(async {
        let peer = Peer::connect(&format!("http://{address}")).unwrap();
        let nobody = ask(&peer, "/test.Echo/Say", proto("x")).await.unwrap_err();
        assert_eq!(nobody.code, tidemill_grpc::Code::Unimplemented, "{nobody}");
        let net = Net::connect_to(&served.socket(), "server").await.unwrap();
        let echo = Echo::new(served.schema());
        let _serving = net.serve(echo.clone()).await.unwrap();
        assert_eq!(ask(&peer, "/test.Echo/Say", proto("hello")).await.unwrap(), proto("hello"));
        let other = ask(&peer, "/test.Echo/Other", proto("x")).await.unwrap_err();
        assert_eq!(other.code, tidemill_grpc::Code::Unimplemented);
        let wrong = ask(&peer, "/test.Echo/Say", vec![0x0a, 9, 1]).await.unwrap_err();
        assert_eq!(wrong.code, tidemill_grpc::Code::InvalidArgument);
        let call =
            Call { timeout: Some(Duration::from_millis(50)), ..Call::new("/test.Echo/Hang", proto("x")) };
        let late: Vec<Item> = match peer.call(call).await {
            Ok(items) => items.collect().await,
            Err(status) => vec![Item::End { status, trailing: Vec::new() }],
        };
        let is_late = |item: &Item| matches!(item, Item::End { status, .. } if status.code == tidemill_grpc::Code::DeadlineExceeded);
        assert!(late.last().is_some_and(is_late), "{late:?}");

        served.net(&[
            "policy",
            "attach",
            "grpc -> test.Echo/Say",
            "acl",
            "{deny_if: \"text == 'forbidden'\"}",
        ]);
        let denied = ask(&peer, "/test.Echo/Say", proto("forbidden")).await.unwrap_err();
        assert_eq!(denied.code, tidemill_grpc::Code::PermissionDenied, "{denied}");
        assert_eq!(ask(&peer, "/test.Echo/Say", proto("allowed")).await.unwrap(), proto("allowed"));
        let table = served.net(&["ls"]);
        assert!(
            table.contains("test.Echo/Say") && table.contains("serves") && table.contains("acl"),
            "{table}"
        );
    });
}

/// A gRPC server of others: it answers with what it got.
struct Stock;

impl Calls for Stock {
    fn call(
        &self,
        call: Call,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Item>, tidemill_grpc::Status>> {
        let items = [Item::Message(call.message), Item::ok()];
        Box::pin(async move { Ok(stream::iter(items).boxed()) })
    }
}

#[test]
fn programs_call_grpc_servers_as_services_of_this_machine() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("test.Echo=http://{}", listener.local_addr().unwrap());
        tokio::spawn(tidemill_grpc::serve(
            listener,
            Arc::new(Stock),
            Limits::default(),
            std::future::pending(),
        ));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.proto");
        std::fs::write(&file, PROTO).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let served =
            tokio::task::spawn_blocking(move || Served::start(&["--grpc-server", &server, "--proto", &file]));
        let served = served.await.unwrap();
        let net = Net::connect_to(&served.socket(), "client").await.unwrap();
        let (channel, schema) = loop {
            match net.discover("test.Echo").await {
                Ok(found) => break found,
                Err(status) => assert_eq!(status.code, Code::Unavailable, "{status}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let text = schema.message_named("test.Text").unwrap();
        let flat = text.decode(&schema, &proto("over there").into()).unwrap();
        let reply = say(&channel, SAY, flat.clone()).await.unwrap();
        text.check(&schema, &reply).unwrap();
        let mut back = Vec::new();
        text.encode(&schema, &reply, &mut back).unwrap();
        assert_eq!(back, proto("over there"));
        tokio::task::spawn_blocking(move || drop(served)).await.unwrap();
    });
}

#[test]
fn calls_end_or_are_repeated_when_the_service_is_killed_and_go_on_over_an_upgrade() {
    let served = Served::start(&[]);
    run(async {
        let server = Net::connect_to(&served.socket(), "server").await.unwrap();
        let echo = Echo::new(served.schema());
        let _serving = server.serve(echo.clone()).await.unwrap();
        let net = Net::connect_to(&served.socket(), "client").await.unwrap();
        let (channel, schema) = net.discover("test.Echo").await.unwrap();
        let text = schema.message_named("test.Text").unwrap();
        let flat = text.decode(&schema, &proto("hello").into()).unwrap();
        let call = |method| {
            let (channel, flat) = (channel.clone(), flat.clone());
            tokio::spawn(async move { say(&channel, method, flat).await })
        };
        echo.hangs.send_replace(true);
        let (may_not, may) = (call(HANG), call(GET));
        echo.until_hanging(2).await;
        echo.hangs.send_replace(false);
        let before = served.listing().process;
        Command::new("kill").args(["-9", &before.to_string()]).status().unwrap();
        let status = may_not.await.unwrap().unwrap_err();
        assert_eq!(status.code, Code::Unavailable, "{status}");
        // The repeated one finds the service that was started again; whether its server is back yet is a matter of luck.
        match may.await.unwrap() {
            Ok(_) => {}
            Err(status) => assert_eq!(status.code, Code::Unavailable, "{status}"),
        }
        let again = |channel: Channel, flat: Vec<Bytes>| async move {
            for _ in 0..1000 {
                match say(&channel, GET, flat.clone()).await {
                    Ok(_) => return,
                    Err(status) => assert_eq!(status.code, Code::Unavailable, "{status}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("the calls do not go on");
        };
        again(channel.clone(), flat.clone()).await;
        let killed = served.listing().process;
        assert_ne!(killed, before, "it was killed");

        let (socket, path) = (served.socket(), env!("CARGO_BIN_EXE_tidemill"));
        let upgrade = tokio::task::spawn_blocking(move || {
            tidemill(&["net", "upgrade", path, "--socket", socket.to_str().unwrap()])
        });
        upgrade.await.unwrap().expect(0);
        again(channel.clone(), flat.clone()).await;
        assert_ne!(served.listing().process, killed, "another version serves");
    });
}

#[test]
fn stubs_are_written_and_mistakes_in_a_proto_file_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.proto");
    std::fs::write(&file, PROTO).unwrap();
    let code = tidemill(&["net", "stub", file.to_str().unwrap()]).expect(0).stdout;
    assert!(code.contains("pub struct EchoClient") && code.contains("pub trait Echo"), "{code}");
    std::fs::write(&file, PROTO.replace("string text", "strnig text")).unwrap();
    let error = tidemill(&["net", "stub", file.to_str().unwrap()]).expect(78).stderr;
    assert!(error.contains("strnig") && error.contains("test.proto:4"), "{error}");
    let error = tidemill(&["net", "stub", "no-such.proto"]).expect(66).stderr;
    assert!(error.contains("no-such.proto"), "{error}");
}
