//! Steps in Python, through the built binary. The interpreter is that of TIDEMILL_TEST_PYTHON, else `python3`.
use crate::command::{Outcome, Place, command, root, tidemill};
use crate::states::{checkpoint, waits};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use std::time::Duration;

/// Rows of the source in most tests.
const ROWS: i64 = 200;

pub(crate) fn interpreter() -> Option<String> {
    let named = std::env::var("TIDEMILL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let version = std::process::Command::new(&named)
        .args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"])
        .status();
    if version.is_ok_and(|status| status.success()) {
        return Some(named);
    }
    eprintln!("skipped: `{named}` is no Python 3.9 or newer; TIDEMILL_TEST_PYTHON names one");
    None
}

/// A workflow from a table through a step to a file: its options without the interpreter, and its module.
fn place(options: &str, module: &str) -> Option<Place> {
    let python = interpreter()?;
    let place = Place::empty("python");
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: python
sources:
  - {{id: rows, kind: csv, options: {{path: rows.csv, columns: {{site: text, n: int64}}}}}}
operators:
  - id: step
    kind: python
    input: rows
    batching: {{max_batch: 16, budget: 5ms}}
    options: {{module: ops.py, python: '{python}', {options}}}
sinks:
  - {{id: out, kind: jsonl, input: step, options: {{path: out.jsonl}}}}
run: {{tick: 10ms, checkpoint_every: 2, dead_letters: dead.jsonl}}
"
        ),
    );
    let rows: String = (0..ROWS).map(|n| format!("s{},{n}\n", n % 3)).collect();
    place.write("rows.csv", format!("site,n\n{rows}"));
    place.write("ops.py", module);
    Some(place)
}

/// As [`place`], for a class: those have no batches of their own.
fn place_of_class(options: &str, module: &str) -> Option<Place> {
    let place = place(options, module)?;
    place.change("workflow.yaml", "    batching: {max_batch: 16, budget: 5ms}\n", "");
    Some(place)
}

fn run(place: &Place) -> Outcome {
    tidemill(&["run", &place.argument("workflow.yaml")])
}

