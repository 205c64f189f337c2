use super::*;
use crate::api::{GroundTruth, Sink};
use crate::measures::Measure;
use crate::testing::{batch, id, options};
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;
use tidemill_dataset::{Cell, DatasetError, Row, Rows as Read};
use tidemill_spec::span::Span;
use tidemill_spec::types::StreamType;

fn stream() -> StreamType {
    let vector = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2] };
    StreamType::new([
        tidemill_spec::types::Column::new("key", ColumnType::Text),
        tidemill_spec::types::Column::new("size", ColumnType::Float64),
        tidemill_spec::types::Column::new("features", vector),
        tidemill_spec::types::Column::new("kind", ColumnType::Text),
        tidemill_spec::types::Column::new("photo", ColumnType::Image),
    ])
}

fn truth(answers: &[(&str, &str)]) -> GroundTruth {
    let answers: HashMap<String, String> =
        answers.iter().map(|(key, answer)| ((*key).to_owned(), (*answer).to_owned())).collect();
    GroundTruth {
        key: "key".into(),
        prediction: "size".into(),
        answers: Arc::new(answers),
        once: false,
        tracks: None,
        texts: None,
        measure: Measure::Equal,
    }
}

fn bind(base: &Path, yaml: &str, truth: Option<&GroundTruth>) -> Result<BoundSink, Diagnostics> {
    let port = InputPort { from: "made".into(), stream: stream(), span: Span::nowhere() };
    let id = id("sink");
    let context = EndContext { truth, ..EndContext::new(&id, base) };
    crate::kind::SinkKind::bind(&Dataset, &context, &port, &options(yaml))
}

const OPTIONS: &str = "{path: d, inputs: [size, features], label: kind, most: 64}";

fn row(size: f64, kind: &str) -> serde_json::Value {
    json!({"key": format!("k{size}"), "size": size, "features": [size, -1.0], "kind": kind})
}

fn write(sink: &mut dyn Sink, rows: &[serde_json::Value]) {
    sink.write(&batch(&stream(), rows)).unwrap();
}

/// First inputs and labels of the dataset.
fn found(folder: &Path) -> Vec<(f64, String)> {
    let rows: Vec<Row> = Read::open(&folder.join("d")).unwrap().collect::<Result<_, _>>().unwrap();
    let size = |row: &Row| match &row.inputs[0] {
        Cell::Numbers(numbers) => numbers[0],
        Cell::Text(text) => unreachable!("{text}"),
    };
    rows.iter().map(|row| (size(row), row.label.clone())).collect()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("d")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn committed_rows_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let bound = bind(folder.path(), OPTIONS, None).unwrap();
    let mut sink = (bound.make)().unwrap();
    assert_eq!(found(folder.path()), []);
    write(sink.as_mut(), &[row(1.0, "a"), row(2.0, "b")]);
    assert_eq!(found(folder.path()), [], "not yet committed");
    sink.commit(1).unwrap();
    write(sink.as_mut(), &[row(3.0, "x")]);
    sink.rollback().unwrap();
    write(sink.as_mut(), &[row(4.0, "a"), json!({"size": 5.0, "kind": "a"}), row(6.0, "a")]);
    write(sink.as_mut(), &[json!({"size": 7.0, "features": [1, 2]})]);
    sink.commit(2).unwrap();
    write(sink.as_mut(), &[row(8.0, "a")]);
    sink.close().unwrap();
    let expected = [(1.0, "a"), (2.0, "b"), (4.0, "a"), (6.0, "a")];
    assert_eq!(found(folder.path()), expected.map(|(size, kind)| (size, kind.to_owned())));
    let description = Description::load(&folder.path().join("d")).unwrap();
    assert_eq!(description.classes(), [("a".to_owned(), 3), ("b".to_owned(), 1)].into());
    assert_eq!((description.without_label, description.without_input), (1, 1));
    assert_eq!(files(folder.path()), ["dataset.json", "rows-000001.jsonl"]);
    let mut again = (bound.make)().unwrap();
    again.close().unwrap();
    assert_eq!(found(folder.path()), [], "a new run replaces the dataset");
}

