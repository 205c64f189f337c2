//! A model is trained on what a workflow has collected, and put into a running workflow: the session of `examples/finetune`, through the
//! built binary.
use crate::cluster::Cluster;
use crate::command::{Outcome, Place, root, tidemill};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_training::collected::{Encoding, Encodings};
use tidemill_training::{collected, model_file};

/// The example, without what an earlier session has left.
fn place() -> Place {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true if entry.file_name() == "out" => {}
                true => copy(&entry.path(), &to),
                false => {
                    std::fs::copy(entry.path(), to).unwrap();
                }
            }
        }
    }
    let place = Place::empty("finetune");
    copy(&root().join("examples/finetune"), &place.path(""));
    place
}

fn ask(place: &Place, verb: &str, file: &str, more: &[&str]) -> Outcome {
    tidemill(&[&[verb, &place.argument(file)], more].concat())
}

/// Runs `collect.yaml`, and returns the accuracy of the first model on what it has collected, in percent.
fn collect(place: &Place) -> f64 {
    let report = ask(place, "run", "collect.yaml", &["--rate", "max", "--output", "json"]).expect(0).json();
    report["sinks"][0]["accuracy_percent"].as_f64().unwrap()
}

/// Trains the first model further, and returns the report.
fn tune(place: &Place) -> Value {
    let out = place.argument("out/tuned");
    let answer = ask(place, "train", "tune.yaml", &["--ranks", "1", "--out", &out, "--output", "json"]);
    answer.expect(0).json()["report"].clone()
}

/// Answers to the later questions by key, and their accuracy in percent.
fn answers(place: &Place, model: &str) -> (BTreeMap<String, Value>, f64) {
    let set = format!("topic={model}");
    let more = ["--rate", "max", "--set", &set, "--output", "json"];
    let report = ask(place, "run", "tuned/workflow.yaml", &more).expect(0).json();
    let accuracy = report["sinks"][0]["accuracy_percent"].as_f64().unwrap();
    (by_key(&place.read("tuned/out/answers.jsonl")), accuracy)
}

fn by_key(text: &str) -> BTreeMap<String, Value> {
    let rows = crate::command::rows(text);
    let count = rows.len();
    let found: BTreeMap<String, Value> =
        rows.into_iter().map(|row| (row["key"].as_str().unwrap().to_owned(), row)).collect();
    assert_eq!(found.len(), count, "a question was answered twice");
    found
}

#[test]
fn a_model_learns_from_what_a_workflow_has_collected() {
    let place = place();
    let before = collect(&place);
    let text = place.read("out/heard/dataset.json");
    let description: Value = serde_json::from_str(&text).unwrap();
    let rows = |shard: &Value| shard["rows"].as_u64().unwrap();
    assert_eq!(description["shards"].as_array().unwrap().iter().map(rows).sum::<u64>(), 1800, "{text}");
    assert_eq!((&description["without_label"], &description["removed"]), (&0.into(), &0.into()));
    let report = tune(&place);
    let of = |name: &str| 100.0 * report[name].as_f64().unwrap();
    let (held_before, held_after) = (of("held_out_accuracy_before"), of("held_out_accuracy"));
    // 92.5 and 98.8 of 100 when this was written.
    assert!((before - held_before).abs() < 5.0, "{before} of all, {held_before} of those held out");
    assert!(held_after > held_before + 3.0, "{report}");
    let held = report["held_out"].as_u64().unwrap();
    assert!((300..420).contains(&held), "{held} of 1800 at 20 %");
    let out = place.argument("out/tuned/model.yaml");
    tidemill(&["validate", &out]).expect(0);
    tidemill(&["models", "verify", &out]).expect(0);
    // Later questions, of which nothing was collected.
    let (typed, of_typed) = answers(&place, "topic-typed");
    let (tuned, of_tuned) = answers(&place, "topic-tuned");
    assert!(of_tuned > of_typed + 2.0, "{of_typed} {of_tuned}");
    assert!(typed.len() == 600 && tuned.len() == 600);
    // The back end computes what the training has computed.
    let (classifier, manifest) = model_file::load(&place.path("out/tuned/model.yaml")).unwrap();
    let Encoding::Characters(characters) = &classifier.columns[0].encoding else { unreachable!() };
    let metric = manifest.metric.unwrap();
    assert!((100.0 * metric.value.value - held_after).abs() < 0.01 && metric.samples == held);
    for row in tuned.values() {
        let mut values = Vec::new();
        characters.append(row["question"].as_str().unwrap(), &mut values);
        let scores = classifier.scores(&values);
        let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap();
        assert_eq!(row["topic"], classifier.names[best], "{row}");
    }
    // Each reader of the folder holds out the same rows.
    let encodings = Encodings::from([("question".to_owned(), characters.clone())]);
    let all = collected::read(&place.path("out/heard"), &[], "right_topic", &encodings).unwrap();
    let (_, held_out) = all.named(&classifier.names).split(0.2);
    let quality = classifier.quality(&held_out);
    assert_eq!((quality.samples, 100.0 * quality.accuracy()), (held, held_after));
}

