//! The code of a rich .proto file compiles, its messages are those of protobuf, and its services answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

extern crate self as tidemill_rpc; // the code names the crate that programs have

#[path = "../../schema/tests/random_messages/mod.rs"]
mod random_messages;
mod rpc;
/// Code as it is written, which `UPDATE_GOLDEN=1` renews.
mod shop {
    include!("golden/shop.rs.txt");
}

use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message as _;
use random_messages::{Random, compile, message_of, oracle};
pub(crate) use rpc::*;
pub(crate) use tidemill_schema::{
    FlatReader, FlatValue, FlatWriter, Invalid, Message, from_flat, join, to_segments,
};
use tidemill_stub::StubError;

pub(crate) use bytes::Bytes;

fn protos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protos")
}

#[test]
fn the_code_is_the_golden_file() {
    let out = tempfile::tempdir().unwrap();
    tidemill_stub::build::Stubs::new()
        .include(protos())
        .file(protos().join("shop.proto"))
        .out_dir(out.path())
        .write()
        .unwrap();
    let code = std::fs::read_to_string(out.path().join("shop.rs")).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/shop.rs.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &code).unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap();
    assert!(
        code == expected,
        "the code has changed: run this test with UPDATE_GOLDEN=1 and look at the difference"
    );
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1, "imports have no file of their own");
}

#[test]
fn descriptors_alone_give_the_same_code_without_comments() {
    let set = tidemill_stub::compile(&[protos().join("shop.proto")], &[protos()]).unwrap();
    assert_eq!(set, shop::DESCRIPTORS);
    let code = tidemill_stub::rust(&set).unwrap();
    assert!(code.contains("pub struct Item {"));
    assert!(!code.contains("Colour of an item"));
    assert!(!code.contains("Unused"), "messages of other packages are there if they are used");
    let fewer = |code: &str| code.lines().filter(|line| !line.trim_start().starts_with("///")).count();
    assert_eq!(fewer(&code), fewer(include_str!("golden/shop.rs.txt")));
}

#[test]
fn generated_messages_are_those_of_protobuf() {
    let (schema, pool) = compile("shop.proto");
    let layout = schema.message_named(shop::Item::NAME).unwrap();
    let descriptor = pool.get_message_by_name("shop.Item").unwrap();
    let mut random = Random(1);
    for _ in 0..300 {
        let message = message_of(&descriptor, &mut random, 3);
        let proto = Bytes::from(message.encode_to_vec());
        let item: shop::Item = from_flat(&join(&layout.decode(&schema, &proto).unwrap())).unwrap();
        let flat = join(&to_segments(&item));
        layout.check(&schema, &flat).unwrap();
        let mut back = Vec::new();
        layout.encode(&schema, &flat, &mut back).unwrap();
        assert!(oracle(&message, &back) == oracle(&message, &proto));
        assert_eq!(from_flat::<shop::Item>(&flat).unwrap(), item);
    }
}

#[test]
fn unknown_values_of_enums_survive() {
    assert_eq!(shop::Color::DEEP_BLUE, shop::Color(-2));
    assert_eq!(shop::Color::RED.name(), Some("COLOR_RED"));
    assert_eq!(shop::Color::from(99).name(), None);
    let item = shop::Item { color: shop::Color(99), ..shop::Item::default() };
    let back: shop::Item = from_flat(&join(&to_segments(&item))).unwrap();
    assert_eq!(i32::from(back.color), 99);
    let money = shop::money::v1::Money { currency: shop::money::v1::money::Currency::USD, amount: -5 };
    assert_eq!(from_flat::<shop::money::v1::Money>(&join(&to_segments(&money))).unwrap(), money);
}

struct Catalogue;

impl shop::Prices for Catalogue {
    async fn get(&self, request: Request<shop::GetRequest>) -> Result<Response<shop::GetReply>, Status> {
        let id = request.into_inner().id;
        if id < 0 {
            return Err(Status::new("no such item"));
        }
        let item = shop::Item { id, kind: Some(shop::item::Kind::Ticket(-7)), ..shop::Item::default() };
        Ok(Response { message: shop::GetReply { item: Some(item) } })
    }

