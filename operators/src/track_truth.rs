//! Ground truth of tracks: the identities in each frame of each camera, and the IDF1 of the found ones.
//!
//! The truth is a folder with a file `CAMERA.txt` for each camera, in the text format of MOTChallenge, with identities
//! common to all cameras. Boxes with the score 0 need not be found, all others must. Judged rows have a camera, an identity
//! and the boxes of a track as text, `frame,left,top,width,height;...` with frames from 0 on, as `track` gives them.
//! Retracted rows do not count.
use crate::record::{Metadata, text};
use crate::vision::track_path::steps;
use arrow_array::{Array, RecordBatch};
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_tracking::bounding_box::BoundingBox;
use tidemill_tracking::metrics::clear::{Clear, clear};
use tidemill_tracking::metrics::hota::{Hota, hota};
use tidemill_tracking::metrics::identity::{Identities, identities};
use tidemill_tracking::metrics::{Frame, Placed};
use tidemill_tracking::mot_text;

/// Overlap from which a true and a found box agree, by the definition of the measure.
const OVERLAP: f64 = 0.5;

/// Error of reading a truth.
#[derive(Debug, thiserror::Error)]
pub enum TrackTruthError {
    /// The folder or a file cannot be read.
    #[error("`{}` cannot be read: {error}", path.display())]
    File {
        /// The folder or file.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// A line is wrong.
    #[error("`{}`, {error}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Position and message.
        error: mot_text::MotTextError,
    },
    /// There is no file.
    #[error("`{}` has no file CAMERA.txt with boxes that count", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

impl TrackTruthError {
    /// Returns advice.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Line { .. } => {
                "correct the line or remove it, or give the box the score 0, so that it is ignored"
            }
            Self::File { .. } | Self::Empty { .. } => {
                "`path` must be a folder with a file CAMERA.txt for each camera, in MOTChallenge's text format; boxes with the score 0 do not count"
            }
        }
    }
}

/// The true boxes of a frame.
#[derive(Debug, Clone, Default)]
struct TrueFrame {
    boxes: Vec<Placed>,
    ignored: Vec<BoundingBox>,
}

/// The truth of all cameras. Two are equal if their contents are.
#[derive(Debug)]
pub struct TrackTruth {
    /// The column with the boxes of a track.
    boxes: String,
    cameras: BTreeMap<String, BTreeMap<u64, TrueFrame>>,
}

impl PartialEq for TrackTruth {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for TrackTruth {}

impl TrackTruth {
    /// Reads the files of a folder. `boxes`: the column of the stream with the boxes of a track.
    ///
    /// # Errors
    /// See [`TrackTruthError`].
    pub fn load(folder: &Path, boxes: &str) -> Result<Self, TrackTruthError> {
        let failed = |path: &Path, error| TrackTruthError::File { path: path.to_owned(), error };
        let mut cameras = BTreeMap::new();
        let mut counts = false;
        for entry in std::fs::read_dir(folder).map_err(|error| failed(folder, error))? {
            let path = entry.map_err(|error| failed(folder, error))?.path();
            let (Some("txt"), Some(camera)) =
                (path.extension().and_then(|it| it.to_str()), path.file_stem().and_then(|it| it.to_str()))
            else {
                continue;
            };
            let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
            let lines = mot_text::read_truth(&text)
                .map_err(|error| TrackTruthError::Line { path: path.clone(), error })?;
            let mut frames: BTreeMap<u64, TrueFrame> = BTreeMap::new();
            for (_, line) in lines {
                let frame = frames.entry(line.frame - 1).or_default();
                match line.identity.filter(|_| line.counts()) {
                    Some(identity) => frame.boxes.push(Placed { identity, area: line.area }),
                    None => frame.ignored.push(line.area),
                }
            }
            counts |= frames.values().any(|frame| !frame.boxes.is_empty());
            cameras.insert(camera.to_owned(), frames);
        }
        if !counts {
            return Err(TrackTruthError::Empty { path: folder.to_owned() });
        }
        Ok(Self { boxes: boxes.to_owned(), cameras })
    }

