//! Every disagreement between a manifest and its model file is found before any record; the message has the expected value
//! and the one found.
use std::path::Path;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::verify;

/// A copy of a test manifest with replacements, beside its model file.
fn changed(name: &str, replacements: &[(&str, &str)]) -> Result<(), Vec<ModelError>> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(testdata.join(format!("{name}.onnx")), folder.path().join(format!("{name}.onnx"))).unwrap();
    let mut text = std::fs::read_to_string(testdata.join(format!("{name}.yaml"))).unwrap();
    for (from, to) in replacements {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let path = folder.path().join("m.yaml");
    std::fs::write(&path, text).unwrap();
    verify(&path, folder.path()).and_then(|report| {
        match report.backends.into_iter().find_map(|b| b.result.err()) {
            // A machine without ONNX Runtime is fine here.
            Some(ModelError::Backend(_)) | None => Ok(()),
            Some(error) => Err(vec![error]),
        }
    })
}

fn only_error(name: &str, replacements: &[(&str, &str)]) -> (String, String) {
    let mut errors = changed(name, replacements).expect_err("the manifest is wrong");
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = errors.remove(0);
    (error.code().to_owned(), error.into_diagnostics().render(false))
}

#[test]
fn manifests_that_agree_pass() {
    for name in
        ["identity", "fixed_batch", "linear", "image_means", "convolution", "text_sum", "ctc", "counter"]
    {
        if let Err(errors) = changed(name, &[]) {
            panic!("{name}: {}", errors[0]);
        }
    }
}

#[test]
fn a_missing_or_wrong_file_is_found() {
    let (code, text) = only_error("linear", &[("file: linear.onnx", "file: gone.onnx")]);
    assert_eq!(code, "E0551");
    assert!(text.contains("gone.onnx") && text.contains("help:"), "{text}");
    let digest = "f".repeat(64);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/linear.yaml");
    let right = Blueprint::read(&path).unwrap().facts.sha256.clone();
    let (code, text) = only_error("linear", &[(&right, &digest)]);
    assert_eq!(code, "E0552");
    assert!(text.contains(&right) && text.contains(&digest), "{text}");
}

#[test]
fn another_shape_or_type_says_what_was_expected_and_found() {
    let (code, text) =
        only_error("linear", &[("dtype: float32, shape: [batch, 4]", "dtype: float32, shape: [batch, 5]")]);
    assert_eq!(code, "E0554");
    assert!(text.contains("expected [batch, 5] float32, found [batch, 4] float32"), "{text}");
    let (code, text) = only_error(
        "identity",
        &[(
            "{name: x, column: x, type: tensor, dtype: float32",
            "{name: x, column: x, type: tensor, dtype: int64",
        )],
    );
    assert_eq!(code, "E0554");
    assert!(text.contains("int64"), "{text}");
}

#[test]
fn other_names_are_found() {
    let errors = changed("linear", &[("name: x,", "name: pixels,")]).unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(texts.iter().any(|t| t.contains("no input `pixels`; it has: x")), "{texts:?}");
    assert!(texts.iter().any(|t| t.contains("reads `x`")), "{texts:?}");
    let errors = changed("identity", &[("name: y,", "name: z,")]).unwrap_err();
    assert_eq!(errors[0].code(), "E0553");
}

#[test]
fn steps_that_do_not_fit_are_found() {
    for (name, from, to) in [
        ("linear", "labels: [left, middle, right]", "labels: [left, right]"),
        ("image_means", "width: 8, height: 8", "width: 9, height: 8"),
        ("ctc", "seconds: 75ms", "seconds: 175ms"),
        ("ctc", "alphabet: \"lh\"", "alphabet: \"lhxy\""),
        ("text_sum", "length: 6", "length: 7"),
        ("image_means", "shape: [batch, 3]}", "shape: [batch, 3], postprocess: [text_boxes: {}]}"),
    ] {
        let Err(errors) = changed(name, &[(from, to)]) else { panic!("{name}: {to} passed") };
        let codes: Vec<&str> = errors.iter().map(ModelError::code).collect();
        assert!(codes.iter().all(|code| ["E0501", "E0555"].contains(code)), "{name}: {errors:?}");
    }
}

#[test]
fn pictures_that_are_too_large_and_other_batches_are_named() {
    let large = [("width: 8, height: 8", "width: 20000, height: 20000"), ("3, 8, 8", "3, 20000, 20000")];
    let text =
        changed("image_means", &large).unwrap_err().iter().map(ToString::to_string).collect::<String>();
    assert!(
        text.contains("the result of the step is 20000x20000; width and height can be at most 16384 pixels"),
        "{text}"
    );
    let (code, text) = only_error("fixed_batch", &[("[batch, 4]}\noutputs", "[2, 4]}\noutputs")]);
    assert_eq!(code, "E0554");
    assert!(text.contains("[2, 4]"), "{text}");
}

#[test]
fn loops_that_do_not_fit_are_found() {
    for (from, to) in [
        ("output: next_state, initial", "output: gone, initial"),
        ("labels: [start, end, \"\",", "labels: [start, end,"),
        ("input: token,", "input: state,"),
    ] {
        let Err(errors) = changed("counter", &[(from, to)]) else { panic!("{to} passed") };
        assert!(errors.iter().all(|e| ["E0501", "E0553", "E0556"].contains(&e.code())), "{to}: {errors:?}");
    }
}

/// A check without model files gives the types that a check with them gives.
#[test]
fn the_manifest_alone_gives_the_types_of_the_model() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compared = 0;
    for folder in [
        "testdata",
        "../../models/vqa",
        "../../models/standard",
        "../../models/aicity",
        "../../models/third_party",
    ] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            // Other YAML files, and missing models.
            let Ok(full) = Blueprint::read(&path) else { continue };
            let alone =
                Blueprint::read_manifest(&path).unwrap_or_else(|errors| panic!("{path:?}: {errors:?}"));
            assert_eq!(alone.output_columns(), full.output_columns(), "{path:?}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} models");
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(root.join("testdata/image_means.yaml")).unwrap();
    let path = folder.path().join("m.yaml");
    std::fs::write(&path, text.replace("width: 8, height: 8", "width: 20000, height: 20000")).unwrap();
    let errors = Blueprint::read_manifest(&path).unwrap_err();
    assert!(
        format!("{errors:?}").contains("the output of the steps is [batch, 3, 20000, 20000]"),
        "{errors:?}"
    );
}
