//! `tidemill test`: passes what is right, fails what is not, and says why.
use crate::command::{Place, command, root, tidemill};
use serde_json::Value;

const WORKFLOW: &str = "\
version: 1
name: readings
sources:
  - id: readings
    kind: csv
    rate: 1/s
    options: {path: readings.csv, columns: {time: int64, n: int64, v: float64}, event_time: time}
operators:
  - {id: counts, kind: window, input: readings, options: {size: 1s, aggregates: [{function: count}, {function: mean, column: v}]}}
sinks:
  - {id: out, kind: jsonl, input: counts, options: {path: out.jsonl}}
  - {id: too_late, kind: jsonl, input: counts.late, options: {path: late.jsonl}}
run: {dead_letters: letters.jsonl}
";

fn place(tests: &str) -> Place {
    let place = Place::empty("tests");
    place.write("workflow.yaml", WORKFLOW);
    place.write("readings.csv", "time,n,v\n1,1,0.5\n");
    place.write("workflow.test.yaml", format!("version: 1\nworkflow: workflow.yaml\n{tests}"));
    place
}

const TWO: &str = "    sources: {readings: [{time: 1, n: 1, v: 1.0}, {time: 2, n: 2, v: 2.0}, {time: 1500, n: 3, v: 4.0}]}\n";

fn run(place: &Place, more: &[&str]) -> crate::command::Outcome {
    let file = place.argument("workflow.test.yaml");
    tidemill(&[&["test", &file], more].concat())
}

#[test]
fn rows_counts_and_letters_are_compared_and_nothing_is_written() {
    let place = place(&format!(
        "tests:
  - name: all\n{TWO}    expect:
      out: {{ordered: true, rows: [{{count: 2, mean_v: 1.5}}, {{count: 1, mean_v: 4}}]}}
      counts: [{{window_start: 1000}}, {{window_start: 0}}]
      too_late: []
  - name: near enough\n{TWO}    expect:
      out: {{columns: {{mean_v: {{absolute: 0.1}}}}, rows: [{{mean_v: 1.41}}, {{mean_v: 4.09}}]}}
  - name: what the workflow reads
    expect: {{out: [{{count: 1}}]}}
  - name: bad values
    sources: {{readings: [{{time: 1, n: one}}, {{time: 2, n: 7}}]}}
    expect: {{readings: [{{n: 7, v: null}}]}}
    dead_letters: {{readings: {{bad_value: 1}}}}
  - name: other windows\n{TWO}    options: {{counts: {{size: 2s}}}}
    expect: {{out: [{{count: 3}}]}}
"
    ));
    let before = place.files("").len();
    let passed = run(&place, &[]).expect(0);
    assert!(passed.stdout.ends_with("5 passed\n"), "{}", passed.stdout);
    assert_eq!(place.files("").len(), before);
}

#[test]
fn late_rows_go_to_their_own_sink() {
    // The watermark follows the rows of an epoch, so the late one is in a later epoch: a second is 20 ticks.
    let place = place(
        "tests:
  - name: late
    sources: {readings: [{time: 100, n: 1}, {time: 2500, n: 2}, {time: 200, n: 3}]}
    expect:
      out: [{window_start: 0, count: 1}, {window_start: 2000, count: 1}]
      too_late: [{time: 200, n: 3, _time: 200000}]
    drops: {counts: {}}
",
    );
    run(&place, &[]).expect(0);
}

#[test]
fn what_differs_is_shown_and_update_takes_it() {
    let place = place(&format!(
        "tests:
  - name: wrong # stays
{TWO}    expect:
      out:
        - {{count: 2, mean_v: 1.25}}
        - {{count: 5, mean_v: 9.5}}
        - {{count: 1, mean_v: 4.0}}
"
    ));
    let failed = run(&place, &[]).expect(1);
    for text in [
        "out: expected 3 rows, found 2; these differ:",
        "row differs in mean_v",
        "expected 2      1.25",
        "found    2      1.5",
        "row is missing: {count: 5, mean_v: 9.5}",
        "0 passed, 1 failed",
    ] {
        assert!(failed.stdout.contains(text), "no `{text}` in\n{}", failed.stdout);
    }
    let document: Value = run(&place, &["--output", "json"]).expect(1).json();
    let failure = &document["files"][0]["tests"][0]["failures"][0];
    assert_eq!((&failure["id"], &failure["found"]), (&"out".into(), &2.into()), "{document}");
    assert_eq!(failure["differences"][0]["columns"][0], "mean_v");
    let updated = run(&place, &["--update"]).expect(0);
    assert!(updated.stdout.ends_with("0 passed, 1 updated\n"), "{}", updated.stdout);
    let text = place.read("workflow.test.yaml");
    assert!(text.contains("# stays") && text.contains("        - {count: 2, mean_v: 1.5}\n"), "{text}");
    run(&place, &[]).expect(0);
}

