//! Builds tracks from the detections of successive frames: BoT-SORT (Aharon, Orfaig, Bobrovsky 2022) for fixed cameras,
//! that is, without its compensation of camera motion. Without embeddings it is ByteTrack (Zhang et al. 2022) with the
//! motion model of BoT-SORT.
//!
//! In each frame, [Kalman filters](crate::kalman) predict where the boxes of the tracks are. Then:
//!
//! 1. Tracks and detections of a high score are assigned to each other, by 1 - overlap or by the distance of their
//!    embeddings, whichever is less; the latter counts only near the predicted box.
//! 2. Unassigned tracks that were seen in the previous frame take detections of a low score, by overlap alone.
//! 3. Tracks that were seen only once take remaining detections of a high score, or end.
//! 4. The remaining detections with the highest scores start tracks.
//!
//! A track that was not seen for [`TrackerSettings::patience`] frames ends.
use crate::assignment::assign_below;
use crate::bounding_box::BoundingBox;
use crate::kalman::BoxFilter;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A detection in a frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Detection {
    /// Its box.
    pub area: BoundingBox,
    /// Confidence of the detector, 0 to 1.
    pub score: f64,
    /// Number of the class.
    pub class: u32,
    /// Appearance: a vector whose direction counts. Empty: unknown.
    pub embedding: Vec<f32>,
}

/// Settings of a tracker. The defaults are those of the paper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrackerSettings {
    /// Detections with at least this score are assigned first.
    pub high_score: f64,
    /// Detections below this score are ignored.
    pub low_score: f64,
    /// A track starts with at least this score.
    pub first_score: f64,
    /// Limit of 1 - overlap (or the distance of the embeddings) in the first assignment.
    pub first_distance: f64,
    /// Limit of 1 - overlap for detections of a low score.
    pub second_distance: f64,
    /// Limit of 1 - overlap for tracks that were seen only once.
    pub unconfirmed_distance: f64,
    /// Limit of half of the cosine distance of embeddings, 0 to 1.
    pub appearance_distance: f64,
    /// Embeddings count where 1 - overlap is at most this.
    pub proximity: f64,
    /// Share of the old embedding in a track's new one.
    pub smoothing: f64,
    /// A track ends after this many frames without a detection.
    pub patience: u64,
    /// Whether a track takes only detections of its own class.
    pub keeps_class: bool,
}

impl Default for TrackerSettings {
    fn default() -> Self {
        Self {
            high_score: 0.6,
            low_score: 0.1,
            first_score: 0.7,
            first_distance: 0.8,
            second_distance: 0.5,
            unconfirmed_distance: 0.7,
            appearance_distance: 0.25,
            proximity: 0.5,
            smoothing: 0.9,
            patience: 30,
            keeps_class: false,
        }
    }
}

/// A tracked object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Track {
    /// Number from 1, in the order in which tracks of this tracker started.
    pub number: u64,
    /// Frame of the first detection.
    pub first_frame: u64,
    /// Frame of the last one.
    pub last_frame: u64,
    /// Detections so far.
    pub detections: u64,
    /// Box of the first detection.
    pub first_area: BoundingBox,
    /// Box of the last one.
    pub last_area: BoundingBox,
    /// Sum of scores by class.
    classes: BTreeMap<u32, f64>,
    /// Sum of the unit vectors of its detections, each weighted by its score.
    appearance: Vec<f64>,
    /// Unit vector of the recent appearance.
    recent: Vec<f64>,
    filter: BoxFilter,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// Seen once.
    Unconfirmed,
    /// Seen in the last frame.
    Seen,
    /// Not seen in the last frame.
    Lost,
}

impl Track {
    fn new(number: u64, frame: u64, detection: &Detection, state: State) -> Self {
        let mut track = Self {
            number,
            first_frame: frame,
            last_frame: frame,
            detections: 0,
            first_area: detection.area,
            last_area: detection.area,
            classes: BTreeMap::new(),
            appearance: Vec::new(),
            recent: Vec::new(),
            filter: BoxFilter::new(&detection.area),
            state,
        };
        track.note(frame, detection, 0.0);
        track
    }