#[test]
fn labels_come_from_the_record_or_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let truth = truth(&[("k1", "red"), ("k2", "blue")]);
    // `right` is no column of the records.
    let bound = bind(folder.path(), "{path: d, inputs: [size], label: right}", Some(&truth)).unwrap();
    let mut sink = (bound.make)().unwrap();
    write(sink.as_mut(), &[row(1.0, "a"), row(2.0, "b"), row(3.0, "c")]);
    sink.commit(1).unwrap();
    sink.close().unwrap();
    assert_eq!(found(folder.path()), [(1.0, "red".to_owned()), (2.0, "blue".to_owned())]);
    let own = GroundTruth { prediction: "kind".into(), ..truth.clone() };
    let text = bind(folder.path(), "{path: d, inputs: [size], label: kind}", Some(&own)).err().unwrap();
    assert!(text.render(false).contains("such as `right_kind`"), "{}", text.render(false));
    let bound = bind(folder.path(), "{path: d, inputs: [size], label: kind}", Some(&truth)).unwrap();
    let mut sink = (bound.make)().unwrap();
    let mut without = row(2.0, "");
    without["kind"] = serde_json::Value::Null;
    write(sink.as_mut(), &[row(1.0, "a"), without]);
    sink.commit(1).unwrap();
    sink.close().unwrap();
    assert_eq!(found(folder.path()), [(1.0, "a".to_owned()), (2.0, "blue".to_owned())], "its own first");
}

/// A dataset of 64 rows has shards of 4, whatever the epochs are.
#[test]
fn the_oldest_rows_are_removed() {
    for of_epoch in [1, 3, 7, 50, 200] {
        let folder = tempfile::tempdir().unwrap();
        let bound = bind(folder.path(), OPTIONS, None).unwrap();
        let mut sink = (bound.make)().unwrap();
        for (epoch, sizes) in (0..200).collect::<Vec<i32>>().chunks(of_epoch).enumerate() {
            let rows: Vec<_> = sizes.iter().map(|size| row(f64::from(*size), "a")).collect();
            write(sink.as_mut(), &rows);
            sink.commit(epoch as u64 + 1).unwrap();
            let now = found(folder.path());
            assert!(now.len() <= 64, "{of_epoch}: {}", now.len());
            assert_eq!(now.last().unwrap().0, f64::from(*sizes.last().unwrap()));
        }
        sink.close().unwrap();
        let left = found(folder.path());
        assert!(left.len() > 60 - of_epoch.min(4), "{of_epoch}: {}", left.len());
        let expected: Vec<f64> = (200 - left.len()..200).map(|size| size as f64).collect();
        assert_eq!(left.iter().map(|(size, _)| *size).collect::<Vec<_>>(), expected);
        let description = Description::load(&folder.path().join("d")).unwrap();
        assert_eq!(description.removed + description.rows(), 200);
        assert_eq!(files(folder.path()).len(), 1 + description.shards.len());
    }
}

/// Killed at any commit after its last token, a run that continues has each row once.
#[test]
fn a_continued_run_has_each_row_once() {
    for killed in [1usize, 4, 9, 20, 23, 40] {
        let folder = tempfile::tempdir().unwrap();
        let bound = bind(folder.path(), OPTIONS, None).unwrap();
        let durable = bound.durable.as_ref().unwrap();
        let mut sink = durable(None).unwrap();
        let rows = |epoch: usize| (0..3).map(move |index| row((3 * epoch + index) as f64, "a"));
        let mut token = sink.token().unwrap().unwrap();
        for epoch in 0..killed {
            write(sink.as_mut(), &rows(epoch).collect::<Vec<_>>());
            sink.commit(epoch as u64).unwrap();
            if epoch == killed.saturating_sub(8) {
                token = sink.token().unwrap().unwrap();
                sink.flush().unwrap()().unwrap();
            }
        }
        write(sink.as_mut(), &rows(killed).collect::<Vec<_>>());
        let busy = check(&folder.path().join("d"), Some(&token)).unwrap_err().message;
        assert!(busy.contains("is being written by"), "{busy}");
        drop(sink);
        check(&folder.path().join("d"), Some(&token)).unwrap();
        let mut sink = durable(Some(&token)).unwrap();
        for epoch in killed.saturating_sub(8) + 1..50 {
            write(sink.as_mut(), &rows(epoch).collect::<Vec<_>>());
            sink.commit(epoch as u64).unwrap();
        }
        sink.close().unwrap();
        let left = found(folder.path());
        let expected: Vec<f64> = (150 - left.len()..150).map(|size| size as f64).collect();
        assert_eq!(left.iter().map(|(size, _)| *size).collect::<Vec<_>>(), expected, "{killed}");
        assert!(left.len() > 56 && left.len() <= 64, "{killed}: {}", left.len());
        let description = Description::load(&folder.path().join("d")).unwrap();
        assert_eq!(description.removed + description.rows(), 150);
    }
}

