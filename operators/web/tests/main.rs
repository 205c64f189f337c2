//! Services over real sockets: a source, a sink that answers it, and clients.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod webhook;
mod websocket;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidemill_operators::api::{BoundSource, DeadLetter, Sink, Source, SourceRead};
use tidemill_operators::bind::{BoundWorkflow, Choice, bind_workflow};
use tidemill_operators::record::{first_records, source_id};
use tidemill_operators::registry::Registry;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::{span::SourceFile, yaml};

fn bind(folder: &Path, text: &str) -> Result<BoundWorkflow, Diagnostics> {
    let mut registry = Registry::builtin();
    tidemill_web::register(&mut registry);
    let parsed = yaml::parse(&SourceFile::new("workflow.yaml", text))?;
    let mut workflow: tidemill_spec::workflow::Workflow = parsed.deserialize_into()?;
    workflow.directory.0 = folder.into();
    bind_workflow(&workflow, &registry, |_| Choice::default())
}

/// An address that nobody listens at.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Sends a request and returns the whole answer.
fn ask(address: &str, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("{head} HTTP/1.1\r\nHost: a\r\nX-Key: a1\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {length}\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn post(address: &str, body: &str) -> JoinHandle<String> {
    let (address, body) = (address.to_owned(), body.to_owned());
    std::thread::spawn(move || ask(&address, "POST /", body.as_bytes()))
}

/// A workflow of a service, whose records the test itself takes and answers.
struct Service {
    address: String,
    source: BoundSource,
    reader: Option<Box<dyn Source>>,
    sink: Option<Box<dyn Sink>>,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start(options: &str, sink: &str) -> Self {
        let (folder, address) = (tempfile::tempdir().unwrap(), free());
        let text = format!(
            "version: 1\nname: service\n\
             sources: [{{id: requests, kind: http, options: {{listen: '{address}', {options}}}}}]\n\
             sinks: [{{id: answers, input: requests, {sink}}}]\n"
        );
        let bound = bind(folder.path(), &text).unwrap();
        let source = bound.sources["requests"].clone();
        source.requests.as_ref().unwrap().begin_reading(0, 0);
        let reader = (source.make)().unwrap();
        let sink = (bound.sinks["answers"].make)().unwrap();
        Self { address, source, reader: Some(reader), sink: Some(sink), _folder: folder }
    }

    fn of_numbers(options: &str) -> Self {
        let sink = "kind: http, options: {answers: requests}";
        Self::start(&format!("columns: {{n: int64}}, {options}"), sink)
    }

    /// Waits for a batch of records.
    fn read(&mut self) -> arrow_array::RecordBatch {
        loop {
            match self.reader.as_mut().unwrap().read(100, 1 << 20).unwrap() {
                SourceRead::Rows { payload, .. } if payload.num_rows() == 0 => {}
                SourceRead::Rows { payload, times, .. } => {
                    assert!(times.unwrap().iter().all(|time| *time > 1_600_000_000_000_000));
                    return payload;
                }
                SourceRead::Idle { .. } => {
                    panic!("the run counts it as a record: numbers differ from then on")
                }
                SourceRead::End => panic!("it has no end"),
            }
        }
    }
}

#[test]
fn silence_is_no_record() {
    let mut service = Service::of_numbers("");
    let read = service.reader.as_mut().unwrap().read(100, 1 << 20).unwrap();
    assert!(matches!(&read, SourceRead::Rows { payload, .. } if payload.num_rows() == 0), "{read:?}");
}

#[test]
fn requests_are_records_and_rows_are_answers() {
    let mut service = Service::of_numbers("");
    let client = post(&service.address, "{\"n\": 7}");
    let payload = service.read();
    assert_eq!(payload.num_rows(), 1);
    let batch = first_records(&payload).unwrap();
    service.sink.as_mut().unwrap().write(&batch).unwrap();
    let answer = client.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/json"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n{\"n\":7}\n"), "{answer}");
}

#[test]
fn a_record_without_a_row_has_an_answer_too() {
    let mut service = Service::of_numbers("");
    let client = post(&service.address, "{\"n\": 7}");
    service.read();
    service.source.requests.as_ref().unwrap().begin_epoch(1, 1);
    service.sink.as_mut().unwrap().commit(1).unwrap();
    let answer = client.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.contains("\"error\":\"no_result\""), "{answer}");
}

