use super::super::associate::Associate;
use crate::api::{BoundOperator, Instance, Output, Stateful};
use crate::bind::{Choice, bind_workflow};
use crate::record::{METADATA_COLUMNS, Metadata, RecordId, record_schema, text};
use crate::registry::Registry;
use crate::relational::test::bind;
use crate::testing::{Record, records};
use arrow_array::{FixedSizeListArray, Float32Array, Int8Array, RecordBatch};
use arrow_schema::{DataType, Field};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_incremental::chains::{Item, Rules, batch};
use tidemill_random::Random;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};

const OPTIONS: &str = "{likeness: 0.9, within: 50ms, keep: 10s}";

fn tracks() -> StreamType {
    StreamType::new([
        Column::new("track", ColumnType::Text),
        Column::new("camera", ColumnType::Text),
        Column::new("start", ColumnType::Int64),
        Column::new("end", ColumnType::Int64),
        Column::new("embedding", ColumnType::Tensor { element: ElementType::Float32, shape: vec![2] }),
    ])
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    name: usize,
    camera: usize,
    start: i64,
    end: i64,
    angle: f32,
    change: i8,
}

impl Seen {
    fn item(&self) -> Item {
        let looks = [self.angle.cos(), self.angle.sin()];
        Item::new(format!("t{}", self.name), format!("c{}", self.camera), self.start, self.end, &looks)
    }
}

fn rows(first: u64, seen: &[Seen]) -> RecordBatch {
    let one = |(index, seen): (usize, &Seen)| Record {
        source: 0,
        sequence: first + index as u64,
        time: seen.end * 1000,
        payload: json!({"track": format!("t{}", seen.name), "camera": format!("c{}", seen.camera), "start": seen.start, "end": seen.end}),
    };
    let all: Vec<Record> = seen.iter().enumerate().map(one).collect();
    let batch = records(&tracks(), &all);
    let mut columns = batch.columns().to_vec();
    let looks =
        Float32Array::from_iter_values(seen.iter().flat_map(|seen| [seen.angle.cos(), seen.angle.sin()]));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    columns[METADATA_COLUMNS + 4] = Arc::new(FixedSizeListArray::new(item, 2, Arc::new(looks), None));
    columns[crate::record::CHANGE] =
        Arc::new(Int8Array::from_iter_values(seen.iter().map(|seen| seen.change)));
    RecordBatch::try_new(record_schema(&tracks()), columns).unwrap()
}

fn instance(bound: &BoundOperator) -> Box<dyn Stateful> {
    match (bound.make)() {
        Ok(Instance::Stateful(instance)) => instance,
        _ => panic!("a stateful operator"),
    }
}

/// What a reader knows who adds up what comes.
#[derive(Default)]
struct Reader {
    rows: BTreeMap<(String, String, i64), i64>,
    ids: BTreeSet<RecordId>,
    watermark: i64,
}

impl Reader {
    fn read(&mut self, output: Output) {
        for batch in output.batches {
            let metadata = Metadata::of(&batch);
            let column = |name: &str| text(batch.column_by_name(name).unwrap()).unwrap();
            let ends = crate::record::int64(batch.column_by_name("end").unwrap()).unwrap();
            for row in 0..batch.num_rows() {
                assert!(self.ids.insert(metadata.id(row)), "each row has an identity of its own");
                assert!(metadata.times.value(row) >= self.watermark, "the watermark has passed the row");
                let key = (
                    column("track").value(row).to_owned(),
                    column("vehicle").value(row).to_owned(),
                    ends.value(row),
                );
                let count = self.rows.entry(key.clone()).or_default();
                *count += i64::from(metadata.changes.value(row));
                assert!(*count >= 0 || metadata.changes.value(row) > 0, "{key:?} was not there");
            }
        }
        self.rows.retain(|_, count| *count != 0);
        assert!(self.rows.values().all(|count| *count == 1));
    }

    fn objects(&self) -> Vec<(String, String)> {
        self.rows.keys().map(|(track, object, _)| (track.clone(), object.clone())).collect()
    }
}

/// Tracks come in epochs, part of them late, corrected or taken back; the operator restarts now and then.
fn check(seed: u64) -> usize {
    let mut random = Random::of_seed(seed);
    let bound = bind(&Associate, &[tracks()], OPTIONS).unwrap();
    let mut running = instance(&bound);
    let mut reader = Reader::default();
    let mut there: BTreeMap<usize, Seen> = BTreeMap::new();
    let (mut sequence, mut corrections) = (0, 0);
    for epoch in 0..40i64 {
        let mut update: Vec<Seen> = Vec::new();
        for _ in 0..random.below(4) {
            let known = there.len();
            let name = if known > 0 && random.chance(0.3) {
                random.below(known + 2)
            } else {
                1000 + sequence as usize + update.len()
            };
            let start = 50 * (epoch - random.below(8) as i64).max(0) + random.below(40) as i64;
            let end = start + random.below(60) as i64;
            let new = Seen {
                name,
                camera: random.below(3),
                start,
                end,
                angle: random.uniform(0.0, 1.5) as f32,
                change: 1,
            };
            if update.iter().any(|other| other.name == name) {
                continue;
            }
            match there.get(&name).cloned() {
                Some(old) if random.chance(0.4) => {
                    there.remove(&name);
                    update.push(Seen { change: -1, ..old });
                }
                _ => drop(there.insert(name, new.clone()).map(|_| corrections += 1)),
            }
            if there.contains_key(&name) {
                update.push(new);
            }
        }
        let mut output = Output::default();
        if !update.is_empty() {
            running.apply(0, &rows(sequence, &update), &mut output).unwrap();
            sequence += update.len() as u64;
        }
        reader.read(output);
        let mut output = Output::default();
        running.advance(50_000 * epoch, &mut output).unwrap();
        assert!(output.batches.is_empty() && output.drops.is_empty());
        reader.watermark = 50_000 * epoch;
        let items: Vec<Item> = there.values().map(Seen::item).collect();
        let rules = Rules { least_likeness: 0.9, shortest_gap: 0, longest_gap: 50, transitions: Vec::new() };
        let expected: Vec<(String, String)> = batch::chains(&items, &rules)
            .iter()
            .map(|it| (it.key.to_string(), it.chain.to_string()))
            .collect();
        assert_eq!(reader.objects(), expected, "seed {seed}, epoch {epoch}");
        if random.chance(0.2) {
            let snapshot = running.snapshot().unwrap();
            running = instance(&bound);
            running.restore(&snapshot).unwrap();
            assert_eq!(running.snapshot().unwrap(), snapshot);
        }
    }
    running.advance(i64::MAX, &mut Output::default()).unwrap();
    assert_eq!(running.state_bytes(), 0);
    corrections
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_stays_is_what_all_tracks_say(seed in any::<u64>()) {
        check(seed);
    }
}

