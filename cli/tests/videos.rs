//! Videos through the built binary: read, annotated, killed, continued, and without ffmpeg.
use crate::command::{Place, command, tidemill};
use crate::journals::sorted_lines;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidemill_operators::video::index::Index;
use tidemill_operators::video::program;

const WORKFLOW: &str = "version: 1
name: videos
sources:
  - {id: cameras, kind: video, key: camera, options: {path: clips, scale: 64x48}}
operators:
  - id: boxes
    kind: map
    input: cameras
    options:
      keep: [camera, frame]
      columns: {left: double(frame), top: '10.0', width: '20.0', height: '12.0', label: string(frame)}
sinks:
  - {id: frames, kind: jsonl, input: boxes, options: {path: out/frames.jsonl, metadata: true}}
  - {id: annotated, kind: video, input: boxes, options: {path: 'out/{camera}.mp4', over: clips, scale: 64x48, id: label}}
run: {tick: 10ms, checkpoint_every: 2, dead_letters: out/dead.jsonl}
";

fn ffmpeg() -> PathBuf {
    let found = program::find(Path::new(env!("CARGO_MANIFEST_DIR")));
    found.unwrap_or_else(|missing| panic!("{missing}: {}", program::HELP))
}

/// Two cameras of `frames` frames at 10 a second; the second one is damaged in part.
fn place(frames: u32, rate: &str) -> Place {
    let place = Place::empty("videos");
    place.write("workflow.yaml", WORKFLOW.replace("key: camera,", &format!("key: camera{rate},")));
    std::fs::create_dir(place.path("clips")).unwrap();
    for name in ["north", "south"] {
        let file = place.path(&format!("clips/{name}.mkv"));
        let made = Command::new(ffmpeg())
            .args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=160x120:rate=10"])
            .args(["-frames:v", &frames.to_string(), "-c:v", "libx264", "-g", "10", "-pix_fmt", "yuv420p"])
            .arg(&file)
            .status();
        assert!(made.unwrap().success());
    }
    let file = place.path("clips/south.mkv");
    let mut bytes = std::fs::read(&file).unwrap();
    let (from, to) = (bytes.len() / 2, bytes.len() / 2 + bytes.len() / 20);
    bytes[from..to].iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&file, bytes).unwrap();
    place
}

const OUTPUTS: [&str; 4] = ["out/frames.jsonl", "out/dead.jsonl", "out/north.mp4", "out/south.mp4"];

fn outputs(place: &Place) -> Vec<Vec<u8>> {
    OUTPUTS
        .iter()
        .map(|file| std::fs::read(place.path(file)).unwrap_or_else(|error| panic!("{file}: {error}")))
        .collect()
}

/// Processes whose arguments have this text.
fn processes_with(text: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let named = entries.filter(|entry| {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(text)
    });
    named.count()
}

#[test]
fn videos_are_read_annotated_and_go_on_behind_damage() {
    let place = place(30, "");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml"), "--output", "json"]).expect(0);
    assert!(outcome.stdout.contains("frame_undecodable"), "{}", outcome.stdout);
    let frames = place.read("out/frames.jsonl");
    let count = |text: &str| frames.lines().filter(|line| line.contains(text)).count();
    let dead = place.read("out/dead.jsonl").lines().filter(|line| line.contains("south")).count();
    assert_eq!(count("\"camera\":\"north\""), 30);
    assert!(dead > 0 && count("\"camera\":\"south\"") + dead >= 30, "{dead} dead letters");
    assert!(frames.contains("\"frame\":29") && frames.contains("\"_time\":2900000"), "{frames}");
    for name in ["north", "south"] {
        let file = place.path(&format!("out/{name}.mp4"));
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(&bytes[4..8], b"ftyp", "{name} is an MP4");
        // The frame after an undecodable one is shown in its place: the video is as long as the clip.
        let frames = |file: &Path| Index::read(&ffmpeg(), file).unwrap().frames.len();
        assert_eq!(frames(&file), frames(&place.path(&format!("clips/{name}.mkv"))), "{name}");
    }
    assert_eq!(processes_with(place.path("clips").to_str().unwrap()), 0);
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_with_videos_that_is_killed_leaves_no_process_and_is_continued() {
    let whole = place(60, "");
    tidemill(&["run", &whole.argument("workflow.yaml"), "--quiet"]).expect(0);
    let expected = outputs(&whole);
    let place = place(60, ", rate: 60/s");
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let arguments = ["run", &workflow, "--state", &state, "--checkpoint-interval", "50ms", "--quiet"];
    let clips = place.path("clips");
    let mut killed = 0;
    for _ in 0..3 {
        let mut child = command(&arguments).spawn().unwrap();
        let mut looks = 0;
        while processes_with(clips.to_str().unwrap()) < 2 && child.try_wait().unwrap().is_none() {
            looks += 1;
            assert!(looks < 6000, "no decoder comes");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        killed += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut looks = 0;
        while processes_with(clips.to_str().unwrap()) > 0 {
            looks += 1;
            assert!(looks < 6000, "a decoder stays");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    assert!(killed > 0, "it had come to its end");
    tidemill(&arguments).expect(0);
    for ((file, found), expected) in OUTPUTS.iter().zip(outputs(&place)).zip(expected) {
        // Dead letters of two sources come in reading order, and one of the runs has a rate.
        let is_ordered = *file != "out/dead.jsonl";
        let sorted = |bytes: Vec<u8>| if is_ordered { bytes } else { sorted_lines(&bytes) };
        let (found, expected) = (sorted(found), sorted(expected));
        assert!(found == expected, "{file}: {} bytes, {} expected", found.len(), expected.len());
    }
}

#[test]
fn without_ffmpeg_validation_says_what_to_do() {
    let place = place(2, "");
    let output = command(&["validate", &place.argument("workflow.yaml")])
        .env("TIDEMILL_FFMPEG", "/no/such/ffmpeg")
        .output()
        .unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{words}");
    // The parts that need it, and no others.
    assert!(words.contains("source `cameras`") && words.contains("sink `annotated`"), "{words}");
    assert_eq!(words.matches("error[").count(), 2, "{words}");
    assert!(words.contains("/no/such/ffmpeg") && words.contains("fetch-library.sh ffmpeg"), "{words}");
}
