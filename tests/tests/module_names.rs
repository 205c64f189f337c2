//! A module is named after its content, not after the fact that others use it.

use crate::repository::{files_with_extension, text};

const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "shared"];

#[test]
fn no_module_has_an_empty_name() {
    let mut faults = Vec::new();
    for file in files_with_extension(&["rs", "py"]) {
        for part in file.with_extension("").iter().filter_map(|part| part.to_str()) {
            if EMPTY_NAMES.contains(&part) {
                faults.push(format!("{}: `{part}`", file.display()));
            }
        }
        for (number, line) in text(&file).expect("source files are text").lines().enumerate() {
            if let Some(name) = inline_module(line).filter(|name| EMPTY_NAMES.contains(name)) {
                faults.push(format!("{}:{}: `{name}`", file.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "name these after what they hold:\n  {}", faults.join("\n  "));
}

/// The name of the module that a line of Rust opens inline: `pub(crate) mod name {`.
fn inline_module(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("mod ")?;
    let is_declaration = before.trim().is_empty() || before.trim_start().starts_with("pub");
    is_declaration.then(|| after.strip_suffix('{').map(str::trim))?
}

#[test]
fn inline_modules_are_found() {
    assert_eq!(inline_module("mod utils {"), Some("utils"));
    assert_eq!(inline_module("    pub(crate) mod common {"), Some("common"));
    assert_eq!(inline_module("// a mod here {"), None);
    assert_eq!(inline_module("mod file;"), None);
}
