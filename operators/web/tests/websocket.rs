//! The source `websocket` and a server that cuts it off.
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_operators::api::{BoundSource, Source, SourceRead};
use tidemill_operators::feeds::{FeedOrder, FeedState};
use tidemill_operators::kind::EndContext;
use tidemill_operators::registry::Registry;
use tidemill_spec::{span::SourceFile, yaml};
use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tungstenite::{Message, WebSocket};

fn bind(base: &Path, text: &str) -> Result<BoundSource, String> {
    let mut registry = Registry::builtin();
    tidemill_web::register(&mut registry);
    let id = "numbers".into();
    let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
    let bound = registry.source("websocket").unwrap().bind(&EndContext::new(&id, base), &options);
    bound.map_err(|errors| errors.to_string())
}

/// Reads once: the numbers, and the reasons of dead letters.
fn read(reader: &mut dyn Source) -> (Vec<i64>, Vec<String>) {
    use arrow_array::cast::AsArray;
    match reader.read(1000, usize::MAX).unwrap() {
        SourceRead::Rows { payload, dead_letters, .. } => {
            let numbers = payload.column(0).as_primitive::<arrow_array::types::Int64Type>();
            let reasons = dead_letters.iter().map(|letter| letter.reason.to_string()).collect();
            (numbers.values().to_vec(), reasons)
        }
        other => panic!("{other:?}"),
    }
}

/// Starts to read; opening waits for the first message.
fn start(source: &BoundSource) -> JoinHandle<Box<dyn Source>> {
    let make = Arc::clone(&source.make);
    std::thread::spawn(move || make().unwrap())
}

fn wait_for_state(source: &BoundSource, state: FeedState) -> String {
    loop {
        let status = source.feeds.as_ref().unwrap().status().remove(0);
        if status.state == state {
            return status.detail;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(socket: &mut WebSocket<TcpStream>, text: &str) {
    socket.send(Message::text(text)).unwrap();
}

/// Accepts websockets; gives each to `serve` with its number, and ends with the test program.
fn serve(serve: impl Fn(usize, WebSocket<TcpStream>) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            serve(number, tungstenite::accept(stream.unwrap()).unwrap());
        }
    });
    address
}

#[test]
fn ten_cuts_lose_nothing_that_was_sent() {
    const CUTS: usize = 10;
    let (cut, cuts): (_, Receiver<usize>) = channel();
    let address = serve(move |number, mut socket| {
        let first = socket.read().unwrap();
        assert_eq!(first.to_text().unwrap(), "begin", "what is to be sent comes again");
        for n in 100 * number..100 * (number + 1) {
            send(&mut socket, &format!("{{\"n\": {n}}}"));
        }
        if number < CUTS {
            // Without a word; with one every second time.
            match number % 2 {
                0 => socket.get_ref().shutdown(Shutdown::Both).unwrap(),
                _ => socket.close(None).unwrap(),
            }
            cut.send(number).unwrap();
        } else {
            // Stays open.
            std::mem::forget(socket);
        }
    });
    let text = format!("url: ws://{address}/numbers\nsend: [begin]\ncolumns: {{n: int64}}");
    let source = bind(Path::new("."), &text).unwrap();
    let mut reader = start(&source).join().unwrap();
    let mut numbers = Vec::new();
    while numbers.len() < 100 * (CUTS + 1) {
        numbers.extend(read(reader.as_mut()).0);
    }
    assert!(numbers.iter().copied().eq(0..100 * (CUTS as i64 + 1)));
    assert_eq!(cuts.try_iter().count(), CUTS, "each cut took place");
    wait_for_state(&source, FeedState::Live);
    let status = source.feeds.as_ref().unwrap().status().remove(0);
    assert_eq!((status.connects, status.received), (CUTS as u64 + 1, numbers.len() as u64));
}

