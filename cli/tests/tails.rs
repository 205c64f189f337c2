//! A file that grows, read by runs that are killed and continued; through the built binary.
use crate::command::{Place, command};
use crate::live::until;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Child;
use tidemill_random::Random;

const WORKFLOW: &str = "version: 1
name: followed
sources:
  - {id: log, kind: tail, options: {path: log/a.jsonl, columns: {n: int64, at: int64}, event_time: at}}
operators:
  - {id: some, kind: filter, input: log, options: {where: n % 7 != 3}}
  - {id: counted, kind: window, input: some, options: {size: 1s, aggregates: [{function: count, as: n}]}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl, metadata: true}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
run: {tick: 10ms, checkpoint_every: 1}
";

fn start(place: &Place) -> Child {
    let [workflow, state] = [&place.argument("workflow.yaml"), &place.argument("state")];
    let mut command =
        command(&["run", workflow, "--state", state, "--checkpoint-interval", "20ms", "--quiet"]);
    command.spawn().unwrap()
}

fn lines(place: &Place) -> usize {
    std::fs::read_to_string(place.path("out/rows.jsonl")).map_or(0, |text| text.lines().count())
}

/// Rows in the file and windows before the last one are those of a run that is never killed, although the file is
/// rotated meanwhile, also while no run is there.
#[test]
fn killed_runs_continue_in_a_file_that_grows_and_is_rotated() {
    let place = Place::empty("followed");
    place.write("workflow.yaml", WORKFLOW);
    std::fs::create_dir(place.path("log")).unwrap();
    let mut random = Random::of_seed(5);
    let (mut written, mut passing, mut kills) = (0, 0, 0);
    let mut write = |count: usize| {
        let mut file = OpenOptions::new().create(true).append(true).open(place.path("log/a.jsonl")).unwrap();
        for n in written..written + count {
            writeln!(file, "{{\"n\": {n}, \"at\": {}}}", 10 * n).unwrap();
        }
        passing += (written..written + count).filter(|n| n % 7 != 3).count();
        written += count;
        passing
    };
    for round in 0..6 {
        write(200 + random.below(2000));
        let mut child = start(&place);
        let least = write(1 + random.below(500));
        if round % 2 == 0 {
            // In the midst of it.
            let seen = lines(&place);
            until(|| lines(&place) > seen || lines(&place) >= least);
        } else {
            until(|| lines(&place) >= least);
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        kills += usize::from(!status.success());
        if round == 3 {
            std::fs::rename(place.path("log/a.jsonl"), place.path("log/a.jsonl.1")).unwrap();
        }
    }
    assert_eq!(kills, 6, "each was killed while it ran");
    let passing = write(100);
    let mut child = start(&place);
    until(|| lines(&place) >= passing);
    child.kill().unwrap();
    child.wait().unwrap();
    let rows = place.read("out/rows.jsonl");
    let values = |name: &str| -> Vec<u64> {
        rows.lines()
            .map(|line| {
                let row: serde_json::Value = serde_json::from_str(line).unwrap();
                row[name].as_u64().unwrap()
            })
            .collect()
    };
    let expected: Vec<u64> = (0..written as u64).filter(|n| n % 7 != 3).collect();
    assert_eq!(values("n"), expected, "each once, in order");
    let counted = place.read("out/counted.csv");
    let counts: Vec<&str> = counted.lines().skip(1).filter_map(|line| line.rsplit(',').next()).collect();
    assert!(counts.len() > 20, "{counted}");
    let sum: usize = counts.iter().map(|count| count.parse::<usize>().unwrap()).sum();
    let windows = counts.len() * 100;
    assert_eq!(sum, (0..windows).filter(|n| n % 7 != 3).count(), "{counted}");
}
