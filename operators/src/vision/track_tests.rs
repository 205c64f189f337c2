//! Irregular frames: several of one time, one in pieces, restarted counts, damaged numbers, a single frame.
use super::super::track::Track as TrackKind;
use super::tests::{boxes, column, rows};
use super::*;
use crate::api::Instance;
use crate::relational::test::{bind, feed, run_epochs};
use crate::testing::{Record, records};
use serde_json::json;
use std::collections::BTreeSet;

const TRACKS: &str = "{gives: tracks, path: true}";

fn run(options: &str, rows: &[(usize, Record)], random: u64) -> Output {
    let bound = bind(&TrackKind, &[boxes()], options).unwrap();
    run_epochs(&bound, &[boxes()], &feed(rows, 150_000, random).epochs, random)
}

/// The output for a car that drives through the picture of one camera, by numbers and times of its frames.
fn followed(frames: &[(u64, i64)]) -> (Vec<String>, Vec<String>) {
    let record = |(place, (frame, time)): (usize, &(u64, i64))| {
        let payload = json!({
            "camera": "east", "frame": frame, "left": 2.0 * place as f64, "top": 0.0, "width": 40.0, "height": 25.0,
            "score": 0.9, "class": "car",
        });
        (0, Record { source: 0, sequence: place as u64, time: *time, payload })
    };
    let rows: Vec<_> = frames.iter().enumerate().map(record).collect();
    let mut first = None;
    for random in 0..6 {
        let output = run(TRACKS, &rows, random);
        assert!(output.drops.is_empty() && output.dead_letters.is_empty(), "{:?}", output.drops);
        let given = (column(&output, "track"), column(&output, "detections"));
        assert_eq!(*first.get_or_insert_with(|| given.clone()), given, "{random}");
    }
    first.unwrap()
}

fn paths(output: &Output) -> BTreeSet<(String, String)> {
    column(output, "track").into_iter().zip(column(output, "path")).collect()
}

#[test]
fn frames_of_one_time_are_frames_of_their_own() {
    let expected = paths(&run(TRACKS, &rows(3), 0));
    let mut whole_seconds = rows(3);
    whole_seconds.iter_mut().for_each(|(_, record)| record.time -= record.time % 1_000_000);
    for random in 0..6 {
        let output = run(TRACKS, &whole_seconds, random);
        assert!(output.drops.is_empty(), "{:?}", output.drops);
        assert_eq!(paths(&output), expected, "{random}");
    }
}

/// Boxes with different times are no frame: those after the first are reported as unused, with either output.
#[test]
fn a_frame_in_pieces_is_told() {
    let mut pieces = rows(3);
    let frames: BTreeSet<(u32, i64)> =
        pieces.iter().map(|(_, record)| (record.source, record.time)).collect();
    pieces.iter_mut().for_each(|(_, record)| record.time += record.sequence as i64 % 8);
    let again = (pieces.len() - frames.len()) as u64;
    assert!(again > 0);
    for (random, options) in (0..6).flat_map(|random| [(random, TRACKS), (random, "gives: boxes")]) {
        let output = run(options, &pieces, random);
        let told = output.drops.iter().find(|(reason, _)| reason == "frame_again");
        assert_eq!(told.map(|(_, rows)| *rows), Some(again), "{options}");
    }
}

#[test]
fn a_camera_that_counts_anew_goes_on() {
    let (mut time, mut frames) = (0, Vec::new());
    for frame in (0..20).chain(0..15) {
        time += 100_000;
        frames.push((frame, time));
    }
    let (tracks, detections) = followed(&frames);
    assert_eq!(tracks, ["east/1", "east/2"]);
    assert_eq!(detections, ["20", "15"]);
    // The very first frame again, after all tracks have ended.
    let (tracks, _) = followed(&[(0, 0), (0, 60_000_000), (1, 60_100_000)]);
    assert_eq!(tracks, ["east/1", "east/2"]);
}

#[test]
fn one_damaged_number_ends_tracks_and_no_camera() {
    let frames = (0..20).map(|frame| (if frame == 10 { 9_000_000_000_000_000_000 } else { frame }, frame));
    let frames: Vec<(u64, i64)> = frames.map(|(number, frame)| (number, frame as i64 * 100_000)).collect();
    assert_eq!(followed(&frames).1, ["10", "9"]);
}

#[test]
fn a_camera_that_was_seen_once_holds_up_nobody() {
    let bound = bind(&TrackKind, &[boxes()], "{gives: tracks, patience: 2}").unwrap();
    let Ok(Instance::Stateful(mut running)) = (bound.make)() else { panic!("a stateful operator") };
    let (once, mut output) = (rows(3).swap_remove(0).1, Output::default());
    assert_eq!(once.time, 0);
    running.apply(0, &records(&boxes(), &[once]), &mut output).unwrap();
    running.advance(3_000_000, &mut output).unwrap();
    assert_eq!((running.output_watermark(3_000_000), output.batches.len()), (0, 0));
    // Three frames, at one per second while the pace is unknown.
    running.advance(3_000_001, &mut output).unwrap();
    assert_eq!((running.output_watermark(3_000_001), output.batches.len()), (3_000_001, 1));
}

fn camera() -> Camera {
    Camera {
        tracker: Tracker::new(TrackerSettings::default()),
        first: (0, 0),
        last: (0, 0),
        class: 0,
        classes: Vec::new(),
        origins: BTreeMap::new(),
    }
}

#[test]
fn a_pause_does_not_slow_a_camera_down() {
    let mut camera = camera();
    (1..=10).for_each(|frame| camera.reached(frame as i64 * 100_000, frame));
    // An empty scene for a while is no pause.
    camera.returned(9_000_000, 90, 30);
    camera.reached(9_000_000, 90);
    assert_eq!(camera.pace(), (90, 9_000_000));
    // It was off for an hour, and continued its count.
    let time = 3_609_000_000;
    assert!(camera.is_over(time, 30));
    camera.returned(time, 91, 30);
    camera.reached(time, 91);
    assert_eq!(camera.pace(), (91, 9_000_000 + 2 * 31 * 100_000));
}

#[test]
fn the_pace_is_that_of_late() {
    let mut camera = camera();
    let mut time = 0;
    for frame in 1..=1000 {
        time += 100_000;
        camera.reached(time, frame);
        let (frames, took) = camera.pace();
        assert_eq!(took, frames * 100_000, "{frame}");
    }
    for frame in 1001..=1500 {
        time += 1_000_000;
        camera.reached(time, frame);
    }
    let (frames, took) = camera.pace();
    assert!(frames <= i128::from(PACE_FRAMES) && took > frames * 800_000, "{took} for {frames}");
}