    fn note(&mut self, frame: u64, detection: &Detection, smoothing: f64) {
        self.last_frame = frame;
        self.last_area = detection.area;
        self.detections += 1;
        *self.classes.entry(detection.class).or_default() += detection.score;
        let Some(unit) = unit(detection.embedding.iter().map(|value| f64::from(*value))) else { return };
        if self.appearance.len() != unit.len() {
            (self.appearance, self.recent) = (vec![0.0; unit.len()], unit.clone());
        }
        for (sum, value) in self.appearance.iter_mut().zip(&unit) {
            *sum += detection.score * value;
        }
        let mixed = self.recent.iter().zip(&unit).map(|(old, new)| smoothing * old + (1.0 - smoothing) * new);
        self.recent = self::unit(mixed).unwrap_or(unit);
    }

    /// Returns the class with the largest sum of scores.
    pub fn class(&self) -> u32 {
        let largest = self.classes.iter().rev().max_by(|a, b| a.1.total_cmp(b.1));
        largest.map_or(0, |(class, _)| *class)
    }

    /// Returns the unit vector of its appearance, over all its detections; empty where none had an embedding.
    pub fn embedding(&self) -> Vec<f32> {
        let unit = unit(self.appearance.iter().copied()).unwrap_or_default();
        unit.into_iter().map(|value| value as f32).collect()
    }

    /// Returns the velocity in pixels per frame, to the right and downwards.
    pub fn velocity(&self) -> (f64, f64) {
        self.filter.velocity()
    }

    /// Whether it was seen more than once, or from the first frame on.
    pub fn is_confirmed(&self) -> bool {
        self.state != State::Unconfirmed
    }

    fn see(&mut self, frame: u64, detection: &Detection, smoothing: f64) {
        self.filter.correct(&detection.area);
        self.note(frame, detection, smoothing);
        self.state = State::Seen;
    }
}

/// Normalises a vector; none for one without a direction.
fn unit(values: impl Iterator<Item = f64>) -> Option<Vec<f64>> {
    let values: Vec<f64> = values.collect();
    let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    (length > 0.0 && length.is_finite()).then(|| values.iter().map(|value| value / length).collect())
}

/// The changes by a frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// Number of the track of each detection; none where it has no track, or one that is not confirmed yet.
    pub numbers: Vec<Option<u64>>,
    /// Confirmed tracks that ended with this frame, by number.
    pub ended: Vec<Track>,
}

/// Tracks the objects of one camera.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tracker {
    settings: TrackerSettings,
    /// By number.
    tracks: Vec<Track>,
    last_number: u64,
    last_frame: Option<u64>,
    /// See [`Tracker::seen_last`].
    seen_last: Vec<(u64, usize)>,
}

impl Tracker {
    /// Creates a tracker without frames.
    pub fn new(settings: TrackerSettings) -> Self {
        Self { settings, tracks: Vec::new(), last_number: 0, last_frame: None, seen_last: Vec::new() }
    }

    /// Iterates over confirmed tracks that have not ended.
    pub fn tracks(&self) -> impl Iterator<Item = &Track> {
        self.tracks.iter().filter(|track| track.is_confirmed())
    }

    /// Whether the track with this number has not ended, confirmed or not.
    pub fn lives(&self, number: u64) -> bool {
        self.tracks.iter().any(|track| track.number == number)
    }

    /// Returns the numbers of the tracks, confirmed or not, with detections in the last frame, each with the detection.
    pub fn seen_last(&self) -> &[(u64, usize)] {
        &self.seen_last
    }

    /// Returns the last frame.
    pub fn last_frame(&self) -> Option<u64> {
        self.last_frame
    }

    /// Ends all tracks: there are no more frames.
    pub fn finish(&mut self) -> Vec<Track> {
        std::mem::take(&mut self.tracks).into_iter().filter(Track::is_confirmed).collect()
    }

    /// Ends all tracks and restarts the count of frames: the next one is the first. The numbers of tracks continue.
    pub fn begin_again(&mut self) -> Vec<Track> {
        self.last_frame = None;
        self.seen_last.clear();
        self.finish()
    }

