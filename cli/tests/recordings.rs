//! Recordings of live sources (`run --record`), and runs from them (`run --replay DIR`), through the built binary.
use crate::command::{Outcome, Place, command, free_port, root, tidemill};
use crate::live::until;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const OF_TCP: &str = "version: 1
name: readings
sources:
  - id: readings
    kind: tcp
    options: {listen: 127.0.0.1:PORT, connections: 2, columns: {site: text, celsius: float64, at: int64}, event_time: at}
operators:
  - id: per_site
    kind: window
    input: readings
    options: {size: 10s, group_by: [site], aggregates: [{function: count}, {function: mean, column: celsius}]}
sinks:
  - {id: averages, kind: jsonl, input: per_site, options: {path: out/averages.jsonl}}
  - {id: all, kind: jsonl, input: readings, options: {path: out/all.jsonl, metadata: true}}
run: {tick: 5ms}
";

const OF_STDIN: &str = "version: 1
name: numbers
sources:
  - {id: events, kind: jsonl, options: {path: '-', columns: {n: int64}}}
operators:
  - {id: odd, kind: filter, input: events, options: {where: \"n % 2 == 1\"}}
sinks:
  - {id: out, kind: jsonl, input: odd, options: {path: out/odd.jsonl}}
run: {tick: 5ms}
";

fn replay(place: &Place, more: &[&str]) -> Outcome {
    let (workflow, folder) = (place.argument("workflow.yaml"), place.argument("recording"));
    tidemill(&[&["run", &workflow, "--replay", &folder], more].concat())
}

fn start(place: &Place, more: &[&str]) -> Child {
    let (workflow, folder) = (place.argument("workflow.yaml"), place.argument("recording"));
    command(&[&["run", &workflow, "--record", &folder], more].concat()).stdin(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The bytes of the results, which are then deleted.
fn results(place: &Place, files: &[&str]) -> Vec<String> {
    let read = files.iter().map(|file| {
        let content = place.read(&format!("out/{file}"));
        std::fs::remove_file(place.path("out").join(file)).unwrap();
        content
    });
    read.collect()
}

/// Lines of two connections at the same time, whose order nobody knows before.
fn send_from_two(port: u16) {
    let mut connections: Vec<TcpStream> = Vec::new();
    for _ in 0..600 {
        if connections.len() == 2 {
            break;
        }
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => connections.push(stream),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    }
    let senders = connections.into_iter().enumerate().map(|(site, mut stream)| {
        std::thread::spawn(move || {
            for n in 0..2000u64 {
                let (celsius, at) = (n % 17, n * 50 + site as u64);
                writeln!(stream, "{{\"site\": \"s{site}\", \"celsius\": {celsius}, \"at\": {at}}}").unwrap();
                if n % 400 == 399 {
                    writeln!(stream, "{{\"site\": \"s{site}\", \"celsius\": \"cold\"}}").unwrap();
                }
            }
        })
    });
    let senders: Vec<_> = senders.collect();
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn a_replay_of_connections_gives_the_same_bytes_at_any_pace() {
    let place = Place::empty("recorded-tcp");
    let port = free_port();
    place.write("workflow.yaml", OF_TCP.replace("PORT", &port.to_string()));
    let run = start(&place, &[]);
    send_from_two(port);
    let told = ended(run).expect(0).stderr;
    assert!(told.contains("recorded 4 010 records, "), "{told}");
    let files = ["averages.jsonl", "all.jsonl"];
    let recorded = results(&place, &files);
    assert_eq!(recorded[1].lines().count(), 4000);
    assert!(recorded[0].lines().count() > 10, "{}", recorded[0]);
    for speed in [&[][..], &["--speed", "max"], &["--speed", "1"], &["--speed", "1000"]] {
        let told = replay(&place, speed).expect(0).stderr;
        assert!(told.contains("replays the recording") && !told.contains("until its end"), "{told}");
        assert!(recorded == results(&place, &files), "{speed:?}");
    }
    // Other operators may read the same records.
    place.change("workflow.yaml", "size: 10s", "size: 20s");
    replay(&place, &[]).expect(0);
    let changed = results(&place, &files);
    assert!(changed[0] != recorded[0] && changed[1] == recorded[1]);
}

/// Records 40 frames or silences of a camera with `run`, has the camera taken away, and compares a replay.
fn a_camera_is_replayed(place: &Place, source: &str, run: impl Fn(&mut Command), gone: impl FnOnce()) {
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: desks
sources:
  - {source}
operators:
  - {{id: counted, kind: map, input: desk, options: {{columns: {{camera: camera, frame: frame}}}}}}
  - id: rates
    kind: window
    input: counted
    options: {{size: 500ms, group_by: [camera], aggregates: [{{function: count}}, {{function: max, column: frame}}]}}
sinks:
  - {{id: out, kind: jsonl, input: counted, options: {{path: out/frames.jsonl, metadata: true}}}}
  - {{id: counts, kind: jsonl, input: rates, options: {{path: out/counts.jsonl}}}}
"
        ),
    );
    let (workflow, folder) = (place.argument("workflow.yaml"), place.argument("recording"));
    let mut command = command(&["run", &workflow, "--record", &folder, "--records", "40"]);
    run(&mut command);
    let told = ended(command.spawn().unwrap()).expect(0).stderr;
    assert!(told.contains("recorded 4"), "{told}");
    let recorded = results(place, &["frames.jsonl", "counts.jsonl"]);
    assert!(recorded[0].lines().count() > 20 && recorded[1].lines().count() > 1, "{recorded:?}");
    gone();
    replay(place, &[]).expect(0);
    assert!(recorded == results(place, &["frames.jsonl", "counts.jsonl"]));
}

/// The program that decodes pictures; a test is skipped without it.
fn ffmpeg() -> Option<PathBuf> {
    let found = tidemill_operators::video::program::find(root()).ok();
    if found.is_none() {
        eprintln!("skipped: there is no ffmpeg");
    }
    found
}

#[test]
fn frames_of_a_device_are_replayed_without_it() {
    let Some(real) = ffmpeg() else { return };
    let place = Place::empty("recorded-device");
    let (device, script) = (place.path("video0"), place.path("device.sh"));
    place.write("device.sh", include_str!("../../operators/live/tests/device.sh"));
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.write("video0", "");
    let options = format!("{{device: {}, scale: 64x48, idle: 100ms}}", device.display());
    let source = format!("{{id: desk, kind: v4l2, options: {options}}}");
    let run = |command: &mut Command| {
        command.env("TIDEMILL_FFMPEG", &script).env("REAL", &real);
    };
    a_camera_is_replayed(&place, &source, run, || std::fs::remove_file(&device).unwrap());
}

#[test]
fn frames_of_a_streaming_camera_are_replayed_without_it() {
    let Some(real) = ffmpeg() else { return };
    let script = root().join("operators/live/tests/rtsp_server.py");
    let mut python = Command::new("/usr/bin/python3");
    python.arg(script).arg("0").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut server) = python.spawn() else {
        eprintln!("skipped: there is no Python");
        return;
    };
    let mut told = String::new();
    // Open to the end: the server tells more.
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    lines.read_line(&mut told).unwrap();
    let Some(port) = told.trim().strip_prefix("port ") else {
        server.wait().unwrap();
        eprintln!("skipped: the packages of the server of test pictures are missing");
        return;
    };
    let place = Place::empty("recorded-camera");
    let source =
        format!("{{id: desk, kind: rtsp, options: {{url: 'rtsp://127.0.0.1:{port}/plain', idle: 1s}}}}");
    let run = |command: &mut Command| {
        command.env("TIDEMILL_FFMPEG", &real);
    };
    let gone = move || {
        server.kill().unwrap();
        server.wait().unwrap();
    };
    a_camera_is_replayed(&place, &source, run, gone);
}

#[test]
fn a_killed_run_is_replayed_up_to_its_last_complete_epoch() {
    let place = Place::empty("recorded-killed");
    place.write("workflow.yaml", OF_STDIN);
    let mut run = start(&place, &["--quiet"]);
    let mut rows = run.stdin.take().unwrap();
    let written = || std::fs::read_to_string(place.path("out/odd.jsonl")).unwrap_or_default();
    for n in 0..50_usize {
        writeln!(rows, "{{\"n\": {n}}}").unwrap();
        // So there are several epochs.
        until(|| written().lines().count() == n.div_ceil(2));
    }
    run.kill().unwrap();
    assert_eq!(run.wait().unwrap().code(), None, "it was killed");
    let before = results(&place, &["odd.jsonl"]).remove(0);
    let told = replay(&place, &[]).expect(0).stderr;
    assert!(told.contains("up to its last complete epoch"), "{told}");
    let after = results(&place, &["odd.jsonl"]).remove(0);
    assert!(before.starts_with(&after) && after.lines().count() >= 23, "{after}");
}

#[test]
fn an_interrupted_run_is_replayed_to_its_last_record() {
    let place = Place::empty("recorded-interrupted");
    place.write("workflow.yaml", OF_STDIN);
    let mut run = start(&place, &[]);
    let mut rows = run.stdin.take().unwrap();
    for n in 0..9 {
        writeln!(rows, "{{\"n\": {n}}}").unwrap();
    }
    until(|| {
        std::fs::read_to_string(place.path("out/odd.jsonl")).is_ok_and(|text| text.lines().count() == 4)
    });
    crate::live::interrupt(&run);
    let told = ended(run).expect(130).stderr;
    assert!(told.contains("recorded 9 records"), "{told}");
    let recorded = results(&place, &["odd.jsonl"]);
    let told = replay(&place, &[]).expect(0).stderr;
    assert!(!told.contains("killed"), "{told}");
    assert_eq!(recorded, results(&place, &["odd.jsonl"]));
}

/// Sources without a form for journals are recorded row by row.
#[test]
fn requests_that_nobody_answers_are_replayed() {
    let place = Place::empty("recorded-requests");
    let port = free_port();
    let workflow = "version: 1
name: pushed
sources:
  - {id: pushed, kind: http, options: {listen: 127.0.0.1:PORT, columns: {n: int64}}}
operators:
  - {id: sums, kind: window, input: pushed, options: {size: 50ms, aggregates: [{function: sum, column: n}]}}
sinks:
  - {id: out, kind: jsonl, input: pushed, options: {path: out/pushed.jsonl, metadata: true}}
  - {id: sums_out, kind: jsonl, input: sums, options: {path: out/sums.jsonl, metadata: true}}
run: {tick: 5ms}
";
    place.write("workflow.yaml", workflow.replace("PORT", &port.to_string()));
    let run = start(&place, &["--records", "6"]);
    let push = |n: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let body = format!("{{\"n\": {n}}}");
        let length = body.len();
        let head =
            format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 202").then_some(())
    };
    for n in 0..6 {
        until(|| push(n).is_some());
    }
    let told = ended(run).expect(0).stderr;
    assert!(told.contains("recorded 6"), "{told}");
    let files = ["pushed.jsonl", "sums.jsonl"];
    let recorded = results(&place, &files);
    assert!(recorded[0].lines().count() == 6 && !recorded[1].is_empty(), "{recorded:?}");
    for speed in ["max", "1"] {
        replay(&place, &["--speed", speed]).expect(0);
        assert!(recorded == results(&place, &files), "{speed}");
    }
}

/// A small recording of ten numbers.
fn recorded(name: &str) -> Place {
    let place = Place::empty(name);
    place.write("workflow.yaml", OF_STDIN);
    let mut run = start(&place, &[]);
    let mut rows = run.stdin.take().unwrap();
    for n in 0..10 {
        writeln!(rows, "{{\"n\": {n}}}").unwrap();
    }
    drop(rows);
    ended(run).expect(0);
    place
}

#[test]
fn damaged_recordings_are_refused() {
    let place = recorded("recorded-damaged");
    let refused = |place: &Place, code: i32, message: &str| {
        let told = replay(place, &["--speed", "1"]).expect(code).stderr;
        assert!(told.contains(message), "{message}: {told}");
    };
    let segment = "recording/journals/events/00000000000000000000.journal";
    let whole = std::fs::read(place.path(segment)).unwrap();
    let mut changed = whole.clone();
    let at = changed.windows(3).position(|part| part == b"\"n\"").unwrap();
    changed[at] ^= 1;
    place.write(segment, &changed);
    // Only a record that others follow is known to be damaged; the last one may be torn, and then records are missing.
    let told = replay(&place, &[]);
    assert!(told.code != Some(0) && told.stderr.contains("recording"), "{told:?}");
    std::fs::remove_file(place.path(segment)).unwrap();
    refused(&place, 65, "damaged");
    std::fs::remove_dir_all(place.path("recording/journals")).unwrap();
    refused(&place, 65, "the recording is not whole");
    place.write(segment, &whole);
    place.write("recording/arrivals/events.jsonl", "nonsense\n{}\n");
    refused(&place, 65, "events.jsonl`, line 1");
    place.change("recording/recording.json", "\"recording\": 1", "\"recording\": 9");
    refused(&place, 65, "its version is 9");
    std::fs::remove_file(place.path("recording/recording.json")).unwrap();
    refused(&place, 65, "is no recording: it has no `recording.json`");
    std::fs::remove_file(place.path("recording/epochs.jsonl")).unwrap();
    refused(&place, 65, "is no recording");
}

#[test]
fn recordings_of_other_workflows_are_refused() {
    let place = recorded("recorded-others");
    place.change("workflow.yaml", "n: int64", "n: int64, m: text");
    let told = replay(&place, &[]).expect(78).stderr;
    assert!(told.contains("source `events` gives other columns"), "{told}");
    place.write("workflow.yaml", OF_STDIN.replace("events", "numbers"));
    let told = replay(&place, &[]).expect(78).stderr;
    assert!(told.contains("another workflow"), "{told}");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_leaves_nothing() {
    let place = Place::empty("unrecorded");
    let refused = |workflow: &str, more: &[&str], message: &str| {
        place.write("workflow.yaml", workflow);
        let told = ended(start(&place, more)).expect(2).stderr;
        assert!(told.contains(message), "{told}");
        assert!(!place.path("recording").exists(), "nothing is left");
    };
    let service = "version: 1
name: rating
sources:
  - {id: requests, kind: http, options: {listen: 127.0.0.1:PORT, columns: {celsius: float64}}}
operators:
  - {id: rate, kind: map, input: requests, options: {columns: {warm: celsius > 20.0}}}
sinks:
  - {id: answers, kind: http, input: rate, options: {answers: requests}}
";
    let service = service.replace("PORT", &free_port().to_string());
    refused(&service, &[], "sink `answers` answers the requests of `requests`");
    let files = OF_STDIN.replace("'-'", "numbers.jsonl");
    place.write("numbers.jsonl", "{\"n\": 1}\n");
    refused(&files, &[], "there is nothing to record");
    refused(OF_STDIN, &["--record-size", "1MiB"], "64");
    refused(OF_STDIN, &["--state", "state"], "--state");
    // A run that does not start.
    place.write("workflow.yaml", OF_STDIN.replace("out/odd.jsonl", "workflow.yaml/odd.jsonl"));
    let failed = ended(start(&place, &[]));
    assert!(failed.code != Some(0) && !place.path("recording").exists(), "{failed:?}");
    // An earlier recording stays.
    place.write("workflow.yaml", OF_STDIN);
    place.write("recording/recording.json", "{}");
    let told = ended(start(&place, &[])).expect(2).stderr;
    assert!(told.contains("is not empty") && place.read("recording/recording.json") == "{}", "{told}");
    let told = replay(&place, &["--speed", "fast"]).expect(2).stderr;
    assert!(told.contains("four times"), "{told}");
}

#[test]
fn a_recording_that_is_full_ends_the_run() {
    let place = Place::empty("recorded-full");
    place.write("workflow.yaml", OF_STDIN);
    let mut run = start(&place, &["--record-size", "64MiB"]);
    let mut rows = run.stdin.take().unwrap();
    // Nobody reads any more when it is full.
    let blank = " ".repeat(500_000);
    let sender = std::thread::spawn(move || {
        (0..400).take_while(|n| writeln!(rows, "{{\"n\": {n}{blank}}}").is_ok()).count()
    });
    let told = ended(run).expect(0).stderr;
    assert!(told.contains("has come to its limit of 64MiB"), "{told}");
    assert!(sender.join().unwrap() < 400);
    let size = |folder: &str| {
        let files = std::fs::read_dir(place.path(folder)).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    assert!(size("recording/journals/events") <= 64 << 20);
    let recorded = results(&place, &["odd.jsonl"]);
    replay(&place, &[]).expect(0);
    assert_eq!(recorded, results(&place, &["odd.jsonl"]));
    let description: Value = serde_json::from_str(&place.read("recording/recording.json")).unwrap();
    assert_eq!(description["ended"], true);
}
