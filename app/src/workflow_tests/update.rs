//! Writes found rows into a file with tests as the expected ones; the rest of the file, with its comments, stays as it is.
use super::comparison::Row;
use super::{Outcome, TestFile};
use crate::failure::{Failure, Kind};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::path::PathBuf;
use tidemill_spec::span::SourceFile;
use tidemill_spec::value::Entry;
use tidemill_spec::workflow_test::WorkflowTests;
use tidemill_spec::yaml;

/// Writes the found rows of these tests, each by its place in the file; returns how many sinks and operators they are of.
///
/// # Errors
/// The file has a form that cannot be changed in place, or cannot be written; it stays as it is then.
pub fn write(file: &TestFile, outcomes: &BTreeMap<usize, Outcome>) -> anyhow::Result<usize> {
    let source = yaml::read(&file.path)?;
    let tree = yaml::parse(&source)?;
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut count = 0;
    for (place, outcome) in outcomes {
        let expect = tree.get("tests").and_then(|tests| tests.item(*place)?.get("expect"));
        for (id, rows) in outcome.changed() {
            let Some(entry) = expect.and_then(|expect| expect.entry(id)) else { continue };
            count += 1;
            if let Some(named) = entry.value.get("file").and_then(|named| named.as_str()) {
                files.insert(file.resolve(named), lines(rows));
                continue;
            }
            let key = entry.value.entry("rows").unwrap_or(entry);
            edits.push(edit(&source, key, rows).ok_or_else(|| not_in_place(file, key))?);
        }
    }
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut text = source.text().to_owned();
    for (range, replacement) in &edits {
        text.replace_range(range.clone(), replacement);
    }
    check(file, &text, outcomes)?;
    for (path, content) in files.iter().chain((!edits.is_empty()).then_some((&file.path, &text))) {
        std::fs::write(path, content).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("cannot write `{}`: {error}", path.display()))
        })?;
    }
    Ok(count)
}

impl Outcome {
    /// The found rows of the sinks and operators whose rows differ.
    fn changed(&self) -> impl Iterator<Item = (&str, &[Row])> {
        self.failures.iter().filter_map(|failure| match failure {
            super::Mismatch::Rows(rows) => {
                self.found.get_key_value(&rows.id).map(|(id, rows)| (id.as_str(), rows.as_slice()))
            }
            _ => None,
        })
    }
}

fn not_in_place(file: &TestFile, key: &Entry) -> Failure {
    let text = format!(
        "the rows of `{}` are within brackets, where they cannot be replaced; `{}` stays as it is",
        key.key,
        file.path.display()
    );
    Failure::new(Kind::Configuration, text)
        .at(key.key.span.clone())
        .with_help("write the key on a line of its own, with its rows below")
}

/// Checks that the new text has the found rows.
fn check(file: &TestFile, text: &str, outcomes: &BTreeMap<usize, Outcome>) -> Result<(), Failure> {
    let wrong = || {
        let text = format!("the rows cannot be replaced in `{}`, which stays as it is", file.path.display());
        Failure::new(Kind::Configuration, text)
            .with_help("write each list of rows below its key, one row per line")
    };
    let tests = WorkflowTests::parse(text, &file.path.display().to_string()).map_err(|_| wrong())?;
    for (place, outcome) in outcomes {
        let test = tests.tests.get(*place).ok_or_else(wrong)?;
        for (id, rows) in outcome.changed() {
            let expected = test.expect.get(id).ok_or_else(wrong)?;
            let Some(written) = expected.rows() else { continue };
            let written: Vec<Json> = written.iter().map(super::inputs::json).collect();
            if written != rows.iter().cloned().map(Json::Object).collect::<Vec<_>>() {
                return Err(wrong());
            }
        }
    }
    Ok(())
}

/// Returns the lines of a JSONL file.
fn lines(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}\n", Json::Object(row.clone()))).collect()
}

/// Returns the text to replace, and its replacement: from behind the colon of the key to the end of its value.
fn edit(source: &SourceFile, entry: &Entry, rows: &[Row]) -> Option<(Range<usize>, String)> {
    let text = source.text();
    let key = entry.key.span.range();
    let line = text[..key.start].rfind('\n').map_or(0, |newline| newline + 1);
    let before = &text[line..key.start];
    if !before.chars().all(|letter| letter == ' ' || letter == '-') {
        return None;
    }
    let indent = before.len();
    let colon = key.end + text[key.end..].find(':')? + 1;
    let mut end = colon + text[colon..].find('\n').unwrap_or(text.len() - colon);
    let mut next = end;
    while let Some(rest) = text[next..].strip_prefix('\n') {
        let content = rest.lines().next().unwrap_or_default();
        let trimmed = content.trim_start_matches(' ');
        let depth = content.len() - trimmed.len();
        let is_of_value = depth > indent || depth == indent && trimmed.starts_with('-');
        let says_nothing = trimmed.is_empty() || trimmed.starts_with('#');
        if rest.is_empty() || !is_of_value && !says_nothing {
            break;
        }
        next += 1 + content.len();
        // Blank lines and comments behind the value belong to what follows.
        if !says_nothing {
            end = next;
        }
    }
    let mut written = String::new();
    if rows.is_empty() {
        written.push_str(" []");
    }
    for row in rows {
        // Writing to a String cannot fail.
        let _ = write!(written, "\n{:indent$}  - {}", "", flow(&Json::Object(row.clone())));
    }
    Some((colon..end, written))
}

