//! Sources and sinks in Python, and workflows that a program in Python runs. The interpreter is that of TIDEMILL_TEST_PYTHON, else
//! `python3`.
use crate::command::{Outcome, Place, command, root, tidemill};
use crate::python::interpreter;
use crate::states::{checkpoint, waits};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::process::Command;

/// A workflow with this source and sink, and a module.
fn place(source: &str, sink: &str, module: &str) -> Option<(Place, String)> {
    let python = interpreter()?;
    let place = Place::empty("python-ends");
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: ends
sources:
  - {{id: rows, {source}}}
operators:
  - {{id: kept, kind: filter, input: rows, options: {{where: 'n >= 0'}}}}
sinks:
  - {{id: out, input: kept, {sink}}}
run: {{tick: 10ms, checkpoint_every: 2, dead_letters: dead.jsonl}}
"
        ),
    );
    place.write("ops.py", module);
    Some((place, python))
}

fn run(place: &Place, python: &str, more: &[&str]) -> Outcome {
    let workflow = place.argument("workflow.yaml");
    let output = command(&["run", &workflow]).args(more).env("TIDEMILL_PYTHON", python).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

const FILE: &str = "kind: jsonl, options: {path: out.jsonl}";

fn numbers(place: &Place) -> Vec<i64> {
    let mut numbers: Vec<i64> =
        place.rows("out.jsonl").iter().map(|row| row["n"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn what_a_generator_yields_comes_and_what_is_wrong_becomes_dead_letters() {
    let module = "
import typing

class Row(typing.TypedDict):
    n: int
    site: str

def rows(count) -> typing.Iterator[Row]:
    for n in range(count):
        if n % 100 == 7:
            yield {'n': 'seven', 'site': 'hall'}
        elif n == 11:
            yield [{'n': n, 'site': 'roof'}, {'n': 5000, 'site': 'roof'}]
        else:
            yield {'n': n, 'site': 'hall'}
";
    let source = "kind: python, options: {module: ops.py, function: rows, arguments: {count: 3000}}";
    let Some((place, python)) = place(source, FILE, module) else { return };
    run(&place, &python, &[]).expect(0);
    let expected: Vec<i64> = (0..3000).filter(|n| n % 100 != 7).chain([5000]).collect();
    assert_eq!(numbers(&place), expected);
    let dead = place.rows("dead.jsonl");
    assert_eq!(dead.len(), 30);
    assert_eq!(dead[0]["reason"], "python_output");
    let detail = dead[0]["detail"].as_str().unwrap();
    assert!(detail.contains("column `n`: expected int64, found str 'seven'"), "{detail}");
}

#[test]
fn a_source_that_fails_shows_its_traceback_and_what_is_wrong_is_shown_at_its_place() {
    let module = "
def rows():
    yield {'n': 1}
    raise ConnectionError('the sensor is gone')
";
    let source = "kind: python, options: {module: ops.py, function: rows, output: {n: int64}}";
    let Some((place, python)) = place(source, FILE, module) else { return };
    let outcome = run(&place, &python, &[]);
    assert_ne!(outcome.code, Some(0));
    for part in ["ConnectionError: the sensor is gone", "ops.py\", line 4", "no `position` and `seek`"] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
    place.change("workflow.yaml", "function: rows", "function: rowss");
    let outcome = run(&place, &python, &[]).expect(78);
    assert!(outcome.stderr.contains("did you mean `rows`?"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("workflow.yaml:4"), "{}", outcome.stderr);
}

/// An object that can be read again; it dies once, after the record `n` = 1234.
const AGAIN: &str = "
import os

class Rows:
    def __init__(self, marker):
        self.n, self.marker = 0, marker

    def __iter__(self):
        while self.n < 5000:
            n, self.n = self.n, self.n + 1
            yield {'n': n}
            if n == 1234 and not os.path.exists(self.marker):
                open(self.marker, 'w').close()
                os.kill(os.getpid(), 9)

    def position(self):
        return self.n

    def seek(self, position):
        self.n = position
";

#[test]
fn a_source_whose_process_dies_continues_at_its_position() {
    let source = "kind: python, options: {module: ops.py, class: Rows, arguments: {marker: MARKER}, output: {n: int64}}";
    let Some((place, python)) = place(source, FILE, AGAIN) else { return };
    place.change("workflow.yaml", "MARKER", &place.argument("died"));
    run(&place, &python, &[]).expect(0);
    assert!(place.path("died").exists(), "it died");
    assert!(numbers(&place).into_iter().eq(0..5000));
}

/// A sink that stores rows and epoch in one transaction.
const STORED: &str = "
import os, sqlite3

class Store:
    def __init__(self, file, marker=''):
        self.marker = marker
        self.base = sqlite3.connect(file, isolation_level=None)
        self.base.execute('create table if not exists rows (n integer)')
        self.base.execute('create table if not exists stored (epoch integer)')
        self.base.execute('begin')

    def write(self, record):
        self.base.execute('insert into rows values (?)', (record['n'],))
        if self.marker and record['n'] == 1500 and not os.path.exists(self.marker):
            open(self.marker, 'w').close()
            os._exit(4)

    def commit(self, epoch):
        self.base.execute('delete from stored')
        self.base.execute('insert into stored values (?)', (epoch,))
        self.base.execute('commit')
        self.base.execute('begin')

    def committed(self):
        found = self.base.execute('select epoch from stored').fetchone()
        return found and found[0]

    def close(self):
        self.base.close()
";

fn stored(place: &Place, python: &str) -> Vec<i64> {
    let read = "import sqlite3, sys, json; print(json.dumps(sorted(n for n, in sqlite3.connect(sys.argv[1]).execute('select n from rows'))))";
    let output = Command::new(python).args(["-c", read, &place.argument("rows.db")]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn place_of_store(arguments: &str) -> Option<(Place, String)> {
    let sink = format!("kind: python, options: {{module: ops.py, class: Store, arguments: {{{arguments}}}}}");
    let source = "kind: csv, rate: 1000/s, options: {path: rows.csv, columns: {n: int64}}";
    let (place, python) = place(source, &sink, STORED)?;
    place.change("workflow.yaml", "FILE", &place.argument("rows.db"));
    let rows: String = (0..3000).map(|n| format!("{n}\n")).collect();
    place.write("rows.csv", format!("n\n{rows}"));
    Some((place, python))
}

#[test]
fn a_sink_that_stores_its_epoch_is_exactly_once_when_its_process_or_the_run_is_killed() {
    let Some((place, python)) = place_of_store("file: FILE, marker: MARKER") else { return };
    place.change("workflow.yaml", "MARKER", &place.argument("died"));
    let state = place.argument("state");
    let more = ["--state", &state, "--checkpoint-interval", "50ms", "--quiet"];
    let workflow = place.argument("workflow.yaml");
    let mut child = command(&["run", &workflow]).args(more).env("TIDEMILL_PYTHON", &python).spawn().unwrap();
    assert!(waits(&place, &mut child, 3), "the run was complete before it could be killed");
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!checkpoint(&place).1, "it was not complete");
    let before = stored(&place, &python).len();
    assert!(before > 0 && before < 3000, "{before} rows");
    run(&place, &python, &more).expect(0);
    assert!(place.path("died").exists(), "its process died too");
    assert!(stored(&place, &python).into_iter().eq(0..3000));
    // A new run takes nothing for its own that an earlier one stored.
    place.change("workflow.yaml", ", rate: 1000/s", "");
    run(&place, &python, &["--quiet"]).expect(0);
    assert!(stored(&place, &python).into_iter().eq((0..3000).flat_map(|n| [n, n])));
}

#[test]
fn a_sink_that_always_fails_stops_the_run() {
    let module = "
def send(record):
    raise OSError('no route')
";
    let source = "kind: csv, options: {path: rows.csv, columns: {n: int64}}";
    let sink = "kind: python, options: {module: ops.py, function: send, restart: 2}";
    let Some((place, python)) = place(source, sink, module) else { return };
    place.write("rows.csv", "n\n1\n2\n");
    let outcome = run(&place, &python, &[]);
    assert_ne!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("it failed 3 times in a row (`restart: 2`)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("OSError: no route"), "{}", outcome.stderr);
}

/// Runs a program in Python that imports the package and starts the built binary.
fn program(place: &Place, python: &str, text: &str) -> Outcome {
    place.write("program.py", text);
    let output = Command::new(python)
        .arg(place.path("program.py"))
        .current_dir(place.path("."))
        .env("PYTHONPATH", root().join("operators/python/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEMILL_PROGRAM", env!("CARGO_BIN_EXE_tidemill"))
        .output()
        .unwrap();
    let words = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: words(output.stdout), stderr: words(output.stderr) }
}

#[test]
fn a_program_runs_a_workflow_from_records_to_records() {
    let source = "kind: csv, options: {path: nothing.csv, columns: {n: int64, site: text}}";
    let Some((place, python)) = place(source, FILE, "") else { return };
    let text = "
import tidemill

def rows():
    for n in range(-1000, 20000):
        yield {'n': n, 'site': None if n % 10 == 0 else f's{n}'}

run = tidemill.run('workflow.yaml', inputs={'rows': rows()})
found = list(run)
assert sorted(record['n'] for record in found) == list(range(20000)), len(found)
assert all(record['site'] == (None if record['n'] % 10 == 0 else f\"s{record['n']}\") for record in found)
assert len({record.id for record in found}) == 20000 and found[0].sink == 'out'
assert run.report.complete and run.report.sinks[0]['records'] == 20000, run.report
assert 'out' in run.report._repr_html_() and '20,000' in repr(run.report)

text = open('workflow.yaml').read()
assert [record['n'] for record in tidemill.run(text, inputs={'rows': [{'n': 1, 'site': 'a'}]})] == [1]
workflow = {'version': 1, 'name': 'dict',
            'sources': [{'id': 'rows', 'kind': 'python', 'options': {'output': {'n': 'int64'}}}],
            'sinks': [{'id': 'out', 'kind': 'python', 'input': 'rows'}]}
assert [record['n'] for record in tidemill.run(workflow, inputs={'rows': [{'n': 3}]})] == [3]
";
    program(&place, &python, text).expect(0);
    assert!(!place.path("out.jsonl").exists(), "the rows went to the program alone");
}

#[test]
fn a_program_learns_what_is_wrong_and_leaves_nothing_when_it_stops_early() {
    let source = "kind: python, options: {output: {n: int64}}";
    let Some((place, python)) = place(source, FILE, "") else { return };
    let text = "
import itertools, os, threading, tidemill

def raises():
    yield {'n': 1}
    raise ValueError('no more')

try:
    list(tidemill.run('workflow.yaml', inputs={'rows': raises()}))
    raise SystemExit('no error')
except tidemill.WorkflowError as error:
    assert 'ValueError: no more' in str(error), error
    assert isinstance(error.__cause__, ValueError)

try:
    list(tidemill.run('workflow.yaml', inputs={'row': []}))
    raise SystemExit('no error')
except tidemill.WorkflowError as error:
    assert 'no source `row`' in str(error) and 'did you mean `rows`?' in str(error), error

try:
    list(tidemill.run(open('workflow.yaml').read().replace('kind: filter', 'kind: filtr'), inputs={'rows': []}))
    raise SystemExit('no error')
except tidemill.WorkflowError as error:
    assert error.findings[0].code == 'E0604' and error.findings[0].line == 6, error

assert tidemill.validate('workflow.yaml') == []
assert [finding.code for finding in tidemill.validate({'version': 1, 'name': 'x', 'sources': [], 'sinks': []})][:1] == ['E0201']

before = set(os.listdir('/proc/self/fd'))
closed = threading.Event()

def endless():
    try:
        for n in itertools.count():
            yield {'n': n}
    finally:
        closed.set()

run = tidemill.run('workflow.yaml', inputs={'rows': endless()})
assert next(run)['n'] >= 0
print(run._child.pid, flush=True)
run.close()
assert closed.wait(30), 'the generator was closed'
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(30)
assert set(os.listdir('/proc/self/fd')) == before
assert list(run) == []
";
    let outcome = program(&place, &python, text).expect(0);
    let pid = Pid::from_raw(outcome.stdout.trim().parse().unwrap()).unwrap();
    assert!(test_kill_process(pid).is_err(), "the run has ended");
}

#[test]
fn tables_go_in_and_come_out_without_a_copy_by_row() {
    let source = "kind: python, options: {output: {n: int64, x: float64, site: text}}";
    let Some((place, python)) = place(source, FILE, "") else { return };
    let has = Command::new(&python).args(["-c", "import pyarrow, numpy"]).output().unwrap().status.success();
    if !has {
        eprintln!("skipped: {python} has no pyarrow or NumPy");
        return;
    }
    let text = "
import numpy, pyarrow, tidemill
count = 300_000
table = pyarrow.table({'n': numpy.arange(count), 'x': numpy.arange(count) / 3, 'site': [f's{n}' for n in range(count)]})
found = tidemill.run('workflow.yaml', inputs={'rows': table}).to_arrow().sort_by('n')
assert found.equals(table), found
kept = [batch['x'].numpy() for batch in tidemill.run('workflow.yaml', inputs={'rows': table}).batches()]
assert numpy.array_equal(numpy.sort(numpy.concatenate(kept)), table['x'].to_numpy()), 'arrays that are kept stay as they are'
";
    program(&place, &python, text).expect(0);
    tidemill(&["validate", &place.argument("workflow.yaml")]).expect(0);
}
