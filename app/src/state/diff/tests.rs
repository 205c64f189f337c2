//! The meaning of each kind of change.
use super::*;
use crate::listener::Silent;
use crate::preparation::{PlanFrom, Prepared, prepare_here};
use crate::state::identity;
use serde_json::json;
use tidemill_state::{SinkState, Token};

const WORKFLOW: &str = "version: 1
name: shop
sources:
  - {id: a_rows, kind: csv, rate: 40/s, options: {path: rows.csv, columns: {key: text, at: int64, value: int64}, event_time: at}}
  - {id: b_rows, kind: csv, rate: 40/s, options: {path: rows.csv, columns: {key: text, at: int64, value: int64}}}
operators:
  - {id: some, kind: filter, input: a_rows, options: {where: \"value > 1\"}}
  - {id: other, kind: filter, input: b_rows, options: {where: \"value > 2\"}}
  - {id: counted, kind: window, input: some, options: {size: 5s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: table, kind: csv, input: counted, options: {path: counted.csv}}
  - {id: lines, kind: jsonl, input: other, options: {path: lines.jsonl}}
  - {id: columns, kind: parquet, input: some, options: {path: some.parquet}}
run: {tick: 50ms}
";

fn prepared(text: &str) -> Prepared {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workflow.yaml");
    std::fs::write(&file, text).unwrap();
    std::fs::write(folder.path().join("rows.csv"), "key,at,value\na,1,1\n").unwrap();
    prepare_here(&file, PlanFrom::Settings(&[]), &Silent).unwrap()
}

/// A checkpoint in the middle of a run.
fn manifest(of: &Prepared) -> Manifest {
    let mut manifest = Manifest { checkpoint: 7, epoch: 100, ..Manifest::new(identity(of)) };
    for (sink, rows) in [("table", 3), ("lines", 200), ("columns", 150)] {
        let token = Some(Token(b"{}".to_vec()));
        manifest.sinks.insert(sink.to_owned(), SinkState { committed: 100, rows, token });
    }
    for source in ["a_rows", "b_rows"] {
        manifest.sources.insert(source.to_owned(), json!({"cuts": {}, "end": null, "emitted": 200}));
    }
    manifest
}

/// Returns the changes of a state when these texts of the workflow are replaced.
fn changed(replaced: &[(&str, &str)]) -> Changes {
    let old = prepared(WORKFLOW);
    let mut text = WORKFLOW.to_owned();
    for (from, to) in replaced {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let new = prepared(&text);
    let definition = Definition::of(&old.workflow, &old.program);
    let kept = Definition::read(&definition.value()).unwrap();
    assert_eq!(kept, definition, "as it stands in a manifest");
    compare(&manifest(&old), &kept, &Definition::of(&new.workflow, &new.program), &new.program)
}

/// Parts that do not simply continue, each with its verdict.
fn others(changes: &Changes) -> Vec<(&str, Verdict)> {
    let others = changes.parts.iter().filter(|part| part.verdict != Verdict::GoesOn);
    others.map(|part| (part.id.as_str(), part.verdict)).collect()
}

#[track_caller]
fn refused(replaced: &[(&str, &str)], id: &str, why: &str) {
    let changes = changed(replaced);
    let found = changes.with(Verdict::Refused).find(|part| part.id == id);
    let found = found.unwrap_or_else(|| panic!("`{id}` is not refused: {changes:#?}"));
    assert!(found.why.contains(why), "{}", found.why);
    assert!(changes.is_refused());
}

#[test]
fn nothing_changed() {
    let changes = changed(&[]);
    assert!(!changes.is_refused() && !changes.wants_acceptance() && changes.parts.len() == 8);
    assert!(changes.parts.iter().all(|part| part.changes.is_empty()), "{changes:#?}");
    assert_eq!(changes.parts[0].why, "continues after record 200");
}

/// A change that gives the same rows needs no confirmation.
#[test]
fn what_changes_no_row_goes_on() {
    let changes = changed(&[("id: counted, kind: window,", "id: counted, kind: window, on_panic: restart,")]);
    assert!(others(&changes).is_empty() && changes.parts.iter().any(|part| !part.changes.is_empty()));
    let changes = changed(&[("id: a_rows, kind: csv, rate: 40/s", "id: a_rows, kind: csv, rate: 20/s")]);
    assert!(others(&changes).is_empty(), "{changes:#?}");
    assert_eq!(changes.parts[0].changes[0].to_string(), "rate: 40/s -> 20/s");
    // But times that records get by the rate are other ones.
    let changes = changed(&[("id: b_rows, kind: csv, rate: 40/s", "id: b_rows, kind: csv, rate: 20/s")]);
    assert_eq!(others(&changes), [("b_rows", Verdict::Changed)]);
}

#[test]
fn an_operator_is_another_one_from_the_checkpoint_on() {
    let changes = changed(&[("value > 1", "value > 3")]);
    assert_eq!(others(&changes), [("some", Verdict::Changed)]);
    let part = changes.with(Verdict::Changed).next().unwrap();
    assert_eq!(part.changes[0].to_string(), "options.where: value > 1 -> value > 3");
    assert!(changes.wants_acceptance() && !changes.is_refused());
    let changes = changed(&[("size: 5s", "size: 4s")]);
    assert_eq!(others(&changes), [("counted", Verdict::BeginsAnew)]);
}

/// A window that gets its rows from elsewhere keeps what it has if they have the same columns, else not.
#[test]
fn inputs_may_change_where_columns_do_not() {
    let changes = changed(&[("kind: window, input: some", "kind: window, input: a_rows")]);
    assert_eq!(others(&changes), [("counted", Verdict::Changed)]);
    let more = "id: b_rows, kind: csv, rate: 40/s, options: {path: rows.csv, columns: {key: text, at: int64, value: int64}";
    let mapped = "  - {id: other, kind: filter, input: b_rows, options: {where: \"value > 2\"}}";
    let map = "  - {id: other, kind: map, input: b_rows, options: {columns: {more: \"value + 1\"}}}";
    assert!(WORKFLOW.contains(more));
    let changes = changed(&[(mapped, map), ("kind: window, input: some", "kind: window, input: other")]);
    let found = others(&changes);
    assert!(found.contains(&("counted", Verdict::BeginsAnew)), "{found:?}");
    let columns = changes.parts.iter().find(|part| part.id == "counted").unwrap();
    assert!(columns.changes.iter().any(|change| change.field == "columns of input 1"), "{columns:?}");
}

#[test]
fn what_happens_while_an_input_is_cut_is_no_change() {
    let changes = changed(&[(
        "kind: window, input: some",
        "kind: window, input: {from: some, when_cut: {buffer: {time: 1h}}}",
    )]);
    assert_eq!(others(&changes), []);
    assert!(!changes.wants_acceptance());
}

#[test]
fn what_is_renamed_is_gone_and_new() {
    let changes = changed(&[("id: counted", "id: tallied"), ("input: counted", "input: tallied")]);
    let found = others(&changes);
    assert!(
        found.contains(&("tallied", Verdict::New)) && found.contains(&("counted", Verdict::Gone)),
        "{found:?}"
    );
    let new = changes.with(Verdict::New).next().unwrap();
    assert!(new.why.contains("`counted` has the same definition"), "{}", new.why);
    refused(&[("id: lines", "id: rows")], "rows", "the file of sink `lines`");
}

#[test]
fn sinks_keep_their_files_or_take_other_ones() {
    let changes = changed(&[("lines.jsonl", "more.jsonl")]);
    assert_eq!(others(&changes), [("lines", Verdict::BeginsAnew)]);
    refused(&[("some.parquet", "more.parquet")], "columns", "wait in a journal");
    refused(
        &[("  - {id: columns, kind: parquet, input: some, options: {path: some.parquet}}\n", "")],
        "columns",
        "keep it",
    );
    refused(
        &[("lines.jsonl", "counted.csv"), ("counted.csv}}\n  - {id: lines", "other.csv}}\n  - {id: lines")],
        "lines",
        "`table`",
    );
    let form = "options: {path: counted.csv, columns: [n]}";
    refused(&[("options: {path: counted.csv}", form)], "table", "another form");
    refused(&[("as: n", "as: m")], "table", "other columns");
}

#[test]
fn sources_keep_what_they_read_and_their_numbers() {
    refused(
        &[(
            "id: a_rows, kind: csv, rate: 40/s, options: {path: rows.csv",
            "id: a_rows, kind: csv, rate: 40/s, options: {path: ./rows.csv",
        )],
        "a_rows",
        "give it another id",
    );
    refused(&[("a_rows", "z_rows")], "z_rows", "a removed source");
    let source = "  - {id: b_rows,";
    let more = |id: &str| {
        format!(
            "  - {{id: {id}, kind: csv, options: {{path: rows.csv, columns: {{key: text}}}}}}\n  - {{id: b_rows,"
        )
    };
    refused(&[(source, &more("ab_rows"))], "ab_rows", "that of `b_rows`");
    let sink = "sinks:\n  - {id: keys, kind: jsonl, input: c_rows, options: {path: keys.jsonl}}";
    let changes = changed(&[(source, &more("c_rows")), ("sinks:", sink)]);
    assert_eq!(others(&changes), [("c_rows", Verdict::New), ("keys", Verdict::New)]);
}

#[test]
fn epochs_stay_what_they_are() {
    refused(&[("tick: 50ms", "tick: 100ms")], "tick", "write `tick: 50ms`");
    refused(&[("tick: 50ms", "checkpoint_every: 3")], "checkpoint_every", "write `checkpoint_every: 20`");
    let changes = changed(&[("name: shop", "name: store"), ("tick: 50ms", "dead_letters: dead.jsonl")]);
    assert_eq!(others(&changes), [("dead_letters", Verdict::Changed), ("name", Verdict::Changed)]);
}

#[test]
fn a_run_that_has_ended_does_not_change() {
    let old = prepared(WORKFLOW);
    let new = prepared(&WORKFLOW.replace("value > 1", "value > 3"));
    let [before, now] = [&old, &new].map(|one: &Prepared| Definition::of(&one.workflow, &one.program));
    let ended = |manifest: &Manifest| compare(manifest, &before, &now, &new.program);
    let complete = Manifest { complete: true, epoch: u64::MAX, ..manifest(&old) };
    assert!(ended(&complete).is_refused());
    assert!(ended(&Manifest { epoch: u64::MAX, ..manifest(&old) }).is_refused());
    assert!(!compare(&complete, &before, &before, &old.program).is_refused());
    // Of a version that noted only what its sinks had.
    let mut ahead = manifest(&old);
    ahead.sinks.get_mut("lines").unwrap().committed = 104;
    let found = ended(&ahead);
    assert_eq!(found.with(Verdict::Refused).map(|part| part.id.as_str()).collect::<Vec<_>>(), ["lines"]);
    assert!(!compare(&ahead, &before, &before, &old.program).is_refused());
}
