//! Required and forbidden content of the repository's text files.

use std::path::{Component, Path, PathBuf};

use crate::repository::{files, files_with_extension, root, text};

/// Folders of a developer's machine. Assembled here, so that this file does not break its own rule.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Use", "rs/")];

#[test]
fn no_file_names_a_folder_of_one_machine() {
    let mut faults = Vec::new();
    for file in files() {
        let Some(content) = text(&file) else { continue };
        for (number, line) in content.lines().enumerate() {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_folder(line, folder)) {
                faults.push(format!("{}:{}: {folder}", file.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "paths of one machine, of no use on another:\n  {}", faults.join("\n  "));
}

/// Whether a line has an absolute path into this folder. `a/work/b` and `$HOME/work/b` are none.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/})*~".contains(c))
    })
}

#[test]
fn absolute_folders_are_told_from_relative_ones() {
    let folder = MACHINE_FOLDERS[0];
    assert!(names_folder(&format!("cd {folder}x"), folder));
    assert!(names_folder(&format!("path: \"{folder}x\""), folder));
    assert!(!names_folder(&format!("a{folder}x"), folder));
    assert!(!names_folder(&format!("${{HOME}}{folder}x"), folder));
}

/// Editors check and complete a file by the schema that its first line names.
#[test]
fn every_example_names_its_schema() {
    let mut faults = Vec::new();
    for file in files_with_extension(&["yaml", "yml"]).into_iter().filter(|file| file.starts_with("examples"))
    {
        let content = text(&file).unwrap_or_default();
        let first = content.lines().next().unwrap_or_default();
        match first.strip_prefix("# yaml-language-server: $schema=") {
            None => faults.push(format!("{}: the first line is `{first}`", file.display())),
            Some(schema) => {
                let schema = resolved(&file, schema.trim());
                if !schema.starts_with("spec/schemas") || !root().join(&schema).is_file() {
                    faults.push(format!(
                        "{}: {} is not a schema of spec/schemas",
                        file.display(),
                        schema.display()
                    ));
                }
            }
        }
    }
    assert!(
        faults.is_empty(),
        "an example starts with `# yaml-language-server: $schema=PATH`:\n  {}",
        faults.join("\n  ")
    );
}

/// The target of every link from one Markdown file to another file of the repository exists.
#[test]
fn links_between_documents_lead_somewhere() {
    let mut faults = Vec::new();
    for file in files_with_extension(&["md"]) {
        let content = text(&file).unwrap_or_default();
        for (number, line) in content.lines().enumerate() {
            for target in links(line) {
                if !root().join(resolved(&file, target)).exists() {
                    faults.push(format!("{}:{}: {target}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "links to nothing:\n  {}", faults.join("\n  "));
}

/// The targets of the `[text](target)` links of a line.
pub(crate) fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// The targets that are files, without `#section`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    targets(line)
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

/// Resolves a path in a file relative to the root, including `..`.
pub(crate) fn resolved(file: &Path, target: &str) -> PathBuf {
    let mut path = file.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(part) => path.push(part),
            _ => {}
        }
    }
    path
}

#[test]
fn links_are_found_and_resolved() {
    let line = "See [a](../a.md#part), [b](https://example.org/b) and [c](c/d.md).";
    assert_eq!(links(line).collect::<Vec<_>>(), ["../a.md", "c/d.md"]);
    assert_eq!(resolved(Path::new("docs/src/x.md"), "../a.md"), Path::new("docs/a.md"));
}
