//! `tidemill models`.
use crate::command::{Place, tidemill};

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
fn a_changed_model_file_does_not_pass() {
    tidemill(&["models", "verify", "models"]).expect(0);
    let place = Place::empty("models");
    place.write("m.yaml", std::fs::read(place.path("../../models/vqa/answerer-large.yaml")).unwrap());
    let mut bytes = std::fs::read(place.path("../../models/vqa/answerer-large.onnx")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    place.write("answerer-large.onnx", bytes);
    let outcome = tidemill(&["models", "verify", &place.argument("m.yaml")]).expect(1);
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
    // Only what its maker knows is missing, and the checks say so.
    place.change("m.yaml", "column: COLUMN", "column: x");
    place.change("m.yaml", "SPDX-IDENTIFIER", "Apache-2.0");
    tidemill(&["models", "inspect", &place.argument("m.yaml")]).expect(0);
}
