//! Unusable records never stop a run.
use crate::command::{Place, tidemill};

#[test]
fn bad_files_become_dead_letters() {
    let place = Place::empty("vqa");
    let data = |file: &str| std::fs::read(place.path("../..").join("data").join(file)).unwrap();
    std::os::unix::fs::symlink(crate::command::root().join("examples/vqa/data"), place.path("../../data"))
        .unwrap();
    let workflow =
        std::fs::read_to_string(crate::command::root().join("examples/vqa/workflow.yaml")).unwrap();
    place.write("workflow.yaml", workflow);
    place.write("data/truth.csv", data("truth.csv"));
    for key in ["000000", "000001", "000002", "000003"] {
        place.write(&format!("data/images/{key}.jpg"), data(&format!("images/{key}.jpg")));
        place.write(&format!("data/questions/{key}.wav"), data(&format!("questions/{key}.wav")));
    }
    let whole = data("images/000001.jpg");
    place.write("data/images/000001.jpg", &whole[..whole.len() / 2]);
    place.write("data/questions/000002.wav", "");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml"), "--output", "json"]).expect(0);
    let report = outcome.json();
    assert_eq!(report["sinks"][0]["records"], 2, "{report}");
    assert_eq!(report["dead_letters"], 2, "{report}");
    let letters = place.rows("out/dead_letters.jsonl");
    let mut reasons: Vec<&str> = letters.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["file_empty", "image_truncated"]);
    assert_eq!(place.files("out"), ["answers.jsonl", "dead_letters.jsonl"]);
    let table = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0).stdout;
    assert!(table.contains("dead letter  image_truncated  scene_features"), "{table}");
    // The other halves of both have no partner, which is reported and not counted as a second loss.
    assert!(!table.contains("dropped      unmatched"), "{table}");
    assert!(table.contains("pair: records without a partner, which are not losses (unmatched): "), "{table}");
}

#[test]
fn a_run_without_results_says_so_also_when_it_is_to_be_quiet() {
    let place = Place::empty("lost");
    place.write("rows.csv", "at,n\n1,9223372036854775807\n2,9223372036854775807\n");
    place.write(
        "workflow.yaml",
        "version: 1
name: lost
sources:
  - {id: rows, kind: csv, options: {path: rows.csv, columns: {at: int64, n: int64}, event_time: at}}
operators:
  - {id: more, kind: map, input: rows, options: {columns: {n: n + at}}}
sinks:
  - {id: out, kind: jsonl, input: more, options: {path: out.jsonl}}
",
    );
    let output = tidemill(&["run", &place.argument("workflow.yaml"), "--quiet"]).expect(0).stderr;
    assert_eq!(output, "warning: no record reached a sink: 2 dead letters and no results\n");
    place.change("rows.csv", "\n2,9223372036854775807", "\n2,5");
    assert_eq!(tidemill(&["run", &place.argument("workflow.yaml"), "--quiet"]).expect(0).stderr, "");
}

/// 100 rows at 200 a second, judged by the rate; `operator` loses some of them, and `more` are the source's options.
fn rated(operator: &str, more: &str) -> Place {
    let place = Place::empty("rated");
    let rows: String = (0..100).map(|n| format!("{n},k{}\n", n % 50)).collect();
    place.write("rows.csv", format!("n,key\n{rows}"));
    place.write(
        "truth.csv",
        (0..100).map(|n| format!("k{n},k{n}\n")).fold("key,answer\n".to_owned(), |a, b| a + &b),
    );
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: rated
sources:
  - {{id: rows, kind: csv, rate: 200/s{more}, options: {{path: rows.csv, columns: {{n: int64, key: text}}}}}}
operators:
  - {operator}
sinks:
  - id: out
    kind: jsonl
    input: some
    options: {{path: out.jsonl}}
    ground_truth: {{path: truth.csv, key: key, prediction: key, truth: answer}}
slo: {{rate: 50/s}}
"
        ),
    );
    place
}

#[test]
fn the_rate_is_of_what_came_through() {
    // One of fifty does not fail.
    let place =
        rated("{id: some, kind: map, input: rows, options: {columns: {m: 'n / (n % 50 == 0 ? 1 : 0)'}}}", "");
    let workflow = place.argument("workflow.yaml");
    let arguments = ["run", workflow.as_str(), "--require-slo"];
    let table = tidemill(&arguments).expect(1).stdout;
    assert!(table.contains("MISSED") && table.contains("/s (lost: 98 dead letters)"), "{table}");
    let report = tidemill(&[&arguments[..], &["--output", "json"]].concat()).expect(1).json();
    assert_eq!(
        (&report["dead_letters"], &report["sinks"][0]["records"]),
        (&98.into(), &2.into()),
        "{report}"
    );
    assert_eq!(report["slo"][0]["met"], false, "{report}");
}

