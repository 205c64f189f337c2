//! Streams that give a row now and then: it is seen before the next one comes; through the built binary.
use crate::command::{Place, command};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

const WORKFLOW: &str = "version: 1
name: slow
sources:
  - {id: events, kind: jsonl, RATE options: {path: '-', columns: {n: int64}}}
operators:
  - {id: odd, kind: filter, input: events, options: {where: \"n % 2 == 1\"}}
sinks:
  - {id: out, kind: stdout, input: odd}
";

fn start(rate: &str, state: bool) -> (Place, Child) {
    let place = Place::empty("slow");
    let rate = if state { format!("{rate} journal: {{}},") } else { rate.to_owned() };
    place.write("workflow.yaml", WORKFLOW.replace("RATE", &rate));
    let (workflow, folder) = (place.argument("workflow.yaml"), place.argument("state"));
    let mut arguments = vec!["run", &workflow, "--quiet"];
    if state {
        arguments.extend(["--state", &folder]);
    }
    let child = command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    (place, child)
}

/// A producer that waits for the answer to each row would wait for ever.
fn each_row_is_answered(rate: &str, state: bool) {
    let (_place, mut child) = start(rate, state);
    let (mut rows, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for n in [1, 3, 5, 7] {
        writeln!(rows, "{{\"n\": {n}}}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("{{\"n\":{n}}}\n"));
    }
    drop(rows);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_row_of_standard_input_is_answered_before_the_next_one() {
    each_row_is_answered("", false);
}

#[test]
fn so_it_is_where_the_stream_is_slower_than_its_rate() {
    each_row_is_answered("rate: 1000/s,", false);
}

#[test]
fn so_it_is_where_the_stream_has_a_journal() {
    each_row_is_answered("", true);
}
