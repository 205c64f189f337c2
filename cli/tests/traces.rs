//! Traces of records over processes, as a collector gets them; through the built binary.
use crate::command::{Outcome, Place, command};
use crate::processes::{outputs, place, same, undisturbed};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Data sent to a collector.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(String, Value)>>>);

impl Received {
    /// Listens; returns the address.
    fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let received = received.clone();
                std::thread::spawn(move || received.serve(&stream.unwrap()));
            }
        });
        format!("http://{address}")
    }

    /// Answers requests as long as the connection lasts.
    fn serve(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if lines.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body).unwrap();
            self.0.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap()));
            let mut stream = stream;
            stream
                .write_all(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}",
                )
                .unwrap();
        }
    }
}

#[derive(Debug)]
struct Span {
    id: String,
    parent: Option<String>,
    name: String,
    worker: String,
    begin: i128,
    end: i128,
}

/// The spans that were sent, by trace.
fn by_trace(received: &Received) -> BTreeMap<String, Vec<Span>> {
    let mut traces: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    let list = |value: &Value| value.as_array().unwrap().clone();
    for (head, document) in received.0.lock().unwrap().iter() {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
        assert!(head.contains("s3cret"), "{head}");
        for resource in list(&document["resourceSpans"]) {
            let attributes = list(&resource["resource"]["attributes"]);
            let attribute = |key: &str| {
                let found = attributes.iter().find(|one| one["key"] == key);
                found.unwrap_or_else(|| panic!("{key}: {resource}"))["value"]["stringValue"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            };
            assert_eq!(
                (attribute("service.name"), attribute("service.namespace")),
                ("tidemill".into(), "spread".into())
            );
            for span in list(&resource["scopeSpans"][0]["spans"]) {
                let text = |key: &str| span[key].as_str().map(str::to_owned);
                let time = |key: &str| text(key).unwrap().parse().unwrap();
                let trace = text("traceId").unwrap();
                assert!(trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit()), "{span}");
                assert_eq!(text("spanId").map(|id| id.len()), Some(16), "{span}");
                traces.entry(trace).or_default().push(Span {
                    id: text("spanId").unwrap(),
                    parent: text("parentSpanId"),
                    name: text("name").unwrap(),
                    worker: attribute("tidemill.worker"),
                    begin: time("startTimeUnixNano"),
                    end: time("endTimeUnixNano"),
                });
            }
        }
    }
    traces
}

