//! The fate of each part of a workflow that changed, as a table.
use crate::table::{Side, Table};
use serde_json::Value;
use std::io::{self, Write};
use tidemill_app::figures::bytes;
use tidemill_app::state::diff::{Changes, PartChange, Verdict};

/// Checkpoint and epoch in words, with the word that `--to` takes.
pub(crate) fn place_of(epoch: u64) -> String {
    match epoch {
        u64::MAX => "at the end (all epochs are done)".to_owned(),
        epoch => format!("epoch {epoch}"),
    }
}

/// Replaces the epoch that marks the end, in a JSON document about a state, by null.
pub(crate) fn end_is_null(document: &mut Value) {
    match document {
        Value::Number(number) if number.as_u64() == Some(u64::MAX) => *document = Value::Null,
        Value::Array(list) => list.iter_mut().for_each(end_is_null),
        Value::Object(map) => map.values_mut().for_each(end_is_null),
        _ => {}
    }
}

fn row(part: &PartChange) -> [String; 6] {
    let changes: Vec<String> = part.changes.iter().map(ToString::to_string).collect();
    let state = part.state_bytes.map(bytes).unwrap_or_default();
    let verdict = part.verdict.text().to_owned();
    [part.role.text().to_owned(), part.id.clone(), verdict, state, changes.join("; "), part.why.clone()]
}

/// Writes the table.
///
/// # Errors
/// `out` fails.
pub(crate) fn write(changes: &Changes, out: &mut dyn Write) -> io::Result<()> {
    let columns = [
        ("part", Side::Left),
        ("id", Side::Left),
        ("becomes", Side::Left),
        ("state", Side::Right),
        ("what changed", Side::Left),
        ("that is", Side::Left),
    ];
    let mut table = Table::new(&columns);
    changes.parts.iter().for_each(|part| table.row(row(part)));
    table.write(out)
}

/// Returns the treatment of these changes by a run, in one line.
pub(crate) fn verdict(changes: &Changes) -> String {
    let place = place_of(changes.epoch);
    if changes.is_refused() {
        return "a run cannot continue from this state".to_owned();
    }
    if !changes.wants_acceptance() {
        return format!("a run continues from this state, {place}");
    }
    let lost: u64 = [Verdict::BeginsAnew, Verdict::Gone]
        .into_iter()
        .flat_map(|verdict| changes.with(verdict))
        .filter_map(|part| part.state_bytes)
        .sum();
    let lost = match lost {
        0 => String::new(),
        lost => format!(", and deletes {} of state", bytes(lost)),
    };
    format!(
        "a run with `--accept-changes` continues from this state, {place}{lost}: earlier records followed \
         the old definition, later ones follow the new one"
    )
}

/// Table and verdict, line by line.
pub(crate) fn lines(changes: &Changes) -> Vec<String> {
    let mut text = Vec::new();
    // Memory takes everything.
    let _ = write(changes, &mut text);
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::to_owned).chain([verdict(changes)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_document_has_the_number_of_the_end() {
        let mut document = json!({"epoch": u64::MAX, "older": [{"epoch": u64::MAX, "checkpoint": 3}, {"epoch": 40}], "name": "a"});
        end_is_null(&mut document);
        let expected =
            json!({"epoch": null, "older": [{"epoch": null, "checkpoint": 3}, {"epoch": 40}], "name": "a"});
        assert_eq!(document, expected);
        assert!(place_of(u64::MAX).contains("at the end"));
    }
}
