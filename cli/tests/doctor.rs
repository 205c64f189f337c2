//! `tidemill doctor` on machines with missing parts.
use crate::command::{Outcome, command};
use serde_json::Value;
use std::process::{Command, Stdio};

fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[track_caller]
fn finding<'a>(document: &'a Value, name: &str) -> &'a Value {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name}: {document}"))
}

#[test]
fn every_line_has_a_state_and_what_is_wrong_has_a_fix() {
    let found = outcome(&mut command(&["doctor", "--output", "json"]));
    let document = found.json();
    let problems = document["problems"].as_u64().unwrap();
    assert_eq!(found.code, Some(if problems == 0 { 0 } else { 1 }));
    for finding in document["findings"].as_array().unwrap() {
        let state = finding["state"].as_str().unwrap();
        assert!(["ok", "note", "problem"].contains(&state), "{finding}");
        assert!(state != "problem" || finding["fix"].is_string(), "{finding}");
    }
    assert_eq!(finding(&document, "rten")["state"], "ok");
    let text = outcome(&mut command(&["doctor"])).stdout;
    assert!(text.contains("ok       rten "), "{text}");
    assert!(text.trim_end().ends_with('s') || text.trim_end().ends_with("note"), "{text}");
}

#[test]
fn what_is_not_in_path_is_a_note_that_says_what_it_is_for() {
    let folder = tempfile::tempdir().unwrap();
    let found = outcome(
        command(&["doctor", "--output", "json"])
            .env("PATH", "")
            .env("HOME", folder.path())
            .env("XDG_CACHE_HOME", folder.path())
            .env_remove("TIDEMILL_ONNXRUNTIME")
            .env_remove("TIDEMILL_AVCODEC")
            .env_remove("TIDEMILL_FFMPEG")
            .current_dir(folder.path()),
    );
    let document = found.json();
    for name in ["python3", "espeak-ng", "ffmpeg"] {
        let finding = finding(&document, name);
        assert_eq!(finding["state"], "note", "{finding}");
        assert!(finding["detail"].as_str().unwrap().contains("need"), "{finding}");
        assert!(finding["fix"].as_str().unwrap().contains("apt-get install"), "{finding}");
    }
    let library = finding(&document, "ONNX Runtime");
    if library["state"] == "note" {
        let cache = folder.path().join("tidemill/lib");
        assert!(library["detail"].as_str().unwrap().contains(cache.to_str().unwrap()), "{library}");
        assert_eq!(library["fix"], "tidemill doctor --fix");
    }
    let libraries = finding(&document, "ffmpeg's libraries");
    if libraries["state"] == "note" {
        assert!(libraries["detail"].as_str().unwrap().contains("decoder: library"), "{libraries}");
        assert_eq!(libraries["fix"], "tidemill doctor --fix");
    }
    // Without bash there is no installation either, and the reason is reported.
    let fix = outcome(command(&["doctor", "--fix"]).env("PATH", "").env("XDG_CACHE_HOME", folder.path()));
    assert_eq!(fix.code, Some(69));
    assert!(fix.stderr.contains("cannot start bash"), "{}", fix.stderr);
}

#[test]
fn a_library_that_was_named_and_is_not_there_is_a_problem() {
    let found = outcome(
        command(&["doctor", "--output", "json"]).env("TIDEMILL_ONNXRUNTIME", "/no/such/libonnxruntime.so"),
    );
    assert_eq!(found.code, Some(1));
    let document = found.json();
    let library = finding(&document, "ONNX Runtime");
    assert_eq!(library["state"], "problem");
    assert!(library["fix"].as_str().unwrap().contains("unset TIDEMILL_ONNXRUNTIME"), "{library}");
}

#[test]
fn a_folder_of_libraries_that_was_named_and_is_not_there_is_a_problem() {
    let found =
        outcome(command(&["doctor", "--output", "json"]).env("TIDEMILL_AVCODEC", "/no/such/avcodec-62"));
    assert_eq!(found.code, Some(1));
    let document = found.json();
    let libraries = finding(&document, "ffmpeg's libraries");
    assert_eq!(libraries["state"], "problem");
    assert!(libraries["fix"].as_str().unwrap().contains("unset TIDEMILL_AVCODEC"), "{libraries}");
}

#[test]
fn few_open_files_are_a_problem() {
    let program = env!("CARGO_BIN_EXE_tidemill");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 24; exec \"$0\" doctor --output json", program]).stdin(Stdio::null());
    let found = outcome(&mut shell);
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    let document = found.json();
    let files = finding(&document, "open files");
    assert_eq!((files["state"].as_str(), files["fix"].as_str()), (Some("problem"), Some("ulimit -n 1024")));
}

#[test]
fn a_cache_that_cannot_be_made_is_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let found = outcome(
        command(&["doctor", "--output", "json"])
            .env("XDG_CACHE_HOME", "/proc/no-such")
            .current_dir(folder.path()),
    );
    let document = found.json();
    assert_eq!(finding(&document, "cache")["state"], "note", "{document}");
    assert_eq!(finding(&document, "this folder")["state"], "ok", "{document}");
}
