//! A fact about a kind of source, operator or sink stands with the kind: no other crate asks for a kind by its name.

use std::collections::BTreeSet;
use std::path::Path;

use tidemill_app::preparation::registry;

use crate::repository::{files_with_extension, text};

/// Folders that define kinds, and those that are no part of the product.
const MAY_NAME_KINDS: &[&str] = &["operators/", "optimizer/problems/", "examples/", "benches/", "tests/"];

/// Names of kinds that mean something else where they stand: (path, name, meaning).
const OTHER_MEANINGS: &[(&str, &str, &str)] = &[
    ("cli/src/arguments/cluster.rs", "join", "an option of the command line"),
    ("cli/src/arguments/cluster/elastic.rs", "slices", "a rule by which containers share processors"),
    ("cli/src/job/naming.rs", "python", "an interpreter"),
    ("cli/src/report/objects.rs", "track", "a column"),
    ("cli/src/requirements/document.rs", "window", "runs that are outstanding"),
    ("deploy/src/compose/services.rs", "join", "a secret"),
    ("deploy/src/kubernetes/pods.rs", "join", "a secret"),
    ("deploy/src/layout/devices.rs", "stdout", "a device"),
    ("cluster/src/fuzz_entry.rs", "join", "a path of the controller"),
    ("runtime/engine/src/protocol/examples.rs", "join", "the id of an operator"),
    ("runtime/link/src/transport/address.rs", "tcp", "a transport"),
    ("runtime/link/src/transport/tcp.rs", "tcp", "a transport"),
    ("runtime/engine/src/protocol/examples.rs", "filter", "the id of an operator"),
    ("app/src/device_choice.rs", "tcp", "a transport"),
    ("app/src/otlp.rs", "http", "a scheme"),
    ("cli/src/device/serving.rs", "tcp", "a transport"),
    ("runtime/collective/src/service/dialing.rs", "tcp", "a transport"),
    ("runtime/training/src/dataset.rs", "csv", "the ending of a file"),
    ("app/src/workflow_tests/inputs.rs", "csv", "the ending of a file, and the kind that reads it"),
    ("app/src/workflow_tests/inputs.rs", "jsonl", "the ending of a file, and the kind that reads it"),
    ("cli/src/models/try_model/tables.rs", "csv", "the ending of a file, and the kind that reads it"),
    ("cli/src/models/try_model/tables.rs", "jsonl", "the ending of a file"),
    ("cli/src/models/try_model/tables.rs", "parquet", "the ending of a file, and the kind that reads it"),
    ("cluster/src/controller/openapi.rs", "http", "a scheme"),
    ("spec/src/manifest/check.rs", "join", "a step of a manifest"),
    ("spec/src/workflow/check.rs", "late", "the operator that stands for the input `ID.late`"),
    ("spec/src/workflow/late.rs", "late", "the operator that stands for the input `ID.late`"),
    ("spec/src/workflow/late.rs", "window", "the kind that has late rows: without a fact of kinds so far"),
];

fn is_product(file: &Path) -> bool {
    let path = file.to_string_lossy();
    let is_test = |part: &str| matches!(part, "tests" | "benches" | "examples" | "tests.rs");
    !MAY_NAME_KINDS.iter().any(|folder| path.starts_with(folder))
        && path.contains("/src/")
        && !file.iter().filter_map(|part| part.to_str()).any(is_test)
        && !path.ends_with("_tests.rs")
}

/// Names in quotes on the lines of a file that are neither comments nor in the tests at its end.
fn quoted<'a>(source: &'a str, names: &'a BTreeSet<&'static str>) -> Vec<(usize, &'static str)> {
    let starts_tests = |line: &str| line.ends_with("mod tests {");
    let code = source.lines().enumerate().take_while(|(_, line)| !starts_tests(line));
    let code = code.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.flat_map(|(at, line)| {
        names
            .iter()
            .filter(move |name| line.contains(&format!("\"{name}\"")))
            .map(move |name| (at + 1, *name))
    })
    .collect()
}

fn found() -> BTreeSet<(String, usize, &'static str)> {
    let names: BTreeSet<&'static str> = registry().kinds().iter().map(|kind| kind.kind).collect();
    let mut found = BTreeSet::new();
    for file in files_with_extension(&["rs"]).into_iter().filter(|file| is_product(file)) {
        let source = text(&file).expect("source files are text");
        let quoted = quoted(&source, &names);
        found.extend(quoted.into_iter().map(|(line, name)| (file.display().to_string(), line, name)));
    }
    found
}

#[test]
fn no_kind_is_asked_for_by_its_name() {
    let is_other =
        |path: &str, name: &str| OTHER_MEANINGS.iter().any(|known| (known.0, known.1) == (path, name));
    let faults = found().into_iter().filter(|(path, _, name)| !is_other(path, name));
    let faults: Vec<String> = faults.map(|(path, line, name)| format!("{path}:{line}: \"{name}\"")).collect();
    assert!(
        faults.is_empty(),
        "let the kind state a fact (`spec/src/kinds.rs`) instead of its name here:\n  {}",
        faults.join("\n  ")
    );
}

#[test]
fn every_other_meaning_is_still_there() {
    let found = found();
    for (path, name, meaning) in OTHER_MEANINGS {
        let is_there = found.iter().any(|(at, _, found)| (at.as_str(), *found) == (*path, *name));
        assert!(is_there, "{path} has no \"{name}\" ({meaning}) any more: it needs no exception");
    }
}

#[test]
fn names_in_quotes_are_found_outside_comments_and_tests() {
    let names = BTreeSet::from(["tcp"]);
    let source =
        "// \"tcp\"\nlet kind = \"tcp\";\nlet other = \"tcp4\";\n#[cfg(test)]\nmod tests {\n\"tcp\"\n}\n";
    assert_eq!(quoted(source, &names), [(2, "tcp")]);
}
