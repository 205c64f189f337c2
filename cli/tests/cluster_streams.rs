//! Workflows of a cluster that read streams of their workers, pipes and connections, with kills of any process; through the
//! built binary.
use crate::cluster::Cluster;
use crate::command::{Place, command, free_port};
use crate::journals::{sorted_lines, text};
use crate::processes::{children, gone, kill, same};
use rustix::fs::{CWD, FileType, OFlags, mknodat};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::Duration;
use tidemill_operators::journal::Journal;

const WORKFLOW: &str = "version: 1
name: streamed
sources:
  - id: events
    kind: jsonl
    journal: {}
    options: {path: PATH, columns: {key: text, at: int64, value: int64}, event_time: at, out_of_order: 1s}
operators:
  - {id: some, kind: filter, input: events, options: {where: \"value % 7 != 3\"}}
  - {id: counted, kind: window, input: some, options: {size: 1s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl, metadata: true}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
run: {tick: 10ms, checkpoint_every: 1}
checkpoint: {interval: 100ms}
";

const PLAN: &str = "version: 1
workflow: {name: streamed}
tick: 10ms
checkpoint_every: 1
workers:
  - {id: edge, tier: edge, worker_type: small}
  - {id: hub, tier: hub, worker_type: small}
stages:
  - {id: events, operator: events, worker: edge}
  - {id: some, operator: some, worker: edge}
  - {id: counted, operator: counted, worker: hub}
  - {id: rows, operator: rows, worker: edge}
  - {id: table, operator: table, worker: hub}
classes:
  - {id: 0, share: 1, route: {events: events, some: some, counted: counted, rows: rows, table: table}}
edges:
  - {from: events, to: some}
  - {from: some, to: counted}
  - {from: some, to: rows}
  - {from: counted, to: table}
";

/// With a pipe that the worker reads.
fn place() -> Place {
    let place = Place::empty("streamed");
    let pipe = place.path("events.pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    let path = format!("{}, stream: until_end", pipe.display());
    place.write("workflow.yaml", WORKFLOW.replace("PATH", &path));
    place.write("plan.yaml", PLAN);
    place
}

/// Outputs of one process that reads everything at once.
fn undisturbed(text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let place = Place::empty("streamed");
    place.write("workflow.yaml", WORKFLOW.replace("PATH", "'-'"));
    let mut child = command(&["run", &place.argument("workflow.yaml"), "--quiet"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    outputs(&place, ["", ""])
}

/// Content of the files in these folders.
fn outputs(place: &Place, folders: [&str; 2]) -> Vec<(&'static str, Vec<u8>)> {
    let [rows, counted] = ["out/rows.jsonl", "out/counted.csv"];
    let read = |folder: &str, file: &str| std::fs::read(place.path(folder).join(file)).unwrap();
    vec![(rows, sorted_lines(&read(folders[0], rows))), (counted, read(folders[1], counted))]
}

fn submit(cluster: &Cluster) {
    cluster.submit().expect(0);
}

fn arrived(cluster: &Cluster) -> u64 {
    cluster.run_of("streamed")["arrived"].as_u64().unwrap()
}

fn wait(cluster: &Cluster, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..450 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = cluster.ask(&["events"]).stdout + &cluster.ask(&["logs", "streamed"]).stdout;
    panic!("{what}: not within a minute\n{output}");
}

/// Bytes of the stream in the journal on the worker's disk.
fn journalled(place: &Place) -> u64 {
    let folder = place.path("w-edge/runs/streamed/.kept/journals/events");
    Journal::look(&folder).ok().flatten().map_or(0, |extent| extent.end)
}

/// The worker's reading process, its agent and the controller are killed during the stream; the outputs must not show it.
#[test]
#[ignore = "long: make test-long"]
fn a_stream_of_a_worker_is_read_on_whatever_is_killed() {
    let text = text("jsonl");
    let mut cluster = Cluster::start_in(place(), &["edge", "hub"]);
    let pipe = cluster.place.path("events.pipe");
    let flags = OFlags::NONBLOCK.bits() as i32;
    // Held open, so that its content stays.
    let held = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&pipe).unwrap();
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    submit(&cluster);
    let run = cluster.run_of("streamed");
    let promises = run["promises"].as_array().unwrap();
    assert!(promises.len() == 2 && promises.iter().all(|one| one["guarantee"] == "exactly once"), "{run}");
    let mut parts = text.as_bytes().chunks(text.len() / 8 + 1);
    let feed = |cluster: &Cluster, writer: &mut std::fs::File, part: &[u8], is_there: bool| {
        let before = arrived(cluster);
        writer.write_all(part).unwrap();
        if is_there {
            wait(cluster, "more records", || arrived(cluster) > before);
        }
    };
    feed(&cluster, &mut writer, parts.next().unwrap(), true);
    wait(&cluster, "it runs", || cluster.run_of("streamed")["state"] == "running");
    // A plan that moves the source away from its stream is refused, and a drain leaves it.
    let moved = PLAN.replace(
        "{id: events, operator: events, worker: edge}",
        "{id: events, operator: events, worker: hub}",
    );
    cluster.place.write("moved.yaml", moved);
    let output = cluster
        .ask(&["change", "streamed", "--plan", &cluster.place.argument("moved.yaml"), "--yes"])
        .expect(78);
    assert!(
        output.stderr.contains("source `events` reads the stream")
            && output.stderr.contains("leave it on `edge`"),
        "{}",
        output.stderr
    );

    let of_edge = children(cluster.workers[0].1.id());
    assert_eq!(of_edge.len(), 1, "{of_edge:?}");
    assert!(kill(of_edge[0]) && gone(of_edge[0]));
    feed(&cluster, &mut writer, parts.next().unwrap(), true);
    feed(&cluster, &mut writer, parts.next().unwrap(), true);
    assert!(journalled(&cluster.place) > 0);
    assert!(
        !cluster.place.path("controller/runs/streamed/state/journals").exists(),
        "it is not the controller's"
    );

    let (name, mut agent) = cluster.workers.remove(0);
    let of_edge = children(agent.id());
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(!of_edge.is_empty() && of_edge.iter().all(|pid| gone(*pid)), "a process outlives its agent");
    // No other worker may take the stream, and it is not lost.
    cluster.until("it waits for its worker", |cluster| {
        cluster.run_of("streamed")["waits_for"].to_string().contains("worker edge")
    });
    let waiting = parts.next().unwrap().to_vec();
    let mut of_thread = writer.try_clone().unwrap();
    // It blocks until the pipe is read.
    let sender = std::thread::spawn(move || of_thread.write_all(&waiting).unwrap());
    cluster.start_worker(&name);
    sender.join().unwrap();
    feed(&cluster, &mut writer, parts.next().unwrap(), true);

    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    writer.write_all(parts.next().unwrap()).unwrap();
    cluster.start_controller();
    feed(&cluster, &mut writer, parts.next().unwrap(), true);
    for part in parts {
        writer.write_all(part).unwrap();
    }
    drop((writer, held));
    wait(&cluster, "it is complete", || cluster.run_of("streamed")["state"] == "complete");
    let found = outputs(&cluster.place, ["w-edge/runs/streamed/edge", "w-hub/runs/streamed/hub"]);
    same(&found, &undisturbed(&text));
    let journal = cluster.place.path("w-edge/runs/streamed/.kept/journals/events");
    wait(&cluster, "nobody needs it any more", || !journal.exists());
}

/// Lines of a connection that are in the journal come once, for any kill; a sensor that reconnects is read again.
fn is_heard_again(kills: usize) {
    let port = free_port();
    let place = Place::empty("streamed");
    let workflow = WORKFLOW
        .replace("kind: jsonl\n    journal", "kind: tcp\n    journal")
        .replace("path: PATH", &format!("listen: '127.0.0.1:{port}'"));
    place.write("workflow.yaml", workflow);
    place.write("plan.yaml", PLAN);
    let cluster = Cluster::start_in(place, &["edge", "hub"]);
    submit(&cluster);
    const MANY: usize = 5_000;
    let send = |first: usize| {
        let lines: String = (first..first + MANY)
            .map(|n| {
                format!(
                    "{{\"key\": \"k{}\", \"at\": {}, \"value\": {n}}}\n",
                    n % 3,
                    1_700_000_000_000usize + n
                )
            })
            .collect();
        wait(&cluster, "somebody listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(lines.as_bytes()).unwrap();
        lines.len() as u64
    };
    let mut bytes = 0;
    for round in 0..kills {
        bytes += send(round * MANY);
        wait(&cluster, "all of it in the journal", || journalled(&cluster.place) >= bytes);
        let of_edge = children(cluster.workers[0].1.id());
        assert!(of_edge.len() == 1 && kill(of_edge[0]), "{of_edge:?}");
        // Its agent has noticed the end: only then the port is free.
        wait(&cluster, "another process", || {
            children(cluster.workers[0].1.id()).iter().any(|pid| *pid != of_edge[0])
        });
    }
    send(kills * MANY);
    let passed = |n: &usize| n % 7 != 3;
    let all = (0..(kills + 1) * MANY).filter(passed).count();
    let rows = cluster.place.path("w-edge/runs/streamed/edge/out/rows.jsonl");
    let read = || std::fs::read_to_string(&rows).unwrap_or_default();
    wait(&cluster, "all, though nothing follows them", || read().lines().count() == all);
    cluster.ask(&["cancel", "streamed"]).expect(0);
    wait(&cluster, "it is cancelled", || cluster.run_of("streamed")["state"] == "cancelled");
    let values: Vec<usize> = read()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["value"].as_u64().unwrap() as usize)
        .collect();
    let expected: Vec<usize> = (0..(kills + 1) * MANY).filter(passed).collect();
    assert!(values == expected, "{} values", values.len());
}

#[test]
fn a_connection_of_a_worker_is_heard_again() {
    is_heard_again(1);
}

#[test]
#[ignore = "long: make test-long"]
fn connections_of_a_worker_are_heard_again_after_every_kill() {
    is_heard_again(3);
}

#[test]
fn streams_that_nobody_could_go_on_with_are_refused_with_what_to_write() {
    let cluster = Cluster::start_in(place(), &["edge", "hub"]);
    let pipe = cluster.place.path("events.pipe").display().to_string();
    let refused = |from: &str, to: &str, words: &[&str]| {
        let written = WORKFLOW.replace("PATH", &format!("{pipe}, stream: until_end"));
        assert!(written.contains(from));
        cluster.place.write("workflow.yaml", written.replace(from, to));
        let output = cluster.submit().expect(78).stderr;
        words.iter().for_each(|word| assert!(output.contains(word), "{word}: {output}"));
    };
    refused("    journal: {}\n", "", &["`journal: {}`"]);
    refused(&pipe, "events.pipe", &["its absolute path"]);
    refused(&format!("{pipe}, stream: until_end"), "'-'", &["standard input", "kind `tcp`"]);
}
