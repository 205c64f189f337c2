//! Workflows that changed since the checkpoint that they continue from: unchanged parts keep their state, changed ones are
//! reported before anything is modified; through the built binary.
use crate::command::{Place, command, tidemill};
use crate::processes;
use crate::states::{self, checkpoint, same, start, undisturbed, waits};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::Child;
use std::time::Duration;
use tidemill_random::Random;

/// A run that was killed in the middle.
fn killed() -> Place {
    let place = states::place();
    let mut child = start(&place);
    // 10 s of event time have arrived by then, an epoch every 0.2 s: the first window of 5 s is closed despite the join's 2
    // s, and the present one has rows.
    while epoch(&place) < 50 || !(10..=20).contains(&(epoch(&place) % 25)) {
        assert!(waits(&place, &mut child, 1), "it was over before it was killed");
    }
    kill_after(&place, &mut child, 0);
    place
}

/// The epoch of the last checkpoint.
fn epoch(place: &Place) -> u64 {
    let Ok(text) = std::fs::read_to_string(place.path("state/manifest.json")) else { return 0 };
    let manifest: Value = serde_json::from_str(&text).unwrap();
    manifest["manifest"]["epoch"].as_u64().unwrap()
}

fn kill_after(place: &Place, child: &mut Child, checkpoints: u64) {
    assert!(waits(place, child, checkpoints), "it was over before it was killed");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!checkpoint(place).1);
}

/// `run --state state` with these options besides.
fn run(place: &Place, options: &[&str]) -> crate::command::Outcome {
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let mut arguments = vec!["run", &workflow, "--state", &state, "--quiet"];
    arguments.extend(options);
    tidemill(&arguments)
}

fn diff(place: &Place, options: &[&str]) -> crate::command::Outcome {
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let mut arguments = vec!["state", "diff", &state, &workflow];
    arguments.extend(options);
    tidemill(&arguments)
}

/// A part in the answer of `state diff --output json`.
fn part<'a>(output: &'a Value, id: &str) -> &'a Value {
    let parts = output["changes"]["parts"].as_array().unwrap();
    parts.iter().find(|part| part["id"] == id).unwrap_or_else(|| panic!("no `{id}` in {output}"))
}

/// The join keeps its state to the byte while the window after it starts from nothing and a sink is added: it has just the
/// rows from the checkpoint on.
#[test]
fn what_did_not_change_keeps_its_state() {
    let place = killed();
    place.change("workflow.yaml", "size: 5s", "size: 4s");
    place.change(
        "workflow.yaml",
        "sinks:",
        "sinks:\n  - {id: late, kind: jsonl, input: pair, options: {path: out/late.jsonl}}",
    );
    let output = diff(&place, &["--output", "json"]).expect(1).json();
    let verdict = |id: &str| part(&output, id)["verdict"].as_str().unwrap().to_owned();
    assert_eq!(
        ["left", "pair", "pairs", "counted", "late"].map(verdict),
        ["goes_on", "goes_on", "goes_on", "begins_anew", "new"]
    );
    let change = &part(&output, "counted")["changes"][0];
    assert_eq!([&change["field"], &change["old"], &change["new"]], ["options.size", "5s", "4s"]);
    assert_eq!(
        [&output["ok"], &output["wants_acceptance"], &output["is_refused"]].map(Value::as_bool),
        [Some(false), Some(true), Some(false)]
    );
    let before = (std::fs::read(place.path("out/pairs.jsonl")).unwrap(), place.read("state/manifest.json"));
    let refused = run(&place, &[]).expect(78).stderr;
    assert!(refused.contains("changed: counted") && refused.contains("--accept-changes"), "{refused}");
    assert_eq!(
        (std::fs::read(place.path("out/pairs.jsonl")).unwrap(), place.read("state/manifest.json")),
        before
    );
    assert!(!place.path("out/late.jsonl").exists());
    run(&place, &["--accept-changes"]).expect(0);
    let (expected, pairs) = (undisturbed(), std::fs::read(place.path("out/pairs.jsonl")).unwrap());
    assert!(pairs == expected[0].1, "{} bytes, {} expected", pairs.len(), expected[0].1.len());
    assert_eq!(place.read("out/dead.jsonl").into_bytes(), expected[2].1);
    let late = std::fs::read(place.path("out/late.jsonl")).unwrap();
    assert!(!late.is_empty() && late.len() < pairs.len(), "{} of {} bytes", late.len(), pairs.len());
    assert!(pairs.ends_with(&late), "rows from the checkpoint on, each once");
    // Windows of 5 s before the checkpoint, of 4 s after it.
    let windows = place.read("out/counted.csv");
    let (old, rows) = (String::from_utf8(expected[1].1.clone()).unwrap(), windows.lines().count());
    let common = old.lines().zip(windows.lines()).take_while(|(a, b)| a == b).count();
    assert!(
        common > 1 && common < rows && windows.lines().all(|line| line.split(',').count() > 1),
        "{common} of {rows}"
    );
}

