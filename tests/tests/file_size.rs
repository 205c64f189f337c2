//! A file beyond 600 lines should be split; beyond 1000 it must be.

use std::path::Path;

use crate::repository::{files_with_extension, text};

const ASKS: usize = 600;
const MUST: usize = 1000;

/// Files between the two limits that are better whole: (path, reason).
const BETTER_WHOLE: &[(&str, &str)] = &[];

#[test]
fn no_source_file_is_too_long() {
    let mut faults = Vec::new();
    for file in files_with_extension(&["rs", "py"]) {
        let lines = text(&file).expect("source files are text").lines().count();
        if lines > MUST {
            faults.push(format!("{}: {lines} lines", file.display()));
        } else if lines > ASKS && !BETTER_WHOLE.iter().any(|(path, _)| Path::new(path) == file) {
            println!(
                "warning: {}: {lines} lines; split it, or say in BETTER_WHOLE why it is better whole",
                file.display()
            );
        }
    }
    assert!(faults.is_empty(), "beyond {MUST} lines, split them:\n  {}", faults.join("\n  "));
}

#[test]
fn every_exception_still_exists_and_has_a_reason() {
    for (path, reason) in BETTER_WHOLE {
        let lines = text(Path::new(path)).expect("source files are text").lines().count();
        assert!(lines > ASKS, "{path} has only {lines} lines: it needs no exception");
        assert!(!reason.is_empty(), "{path} needs a reason");
    }
}
