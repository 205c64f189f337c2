//! A run that sends its rows to a server of others, killed and continued; through the built binary.
use crate::command::{Place, command};
use crate::live::until;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Arc, Mutex};

const ROWS: usize = 600;

/// What a receiver knows.
#[derive(Default)]
struct Received {
    requests: usize,
    failures: usize,
    /// The bodies that were taken, with the keys of all their requests, also of those that failed.
    taken: BTreeSet<String>,
    keys: BTreeMap<String, BTreeSet<String>>,
}

/// Answers the requests of a connection: of five one with 503, of seven one not at all, and number 13 with 422.
fn answer(stream: TcpStream, received: &Mutex<Received>) -> std::io::Result<()> {
    let (mut reader, mut stream) = (BufReader::new(stream.try_clone()?), stream);
    loop {
        let (mut length, mut key) = (0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("idempotency-key", value)) => key = value.to_owned(),
                Some(_) => {}
                None if line == "\r\n" => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8(body).unwrap();
        let status = {
            let mut received = received.lock().unwrap();
            received.requests += 1;
            received.keys.entry(body.clone()).or_default().insert(key);
            let status = match received.requests {
                _ if body == "{\"n\":13}" => "422 Unprocessable Content",
                n if n % 7 == 0 => "",
                n if n % 5 == 0 => "503 Service Unavailable",
                _ => "204 No Content",
            };
            match status {
                "204 No Content" => drop(received.taken.insert(body)),
                _ => received.failures += 1,
            }
            status
        };
        if status.is_empty() {
            return Ok(());
        }
        write!(stream, "HTTP/1.1 {status}\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")?;
    }
}

#[test]
fn killed_runs_send_the_same_keys_again_and_every_row_arrives() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let received: Arc<Mutex<Received>> = Arc::default();
    let kept = Arc::clone(&received);
    // It ends with the test program.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let received = Arc::clone(&kept);
            std::thread::spawn(move || answer(stream, &received));
        }
    });
    let place = Place::empty("webhooks");
    let workflow = format!(
        "version: 1
name: webhooks
sources:
  - {{id: numbers, kind: jsonl, rate: 400/s, options: {{path: numbers.jsonl, columns: {{n: int64}}}}}}
sinks:
  - {{id: out, kind: webhook, input: numbers, options: {{url: 'http://{address}/in', in_flight: 8}}}}
run: {{tick: 20ms, checkpoint_every: 1, dead_letters: out/dead.jsonl}}
"
    );
    place.write("workflow.yaml", workflow);
    place.write("numbers.jsonl", (0..ROWS).map(|n| format!("{{\"n\": {n}}}\n")).collect::<String>());
    let start = || -> Child {
        let [workflow, state] = [&place.argument("workflow.yaml"), &place.argument("state")];
        let arguments = ["run", workflow, "--state", state, "--checkpoint-interval", "20ms"];
        command(&arguments).spawn().unwrap()
    };
    for round in 1..=3 {
        let mut child = start();
        until(|| received.lock().unwrap().taken.len() >= round * ROWS / 6);
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it was killed while it ran");
    }
    let output = start().wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        stdout.contains("out: at least once: sink `out` writes to `webhook`, which takes nothing back"),
        "{stdout}"
    );
    let received = received.lock().unwrap();
    let expected: BTreeSet<String> =
        (0..ROWS).filter(|n| *n != 13).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(received.taken, expected);
    assert!(received.failures > ROWS / 5, "{} failures", received.failures);
    let several: Vec<_> = received.keys.iter().filter(|(_, keys)| keys.len() != 1).collect();
    assert!(several.is_empty(), "{several:?}");
    let dead = place.read("out/dead.jsonl");
    assert_eq!(dead.lines().count(), 1, "{dead}");
    assert!(dead.contains("\"reason\":\"refused\"") && dead.contains("answered 422"), "{dead}");
}
