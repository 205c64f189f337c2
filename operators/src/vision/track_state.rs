//! A running `track`: the trackers of the cameras, and boxes whose frames may not be complete.
use super::track_rows::{BoxRow, Columns, Ended, Gives, Origin, broken, track_name, track_rows};
use crate::api::{DeadLetter, OperatorError, Output, StateKeys, Stateful, TakesKeys};
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, batch_bytes, derive_metadata, int64, text};
use crate::relational::snapshot;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StringArray, UInt32Array};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take_record_batch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_tracking::tracker::{Detection, Track, Tracker, TrackerSettings};

/// Format of the snapshots.
const TAG: [u8; 8] = *b"TRCK0002";

/// Assumed distance of frames while the pace is unknown, microseconds.
const SLOWEST: i128 = 1_000_000;
/// Most frames from which the pace of a camera is computed.
const PACE_FRAMES: u64 = 256;

/// Settings that all copies of one `track` share.
pub(super) struct Setup {
    pub(super) operator: u64,
    pub(super) settings: TrackerSettings,
    pub(super) columns: Columns,
    pub(super) gives: Gives,
    pub(super) input: SchemaRef,
    pub(super) output: SchemaRef,
}

/// State of a camera.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Camera {
    tracker: Tracker,
    /// Event time and number of the earlier frame for the pace: the first one, or a recent one.
    first: (EventTime, u64),
    /// Event time and number of the last frame.
    last: (EventTime, u64),
    /// Route class of the last row, by which a state is divided.
    class: u32,
    /// Names of classes, in order of appearance.
    classes: Vec<String>,
    /// By number of the track; only live ones.
    origins: BTreeMap<u64, Origin>,
}

impl Camera {
    fn class_number(&mut self, name: Option<&String>) -> u32 {
        let Some(name) = name else { return u32::MAX };
        let known = self.classes.iter().position(|class| class == name).unwrap_or_else(|| {
            self.classes.push(name.clone());
            self.classes.len() - 1
        });
        known as u32
    }

    /// Frames and microseconds between the first and the last one; if that is not enough for a pace, one frame in
    /// [`SLOWEST`]. A camera that was seen once must not hold up all others.
    fn pace(&self) -> (i128, i128) {
        let frames = i128::from(self.last.1) - i128::from(self.first.1);
        let took = i128::from(self.last.0) - i128::from(self.first.0);
        if frames > 0 && took > 0 { (frames, took) } else { (1, SLOWEST) }
    }

    /// Whether all tracks have ended at this watermark, by the recent mean time between frames.
    fn is_over(&self, watermark: EventTime, patience: u64) -> bool {
        let (frames, took) = self.pace();
        let since = i128::from(watermark) - i128::from(self.last.0);
        watermark == EventTime::MAX || since * frames > (i128::from(patience) + 1) * took
    }

    /// Records a frame of a camera whose tracks had all ended. Its absence says little about its pace: at most twice the
    /// time of its frames, or of the patience, is counted.
    fn returned(&mut self, time: EventTime, frame: u64, patience: u64) {
        let (frames, took) = self.pace();
        let away = frame.saturating_sub(self.last.1).max(patience + 1);
        let most = (2 * i128::from(away)).saturating_mul(took) / frames;
        let surplus = i128::from(time) - i128::from(self.last.0) - most;
        if surplus > 0 {
            let later = |of: EventTime| i64::try_from(i128::from(of) + surplus).unwrap_or(time);
            (self.first.0, self.last.0) = (later(self.first.0), later(self.last.0));
        }
    }

    /// Records a later frame. Old frames say little about the current pace, so half of the history is dropped once it is
    /// long.
    fn reached(&mut self, time: EventTime, frame: u64) {
        self.last = (time, frame);
        let frames = frame.saturating_sub(self.first.1);
        if frames > PACE_FRAMES {
            let took = i128::from(time) - i128::from(self.first.0);
            let kept = took * i128::from(PACE_FRAMES / 2) / i128::from(frames);
            let since = i64::try_from(i128::from(time) - kept).unwrap_or(self.first.0);
            self.first = (since, frame - PACE_FRAMES / 2);
        }
    }
}

