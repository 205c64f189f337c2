//! The service that all tests call, as it is served by the crate.
//!
//! | method | answer |
//! |---|---|
//! | Echo | the request; metadata whose names begin with `x-` come back before and after it |
//! | Count | as many messages as the request says, the texts of their numbers |
//! | Large | as many messages of 64 KiB as the request says |
//! | Fail | the status that the metadata `code` and the request say, with trailing metadata |
//! | Timeout | the timeout in milliseconds, or `none` |
//! | Wait | nothing for ever |
//! | Begin | one message, and nothing more for ever |
//! | Panic | a panic |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use tidemill_grpc::{Call, Calls, Code, Item, Limits, Metadata, Peer, Status, serve};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Longest time that a test waits for an event, so that it fails and does not hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(50);

/// Events of a service: `Wait x` or `Begin x` when such a call with the message `x` began to wait, `dropped x` when it ended.
pub(crate) type Events = mpsc::UnboundedReceiver<String>;

/// Waits for an event of a service.
pub(crate) async fn event(events: &mut Events, name: &str) {
    let seen = async {
        while let Some(event) = events.recv().await {
            if event == name {
                return;
            }
        }
        panic!("no event {name}");
    };
    tokio::time::timeout(PATIENCE, seen).await.expect(name);
}

/// Sends an event at its end.
pub(crate) struct Waiting(mpsc::UnboundedSender<String>, String);

impl Waiting {
    pub(crate) fn new(events: &mpsc::UnboundedSender<String>, method: &str, message: &Bytes) -> Waiting {
        let message = String::from_utf8(message.to_vec()).unwrap();
        let _ = events.send(format!("{method} {message}"));
        Waiting(events.clone(), message)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.send(format!("dropped {}", self.1));
    }
}

pub(crate) struct Shop {
    pub(crate) events: mpsc::UnboundedSender<String>,
}

impl Calls for Shop {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<BoxStream<'static, Item>, Status>> {
        let events = self.events.clone();
        let method = call.path.strip_prefix("/test.Shop/").unwrap_or_default().to_owned();
        if method == "Panic" {
            panic!("as the test wants");
        }
        async move {
            let echoed: Metadata =
                call.metadata.iter().filter(|(name, _)| name.starts_with("x-")).cloned().collect();
            let items: Vec<Item> = match method.as_str() {
                "Echo" => vec![
                    Item::Leading(echoed.clone()),
                    Item::Message(call.message),
                    Item::End { status: Status::ok(), trailing: echoed },
                ],
                "Count" => {
                    let count: u32 = std::str::from_utf8(&call.message).unwrap().parse().unwrap();
                    let messages = (0..count).map(|number| Item::Message(number.to_string().into()));
                    messages.chain([Item::ok()]).collect()
                }
                "Large" => {
                    let count = std::str::from_utf8(&call.message).unwrap().parse().unwrap();
                    let message = Item::Message(vec![1; 64 << 10].into());
                    std::iter::repeat_n(message, count).chain([Item::ok()]).collect()
                }
                "Fail" => {
                    let (_, code) = call.metadata.iter().find(|(name, _)| name == "code").unwrap();
                    let number = String::from_utf8(code.clone()).unwrap().parse().unwrap();
                    let message = String::from_utf8(call.message.to_vec()).unwrap();
                    let status = Status::new(Code::from_number(number).unwrap(), message);
                    vec![Item::End { status, trailing: echoed }]
                }
                "Timeout" => {
                    let text =
                        call.timeout.map_or("none".to_owned(), |timeout| timeout.as_millis().to_string());
                    vec![Item::Message(text.into()), Item::ok()]
                }
                "Wait" => {
                    let _waiting = Waiting::new(&events, "Wait", &call.message);
                    std::future::pending().await
                }
                "Begin" => {
                    let waiting = Waiting::new(&events, "Begin", &call.message);
                    let rest = stream::pending().map(move |item| {
                        let _ = &waiting;
                        item
                    });
                    return Ok(stream::iter([Item::Message("first".into())]).chain(rest).boxed());
                }
                _ => return Err(Status::new(Code::Unimplemented, format!("no method {method}"))),
            };
            Ok(stream::iter(items).boxed())
        }
        .boxed()
    }

    fn healthy(&self, service: &str) -> Option<bool> {
        (service == "test.Shop").then_some(true)
    }
}

/// A running server of the crate.
pub(crate) struct Served {
    pub(crate) uri: String,
    pub(crate) events: Events,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

pub(crate) async fn served(limits: Limits) -> Served {
    let (sender, events) = mpsc::unbounded_channel();
    served_by(Arc::new(Shop { events: sender }), events, limits).await
}

pub(crate) async fn served_by(calls: Arc<dyn Calls>, events: Events, limits: Limits) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    // A test that drops the sender wants the server to continue.
    let shutdown = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let task = tokio::spawn(serve(listener, calls, limits, shutdown));
    Served { uri, events, stop, task }
}

/// An answer in its parts.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) leading: Option<Metadata>,
    pub(crate) messages: Vec<Bytes>,
    pub(crate) status: Status,
    pub(crate) trailing: Metadata,
}

/// Makes a call and reads all of its answer.
pub(crate) async fn answer(peer: &Peer, call: Call) -> Answer {
    let mut answer =
        Answer { leading: None, messages: Vec::new(), status: Status::ok(), trailing: Metadata::new() };
    let mut items = match peer.call(call).await {
        Ok(items) => items,
        Err(status) => return Answer { status, ..answer },
    };
    while let Some(item) = items.next().await {
        match item {
            Item::Leading(metadata) => {
                assert!(answer.leading.is_none() && answer.messages.is_empty());
                answer.leading = Some(metadata);
            }
            Item::Message(message) => answer.messages.push(message),
            Item::End { status, trailing } => {
                assert!(items.next().await.is_none(), "nothing comes after the end");
                return Answer { status, trailing, ..answer };
            }
        }
    }
    panic!("an answer without an end");
}

/// Metadata of the tests, with values that only some names may have.
pub(crate) fn some_metadata() -> Metadata {
    let pair = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    vec![
        pair("x-one", b"a, b"),
        pair("x-two", b"1"),
        pair("x-two", b"2"),
        pair("x-some-bin", &[0, 1, 254, 255, 10]),
        pair("x-some-bin", b"z"),
    ]
}
