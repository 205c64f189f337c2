//! Rows with the columns of a table that changes.
use super::*;
use crate::api::{BoundOperator, NEWS, Output, Stateful};
use crate::kind::OperatorKind;
use crate::record::{METADATA_COLUMNS, Metadata, derive_id, float64, source_id, text};
use crate::testing::{batch, id, only, options};
use arrow_array::{Array, RecordBatch};
use serde_json::json;
use std::path::Path;
use tidemill_spec::span::Span;
use tidemill_spec::types::ColumnType;

fn detections() -> StreamType {
    StreamType::new([
        Column::new("camera", ColumnType::Text),
        Column::new("lane", ColumnType::Int64),
        Column::new("score", ColumnType::Float64),
    ])
}

fn bind(folder: &Path, step: Step, yaml: &str) -> Result<BoundOperator, Diagnostics> {
    let port = InputPort { from: "detections".into(), stream: detections(), span: Span::nowhere() };
    let id = id("named");
    Lookup.bind(&OperatorContext { step, ..OperatorContext::new(&id, folder) }, &[port], &options(yaml))
}

fn instance(bound: &BoundOperator) -> Box<dyn Stateful> {
    match (bound.make)() {
        Ok(Instance::Stateful(instance)) => instance,
        _ => panic!("a lookup has a state"),
    }
}

fn rows() -> RecordBatch {
    let row = |camera: &str, lane: Option<i64>| json!({"camera": camera, "lane": lane, "score": 0.5});
    batch(
        &detections(),
        &[row("north", Some(1)), row("east", Some(1)), row("north", None), row("north", Some(2))],
    )
}

/// The zones that a call gives.
fn zones(instance: &mut Box<dyn Stateful>) -> Vec<Option<String>> {
    let mut output = Output::default();
    instance.apply(0, &rows(), &mut output).unwrap();
    let zone = |batch: &RecordBatch| {
        let zones = text(batch.column_by_name("zone").unwrap()).unwrap();
        zones.iter().map(|zone| zone.map(str::to_owned)).collect::<Vec<_>>()
    };
    output.batches.iter().flat_map(zone).collect()
}

fn some(zones: &[&str]) -> Vec<Option<String>> {
    zones.iter().map(|zone| Some((*zone).to_owned())).collect()
}

const CAMERAS: &str = "id,zone,number,price\nnorth,gate,1,2.5\nnorth,yard,2,\n";
const OPTIONS: &str = "path: cameras.csv\nkey: [camera, lane]\ntable_key: [id, number]\ncolumns: {zone: text, price: float64}\nreload: 10ms";

#[test]
fn rows_get_the_columns_of_their_key() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cameras.csv"), CAMERAS).unwrap();
    let letter = "`cameras.csv` has no row with `camera` = \"east\", `lane` = 1";
    for (missing, expected, drops, letters) in [
        ("keep", vec![Some("gate"), None, None, Some("yard")], 0, vec![]),
        ("drop", vec![Some("gate"), Some("yard")], 2, vec![]),
        (
            "dead_letter",
            vec![Some("gate"), Some("yard")],
            0,
            vec![letter, "`cameras.csv` has no row with `camera` = \"north\", `lane` = null"],
        ),
    ] {
        let bound = bind(folder.path(), Step::Open, &format!("{OPTIONS}\nmissing: {missing}")).unwrap();
        assert_eq!(
            bound.output.to_string(),
            "{camera: text, lane: int64, score: float64, zone: text, price: float64}"
        );
        let mut output = Output::default();
        instance(&bound).apply(0, &rows(), &mut output).unwrap();
        let [found] = output.batches.as_slice() else { panic!("one batch") };
        assert_eq!(found.schema(), record_schema(&bound.output));
        let zones = text(found.column(METADATA_COLUMNS + 3)).unwrap();
        assert_eq!(zones.iter().collect::<Vec<_>>(), expected, "{missing}");
        let prices = float64(found.column(METADATA_COLUMNS + 4)).unwrap();
        assert_eq!((prices.value(0), prices.is_null(prices.len() - 1)), (2.5, true));
        assert_eq!(output.drops.iter().map(|(_, rows)| rows).sum::<u64>(), drops);
        assert_eq!(output.dead_letters.iter().map(|l| l.detail.as_str()).collect::<Vec<_>>(), letters);
        assert!(output.notes.is_empty());
        let number = operator_number("named");
        assert_eq!(Metadata::of(found).id(0), derive_id(number, &[source_id(0, 0)], 0));
    }
}

/// Waits until the thread has found that the file has changed.
fn news(instance: &mut Box<dyn Stateful>) -> RecordBatch {
    loop {
        if let Some(news) = instance.take_news() {
            return news;
        }
        std::thread::yield_now();
    }
}