    /// Takes a frame later than all before; missing frames between count as frames without a search. A frame that is
    /// not later changes nothing, and none of its detections gets a track.
    pub fn step(&mut self, frame: u64, detections: &[Detection]) -> Step {
        let gap = match self.last_frame {
            Some(last) if frame <= last => {
                self.seen_last.clear();
                return Step { numbers: vec![None; detections.len()], ended: Vec::new() };
            }
            Some(last) => frame - last,
            None => 1,
        };
        let is_first = self.last_frame.replace(frame).is_none();
        // Tracks that ended in a frame between.
        let patience = self.settings.patience;
        let is_over = |track: &mut Track| track.is_confirmed() && frame - track.last_frame > patience + 1;
        let mut ended: Vec<Track> = self.tracks.extract_if(.., is_over).collect();
        for _ in 0..gap.min(self.settings.patience + 1) {
            for track in &mut self.tracks {
                track.filter.predict(track.state != State::Seen);
            }
        }
        let settings = self.settings.clone();
        let of_score = |low: f64, high: f64| -> Vec<usize> {
            let within = |score: f64| score >= low && score < high;
            (0..detections.len()).filter(|index| within(detections[*index].score)).collect()
        };
        let mut owners: Vec<Option<usize>> = vec![None; detections.len()];

        let high = of_score(settings.high_score, f64::INFINITY);
        let known = self.indices(|track| track.state != State::Unconfirmed);
        self.assign(frame, detections, &known, &high, settings.first_distance, true, &mut owners);
        let missed = self.indices(|track| track.state == State::Seen && track.last_frame < frame);
        let low = of_score(settings.low_score, settings.high_score);
        self.assign(frame, detections, &missed, &low, settings.second_distance, false, &mut owners);
        let unconfirmed = self.indices(|track| track.state == State::Unconfirmed);
        let left: Vec<usize> = high.into_iter().filter(|index| owners[*index].is_none()).collect();
        self.assign(frame, detections, &unconfirmed, &left, settings.unconfirmed_distance, true, &mut owners);

        for index in left {
            if owners[index].is_none() && detections[index].score >= settings.first_score {
                self.last_number += 1;
                let state = if is_first { State::Seen } else { State::Unconfirmed };
                owners[index] = Some(self.tracks.len());
                self.tracks.push(Track::new(self.last_number, frame, &detections[index], state));
            }
        }
        let number = |owner: &Option<usize>| {
            let track = &self.tracks[(*owner)?];
            track.is_confirmed().then_some(track.number)
        };
        let numbers = owners.iter().map(number).collect();
        let seen = owners
            .iter()
            .enumerate()
            .filter_map(|(index, owner)| Some((self.tracks[(*owner)?].number, index)));
        self.seen_last = seen.collect();
        ended.append(&mut self.end(frame));
        Step { numbers, ended }
    }