#[test]
fn all_rows_of_a_record_are_one_answer() {
    let sink = "kind: http, options: {answers: requests, rows: all}";
    let mut service = Service::start("columns: {n: int64}", sink);
    let client = post(&service.address, "{\"n\": 7}");
    let batch = first_records(&service.read()).unwrap();
    service.source.requests.as_ref().unwrap().begin_epoch(1, 1);
    let sink = service.sink.as_mut().unwrap();
    sink.write(&batch).unwrap();
    sink.write(&batch).unwrap();
    sink.commit(1).unwrap();
    let answer = client.join().unwrap();
    assert!(answer.ends_with("\r\n\r\n[{\"n\":7},{\"n\":7}]\n"), "{answer}");
}

#[test]
fn wrong_requests_get_the_place_of_the_finding() {
    let service = Service::of_numbers("max_body: 100B, path: /score");
    for (head, body, status, text) in [
        ("POST /score", "{\n  \"n\": true}", 400, "\"column\":8"),
        ("POST /score", "{\n  \"n\": true}", 400, "\"line\":2"),
        ("POST /score", "{\"m\": 1}", 400, "there is no field `n`"),
        ("POST /score", "", 400, "not a JSON object"),
        ("GET /score", "", 405, "allow: POST"),
        ("POST /", "{}", 404, "send requests to `/score`"),
        ("POST /score", &"x".repeat(101), 413, "at most 100 bytes"),
    ] {
        let answer = ask(&service.address, head, body.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head} {body}: {answer}");
        assert!(answer.contains(text), "{head} {body}: {answer}");
    }
}

#[test]
fn too_many_requests_are_refused_and_the_end_is_told() {
    let mut service = Service::of_numbers("max_waiting: 1");
    let first = post(&service.address, "{\"n\": 1}");
    service.read();
    let answer = ask(&service.address, "POST /", b"{\"n\": 2}");
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    assert_eq!(service.source.feeds.as_ref().unwrap().status()[0].drops["busy"], 1);
    service.reader = None;
    let answer = first.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(TcpStream::connect(&service.address).is_err(), "the port is closed");
}

#[test]
fn bodies_that_still_arrive_take_their_bytes_from_the_others() {
    let service = Service::of_numbers("");
    let connect = || TcpStream::connect(&service.address).unwrap();
    // Four bodies of 16 MiB may wait; these come without their end.
    let part = vec![b' '; 15 << 20];
    let slow: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = connect();
            write!(stream, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 16 << 20).unwrap();
            stream.write_all(&part).unwrap();
            stream
        })
        .collect();
    // A client that asks first whether it may send its body.
    let first_line = || {
        let mut stream = connect();
        let length = 8 << 20;
        let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\n";
        write!(stream, "{head}Content-Length: {length}\r\n\r\n").unwrap();
        let mut answer = [0; 400];
        let read = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    };
    let wait_for = |status: &str| {
        let answer = (0..20_000).map(|_| first_line()).find(|answer| answer.starts_with(status));
        answer.unwrap_or_else(|| panic!("there was no answer {status}"))
    };
    let answer = wait_for("HTTP/1.1 429 ");
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    assert!(service.source.feeds.as_ref().unwrap().status()[0].drops["busy"] >= 1);
    let answer = ask(&service.address, "POST /", b"[]");
    assert!(answer.starts_with("HTTP/1.1 400 "), "there is room for a short one: {answer}");
    drop(slow);
    wait_for("HTTP/1.1 100 ");
}

#[test]
fn requests_that_nobody_waits_for_keep_no_place() {
    let mut service = Service::of_numbers("max_waiting: 1, timeout: 10ms");
    for is_read in [false, true, true, false] {
        let client = post(&service.address, "{\"n\": 1}");
        if is_read {
            while !client.is_finished() {
                service.reader.as_mut().unwrap().read(100, 1 << 20).unwrap();
            }
        }
        let answer = client.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    }
    let status = service.source.feeds.as_ref().unwrap().status();
    assert_eq!(
        status[0].received,
        status[0].emitted + status[0].waiting + status[0].drops.values().sum::<u64>()
    );
    assert_eq!(status[0].waiting, 0);
}

