//! Each part is one short file and one line of `main.rs`.
use std::path::{Path, PathBuf};

/// Lines that a part may have, with documentation and tests.
const MOST_LINES: usize = 150;

fn parts() -> Vec<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|file| !["lib.rs", "main.rs"].contains(&file.file_name().unwrap().to_str().unwrap()))
        .collect()
}

#[test]
fn a_part_is_one_file_with_an_example_and_tests() {
    let parts = parts();
    assert_eq!(parts.len(), 7, "{parts:?}");
    for part in parts {
        let text = std::fs::read_to_string(&part).unwrap();
        let (lines, name) = (text.lines().count(), part.display());
        assert!(lines <= MOST_LINES, "{name}: {lines} lines");
        assert!(text.contains("//! ```\n//! use tidemill_extension::"), "{name} has no example");
        assert!(text.contains("#[test]\n"), "{name} has no test");
    }
}

#[test]
fn a_part_is_registered_by_one_line() {
    let main = include_str!("../src/main.rs");
    let registrations: Vec<&str> =
        main.lines().filter(|line| line.trim_start().starts_with("tidemill_")).collect();
    assert_eq!(registrations.len(), 7, "{registrations:?}");
    for part in parts() {
        let name = format!("{}::", part.file_stem().unwrap().to_str().unwrap());
        let of_part = registrations
            .iter()
            .filter(|line| line.contains(&format!("({name}")) || line.contains(&format!("Arc::new({name}")));
        assert_eq!(of_part.count(), 1, "{name}");
    }
}