    /// Positions of the tracks for which this holds.
    fn indices(&self, holds: impl Fn(&Track) -> bool) -> Vec<usize> {
        (0..self.tracks.len()).filter(|index| holds(&self.tracks[*index])).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "the three assignments differ in each of them")]
    fn assign(
        &mut self,
        frame: u64,
        detections: &[Detection],
        tracks: &[usize],
        candidates: &[usize],
        most: f64,
        looks: bool,
        owners: &mut [Option<usize>],
    ) {
        let mut costs = Vec::with_capacity(tracks.len() * candidates.len());
        for track in tracks {
            let track = &self.tracks[*track];
            let estimate = track.filter.estimate();
            for detection in candidates {
                let detection = &detections[*detection];
                let far = 1.0 - estimate.overlap(&detection.area);
                let is_allowed = !self.settings.keeps_class || track.class() == detection.class;
                costs.push(match (is_allowed, looks) {
                    (false, _) => 2.0,
                    (true, true) => far.min(self.unlikeness(track, detection, far)),
                    (true, false) => far,
                });
            }
        }
        for (row, column) in assign_below(tracks.len(), candidates.len(), &costs, most) {
            let (track, detection) = (tracks[row], candidates[column]);
            self.tracks[track].see(frame, &detections[detection], self.settings.smoothing);
            owners[detection] = Some(track);
        }
    }

    /// Half of the cosine distance of the embeddings; 1 where it does not count.
    fn unlikeness(&self, track: &Track, detection: &Detection, far: f64) -> f64 {
        if far > self.settings.proximity || track.recent.len() != detection.embedding.len() {
            return 1.0;
        }
        let Some(seen) = unit(detection.embedding.iter().map(|value| f64::from(*value))) else { return 1.0 };
        let likeness: f64 = track.recent.iter().zip(&seen).map(|(a, b)| a * b).sum();
        let distance = (1.0 - likeness).max(0.0) / 2.0;
        if distance > self.settings.appearance_distance { 1.0 } else { distance }
    }

    /// Ends tracks and marks those without a detection in this frame.
    fn end(&mut self, frame: u64) -> Vec<Track> {
        let patience = self.settings.patience;
        let is_over = |track: &mut Track| match track.state {
            State::Unconfirmed => track.last_frame < frame,
            State::Seen | State::Lost => frame - track.last_frame > patience,
        };
        let ended: Vec<Track> = self.tracks.extract_if(.., is_over).filter(Track::is_confirmed).collect();
        for track in &mut self.tracks {
            if track.last_frame < frame {
                track.state = State::Lost;
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_random::Random;

    fn seen(x: f64, y: f64, score: f64) -> Detection {
        Detection { area: BoundingBox::around(x, y, 40.0, 30.0), score, class: 1, embedding: Vec::new() }
    }

    fn looking(mut detection: Detection, embedding: [f32; 2]) -> Detection {
        detection.embedding = embedding.to_vec();
        detection
    }

    #[test]
    fn two_that_pass_each_other_keep_their_numbers() {
        let mut tracker = Tracker::new(TrackerSettings::default());
        for frame in 0..60 {
            let x = 10.0 * frame as f64;
            // The order of a detector is meaningless.
            let mut boxes = [(1, seen(x, 100.0, 0.9)), (2, seen(600.0 - x, 110.0, 0.9))];
            if frame % 2 == 1 {
                boxes.reverse();
            }
            let step = tracker.step(frame, &boxes.clone().map(|(_, detection)| detection));
            assert_eq!(step.numbers, boxes.map(|(number, _)| Some(number)), "{frame}");
        }
    }

    #[test]
    fn low_scores_keep_a_track_and_begin_none() {
        let mut tracker = Tracker::new(TrackerSettings::default());
        for frame in 0..20 {
            let score = if frame < 5 { 0.9 } else { 0.3 };
            let step = tracker.step(frame, &[seen(5.0 * frame as f64, 50.0, score), seen(500.0, 500.0, 0.3)]);
            assert_eq!(step.numbers, [Some(1), None], "{frame}");
        }
        assert_eq!(tracker.tracks().next().unwrap().detections, 20);
    }

    #[test]
    fn tracks_outlive_gaps_shorter_than_the_patience() {
        for (gap, numbers) in [(25, 1), (40, 2)] {
            let mut tracker = Tracker::new(TrackerSettings::default());
            let mut ended = Vec::new();
            for frame in (0..20).chain(20 + gap..40 + gap) {
                ended.extend(tracker.step(frame, &[seen(2.0 * frame as f64, 50.0, 0.9)]).ended);
            }
            ended.extend(tracker.finish());
            assert_eq!(ended.len(), numbers, "{gap}");
            assert_eq!(ended[0].first_frame, 0);
            assert_eq!(ended.iter().map(|track| track.detections).sum::<u64>(), 40);
        }
    }

    /// Two boxes jump to ambiguous places; their appearance decides.
    #[test]
    fn embeddings_tell_neighbours_apart() {
        let (red, blue) = ([1.0, 0.0], [0.0, 1.0]);
        let mut with = Tracker::new(TrackerSettings::default());
        let mut without = Tracker::new(TrackerSettings::default());
        for frame in 0..10 {
            let boxes = [seen(100.0, 100.0, 0.9), seen(100.0, 108.0, 0.9)];
            with.step(frame, &[looking(boxes[0].clone(), red), looking(boxes[1].clone(), blue)]);
            without.step(frame, &boxes);
        }
        let jumped = [seen(100.0, 107.0, 0.9), seen(100.0, 101.0, 0.9)];
        assert_eq!(without.step(10, &jumped).numbers, [Some(2), Some(1)]);
        let [first, second] = jumped;
        assert_eq!(with.step(10, &[looking(first, red), looking(second, blue)]).numbers, [Some(1), Some(2)]);
    }

    #[test]
    fn a_frame_that_is_not_later_changes_nothing() {
        let mut tracker = Tracker::new(TrackerSettings::default());
        tracker.step(3, &[seen(0.0, 0.0, 0.9)]);
        let mut before = tracker.clone();
        before.seen_last.clear();
        for frame in [0, 3] {
            assert_eq!(tracker.step(frame, &[seen(0.0, 0.0, 0.9)]).numbers, [None]);
        }
        assert_eq!(tracker, before);
    }

    #[test]
    fn frames_may_begin_again() {
        let mut tracker = Tracker::new(TrackerSettings::default());
        for frame in 7..10 {
            tracker.step(frame, &[seen(0.0, 0.0, 0.9)]);
        }
        assert_eq!(tracker.begin_again().len(), 1);
        assert_eq!(tracker.step(0, &[seen(0.0, 0.0, 0.9)]).numbers, [Some(2)], "the first frame");
        assert_eq!(tracker.step(1, &[seen(0.0, 0.0, 0.9)]).numbers, [Some(2)]);
    }

    #[test]
    fn classes_may_part_tracks() {
        for (keeps_class, expected) in [(false, Some(1)), (true, None)] {
            let mut tracker = Tracker::new(TrackerSettings { keeps_class, ..TrackerSettings::default() });
            for frame in 0..3 {
                tracker.step(frame, &[seen(0.0, 0.0, 0.9)]);
            }
            let other = Detection { class: 2, ..seen(0.0, 0.0, 0.9) };
            assert_eq!(tracker.step(3, &[other]).numbers, [expected]);
        }
    }

    proptest! {
        /// For any input: numbers are unique in a frame, tracks grow, and a serialized copy continues alike.
        #[test]
        fn what_it_says_is_consistent(seed in any::<u64>()) {
            let mut random = Random::of_seed(seed);
            let mut tracker = Tracker::new(TrackerSettings { patience: 3, ..TrackerSettings::default() });
            let mut frame = 0;
            for _ in 0..30 {
                frame += 1 + random.below(3) as u64 * random.below(3) as u64;
                let count = random.below(6);
                let detections: Vec<Detection> = (0..count).map(|_| {
                    let embedding = if random.chance(0.3) { vec![] } else { vec![random.unit() as f32 - 0.5, random.unit() as f32] };
                    let (x, y) = (random.uniform(0.0, 60.0), random.uniform(0.0, 60.0));
                    let (width, height) = (random.uniform(0.0, 50.0), random.uniform(0.0, 50.0));
                    Detection { area: BoundingBox::around(x, y, width, height), score: random.unit(), class: random.below(3) as u32, embedding }
                }).collect();
                let text = serde_json::to_string(&tracker).unwrap();
                let mut copy: Tracker = serde_json::from_str(&text).unwrap();
                let step = tracker.step(frame, &detections);
                prop_assert_eq!(&copy.step(frame, &detections), &step);
                let mut numbers: Vec<u64> = step.numbers.iter().flatten().copied().collect();
                let all = numbers.len();
                numbers.sort_unstable();
                numbers.dedup();
                prop_assert_eq!(numbers.len(), all);
                for number in numbers {
                    prop_assert!(tracker.tracks().any(|track| track.number == number && track.last_frame == frame));
                }
                for track in &step.ended {
                    prop_assert!(frame - track.last_frame > 3 && track.detections > 0);
                }
            }
        }
    }
}