#[test]
fn the_table_changes_by_news_alone_and_is_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cameras.csv");
    std::fs::write(&path, CAMERAS).unwrap();
    let bound = bind(folder.path(), Step::Open, &format!("{OPTIONS}\nmissing: drop")).unwrap();
    let mut running = instance(&bound);
    assert!(running.follows_news() && running.take_news().is_none());
    std::fs::write(&path, CAMERAS.replace("gate", "door")).unwrap();
    let found = news(&mut running);
    assert_eq!(zones(&mut running), some(&["gate", "yard"]), "the engine has not applied it yet");
    running.apply(NEWS, &found, &mut Output::default()).unwrap();
    assert_eq!(zones(&mut running), some(&["door", "yard"]));
    assert!(running.take_news().is_none());
    let captured = running.capture().unwrap();
    let (before, snapshot) = (instance(&bound).snapshot().unwrap(), captured().unwrap());
    assert_eq!(before, snapshot, "another instance has the newest table");
    // Another process has the state and an older file.
    std::fs::write(&path, CAMERAS).unwrap();
    let other = bind(folder.path(), Step::Open, &format!("{OPTIONS}\nmissing: drop")).unwrap();
    let mut continued = instance(&other);
    continued.restore(&snapshot).unwrap();
    assert_eq!(zones(&mut continued), some(&["door", "yard"]));
    assert_eq!(continued.snapshot().unwrap(), snapshot);
    let found = news(&mut continued);
    continued.apply(NEWS, &found, &mut Output::default()).unwrap();
    assert_eq!(zones(&mut continued), some(&["gate", "yard"]));
    // A restart has the calls and not what the thread found.
    let mut restarted = instance(&other);
    restarted.restore(&snapshot).unwrap();
    restarted.apply(NEWS, &found, &mut Output::default()).unwrap();
    assert_eq!(zones(&mut restarted), some(&["gate", "yard"]));
    // A stage that takes over has the table.
    let mut taken = instance(&bound);
    taken.take_in(&snapshot, &|_| panic!("a table has no rows of the stream")).unwrap();
    assert_eq!(zones(&mut taken), some(&["door", "yard"]));
}

#[test]
fn rows_say_that_the_table_is_outdated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cameras.csv");
    std::fs::write(&path, CAMERAS).unwrap();
    let mut running = instance(&bind(folder.path(), Step::Open, OPTIONS).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut output = Output::default();
    while output.notes.is_empty() {
        assert!(running.take_news().is_none());
        output = Output::default();
        running.apply(0, &rows(), &mut output).unwrap();
    }
    assert_eq!(output.notes, [("outdated_table".into(), 4)]);
    assert_eq!(output.batches[0].num_rows(), 4);
}

#[test]
fn what_is_only_checked_has_types_and_no_table() {
    let elsewhere = Path::new("/nowhere");
    let bound = bind(elsewhere, Step::Check, OPTIONS).unwrap();
    assert_eq!(bound.output.columns.len(), 5);
    let mut running = instance(&bound);
    let error = running.apply(0, &rows(), &mut Output::default()).unwrap_err();
    assert!(error.message.contains("was checked"), "{error}");
    // Its state can be divided nevertheless.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cameras.csv"), CAMERAS).unwrap();
    let snapshot = instance(&bind(folder.path(), Step::Open, OPTIONS).unwrap()).snapshot().unwrap();
    running.take_in(&snapshot, &|_| panic!("a table has no rows of the stream")).unwrap();
    assert_eq!(running.snapshot().unwrap(), snapshot);
}

#[test]
fn wrong_options() {
    let folder = tempfile::tempdir().unwrap();
    let table = |columns: &str| format!("path: cameras.csv\nkey: camera\ntable_key: id\ncolumns: {columns}");
    std::fs::write(folder.path().join("cameras.csv"), "id,zone\nnorth,gate\neast,\nnorth,yard\n").unwrap();
    for (yaml, code, message) in [
        (
            "path: c.parquet\nkey: camera\ncolumns: {zone: text}".into(),
            "E0606",
            "neither a .csv nor a .jsonl",
        ),
        ("path: c.csv\nkey: camera\ncolumns: {zone: text}".into(), "E0609", "does not exist"),
        ("path: c.csv\nkey: score\ncolumns: {zone: text}".into(), "E0601", "expected text, int64 or bool"),
        ("path: c.csv\nkey: cam\ncolumns: {zone: text}".into(), "E0605", "no column `cam`"),
        ("path: c.csv\nkey: []\ncolumns: {zone: text}".into(), "E0606", "compares 0 columns with 0"),
        (
            "path: c.csv\nkey: [camera, lane]\ntable_key: id\ncolumns: {zone: text}".into(),
            "E0606",
            "2 columns with 1",
        ),
        (
            "path: c.csv\nkey: [camera, lane]\ntable_key: [id, id]\ncolumns: {z: text}".into(),
            "E0606",
            "`id` is twice",
        ),
        (table("{}"), "E0606", "no columns are declared"),
        (table("{score: float64}"), "E0606", "which `detections` has too"),
        (table("{id: text}"), "E0606", "is a key of the table"),
        (table("{zone: text}\nreload: 1ms"), "E0606", "`reload` of 1ms is too short"),
        (table("{zone: text}\nmax_table: 2GiB"), "E0606", "`max_table` of 2GiB is not possible"),
        (table("{zone: text}\nmissing: skip"), "E0114", "unknown value `skip`"),
        (table("{zone: text}"), "E0609", "line 4: the key `id` = \"north\" is that of line 2"),
        (table("{zone: int64}"), "E0609", "line 2: column `zone`: `gate` is not int64"),
        (table("{area: text}"), "E0609", "does not name the declared column `area`"),
        (table("{zone: text}\nmax_table: 20B"), "E0609", "line 2: the rows up to here take more than 20B"),
    ] {
        let error = only(bind(folder.path(), Step::Open, &yaml).err().unwrap());
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(message), "{error}");
        assert!(error.line().is_some() || code == "E0601", "{error}");
        assert!(error.help.is_some(), "{error}");
    }
}