#[test]
fn a_client_that_is_gone_keeps_no_place() {
    let mut service = Service::of_numbers("max_waiting: 1");
    let mut gone = TcpStream::connect(&service.address).unwrap();
    write!(gone, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n{{\"n\": 1}}").unwrap();
    let feeds = service.source.feeds.clone().unwrap();
    while feeds.status()[0].waiting == 0 {
        std::thread::yield_now();
    }
    drop(gone);
    let address = service.address.clone();
    let client = std::thread::spawn(move || {
        let mut answer = String::new();
        for _ in 0..20_000 {
            answer = ask(&address, "POST /", b"{\"n\": 2}");
            if !answer.starts_with("HTTP/1.1 429 ") {
                break;
            }
        }
        answer
    });
    while !client.is_finished() {
        let read = service.reader.as_mut().unwrap().read(100, 1 << 20).unwrap();
        let SourceRead::Rows { payload, .. } = read else { continue };
        // The record of the first client may be read before it is seen that it is gone. It gets no answer.
        if payload.num_rows() > 0 && payload.column(0).as_primitive::<Int64Type>().value(0) == 2 {
            bury(&service, "no");
        }
    }
    let answer = client.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 422 "), "{answer}");
}

/// Makes a dead letter of the record that was read last.
fn bury(service: &Service, detail: &str) {
    let sequence = service.source.feeds.as_ref().unwrap().status()[0].emitted - 1;
    service.source.requests.as_ref().unwrap().bury(&DeadLetter {
        id: Some(source_id(0, sequence)),
        time: None,
        reason: "python_error".into(),
        detail: detail.to_owned(),
        values: Default::default(),
    });
}

#[test]
fn a_dead_letter_is_told_in_a_line() {
    let mut service = Service::of_numbers("");
    for detail in ["ValueError: no\nTraceback:\n  File \"/srv/ops.py\", line 3", &"ä".repeat(300)] {
        let client = post(&service.address, "{\"n\": 1}");
        service.read();
        bury(&service, detail);
        let answer = client.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 422 "), "{answer}");
        let line = if detail.starts_with('V') { "ValueError: no".to_owned() } else { "ä".repeat(200) };
        let body = format!("\r\n\r\n{{\"error\":\"python_error\",\"detail\":\"{line}\"}}\n");
        assert!(answer.ends_with(&body), "{answer}");
    }
}

#[test]
fn no_answer_in_time_is_told() {
    let mut service = Service::of_numbers("timeout: 10ms");
    let client = post(&service.address, "{\"n\": 1}");
    service.read();
    let answer = client.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
}

#[test]
fn without_a_sink_that_answers_records_are_pushed() {
    let mut service = Service::start("body: audio", "kind: stdout");
    let answer = ask(&service.address, "POST /", b"hello");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("audio_unreadable"), "{answer}");
    let mut wav =
        b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data".to_vec();
    wav.extend([4, 0, 0, 0, 1, 0, 2, 0]);
    let answer = ask(&service.address, "POST /", &wav);
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let payload = service.read();
    let keys: Arc<dyn arrow_array::Array> = Arc::clone(payload.column(0));
    assert_eq!(tidemill_operators::record::text(&keys).unwrap().value(0), "a1");
    assert_eq!(payload.column(1).len(), 1);
}

#[test]
fn a_sink_answers_one_source_of_requests_whose_records_reach_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "n\n1\n").unwrap();
    let of = |sinks: &str| {
        let text = format!(
            "version: 1\nname: service\nsources:\n\
             - {{id: requests, kind: http, options: {{listen: '127.0.0.1:1', columns: {{n: int64}}}}}}\n\
             - {{id: file, kind: csv, options: {{path: a.csv, columns: {{n: int64}}}}}}\n\
             sinks:\n{sinks}"
        );
        bind(folder.path(), &text).err().expect("it is wrong").to_string()
    };
    let sink = |id: &str, input: &str, answers: &str| {
        format!("- {{id: {id}, kind: http, input: {input}, options: {{answers: {answers}}}}}\n")
    };
    let text = of(&sink("a", "requests", "request"));
    assert!(text.contains("`request` is not a source of requests") && text.contains("`requests`"), "{text}");
    let text = of(&sink("a", "file", "requests"));
    assert!(text.contains("no record of source `requests` reaches sink `a`"), "{text}");
    let text = of(&(sink("a", "requests", "requests") + &sink("b", "requests", "requests")));
    assert!(text.contains("sinks `a` and `b` both answer"), "{text}");
}
