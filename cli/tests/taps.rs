//! Records of a running workflow from outside: `tidemill tap`.
use crate::command::{Place, command, root, tidemill};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

const WORKFLOW: &str = "version: 1
name: numbers
sources:
  - {id: events, kind: jsonl, options: {path: '-', columns: {n: int64, word: text}}}
operators:
  - {id: odd, kind: filter, input: events, options: {where: \"n % 2 == 1\"}}
sinks:
  - {id: out, kind: jsonl, input: odd, options: {path: out.jsonl}}
";

/// A process that ends with the test.
struct Ended(Child);

impl Ended {
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }

    fn code(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a workflow, and returns when it can be tapped.
fn start(place: &Place, workflow: &str, stdin: Stdio) -> Ended {
    place.write("workflow.yaml", workflow);
    let child = command(&["run", &place.argument("workflow.yaml"), "--quiet"]).stdin(stdin).spawn().unwrap();
    let run = Ended(child);
    for _ in 0..600 {
        let probe = tidemill(&["tap", "no edge", "--process", &run.id()]);
        assert_eq!(probe.code, Some(66), "{probe:?}");
        if probe.stderr.contains("it has ") {
            return run;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the run cannot be tapped");
}

/// A tap that is open: nothing that passes from now on is left out.
struct Tap {
    process: Ended,
    out: BufReader<ChildStdout>,
    told: BufReader<ChildStderr>,
}

impl Tap {
    fn open(run: &Ended, arguments: &[&str]) -> Self {
        let id = run.id();
        let all = [&["tap"], arguments, &["--process", &id]].concat();
        let mut process = Ended(command(&all).spawn().unwrap());
        let out = BufReader::new(process.0.stdout.take().unwrap());
        let mut told = BufReader::new(process.0.stderr.take().unwrap());
        let mut first = String::new();
        told.read_line(&mut first).unwrap();
        assert!(first.contains("Ctrl-C ends only this tap"), "{first}");
        Self { process, out, told }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Waits for its end; returns the exit code, and the rest of what it prints on both outputs.
    fn ended(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut told) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.told.read_to_string(&mut told).unwrap();
        (self.process.code(), out, told)
    }
}

#[test]
fn records_are_shown_by_two_taps_until_the_run_ends() {
    let place = Place::empty("taps");
    let mut run = start(&place, WORKFLOW, Stdio::piped());
    let mut rows = run.0.stdin.take().unwrap();
    let mut all = Tap::open(&run, &["events", "--output", "json"]);
    let mut odd = Tap::open(&run, &["odd", "--columns", "word", "--where", "n > 1"]);
    let mut send = |n: i64| writeln!(rows, "{}", json!({"n": n, "word": format!("number {n}")})).unwrap();
    for n in 0..4 {
        send(n);
        let shown: Value = serde_json::from_str(&all.line()).unwrap();
        assert_eq!((&shown["n"], &shown["word"]), (&json!(n), &json!(format!("number {n}"))));
    }
    assert!(odd.line().trim_end().ends_with("  word=\"number 3\""), "1 does not fulfil the condition");
    // A tap that is killed does nothing to the others and to the run.
    odd.process.signal(Signal::KILL);
    assert_eq!(odd.ended().0, None);
    // Neither does one that is interrupted.
    let interrupted = Tap::open(&run, &["odd"]);
    interrupted.process.signal(Signal::INT);
    let (code, out, told) = interrupted.ended();
    assert_eq!((code, out.as_str()), (Some(130), ""), "{told}");
    send(5);
    drop(rows);
    assert_eq!(run.code(), Some(0));
    let (code, out, told) = all.ended();
    assert_eq!(code, Some(0), "{told}");
    assert!(out.contains("number 5"), "the last record is shown too: {out}");
    assert!(told.contains("the run has ended") && told.contains("5 records shown"), "{told}");
    assert_eq!(place.rows("out.jsonl").len(), 3);
}

#[test]
fn a_limit_ends_a_tap() {
    let place = Place::empty("limited");
    let mut run = start(&place, WORKFLOW, Stdio::piped());
    let mut rows = run.0.stdin.take().unwrap();
    let tap = Tap::open(&run, &["odd", "--limit", "2", "--output", "json"]);
    for n in 0..100 {
        writeln!(rows, "{}", json!({"n": n, "word": null})).unwrap();
    }
    let (code, out, told) = tap.ended();
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{out} {told}");
    let shown: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&shown[0]["n"], &shown[1]["n"]), (&json!(1), &json!(3)));
    assert!(told.contains("2 records shown"), "{told}");
}

#[test]
fn what_cannot_be_tapped_is_said() {
    let place = Place::empty("untapped");
    let run = start(&place, WORKFLOW, Stdio::piped());
    let id = run.id();
    let refused = |arguments: &[&str], code: i32, message: &str| {
        let all = [&["tap"], arguments, &["--process", &id]].concat();
        let told = tidemill(&all).expect(code).stderr;
        assert!(told.contains(message), "{told}");
    };
    refused(&["evens"], 66, "the workflow has no source or operator `evens`; it has events, odd");
    refused(&["out"], 66, "`out` is a sink; it writes what comes from `odd`: tap that");
    refused(&["odd", "--columns", "n,m"], 2, "`odd` has no column `m`");
    refused(&["odd", "--columns", "m"], 2, "its columns: n, word");
    refused(&["odd", "--where", "m > 1"], 2, "--where");
    refused(&["odd", "--where", "n + 1"], 2, "`--where` must be a bool, `n + 1` is int64");
    let nobody = tidemill(&["tap", "odd", "--process", "1"]).expect(66).stderr;
    assert!(nobody.contains("no run in process 1"), "{nobody}");
}

#[test]
fn pictures_are_words_files_or_drawn() {
    let place = Place::empty("pictured");
    let workflow = format!(
        "version: 1
name: pictures
sources:
  - {{id: images, kind: image_directory, rate: 5/s, repeat: true, options: {{path: {}}}}}
sinks:
  - {{id: out, kind: jsonl, input: images, options: {{path: out.jsonl}}}}
",
        root().join("examples/vqa/data/images").display()
    );
    let run = start(&place, &workflow, Stdio::null());
    let folder = place.argument("pictures");
    let (code, out, _) = Tap::open(&run, &["images", "--limit", "2", "--save", &folder]).ended();
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{out}");
    assert!(out.lines().all(|line| line.contains("image ") && line.contains("x")), "{out}");
    let files = place.files("pictures");
    assert_eq!(files.len(), 2, "{files:?}");
    for file in &files {
        assert!(out.contains(file.as_str()), "{file} in {out}");
        image::open(place.path("pictures").join(file)).unwrap();
    }
    for (form, beginning) in
        [("kitty", "\u{1b}_Ga=T,f=100,"), ("iterm", "\u{1b}]1337;File=inline=1"), ("blocks", "\u{1b}[38;2;")]
    {
        let (code, out, _) = Tap::open(&run, &["images", "--limit", "1", "--pictures", form]).ended();
        assert!(code == Some(0) && out.lines().nth(1).unwrap().starts_with(beginning), "{form}: {out}");
    }
    let (_, out, _) = Tap::open(&run, &["images", "--limit", "1", "--output", "json"]).ended();
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert!(
        shown["image"]["width"].as_u64() > Some(0) && shown["image"]["bytes"].as_u64() > Some(0),
        "{out}"
    );
}
