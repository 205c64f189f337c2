//! Runs with one process per worker: killed one by one and all at once; through the built binary.
use crate::command::{Place, command, tidemill};
use std::path::Path;
use std::process::Child;
use std::time::Duration;
use tidemill_random::Random;

const WORKFLOW: &str = "version: 1
name: spread
sources:
  - id: left
    kind: csv
    rate: 4000/s
    options: {path: left.csv, columns: {key: text, at: int64, value: int64}, event_time: at}
  - id: right
    kind: csv
    rate: 2000/s
    options: {path: right.csv, columns: {key: text, at: int64, weight: int64}, event_time: at}
operators:
  - {id: some, kind: filter, input: left, options: {where: \"value % 7 != 3\"}}
  - {id: pair, kind: join, inputs: [some, right], options: {key: key, within: 2s, same_names: keep_first}}
  - {id: counted, kind: window, input: pair, options: {size: 5s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: pairs, kind: jsonl, input: pair, options: {path: out/pairs.jsonl}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
run: {tick: 10ms, checkpoint_every: 5, dead_letters: out/dead.jsonl}
";

const PLAN: &str = "version: 1
workflow: {name: spread}
tick: 10ms
checkpoint_every: 5
workers:
  - {id: edge, tier: edge, worker_type: small}
  - {id: hub, tier: hub, worker_type: small}
  - {id: cloud, tier: cloud, worker_type: small}
stages:
  - {id: left, operator: left, worker: edge}
  - {id: right, operator: right, worker: edge, slot_group: second}
  - {id: some, operator: some, worker: edge}
  - {id: pair, operator: pair, worker: hub}
  - {id: counted, operator: counted, worker: cloud}
  - {id: pairs, operator: pairs, worker: hub}
  - {id: table, operator: table, worker: cloud}
classes:
  - {id: 0, share: 1, route: {left: left, right: right, some: some, pair: pair, counted: counted, pairs: pairs, table: table}}
edges:
  - {from: left, to: some}
  - {from: some, to: pair}
  - {from: right, to: pair, input: 1}
  - {from: pair, to: counted}
  - {from: pair, to: pairs}
  - {from: counted, to: table}
";

/// Two sources on the edge, a join on the hub, a window in the cloud, and sinks on both.
pub(crate) fn place() -> Place {
    let place = Place::empty("spread");
    place.write("workflow.yaml", WORKFLOW);
    place.write("plan.yaml", PLAN);
    let side = |rows: usize, step: usize, name: &str, times: usize| {
        let row = |i: usize| match i % 1000 {
            998 => format!("k{:02},{},none\n", i % 50, 1_700_000_000_000 + i * step),
            _ => format!("k{:02},{},{}\n", i % 50, 1_700_000_000_000 + i * step, i * times),
        };
        let rows: String = (0..rows).map(row).collect();
        format!("key,at,{name}\n{rows}")
    };
    place.write("left.csv", side(6000, 5, "value", 1));
    place.write("right.csv", side(3000, 10, "weight", 3));
    place
}

pub(crate) fn outputs(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let files = ["out/pairs.jsonl", "out/counted.csv", "out/dead.jsonl"];
    files.iter().map(|file| (*file, std::fs::read(place.path(file)).unwrap())).collect()
}

/// Outputs of one undisturbed process at full speed: the sources have event times, so a rate changes none of them.
pub(crate) fn undisturbed() -> Vec<(&'static str, Vec<u8>)> {
    let place = place();
    tidemill(&["run", &place.argument("workflow.yaml"), "--rate", "max", "--quiet"]).expect(0);
    let outputs = outputs(&place);
    assert!(outputs.iter().all(|(file, content)| content.len() > 500 || panic!("{file} is nearly empty")));
    outputs
}

#[track_caller]
pub(crate) fn same(found: &[(&str, Vec<u8>)], expected: &[(&str, Vec<u8>)]) {
    for ((file, found), (_, expected)) in found.iter().zip(expected) {
        assert!(found == expected, "{file}: {} bytes, {} expected", found.len(), expected.len());
    }
}

fn start(place: &Place, state: bool) -> Child {
    start_with(place, state, "50ms")
}

pub(crate) fn start_with(place: &Place, state: bool, interval: &str) -> Child {
    let mut arguments = vec![
        "run".to_owned(),
        place.argument("workflow.yaml"),
        "--processes".to_owned(),
        "--quiet".to_owned(),
    ];
    arguments.extend(["--plan".to_owned(), place.argument("plan.yaml")]);
    if state {
        arguments.extend(["--state".to_owned(), place.argument("state")]);
        arguments.extend(["--checkpoint-interval".to_owned(), interval.to_owned()]);
    }
    command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap()
}

/// The processes that a process has started.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let of =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.flatten().map(of).collect();
    let all = all.iter().flat_map(|text| text.split_whitespace()).map(|pid| pid.parse().unwrap());
    // The transport service of an agent is not a process of a run.
    let is_of_run = |pid: &u32| {
        !std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.contains("net-process"))
    };
    all.filter(is_of_run).collect()
}

/// False when it had ended before.
pub(crate) fn kill(pid: u32) -> bool {
    let lives = !ended(pid);
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    lives && rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
}

/// Whether a process is gone, or a zombie that is to be reaped.
pub(crate) fn ended(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.map_or(true, |text| text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Waits until a process has ended.
pub(crate) fn gone(pid: u32) -> bool {
    (0..4000).any(|_| {
        let ended = ended(pid);
        if !ended {
            std::thread::sleep(Duration::from_millis(5));
        }
        ended
    })
}

fn started(child: &mut Child) -> Vec<u32> {
    for _ in 0..4000 {
        let found = children(child.id());
        if found.len() == 3 || child.try_wait().unwrap().is_some() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("its workers do not start");
}

/// Makes the run last three seconds.
fn slow_down(place: &Place) {
    place.change("workflow.yaml", "rate: 2000/s", "rate: 1000/s");
    place.change("workflow.yaml", "rate: 4000/s", "rate: 2000/s");
}

/// Waits until a sink shows rows.
fn until_rows(place: &Place, child: &mut Child) {
    let has_rows = || place.path("out/pairs.jsonl").metadata().is_ok_and(|found| found.len() > 1000);
    while !has_rows() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_plan_in_three_processes_gives_what_one_gives() {
    let place = place();
    let told = tidemill(&[
        "run",
        &place.argument("workflow.yaml"),
        "--plan",
        &place.argument("plan.yaml"),
        "--processes",
        "--output",
        "json",
    ]);
    let report = told.expect(0).json();
    same(&outputs(&place), &undisturbed());
    let sinks = report["sinks"].as_array().unwrap();
    let rows = |id: &str| sinks.iter().find(|sink| sink["sink"] == id).unwrap()["records"].as_u64().unwrap();
    let lines = |file: &str| std::fs::read_to_string(place.path(file)).unwrap().lines().count() as u64;
    assert_eq!(rows("pairs"), lines("out/pairs.jsonl"));
    assert_eq!(report["dead_letters"], 9);
    let stages = report["stages"].as_array().unwrap();
    let pair = stages.iter().find(|stage| stage["stage"] == "pair").unwrap();
    assert_eq!(pair["worker"], "hub");
    assert_eq!(pair["records_out"].as_u64().unwrap(), rows("pairs"));
    // Processor time is that of the coordinator and that reported by the other processes.
    let threads = stages.iter().chain(report["slots"].as_array().unwrap());
    let told: f64 = threads.map(|thread| thread["processor_seconds"].as_f64().unwrap()).sum();
    let seconds = ["processor_seconds", "coordinator_processor_seconds"];
    let [all, own] = seconds.map(|name| report[name].as_f64().unwrap());
    assert!(told > 0.0 && (own + told - all).abs() < 1e-6, "{own} and {told}, {all}");
}

/// Workers, the coordinating process, or all are killed; the outputs must not show it.
#[test]
#[ignore = "long: make test-long"]
fn processes_that_are_killed_change_nothing() {
    let (place, mut random) = (place(), Random::of_seed(11));
    let (mut workers_killed, mut runs_killed) = (0, 0);
    loop {
        let mut child = start(&place, true);
        let mut found = started(&mut child);
        let mut kills_left = 3;
        while kills_left > 0 && child.try_wait().unwrap().is_none() {
            kills_left -= 1;
            std::thread::sleep(Duration::from_millis(80 + random.below(250) as u64));
            if child.try_wait().unwrap().is_some() {
                break;
            }
            found = children(child.id());
            if runs_killed < 3 && kills_left == 0 {
                child.kill().unwrap();
                runs_killed += 1;
            } else if workers_killed < 8 && !found.is_empty() {
                workers_killed += usize::from(kill(found[random.below(found.len())]));
            }
        }
        let output = child.wait_with_output().unwrap();
        assert!(found.iter().all(|pid| gone(*pid)), "a worker outlives its run");
        match output.status.code() {
            Some(0) => break,
            // Killed itself, or a worker before the first checkpoint.
            None | Some(69) => {}
            other => panic!("{other:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    assert!(workers_killed >= 4 && runs_killed >= 2, "{workers_killed} workers, {runs_killed} runs");
    same(&outputs(&place), &undisturbed());
    assert_eq!(place.files("out"), ["counted.csv", "dead.jsonl", "pairs.jsonl"]);
}

/// Repeated rows count once at the sinks, and the report says where they count again.
#[test]
#[ignore = "long: make test-long"]
fn the_report_says_what_counts_again_after_a_worker_was_lost() {
    let place = place();
    slow_down(&place);
    let [workflow, plan, state, report] =
        ["workflow.yaml", "plan.yaml", "state", "report.json"].map(|name| place.argument(name));
    let arguments =
        ["run", &workflow, "--plan", &plan, "--processes", "--state", &state, "--report-json", &report];
    let mut child = command(&[&arguments[..], &["--checkpoint-interval", "50ms"]].concat()).spawn().unwrap();
    let workers = started(&mut child);
    until_rows(&place, &mut child);
    assert!(workers.iter().all(|pid| kill(*pid)));
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("count each record once") && told.contains("count repeated work too"), "{told}");
    let report: serde_json::Value = serde_json::from_str(&place.read("report.json")).unwrap();
    assert!(report["restarts"].as_u64().unwrap() > 0, "{report}");
    let lines = place.read("out/pairs.jsonl").lines().count() as u64;
    let pairs = report["sinks"].as_array().unwrap().iter().find(|sink| sink["sink"] == "pairs").unwrap();
    assert_eq!(pairs["records"].as_u64(), Some(lines), "{pairs}");
    same(&outputs(&place), &undisturbed());
}

#[test]
fn a_worker_that_is_killed_without_a_state_ends_the_run() {
    let place = place();
    slow_down(&place);
    let mut child = start(&place, false);
    let found = started(&mut child);
    until_rows(&place, &mut child);
    assert!(kill(found[0]));
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{told}");
    assert!(told.contains("was killed by signal 9") && told.contains("--state DIR"), "{told}");
    assert!(found.iter().all(|pid| gone(*pid)), "a worker outlives its run");
    assert!(!Path::new(&place.path("out/.pairs.jsonl.lock")).exists());
}

/// Targets of a process's descriptors: `socket:[4711]`, `/memfd:tidemill-ring (deleted)`.
fn descriptors(pid: u32) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let targets = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.map(|target| target.display().to_string()).collect()
}

/// The lines of this table of the system for sockets of these processes.
fn sockets_in(table: &str, pids: &[u32]) -> Vec<String> {
    let text = std::fs::read_to_string(table).unwrap_or_default();
    let own: Vec<String> = pids.iter().flat_map(|pid| descriptors(*pid)).collect();
    let inode = |line: &str| line.split_whitespace().nth(9).map(|inode| format!("socket:[{inode}]"));
    let lines = text.lines().skip(1).filter(|line| inode(line).is_some_and(|inode| own.contains(&inode)));
    lines.map(str::to_owned).collect()
}

/// Sockets without files, and shared memory; nothing of them is left, although no process could clean up.
#[test]
fn processes_of_one_machine_share_memory_and_leave_no_sockets() {
    let place = place();
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
    let arguments = ["run", &workflow, "--plan", &plan, "--processes", "--quiet", "--rate", "100/s"];
    let mut child = command(&arguments).spawn().unwrap();
    let workers = started(&mut child);
    // Mapped: the descriptors themselves are closed.
    let shares = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/maps"))
            .is_ok_and(|maps| maps.contains("/memfd:tidemill"))
    };
    while !workers.iter().all(shares) {
        assert!(child.try_wait().unwrap().is_none(), "the run ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let all: Vec<u32> = workers.iter().copied().chain([child.id()]).collect();
    let named = |pid: &u32| {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        table.lines().filter(|line| line.contains(&format!(" @tidemill-{pid}-"))).count()
    };
    assert!(all.iter().all(|pid| named(pid) > 0), "somebody does not listen");
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        assert_eq!(sockets_in(table, &all), Vec::<String>::new(), "{table}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(workers.iter().all(|pid| gone(*pid)), "a worker outlives its run");
    // The kernel releases the sockets of a process a moment after its end.
    let is_free = |pid: &u32| {
        (0..1000).any(|_| {
            named(pid) == 0 || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        })
    };
    assert!(all.iter().all(is_free), "a socket outlives its run");
}
