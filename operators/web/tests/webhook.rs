//! The sink `webhook` and a receiver that fails when it is told to.
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tidemill_operators::api::{BoundSink, DeadLetter, Sink};
use tidemill_operators::kind::{EndContext, InputPort};
use tidemill_operators::record::first_records;
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::yaml;

/// A request that was received.
#[derive(Debug, Clone)]
struct Request {
    head: String,
    key: String,
    body: String,
}

/// A server that answers with the next of its answers; without one it takes the request. An empty answer ends the connection.
struct Receiver {
    address: String,
    received: Arc<Mutex<Vec<Request>>>,
    answers: Arc<Mutex<VecDeque<String>>>,
}

impl Receiver {
    fn start(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let received: Arc<Mutex<Vec<Request>>> = Arc::default();
        let answers: Arc<Mutex<VecDeque<String>>> =
            Arc::new(Mutex::new(answers.iter().map(|answer| (*answer).to_owned()).collect()));
        let (kept, given) = (Arc::clone(&received), Arc::clone(&answers));
        // It ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (kept, given) = (Arc::clone(&kept), Arc::clone(&given));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    while let Some(request) = request(&mut reader) {
                        kept.lock().unwrap().push(request);
                        let answer = given.lock().unwrap().pop_front();
                        let answer = answer.unwrap_or_else(|| answer_of("200 OK", "", ""));
                        if answer.is_empty() || stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, received, answers }
    }

    fn received(&self) -> Vec<Request> {
        self.received.lock().unwrap().clone()
    }
}

fn answer_of(status: &str, head: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn request(reader: &mut impl BufRead) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")));
        line.map(|line| line[name.len() + 2..].to_owned())
    };
    let mut body = vec![0; header("content-length")?.parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    let key = header("idempotency-key")?;
    Some(Request { key, body: String::from_utf8(body).unwrap(), head })
}

fn bind(folder: &Path, options: &str) -> BoundSink {
    let mut registry = Registry::builtin();
    tidemill_web::register(&mut registry);
    let stream = StreamType::new([Column::new("n", ColumnType::Int64)]);
    let port = InputPort { from: "numbers".into(), stream, span: Span::nowhere() };
    let id = "out".into();
    let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).unwrap();
    registry.sink("webhook").unwrap().bind(&EndContext::new(&id, folder), &port, &options).unwrap()
}

fn sink(receiver: &Receiver, more: &str) -> Box<dyn Sink> {
    (bind(Path::new("."), &format!("url: http://{}/in?token=hunter22\n{more}", receiver.address)).make)()
        .unwrap()
}

fn rows(count: i64) -> arrow_array::RecordBatch {
    let numbers = arrow_array::Int64Array::from_iter_values(0..count);
    let column: arrow_array::ArrayRef = Arc::new(numbers);
    let payload = arrow_array::RecordBatch::try_from_iter_with_nullable([("n", column, true)]).unwrap();
    first_records(&payload).unwrap()
}

fn deliver(sink: &mut dyn Sink, epoch: u64, count: i64) -> Vec<(u64, DeadLetter)> {
    sink.at_epoch(epoch);
    sink.write(&rows(count)).unwrap();
    sink.commit(epoch + 1).unwrap();
    sink.take_dead_letters()
}

#[test]
fn what_fails_is_sent_again_with_the_same_key() {
    let busy = answer_of("429 Too Many Requests", "Retry-After: 0\r\n", "");
    let broken = answer_of("503 Service Unavailable", "", "later");
    let receiver = Receiver::start(&[&busy, "", &broken]);
    let mut sink = sink(&receiver, "in_flight: 1");
    assert!(deliver(sink.as_mut(), 0, 2).is_empty());
    let received = receiver.received();
    let bodies: Vec<&str> = received.iter().map(|request| request.body.as_str()).collect();
    assert_eq!(bodies, ["{\"n\":0}", "{\"n\":0}", "{\"n\":0}", "{\"n\":0}", "{\"n\":1}"], "three failures");
    assert!(receiver.answers.lock().unwrap().is_empty(), "each failure took place");
    let keys: Vec<&str> = received.iter().map(|request| request.key.as_str()).collect();
    assert!(keys[..4].iter().all(|key| *key == keys[0]) && keys[4] != keys[0], "{keys:?}");
    assert!(received[0].head.starts_with("POST /in?token=hunter22 HTTP/1.1\r\n"), "{}", received[0].head);
}

