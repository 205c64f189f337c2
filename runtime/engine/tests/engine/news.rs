//! Operators whose state comes from outside of the streams: it changes between epochs, and restarts repeat the changes.
use crate::continued::{Kept, options};
use crate::parts::*;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_operators::api::*;
use tidemill_operators::kind::{InputPort, OperatorContext};
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::StreamType;
use tidemill_spec::yaml;

/// No news.
const NOTHING: i64 = -1;

/// Replaces keys by the last number from outside.
struct Stamped {
    outside: Arc<AtomicI64>,
    number: i64,
}

impl Stateful for Stamped {
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        if port == NEWS {
            self.number = tidemill_operators::record::int64(batch.column(0)).expect("int64").value(0);
            return Ok(());
        }
        let keys = (0..batch.num_rows()).map(|_| Some(format!("t{}", self.number)));
        let mut columns = batch.columns().to_vec();
        columns[METADATA_COLUMNS] = Arc::new(keys.collect::<StringArray>());
        output.push(RecordBatch::try_new(batch.schema(), columns).expect("the schema of the test stream"));
        Ok(())
    }

    fn advance(&mut self, _: i64, _: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }

    fn takes_rows_early(&self) -> bool {
        true
    }

    fn follows_news(&self) -> bool {
        true
    }

    fn take_news(&mut self) -> Option<RecordBatch> {
        let number = self.outside.load(Ordering::Acquire);
        let column: ArrayRef = Arc::new(Int64Array::from(vec![number]));
        let batch = RecordBatch::try_from_iter([("number", column)]).expect("one column");
        (number != NOTHING && number != self.number).then_some(batch)
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        Ok(self.number.to_le_bytes().to_vec())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        let bytes = snapshot.try_into().map_err(|_| OperatorError::new("eight bytes"))?;
        self.number = i64::from_le_bytes(bytes);
        Ok(())
    }
}

fn stamped(outside: &Arc<AtomicI64>) -> BoundOperator {
    let outside = Arc::clone(outside);
    operator("s", Computation::Stateful, move || {
        Instance::Stateful(Box::new(Stamped { outside: Arc::clone(&outside), number: 0 }))
    })
}

/// The stamps of each row, in the order in which it passed.
type Seen = Arc<Mutex<BTreeMap<i64, Vec<String>>>>;

fn sees(seen: &Seen) -> BoundOperator {
    let seen = Arc::clone(seen);
    pass("p", move |batch| {
        let mut seen = seen.lock().expect("not poisoned");
        values(batch)
            .into_iter()
            .zip(keys(batch))
            .for_each(|(value, key)| seen.entry(value).or_default().push(key));
    })
}

fn has_seen(seen: &Seen, stamp: &str) -> bool {
    seen.lock().expect("not poisoned").values().flatten().any(|key| key == stamp)
}

/// The slot dies while three changes are not durable, and the outside has changed again when it comes back.
#[test]
fn a_restart_gives_each_row_what_it_had() {
    let (clock, kills) = (Arc::new(ManualClock::new()), Kills::new());
    let options = RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
    let (outside, seen, gate) = (Arc::new(AtomicI64::new(0)), Seen::default(), Gate::closed());
    let held = Arc::clone(&gate);
    let (out, collected) = sink_with("out", true, move |epoch| {
        if epoch >= 50 {
            held.pass();
        }
    });
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("src", numbered(2000), Some(1000.0), Some(0), 40), "a");
    b.operator("s", stamped(&outside), "b", &[]).edge("src", "s", 0);
    b.operator("p", sees(&seen), "b", &[]).edge("s", "p", 0);
    b.sink(out, "c").edge("p", "out", 0);
    let run = Run::start(b.program, options).expect("starts");
    passes(&clock, MILLISECOND, || gate.holds());
    for number in 1..=2 {
        outside.store(number, Ordering::Release);
        passes(&clock, MILLISECOND, || has_seen(&seen, &format!("t{number}")));
    }
    outside.store(3, Ordering::Release);
    kills.kill("w/b", &clock);
    gate.open();
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    let seen = seen.lock().expect("not poisoned");
    let repeated = |stamp: &str| seen.values().any(|keys| keys.len() > 1 && keys[0] == stamp);
    assert!(repeated("t1") && repeated("t2"), "rows came twice, with both stamps");
    let two: Vec<_> = seen.iter().filter(|(_, keys)| keys.iter().any(|key| *key != keys[0])).collect();
    assert!(two.is_empty(), "rows with two stamps: {two:?}");
    let expected: Vec<String> = seen.iter().map(|(value, keys)| format!("{}={value}", keys[0])).collect();
    assert_eq!(lines(&collected), expected);
    assert!(expected.len() == 2000 && expected[1999].starts_with("t3"), "{}", expected[1999]);
    assert!(expected.is_sorted_by_key(|line| line.split('=').next()), "a stamp came back");
}

