//! Videos in containers: frames are read at the cameras, and drawn on at another location.
use super::engine::{Deployed, Image, is_there};
use crate::command::{Place, root, rows};
use std::path::PathBuf;
use std::process::Command;

const WORKFLOW: &str = "version: 1
name: spread
sources:
  - {id: cameras, kind: video, key: camera, rate: 20/s, options: {path: clips, frames: jpeg, scale: 64x48}}
operators:
  - id: boxes
    kind: map
    input: cameras
    options:
      keep: [camera, frame]
      columns: {left: double(frame), top: '10.0', width: '20.0', height: '12.0', label: string(frame)}
sinks:
  - {id: frames, kind: jsonl, input: boxes, options: {path: out/frames.jsonl}}
  - {id: annotated, kind: video, input: boxes, options: {path: 'out/{camera}.mp4', over: clips, scale: 64x48, id: label}}
run: {tick: 50ms, checkpoint_every: 4, dead_letters: out/dead.jsonl}
";

const PLAN: &str = "version: 1
workflow: {name: spread}
tick: 50ms
checkpoint_every: 4
workers:
  - {id: edge, tier: edge, worker_type: small}
  - {id: hub, tier: hub, worker_type: small}
stages:
  - {id: cameras, operator: cameras, worker: edge}
  - {id: boxes, operator: boxes, worker: hub}
  - {id: frames, operator: frames, worker: hub}
  - {id: annotated, operator: annotated, worker: hub}
classes:
  - {id: 0, share: 1, route: {cameras: cameras, boxes: boxes, frames: frames, annotated: annotated}}
edges:
  - {from: cameras, to: boxes}
  - {from: boxes, to: frames}
  - {from: boxes, to: annotated}
";

/// Of each of the two cameras.
const FRAMES: usize = 20;

/// The program that `scripts/image.sh` puts into images; `None` if it was not fetched, because a test needs no network.
fn ffmpeg() -> Option<PathBuf> {
    let script = root().join("scripts/fetch-library.sh");
    let told = Command::new(script).args(["ffmpeg", "--file"]).output().unwrap();
    let file = root().join(".tidemill/lib").join(String::from_utf8(told.stdout).unwrap().trim());
    if file.is_file() {
        return Some(file);
    }
    eprintln!("skipped: {} is not there: scripts/fetch-library.sh ffmpeg", file.display());
    None
}

#[test]
#[ignore = "long: make test-long"]
fn videos_are_read_and_drawn_over_in_containers() {
    if !is_there() {
        return;
    }
    let Some(ffmpeg) = ffmpeg() else { return };
    let place = Place::empty("spread");
    place.write("workflow.yaml", WORKFLOW);
    place.write("plan.yaml", PLAN);
    std::fs::create_dir(place.path("clips")).unwrap();
    for camera in ["north", "south"] {
        let made = Command::new(&ffmpeg)
            .args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=160x120:rate=10"])
            .args(["-frames:v", &FRAMES.to_string(), "-c:v", "libx264", "-pix_fmt", "yuv420p"])
            .arg(place.path(&format!("clips/{camera}.mp4")))
            .status();
        assert!(made.unwrap().success());
    }
    let [_plain, image] = Image::with_ffmpeg("videos");
    let deployed = Deployed::written_at(place, image, "videos", &[]);
    deployed.call(&["up"]).expect(0);
    deployed.until_complete();
    let [(_, frames), (_, north), (_, south)] = deployed.fetched(["frames.jsonl", "north.mp4", "south.mp4"]);
    let frames = rows(&String::from_utf8(frames).unwrap());
    for camera in ["north", "south"] {
        let mut numbers: Vec<i64> = frames
            .iter()
            .filter(|row| row["camera"] == camera)
            .map(|row| row["frame"].as_i64().unwrap())
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..FRAMES as i64).collect::<Vec<_>>(), "{camera}");
    }
    for video in [north, south] {
        assert_eq!(&video[4..8], b"ftyp", "an MP4");
    }
}