fn run(place: &Place, endpoint: &str) -> Outcome {
    let [workflow, plan] = ["workflow.yaml", "plan.yaml"].map(|file| place.argument(file));
    let arguments =
        ["run", &workflow, "--plan", &plan, "--processes", "--otlp", endpoint, "--trace-share", "10%"];
    let output = command(&arguments).env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret").output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Every span has an existing parent, from the source on, over the processes of the workers.
#[test]
fn the_way_of_a_record_over_processes_is_one_trace() {
    let received = Received::default();
    let place = place();
    let printed = run(&place, &received.listen()).expect(0);
    assert!(
        !printed.stderr.contains("were not sent") && !printed.stderr.contains("s3cret"),
        "{}",
        printed.stderr
    );
    let traces = by_trace(&received);
    assert!((600..1300).contains(&traces.len()), "a tenth of 9000 records: {}", traces.len());
    let (mut names, mut crossing) = (BTreeSet::new(), 0);
    for (trace, spans) in &traces {
        let roots: Vec<&Span> = spans.iter().filter(|span| span.parent.is_none()).collect();
        assert!(roots.len() == 1 && roots[0].name.starts_with("source "), "{trace}: {spans:?}");
        for span in spans {
            assert!(span.begin <= span.end && span.end - span.begin < 600_000_000_000, "{trace}: {span:?}");
            if let Some(parent) = &span.parent {
                assert!(
                    spans.iter().any(|other| other.id == *parent),
                    "{trace}: no parent of {span:?} in {spans:?}"
                );
            }
            // By one clock, for every process.
            assert!(span.begin - roots[0].begin > -1_000_000_000, "{trace}: {span:?} before {:?}", roots[0]);
            names.insert(span.name.clone());
        }
        let workers: BTreeSet<&str> = spans.iter().map(|span| span.worker.as_str()).collect();
        crossing += usize::from(workers.len() >= 2);
    }
    assert!(crossing > 300, "{crossing} traces are of several processes");
    for name in [
        "source left",
        "source right",
        "compute some",
        "transfer some -> pair",
        "queue pair",
        "compute pair",
        "sink pairs",
        "transfer pair -> counted",
        "compute counted",
        "sink table",
    ] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i128;
    let newest = traces.values().flatten().map(|span| span.end).max().unwrap();
    assert!((now - newest).abs() < 600_000_000_000, "{newest}");
    // Dead letters of traced records have the name of the trace.
    let dead = std::fs::read_to_string(place.path("out/dead.jsonl")).unwrap();
    let letters = dead.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let named: Vec<String> =
        letters.filter_map(|letter| letter["values"]["trace_id"].as_str().map(str::to_owned)).collect();
    assert!(named.iter().all(|trace| traces.contains_key(trace)), "{named:?}");
    println!(
        "{} traces, {crossing} over processes, {} dead letters of {} traced",
        traces.len(),
        dead.lines().count(),
        named.len()
    );
}

/// All spans of a run are sent when it ends, including those since the last transmission.
#[test]
#[ignore = "long: make test-long"]
fn a_run_that_is_over_at_once_loses_no_span() {
    let place = Place::empty("spread");
    place.write(
        "workflow.yaml",
        "version: 1
name: spread
sources:
  - {id: numbers, kind: jsonl, options: {path: numbers.jsonl, columns: {n: int64}}}
operators:
  - {id: some, kind: filter, input: numbers, options: {where: n >= 0}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl}}
",
    );
    // Three spans of each are nearly the capacity of the queue.
    let count = 2_600;
    place.write("numbers.jsonl", (0..count).map(|n| format!("{{\"n\":{n}}}\n")).collect::<String>());
    let received = Received::default();
    let workflow = place.argument("workflow.yaml");
    let arguments = ["run", &workflow, "--otlp", &received.listen(), "--trace-share", "100%"];
    let output = command(&arguments).env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !printed.contains("not sent"), "{printed}");
    let traces = by_trace(&received);
    assert_eq!(traces.len(), count);
    for spans in traces.values() {
        let names: BTreeSet<&str> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, BTreeSet::from(["source numbers", "compute some", "sink rows"]), "{spans:?}");
    }
}

/// A collector that is away, or that accepts connections and stays silent, delays nothing and changes nothing.
#[test]
#[ignore = "long: make test-long"]
fn a_collector_that_is_away_is_no_hindrance() {
    let expected = undisturbed();
    let without_names = |place: &Place| {
        let mut found = outputs(place);
        let text = String::from_utf8(std::mem::take(&mut found[2].1)).unwrap();
        let lines = text.lines().map(|line| {
            let mut letter: Value = serde_json::from_str(line).unwrap();
            letter["values"].as_object_mut().unwrap().shift_remove("trace_id");
            serde_json::to_string(&letter).unwrap() + "\n"
        });
        found[2].1 = lines.collect::<String>().into_bytes();
        found
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let held = std::thread::spawn({
        let silent = silent.try_clone().unwrap();
        move || silent.incoming().take(1).map(|stream| stream.unwrap()).collect::<Vec<_>>()
    });
    for endpoint in [format!("http://{closed}"), format!("http://{}", silent.local_addr().unwrap())] {
        let place = place();
        let printed = run(&place, &endpoint).expect(0).stderr;
        assert!(printed.contains("spans of traces were not sent to the collector"), "{printed}");
        same(&without_names(&place), &expected);
    }
    drop(TcpStream::connect(silent.local_addr().unwrap()));
    assert_eq!(held.join().unwrap().len(), 1);
}

#[test]
fn an_endpoint_that_is_none_is_refused_with_what_to_write() {
    let place = place();
    let printed = run(&place, "localhost:4318").expect(78).stderr;
    assert!(
        printed.contains("not an address of a collector") && printed.contains("http://127.0.0.1:4318"),
        "{printed}"
    );
}
