use super::super::associate::Associate;
use crate::api::{BoundOperator, Instance, Output, Stateful};
use crate::bind::{Choice, bind_workflow};
use crate::record::{METADATA_COLUMNS, Metadata, RecordId, record_schema, text};
use crate::registry::Registry;
use crate::relational::snapshot;
use crate::relational::test::bind;
use crate::testing::{Record, only, records};
use arrow_array::{FixedSizeListArray, Float32Array, Int8Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_incremental::chains::{Area, Item, Membership, Rules, Transition, batch};
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
        Column::new("path", ColumnType::Text),
    ])
}

/// Centre of the first and of the last box, in pixels.
type Spots = Option<[(i64, i64); 2]>;

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    name: usize,
    camera: usize,
    start: i64,
    end: i64,
    angle: f32,
    spots: Spots,
    change: i8,
}

impl Seen {
    /// The item with or without boxes, linkable or too late.
    fn item(&self, boxes: bool, alone: bool) -> Item {
        let looks = [self.angle.cos(), self.angle.sin()];
        let looks: &[f32] = if alone { &[] } else { &looks };
        let item =
            Item::new(format!("t{}", self.name), format!("c{}", self.camera), self.start, self.end, looks);
        let spot = |index: usize| {
            let spots = self.spots.filter(|_| boxes && !alone);
            spots.map(|spots| (100 * spots[index].0, 100 * spots[index].1))
        };
        item.with_places(spot(0), spot(1))
    }

    /// The boxes between the first and the last are elsewhere.
    fn path(&self) -> Value {
        let step = |frame: u64, (x, y): (i64, i64)| format!("{frame},{}.00,{}.00,2.00,4.00", x - 1, y - 2);
        match self.spots {
            Some([first, last]) => {
                json!(format!("{};{};{}", step(0, first), step(5, (999, 999)), step(9, last)))
            }
            None if self.name.is_multiple_of(2) => json!("so it is"),
            None => Value::Null,
        }
    }
}