#[test]
fn corrections_happen() {
    assert!((0..4).map(check).sum::<usize>() > 10);
}

#[test]
fn what_nothing_can_change_is_forgotten_and_stays_said() {
    let bound = bind(&Associate, &[tracks()], OPTIONS).unwrap();
    let mut running = instance(&bound);
    let mut reader = Reader::default();
    let seen = |name, camera, start| Seen { name, camera, start, end: start + 10, angle: 0.5, change: 1 };
    let mut bytes = 0;
    for round in 0..50i64 {
        let mut output = Output::default();
        let name = 2 * round as usize;
        let pair = [seen(name, 0, 1000 * round), seen(name + 1, 1, 1000 * round + 30)];
        running.apply(0, &rows(2 * round as u64, &pair), &mut output).unwrap();
        running.advance(1_000_000 * round, &mut output).unwrap();
        assert!(output.drops.is_empty());
        reader.read(output);
        reader.watermark = 1_000_000 * round;
        bytes = bytes.max(running.state_bytes());
    }
    assert_eq!(reader.objects().len(), 100);
    assert!(
        reader.objects().iter().all(|(track, object)| track[1..].parse::<i32>().unwrap() / 2 * 2
            == object[1..].parse::<i32>().unwrap())
    );
    // About 10 s of them, two a second and some bytes each.
    let one = bytes / 22;
    assert!((100..4000).contains(&one), "{bytes}");
    let mut output = Output::default();
    running.apply(0, &rows(500, &[seen(900, 0, 30_000)]), &mut output).unwrap();
    assert_eq!(output.drops, [("late".into(), 1)]);
    assert!(output.batches.is_empty());
}

/// Who adds up what comes must not be told corrections.
#[test]
fn operators_that_only_add_refuse_corrections() {
    let folder = tempfile::tempdir().unwrap();
    let workflow = |behind: &str| {
        let text = format!(
            "version: 1\nname: w\nsources: [{{id: s, kind: revising, options: {{}}}}]\noperators: [{behind}]\nsinks: [{{id: o, kind: jsonl, input: op, options: {{path: o.jsonl}}}}]\n"
        );
        let source = tidemill_spec::span::SourceFile::new("workflow.yaml", text);
        let mut workflow: tidemill_spec::workflow::Workflow =
            tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap();
        workflow.directory.0 = folder.path().into();
        workflow
    };
    let mut registry = Registry::builtin();
    registry.register_source(Revising);
    let window = "{id: op, kind: window, input: s, options: {size: 1s, aggregates: [{function: count}]}}";
    let error = crate::testing::only(
        bind_workflow(&workflow(window), &registry, |_| Choice::default()).err().unwrap(),
    );
    assert_eq!((error.code, error.line()), ("E0620", Some(4)), "{error}");
    let filter = "{id: op, kind: filter, input: s, options: {where: v > 1}}";
    let bound = bind_workflow(&workflow(filter), &registry, |_| Choice::default()).unwrap();
    assert!(bound.operators["op"].output.revised);
    let map = "{id: op, kind: map, input: s, options: {columns: {w: v + 1}}}";
    let bound = bind_workflow(&workflow(map), &registry, |_| Choice::default()).unwrap();
    assert!(bound.sinks["o"].input.revised);
}

/// A source whose rows may be taken back.
struct Revising;

impl crate::kind::SourceKind for Revising {
    fn kind(&self) -> &'static str {
        "revising"
    }

    fn summary(&self) -> &'static str {
        "Rows that may be taken back."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::json_schema!({"type": "object", "additionalProperties": false})
    }

    fn bind(
        &self,
        context: &crate::kind::EndContext<'_>,
        _options: &tidemill_spec::value::Value,
    ) -> Result<crate::api::BoundSource, tidemill_spec::diagnostic::Diagnostics> {
        Ok(crate::api::BoundSource {
            id: context.id.value.clone(),
            kind: "revising".into(),
            output: StreamType::new([Column::new("v", ColumnType::Int64)]).with_revisions(true),
            key: None,
            rate_per_second: None,
            out_of_order_microseconds: 0,
            live: false,
            has_event_times: true,
            at_one_time: 1,
            stream: None,
            journalled: None,
            input: None,
            journal: None,
            make: Arc::new(|| Err(crate::api::OperatorError::new("it is only bound"))),
        })
    }
}