#[test]
fn what_is_no_object_is_a_dead_letter() {
    let address = serve(|_, mut socket| {
        for text in ["{\"n\":\n 1}", "", "[2]", &format!("{{\"n\": 3, \"more\": \"{}\"}}", "x".repeat(99))] {
            send(&mut socket, text);
        }
        socket.send(Message::binary(b"{\"n\": 4}".to_vec())).unwrap();
        socket.send(Message::Ping(tungstenite::Bytes::new())).unwrap();
        let answer = socket.read().unwrap();
        assert!(answer.is_pong(), "{answer}");
        send(&mut socket, "{\"n\": 5}");
        std::mem::forget(socket);
    });
    let source = bind(Path::new("."), &format!("url: ws://{address}\ncolumns: {{n: int64}}\nmax_line: 50B"));
    let mut reader = start(&source.unwrap()).join().unwrap();
    let (mut numbers, mut reasons) = (Vec::new(), Vec::new());
    while numbers.len() < 3 {
        let (more, dead) = read(reader.as_mut());
        numbers.extend(more);
        reasons.extend(dead);
    }
    assert_eq!(numbers, [1, 4, 5]);
    assert_eq!(reasons, ["bad_value", "bad_value", "line_too_long"]);
}

/// A server that knows no token refuses for good, until somebody resumes the source.
#[test]
fn a_refusal_is_final_until_the_source_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "hunter22\n").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let mut tokens = Vec::new();
        for number in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            let check = |request: &Request, response: Response| {
                tokens.push(request.headers()["authorization"].to_str().unwrap().to_owned());
                match number {
                    0 => {
                        let mut refusal = ErrorResponse::new(Some("who is hunter22?".into()));
                        *refusal.status_mut() = tungstenite::http::StatusCode::UNAUTHORIZED;
                        Err(refusal)
                    }
                    _ => Ok(response),
                }
            };
            if let Ok(mut socket) = tungstenite::accept_hdr(stream, check) {
                send(&mut socket, "{\"n\": 7}");
                std::mem::forget(socket);
            }
        }
        tokens
    });
    let text = format!(
        "url: ws://{address}\nheaders: {{Authorization: {{secret_file: token, prefix: 'Bearer '}}}}\ncolumns: {{n: int64}}"
    );
    let source = bind(folder.path(), &text).unwrap();
    let reader = start(&source);
    assert_eq!(wait_for_state(&source, FeedState::Failed), "the server answers 401 Unauthorized");
    let feeds = source.feeds.as_ref().unwrap();
    assert!(feeds.order(&FeedOrder::Resume { feed: "other".into() }).is_err());
    feeds.order(&FeedOrder::Resume { feed: "numbers".into() }).unwrap();
    assert_eq!(read(reader.join().unwrap().as_mut()).0, [7]);
    assert_eq!(server.join().unwrap(), ["Bearer hunter22"; 2]);
}

#[test]
fn a_connection_can_be_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.path().join("ca.pem"), made.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut socket = tungstenite::accept(rustls::StreamOwned::new(session, stream)).unwrap();
        socket.send(Message::text("{\"n\": 9}")).unwrap();
        std::mem::forget(socket);
    });
    let text = format!("url: wss://localhost:{port}\ntls: {{ca_file: ca.pem}}\ncolumns: {{n: int64}}");
    let source = bind(folder.path(), &text).unwrap();
    assert_eq!(read(start(&source).join().unwrap().as_mut()).0, [9]);
    drop(source);
    let error = bind(folder.path(), &text.replace("ca.pem", "none.pem")).err().unwrap();
    assert!(error.contains("cannot read the certificates to trust"), "{error}");
}

#[test]
fn the_thread_ends_with_the_reader() {
    let (told, closed) = channel();
    let address = serve(move |_, mut socket| {
        send(&mut socket, "{\"n\": 1}");
        told.send(socket.read().unwrap().is_close()).unwrap();
    });
    let source = bind(Path::new("."), &format!("url: ws://{address}\ncolumns: {{n: int64}}")).unwrap();
    drop(start(&source).join().unwrap());
    assert!(closed.recv().unwrap(), "the server is told");
}
