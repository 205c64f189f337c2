//! Verbs with JSON answers report errors as JSON too.
use crate::command::{Place, command, root, tidemill};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// An invalid file of any kind.
fn wrong() -> Place {
    let place = Place::example("quickstart");
    place.change("workflow.yaml", "    kind: csv\n", "    kind: csv\n    raet: 40/s\n");
    place
}

#[test]
fn wrong_files_are_told_as_validate_tells_them() {
    let place = wrong();
    let file = place.argument("workflow.yaml");
    let validated = tidemill(&["validate", &file, "--output", "json"]).expect(78).json();
    let infrastructure = root().join("spec/tests/golden/infrastructure.yaml");
    let infrastructure = infrastructure.to_str().unwrap();
    let profile = root().join("spec/tests/golden/profile.yaml");
    let profile = profile.to_str().unwrap();
    for arguments in [
        &["run", &file][..],
        &["plan", &file, "--infra", infrastructure, "--profiles", profile],
        &["explain", &file, "--infra", infrastructure, "--profiles", profile],
        &["requirements", &file, "--profiles", profile],
        &["profile", &file, "--infra", infrastructure],
    ] {
        let outcome = tidemill(&[arguments, &["--output", "json"]].concat()).expect(78);
        let document = outcome.json();
        assert_eq!(document["ok"], false);
        assert_eq!(document["findings"], validated["files"][0]["findings"], "{arguments:?}");
        assert!(outcome.stderr.starts_with("error[E0103]"), "people read it too: {}", outcome.stderr);
    }
    for arguments in [
        &["simulate", &file, &file][..],
        &["plan", "diff", &file, &file],
        &["profile", "show", &file],
        &["profile", "diff", &file, &file],
        &["profile", "merge", &file],
        &["models", "inspect", &file],
    ] {
        let outcome = tidemill(&[arguments, &["--output", "json"]].concat()).expect(78);
        let document = outcome.json();
        let finding = &document["findings"][0];
        assert!(finding["code"].is_string() && finding["line"].is_number(), "{arguments:?}: {document}");
        assert_eq!(finding["severity"], "error");
        // Without JSON there is nothing on stdout.
        assert_eq!(tidemill(arguments).expect(78).stdout, "", "{arguments:?}");
    }
}

#[test]
fn warnings_of_validate_are_findings_of_a_file_that_is_right() {
    let place = Place::example("quickstart");
    let idle = "  - {id: idle, kind: csv, options: {path: readings.csv, columns: {sensor: text}}}\n";
    place.change("workflow.yaml", "sources:\n", &format!("sources:\n{idle}"));
    place.write(
        "profile.yaml",
        format!("version: 1\nworkflow: {{name: quickstart, digest: {}}}\nservices: []\n", "a".repeat(64)),
    );
    let (workflow, profile) = (place.argument("workflow.yaml"), place.argument("profile.yaml"));
    for more in [&["--without-files"][..], &[]] {
        let arguments = [&["validate", &workflow, &profile, "--output", "json"], more].concat();
        let outcome = tidemill(&arguments).expect(0);
        let document = outcome.json();
        for (number, code) in ["E0207", "E0807"].into_iter().enumerate() {
            let file = &document["files"][number];
            assert_eq!(file["ok"], true, "{file}");
            assert_eq!(file["findings"].as_array().unwrap().len(), 1, "{file}");
            let finding = &file["findings"][0];
            assert_eq!((&finding["code"], &finding["severity"]), (&code.into(), &"warning".into()), "{file}");
            assert!(outcome.stderr.contains(&format!("warning[{code}]")), "{}", outcome.stderr);
        }
    }
    // They are listed beside later errors, too.
    place.change("workflow.yaml", "mean_temperature > 20.0", "mean_temperatur > 20.0");
    let document = tidemill(&["validate", &workflow, "--output", "json"]).expect(78).json();
    let findings = &document["files"][0]["findings"];
    assert!(findings[0]["code"] == "E0207" && findings[1]["severity"] == "error", "{document}");
}

#[test]
fn what_is_about_no_place_has_a_message_and_advice() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (arguments, words) in [
        (["models", "ls", folder], "no model manifest"),
        (["models", "verify", folder], "no model manifest"),
        (["models", "inspect", "no.onnx"], "cannot read the model file"),
    ] {
        let document = tidemill(&[&arguments[..], &["-o", "json"]].concat()).expect(78).json();
        let finding = &document["findings"][0];
        assert!(finding["code"].is_null() && finding["line"].is_null(), "{document}");
        assert!(finding["message"].as_str().unwrap().contains(words), "{document}");
    }
    let place = Place::example("quickstart");
    let arguments = ["run", &place.argument("workflow.yaml"), "--set", "valid=x", "--output", "json"];
    let outcome = tidemill(&arguments).expect(2);
    assert_eq!(outcome.json()["findings"][0]["help"], "there are no operators with variants");
}

/// Names of files are bytes, and JSON is text.
#[test]
fn a_path_that_is_no_text_is_told_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
    let workflow = project.join("workflow.yaml");
    for (call, path) in [
        (["init"].as_slice(), &project),
        (["validate"].as_slice(), &workflow),
        (["models", "verify"].as_slice(), &workflow),
    ] {
        let output = command(call).args(["--output", "json"]).arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1 | 78)), "{call:?}: {said}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(document.to_string().contains("caf\u{fffd}"), "{document}");
    }
}

#[test]
fn a_sink_that_cannot_be_opened_is_a_finding() {
    let place = Place::example("quickstart");
    place.write(
        "workflow.yaml",
        "version: 1
name: full
sources: [{id: readings, kind: csv, options: {path: readings.csv, columns: {time: int64, sensor: text}}}]
sinks: [{id: full, kind: csv, input: readings, options: {path: workflow.yaml/full.csv}}]
",
    );
    let document = tidemill(&["run", &place.argument("workflow.yaml"), "--output", "json"]).expect(78).json();
    let finding = &document["findings"][0];
    assert!(finding["message"].as_str().unwrap().contains("cannot be written"), "{document}");
    assert_eq!((&finding["code"], &finding["line"]), (&"E0701".into(), &4.into()), "{document}");
}