    /// Returns the number of objects, and of those that several cameras see.
    pub fn objects(&self) -> (usize, usize) {
        let mut seen: BTreeMap<u64, std::collections::BTreeSet<&str>> = BTreeMap::new();
        for (camera, frames) in &self.cameras {
            for placed in frames.values().flat_map(|frame| &frame.boxes) {
                seen.entry(placed.identity).or_default().insert(camera);
            }
        }
        (seen.len(), seen.values().filter(|cameras| cameras.len() > 1).count())
    }
}

/// Standard measures beside IDF1, in percent. See `docs/tracks.md`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrackMeasures {
    /// IDP: share of the found boxes whose object is paired with theirs, over all cameras (Ristani et al. 2016).
    pub idp_percent: f64,
    /// IDR: this share of the true boxes.
    pub idr_percent: f64,
    /// MOTA of the tracks (Bernardin and Stiefelhagen 2008), counts of all cameras together: each row is a track of its
    /// own, regardless of its identity. Below 0 if there are more mistakes than true boxes.
    pub mota_percent: f64,
    /// HOTA of the tracks (Luiten et al. 2021), cameras together.
    pub hota_percent: f64,
    /// DetA: detection accuracy, a part of HOTA.
    pub deta_percent: f64,
    /// AssA: association accuracy, the other part.
    pub assa_percent: f64,
    /// Changes of the track of a true object within the view of a camera.
    pub switches: u64,
}

/// A row that was not retracted: camera, identity, boxes.
type TrackRow = (String, String, String);

/// The rows of all cameras so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrackTally {
    truth: Arc<TrackTruth>,
    rows: BTreeMap<TrackRow, i64>,
    /// Whether the truth of each camera ends with the last frame of a row.
    ends_with_rows: bool,
}

impl TrackTally {
    pub(crate) fn new(truth: &Arc<TrackTruth>) -> Self {
        Self { truth: Arc::clone(truth), rows: BTreeMap::new(), ends_with_rows: false }
    }

    /// Leaves out the truth after the last rows: see [`crate::ground_truth::Score::settle_so_far`].
    pub(crate) fn end_with_rows(&mut self) {
        self.ends_with_rows = true;
    }

    /// Adds rows; returns how many are of cameras without a truth.
    pub(crate) fn read(&mut self, batch: &RecordBatch, camera: &str, identity: &str) -> u64 {
        let column = |name: &str| batch.column_by_name(name).and_then(text);
        let (Some(cameras), Some(identities), Some(boxes)) =
            (column(camera), column(identity), column(&self.truth.boxes))
        else {
            return 0;
        };
        let changes = Metadata::of(batch).changes;
        let mut unknown = 0;
        for row in 0..batch.num_rows() {
            if cameras.is_null(row) || identities.is_null(row) || boxes.is_null(row) {
                continue;
            }
            if !self.truth.cameras.contains_key(cameras.value(row)) {
                unknown += 1;
                continue;
            }
            let said = [cameras, identities, boxes].map(|column| column.value(row).to_owned());
            self.add_one(said.into(), i64::from(changes.value(row)));
        }
        unknown
    }

    fn add_one(&mut self, said: TrackRow, count: i64) {
        let known = self.rows.entry(said).or_default();
        *known += count;
    }

    pub(crate) fn add(&mut self, later: Self) {
        for (said, count) in later.rows {
            match self.rows.entry(said) {
                Entry::Occupied(mut known) => {
                    *known.get_mut() += count;
                    // Retracted rows leave no entries.
                    if *known.get() == 0 {
                        known.remove();
                    }
                }
                Entry::Vacant(new) => {
                    if count != 0 {
                        new.insert(count);
                    }
                }
            }
        }
    }