#[test]
fn letters_and_drops_that_are_not_expected_fail() {
    let place = place(
        "tests:
  - name: letters
    sources: {readings: [{time: 1, n: one}]}
    expect: {out: []}
  - name: drops
    sources: {readings: [{time: 1, n: 1}]}
    expect: {out: [{count: 1}]}
    drops: {counts: {late: 3}}
",
    );
    let failed = run(&place, &[]).expect(1).stdout;
    assert!(failed.contains("readings: 1 dead letters `bad_value`, expected 0"), "{failed}");
    assert!(failed.contains("\"one\" is not int64"), "{failed}");
    assert!(failed.contains("counts: 0 drops `late`, expected 3"), "{failed}");
}

#[test]
fn mistakes_have_their_place() {
    for (test, line, message) in [
        (
            "tests:\n  - {name: a, sources: {reading: []}, expect: {out: []}}\n",
            4,
            "the workflow has no `reading`",
        ),
        (
            "tests:\n  - {name: a, sources: {readings: [{m: 1}]}, expect: {out: []}}\n",
            4,
            "source `readings` has no column `m`",
        ),
        ("tests:\n  - name: a\n    expect: {out: [{cuont: 1}]}\n", 5, "rows of `out` have no column `cuont`"),
        ("tests:\n  - name: a\n    expect: {oot: []}\n", 5, "the workflow has no `oot`"),
        ("tests:\n  - name: a\n    expect: {}\n", 4, "expects nothing"),
        ("tests: []\n", 3, "there are no tests"),
        ("tests:\n  - {name: a, options: {counts: {sise: 1s}}, expect: {out: []}}\n", 4, "sise"),
    ] {
        let place = place(test);
        let wrong = run(&place, &[]).expect(78);
        assert!(wrong.stderr.contains(message), "{test}: {}", wrong.stderr);
        let at = format!("workflow.test.yaml:{line}:");
        assert!(wrong.stderr.contains(&at), "{test}: {}", wrong.stderr);
        let document = run(&place, &["--output", "json"]).expect(78).json();
        let file = &document["files"][0];
        let findings =
            file["findings"].as_array().unwrap().first().unwrap_or(&file["tests"][0]["findings"][0]);
        assert_eq!(findings["line"], line, "{document}");
    }
}

#[test]
fn a_stream_needs_an_input() {
    let place = place("tests:\n  - {name: a, expect: {out: []}}\n");
    place.write("workflow.yaml", WORKFLOW.replace("path: readings.csv", "path: pipe, stream: until_end"));
    let wrong = run(&place, &[]).expect(78);
    assert!(wrong.stderr.contains("which a test cannot wait for"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("sources: {readings: ...}"), "{}", wrong.stderr);
}

/// The rows of a test are no requests, and the answers are the rows of the sink.
#[test]
fn a_service_is_tested_without_a_port() {
    let place = Place::empty("tests");
    place.write(
        "workflow.yaml",
        "version: 1
name: rating
sources:
  - {id: requests, kind: http, options: {listen: '127.0.0.1:1', columns: {celsius: float64}}}
operators:
  - {id: rate, kind: map, input: requests, options: {columns: {warm: celsius > 20.0}}}
sinks:
  - {id: answers, kind: http, input: rate, options: {answers: requests, columns: [warm]}}
",
    );
    place.write(
        "workflow.test.yaml",
        "version: 1
workflow: workflow.yaml
tests:
  - name: warm
    sources: {requests: [{celsius: 21.5}, {celsius: 3.0}]}
    expect: {answers: [{warm: true}, {warm: false}]}
",
    );
    let passed = run(&place, &[]).expect(0);
    assert!(passed.stdout.ends_with("1 passed\n"), "{}", passed.stdout);
}

#[test]
fn folders_are_searched_and_names_chosen() {
    let place =
        place("tests:\n  - {name: one, expect: {out: [{count: 1}]}}\n  - {name: two, expect: {out: []}}\n");
    let run = |more: &[&str]| {
        let output = command(&[&["test"], more].concat()).current_dir(place.path("")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, out) = run(&[]);
    assert!(
        code == Some(1)
            && out.contains("ok    workflow.test.yaml: one")
            && out.contains("FAIL  workflow.test.yaml: two"),
        "{out}"
    );
    assert_eq!(run(&["--only", "one"]).0, Some(0));
    assert_eq!(run(&["--only", "three"]).0, Some(2));
    assert_eq!(run(&["nowhere"]).0, Some(78));
    std::fs::remove_file(place.path("workflow.test.yaml")).unwrap();
    assert_eq!(run(&[]).0, Some(66));
}

#[test]
fn the_tests_of_the_examples_pass() {
    for (example, passed) in [("quickstart", "4 passed\n"), ("vqa", "1 passed\n")] {
        let folder = root().join("examples").join(example);
        let outcome = tidemill(&["test", folder.to_str().unwrap()]).expect(0);
        assert!(outcome.stdout.ends_with(passed), "{}", outcome.stdout);
    }
}
