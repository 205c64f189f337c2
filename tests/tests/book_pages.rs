//! The pages of docs/ as mdBook builds them: every page is in the table of contents, and no link leaves the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::repository::{files_with_extension, text};
use crate::repository_text::{resolved, targets};

/// Pages that are not part of the book: (path, reason).
const OUTSIDE: &[(&str, &str)] = &[("docs/SUMMARY.md", "the table of contents itself")];

fn pages() -> Vec<PathBuf> {
    files_with_extension(&["md"]).into_iter().filter(|file| file.starts_with("docs")).collect()
}

fn lines_outside_of_code(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    markdown.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((index + 1, line))
    })
}

/// The anchors that mdBook gives the headings of a page.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in lines_outside_of_code(markdown) {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let name: String = title.trim().chars().filter_map(anchor_character).collect();
        let count = seen.entry(name.clone()).or_default();
        found.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    found
}

fn anchor_character(c: char) -> Option<char> {
    match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    }
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let summary = text(Path::new("docs/SUMMARY.md")).expect("the summary is text");
    let listed: BTreeSet<PathBuf> = summary
        .lines()
        .flat_map(targets)
        .map(|target| resolved(Path::new("docs/SUMMARY.md"), target))
        .collect();
    let missing: Vec<PathBuf> = pages()
        .into_iter()
        .filter(|page| !listed.contains(page) && !OUTSIDE.iter().any(|(path, _)| Path::new(path) == page))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
}

/// Only files in docs/ are in the built book, and a section is linked by the name of its heading.
#[test]
fn links_of_the_book_stay_in_it() {
    let mut faults = Vec::new();
    for page in pages() {
        let content = text(&page).expect("pages are text");
        for (line, text_of_line) in lines_outside_of_code(&content) {
            for target in targets(text_of_line).filter(|target| !target.contains(':')) {
                let (file, part) = target.split_once('#').unwrap_or((target, ""));
                let file = if file.is_empty() { page.clone() } else { resolved(&page, file) };
                let fault = if !file.starts_with("docs") {
                    "is outside of docs/, so it is not in the book: name it as `code`"
                } else if !part.is_empty() && !text(&file).is_some_and(|page| anchors(&page).contains(part)) {
                    "has no such heading"
                } else {
                    continue;
                };
                faults.push(format!("{}:{line}: {target} {fault}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "links to nothing:\n  {}", faults.join("\n  "));
}

#[test]
fn headings_have_the_names_that_mdbook_gives_them() {
    let page = "# A `b_c`: d, E-f?\n```sh\n# no heading\n```\n## Values\n#nothing\n### Values\n";
    let expected = ["a-b_c-d-e-f", "values", "values-1"].map(str::to_owned);
    assert_eq!(anchors(page), BTreeSet::from(expected));
}