    /// Compares the rows with the truth.
    pub(crate) fn identities(&self) -> Identities {
        let mut names: BTreeMap<&str, u64> = BTreeMap::new();
        let frames = self.frames(|_, name| {
            let next = names.len() as u64;
            *names.entry(name).or_insert(next)
        });
        identities(&frames.into_values().flatten().collect::<Vec<_>>(), OVERLAP)
    }

    /// Returns the other measures: slower than [`TrackTally::identities`], so only for the end.
    pub(crate) fn measures(&self) -> TrackMeasures {
        let total = self.identities().total();
        let cameras = self.frames(|row, _| row as u64);
        let counted =
            cameras.values().map(|frames| clear(frames, OVERLAP)).fold(Clear::default(), Clear::joined);
        let higher =
            cameras.values().map(|frames| hota(frames)).fold(Hota::default(), |all, one| all.joined(&one));
        TrackMeasures {
            idp_percent: 100.0 * total.precision(),
            idr_percent: 100.0 * total.recall(),
            mota_percent: 100.0 * counted.mota(),
            hota_percent: 100.0 * higher.score(),
            deta_percent: 100.0 * higher.detection(),
            assa_percent: 100.0 * higher.association(),
            switches: counted.switches,
        }
    }

    /// Returns the frames of each camera, in order; `identity` maps a row's number and identity.
    fn frames<'a>(
        &'a self,
        mut identity: impl FnMut(usize, &'a str) -> u64,
    ) -> BTreeMap<&'a str, Vec<Frame>> {
        let mut found: BTreeMap<(&str, u64), Vec<Placed>> = BTreeMap::new();
        let rows = self.rows.iter().filter(|(_, count)| **count > 0).map(|(said, _)| said);
        for (row, (camera, name, boxes)) in rows.enumerate() {
            let identity = identity(row, name.as_str());
            for (frame, [left, top, width, height]) in steps(boxes) {
                let area = BoundingBox { left, top, width, height };
                if !area.is_valid() {
                    continue;
                }
                let here = found.entry((camera.as_str(), frame)).or_default();
                // An object has one position per frame.
                if here.iter().all(|placed| placed.identity != identity) {
                    here.push(Placed { identity, area });
                }
            }
        }
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        for (camera, frame) in found.keys() {
            let known = last.entry(camera).or_default();
            *known = (*known).max(*frame);
        }
        let is_read = |camera: &str, frame: u64| {
            !self.ends_with_rows || last.get(camera).is_some_and(|last| frame <= *last)
        };
        let truth = self.truth.cameras.iter();
        let truth = truth.flat_map(|(camera, frames)| frames.keys().map(|frame| (camera.as_str(), *frame)));
        let truth = truth.filter(|(camera, frame)| is_read(camera, *frame));
        let all: BTreeSet<(&str, u64)> = truth.chain(found.keys().copied()).collect();
        let mut frames: BTreeMap<&str, Vec<Frame>> = BTreeMap::new();
        for (camera, frame) in all {
            let known = self.truth.cameras.get(camera).and_then(|frames| frames.get(&frame));
            let TrueFrame { boxes, ignored } = known.cloned().unwrap_or_default();
            let found = found.remove(&(camera, frame)).unwrap_or_default();
            frames.entry(camera).or_default().push(Frame::without_ignored(boxes, &ignored, found, OVERLAP));
        }
        frames
    }
}