#[test]
fn lost_rows_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let bound = bind(folder.path(), OPTIONS, None).unwrap();
    let durable = bound.durable.as_ref().unwrap();
    let mut sink = durable(None).unwrap();
    for size in 0..10 {
        write(sink.as_mut(), &[row(f64::from(size), "a")]);
        sink.commit(1).unwrap();
    }
    let token = sink.token().unwrap().unwrap();
    sink.suspend().unwrap();
    drop(sink);
    for name in ["rows-000002.jsonl", "rows-000003.jsonl"] {
        let path = folder.path().join("d").join(name);
        let content = std::fs::read(&path).unwrap();
        std::fs::write(&path, &content[..content.len() / 2]).unwrap();
        let message = check(&folder.path().join("d"), Some(&token)).unwrap_err().message;
        assert!(message.contains(name) && message.contains("tidemill state reset"), "{message}");
        assert_eq!(durable(Some(&token)).err().unwrap().message, message);
        std::fs::write(&path, content).unwrap();
    }
    durable(Some(&token)).unwrap().close().unwrap();
    assert_eq!(found(folder.path()).len(), 10);
}

#[test]
fn later_runs_may_append() {
    let folder = tempfile::tempdir().unwrap();
    let appending = OPTIONS.replace("most", "mode: append, most");
    for run in 0..3 {
        let bound = bind(folder.path(), &appending, None).unwrap();
        let mut sink = (bound.make)().unwrap();
        write(sink.as_mut(), &[row(f64::from(2 * run), "a"), row(f64::from(2 * run + 1), "b")]);
        sink.commit(1).unwrap();
        // The last one is killed with uncommitted rows.
        if run == 2 {
            write(sink.as_mut(), &[row(99.0, "a")]);
            drop(sink);
        } else {
            sink.close().unwrap();
        }
    }
    let sizes: Vec<f64> = found(folder.path()).iter().map(|(size, _)| *size).collect();
    assert_eq!(sizes, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(files(folder.path()), ["dataset.json", "rows-000001.jsonl", "rows-000002.jsonl"]);
    let other = appending.replace("[size, features]", "[size]");
    let error = (bind(folder.path(), &other, None).unwrap().make)().err().unwrap().message;
    assert!(error.contains("are not those of this run"), "{error}");
}

#[test]
fn what_is_no_class_becomes_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    let bound = bind(folder.path(), "{path: d, inputs: [size], label: key}", None).unwrap();
    let mut sink = (bound.make)().unwrap();
    sink.at_epoch(5);
    let rows: Vec<_> = (0..1002).map(|size| row(f64::from(size), "a")).collect();
    write(sink.as_mut(), &rows);
    let letters = sink.take_dead_letters();
    sink.commit(5).unwrap();
    sink.close().unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!((letters[0].0, &letters[0].1.reason[..]), (5, "too_many_classes"));
    assert!(letters[0].1.detail.contains("`k1000` in `key`"), "{}", letters[0].1.detail);
    assert_eq!(found(folder.path()).len(), 1000);
}

#[test]
fn a_folder_of_another_program_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/dataset.json"), "{\"name\": \"iris\"}").unwrap();
    let bound = bind(folder.path(), OPTIONS, None).unwrap();
    let error = (bound.make)().err().unwrap().message;
    assert!(error.contains("choose another path"), "{error}");
    assert!(check(&folder.path().join("d"), None).is_err());
    assert!(matches!(Description::load(&folder.path().join("d")), Err(DatasetError::Description { .. })));
}

#[test]
fn wrong_options_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    for (yaml, expected) in [
        ("{path: d, inputs: [photo], label: kind}", "column `photo` is image"),
        ("{path: d, inputs: [sizes], label: kind}", "did you mean `size`?"),
        ("{path: d, inputs: [], label: kind}", "`inputs` of sink `sink` names no column"),
        ("{path: d, inputs: [size, size], label: kind}", "listed twice"),
        ("{path: d, inputs: [kind], label: kind}", "is an input and the label"),
        ("{path: d, inputs: [size], label: kin}", "no `ground_truth`"),
        ("{path: d, inputs: [size], label: features}", "column `features` is tensor"),
        ("{path: d, inputs: [size], label: kind, most: 0}", "a dataset of no rows"),
        ("{path: \"-\", inputs: [size], label: kind}", "standard output"),
    ] {
        let text = bind(folder.path(), yaml, None).err().unwrap().render(false);
        assert!(text.contains(expected), "{yaml}: {text}");
    }
}