fn rows(first: u64, seen: &[Seen]) -> RecordBatch {
    let one = |(index, seen): (usize, &Seen)| Record {
        source: 0,
        sequence: first + index as u64,
        time: seen.end * 1000,
        payload: json!({"track": format!("t{}", seen.name), "camera": format!("c{}", seen.camera), "start": seen.start, "end": seen.end, "path": seen.path()}),
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

/// State of a reader that sums up all changes.
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

/// An operator and its expected rules.
struct Case {
    options: String,
    rules: Rules,
    keep: i64,
}

fn without_ways(keep: i64) -> Case {
    let rules = Rules { least_likeness: 0.9, shortest_gap: 0, longest_gap: 50, transitions: Vec::new() };
    Case { options: format!("{{likeness: 0.9, within: 50ms, keep: {keep}ms}}"), rules, keep }
}

/// Pictures of 100 by 100 pixels.
fn with_ways(keep: i64) -> Case {
    let options = format!(
        "likeness: 0.9
within: 50ms
overlap: 10ms
keep: {keep}ms
boxes: path
transitions:
  - {{from: c0, leaves: [0, 0, 50, 100], to: c1, enters: [50, 0, 50.5, 100.5]}}
  - {{from: c0, leaves: [50, 0, 50, 100], to: c1, within: 30ms}}
  - {{from: c1, to: c2, enters: [0, 0, 100, 50.01], after: 15ms}}
  - {{from: c2, to: c0, within: 70ms}}
"
    );
    let area = |left, top, right, bottom| Some(Area { left, top, right, bottom });
    let way = |from: &str, to: &str, shortest_gap, longest_gap, leaves, enters| Transition {
        from: from.into(),
        to: to.into(),
        shortest_gap,
        longest_gap,
        leaves,
        enters,
    };
    let transitions = vec![
        way("c0", "c1", -10, 50, area(0, 0, 5000, 10000), area(5000, 0, 10050, 10050)),
        way("c0", "c1", -10, 30, area(5000, 0, 10000, 10000), None),
        way("c1", "c2", 5, 50, None, area(0, 0, 10000, 5001)),
        way("c2", "c0", -10, 70, None, None),
    ];
    let rules = Rules { least_likeness: 0.9, shortest_gap: -10, longest_gap: 50, transitions };
    Case { options, rules, keep }
}

/// Expected results, computed from all tracks each time.
struct Model {
    rules: Rules,
    keep: i64,
    /// Milliseconds.
    watermark: i64,
    /// Tracks that may still change; whether each was too late to be linked.
    kept: BTreeMap<Arc<str>, (Item, bool)>,
    /// Final results.
    over: Vec<(String, String, i64)>,
    late: u64,
    unlinked: u64,
}

impl Model {
    fn new(case: &Case) -> Self {
        let (rules, keep) = (case.rules.clone(), case.keep);
        let (kept, over) = (BTreeMap::new(), Vec::new());
        Self { rules, keep, watermark: i64::MIN / 2, kept, over, late: 0, unlinked: 0 }
    }

    fn take(&mut self, seen: &Seen) {
        let first = self.watermark - self.keep;
        let alone = seen.start < first;
        let item = seen.item(!self.rules.transitions.is_empty(), alone);
        let known = self.kept.get(&item.key);
        if alone && (seen.end < first || !known.map_or(seen.change > 0, |(_, alone)| *alone)) {
            self.late += 1;
        } else if seen.change > 0 {
            self.unlinked += u64::from(alone);
            self.kept.insert(item.key.clone(), (item, alone));
        } else if known.is_some_and(|(known, _)| *known == item) {
            self.kept.remove(&item.key);
        }
    }

    fn chains(&self) -> Vec<Membership> {
        let items: Vec<Item> = self.kept.values().map(|(item, _)| item.clone()).collect();
        batch::chains(&items, &self.rules)
    }

    fn advance(&mut self, watermark: i64) {
        self.watermark = watermark;
        let (shortest, longest) = self.rules.widest_gaps();
        let horizon = watermark - self.keep - longest + shortest.min(0);
        let mut objects: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for Membership { key, chain } in self.chains() {
            objects.entry(chain).or_default().push(key);
        }
        for (object, keys) in objects {
            if keys.iter().all(|key| self.kept[key].0.end < horizon) {
                for key in keys {
                    let (item, _) = self.kept.remove(&key).unwrap();
                    self.over.push((key.to_string(), object.to_string(), item.end));
                }
            }
        }
    }

    /// Track, object and end of all results.
    fn said(&self) -> Vec<(String, String, i64)> {
        let mut said = self.over.clone();
        for Membership { key, chain } in self.chains() {
            said.push((key.to_string(), chain.to_string(), self.kept[&key].0.end));
        }
        said.sort();
        said
    }
}

/// Events of a [`check`].
#[derive(Default)]
struct Happened {
    corrections: usize,
    /// Tracks that are not the first of their object.
    linked: usize,
    over: usize,
    late: u64,
    unlinked: u64,
}

/// On a grid, as are the edges of the areas.
fn spots(random: &mut Random) -> Spots {
    let mut spot = || (10 * random.below(11) as i64, 10 * random.below(11) as i64);
    let found = [spot(), spot()];
    random.chance(0.9).then_some(found)
}

/// Sends tracks in epochs, some of them late, corrected or retracted, with occasional restarts. The result is that of the
/// kept tracks together with that of the removed ones.
fn check(seed: u64, case: &Case) -> Happened {
    let mut random = Random::of_seed(seed);
    let bound = bind(&Associate, &[tracks()], &case.options).unwrap();
    let mut running = instance(&bound);
    let mut reader = Reader::default();
    let mut model = Model::new(case);
    // The last version of each name.
    let mut sent: BTreeMap<usize, Seen> = BTreeMap::new();
    let (mut sequence, mut happened) = (0, Happened::default());
    for epoch in 0..40i64 {
        let mut update: Vec<Seen> = Vec::new();
        for _ in 0..random.below(4) {
            let again = if random.chance(0.3) { random.below(sent.len().min(12)) } else { sent.len() };
            let again = sent.keys().rev().nth(again).copied();
            let name = again.unwrap_or(1000 + sequence as usize + update.len());
            if update.iter().any(|other| other.name == name) {
                continue;
            }
            let start = 50 * (epoch - random.below(8) as i64).max(0) + random.below(40) as i64;
            let longest = if random.chance(0.1) { 400 } else { 60 };
            let end = start + random.below(longest) as i64;
            let (camera, angle) = (random.below(3), random.uniform(0.0, 1.5) as f32);
            let new = Seen { name, camera, start, end, angle, spots: spots(&mut random), change: 1 };
            let new = match sent.get(&name).cloned() {
                Some(old) if random.chance(0.4) => Seen { change: -1, ..old },
                // It was somewhere else.
                Some(old) if random.chance(0.3) => Seen { spots: new.spots, ..old },
                _ => new,
            };
            if new.change > 0 {
                happened.corrections += usize::from(sent.insert(name, new.clone()).is_some());
            }
            update.push(new);
        }
        update.iter().for_each(|seen| model.take(seen));
        let mut output = Output::default();
        if !update.is_empty() {
            running.apply(0, &rows(sequence, &update), &mut output).unwrap();
            sequence += update.len() as u64;
        }
        assert!(output.dead_letters.is_empty());
        happened.late += output.drops.iter().map(|(_, count)| count).sum::<u64>();
        happened.unlinked += output.notes.iter().map(|(_, count)| count).sum::<u64>();
        reader.read(output);
        let said: Vec<_> = reader.rows.keys().cloned().collect();
        assert_eq!(said, model.said(), "seed {seed}, epoch {epoch}");
        let mut output = Output::default();
        running.advance(50_000 * epoch, &mut output).unwrap();
        model.advance(50 * epoch);
        assert!(output.batches.is_empty() && output.drops.is_empty());
        reader.watermark = 50_000 * epoch;
        if random.chance(0.2) {
            let snapshot = running.snapshot().unwrap();
            running = instance(&bound);
            running.restore(&snapshot).unwrap();
            assert_eq!(running.snapshot().unwrap(), snapshot);
        }
    }
    assert_eq!((happened.late, happened.unlinked), (model.late, model.unlinked), "seed {seed}");
    running.advance(i64::MAX, &mut Output::default()).unwrap();
    assert_eq!(running.state_bytes(), 0);
    happened.over = model.over.len();
    happened.linked = model.said().iter().filter(|(track, object, _)| track != object).count();
    happened
}

/// Longer than a check lasts, and shorter than some tracks are late.
const KEEPS: [i64; 2] = [10_000, 150];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_stays_is_what_all_tracks_say(seed in any::<u64>()) {
        let happened = check(seed, &without_ways(KEEPS[0]));
        prop_assert_eq!((happened.over, happened.late, happened.unlinked), (0, 0, 0));
    }

    #[test]
    fn ways_are_kept_to(seed in any::<u64>()) {
        check(seed, &with_ways(KEEPS[0]));
    }

    #[test]
    fn what_is_forgotten_changes_nothing(seed in any::<u64>()) {
        check(seed, &without_ways(KEEPS[1]));
        check(seed, &with_ways(KEEPS[1]));
    }
}

#[test]
fn what_is_checked_happens() {
    for keep in KEEPS {
        for case in [without_ways(keep), with_ways(keep)] {
            let all: Vec<Happened> = (0..6).map(|seed| check(seed, &case)).collect();
            assert!(all.iter().map(|it| it.corrections).sum::<usize>() > 10);
            assert!(all.iter().map(|it| it.linked).sum::<usize>() > 3);
            if keep == KEEPS[1] {
                assert!(all.iter().map(|it| it.over).sum::<usize>() > 20);
                assert!(all.iter().any(|it| it.late > 0) && all.iter().any(|it| it.unlinked > 0));
            }
        }
    }
}

#[test]
fn slips_stand_at_their_place() {
    let way = |way: &str| {
        format!("{{likeness: 0.9, within: 9s, boxes: path, transitions: [{{from: a, to: b, {way}}}]}}")
    };
    for (yaml, code, message) in [
        ("{likeness: 2, within: 1s}".to_owned(), "E0606", "`likeness` is 2"),
        ("{likeness: 0.9, within: 1s, after: 2s}".to_owned(), "E0606", "is 2000 ms, `within` is 1000 ms"),
        (way("after: 5s, within: 3s"), "E0606", "is 5000 ms, `within` is 3000 ms"),
        (way("after: 10s"), "E0606", "is 10000 ms, `within` is 9000 ms"),
        (way("leaves: [0, 0, 10, 10]").replace("boxes: path, ", ""), "E0606", "`boxes` does not name"),
        (way("enters: [0, 0, 10, 10]").replace("boxes: path, ", ""), "E0606", "`boxes` does not name"),
        (way("leaves: [1, 2, 3]"), "E0606", "`leaves` has 3 numbers"),
        (way("after: 1s").replace("to: b", "to: a"), "E0606", "from `a` to `a`"),
        (way("leaves: [1, 2, 0, 4]"), "E0606", "which is empty"),
        (way("leaves: [1, 2, 3, -0.5]"), "E0606", "which is empty"),
        (way("after: 1s").replace("path", "start"), "E0601", "expected text"),
        (way("after: 1s").replace("path", "nothing"), "E0605", "no column `nothing`"),
    ] {
        let error = only(bind(&Associate, &[tracks()], &yaml).err().unwrap());
        assert_eq!(error.code, code, "{yaml}: {error}");
        assert!(error.message.contains(message), "{yaml}: {error}");
        assert!(code == "E0601" || error.line() == Some(1), "{yaml}: {error}");
    }
    for yaml in [
        way("leaves: [-10, 0.5, 10, 10], enters: [0, 0, 1000, 1]"),
        way("after: 10s, within: 12s"),
        "{likeness: 0.9, within: 1s, after: 2s, overlap: 1s}".to_owned(),
        "{likeness: 0.9, within: 1s, after: 2s, transitions: [{from: a, to: b, within: 3s}]}".to_owned(),
    ] {
        assert!(bind(&Associate, &[tracks()], &yaml).is_ok(), "{yaml}");
    }
}

#[test]
fn what_began_long_ago_and_has_just_ended_is_an_object_of_its_own() {
    let bound = bind(&Associate, &[tracks()], OPTIONS).unwrap();
    let mut running = instance(&bound);
    running.advance(20_000_000, &mut Output::default()).unwrap();
    let seen =
        |name, camera, start, end, change| Seen { name, camera, start, end, angle: 0.5, spots: None, change };
    let objects = |reader: &Reader| {
        reader.objects().iter().map(|(track, object)| format!("{track} {object}")).collect::<Vec<_>>()
    };
    let mut reader = Reader { watermark: 20_000_000, ..Reader::default() };
    let mut output = Output::default();
    // It was parked. The second starts where it ended and looks the same, the third follows the second.
    let three = [seen(0, 0, 5_000, 19_990, 1), seen(1, 1, 20_000, 35_000, 1), seen(2, 2, 35_010, 35_020, 1)];
    running.apply(0, &rows(0, &three), &mut output).unwrap();
    assert!(output.drops.is_empty());
    assert_eq!(output.notes, [("unlinked".into(), 1)]);
    reader.read(output);
    assert_eq!(objects(&reader), ["t0 t0", "t1 t1", "t2 t1"]);
    let snapshot = running.snapshot().unwrap();
    let mut running = instance(&bound);
    running.restore(&snapshot).unwrap();
    assert_eq!(running.snapshot().unwrap(), snapshot);
    // It can be corrected and retracted as any other.
    for (first, again, left) in [
        (3, seen(0, 0, 5_000, 19_995, 1), &["t0 t0", "t1 t1", "t2 t1"][..]),
        (4, seen(0, 0, 5_000, 19_995, -1), &["t1 t1", "t2 t1"][..]),
    ] {
        let mut output = Output::default();
        running.apply(0, &rows(first, &[again]), &mut output).unwrap();
        assert!(output.drops.is_empty());
        reader.read(output);
        assert_eq!(objects(&reader), left);
    }
    // A linkable one is not replaced this late.
    running.advance(40_000_000, &mut Output::default()).unwrap();
    let mut output = Output::default();
    running.apply(0, &rows(5, &[seen(1, 1, 20_000, 36_000, 1)]), &mut output).unwrap();
    assert_eq!(output.drops, [("late".into(), 1)]);
    assert!(output.batches.is_empty() && output.notes.is_empty());
}

#[test]
fn a_correction_is_as_late_as_the_track_that_it_follows_from() {
    let mut running = instance(&bind(&Associate, &[tracks()], OPTIONS).unwrap());
    let seen = |name, start, end| Seen { name, camera: name, start, end, angle: 0.5, spots: None, change: 1 };
    running.apply(0, &rows(0, &[seen(1, 50, 60)]), &mut Output::default()).unwrap();
    let mut columns = rows(1, &[seen(0, 0, 40)]).columns().to_vec();
    columns[crate::record::INTENDED] = Arc::new(Int64Array::from(vec![7_000_000]));
    let late = RecordBatch::try_new(record_schema(&tracks()), columns).unwrap();
    let mut output = Output::default();
    running.apply(0, &late, &mut output).unwrap();
    let due = |batch: &RecordBatch| Metadata::of(batch).intended.values().to_vec();
    assert_eq!(output.batches.iter().flat_map(due).collect::<Vec<_>>(), [7_000_000; 3]);
}

#[test]
fn a_snapshot_of_before_there_were_tracks_alone_is_read() {
    let bound = bind(&Associate, &[tracks()], &with_ways(10_000).options).unwrap();
    let seen = |name, camera, start, spots: Spots| Seen {
        name,
        camera,
        start,
        end: start + 10,
        angle: 0.5,
        spots,
        change: 1,
    };
    let before = rows(0, &[seen(0, 0, 0, Some([(90, 90), (10, 10)]))]);
    let sections = [(record_schema(&tracks()), vec![before])];
    let bytes = snapshot::write(super::TAG, &(5_000i64, vec![1u32]), &sections).unwrap();
    for (entered, object) in [((70, 10), "t0"), ((30, 10), "t1")] {
        let mut running = instance(&bound);
        running.restore(&bytes).unwrap();
        let mut output = Output::default();
        let behind = seen(1, 1, 50, Some([entered, (0, 0)]));
        running.apply(0, &rows(1, &[behind]), &mut output).unwrap();
        let mut reader = Reader::default();
        reader.read(output);
        assert_eq!(reader.objects(), [("t1".to_owned(), object.to_owned())]);
    }
}

#[test]
fn what_nothing_can_change_is_forgotten_and_stays_said() {
    let bound = bind(&Associate, &[tracks()], OPTIONS).unwrap();
    let mut running = instance(&bound);
    let mut reader = Reader::default();
    let seen = |name, camera, start| Seen {
        name,
        camera,
        start,
        end: start + 10,
        angle: 0.5,
        spots: None,
        change: 1,
    };
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
    // About 10 s of tracks, two per second, some bytes each.
    let one = bytes / 22;
    assert!((100..4000).contains(&one), "{bytes}");
    let mut output = Output::default();
    running.apply(0, &rows(500, &[seen(900, 0, 30_000)]), &mut output).unwrap();
    assert_eq!(output.drops, [("late".into(), 1)]);
    assert!(output.batches.is_empty());
}

/// An operator that only adds must not get corrections.
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

/// A source with retractions.
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
            waits_for_all: false,
            rereads: false,
            at_one_time: 1,
            stream: None,
            journalled: None,
            input: None,
            journal: None,
            feeds: None,
            requests: None,
            make: Arc::new(|| Err(crate::api::OperatorError::new("it is only bound"))),
        })
    }
}