/// A running `track`.
pub(super) struct Running {
    setup: Arc<Setup>,
    watermark: EventTime,
    cameras: BTreeMap<String, Camera>,
    /// Rows that the watermark has not passed.
    pending: Vec<RecordBatch>,
    /// Intended time of the latest processed box, over all cameras; the ends that a watermark causes get it.
    latest: i64,
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        Self { setup, watermark: EventTime::MIN, cameras: BTreeMap::new(), pending: Vec::new(), latest: 0 }
    }

    /// Takes the pending rows that the watermark has passed, in the order of frames; the others keep waiting.
    fn due(&mut self) -> Result<Option<RecordBatch>, OperatorError> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        let all = concat_batches(&self.setup.input, &self.pending).map_err(broken)?;
        let metadata = Metadata::of(&all);
        let is_due: BooleanArray =
            metadata.times.values().iter().map(|time| Some(*time < self.watermark)).collect();
        if is_due.true_count() == 0 {
            self.pending = vec![all];
            return Ok(None);
        }
        let waits: BooleanArray = is_due.iter().map(|due| due.map(|due| !due)).collect();
        let due = filter_record_batch(&all, &is_due).map_err(broken)?;
        let rest = filter_record_batch(&all, &waits).map_err(broken)?;
        self.pending = if rest.num_rows() > 0 { vec![rest] } else { Vec::new() };
        let metadata = Metadata::of(&due);
        let cameras = text(due.column(METADATA_COLUMNS + self.setup.columns.camera));
        let frames = int64(due.column(METADATA_COLUMNS + self.setup.columns.frame));
        let mut order: Vec<u32> = (0..due.num_rows() as u32).collect();
        order.sort_by_cached_key(|row| {
            let row = *row as usize;
            let camera = cameras.filter(|names| names.is_valid(row)).map(|names| names.value(row));
            // Several frames may have one time, for example if it has whole seconds.
            let frame = frames.filter(|numbers| numbers.is_valid(row)).map(|numbers| numbers.value(row));
            (metadata.times.value(row), camera, frame, metadata.id(row))
        });
        take_record_batch(&due, &UInt32Array::from(order)).map(Some).map_err(broken)
    }

    /// Processes the frames of complete rows.
    fn look(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let metadata = Metadata::of(batch);
        let mut frames: Vec<(u64, Vec<(usize, BoxRow<'_>)>)> = Vec::new();
        for row in 0..batch.num_rows() {
            match setup.columns.row(batch, row) {
                Err((reason, detail)) => {
                    output.dead_letters.push(DeadLetter::of_row(batch, row, reason, detail))
                }
                Ok(seen) => {
                    let is_same = frames.last().is_some_and(|(frame, rows)| {
                        *frame == seen.frame
                            && rows[0].1.camera == seen.camera
                            && metadata.times.value(rows[0].0) == metadata.times.value(row)
                    });
                    match frames.last_mut().filter(|_| is_same) {
                        Some((_, rows)) => rows.push((row, seen)),
                        None => frames.push((seen.frame, vec![(row, seen)])),
                    }
                }
            }
        }
        let (mut ended, mut rows, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let (mut untracked, mut again) = (0, 0);
        for (frame, boxes) in frames {
            let Some(numbers) = self.frame(&metadata, frame, &boxes, &mut ended) else {
                again += boxes.len() as u64;
                continue;
            };
            for ((row, seen), number) in boxes.iter().zip(numbers) {
                match number {
                    Some(number) => {
                        rows.push(*row as u32);
                        names.push(track_name(seen.camera, number));
                    }
                    None => untracked += 1,
                }
            }
        }
        output.drop_rows("frame_again", again);
        match setup.gives {
            Gives::Boxes => {
                output.drop_rows("untracked", untracked);
                if !rows.is_empty() {
                    let rows = take_record_batch(batch, &UInt32Array::from(rows)).map_err(broken)?;
                    let mut columns = derive_metadata(&rows, setup.operator);
                    columns.extend(rows.columns()[METADATA_COLUMNS..].iter().cloned());
                    columns.push(Arc::new(StringArray::from(names)));
                    output.push(RecordBatch::try_new(Arc::clone(&setup.output), columns).map_err(broken)?);
                }
            }
            Gives::Tracks { .. } => self.give(ended, output)?,
        }
        Ok(())
    }

    /// Processes one frame of one camera. Returns the track number of each box, or nothing if the camera's last frame is
    /// repeated.
    fn frame(
        &mut self,
        metadata: &Metadata<'_>,
        frame: u64,
        boxes: &[(usize, BoxRow<'_>)],
        ended: &mut Vec<Ended>,
    ) -> Option<Vec<Option<u64>>> {
        let (first, name) = (boxes[0].0, boxes[0].1.camera);
        let time = metadata.times.value(first);
        let camera = self.cameras.entry(name.to_owned()).or_insert_with(|| Camera {
            tracker: Tracker::new(self.setup.settings.clone()),
            first: (time, frame),
            last: (time, frame),
            class: 0,
            classes: Vec::new(),
            origins: BTreeMap::new(),
        });
        camera.class = metadata.classes.value(first);
        // Acts as if the watermark had been here already.
        let intended = boxes.iter().map(|(row, _)| metadata.intended.value(*row)).max().unwrap_or(0);
        self.latest = self.latest.max(intended);
        let is_over = camera.is_over(time, self.setup.settings.patience);
        if is_over {
            ended.extend(finish(name, camera, intended));
            camera.returned(time, frame, self.setup.settings.patience);
        }
        // Frames come by time, so a lower number means that the camera restarted its count or that the previous number was
        // damaged. An equal number does not while tracks may continue: its boxes have different times.
        match camera.tracker.last_frame() {
            Some(last) if frame < last || frame == last && is_over => {
                let tracks = camera.tracker.begin_again();
                ended.extend(end_all(name, camera, tracks, intended));
                camera.first = (time, frame);
            }
            Some(last) if frame == last => return None,
            _ => {}
        }
        let detections: Vec<Detection> = boxes
            .iter()
            .map(|(_, seen)| Detection {
                area: seen.area,
                score: seen.score,
                class: camera.class_number(seen.class.as_ref()),
                embedding: seen.embedding.clone(),
            })
            .collect();
        let step = camera.tracker.step(frame, &detections);
        camera.reached(time, frame);
        for track in step.ended {
            ended.extend(end(name, camera, track, intended));
        }
        if let Gives::Tracks { path } = self.setup.gives {
            // The first box of a track belongs to its row, so it is recorded before the track is confirmed.
            for (number, index) in camera.tracker.seen_last().to_vec() {
                let (row, seen) = &boxes[index];
                let origin = camera.origins.entry(number).or_insert_with(|| Origin::of(metadata, *row));
                origin.note(metadata, *row, path.then_some(seen));
            }
            let living = |number: &u64| camera.tracker.lives(*number);
            camera.origins.retain(|number, _| living(number));
        }
        Some(step.numbers)
    }

    fn give(&self, mut ended: Vec<Ended>, output: &mut Output) -> Result<(), OperatorError> {
        if ended.is_empty() || self.setup.gives == Gives::Boxes {
            return Ok(());
        }
        ended.sort_by(|a, b| {
            (a.origin.end, &a.camera, a.track.number).cmp(&(b.origin.end, &b.camera, b.track.number))
        });
        output.push(track_rows(&self.setup.output, self.setup.operator, &ended)?);
        Ok(())
    }
}

/// An ended track, with its recorded data.
fn end(name: &str, camera: &mut Camera, track: Track, intended: i64) -> Option<Ended> {
    let origin = camera.origins.remove(&track.number)?;
    let class = camera.classes.get(track.class() as usize).cloned();
    Some(Ended { camera: name.to_owned(), class, track, origin, intended })
}

/// Ends all tracks of a camera.
fn finish(name: &str, camera: &mut Camera, intended: i64) -> Vec<Ended> {
    let tracks = camera.tracker.finish();
    end_all(name, camera, tracks, intended)
}

/// Records the last tracks of a camera.
fn end_all(name: &str, camera: &mut Camera, tracks: Vec<Track>, intended: i64) -> Vec<Ended> {
    let ended = tracks.into_iter().filter_map(|track| end(name, camera, track, intended)).collect();
    camera.origins.clear();
    ended
}

impl Stateful for Running {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let times = Metadata::of(batch).times;
        let in_time: BooleanArray = times.values().iter().map(|time| Some(*time >= self.watermark)).collect();
        let late = batch.num_rows() - in_time.true_count();
        output.drop_rows("late", late as u64);
        let kept =
            if late == 0 { batch.clone() } else { filter_record_batch(batch, &in_time).map_err(broken)? };
        if kept.num_rows() > 0 {
            self.pending.push(kept);
        }
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = self.watermark.max(watermark);
        if let Some(due) = self.due()? {
            self.look(&due, output)?;
        }
        let mut ended = Vec::new();
        for (name, camera) in &mut self.cameras {
            if camera.is_over(self.watermark, self.setup.settings.patience) {
                ended.extend(finish(name, camera, self.latest));
            }
        }
        self.give(ended, output)?;
        if self.watermark == EventTime::MAX {
            self.cameras.clear();
        }
        Ok(())
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        let ends = self.cameras.values().flat_map(|camera| camera.origins.values().map(|origin| origin.end));
        ends.min().map_or(watermark, |end| end.min(watermark))
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let pending = match self.pending.is_empty() {
            true => Vec::new(),
            false => vec![concat_batches(&self.setup.input, &self.pending).map_err(broken)?],
        };
        snapshot::write(
            TAG,
            &(self.watermark, self.latest, &self.cameras),
            &[(Arc::clone(&self.setup.input), pending)],
        )
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let ((watermark, latest, cameras), mut sections) = self.read(bytes)?;
        (self.watermark, self.latest, self.cameras) = (watermark, latest, cameras);
        self.pending = sections.pop().unwrap_or_default();
        Ok(())
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn take_in(&mut self, bytes: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let ((watermark, latest, cameras), sections) = self.read(bytes)?;
        self.latest = self.latest.max(latest);
        if self.watermark == EventTime::MIN && self.cameras.is_empty() && self.pending.is_empty() {
            self.watermark = watermark;
        } else if self.watermark != watermark {
            return Err(OperatorError::new(
                "track: the stages with the state are at different epochs, so other stages cannot take it \
                 over now: run the old plan briefly, then try again",
            ));
        }
        let classes = UInt32Array::from_iter_values(cameras.values().map(|camera| camera.class));
        let names: ArrayRef = Arc::new(StringArray::from_iter_values(cameras.keys()));
        let taken = takes(&StateKeys { classes: &classes, first: Some(&names) });
        let taken = cameras.into_iter().zip(taken.iter()).filter(|(_, taken)| *taken == Some(true));
        self.cameras.extend(taken.map(|(camera, _)| camera));
        for batch in sections.iter().flatten() {
            let names = batch.column(METADATA_COLUMNS + self.setup.columns.camera);
            let taken = takes(&StateKeys { classes: Metadata::of(batch).classes, first: Some(names) });
            let rows = filter_record_batch(batch, &taken).map_err(broken)?;
            if rows.num_rows() > 0 {
                self.pending.push(rows);
            }
        }
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        let tracks =
            self.cameras.values().flat_map(|camera| camera.origins.values().map(|origin| origin.path.len()));
        let cameras = self.cameras.len() * size_of::<Camera>();
        cameras
            + tracks.map(|path| path + size_of::<Origin>()).sum::<usize>()
            + self.pending.iter().map(batch_bytes).sum::<usize>()
    }
}

/// The watermark, the latest intended time, the cameras, and the pending rows.
type State = ((EventTime, i64, BTreeMap<String, Camera>), Vec<Vec<RecordBatch>>);

impl Running {
    fn read(&self, bytes: &[u8]) -> Result<State, OperatorError> {
        snapshot::read(TAG, &[Arc::clone(&self.setup.input)], bytes)
    }
}

#[cfg(test)]
#[path = "track_tests.rs"]
mod frame_tests;

#[cfg(test)]
mod tests {
    use super::super::track::Track;
    use crate::api::Output;
    use crate::record::{Metadata, int64, text};
    use crate::relational::test::{bind, feed, run_epochs};
    use crate::testing::Record;
    use serde_json::json;
    use tidemill_random::Random;
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    pub(super) fn boxes() -> StreamType {
        let mut columns =
            vec![Column::new("camera", ColumnType::Text), Column::new("frame", ColumnType::Int64)];
        columns.extend(
            ["left", "top", "width", "height", "score"].map(|name| Column::new(name, ColumnType::Float64)),
        );
        columns.push(Column::new("class", ColumnType::Text));
        StreamType::new(columns)
    }

    /// Two cameras. In each, a car appears every two seconds and crosses the picture in three, seen ten times a second.
    pub(super) fn rows(seed: u64) -> Vec<(usize, Record)> {
        let mut random = Random::of_seed(seed);
        let mut rows = Vec::new();
        for (source, camera) in [(0u32, "east"), (1, "west")] {
            for frame in 0..100u64 {
                for car in 0..5u64 {
                    let age = frame as i64 - 20 * car as i64;
                    // The detector misses one occasionally.
                    if !(0..30).contains(&age) || age > 1 && random.chance(0.05) {
                        continue;
                    }
                    let left = 10.0 * age as f64 + random.uniform(-0.5, 0.5);
                    let payload = json!({
                        "camera": camera, "frame": frame, "left": left, "top": 40.0 * (car % 2) as f64, "width": 40.0, "height": 25.0,
                        "score": random.uniform(0.72, 1.0), "class": if car % 2 == 0 { "car" } else { "bus" },
                    });
                    let sequence = frame * 8 + car;
                    rows.push((0, Record { source, sequence, time: frame as i64 * 100_000, payload }));
                }
            }
        }
        rows
    }

    fn run(options: &str, seed: u64, random: u64) -> Output {
        let bound = bind(&Track, &[boxes()], options).unwrap();
        let feed = feed(&rows(seed), 150_000, random);
        run_epochs(&bound, &[boxes()], &feed.epochs, random)
    }

    pub(super) fn column(output: &Output, name: &str) -> Vec<String> {
        let of = |array: &arrow_array::ArrayRef| match text(array) {
            Some(texts) => texts.iter().map(|value| value.unwrap_or_default().to_owned()).collect::<Vec<_>>(),
            None => int64(array).unwrap().iter().map(|value| value.unwrap_or_default().to_string()).collect(),
        };
        output.batches.iter().flat_map(|batch| of(batch.column_by_name(name).unwrap())).collect()
    }

    #[test]
    fn each_car_is_one_track_whatever_the_epochs() {
        let mut first: Option<Vec<(String, String)>> = None;
        for random in 0..12 {
            let output = run("{gives: tracks, path: true}", 3, random);
            assert!(output.drops.is_empty() && output.dead_letters.is_empty(), "{:?}", output.drops);
            let mut tracks: Vec<(String, String)> =
                column(&output, "track").into_iter().zip(column(&output, "path")).collect();
            tracks.sort();
            assert_eq!(tracks.len(), 10, "{random}");
            let detections: Vec<i64> =
                column(&output, "detections").iter().map(|n| n.parse().unwrap()).collect();
            assert_eq!(detections.iter().sum::<i64>() as usize, rows(3).len());
            for (path, count) in column(&output, "path").iter().zip(detections) {
                assert_eq!(path.split(';').count() as i64, count);
            }
            let classes = column(&output, "class");
            assert_eq!(classes.iter().filter(|class| *class == "bus").count(), 4);
            assert_eq!(*first.get_or_insert_with(|| tracks.clone()), tracks, "{random}");
        }
    }

    /// A track's latency counts from the box that showed its end, not from its own last one.
    #[test]
    fn patience_is_no_latency() {
        let output = run("{gives: tracks, patience: 10}", 3, 1);
        let last = rows(3).iter().map(|(_, record)| record.time).max().unwrap();
        let mut waited = 0;
        for batch in &output.batches {
            let metadata = Metadata::of(batch);
            for row in 0..batch.num_rows() {
                let (end, due) = (metadata.times.value(row), metadata.intended.value(row) / 10);
                assert!(due - end > 10 * 100_000 || due == last, "{end}, {due}");
                waited += usize::from(due < last);
            }
        }
        assert!(waited >= 4, "{waited}");
    }

    #[test]
    fn each_box_has_its_track() {
        let output = run("gives: boxes", 5, 1);
        let untracked =
            output.drops.iter().find(|(reason, _)| reason == "untracked").map_or(0, |(_, rows)| *rows);
        let tracks = column(&output, "track");
        assert_eq!(tracks.len() + untracked as usize, rows(5).len());
        // The first box of each track but those of the first frames.
        assert!((8..=10).contains(&untracked), "{untracked}");
        let frames = column(&output, "frame");
        assert!(tracks.iter().zip(&frames).any(|(track, frame)| track == "west/1" && frame == "3"));
    }

    #[test]
    fn what_cannot_be_a_box_is_a_dead_letter() {
        let bound = bind(&Track, &[boxes()], "gives: boxes").unwrap();
        let payload = |frame: i64, width: f64| json!({"camera": "east", "frame": frame, "left": 0.0, "top": 0.0, "width": width, "height": 5.0, "score": 0.9});
        let row = |sequence, payload| (0, Record { source: 0, sequence, time: 5, payload });
        let mut epochs = vec![
            (vec![row(0, payload(-1, 5.0)), row(1, payload(0, -5.0)), row(2, json!({"camera": "east"}))], 10),
            (vec![row(3, payload(1, 5.0))], i64::MAX),
        ];
        // Their squares and sums would be infinite, and a checkpoint with them unreadable.
        let mut sure = payload(0, 5.0);
        sure["score"] = json!(1e308);
        epochs[0].0.extend([row(4, payload(0, 1e160)), row(5, sure)]);
        let output = run_epochs(&bound, &[boxes()], &epochs, 1);
        let mut reasons: Vec<&str> = output.dead_letters.iter().map(|letter| &*letter.reason).collect();
        reasons.sort_unstable();
        assert_eq!(reasons, ["bad_box", "bad_box", "bad_box", "bad_frame", "missing_value"]);
        assert_eq!(output.drops, [("late".into(), 1)]);
    }

    #[test]
    fn mistakes_are_told() {
        let error = crate::testing::only(bind(&Track, &[boxes()], "high_score: 60").err().unwrap());
        assert_eq!((error.code, error.help.as_deref()), ("E0606", Some("write a number from 0 to 1")));
        let tracked =
            StreamType::new(boxes().columns.into_iter().chain([Column::new("track", ColumnType::Text)]));
        assert_eq!(
            crate::testing::only(bind(&Track, &[tracked], "gives: boxes").err().unwrap()).code,
            "E0606"
        );
    }
}
