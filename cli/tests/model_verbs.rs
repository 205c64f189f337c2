//! `tidemill models`.
use crate::command::{Place, command, tidemill};

#[test]
fn models_are_listed_with_what_matters() {
    let document = tidemill(&["models", "ls", "--output", "json"]).expect(0).json();
    let models = document["models"].as_array().unwrap();
    let shipped: Vec<_> = models.iter().filter(|model| model["fetch"].is_null()).collect();
    assert!((5..models.len()).contains(&shipped.len()), "shipped ones and others");
    for model in shipped {
        assert!(model["metric"]["interval"][0].is_number(), "{model}");
        assert!(model["backends_here"].as_array().unwrap().contains(&"rten".into()), "{model}");
    }
    let text = tidemill(&["models", "ls", "models/vqa"]).expect(0).stdout;
    assert!(text.lines().any(|line| line.starts_with("speech-small ") && line.contains("audio -> question")));
    tidemill(&["models", "ls", "spec/src"]).expect(78);
}

#[test]
fn where_there_are_no_models_it_is_said_what_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(&["models", "ls"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("cannot read the folder models"), "{printed}");
    assert!(printed.contains("by default in `models` of the current folder"), "{printed}");
}

#[test]
fn a_list_in_which_a_manifest_is_wrong_is_no_success() {
    let place = Place::empty("models");
    let manifest = std::fs::read_to_string(place.path("../../models/vqa/answerer-small.yaml")).unwrap();
    place.write("good.yaml", &manifest);
    place.write("bad.yaml", manifest.replace("licence:", "license:"));
    let outcome = tidemill(&["models", "ls", &place.argument(""), "--output", "json"]).expect(78);
    let document = outcome.json();
    assert_eq!(document["models"].as_array().unwrap().len(), 1, "{document}");
    let file = document["findings"][0]["file"].as_str().unwrap();
    assert!(file.ends_with("bad.yaml") && outcome.stderr.contains("bad.yaml:"), "{document}");
    std::fs::remove_file(place.path("bad.yaml")).unwrap();
    tidemill(&["models", "ls", &place.argument("")]).expect(0);
}

#[test]
fn several_models_are_checked_at_once() {
    let [one, two] = ["models/vqa/answerer-small.yaml", "models/vqa/speech-small.yaml"];
    let document = tidemill(&["models", "verify", one, two, one, "--output", "json"]).expect(0).json();
    let ids: Vec<_> = document["models"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["answerer-small", "speech-small"], "each once");
    tidemill(&["models", "verify"]).expect(2);
}

/// A project whose answerer looks letters up beyond the end of its table, which ONNX Runtime refuses.
#[test]
fn what_onnx_runtime_says_goes_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    tidemill(&["init", project.to_str().unwrap(), "--template", "vqa"]).expect(0);
    let change = |file: &str, from: &str, to: &str| {
        let path = project.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    };
    change("models/answerer-small.yaml", "' abc", "'0123456789!#$%&()*+,-./:;<=>@[]^_{|}~ abc");
    change(
        "workflow.yaml",
        "models/answerer-small.yaml]\n    backend: rten",
        "models/answerer-small.yaml]\n    backend: ort",
    );
    let workflow = project.join("workflow.yaml");
    let run = ["run", workflow.to_str().unwrap(), "--rate", "max", "--records", "3"];
    let quiet = tidemill(&run).expect(0);
    let letters = std::fs::read_to_string(project.join("out/dead_letters.jsonl")).unwrap();
    assert!(letters.lines().count() == 3 && letters.contains("model_failed"), "{letters}");
    assert!(letters.contains("indices element out of data bounds"), "it is reported: {letters}");
    for sign in ["\u{1b}", "onnxruntime, ", "[E:"] {
        assert!(!quiet.stderr.contains(sign), "{}", quiet.stderr);
    }
    let printed = tidemill(&[&run[..], &["--log-level", "info"]].concat()).expect(0).stderr;
    let line = printed.lines().find(|line| line.contains("indices element out of data bounds"));
    assert!(line.is_some_and(|line| line.contains(" WARN ort:") && !line.contains('\u{1b}')), "{printed}");
}

#[test]
fn a_model_is_not_its_manifest() {
    let place = Place::example("vqa");
    place.change("workflow.yaml", "answerer-small.yaml", "answerer-small.onnx");
    let printed = tidemill(&["validate", &place.argument("workflow.yaml")]).expect(78).stderr;
    assert!(
        printed.contains("error[E0117]") && printed.contains("answerer-small.onnx` is a model"),
        "{printed}"
    );
    assert!(printed.contains("workflow.yaml:") && printed.contains("--manifest > model.yaml"), "{printed}");
}