#[test]
fn refused_rows_are_dead_letters_and_the_others_are_taken() {
    let no = answer_of("422 Unprocessable Content", "", "n is\r\n too small; token=hunter22 was seen");
    let moved = answer_of("301 Moved Permanently", "Location: http://other/\r\n", "");
    let receiver = Receiver::start(&[&no, &moved]);
    let mut sink = sink(&receiver, "in_flight: 1");
    let letters = deliver(sink.as_mut(), 7, 3);
    assert_eq!(receiver.received().len(), 3);
    let place = format!("http://{}/in", receiver.address);
    let found: Vec<_> =
        letters.iter().map(|(epoch, letter)| (*epoch, &*letter.reason, letter.detail.clone())).collect();
    assert_eq!(
        found,
        [
            (7, "refused", format!("{place} answered 422: (the text is left out: it has a secret)")),
            (7, "refused", format!("{place} answered 301")),
        ]
    );
    assert!(letters[1].1.id.is_some());
    assert!(sink.take_dead_letters().is_empty());
}

#[test]
fn a_process_that_continues_uses_the_same_keys_and_another_run_others() {
    let receiver = Receiver::start(&[]);
    let bound = bind(Path::new("."), &format!("url: http://{}", receiver.address));
    let make = bound.durable.unwrap();
    let mut first = make(None).unwrap();
    deliver(first.as_mut(), 0, 3);
    let token = first.token().unwrap().unwrap();
    assert!(token.ends_with(b" 3"), "after rows it is another state");
    drop(first);
    deliver(make(Some(&token)).unwrap().as_mut(), 0, 3);
    deliver(make(None).unwrap().as_mut(), 0, 3);
    let mut keys: Vec<(String, String)> =
        receiver.received().into_iter().map(|request| (request.body, request.key)).collect();
    assert_eq!(keys.len(), 9);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "{keys:?}");
}

#[test]
fn several_rows_are_an_array_or_lines() {
    let receiver = Receiver::start(&[]);
    let mut array = sink(&receiver, "body: array\nmax_rows: 2\nin_flight: 1\nmetadata: true");
    deliver(array.as_mut(), 0, 3);
    let mut lines = sink(&receiver, "body: lines");
    deliver(lines.as_mut(), 0, 2);
    let received = receiver.received();
    let values: Vec<serde_json::Value> =
        received[..2].iter().map(|request| serde_json::from_str(&request.body).unwrap()).collect();
    assert_eq!(values[0].as_array().unwrap().len(), 2);
    assert_eq!((values[1][0]["n"].as_i64(), values[1][0]["_id"].is_string()), (Some(2), true));
    assert_ne!(received[0].key, received[1].key);
    assert_eq!(received[2].body, "{\"n\":0}\n{\"n\":1}\n");
    assert!(received[2].head.to_ascii_lowercase().contains("content-type: application/x-ndjson\r\n"));
}

#[test]
fn rows_of_two_epochs_are_not_in_one_request() {
    let receiver = Receiver::start(&[]);
    let mut sink = sink(&receiver, "body: array\nin_flight: 1");
    for epoch in [3, 4] {
        sink.at_epoch(epoch);
        sink.write(&rows(2)).unwrap();
    }
    sink.commit(5).unwrap();
    assert_eq!(receiver.received().len(), 2);
}

#[test]
fn secrets_are_sent_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let no = answer_of("403 Forbidden", "", "you sent Bearer hunter22");
    let receiver = Receiver::start(&[&no]);
    std::fs::write(folder.path().join("url"), format!("http://{}/hooks/s3cr3t\n", receiver.address)).unwrap();
    std::fs::write(folder.path().join("token"), "hunter22\n").unwrap();
    let options = "url: {secret_file: url}\nheaders: {Authorization: {secret_file: token, prefix: 'Bearer '}, X-Line: '4'}";
    let mut sink = (bind(folder.path(), options).make)().unwrap();
    let letters = deliver(sink.as_mut(), 0, 1);
    let head = receiver.received()[0].head.to_ascii_lowercase();
    assert!(head.starts_with("post /hooks/s3cr3t "), "{head}");
    assert!(head.contains("authorization: bearer hunter22\r\n") && head.contains("x-line: 4\r\n"), "{head}");
    let detail = &letters[0].1.detail;
    assert!(
        detail.contains(" answered 403") && !detail.contains("hunter22") && !detail.contains("s3cr3t"),
        "{detail}"
    );
}

/// A receiver that is away holds up the sink until that is called off, or until `retry` has passed.
#[test]
fn a_receiver_that_is_away_is_waited_for() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let bound = bind(Path::new("."), &format!("url: http://{address}"));
    let mut sink = (bound.make)().unwrap();
    let call_off = sink.call_off().unwrap();
    let caller = std::thread::spawn(move || call_off());
    sink.write(&rows(6)).unwrap();
    let error = sink.commit(1).unwrap_err().to_string();
    caller.join().unwrap();
    assert!(error.ends_with("it was called off while rows waited to be sent"), "{error}");
    let bound = bind(Path::new("."), &format!("url: http://{address}\nretry: 1ms"));
    let letters = deliver((bound.make)().unwrap().as_mut(), 2, 1);
    assert_eq!((letters.len(), &*letters[0].1.reason), (1, "undelivered"));
    assert!(letters[0].1.detail.contains("no connection: "), "{}", letters[0].1.detail);
}
