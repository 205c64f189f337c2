//! A really full disk: a file system of 64 KiB in memory, visible only to the commands of a test (a mount namespace), so
//! that nothing is left of it. If the user may not mount, these tests print a note and check nothing.
use crate::command::{Outcome, Place, rows};
use std::process::Command;

/// Runs a shell script in the folder of the workflow, in its own mount namespace, with the binary as `$TIDEMILL`; `None` if
/// mounting is not allowed (exit code 250 of the script).
pub(crate) fn in_own_mounts(place: &Place, script: &str) -> Option<Outcome> {
    for rights in [&["--map-root-user", "--mount"][..], &["--mount"]] {
        let mut command = Command::new("unshare");
        command.args(rights).args(["sh", "-c", script]).current_dir(place.path(""));
        let output = command.env("TIDEMILL", env!("CARGO_BIN_EXE_tidemill")).output().unwrap();
        let outcome = Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        if !outcome.stderr.contains("unshare:") && outcome.code != Some(250) {
            return Some(outcome);
        }
        println!("not checked, because mounting is not allowed here: {}", outcome.stderr.trim());
    }
    None
}

/// Runs the binary with these arguments in the folder of the workflow, where `disk` is the small disk; `before` is a shell
/// command that prepares it. Its final content is in `left`.
fn run(place: &Place, before: &str, arguments: &str) -> Option<Outcome> {
    let script = format!(
        "mkdir -p disk && mount -t tmpfs -o size=64k small disk || exit 250
         {{ {before}\n}} && \"$TIDEMILL\" run workflow.yaml {arguments}
         code=$?; rm -rf left; cp -a disk left; exit $code"
    );
    in_own_mounts(place, &script)
}

/// 4000 rows in two seconds, and their outputs.
fn place(operator: &str, sink: &str, dead_letters: &str) -> Place {
    let place = Place::empty("full");
    // Incompressible text.
    let mut state: u64 = 1;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 40) as u8 % 26)
    };
    let mut text = || (0..90).map(|_| letter()).chain("END".chars()).collect::<String>();
    let lines: String = (0..4000).map(|n| format!("{n},{}\n", text())).collect();
    place.write("rows.csv", format!("n,text\n{lines}"));
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: full
sources: [{{id: rows, kind: csv, rate: 2000/s, options: {{path: rows.csv, columns: {{n: int64, text: text}}}}}}]
operators: [{{id: each, {operator}, input: rows}}]
sinks: [{{id: results, {sink}, input: each}}]
run: {{tick: 10ms, checkpoint_every: 4, dead_letters: {dead_letters}}}
"
        ),
    );
    place
}

const ALL: &str = "kind: filter, options: {where: n >= 0}";

#[test]
fn a_sink_keeps_what_it_committed_and_nothing_half() {
    for kind in ["jsonl", "csv", "parquet"] {
        let sink = format!("kind: {kind}, options: {{path: disk/results}}");
        let place = place(ALL, &sink, "dead.jsonl");
        let Some(outcome) = run(&place, "true", "") else { return };
        let printed = outcome.expect(69).stderr;
        for part in ["'results' failed", "No space left", "free some space", "committed rows"] {
            assert!(printed.contains(part), "{kind}: {printed}");
        }
        if kind == "parquet" {
            for part in
                ["Parquet cannot be read without its end, so there is no file", "of other outputs stay"]
            {
                assert!(printed.contains(part), "{printed}");
            }
            assert!(place.files("left").is_empty(), "{:?}", place.files("left"));
            continue;
        }
        assert_eq!(place.files("left"), ["results"]);
        let kept = place.read("left/results");
        let whole = |line: &str| line.trim_end_matches(['}', '"']).ends_with("END");
        let header = usize::from(kind == "csv");
        assert!(kept.ends_with('\n') && kept.lines().skip(header).all(whole), "{kind}: a line is cut off");
        assert!(kept.lines().count() > 100, "{kind}: {} lines", kept.lines().count());
    }
}

#[test]
fn a_parquet_file_of_the_run_before_stays_where_the_disk_is_full() {
    let place = place(ALL, "kind: parquet, options: {path: disk/results}", "dead.jsonl");
    let Some(outcome) = run(&place, "echo old > disk/results", "") else { return };
    let printed = outcome.expect(69).stderr;
    assert!(printed.contains("so the file of the last run stays"), "{printed}");
    assert_eq!(
        (place.files("left"), place.read("left/results")),
        (vec!["results".to_owned()], "old\n".to_owned())
    );
}

#[test]
fn dead_letters_are_as_careful() {
    let sink = "kind: jsonl, options: {path: results.jsonl}";
    let place = place("kind: map, options: {columns: {share: 1 / (n - n)}}", sink, "disk/dead.jsonl");
    let Some(outcome) = run(&place, "true", "") else { return };
    let printed = outcome.expect(69).stderr;
    for part in ["dead letters", "disk/dead.jsonl", "No space left", "free some space"] {
        assert!(printed.contains(part), "{printed}");
    }
    assert_eq!(place.files("left"), ["dead.jsonl"]);
    assert!(rows(&place.read("left/dead.jsonl")).len() > 20);
    assert_eq!(place.read("results.jsonl"), "");
}

#[test]
fn a_report_leaves_the_old_one_and_the_results() {
    let place = place(ALL, "kind: jsonl, options: {path: results.jsonl}", "dead.jsonl");
    let fill = "echo old > disk/report.html && head -c 57000 /dev/zero > disk/filler";
    let reports = "--report disk/report.html --report-json disk/report.json --epoch-log disk/epochs.jsonl";
    let Some(outcome) = run(&place, fill, &format!("--records 400 {reports}")) else { return };
    let outcome = outcome.expect(69);
    assert!(outcome.stdout.contains("full: complete"), "the run itself is told:\n{}", outcome.stdout);
    for part in ["`disk/report.html` cannot be written: No space left", "committed rows of the sinks"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    assert_eq!(place.read("left/report.html"), "old\n");
    // A file that fitted is whole.
    for file in place.files("left").iter().filter(|file| file.ends_with(".json")) {
        let content = place.read(&format!("left/{file}"));
        assert!(serde_json::from_str::<serde_json::Value>(&content).is_ok(), "{file} is cut off");
    }
    assert!(place.files("left").iter().all(|file| !file.starts_with('.')), "{:?}", place.files("left"));
    assert_eq!(place.rows("results.jsonl").len(), 400);
}

#[test]
fn a_run_that_fails_is_told_as_json_unless_stdout_has_rows() {
    let place = place(ALL, "kind: jsonl, options: {path: disk/results.jsonl}", "letters.jsonl");
    let Some(outcome) = run(&place, "true", "--output json") else { return };
    let document = outcome.expect(69).json();
    let finding = &document["findings"][0];
    assert!(finding["message"].as_str().unwrap().contains("No space left"), "{document}");
    assert_eq!(finding["line"], 5, "{document}");
    place.change("workflow.yaml", "sinks: [", "sinks: [{id: shown, kind: stdout, input: each}, ");
    let Some(outcome) = run(&place, "true", "--output json") else { return };
    let outcome = outcome.expect(69);
    assert!(outcome.stderr.contains("No space left"), "{}", outcome.stderr);
    assert!(!rows(&outcome.stdout).is_empty() && !outcome.stdout.contains("findings"), "{}", outcome.stdout);
}