/// Writes a value on one line.
fn flow(value: &Json) -> String {
    match value {
        Json::Object(map) => {
            let cells: Vec<String> =
                map.iter().map(|(name, value)| format!("{}: {}", scalar(name), flow(value))).collect();
            format!("{{{}}}", cells.join(", "))
        }
        Json::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Json::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// Writes a text, in quotes where it needs them.
fn scalar(text: &str) -> String {
    let words = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
        && !words.contains(&text.to_ascii_lowercase().as_str());
    match is_plain {
        true => text.to_owned(),
        false => Json::from(text.replace("${", "$${")).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow_tests::Mismatch;
    use crate::workflow_tests::comparison::RowsMismatch;
    use serde_json::json;

    const TEXT: &str = "\
version: 1
workflow: w.yaml
tests:
  - name: one # first
    expect:
      a: # what comes out
        - {n: 1}
        # between
        - {n: 2}

      # of b
      b:
        ordered: true
        rows: [{t: x},
          {t: y}]
  - name: two
    expect:
      c: []
      d:
      - {n: 0}
";

    fn outcome(found: &[(&str, &[Json])]) -> Outcome {
        let rows =
            |rows: &[Json]| rows.iter().map(|row| row.as_object().unwrap().clone()).collect::<Vec<_>>();
        let mismatch = |id: &str| {
            Mismatch::Rows(RowsMismatch {
                id: id.into(),
                expected: 0,
                found: 0,
                differences: vec![],
                more: 0,
            })
        };
        Outcome {
            failures: found.iter().map(|(id, _)| mismatch(id)).collect(),
            rows: 0,
            found: found.iter().map(|(id, of)| ((*id).to_owned(), rows(of))).collect(),
        }
    }

    fn updated(text: &str, outcomes: Vec<(usize, Outcome)>) -> (anyhow::Result<usize>, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.test.yaml");
        std::fs::write(&path, text).unwrap();
        let file = TestFile::load(&path).unwrap();
        let result = write(&file, &outcomes.into_iter().collect());
        (result, std::fs::read_to_string(path).unwrap())
    }

    #[test]
    fn rows_are_replaced_and_the_rest_stays() {
        let one = outcome(&[
            ("a", &[json!({"n": 1.5, "t": "null"}), json!({"n": null, "t": "a b: ${X}\n"})]),
            ("b", &[]),
        ]);
        let two = outcome(&[("c", &[json!({"n": [1, {"bytes": 2}]})]), ("d", &[json!({"n": 1e300})])]);
        let (result, text) = updated(TEXT, vec![(0, one), (1, two)]);
        assert_eq!(result.unwrap(), 4);
        let expected = "\
version: 1
workflow: w.yaml
tests:
  - name: one # first
    expect:
      a:
        - {\"n\": 1.5, t: \"null\"}
        - {\"n\": null, t: \"a b: $${X}\\n\"}

      # of b
      b:
        ordered: true
        rows: []
  - name: two
    expect:
      c:
        - {\"n\": [1, {bytes: 2}]}
      d:
        - {\"n\": 1e+300}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn rows_within_brackets_stay() {
        let text = "version: 1\nworkflow: w.yaml\ntests:\n  - {name: one, expect: {a: [{n: 1}]}}\n";
        let (result, after) = updated(text, vec![(0, outcome(&[("a", &[json!({"n": 2})])]))]);
        assert!(result.unwrap_err().to_string().contains("are within brackets"));
        assert_eq!(after, text);
    }

    #[test]
    fn files_get_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.test.yaml");
        let text = "version: 1\nworkflow: w.yaml\ntests:\n  - name: one\n    expect: {a: {file: a.jsonl}}\n";
        std::fs::write(&path, text).unwrap();
        std::fs::write(folder.path().join("a.jsonl"), "").unwrap();
        let file = TestFile::load(&path).unwrap();
        let outcomes = BTreeMap::from([(0, outcome(&[("a", &[json!({"n": 2}), json!({"n": 3})])]))]);
        assert_eq!(write(&file, &outcomes).unwrap(), 1);
        assert_eq!(std::fs::read_to_string(folder.path().join("a.jsonl")).unwrap(), "{\"n\":2}\n{\"n\":3}\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), text);
    }
}
