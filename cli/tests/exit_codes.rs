//! Mistakes are reported, with the right code, before anything is read.
use crate::command::{Place, command, tidemill};
use std::net::TcpListener;

#[test]
fn an_unknown_key_is_shown_with_its_place() {
    let place = Place::example("quickstart");
    place.change("workflow.yaml", "    kind: csv\n", "    kind: csv\n    raet: 40/s\n");
    for verb in ["validate", "run", "graph"] {
        let outcome = tidemill(&[verb, &place.argument("workflow.yaml")]).expect(78);
        assert!(outcome.stderr.starts_with("error[E0103]: unknown key `raet`"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("workflow.yaml:7:5"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("did you mean `rate`?"), "{}", outcome.stderr);
        assert!(!place.path("out").exists());
    }
    let coloured = tidemill(&["validate", &place.argument("workflow.yaml"), "--color", "always"]).expect(78);
    assert!(coloured.stderr.contains("\u{1b}["), "{}", coloured.stderr);
    let outcome = tidemill(&["validate", &place.argument("workflow.yaml"), "--output", "json"]).expect(78);
    let finding = &outcome.json()["files"][0]["findings"][0];
    assert_eq!(
        (&finding["code"], &finding["line"], &finding["column"]),
        (&"E0103".into(), &7.into(), &5.into())
    );
}

/// A workflow with one model whose manifest is in the same folder.
fn one_model(place: &Place, change: impl Fn(String) -> String) {
    let manifest = std::fs::read_to_string(place.path("../../models/vqa/scene-features-small.yaml")).unwrap();
    place.write("model.yaml", change(manifest));
    place.write(
        "workflow.yaml",
        "version: 1
name: one
sources: [{id: images, kind: image_directory, options: {path: data/images}}]
operators: [{id: features, kind: ml, input: images, variants: [model.yaml]}]
sinks: [{id: out, kind: jsonl, input: features, options: {path: out/features.jsonl}}]
",
    );
}

const SMALL: &str = "../../models/vqa/scene-features-small.onnx";

#[test]
fn a_bad_model_stops_everything() {
    let place = Place::example("vqa");
    let digit = |text: &str| if text.starts_with('f') { "0" } else { "f" };
    let cases: [(&str, &dyn Fn(String) -> String); 4] = [
        ("missing.onnx", &|text| text.replace("file: scene-features-small.onnx", "file: missing.onnx")),
        ("expects", &|text| {
            let start = text.find("sha256: ").unwrap() + "sha256: ".len();
            let text = text.replace("file: scene-features-small.onnx", &format!("file: {SMALL}"));
            let start = start + SMALL.len() - "scene-features-small.onnx".len();
            format!("{}{}{}", &text[..start], digit(&text[start..]), &text[start + 1..])
        }),
        ("expected", &|text| {
            text.replace("file: scene-features-small.onnx", &format!("file: {SMALL}")).replace("384]", "383]")
        }),
        ("is not an ONNX model", &|text| {
            text.replace("file: scene-features-small.onnx", "file: workflow.yaml")
        }),
    ];
    for (message, change) in cases {
        one_model(&place, change);
        let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(78);
        assert!(outcome.stderr.contains(message), "{message}: {}", outcome.stderr);
        assert!(!place.path("out").exists());
    }
}

#[test]
fn the_file_of_a_model_is_not_written_over() {
    let place = Place::example("vqa");
    std::fs::copy(place.path(SMALL), place.path("copy.onnx")).unwrap();
    one_model(&place, |text| text.replace("file: scene-features-small.onnx", "file: copy.onnx"));
    let before = std::fs::read(place.path("copy.onnx")).unwrap();
    let (workflow, copy) = (place.argument("workflow.yaml"), place.argument("copy.onnx"));
    let outcome = tidemill(&["run", &workflow, "--report", &copy]).expect(78);
    assert!(outcome.stderr.contains("it belongs to a model of `features`"), "{}", outcome.stderr);
    place.change("workflow.yaml", "out/features.jsonl", "copy.onnx");
    let outcome = tidemill(&["run", &workflow]).expect(78);
    assert!(outcome.stderr.contains("E0611"), "{}", outcome.stderr);
    assert!(before == std::fs::read(place.path("copy.onnx")).unwrap(), "the model is as it was");
}

#[test]
fn a_variant_without_its_file_is_left_out_if_there_is_another() {
    let place = Place::example("vqa");
    one_model(&place, |text| text.replace("file: scene-features-small.onnx", "file: gone.onnx"));
    place.change("workflow.yaml", "[model.yaml]", "[model.yaml, ../../models/vqa/scene-features-large.yaml]");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml"), "--records", "2"]).expect(0);
    assert!(
        outcome.stderr.contains("warning: features: scene-features-small is left out"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("gone.onnx is missing"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("features: scene-features-large (the only one"), "{}", outcome.stderr);
    assert_eq!(place.rows("out/features.jsonl").len(), 2);
}

#[test]
fn wrong_arguments_are_two() {
    let place = Place::example("vqa");
    let workflow = place.argument("workflow.yaml");
    for (arguments, message) in [
        (vec!["run"], "Usage: tidemill run"),
        (vec!["vallidate"], "validate"),
        (vec!["run", &workflow, "--rate", "40"], "write `40/s`"),
        (vec!["run", &workflow, "--set", "speech=speech-smal"], "did you mean `speech-small`?"),
        (vec!["run", &workflow, "--set", "spech=speech-small"], "did you mean `speech`?"),
        (vec!["run", &workflow, "--set", "pair=x"], "has no variants to set"),
        (vec!["run", &workflow, "--set", "speech=x", "--plan", "p.yaml"], "cannot be used with"),
        (vec!["run", &workflow, "--metrics", "nowhere"], "is not an address"),
    ] {
        let outcome = tidemill(&arguments).expect(2);
        assert!(outcome.stderr.contains(message), "{message}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty());
    }
}

#[test]
fn a_taken_port_is_sixty_nine() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = Place::example("quickstart");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml"), "--metrics", &address]).expect(69);
    assert!(outcome.stderr.contains(&address), "{}", outcome.stderr);
    assert!(!place.path("out").exists(), "nothing was opened");
}

#[test]
fn a_missed_slo_is_one_where_it_is_required() {
    let place = Place::example("vqa");
    place.change("workflow.yaml", "below: 800ms", "below: 1us");
    let workflow = place.argument("workflow.yaml");
    let arguments = ["run", &workflow, "--records", "8", "--rate", "max"];
    let outcome = tidemill(&[&arguments[..], &["--require-slo"]].concat()).expect(1);
    let latency = outcome.stdout.lines().find(|line| line.starts_with("latency  ")).unwrap();
    assert!(latency.contains("MISSED") && latency.contains("p99 below 1us"), "{latency}");
    tidemill(&arguments).expect(0);
}

#[test]
fn a_plan_is_checked_against_workflow_and_models() {
    let place = Place::example("vqa");
    place.change(
        "plan-two-workers.yaml",
        "variant: speech-large, worker: hub",
        "variant: speech-lrge, worker: hub",
    );
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan-two-workers.yaml"));
    for arguments in [vec!["run", &workflow, "--plan", &plan], vec!["validate", &workflow, &plan]] {
        let outcome = tidemill(&arguments).expect(78);
        assert!(outcome.stderr.contains("did you mean `speech-large`?"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("plan-two-workers.yaml:"), "{}", outcome.stderr);
    }
}

/// Each of the two joins would see only a part of the partners.
#[test]
fn a_plan_whose_join_is_not_routed_by_its_key_is_refused() {
    let place = Place::example("vqa");
    place.change(
        "workflow.yaml",
        "    key: key\n    rate: 40/s\n    options: {path: data/images}",
        "    rate: 40/s\n    options: {path: data/images}",
    );
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan-two-workers.yaml"));
    for arguments in [vec!["run", &workflow, "--plan", &plan], vec!["validate", &workflow, &plan]] {
        let outcome = tidemill(&arguments).expect(78);
        assert!(outcome.stderr.contains("source 'images' `key: key`"), "{}", outcome.stderr);
    }
}

#[test]
fn nobody_reading_is_success() {
    let place = Place::example("quickstart");
    for arguments in [vec!["schema".to_owned()], vec!["run".to_owned(), place.argument("workflow.yaml")]] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut child = command(&arguments).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        assert!(!said.contains("Broken pipe") && !said.contains("panicked"), "{said}");
    }
}

/// If stdout belongs to a sink the report goes to stderr: a closed stderr does not change the run's result.
#[test]
fn a_level_is_missed_whoever_reads_the_report() {
    let place = Place::example("quickstart");
    let with_level = "slo: {latency: {percentile: p99, below: 1us}}\noperators:\n";
    place.change("workflow.yaml", "operators:\n", with_level);
    let arguments = ["run", &place.argument("workflow.yaml"), "--require-slo"];
    let told = tidemill(&arguments).expect(1);
    assert!(told.stderr.contains("latency"), "{}", told.stderr);
    let mut child = command(&arguments).spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn options_of_the_list_of_people_are_not_passed_over() {
    for options in [["--output", "json"].as_slice(), &["--all"]] {
        let add = ["add", "Ada", "--role", "viewer"];
        let told = tidemill(&[&["people"][..], options, &add].concat()).expect(2).stderr;
        assert!(told.contains("before a verb apply to the list"), "{told}");
    }
}

#[test]
fn an_empty_access_token_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("tidemill://127.0.0.1:1/{}", "ab".repeat(32));
    let (login, list) = (["login", address.as_str()], ["list", "--controller", address.as_str()]);
    for (arguments, told) in
        [(login.as_slice(), "no access token"), (list.as_slice(), "no access token for this controller")]
    {
        let mut command = command(arguments);
        command.env("TIDEMILL_TOKEN", "").env("XDG_CONFIG_HOME", folder.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(78) && said.contains(told), "{said}");
    }
}

#[test]
fn what_only_planning_takes_needs_profiles() {
    for option in [["--replan", "auto"], ["--max-utilization", "0.5"], ["--time-limit", "5s"]] {
        let told = tidemill(&[&["submit", "workflow.yaml", "--plan", "plan.yaml"][..], &option].concat());
        let told = told.expect(2).stderr;
        assert!(told.contains("--profiles"), "{option:?}: {told}");
        let told = tidemill(&[&["submit", "workflow.yaml", "--one-worker"][..], &option].concat());
        let told = told.expect(2).stderr;
        assert!(told.contains(option[0]), "{option:?}: {told}");
    }
    // `--replan off` needs no profile: only the workflow is missing here.
    tidemill(&["submit", "no-such-workflow.yaml", "--one-worker", "--replan", "off"]).expect(78);
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_read() {
    let place = Place::example("quickstart");
    let workflow = place.argument("workflow.yaml");
    let nowhere = place.argument("readings.csv/report.json");
    let outcome = tidemill(&["run", &workflow, "--report-json", &nowhere]).expect(78);
    assert!(outcome.stderr.contains("readings.csv/report.json"), "{}", outcome.stderr);
    place.write("out", "a file, no folder");
    let outcome = tidemill(&["run", &workflow]).expect(78);
    assert!(outcome.stderr.contains("out/averages.jsonl"), "{}", outcome.stderr);
    assert!(outcome.stdout.is_empty());
}

#[test]
fn a_full_disk_is_sixty_nine() {
    let place = Place::example("quickstart");
    place.change("workflow.yaml", "out/averages.jsonl", "/dev/full");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(69);
    assert!(outcome.stderr.contains("free some space"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("on_panic"), "{}", outcome.stderr);
}

#[test]
fn nothing_that_is_read_is_overwritten() {
    let place = Place::example("quickstart");
    let readings = place.read("readings.csv");
    place.change("workflow.yaml", "out/averages.jsonl", "readings.csv");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(78);
    assert!(outcome.stderr.contains("source `readings` reads it"), "{}", outcome.stderr);
    place.change("workflow.yaml", "path: readings.csv}", "path: workflow.yaml}");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(78);
    assert!(outcome.stderr.contains("it is the workflow itself"), "{}", outcome.stderr);
    assert_eq!(place.read("readings.csv"), readings);
}

#[test]
fn an_epoch_log_of_another_workflow_is_refused() {
    let place = Place::example("quickstart");
    place.write("log.json", "{\"epoch_log\": 1, \"sources\": [\"images\"]}\n");
    let arguments = ["run", &place.argument("workflow.yaml"), "--replay", &place.argument("log.json")];
    let outcome = tidemill(&arguments).expect(78);
    assert!(
        outcome.stderr.contains("another workflow or plan: its sources are `images`"),
        "{}",
        outcome.stderr
    );
    assert!(!place.path("out").exists());
}

/// A terminal must not execute data, whether the engine reads it or it is in a file of the user.
#[test]
fn control_characters_of_data_are_shown_and_not_sent_to_terminals() {
    let place = Place::empty("escapes");
    place.write("sent.csv", "id,s\n\u{1b}[2J\u{9b}31m all is well,x\n2,y\n");
    let workflow = "version: 1
name: escapes
sources: [{id: sent, kind: csv, options: {path: sent.csv, columns: {id: int64, s: text}}}]
sinks: [{id: out, kind: jsonl, input: sent, options: {path: out/out.jsonl}}]
";
    place.write("workflow.yaml", workflow);
    let workflow = place.argument("workflow.yaml");
    let outcome = tidemill(&["run", &workflow]).expect(0);
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(said.contains("\\u001b[2J\\u009b31m all is well"), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{9b}']), "{said:?}");
    place.change("workflow.yaml", "kind: csv", "kind: \"c\\e[2Jsv\"");
    let outcome = tidemill(&["run", &workflow, "--color", "always"]).expect(78);
    assert!(!outcome.stderr.contains("\u{1b}[2J"), "{:?}", outcome.stderr);
}