#[test]
fn an_input_that_is_not_fed_is_shown_where_it_belongs() {
    let place = Place::empty("models");
    let manifest = std::fs::read_to_string(place.path("../../models/vqa/answerer-small.yaml")).unwrap();
    let (before, rest) = manifest.split_once("  - name: question\n").unwrap();
    let (_, after) = rest.split_once("outputs:\n").unwrap();
    let text = format!("{before}outputs:\n{after}").replace("file: ", "file: ../../models/vqa/");
    place.write("m.yaml", text);
    let printed = tidemill(&["models", "verify", &place.argument("m.yaml")]).expect(78).stderr;
    assert!(printed.contains("error[E0553]") && printed.contains("reads `question`"), "{printed}");
    assert!(printed.contains("m.yaml:17:"), "at the last input: {printed}");
}

#[test]
fn one_output_gives_its_label_and_its_scores() {
    let place = Place::empty("models");
    let manifest = std::fs::read_to_string(place.path("../../models/vqa/answerer-small.yaml")).unwrap();
    let scores =
        "  - {name: logits, column: scores, type: tensor, dtype: float32, shape: [batch, 34]}\nmetric:";
    let text = manifest.replace("metric:", scores).replace("file: ", "file: ../../models/vqa/");
    place.write("m.yaml", text);
    let document = tidemill(&["models", "verify", &place.argument("m.yaml"), "-o", "json"]).expect(0).json();
    let model = &document["models"][0];
    assert_eq!(model["output"], "{answer: text, scores: tensor<float32>[34]}");
    assert!(
        model["backends"].as_array().unwrap().iter().all(|backend| backend["error"].is_null()),
        "{model}"
    );
}

#[test]
fn a_changed_model_file_does_not_pass() {
    tidemill(&["models", "verify", "models"]).expect(0);
    let place = Place::empty("models");
    place.write("m.yaml", std::fs::read(place.path("../../models/vqa/answerer-large.yaml")).unwrap());
    let mut bytes = std::fs::read(place.path("../../models/vqa/answerer-large.onnx")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    place.write("answerer-large.onnx", bytes);
    let outcome = tidemill(&["models", "verify", &place.argument("m.yaml")]).expect(78);
    assert!(outcome.stdout.contains("FAILED"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("sha256") && outcome.stderr.contains("m.yaml:"), "{}", outcome.stderr);
}

#[test]
fn a_bare_model_gives_a_manifest_to_start_from() {
    let text = tidemill(&["models", "inspect", "models/vqa/speech-small.onnx"]).expect(0).stdout;
    assert!(text.contains("log_mel") && text.contains("[batch, 40, 398] float32"), "{text}");
    assert!(!text.contains("SPDX-IDENTIFIER"), "the manifest has a flag of its own: {text}");
    let text =
        tidemill(&["models", "inspect", "models/vqa/speech-small.onnx", "--manifest"]).expect(0).stdout;
    tidemill(&["models", "inspect", "models/vqa/speech-small.yaml", "--manifest"]).expect(2);
    let place = Place::empty("models");
    place.write("m.yaml", text);
    place
        .write("speech-small.onnx", std::fs::read(place.path("../../models/vqa/speech-small.onnx")).unwrap());
    // Only facts known to its maker are missing, and the checks report that.
    place.change("m.yaml", "column: COLUMN", "column: x");
    place.change("m.yaml", "SPDX-IDENTIFIER", "Apache-2.0");
    tidemill(&["models", "inspect", &place.argument("m.yaml")]).expect(0);
    // It runs, but the manifest still lacks its description.
    let printed = tidemill(&["models", "verify", &place.argument("m.yaml")]).expect(78);
    assert!(printed.stdout.contains("to fill in"), "{}", printed.stdout);
    for blank in ["WHAT IT DOES IN ONE SENTENCE", "FROM WHERE", "m.yaml:"] {
        assert!(printed.stderr.contains(blank), "{}", printed.stderr);
    }
    assert!(!printed.stderr.contains("SPDX") && !printed.stderr.contains("`COLUMN"), "{}", printed.stderr);
    place.change("m.yaml", "WHAT IT DOES IN ONE SENTENCE", "It hears.");
    place.change("m.yaml", "FROM WHERE", "a test");
    tidemill(&["models", "verify", &place.argument("m.yaml")]).expect(0);
}

#[test]
fn without_tvm_the_command_that_sets_it_up_is_said() {
    let cache = tempfile::tempdir().unwrap();
    let arguments = ["models", "compile", "models/vqa/answerer-small.yaml"];
    let output = command(&arguments)
        .env("TIDEMILL_TVM", "/nowhere")
        .env("TIDEMILL_CACHE", cache.path())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{printed}");
    assert!(printed.contains("TIDEMILL_TVM names /nowhere"), "{printed}");
    assert!(printed.contains("scripts/backends.sh tvm"), "{printed}");
}