#[test]
fn what_a_filter_takes_out_is_not_missing() {
    let place = rated("{id: some, kind: filter, input: rows, options: {where: 'n % 2 == 0'}}", "");
    let report = tidemill(&["run", &place.argument("workflow.yaml"), "--require-slo", "--output", "json"]);
    let report = report.expect(0).json();
    assert_eq!(
        (&report["sinks"][0]["records"], &report["slo"][0]["met"]),
        (&50.into(), &true.into()),
        "{report}"
    );
}

/// A repeated record adds no information on accuracy.
#[test]
fn repeated_records_are_judged_once() {
    let place = rated("{id: some, kind: filter, input: rows, options: {where: 'true'}}", ", repeat: true");
    let workflow = place.argument("workflow.yaml");
    let run = |more: &[&str]| {
        let arguments = ["run", workflow.as_str(), "--rate", "max", "--output", "json"];
        let report = tidemill(&[&arguments[..], more].concat()).expect(0).json();
        (report["sinks"][0]["records"].as_u64().unwrap(), report["sinks"][0]["scored"].as_u64().unwrap())
    };
    assert_eq!(run(&["--records", "2000"]), (2000, 50));
    place.change("workflow.yaml", ", repeat: true", "");
    assert_eq!(run(&[]), (100, 100), "a key that comes twice by itself counts twice");
}

/// Two inputs with event times of different clocks never match. The warning shows both times.
#[test]
fn a_join_that_matches_nothing_says_how_far_its_inputs_lie_apart() {
    let place = Place::empty("apart");
    place.write("orders.csv", "k,at\na,1700000000000\nb,1700000001000\n");
    place.write("customers.csv", "k,name\na,x\nb,y\n");
    place.write(
        "workflow.yaml",
        "version: 1
name: apart
sources:
  - {id: orders, kind: csv, options: {path: orders.csv, columns: {k: text, at: int64}, event_time: at}}
  - {id: customers, kind: csv, options: {path: customers.csv, columns: {k: text, name: text}}}
operators: [{id: both, kind: join, inputs: [orders, customers], options: {key: k, within: 1h}}]
sinks: [{id: out, kind: jsonl, input: both, options: {path: out/both.jsonl}}]
",
    );
    let workflow = place.argument("workflow.yaml");
    let said = tidemill(&["run", &workflow]).expect(0).stderr;
    for part in ["join `both` matched nothing", "of `customers` 1970-01-01", "of `orders` 2023-11-14"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    place.change("workflow.yaml", "within: 1h", "within: 36500d");
    let said = tidemill(&["run", &workflow]).expect(0).stderr;
    assert!(!said.contains("matched nothing"), "{said}");
}

/// A limit equal to the number of records cuts nothing short: missing texts count as missing.
#[test]
fn a_limit_at_the_end_of_a_source_leaves_nothing_out() {
    let place = Place::empty("limit");
    place.write("rows.csv", "k,text\na,one\nb,two\nc,six\n");
    place.write("truth.csv", "k,text\na,one\nb,two\nc,six\n");
    place.write(
        "workflow.yaml",
        "version: 1
name: limit
sources: [{id: rows, kind: csv, options: {path: rows.csv, columns: {k: text, text: text}}}]
operators: [{id: some, kind: filter, input: rows, options: {where: \"k != 'b'\"}}]
sinks:
  - id: out
    kind: jsonl
    input: some
    options: {path: out/rows.jsonl}
    ground_truth: {path: truth.csv, key: k, prediction: text, truth: text, compare: characters}
",
    );
    let workflow = place.argument("workflow.yaml");
    let run = |more: &[&str]| {
        let report = tidemill(&[&["run", &workflow, "--output", "json"][..], more].concat()).expect(0).json();
        (report["sinks"][0]["accuracy_percent"].as_f64().unwrap().round(), report["cut_short"] == true)
    };
    assert_eq!(run(&[]), (67.0, false));
    assert_eq!(run(&["--records", "3"]), (67.0, false));
    assert_eq!(run(&["--records", "4"]), (67.0, false));
    assert_eq!(run(&["--records", "1"]), (100.0, true), "what was not read is not missing");
}