/// Number of independent samples with the uncertainty of a share of agreeing boxes: roughly the number of objects, since
/// the boxes of one depend on each other. At most all boxes.
pub(crate) fn independent(found: &Identities) -> u64 {
    const Z: f64 = 1.959_963_984_540_054;
    let (low, high) = found.interval();
    let (share, half) = (found.total().f1(), (high - low) / 2.0);
    let count =
        if half > 0.0 { share * (1.0 - share) * (Z / half).powi(2) } else { found.units.len() as f64 };
    let boxes = found.total().truth + found.total().found;
    (count.round() as u64).clamp(1, boxes.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::GroundTruth;
    use crate::ground_truth::Score;
    use crate::testing::batch;
    use arrow_array::Int8Array;
    use serde_json::json;
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    fn truth(east: &str) -> Result<TrackTruth, TrackTruthError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("east.txt"), east).unwrap();
        std::fs::write(folder.path().join("west.txt"), "1,7,0,0,10,10,1,1,1\n2,7,0,0,10,10,1,1,1\n").unwrap();
        std::fs::write(folder.path().join("notes.md"), "no truth").unwrap();
        TrackTruth::load(folder.path(), "path")
    }

    fn rows(said: &[(&str, &str, &str, i8)]) -> RecordBatch {
        let columns = ["camera", "vehicle", "path"].map(|name| Column::new(name, ColumnType::Text));
        let values: Vec<_> =
            said.iter().map(|s| json!({"camera": s.0, "vehicle": s.1, "path": s.2})).collect();
        let batch = batch(&StreamType::new(columns), &values);
        let mut columns = batch.columns().to_vec();
        columns[crate::record::CHANGE] = Arc::new(Int8Array::from_iter_values(said.iter().map(|s| s.3)));
        RecordBatch::try_new(batch.schema(), columns).unwrap()
    }

    #[test]
    fn corrections_change_the_score() {
        // The last line need not be found.
        let truth = truth("1,7,0,0,10,10,1,1,1\n2,7,2,0,10,10,1,1,1\n2,9,50,50,10,10,0,1,0.1\n").unwrap();
        let truth = GroundTruth {
            key: "camera".into(),
            prediction: "vehicle".into(),
            answers: Arc::default(),
            once: false,
            tracks: Some(Arc::new(truth)),
            texts: None,
            measure: crate::measures::Measure::Equal,
        };
        let (east, west) = ("0,0,0,10,10;1,2,0,10,10", "0,0,0,10,10;1,0,0,10,10");
        let mut all = Score::default();
        let mut tell = |said: &[(&str, &str, &str, i8)]| {
            let mut staged = Score::default();
            staged.judge(&truth, &rows(said), &all);
            all.add(staged);
            all.settle();
            (all.correct, all.scored, all.unknown)
        };
        // One object under two names: half of its boxes agree.
        assert_eq!(
            tell(&[("east", "a", east, 1), ("west", "b", west, 1), ("north", "c", east, 1)]),
            (4, 8, 1)
        );
        assert_eq!(tell(&[("west", "b", west, -1), ("west", "a", west, 1)]), (8, 8, 1));
        // Boxes found where the truth ignores them do not count, elsewhere they do.
        assert_eq!(tell(&[("east", "d", "1,50,50,10,10", 1)]), (8, 8, 1));
        assert_eq!(tell(&[("east", "e", "5,50,50,10,10", 1)]), (8, 9, 1));
        assert!(all.independent >= 1 && all.independent <= 9);
        // Each row is a track of its own: the two of east without a true box are surplus, no box is missed.
        let measures = all.track_measures().unwrap();
        assert!((measures.idr_percent - 100.0).abs() < 1e-9, "{measures:?}");
        assert!((measures.idp_percent - 80.0).abs() < 1e-9, "{measures:?}");
        assert!((measures.mota_percent - 75.0).abs() < 1e-9 && measures.switches == 0, "{measures:?}");
        assert!((measures.assa_percent - 100.0).abs() < 1e-9, "{measures:?}");
        let product = (measures.deta_percent * measures.assa_percent).sqrt();
        assert!(
            (measures.hota_percent - product).abs() < 1e-9 && measures.deta_percent < 100.0,
            "{measures:?}"
        );
        assert!(Score::default().track_measures().is_none());
    }

    /// Many programs write -1 for an unknown score.
    #[test]
    fn boxes_without_a_score_count() {
        let truth = Arc::new(truth("1,7,0,0,10,10,-1,-1,-1,-1\n2,7,2,0,10,10,-1,-1,-1,-1\n").unwrap());
        assert_eq!(truth.objects(), (1, 1));
        let mut tally = TrackTally::new(&truth);
        tally.read(&rows(&[("west", "a", "0,0,0,10,10;1,0,0,10,10", 1)]), "camera", "vehicle");
        assert!((tally.measures().idr_percent - 50.0).abs() < 1e-9, "{:?}", tally.measures());
    }

    /// A run of the first seconds is judged by them: later truth is no miss.
    #[test]
    fn of_a_run_that_was_cut_short_the_truth_ends_with_the_last_frame() {
        let text = "1,7,0,0,10,10,1,1,1\n2,7,0,0,10,10,1,1,1\n3,7,0,0,10,10,1,1,1\n";
        let mut tally = TrackTally::new(&Arc::new(truth(text).unwrap()));
        tally.read(&rows(&[("west", "a", "0,0,0,10,10;1,0,0,10,10", 1)]), "camera", "vehicle");
        let of_all = tally.identities().total();
        tally.end_with_rows();
        let so_far = tally.identities().total();
        assert_eq!((so_far.truth, so_far.found, so_far.agreeing), (2, 2, 2));
        assert!(of_all.truth > so_far.truth && of_all.agreeing == so_far.agreeing, "{of_all:?}");
    }

    /// Most of the truth is still to come during a run, and comparing all frames with each batch is too slow.
    #[test]
    fn tracks_are_judged_at_the_end_alone() {
        let truth = GroundTruth {
            key: "camera".into(),
            prediction: "vehicle".into(),
            answers: Arc::default(),
            once: false,
            tracks: Some(Arc::new(truth("1,7,0,0,10,10,1,1,1\n2,7,2,0,10,10,1,1,1\n").unwrap())),
            texts: None,
            measure: crate::measures::Measure::Equal,
        };
        let mut all = Score::default();
        let said = [("west", "a", "0,0,0,10,10;1,0,0,10,10", 1), ("east", "a", "0,0,0,10,10;1,2,0,10,10", 1)];
        for row in said {
            let mut staged = Score::default();
            let taken_back = [("west", "b", "1,5,5,9,9", 1), ("west", "b", "1,5,5,9,9", -1)];
            staged.judge(&truth, &rows(&[row, taken_back[0], taken_back[1]]), &all);
            all.add(staged);
            assert_eq!((all.correct, all.scored, all.independent), (0, 0, 0));
        }
        all.settle();
        assert_eq!((all.correct, all.scored), (8, 8));
    }

    /// With correct names and broken tracks, the tracker's measures show errors that IDF1 does not.
    #[test]
    fn a_track_that_breaks_is_a_switch() {
        let truth = Arc::new(truth("1,7,0,0,10,10,1,1,1\n2,7,2,0,10,10,1,1,1\n").unwrap());
        let mut tally = TrackTally::new(&truth);
        let said = [
            ("east", "a", "0,0,0,10,10", 1),
            ("east", "a", "1,2,0,10,10", 1),
            ("west", "a", "0,0,0,10,10;1,0,0,10,10", 1),
        ];
        assert_eq!(tally.read(&rows(&said), "camera", "vehicle"), 0);
        let measures = tally.measures();
        assert_eq!((measures.idp_percent, measures.idr_percent, measures.switches), (100.0, 100.0, 1));
        assert!((measures.mota_percent - 75.0).abs() < 1e-9 && measures.assa_percent < 100.0, "{measures:?}");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let error = truth("1,7,0,0,-10,10\n").unwrap_err().to_string();
        assert!(error.contains("east.txt`, line 1, column 9: `-10` is negative"), "{error}");
        let twice = truth("1,7,0,0,10,10,1\n1,7,20,0,10,10,1\n").unwrap_err().to_string();
        assert!(
            twice.contains("east.txt`, line 2, column 1: the object 7 is in frame 1 a second time"),
            "{twice}"
        );
        let nowhere = TrackTruth::load(Path::new("/nowhere/at/all"), "path").unwrap_err();
        assert!(matches!(nowhere, TrackTruthError::File { .. }));
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(TrackTruth::load(empty.path(), "path"), Err(TrackTruthError::Empty { .. })));
    }
}