fn numbers(place: &Place, column: &str) -> Vec<i64> {
    let mut numbers: Vec<i64> =
        place.rows("out.jsonl").iter().map(|row| row[column].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

/// Dead letters: number of the record, reason and detail.
fn letters(place: &Place) -> Vec<(i64, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut letters: Vec<_> = place
        .rows("dead.jsonl")
        .iter()
        .map(|row| (row["values"]["n"].as_i64().unwrap(), text(&row["reason"]), text(&row["detail"])))
        .collect();
    letters.sort();
    letters
}

fn without(numbers: &[i64]) -> Vec<i64> {
    (0..ROWS).filter(|n| !numbers.contains(n)).collect()
}

#[test]
fn a_function_over_a_batch_and_one_over_a_record_give_the_same() {
    let batch = "
import tidemill

def double(batch: tidemill.Batch):
    return {'n': [2 * n for n in batch['n']], 'site': batch['site']}
";
    let record = "
def double(record):
    return {**record, 'n': 2 * record['n']}
";
    for module in [batch, record] {
        let Some(place) = place("function: double, output: {n: int64, site: text}", module) else { return };
        run(&place).expect(0);
        let rows = place.rows("out.jsonl");
        assert_eq!(rows.len() as i64, ROWS);
        assert_eq!(rows[4]["site"], "s1");
        assert!(numbers(&place, "n").into_iter().eq((0..ROWS).map(|n| 2 * n)));
    }
}

#[test]
fn annotations_declare_the_output_and_rows_are_dropped_and_multiplied() {
    let module = "
import typing

class Row(typing.TypedDict):
    n: int
    half: float

def step(record) -> list[Row]:
    n = record['n']
    print('seen', n)
    if n % 2:
        return None
    return [{'n': n, 'half': n / 2}] * (2 if n == 0 else 1)
";
    let Some(place) = place("function: step", module) else { return };
    let outcome = run(&place).expect(0);
    assert!(!outcome.stdout.contains("seen"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("seen 7") || !outcome.stderr.contains("WARN"), "{}", outcome.stderr);
    let mut expected: Vec<i64> = (0..ROWS).filter(|n| n % 2 == 0).collect();
    expected.insert(0, 0);
    assert_eq!(numbers(&place, "n"), expected);
    let ids: std::collections::BTreeSet<String> =
        place.rows("out.jsonl").iter().map(|row| row["_id"].to_string()).collect();
    assert!(ids.len() <= 1 || ids.len() == expected.len(), "identities differ");
}

#[test]
fn exceptions_and_wrong_outputs_are_dead_letters_with_their_records() {
    let record = "
def step(record):
    n = record['n']
    if n == 20:
        raise ValueError('twenty')
    if n == 21:
        return {'n': 'many'}
    if n == 22:
        return {}
    return {'n': n}
";
    let batch = "
import tidemill

def step(batch: tidemill.Batch):
    numbers = batch['n'].list()
    if 20 in numbers:
        raise ValueError('twenty')
    return {'n': numbers}
";
    let Some(first) = place("function: step, output: {n: int64}", record) else { return };
    run(&first).expect(0);
    assert_eq!(numbers(&first, "n"), without(&[20, 21, 22]));
    let dead = letters(&first);
    let reasons: Vec<(i64, &str)> = dead.iter().map(|(n, reason, _)| (*n, reason.as_str())).collect();
    assert_eq!(reasons, [(20, "python_error"), (21, "python_output"), (22, "python_output")]);
    assert!(
        dead[0].2.contains("ops.py\", line 5") && dead[0].2.contains("ValueError: twenty"),
        "{}",
        dead[0].2
    );
    assert!(dead[1].2.contains("column `n`: expected int64, found str 'many'"), "{}", dead[1].2);
    assert!(dead[2].2.contains("the column `n` is missing"), "{}", dead[2].2);
    let Some(second) = place("function: step, output: {n: int64}", batch) else { return };
    run(&second).expect(0);
    let dead = letters(&second);
    assert_eq!(dead.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), [20], "the batch was halved: {dead:?}");
    assert_eq!(numbers(&second, "n"), without(&[20]));
}

#[test]
fn a_record_that_ends_its_process_is_found_and_the_others_are_computed() {
    let record = "
import os, signal

def step(record):
    if record['n'] == 77:
        os.kill(os.getpid(), signal.SIGSEGV)
    return {'n': record['n']}
";
    let batch = "
import os
import tidemill

def step(batch: tidemill.Batch):
    if 77 in batch['n'].list():
        os._exit(9)
    return {'n': batch['n']}
";
    for (module, how) in [(record, "signal 11"), (batch, "exit code 9")] {
        let Some(place) = place("function: step, output: {n: int64}", module) else { return };
        run(&place).expect(0);
        assert_eq!(numbers(&place, "n"), without(&[77]));
        let dead = letters(&place);
        assert_eq!((dead.len(), dead[0].0, dead[0].1.as_str()), (1, 77, "python_crash"));
        assert!(dead[0].2.contains(how), "{}", dead[0].2);
    }
}

#[test]
fn a_record_that_hangs_is_found_and_the_others_are_computed() {
    let module = "
import time

def step(record):
    while record['n'] == 50:
        time.sleep(1)
    return {'n': record['n']}
";
    let Some(place) = place("function: step, output: {n: int64}, timeout: 3s", module) else { return };
    run(&place).expect(0);
    assert_eq!(numbers(&place, "n"), without(&[50]));
    let dead = letters(&place);
    assert_eq!((dead.len(), dead[0].0, dead[0].1.as_str()), (1, 50, "python_timeout"));
    // The place is in the first line, which is what a report shows.
    let told = dead[0].2.lines().next().unwrap();
    assert!(
        told.contains("longer than 3 s in File ") && told.contains("ops.py\", line 6 in step"),
        "{}",
        dead[0].2
    );
}

#[test]
fn a_step_that_always_dies_stops_the_run() {
    let module = "
import os

def step(record):
    os._exit(1)
";
    let Some(place) = place("function: step, output: {n: int64}, restart: 2", module) else { return };
    let outcome = run(&place);
    assert_ne!(outcome.code, Some(0));
    assert!(
        outcome.stderr.contains("3 records in a row ended its process (`restart: 2`)"),
        "{}",
        outcome.stderr
    );
    let module = "
def step(record):
    raise KeyError('no')
";
    let Some(place) = place_of_class("function: step, output: {n: int64}, on_error: stop", module) else {
        return;
    };
    let outcome = run(&place);
    assert_ne!(outcome.code, Some(0));
    assert!(
        outcome.stderr.contains("KeyError: 'no'") && outcome.stderr.contains("\"n\":0"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn validate_shows_the_line_of_python_that_is_wrong() {
    let Some(place) = place("function: step, output: {n: int64}", "import nothing_like_this\n") else {
        return;
    };
    let workflow = place.argument("workflow.yaml");
    let outcome = tidemill(&["validate", &workflow]);
    assert_ne!(outcome.code, Some(0));
    let text = &outcome.stderr;
    assert!(
        text.contains("E0617") && text.contains("ops.py:1") && text.contains("nothing_like_this"),
        "{text}"
    );
    let cases = [
        ("def other(record): pass\n", "has no `step`"),
        ("def step(a, b): pass\n", "needs 2 arguments"),
        ("class step: pass\n", "write `class: step` instead of `function`"),
        ("import typing\nclass R(typing.TypedDict):\n  m: int\ndef step(r: R): pass\n", "wants a column `m`"),
        ("import typing\nclass R(typing.TypedDict):\n  n: float\ndef step(r) -> R: pass\n", "{n: float64}"),
        ("def step(record)\n", "SyntaxError"),
    ];
    for (module, expected) in cases {
        place.write("ops.py", module);
        let outcome = tidemill(&["validate", &workflow]);
        assert_ne!(outcome.code, Some(0), "{module}");
        assert!(outcome.stderr.contains(expected), "{module}: {}", outcome.stderr);
    }
    place.write("ops.py", "def step(record): return record\n");
    tidemill(&["validate", &workflow]).expect(0);
    place.change("workflow.yaml", ", output: {n: int64}", "");
    let outcome = tidemill(&["validate", &workflow]);
    assert!(outcome.stderr.contains("nothing says what columns `step` gives"), "{}", outcome.stderr);
}

const COUNTS: &str = "
import json

class Counts:
    def __init__(self):
        self.of = {}

    def process(self, record):
        site = record['site']
        self.of[site] = self.of.get(site, 0) + 1
        return {'site': site, 'n': record['n'], 'count': self.of[site]}

    def snapshot(self):
        return json.dumps(self.of).encode()

    def restore(self, state):
        self.of = json.loads(state)
";

fn counted(place: &Place) -> Vec<(i64, String, i64)> {
    let mut rows: Vec<_> = place
        .rows("out.jsonl")
        .iter()
        .map(|row| {
            let site = row["site"].as_str().unwrap().to_owned();
            (row["n"].as_i64().unwrap(), site, row["count"].as_i64().unwrap())
        })
        .collect();
    rows.sort();
    rows
}

fn expected_counts(rows: i64) -> Vec<(i64, String, i64)> {
    (0..rows).map(|n| (n, format!("s{}", n % 3), n / 3 + 1)).collect()
}

#[test]
fn an_object_whose_process_dies_continues_from_its_state() {
    let fatal = COUNTS.replace(
        "        site = record['site']\n",
        "        site = record['site']\n        if record['n'] == 99 and 'died' not in self.of:\n            __import__('os')._exit(3)\n",
    );
    assert_ne!(fatal, COUNTS);
    let options = "class: Counts, output: {site: text, n: int64, count: int64}";
    let Some(place) = place_of_class(options, &fatal) else { return };
    run(&place).expect(0);
    let dead = letters(&place);
    assert_eq!((dead.len(), dead[0].0, dead[0].1.as_str()), (1, 99, "python_crash"));
    let expected: Vec<_> = (0..ROWS)
        .filter(|n| *n != 99)
        .map(|n| (n, format!("s{}", n % 3), n / 3 + 1 - i64::from(n % 3 == 0 && n > 99)))
        .collect();
    assert_eq!(counted(&place), expected);
}

#[test]
fn an_object_is_exactly_once_when_the_run_is_killed_and_nothing_is_left() {
    let module =
        COUNTS.replace("import json\n", "import json, os\nopen('pids', 'a').write(f'{os.getpid()}\\n')\n");
    let options = "class: Counts, group: site, output: {site: text, n: int64, count: int64}";
    let Some(place) = place_of_class(options, &module) else { return };
    let rows = 3000i64;
    let text: String = (0..rows).map(|n| format!("s{},{n}\n", n % 3)).collect();
    place.write("rows.csv", format!("site,n\n{text}"));
    place.change("workflow.yaml", "kind: csv,", "kind: csv, rate: 1000/s,");
    let pids = place.argument("pids");
    place.change("ops.py", "open('pids'", &format!("open('{pids}'"));
    let arguments = ["run", &place.argument("workflow.yaml"), "--state", &place.argument("state")];
    let mut child = command(&arguments).args(["--checkpoint-interval", "50ms", "--quiet"]).spawn().unwrap();
    assert!(waits(&place, &mut child, 3), "the run was complete before it could be killed");
    let running: Vec<Pid> =
        place.read("pids").lines().filter_map(|line| Pid::from_raw(line.parse().unwrap())).collect();
    assert!(running.iter().any(|pid| test_kill_process(*pid).is_ok()), "a step runs");
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!checkpoint(&place).1, "it was not complete");
    for pid in running {
        let mut looks = 0;
        while test_kill_process(pid).is_ok() && !is_zombie(pid) {
            looks += 1;
            assert!(looks < 3000, "the step {pid:?} outlives its run");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    tidemill(&arguments).expect(0);
    assert_eq!(counted(&place), expected_counts(rows));
}

/// Whether a process has ended and is not reaped yet.
fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn several_processes_compute_at_once_and_keep_the_order() {
    let module = "
import os

def step(record):
    return {'n': record['n'], 'process': os.getpid()}
";
    let options = "function: step, output: {n: int64, process: int64}, processes: 3, max_in_flight: 6";
    for ordered in ["true", "false"] {
        let Some(place) = place(&format!("{options}, ordered: {ordered}"), module) else { return };
        place.change("workflow.yaml", "max_batch: 16, budget: 5ms", "max_batch: 4, budget: 0s");
        run(&place).expect(0);
        assert_eq!(numbers(&place, "n"), without(&[]));
    }
}

#[test]
fn a_step_is_profiled_and_planned() {
    let module = "
def step(record):
    return {'n': record['n']}
";
    let Some(place) = place("function: step, output: {n: int64}", module) else { return };
    place.change("workflow.yaml", "kind: csv,", "kind: csv, rate: 100/s,");
    let workflow = place.argument("workflow.yaml");
    let infrastructure = "cli/tests/planning/infrastructure.yaml";
    let profile = place.argument("profile");
    tidemill(&["profile", &workflow, "--infra", infrastructure, "--out", &profile, "--budget", "20s"])
        .expect(0);
    let folder = place.path("profile");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<String> = files.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    assert!(texts.iter().any(|text| text.contains("operator: step")), "{texts:?}");
    let plan = place.argument("plan.yaml");
    let arguments =
        ["--profiles", &profile, "--slo", "latency=none", "--slo", "accuracy=none", "--out", &plan];
    tidemill(&[&["plan", &workflow, "--infra", infrastructure], &arguments[..]].concat()).expect(0);
    assert!(place.read("plan.yaml").contains("operator: step"));
    tidemill(&["run", &workflow, "--plan", &plan, "--processes"]).expect(0);
    assert_eq!(numbers(&place, "n"), without(&[]));
}

#[test]
fn what_is_impossible_is_said_at_its_place() {
    let module = "def step(record): return record\n";
    let cases = [
        ("function: step, class: step, output: {n: int64}", "both are given"),
        ("output: {n: int64}", "nothing says what of `ops.py` to call"),
        ("class: Step, processes: 2, output: {n: int64}", "`processes` is for functions"),
        ("function: step, group: site, output: {n: int64}", "`group` is for classes"),
        ("function: step, output: {n: int}", "`int` is no type of a column"),
        ("function: step, output: {_n: int64}", "`_n` cannot be the name of a column"),
        ("class: Step, group: site, output: {n: int64}", "which is not in its output"),
        ("class: Step, group: sight, output: {n: int64}", "there is no column `sight`"),
        ("function: step, output: {n: int64}, timeout: 0s", "too short"),
    ];
    for (options, expected) in cases {
        let Some(place) = place_of_class(options, module) else { return };
        let outcome = tidemill(&["validate", &place.argument("workflow.yaml")]);
        let all = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_ne!(outcome.code, Some(0), "{options}");
        assert!(all.contains(expected), "{options}: {all}");
    }
}

#[test]
fn pictures_name_their_formats() {
    let Some(python) = interpreter() else { return };
    let place = Place::empty("python");
    let picture = image::RgbImage::new(3, 2);
    let endings = ["ppm", "jpg", "png", "webp", "tiff", "bmp", "gif"];
    place.write("a.ppm", b"P6\n1 1\n255\n\0\0\0");
    for ending in &endings[1..] {
        picture.save(place.path(&format!("a.{ending}"))).unwrap();
    }
    let text = "import sys, tidemill
print(*(tidemill.Image(open('a.' + ending, 'rb').read()).format for ending in sys.argv[1:]), tidemill.Image(b'x').format)";
    let output = std::process::Command::new(python)
        .args(["-c", text])
        .args(endings)
        .current_dir(place.path("."))
        .env("PYTHONPATH", root().join("operators/python/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "ppm jpeg png webp tiff bmp gif unknown\n", "{:?}", String::from_utf8(output.stderr));
}
