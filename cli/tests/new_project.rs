//! `tidemill init`, for a user who has only the program.
use crate::command::{Outcome, command, rows};
use std::collections::BTreeSet;
use std::path::Path;

/// Runs in a folder outside the repository, without any library to be found.
fn elsewhere(folder: &Path, arguments: &[&str]) -> Outcome {
    let output = command(arguments)
        .current_dir(folder)
        .env("HOME", folder)
        .env_remove("TIDEMILL_ONNXRUNTIME")
        .output()
        .unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn files_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            match entry.path().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    found.insert(entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
    }
    found
}

#[test]
fn the_vqa_project_is_valid_and_runs_and_scores_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let printed = elsewhere(folder.path(), &["init", "pictures", "--template", "vqa"]).expect(0).stdout;
    assert!(printed.ends_with("next:\n  cd pictures && tidemill run workflow.yaml\n"), "{printed}");
    let project = folder.path().join("pictures");
    let files = files_below(&project);
    let valid = elsewhere(&project, &["validate", "workflow.yaml"]).expect(0);
    assert!(valid.stdout.contains("workflow ok (2 sources, 3 operators, 1 sink)"), "{}", valid.stdout);
    assert!(valid.stderr.is_empty(), "{}", valid.stderr);
    for manifest in files.iter().filter(|file| file.starts_with("models/") && file.ends_with(".yaml")) {
        elsewhere(&project, &["validate", manifest]).expect(0);
    }
    let run = elsewhere(&project, &["run", "workflow.yaml", "--rate", "max"]).expect(0);
    assert!(run.stdout.contains("accuracy (95 % interval)"), "{}", run.stdout);
    assert!(run.stdout.contains("n = 10"), "{}", run.stdout);
    assert!(run.stderr.contains(" on rten"), "{}", run.stderr);
    let answers = rows(&std::fs::read_to_string(project.join("out/answers.jsonl")).unwrap());
    assert_eq!(answers.len(), 10);
    elsewhere(&project, &["test"]).expect(0);
    // Five of ten on the machine of the first test; another processor may round one differently. A model that answers at
    // random would have none or one right.
    let truth = std::fs::read_to_string(project.join("data/truth.csv")).unwrap();
    let right = answers.iter().filter(|row| {
        let line = format!("{},{}", row["key"].as_str().unwrap(), row["answer"].as_str().unwrap());
        truth.lines().any(|known| known == line)
    });
    assert!(right.count() >= 4, "{answers:?}\n{truth}");
    // The schema for editors exists and is that of this program.
    let schema = std::fs::read_to_string(project.join(".tidemill/workflow.schema.json")).unwrap();
    assert_eq!(schema, elsewhere(&project, &["schema"]).expect(0).stdout);
    for file in files.iter().filter(|file| file.ends_with(".yaml")) {
        let text = std::fs::read_to_string(project.join(file)).unwrap();
        let named = text.lines().next().unwrap().strip_prefix("# yaml-language-server: $schema=").unwrap();
        assert!(project.join(file).parent().unwrap().join(named).is_file(), "{file}: {named}");
    }
    let models = files.iter().filter(|file| file.ends_with(".onnx"));
    let bytes: u64 = models.map(|file| project.join(file).metadata().unwrap().len()).sum();
    assert!(bytes < 450_000, "{bytes} bytes of models are part of the program");
}

#[test]
fn the_quickstart_is_valid_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let document = elsewhere(folder.path(), &["init", "--output", "json"]).expect(0).json();
    assert_eq!(document["template"], "quickstart");
    assert_eq!(document["next"].as_array().unwrap().len(), 1, "{document}");
    let listed: BTreeSet<String> =
        document["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, files_below(folder.path()));
    // The README names every file of the project.
    let readme = std::fs::read_to_string(folder.path().join("README.md")).unwrap();
    assert!(
        ["workflow.yaml", "readings.csv", "workflow.test.yaml", ".tidemill/"]
            .iter()
            .all(|file| readme.contains(file)),
        "{readme}"
    );
    elsewhere(folder.path(), &["validate", "workflow.yaml"]).expect(0);
    let run = elsewhere(folder.path(), &["run", "workflow.yaml"]).expect(0);
    assert!(!rows(&run.stdout).is_empty());
    assert!(run.stderr.contains("quickstart: complete"), "{}", run.stderr);
    let before = files_below(folder.path());
    let tested = elsewhere(folder.path(), &["test"]).expect(0);
    assert!(tested.stdout.ends_with("2 passed\n"), "{}", tested.stdout);
    assert_eq!(files_below(folder.path()), before, "a test writes nothing");
}

#[test]
fn a_readme_that_is_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("README.md"), "mine").unwrap();
    let printed = elsewhere(folder.path(), &["init", "--output", "json"]).expect(0).json();
    assert!(!printed["files"].as_array().unwrap().contains(&"README.md".into()), "{printed}");
    assert_eq!(std::fs::read_to_string(folder.path().join("README.md")).unwrap(), "mine");
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_half() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("workflow.yaml"), "mine").unwrap();
    std::fs::write(folder.path().join("models"), "a file").unwrap();
    let refused = elsewhere(folder.path(), &["init", "--template", "quickstart"]).expect(78);
    assert!(refused.stderr.contains("exist already"), "{}", refused.stderr);
    assert!(refused.stderr.contains("workflow.yaml") && !refused.stderr.contains("readings.csv"));
    std::fs::remove_file(folder.path().join("workflow.yaml")).unwrap();
    // `models` must be a folder: found when its turn comes, and earlier files are removed.
    let refused = elsewhere(folder.path(), &["init", "--template", "vqa"]).expect(69);
    assert!(refused.stderr.contains("cannot write models/"), "{}", refused.stderr);
    assert_eq!(files_below(folder.path()), BTreeSet::from(["models".to_owned()]));
    assert!(!folder.path().join("data").exists());
}

#[test]
fn a_place_that_cannot_be_written_is_told_with_a_mend() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "mine").unwrap();
    for (place, why) in
        [("file", "file is not a folder"), ("file/deeper", "file is not a folder"), ("/proc/foo", "")]
    {
        let printed = elsewhere(folder.path(), &["init", place]).expect(69).stderr;
        assert!(printed.contains(why) && printed.contains("name another folder"), "{printed}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "mine");
}