    async fn watch_all(
        &self,
        request: Request<shop::GetRequest>,
        replies: Replies<shop::Item>,
    ) -> Result<(), Status> {
        for id in 0..request.into_inner().id {
            replies.send(&shop::Item { id, ..shop::Item::default() });
        }
        Ok(())
    }

    async fn connect_(&self, _: Request<shop::Nothing>) -> Result<Response<shop::Nothing>, Status> {
        Ok(Response { message: shop::Nothing {} })
    }
}

#[test]
fn clients_and_servers_speak_with_each_other() {
    let server = shop::PricesServer::new(Catalogue);
    let net = Net { service: Arc::new(server.clone()) };
    block_on(async {
        let client = shop::PricesClient::connect(&net).await.unwrap();
        let reply = client.get(shop::GetRequest { id: 5 }).await.unwrap().message;
        let item = reply.item.unwrap();
        assert_eq!((item.id, item.kind), (5, Some(shop::item::Kind::Ticket(-7))));
        let status = client.get(shop::GetRequest { id: -1 }).await.unwrap_err();
        assert_eq!(status.message, "no such item");
        let items = client.watch_all(shop::GetRequest { id: 3 }).await.unwrap().messages;
        assert_eq!(items.iter().map(|item| item.id).collect::<Vec<_>>(), [0, 1, 2]);
        let elsewhere = shop::PricesClient::connect_at(&net, &["here"]).await.unwrap();
        elsewhere.connect_(shop::Nothing::default()).await.unwrap();
        assert_eq!(shop::PricesClient::SERVICE, server.name());
        let channel = net.bind("shop.Prices", shop::DESCRIPTORS).await.unwrap();
        let missing =
            channel.unary::<shop::Nothing, shop::Nothing>(9, shop::Nothing {}.into()).await.unwrap_err();
        assert_eq!(missing.message, "the service shop.Prices has no such method");
    });
}

#[test]
fn streams_from_the_client_are_refused() {
    let set = tidemill_stub::compile(&[protos().join("upload.proto")], &[protos()]).unwrap();
    let error = tidemill_stub::rust(&set).unwrap_err();
    assert!(matches!(error, StubError::ClientStreaming { .. }));
    assert!(
        error.to_string().starts_with("method upload.Files.Send: streams from the client are not supported")
    );
}

#[test]
fn mistakes_name_file_line_and_column() {
    let error = tidemill_stub::compile(&[protos().join("broken.proto")], &[protos()]).unwrap_err();
    assert!(error.to_string().contains("broken.proto:5:3: "), "{error}");
    let missing = tidemill_stub::compile(&[protos().join("none.proto")], &[protos()]).unwrap_err();
    assert!(missing.to_string().contains("none.proto"), "{missing}");
}

#[test]
fn same_names_in_rust_are_refused() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("same.proto");
    for (definitions, first, second) in [
        ("message FooBar {} message foo_bar {}", "FooBar", "foo_bar"),
        ("message Foo { enum Kind { A = 0; } oneof kind { bool a = 1; } }", "Foo.Kind", "Foo.kind"),
        ("message Foo { int32 one = 1; oneof One { bool a = 2; } }", "Foo.one", "Foo.One"),
        (
            "message Foo {} message BarServer {} service Bar { rpc Get(Foo) returns (Foo); }",
            "BarServer",
            "Bar",
        ),
    ] {
        std::fs::write(&file, format!("syntax = \"proto3\"; {definitions}")).unwrap();
        let set = tidemill_stub::compile(&[&file], &[out.path()]).unwrap();
        let error = tidemill_stub::rust(&set).unwrap_err().to_string();
        let expected =
            [[first, second], [second, first]].map(|[a, b]| format!("{a} and {b} would have the same name"));
        assert!(expected.iter().any(|text| error.starts_with(text)), "{error}");
    }
}