#[test]
fn a_new_model_is_profiled_and_swapped_into_a_running_workflow() {
    let place = place();
    collect(&place);
    tune(&place);
    let (typed, of_typed) = answers(&place, "topic-typed");
    let (tuned, of_tuned) = answers(&place, "topic-tuned");
    let infrastructure = place.argument("tuned/infrastructure.yaml");
    let out = place.argument("out/profile.yaml");
    let more = [
        "--infra",
        &infrastructure,
        "--budget",
        "2s",
        "--samples",
        "600",
        "--backend",
        "rten",
        "--out",
        &out,
    ];
    ask(&place, "profile", "tuned/workflow.yaml", &more).expect(0);
    let profile = tidemill(&["profile", "show", &out, "--output", "json"]).expect(0).json();
    let combinations = profile["profile"]["accuracy"]["end_to_end"].as_array().unwrap();
    let accuracy = |model: &str| {
        let of = combinations.iter().find(|one| one["variants"]["topic"] == model);
        of.unwrap()["accuracy"].as_str().unwrap().trim_end_matches('%').parse::<f64>().unwrap()
    };
    assert!((accuracy("topic-typed") - of_typed).abs() < 0.01, "{of_typed}: {combinations:?}");
    assert!((accuracy("topic-tuned") - of_tuned).abs() < 0.01, "{of_tuned}: {combinations:?}");
    // 600 questions for 20 seconds.
    place.change("tuned/workflow.yaml", "rate: 20/s", "rate: 30/s");
    let cluster = Cluster::start_in(place, &["edge"]);
    let argument = |file: &str| cluster.place.argument(file);
    let (workflow, plan) = (argument("tuned/workflow.yaml"), argument("tuned/plan-typed.yaml"));
    cluster.ask(&["submit", &workflow, "--plan", &plan]).expect(0);
    cluster.until("questions are answered", |cluster| {
        cluster.run_of("topics")["arrived"].as_u64().is_some_and(|arrived| arrived > 200)
    });
    let change =
        ["change", "topics", "--plan", &argument("tuned/plan-tuned.yaml"), "--yes", "--output", "json"];
    let outcome = cluster.ask(&change).expect(0).json();
    assert_eq!(outcome["change"]["outcome"]["kind"], "changed", "{outcome}");
    assert_ne!(cluster.run_of("topics")["state"], "complete", "the test needs more time");
    cluster.until("it is complete", |cluster| cluster.run_of("topics")["state"] == "complete");
    let fetched = cluster.ask(&["results", "topics", "--sink", "answers"]).expect(0).stdout;
    let found = by_key(&fetched);
    assert_eq!(found.keys().collect::<Vec<_>>(), typed.keys().collect::<Vec<_>>(), "each question once");
    let by = |answers: &BTreeMap<String, Value>, others: &BTreeMap<String, Value>| {
        let is_so = |key: &&String| found[*key] == answers[*key] && answers[*key] != others[*key];
        found.keys().filter(is_so).count()
    };
    let (old, new) = (by(&typed, &tuned), by(&tuned, &typed));
    assert!(old > 0 && new > 0, "{old} answers only of the old model, {new} only of the new one");
    let neither = found.keys().filter(|key| found[*key] != typed[*key] && found[*key] != tuned[*key]);
    assert_eq!(neither.count(), 0);
}

/// Questions in the dataset, in order.
fn collected_questions(place: &Place) -> Vec<Value> {
    let files = place.files("out/heard");
    let mut shards: Vec<&String> = files.iter().filter(|file| file.starts_with("rows-")).collect();
    shards.sort();
    shards.iter().flat_map(|file| place.rows(&format!("out/heard/{file}"))).collect()
}

#[test]
fn a_run_that_continues_collects_each_record_once() {
    let place = place();
    collect(&place);
    let whole = collected_questions(&place);
    assert_eq!(whole.len(), 1800);
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let state = place.argument("state");
    let run = |more: &[&str]| {
        let all = [&["--rate", "400/s", "--state", &state, "--checkpoint-interval", "100ms"], more].concat();
        ask(&place, "run", "collect.yaml", &all).expect(0)
    };
    run(&["--records", "700"]);
    let part = collected_questions(&place).len();
    assert!(part > 0 && part < 1800, "{part}");
    run(&[]);
    assert_eq!(collected_questions(&place), whole);
}

/// A label that comes later than its record arrives by a join.
#[test]
fn later_corrections_are_labels() {
    let place = Place::empty("corrections");
    let (mut rows, mut corrections) = ("key,size,at\n".to_owned(), "key,right,corrected_at\n".to_owned());
    for row in 0..100 {
        rows += &format!("k{row},{row}.5,{}\n", row * 1000);
        if row % 4 != 0 {
            let right = if row < 50 { "small" } else { "large" };
            corrections += &format!("k{row},{right},{}\n", row * 1000 + 600_000);
        }
    }
    place.write("rows.csv", rows);
    place.write("corrections.csv", corrections);
    let text = "version: 1
name: corrections
sources:
  - id: rows
    kind: csv
    key: key
    options: {path: rows.csv, columns: {key: text, size: float64, at: int64}, event_time: at}
  - id: corrections
    kind: csv
    key: key
    options: {path: corrections.csv, columns: {key: text, right: text, corrected_at: int64}, event_time: corrected_at}
operators:
  - {id: corrected, kind: join, inputs: [rows, corrections], options: {key: key, within: 1h}}
sinks:
  - {id: collected, kind: dataset, input: corrected, options: {path: out/sizes, inputs: [size], label: right}}
";
    place.write("workflow.yaml", text);
    ask(&place, "run", "workflow.yaml", &["--quiet"]).expect(0);
    let description: Value = serde_json::from_str(&place.read("out/sizes/dataset.json")).unwrap();
    let shards = description["shards"].as_array().unwrap();
    let of =
        |class: &str| shards.iter().map(|shard| shard["classes"][class].as_u64().unwrap_or(0)).sum::<u64>();
    assert_eq!((of("small"), of("large")), (37, 38), "{description}");
    // A number is no class.
    let wrong = text.replace("label: right}", "label: size}");
    place.write("workflow.yaml", wrong);
    let refused = ask(&place, "validate", "workflow.yaml", &[]).expect(78).stderr;
    assert!(refused.contains("column `size` is float64"), "{refused}");
}
