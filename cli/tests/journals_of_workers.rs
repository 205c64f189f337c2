//! Processes of workers that read streams through journals: killed, and continued; through the built binary.
use crate::command::{command, tidemill};
use crate::journals::{
    checkpoint, feed, has_open, journal_end, outputs, place, same, succeeds, text, undisturbed, until,
};
use crate::processes::{children, gone, kill};
use rustix::fs::{CWD, FileType, OFlags, mknodat};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

pub(crate) const PLAN: &str = "version: 1
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
  - {id: columns, operator: columns, worker: hub}
classes:
  - {id: 0, share: 1, route: {events: events, some: some, counted: counted, rows: rows, table: table, columns: columns}}
edges:
  - {from: events, to: some}
  - {from: some, to: counted}
  - {from: some, to: rows}
  - {from: counted, to: table}
  - {from: counted, to: columns}
";

/// The worker's reading process dies, and the one that started it.
#[test]
#[ignore = "long: make test-long"]
fn processes_of_workers_read_journals_too() {
    let (place, text) = (place("csv", "events.pipe", "journal: {}"), text("csv"));
    place.write("plan.yaml", PLAN);
    let pipe = place.path("events.pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    let flags = OFlags::NONBLOCK.bits() as i32;
    let held = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&pipe).unwrap();
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    let start = || {
        let [workflow, plan, state] =
            ["workflow.yaml", "plan.yaml", "state"].map(|name| place.argument(name));
        let arguments = ["run", &workflow, "--processes", "--plan", &plan, "--state", &state, "--quiet"];
        command(&[&arguments[..], &["--checkpoint-interval", "20ms"]].concat()).spawn().unwrap()
    };
    let (mut begun, mut child) = (0, start());
    let (mut workers, mut runs) = (0, 0);
    for (index, part) in text.as_bytes().chunks(150_001).enumerate() {
        let had = journal_end(&place);
        feed(&place, &mut writer, part);
        until(&mut child, "bytes in the journal", || journal_end(&place) > had);
        // A worker that dies during the start ends the run: with a checkpoint of its own, all have started.
        until(&mut child, "a checkpoint", || checkpoint(&place) > begun);
        match (index % 2, children(child.id()).first()) {
            (0, Some(worker)) => {
                kill(*worker);
                assert!(gone(*worker));
                workers += 1;
            }
            _ => {
                let found = children(child.id());
                child.kill().unwrap();
                child.wait().unwrap();
                assert!(found.into_iter().all(gone), "they end with the process that started them");
                (begun, child) = (checkpoint(&place), start());
                runs += 1;
            }
        }
    }
    assert!(workers >= 2 && runs >= 2, "{workers} workers and {runs} runs were killed");
    let process = child.id();
    until(&mut child, "the pipe", || children(process).iter().any(|worker| has_open(*worker, &pipe)));
    drop((writer, held));
    succeeds(child);
    let mut found = outputs(&place);
    let dead = String::from_utf8(std::mem::take(&mut found[2].1)).unwrap();
    found[2].1 = dead.replace("events.pipe,", "standard input,").into_bytes();
    same(&found, &undisturbed("csv", &text));
}

/// Each of the two processes would open the pipe and the journal as if it were the only one.
#[test]
fn a_stream_is_not_read_by_the_processes_of_two_workers() {
    let place = place("csv", "events.pipe", "journal: {}");
    let of_two = [
        (
            "  - {id: events, operator: events, worker: edge}\n",
            "  - {id: events@a, operator: events, worker: edge, share: 0.5}\n  - {id: events@b, operator: events, worker: hub, share: 0.5}\n",
        ),
        (
            "  - {id: 0, share: 1, route: {events: events, ROUTE}}\n",
            "  - {id: 0, share: 0.5, route: {events: events@a, ROUTE}}\n  - {id: 1, share: 0.5, route: {events: events@b, ROUTE}}\n",
        ),
        (
            "  - {from: events, to: some}\n",
            "  - {from: events@a, to: some}\n  - {from: events@b, to: some}\n",
        ),
    ];
    let route = "some: some, counted: counted, rows: rows, table: table, columns: columns";
    let plan = of_two.iter().fold(PLAN.to_owned(), |plan, (one, two)| {
        let (one, two) = (one.replace("ROUTE", route), two.replace("ROUTE", route));
        assert!(plan.contains(&one), "{one}");
        plan.replace(&one, &two)
    });
    place.write("plan.yaml", plan);
    mknodat(CWD, place.path("events.pipe"), FileType::Fifo, 0o600.into(), 0).unwrap();
    let [workflow, plan, state] = ["workflow.yaml", "plan.yaml", "state"].map(|name| place.argument(name));
    let output =
        tidemill(&["run", &workflow, "--processes", "--plan", &plan, "--state", &state]).expect(78).stderr;
    assert!(output.contains("the plan reads it on `edge` and `hub`: give the source one stage"), "{output}");
    assert!(!place.path("state").exists() && !place.path("out").exists(), "nothing is made");
}