const NUMBERS: &str = "version: 1
name: numbers
sources:
  - {id: numbers, kind: csv, rate: 4000/s, options: {path: numbers.csv, columns: {at: int64, value: int64}, event_time: at}}
operators:
  - {id: some, kind: filter, input: numbers, options: {where: \"value % 2 == 0\"}}
sinks:
  - {id: all, kind: jsonl, input: some, options: {path: out/all.jsonl}}
run: {tick: 10ms, checkpoint_every: 5}
";

const COUNT: usize = 8_000;

fn numbers() -> Place {
    let place = Place::empty("numbers");
    place.write("workflow.yaml", NUMBERS);
    let rows: String = (0..COUNT).map(|i| format!("{},{i}\n", 1_700_000_000_000 + i)).collect();
    place.write("numbers.csv", format!("at,value\n{rows}"));
    place
}

fn values(place: &Place, file: &str) -> Vec<u64> {
    place.rows(file).iter().map(|row| row["value"].as_u64().unwrap()).collect()
}

/// Every record is in the outputs once: by the old rule before one position, by the new one from there on. Repeatedly.
#[test]
#[ignore = "long: make test-long"]
fn each_record_follows_one_rule() {
    let (place, mut random) = (numbers(), Random::of_seed(3));
    for turn in 0..2 {
        let mut child = start_with(&place, if turn == 0 { &[] } else { &["--accept-changes"] });
        std::thread::sleep(Duration::from_millis(random.below(40) as u64));
        kill_after(&place, &mut child, 3);
        let (old, new) = [("== 0", "== 1"), ("== 1", "== 0")][turn];
        place.change("workflow.yaml", old, new);
    }
    run(&place, &["--accept-changes"]).expect(0);
    let found = values(&place, "out/all.jsonl");
    assert_eq!((found.first(), found.last()), (Some(&0), Some(&(COUNT as u64 - 2))));
    let steps: Vec<u64> = found.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let switches = steps.iter().filter(|step| **step != 2).collect::<Vec<_>>();
    // From the last even one before a position to the first odd one after it.
    assert!(switches.len() == 2 && switches.iter().all(|step| [1, 3].contains(*step)), "{switches:?}");
}

fn start_with(place: &Place, options: &[&str]) -> Child {
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let mut arguments = vec!["run", &workflow, "--state", &state, "--checkpoint-interval", "50ms", "--quiet"];
    arguments.extend(options);
    command(&arguments).spawn().unwrap()
}

/// Another rate, and none: no row is lost, doubled or moved.
#[test]
#[ignore = "long: make test-long"]
fn another_rate_goes_on() {
    let place = numbers();
    for rate in ["4000/s", "2500/s", "6000/s"] {
        let mut child = start_with(&place, &["--rate", rate]);
        kill_after(&place, &mut child, 4);
    }
    let output = diff(&place, &["--rate", "max", "--output", "json"]).expect(0).json();
    let change = &part(&output, "numbers")["changes"][0];
    assert_eq!([&change["field"], &change["old"], &change["new"]], ["rate", "6000/s", "max"]);
    let output = diff(&place, &["--rate", "6000/s", "--output", "json"]).expect(0).json();
    assert!(part(&output, "numbers")["changes"].as_array().unwrap().is_empty());
    let mut child = start_with(&place, &["--rate", "max"]);
    if waits(&place, &mut child, 1) {
        child.kill().unwrap();
    }
    child.wait().unwrap();
    run(&place, &["--rate", "5000/s"]).expect(0);
    assert_eq!(values(&place, "out/all.jsonl"), (0..COUNT as u64).step_by(2).collect::<Vec<_>>());
}

/// A sink that changes its file leaves in the old one just the rows before the checkpoint.
#[test]
#[ignore = "long: make test-long"]
fn a_sink_begins_another_file() {
    let place = numbers();
    let mut child = start_with(&place, &[]);
    kill_after(&place, &mut child, 4);
    place.change("workflow.yaml", "out/all.jsonl", "out/next.jsonl");
    // Output of the process after its last checkpoint.
    let mut file = std::fs::OpenOptions::new().append(true).open(place.path("out/all.jsonl")).unwrap();
    std::io::Write::write_all(&mut file, b"{\"value\":").unwrap();
    run(&place, &["--accept-changes"]).expect(0);
    let (first, next) = (values(&place, "out/all.jsonl"), values(&place, "out/next.jsonl"));
    assert!(!first.is_empty() && !next.is_empty());
    assert_eq!([first, next].concat(), (0..COUNT as u64).step_by(2).collect::<Vec<_>>());
}

/// If the rates of joined sources change, their windows and pairs are the same rows.
#[test]
#[ignore = "long: make test-long"]
fn another_rate_gives_the_same_pairs() {
    let place = killed();
    let output = diff(&place, &["--rate", "max"]).expect(1).stdout;
    assert!(output.contains("merged by event time") && output.contains("give them a `rate`"), "{output}");
    run(&place, &["--rate", "max"]).expect(78);
    run(&place, &["--rate", "6000/s"]).expect(0);
    let expected = undisturbed();
    let sorted = |text: &[u8]| {
        let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        lines.sort_unstable();
        lines.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    for (file, expected) in &expected[..2] {
        let found = std::fs::read(place.path(file)).unwrap();
        assert!(
            sorted(&found) == sorted(expected),
            "{file}: {} bytes, {} expected",
            found.len(),
            expected.len()
        );
    }
}

/// A window and a join are kept by one stage, then by several, then by others: the outputs equal those of a run with one
/// plan.
#[test]
#[ignore = "long: make test-long"]
fn a_state_is_divided_by_its_keys() {
    let spread = || {
        let place = processes::place();
        place.change("workflow.yaml", "    kind: csv\n", "    kind: csv\n    key: key\n");
        // Slow enough not to end before it was killed three times.
        place.change("workflow.yaml", "rate: 4000/s", "rate: 1000/s");
        place.change("workflow.yaml", "rate: 2000/s", "rate: 500/s");
        place
    };
    let (place, plan) = (spread(), |place: &Place| place.argument("plan.yaml"));
    let copies = |pair: u32, counted: u32| {
        let text: Vec<String> = place
            .read("plan.yaml")
            .lines()
            .map(|line| {
                let own = |id: &str| line.contains(&format!("{{id: {id}, operator: {id},"));
                let copies = if own("pair") { pair } else { counted };
                match own("pair") || own("counted") {
                    true => format!(
                        "{}, partitions: {copies}}}",
                        line.split(", partitions").next().unwrap().trim_end_matches('}')
                    ),
                    false => line.to_owned(),
                }
            })
            .collect();
        place.write("plan.yaml", format!("{}\n", text.join("\n")));
    };
    for (turn, (pair, counted)) in [(1, 1), (2, 3), (3, 2)].into_iter().enumerate() {
        copies(pair, counted);
        if turn > 0 {
            let output = diff(&place, &["--plan", &plan(&place), "--output", "json"]).expect(0).json();
            let change = &part(&output, "counted")["changes"][0];
            assert_eq!(
                (&change["field"], change["new"].as_str()),
                (&Value::from("copies"), Some(&*counted.to_string()))
            );
            assert_eq!(
                [&part(&output, "pair")["verdict"], &part(&output, "counted")["verdict"]],
                ["goes_on", "goes_on"]
            );
        }
        let mut child = start_with(&place, &["--plan", &plan(&place)]);
        kill_after(&place, &mut child, 5);
        let shown = show(&place);
        let stages = |operator: &str| {
            let own = |stage: &&Value| stage["stage"].as_str().unwrap().starts_with(operator);
            shown["stages"].as_array().unwrap().iter().filter(own).count() as u32
        };
        assert_eq!((stages("pair"), stages("counted")), (pair, counted));
    }
    copies(1, 1);
    run(&place, &["--plan", &plan(&place)]).expect(0);
    let alone = spread();
    tidemill(&["run", &alone.argument("workflow.yaml"), "--plan", &plan(&alone), "--quiet"]).expect(0);
    for file in ["out/pairs.jsonl", "out/counted.csv"] {
        let (found, expected) = (alone.read(file), place.read(file));
        assert!(
            found == expected && found.len() > 500,
            "{file}: {} and {} bytes",
            expected.len(),
            found.len()
        );
    }
}

fn show(place: &Place) -> Value {
    tidemill(&["state", "show", &place.argument("state"), "--output", "json"]).expect(0).json()
}

fn stage<'a>(shown: &'a Value, id: &str) -> &'a Value {
    shown["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == id).unwrap()
}

/// One operator loses its state, all others continue.
#[test]
#[ignore = "long: make test-long"]
fn one_operator_begins_anew() {
    let place = killed();
    let state = place.argument("state");
    let refused = |operator: &str| tidemill(&["state", "reset", &state, operator]).expect(78).stderr;
    assert!(refused("some").contains("keeps no state") && refused("some").contains("counted, pair"));
    assert!(refused("left").contains("is a source"));
    assert!(refused("nowhere").contains("no operator `nowhere`"));
    let before = show(&place);
    let kept = stage(&before, "counted")["bytes"].as_u64().unwrap();
    assert!(kept > 0);
    let output = tidemill(&["state", "reset", &state, "counted", "--output", "json"]).expect(0).json();
    assert_eq!(
        (output["bytes"].as_u64(), output["forgotten"]["epoch"].as_u64()),
        (Some(kept), before["state"]["epoch"].as_u64())
    );
    let after = show(&place);
    assert_eq!(
        (stage(&after, "counted")["begins_anew"].as_bool(), stage(&after, "pair")),
        (Some(true), stage(&before, "pair"))
    );
    assert_eq!(after["state"]["sources"], before["state"]["sources"]);
    assert_eq!(
        after["state"]["checkpoint"].as_u64(),
        before["state"]["checkpoint"].as_u64().map(|number| number + 1)
    );
    run(&place, &[]).expect(0);
    let expected = undisturbed();
    assert!(std::fs::read(place.path("out/pairs.jsonl")).unwrap() == expected[0].1);
    let counted = |text: &str| -> u64 {
        let at = text.lines().next().unwrap().split(',').position(|name| name == "n").unwrap();
        text.lines().skip(1).map(|line| line.split(',').nth(at).unwrap().parse::<u64>().unwrap()).sum()
    };
    let (found, all) =
        (counted(&place.read("out/counted.csv")), counted(std::str::from_utf8(&expected[1].1).unwrap()));
    assert!(found < all && found > 0, "{found} of {all} pairs are in windows");
    let ended = show(&place);
    assert_eq!((ended["ended"].as_bool(), &ended["state"]["epoch"]), (Some(true), &Value::Null));
    let shown = tidemill(&["state", "show", &state]).expect(0).stdout;
    assert!(shown.contains("at the end") && !shown.contains("18446744073709551615"), "{shown}");
    assert!(tidemill(&["state", "reset", &state, "counted"]).expect(78).stderr.contains("come to its end"));
}

/// A run ended by a limit continues from the checkpoint before it, and so does a reset operator.
#[test]
#[ignore = "long: make test-long"]
fn an_operator_of_a_run_that_a_limit_ended_begins_anew() {
    let place = states::place();
    run(&place, &["--records", "3000", "--checkpoint-interval", "50ms"]).expect(0);
    let state = place.argument("state");
    let stopped = show(&place);
    assert_eq!(
        (stopped["state"]["complete"].as_bool(), &stopped["state"]["epoch"]),
        (Some(true), &Value::Null)
    );
    let output = tidemill(&["state", "reset", &state, "counted"]).expect(0).stderr;
    assert!(
        output.contains("had stopped at --records 3000") && !output.contains("come to its end"),
        "{output}"
    );
    let after = show(&place);
    assert_eq!(stage(&after, "counted")["begins_anew"], true);
    assert!(after["state"]["epoch"].as_u64().unwrap() > 0 && after["state"]["complete"] == false, "{after}");
    assert_eq!(
        after["state"]["checkpoint"].as_u64(),
        stopped["state"]["checkpoint"].as_u64().map(|number| number + 1)
    );
    run(&place, &[]).expect(0);
    let expected = undisturbed();
    assert!(std::fs::read(place.path("out/pairs.jsonl")).unwrap() == expected[0].1);
    assert!(
        place.read("out/counted.csv").as_bytes() != expected[1].1,
        "what `counted` had seen is forgotten"
    );
}

/// The holder of the state keeps it.
#[test]
fn an_operator_of_a_run_is_left_alone() {
    let place = states::slow_place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 2));
    let refused = tidemill(&["state", "reset", &place.argument("state"), "counted"]).expect(69).stderr;
    assert!(refused.contains(&format!("in use by process {}", child.id())), "{refused}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
}

/// A kill at any moment leaves all of the change or nothing.
#[test]
#[ignore = "long: make test-long"]
fn half_a_reset_is_never_seen() {
    let (place, mut random) = (killed(), Random::of_seed(11));
    let (state, before) = (place.argument("state"), show(&place));
    let number = |shown: &Value| shown["state"]["checkpoint"].as_u64().unwrap();
    let mut kills = 0;
    let mut last = number(&before);
    for _ in 0..40 {
        let mut child = command(&["state", "reset", &state, "counted"]).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(12_000) as u64));
        kills += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        let shown = show(&place);
        let is_reset = stage(&shown, "counted")["begins_anew"].as_bool().unwrap();
        assert_eq!(is_reset, number(&shown) > number(&before), "{shown}");
        assert!(number(&shown) >= last && stage(&shown, "pair") == stage(&before, "pair"));
        last = number(&shown);
    }
    assert!(kills > 0, "it was always over before it was killed");
    run(&place, &[]).expect(0);
    same(&[("out/pairs.jsonl", std::fs::read(place.path("out/pairs.jsonl")).unwrap())], &undisturbed()[..1]);
}
