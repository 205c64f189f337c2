//! A workflow as a service, end to end.
use crate::command::{Place, command, tidemill};
use crate::live::{end, interrupt, until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn ask(address: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn requests_get_the_rows_of_their_records() {
    let place = Place::empty("service");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = format!(
        "version: 1
name: service
sources:
  - {{id: requests, kind: http, options: {{listen: '{address}', columns: {{n: int64, of: int64}}}}}}
operators:
  - {{id: few, kind: filter, input: requests, options: {{where: n < 1000}}}}
  - {{id: part, kind: map, input: few, options: {{columns: {{part: n / of}}}}}}
sinks:
  - {{id: answers, kind: http, input: part, options: {{answers: requests}}}}
  - {{id: kept, kind: jsonl, input: part, options: {{path: out/kept.jsonl}}}}
run: {{tick: 20ms, dead_letters: out/dead.jsonl}}
"
    );
    place.write("workflow.yaml", text);
    let child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
    until(|| ask(&address, "{\"n\": 1, \"of\": 1}").is_ok());
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let address = address.clone();
            std::thread::spawn(move || {
                for round in 0..20 {
                    let n = client * 100 + round;
                    let answer = ask(&address, &format!("{{\"n\": {n}, \"of\": 1}}")).unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                    assert!(answer.trim_end().ends_with(&format!("\"part\":{n}}}")), "{n}: {answer}");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let answer = ask(&address, "{\"n\": 5000, \"of\": 1}").unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("no_result"), "{answer}");
    let answer = ask(&address, "{\"n\": 5, \"of\": 0}").unwrap();
    // 404 where its epoch is complete before the dead letter is known.
    assert!(
        ["422", "404"].iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status} "))),
        "{answer}"
    );
    let answer = ask(&address, "{\"n\": 5}").unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("no field `of`"), "{answer}");
    interrupt(&child);
    let (code, stdout, stderr) = end(child);
    assert_eq!(code, Some(130), "{stdout}{stderr}");
    let kept = place.read("out/kept.jsonl").lines().count();
    assert!(kept > 160, "{kept} rows\n{stdout}");
    assert!(TcpStream::connect(&address).is_err(), "the port is closed");
}

/// How many requests of its only source a run has received.
fn received(process: &str) -> u64 {
    let listed = tidemill(&["source", "ls", "--output", "json"]).expect(0).json();
    let runs = listed["runs"].as_array().unwrap();
    let run = runs.iter().find(|run| run["run"] == *process);
    run.map_or(0, |run| run["sources"]["requests"][0]["received"].as_u64().unwrap())
}

#[test]
fn a_request_that_waits_at_the_end_is_told() {
    let place = Place::empty("service-end");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: service
sources:
  - {{id: requests, kind: http, options: {{listen: '{address}', columns: {{n: int64}}}}}}
operators:
  - {{id: none, kind: filter, input: requests, options: {{where: n < 0}}}}
sinks:
  - {{id: answers, kind: http, input: none, options: {{answers: requests}}}}
run: {{tick: 30s}}
"
        ),
    );
    let child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
    until(|| TcpStream::connect(&address).is_ok());
    // Its epoch lasts for half a minute.
    let client = std::thread::spawn(move || ask(&address, "{\"n\": 1}").unwrap());
    let process = child.id().to_string();
    until(|| received(&process) == 1);
    interrupt(&child);
    let answer = client.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(end(child).0, Some(130));
}