/// Another process has the state of the checkpoint, and takes news from there on.
#[test]
fn a_continued_run_has_the_state_without_the_rows() {
    let program = |outside: &Arc<AtomicI64>| -> (Program, Collected) {
        let (out, collected) = sink("out");
        let mut b = Builder::new(&[1.0]);
        b.source(rows_source("src", numbered(1000), Some(1000.0), Some(0), 40), "a");
        b.operator("s", stamped(outside), "b", &[]).edge("src", "s", 0);
        b.sink(out, "c").edge("s", "out", 0);
        (b.program, collected)
    };
    let (outside, clock, kept) = (Arc::new(AtomicI64::new(0)), Arc::new(ManualClock::new()), Kept::default());
    let (first, collected) = program(&outside);
    let run = Run::start(first, options(&clock, &kept, None)).expect("starts");
    passes(&clock, MILLISECOND, || lines(&collected).len() > 100);
    outside.store(1, Ordering::Release);
    passes(&clock, MILLISECOND, || lines(&collected).last().is_some_and(|line| line.starts_with("t1")));
    // Ten rows are an epoch.
    let rows_of = |kept: &Kept| kept.all().last().map_or(0, |(past, _)| past.epoch as usize * 10);
    let changed = lines(&collected).len();
    passes(&clock, MILLISECOND, || rows_of(&kept) >= changed);
    run.stopper().stop();
    assert!(!drive(&run, &clock).complete);
    let (before, at) = (lines(&collected), rows_of(&kept));
    let (past, _) = kept.all().pop().expect("a checkpoint");
    let bytes: usize = past.stages["s"].calls.iter().map(Vec::len).sum();
    assert!(bytes < 4096, "{bytes} bytes of calls, so the rows are there too");
    for (outside, stamp) in [(NOTHING, "t1"), (2, "t2")] {
        let (next, collected) = program(&Arc::new(AtomicI64::new(outside)));
        collected.lock().expect("not poisoned").extend(before.clone());
        let clock = Arc::new(ManualClock::new());
        let run = Run::start(next, options(&clock, &Kept::default(), Some(past.clone()))).expect("starts");
        assert!(drive(&run, &clock).complete);
        let found = lines(&collected);
        assert_eq!((found.len(), &found[..at]), (1000, &before[..at]));
        assert!(found[at..].iter().all(|line| line.starts_with(stamp)), "{stamp}: {:?}", &found[at..]);
    }
}

/// A bound operator of a built-in kind with one input.
fn built_in(kind: &str, id: &str, folder: &Path, input: StreamType, options: &str) -> BoundOperator {
    let port = InputPort { from: "input".into(), stream: input, span: Span::nowhere() };
    let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).expect("YAML");
    let id = id.into();
    let context = OperatorContext::new(&id, folder);
    let kind = Registry::builtin().operator(kind).expect("a kind").bind(&context, &[port], &options);
    kind.unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn a_table_changes_between_two_epochs() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |zone: &str| {
        std::fs::write(folder.path().join("new"), format!("key,zone\na,{zone}\n")).expect("written");
        std::fs::rename(folder.path().join("new"), folder.path().join("zones.csv")).expect("renamed");
    };
    write("one");
    let lookup = "{path: zones.csv, key: key, columns: {zone: text}, reload: 10ms}";
    let lookup = built_in("lookup", "l", folder.path(), stream(), lookup);
    let map = built_in(
        "map",
        "m",
        folder.path(),
        lookup.output.clone(),
        "{columns: {key: zone}, keep: [key, value]}",
    );
    let rows = (0..1_000_000).map(|value| Row { key: "a".into(), value, time: value * 1000 }).collect();
    let (out, collected) = sink("out");
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("src", rows, Some(1000.0), Some(0), 40), "a");
    b.operator("l", lookup, "b", &[]).edge("src", "l", 0);
    b.operator("m", map, "b", &[]).edge("l", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let clock = Arc::new(ManualClock::new());
    let run =
        Run::start(b.program, RunOptions { clock: clock.clone(), ..RunOptions::default() }).expect("starts");
    passes(&clock, MILLISECOND, || lines(&collected).len() > 100);
    write("two");
    passes(&clock, MILLISECOND, || lines(&collected).last().is_some_and(|line| line.starts_with("two")));
    run.stopper().stop();
    drive(&run, &clock);
    let found = lines(&collected);
    let first = found.iter().position(|line| line.starts_with("two")).expect("it came");
    let expected = (0..found.len()).map(|row| format!("{}={row}", if row < first { "one" } else { "two" }));
    assert!(found.iter().cloned().eq(expected), "in between: {:?}", &found[first..]);
    assert_eq!(first % 10, 0, "ten rows are an epoch");
}
